//! Whatever another program writes into a row of the queue table of SQLite, it never keeps the others from being delivered.

use postrider::store::{DlqFilter, Figures, Listing, MessageFilter, Pick, UNREADABLE, Want};
use postrider::{Operate, State, Store};

use super::sqlite::Sqlite;
use super::world::{World, due, to};

/// Values of every type, of which a column can read some at the most.
const JUNK: [&str; 9] = [
    "'text'",
    "CAST(x'ff00fe' AS TEXT)",
    "x'ff'",
    "-1",
    "9223372036854775807",
    "-9223372036854775808",
    "5.5",
    "'{\"a\": 1}'",
    "'[]'",
];
const COLUMNS: [&str; 20] = [
    "priority",
    "due_at",
    "attempts",
    "attempts_before",
    "losses",
    "delivered_late",
    "started_at",
    "created_at",
    "scheduled_at",
    "expires_at",
    "idempotency_key",
    "correlation_id",
    "event_type",
    "last_error",
    "content_type",
    "headers",
    "options",
    "payload",
    "ordering_key",
    "key_position",
];

async fn can_be_looked_at(world: &World<Sqlite>) {
    let store = world.store();
    let page = store.messages(MessageFilter::default()).await.unwrap();
    for message in page.items {
        store.story(message.id).await.unwrap();
    }
    store.dlq(DlqFilter::default()).await.unwrap();
    store.status().await.unwrap();
    store.figures().await.unwrap();
    store.waiting().await.unwrap();
    store.suspects(10).await.unwrap();
}

#[tokio::test]
async fn no_value_in_any_column_keeps_the_others_from_being_claimed() {
    for column in COLUMNS {
        let mut world = World::<Sqlite>::start().await;
        for junk in JUNK {
            let case = format!("{column} = {junk}");
            let damaged = world.send(to("a").ordering_key("k")).await;
            let whole = world.send(to("a")).await;
            world.harness().overwrite(damaged, column, junk);
            can_be_looked_at(&world).await;
            let claims = world.claim(world.a, 10).await;
            assert!(claims.iter().any(|claim| claim.id == whole), "{case}");
            for claim in claims {
                world.complete(claim).await;
            }
            let suspects: Vec<_> = world.store().suspects(10).await.unwrap();
            let pick = Pick::Suspects(suspects.iter().map(|suspect| suspect.id).collect());
            world.ask(world.node, false, vec![Want { endpoint: world.a, room: 10, pick }]).await;
            world.ask(world.node, false, vec![due(world.a, 10)]).await;
            world.store().upkeep(10).await.unwrap();
            can_be_looked_at(&world).await;
            assert_eq!(world.state(whole).await, State::Completed, "{case}");
            // What is not set aside was claimed, has expired, or is due at another time.
            let _ = world.store().cancel(damaged).await;
        }
        world.clean_up().await;
    }
}

#[tokio::test]
async fn no_value_in_any_column_keeps_a_claim_from_ending() {
    for column in COLUMNS {
        let mut world = World::<Sqlite>::start().await;
        world.configure("idempotency_retention", 60).await;
        for (n, junk) in JUNK.iter().enumerate() {
            let message = || to("a").idempotency_key(format!("{n}"));
            let (damaged, whole) = (world.send(message()).await, world.send(to("a")).await);
            let claims = world.claim(world.a, 10).await;
            world.harness().overwrite(damaged, column, junk);
            for claim in claims {
                world.complete(claim).await;
            }
            assert_eq!(world.states(&[damaged, whole]).await, [State::Completed; 2], "{column} = {junk}");
        }
    }
}

#[tokio::test]
async fn a_key_that_is_no_text_goes_on_like_every_other() {
    let mut world = World::<Sqlite>::start().await;
    let [first, second] =
        [world.send(to("a").ordering_key("k")).await, world.send(to("a").ordering_key("k")).await];
    for id in [first, second] {
        world.harness().overwrite(id, "ordering_key", "CAST(x'ff' AS TEXT)");
    }
    for id in [first, second] {
        assert!(world.claim_ids().await.is_empty());
        assert_eq!(world.letter_of(id).await.reason, UNREADABLE);
    }
}
