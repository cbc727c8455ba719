//! Whatever another program writes into a row of `postrider.queue`, it never keeps the others from being delivered.

use postrider::store::postgres::{PostgresOptions, PostgresStore};
use postrider::store::{
    ClaimRequest, DlqFilter, Figures, Keyring, Listing, MessageFilter, NewToken, NoDirectClaims, Scope,
    Tokens, UNREADABLE,
};
use postrider::{Operate, State, Store};
use serde_json::json;
use std::sync::Arc;
use test_servers::Database;

use super::super::world::{World, due, join, new_endpoint, to};
use super::{Postgres, migrated, overwrite};

#[tokio::test]
async fn a_due_time_without_end_or_beginning_stops_nobody() {
    let mut world = World::<Postgres>::start().await;
    for (time, expected) in
        [("'-infinity'", true), ("'4713-01-01 BC'", true), ("'infinity'", false), ("'294000-01-01'", false)]
    {
        let (strange, whole) = (world.send(to("a").ordering_key("k")).await, world.send(to("a")).await);
        overwrite(&world.harness().database, strange, "due_at", time).await;
        world.store().waiting().await.unwrap();
        world.store().status().await.unwrap();
        world.store().figures().await.unwrap();
        world.story(strange).await;
        let claims = world.claim(world.a, 10).await;
        assert!(claims.iter().any(|claim| claim.id == whole), "{time}");
        assert_eq!(claims.iter().any(|claim| claim.id == strange), expected, "{time}");
        for claim in claims {
            world.retry(claim, 0).await;
        }
        let claims = world.claim(world.a, 10).await;
        for claim in claims {
            world.complete(claim).await;
        }
        if !expected {
            world.store().cancel(strange).await.unwrap();
        }
    }
}

#[tokio::test]
async fn text_that_is_no_utf8_is_set_aside_and_shown() {
    let database = Database::empty().await;
    migrated(&database).await;
    let superuser = database.connect_as_superuser().await;
    // While it is called SQL_ASCII, the server takes any bytes as text.
    let name_encoding = async |encoding: &str| {
        let rename =
            "UPDATE pg_database SET encoding = pg_char_to_encoding($1) WHERE datname = current_database()";
        superuser.execute(rename, &[&encoding]).await.unwrap();
    };
    let store = PostgresStore::open(PostgresOptions::new(database.url())).await.unwrap();
    let endpoint = store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap().id;
    let (node, _arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
    let mut damaged = Vec::new();
    for column in ["content_type", "event_type", "ordering_key", "last_error"] {
        let id = store.send(to("a").ordering_key(column)).await.unwrap().id;
        name_encoding("SQL_ASCII").await;
        overwrite(&database, id, column, r"E'a\xffb'").await;
        name_encoding("UTF8").await;
        damaged.push(id);
    }
    let whole = store.send(to("a")).await.unwrap().id;
    let wants = vec![due(endpoint, 10)];
    let claimed = store.claim(ClaimRequest { node, batch: 1, wants, alone: false }).await.unwrap();
    let ids: Vec<_> = claimed.claims.iter().map(|claim| claim.message.id).collect();
    assert_eq!(ids, [damaged[3], whole], "what a receiver said of it is not read");
    assert_eq!(store.story(damaged[3]).await.unwrap().last_error.as_deref(), Some("a\u{fffd}b"));
    for id in &damaged[..3] {
        assert_eq!(store.story(*id).await.unwrap().state, State::Dead);
    }
    let letters = store.dlq(DlqFilter::default()).await.unwrap();
    assert!(letters.iter().all(|letter| letter.reason == UNREADABLE));
    assert_eq!(letters[0].content_type, "a\u{fffd}b");
    assert_eq!(store.messages(MessageFilter::default()).await.unwrap().items.len(), 5);
}

/// Without any token a node lets in every client on loopback, so tokens that it cannot read must not look like none.
#[tokio::test]
async fn a_token_of_a_newer_version_opens_nothing_and_the_others_stay() {
    let world = World::<Postgres>::start().await;
    let owner = super::prompt::Prompt::of(&world).await;
    owner.run("ALTER TABLE postrider._tokens DROP CONSTRAINT _tokens_scope_check").await;
    let newer = "INSERT INTO postrider._tokens VALUES ('pr_newer', 'newer', 'auditor', sha256('x'), now())";
    owner.run(newer).await;
    let refused = world.store().keys().await.unwrap_err().to_string();
    assert!(refused.contains("pr_newer"), "{refused}");
    let token = NewToken { name: "shop".to_owned(), scope: Scope::Application };
    let issued = world.store().create_token(token).await.unwrap();
    let keys = world.store().keys().await.unwrap();
    assert!(keys.iter().map(|key| key.prefix.as_str()).eq([issued.record.prefix.as_str()]), "{keys:?}");
}

#[tokio::test]
async fn an_attempt_has_an_outcome_and_a_class_that_nodes_know() {
    let world = World::<Postgres>::start().await;
    let owner = super::prompt::Prompt::of(&world).await;
    for (outcome, class) in [("odd", "NULL"), ("failed", "'odd'")] {
        let insert = format!(
            "INSERT INTO postrider.attempts (message_id, number, node_id, started_at, duration, outcome, class)
             VALUES (1, 1, 1, now(), '1s', '{outcome}', {class})"
        );
        owner.refuses(&insert, "23514", "check constraint").await;
    }
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_read_is_named() {
    let world = World::<Postgres>::start().await;
    let owner = super::prompt::Prompt::of(&world).await;
    owner.run("ALTER TABLE postrider._circuits DROP CONSTRAINT _circuits_state_check").await;
    owner.run("UPDATE postrider._circuits SET state = 'ajar'").await;
    let refused = world.store().endpoint("a").await.unwrap_err().to_string();
    assert!(refused.contains("endpoint a") && refused.contains("ajar"), "{refused}");
}
