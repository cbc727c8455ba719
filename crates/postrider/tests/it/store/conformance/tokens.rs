use postrider::error::StoreError;
use postrider::store::{IssuedToken, Keyring, NewToken, Scope, TOKEN_NAME_BYTES_MAX, TokenRecord, Tokens};

use crate::store::world::{Harness, World};

async fn issue<H: Harness>(world: &World<H>, name: &str, scope: Scope) -> IssuedToken {
    world.store().create_token(NewToken { name: name.to_owned(), scope }).await.unwrap()
}

/// What this token opens, if anything.
async fn scope_of<H: Harness>(world: &World<H>, token: &str) -> Option<Scope> {
    let keys = world.store().keys().await.unwrap();
    keys.iter().find(|key| key.opens(token)).map(|key| key.scope)
}

pub(crate) async fn a_token_opens_its_scope_and_nothing_else_does<H: Harness>(world: World<H>) {
    for scope in Scope::ALL {
        let issued = issue(&world, "shop", scope).await;
        assert_eq!(scope_of(&world, &issued.token).await, Some(scope));
        let almost = &issued.token[..issued.token.len() - 1];
        for wrong in [&issued.record.prefix, almost, "", &issued.token.to_uppercase()] {
            assert_eq!(scope_of(&world, wrong).await, None, "{wrong}");
        }
    }
}

pub(crate) async fn a_token_is_listed_by_its_prefix_and_never_shown_again<H: Harness>(world: World<H>) {
    let first = issue(&world, "shop", Scope::Application).await;
    world.live(1).await;
    let second = issue(&world, "grafana", Scope::Monitor).await;
    let listed: Vec<TokenRecord> = world.store().tokens().await.unwrap();
    assert_eq!(listed, [first.record.clone(), second.record.clone()]);
    assert_eq!(second.record.created_at, world.now());
    assert!(first.token.starts_with(&first.record.prefix) && first.token.len() > 40);
    let told =
        format!("{listed:?} {first:?} {:?} {:?}", world.events().await, world.store().keys().await.unwrap());
    let secret = first.token.strip_prefix(&first.record.prefix).unwrap();
    assert!(!told.contains(secret) && !told.contains(secret.trim_matches('_')), "{told}");
}

pub(crate) async fn a_revoked_token_opens_nothing<H: Harness>(mut world: World<H>) {
    let (gone, stays) = (issue(&world, "a", Scope::Admin).await, issue(&world, "b", Scope::Admin).await);
    world.store().revoke_token(&gone.record.prefix, false).await.unwrap();
    world.crash().await;
    assert_eq!(scope_of(&world, &gone.token).await, None);
    assert_eq!(scope_of(&world, &stays.token).await, Some(Scope::Admin));
    assert_eq!(world.store().tokens().await.unwrap(), [stays.record]);
    let again = world.store().revoke_token(&gone.record.prefix, false).await.unwrap_err();
    assert!(matches!(again, StoreError::Unknown { what: "token", .. }), "{again:?}");
}

pub(crate) async fn the_last_token_is_revoked_only_by_whoever_says_so<H: Harness>(world: World<H>) {
    let (first, last) = (issue(&world, "a", Scope::Admin).await, issue(&world, "b", Scope::Monitor).await);
    world.store().revoke_token(&first.record.prefix, false).await.unwrap();
    let refused = world.store().revoke_token(&last.record.prefix, false).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict(_)), "{refused:?}");
    let why = "is the last one; without any, any client on loopback may do everything";
    assert_eq!(refused.to_string(), format!("token {} {why}", last.record.prefix));
    assert_eq!(scope_of(&world, &last.token).await, Some(Scope::Monitor));
    let unknown = world.store().revoke_token("pr_nobody", false).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "token", .. }), "{unknown:?}");
    world.store().revoke_token(&last.record.prefix, true).await.unwrap();
    assert_eq!(world.store().tokens().await.unwrap(), []);
}

pub(crate) async fn tokens_that_come_and_go_are_logged<H: Harness>(world: World<H>) {
    let issued = issue(&world, "shop", Scope::Application).await;
    world.store().revoke_token(&issued.record.prefix, true).await.unwrap();
    let logged = world.events().await;
    let kinds: Vec<(&str, Option<&str>)> =
        logged.iter().take(2).map(|event| (event.kind.as_str(), event.subject.as_deref())).collect();
    let prefix = Some(issued.record.prefix.as_str());
    assert_eq!(kinds, [("token.revoked", prefix), ("token.created", prefix)]);
    assert_eq!(logged[1].detail["name"], "shop");
    assert_eq!(logged[1].detail["scope"], "application");
}

pub(crate) async fn a_token_has_a_name_for_people<H: Harness>(world: World<H>) {
    for name in ["", "two\nlines", &"x".repeat(TOKEN_NAME_BYTES_MAX + 1)] {
        let new = NewToken { name: name.to_owned(), scope: Scope::Admin };
        let refused = world.store().create_token(new).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "name"), "{refused:?}");
    }
    assert_eq!(world.store().tokens().await.unwrap(), []);
}
