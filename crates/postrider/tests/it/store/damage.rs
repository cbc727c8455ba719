//! Whatever another program writes into a row of the queue table of SQLite, it never keeps the others from being delivered.

use std::time::Duration;

use postrider::rusqlite::Connection;
use postrider::store::{
    DlqFilter, Figures, Keyring, Listing, MessageFilter, NewReplay, NewToken, Pick, ReplaySelection,
    ReplayStatus, ReplayTurn, Replays, Scope, Tokens, UNREADABLE, Want,
};
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

/// As another program would write it.
fn write_unchecked(world: &World<Sqlite>, sql: &str) {
    let shell = Connection::open(world.harness().path()).unwrap();
    shell.busy_timeout(Duration::from_secs(5)).unwrap();
    shell.execute_batch(&format!("PRAGMA ignore_check_constraints = ON; {sql}")).unwrap();
}

#[tokio::test]
async fn a_replay_with_an_unknown_status_sends_nothing() {
    let world = World::<Sqlite>::start().await;
    let id = world.send(to("a")).await;
    world.store().cancel(id).await.unwrap();
    let selection = ReplaySelection { status: Some(ReplayStatus::Expired), ..ReplaySelection::default() };
    let replay = NewReplay { selection, ..NewReplay::default() };
    let replay = world.store().start_replay(replay).await.unwrap().id;
    write_unchecked(&world, "UPDATE _postrider_replays SET status = 'evicted'");
    while let ReplayTurn::Worked = world.store().advance_replays(7).await.unwrap() {}
    let messages = world.store().messages(MessageFilter::default()).await.unwrap().items.len();
    assert_eq!(messages, 1, "nothing was sent again");
    let refused = world.store().replay(replay).await.unwrap_err().to_string();
    assert!(refused.contains("evicted"), "{refused}");
    write_unchecked(&world, "UPDATE _postrider_replays SET status = 'expired', state = 'odd'");
    let refused = world.store().replay(replay).await.unwrap_err().to_string();
    assert!(refused.contains("odd"), "{refused}");
}

/// Without any token a node lets in every client on loopback, so tokens that it cannot read must not look like none.
#[tokio::test]
async fn a_token_of_a_newer_version_opens_nothing_and_the_others_stay() {
    let world = World::<Sqlite>::start().await;
    let newer = format!(
        "INSERT INTO _postrider_tokens VALUES ('pr_newer', 'newer', 'auditor', x'{}', 0)",
        "00".repeat(32)
    );
    write_unchecked(&world, &newer);
    let refused = world.store().keys().await.unwrap_err().to_string();
    assert!(refused.contains("pr_newer"), "{refused}");
    let token = NewToken { name: "shop".to_owned(), scope: Scope::Application };
    let issued = world.store().create_token(token).await.unwrap();
    let keys = world.store().keys().await.unwrap();
    assert!(keys.iter().map(|key| key.prefix.as_str()).eq([issued.record.prefix.as_str()]), "{keys:?}");
}

#[tokio::test]
async fn an_attempt_has_an_outcome_and_a_class_that_nodes_know() {
    let world = World::<Sqlite>::start().await;
    let shell = Connection::open(world.harness().path()).unwrap();
    for (outcome, class) in [("odd", "NULL"), ("failed", "'odd'")] {
        let insert = format!(
            "INSERT INTO _postrider_attempts (message_id, number, node_id, started_at, duration, outcome, class)
             VALUES (1, 1, 1, 0, 1, '{outcome}', {class})"
        );
        let refused = shell.execute(&insert, []).unwrap_err().to_string();
        assert!(refused.contains("CHECK constraint failed"), "{refused}");
    }
}
