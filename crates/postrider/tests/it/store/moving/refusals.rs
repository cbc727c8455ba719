//! What is not imported, and that nothing has changed then.

use std::sync::Arc;
use std::time::Duration;

use postrider::store::NoDirectClaims;
use postrider::store::moving::MoveError;
use postrider::{NewEndpoint, NewMessage, Operate, Store, StoreError};
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::super::postgres::Postgres;
use super::super::sqlite::Sqlite;
use super::super::world::{Harness, World, join, new_endpoint, to};
use super::{import, taken};

/// A few of everything, with payloads of both forms.
async fn stream() -> Vec<u8> {
    let mut world = World::<Sqlite>::start().await;
    world.configure("node_lease", 20).await;
    world.send_to_death(to("a")).await;
    world
        .send(NewMessage { content_type: "image/png".into(), payload: vec![0, 255].into(), ..to("a") })
        .await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.send_keyed("k", 2).await;
    taken(&world.die_out()).await
}

async fn damage(postgres: &Postgres, stream: Vec<u8>) -> String {
    match import(postgres, stream).await {
        Err(error @ (MoveError::Damaged(_) | MoveError::Foreign(_))) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// As empty as before: the right stream goes in.
async fn is_still_empty(postgres: &Postgres) {
    import(postgres, stream().await).await.unwrap();
}

#[tokio::test]
async fn a_stream_that_was_cut_is_refused_wherever_that_was() {
    let (postgres, whole) = (Postgres::new().await, stream().await);
    let lines: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1).collect();
    let (last, ends) = lines.split_last().unwrap();
    assert_eq!(*last, whole.len());
    let middles = lines.iter().map(|end| end - 5);
    for cut in ends.iter().copied().chain(middles).chain([last - 1]) {
        let told = damage(&postgres, whole[..cut].to_vec()).await;
        let expected = if cut < lines[0] { "not an export" } else { "cut off" };
        assert!(told.contains(expected), "{cut}: {told}");
    }
    damage(&postgres, Vec::new()).await;
    is_still_empty(&postgres).await;
}

#[tokio::test]
async fn a_stream_with_one_changed_byte_is_refused_wherever_that_is() {
    let (postgres, whole) = (Postgres::new().await, stream().await);
    let mut dice = rand::rngs::SmallRng::seed_from_u64(7);
    let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
    for _ in 0..60 {
        let mut changed = whole.clone();
        let at = dice.random_range(header + 1..whole.len());
        changed[at] ^= 1 << dice.random_range(0..7);
        damage(&postgres, changed).await;
    }
    is_still_empty(&postgres).await;
}

#[tokio::test]
async fn lines_that_are_missing_doubled_or_added_are_noticed() {
    let (postgres, whole) = (Postgres::new().await, String::from_utf8(stream().await).unwrap());
    let lines: Vec<&str> = whole.lines().collect();
    let row = lines.iter().position(|line| line.starts_with("{\"message\"")).unwrap();
    let with = |change: &dyn Fn(&mut Vec<&str>)| {
        let mut lines = lines.clone();
        change(&mut lines);
        (lines.join("\n") + "\n").into_bytes()
    };
    for (stream, sentence) in [
        (
            with(&|lines| {
                lines.remove(row);
            }),
            "its checksum is not that of its lines",
        ),
        (with(&|lines| lines.insert(row, lines[row])), "its checksum is not that of its lines"),
        (with(&|lines| lines.swap(row, row + 1)), "its checksum is not that of its lines"),
        (with(&|lines| lines.push(lines[row])), "something follows its last line"),
        (with(&|lines| lines.insert(1, "{\"letter\":{}}")), "line 2 rows of \"letter\" are not known here"),
        (with(&|lines| lines.insert(1, "[]")), "line 2 is not a row"),
    ] {
        let told = damage(&postgres, stream).await;
        assert!(told.contains(sentence), "{told}");
    }
    is_still_empty(&postgres).await;
}

#[tokio::test]
async fn what_another_version_or_program_wrote_is_not_taken_for_damage() {
    let postgres = Postgres::new().await;
    for (stream, sentence) in [
        ("PK\u{3}\u{4}", "not an export of postrider"),
        ("{\"hello\":1}\n", "not an export of postrider"),
        ("{\"postrider_export\":1,\"anything\":true}\n", "format version 1 and this build reads version 2"),
    ] {
        let told = damage(&postgres, stream.into()).await;
        assert!(told.contains(sentence), "{told}");
    }
}

async fn refused(postgres: &Postgres, sentence: &str) {
    let error = import(postgres, stream().await).await.unwrap_err();
    assert!(matches!(error, MoveError::Store(StoreError::Conflict(_))), "{error:?}");
    assert!(error.to_string().contains(sentence), "{error}");
}

#[tokio::test]
async fn only_an_empty_store_is_imported_into() {
    let postgres = Postgres::new().await;
    postgres.open().await.configure(vec![("archive".into(), "off".into())]).await.unwrap();
    refused(&postgres, "not empty, it has changed settings;").await;
    let postgres = Postgres::new().await;
    let store = postgres.open().await;
    store.create_endpoint(new_endpoint("b", json!({}))).await.unwrap();
    store.send(to("b")).await.unwrap();
    refused(&postgres, "not empty, it has endpoints, queued messages;").await;
    store.drop_endpoint("b", true).await.unwrap();
    refused(&postgres, "not empty, it has endpoints, archived messages;").await;
    let postgres = Postgres::new().await;
    let event_type = "SELECT postrider.create_event_type('order.paid')";
    postgres.database.connect().await.execute(event_type, &[]).await.unwrap();
    refused(&postgres, "not empty, it has event types;").await;
}

#[tokio::test]
async fn a_store_that_was_imported_is_not_empty_any_more() {
    let postgres = Postgres::new().await;
    import(&postgres, stream().await).await.unwrap();
    refused(&postgres, "it has endpoints, queued messages, dead letters, archived messages").await;
}

#[tokio::test]
async fn a_node_that_runs_has_to_stop_first() {
    let postgres = Postgres::new().await;
    let store = postgres.open().await;
    let (node, _arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
    refused(&postgres, "nodes are running on this store: test; stop them").await;
    store.leave(node).await.unwrap();
    import(&postgres, stream().await).await.unwrap();
    let kinds: Vec<String> =
        store.events(None, 100).await.unwrap().into_iter().map(|event| event.kind).collect();
    assert!(!kinds.contains(&"node.left".to_owned()), "the log is that of the store that came: {kinds:?}");
}

#[tokio::test]
async fn one_that_was_killed_is_waited_for() {
    let postgres = Postgres::new().await;
    join(&postgres.open().await, Arc::new(NoDirectClaims)).await;
    refused(&postgres, "nodes are running").await;
    postgres.advance(Duration::from_secs(16));
    import(&postgres, stream().await).await.unwrap();
}

/// Written as JSON strings, its headers may hold anything; in PostgreSQL they cannot.
#[tokio::test]
async fn what_postgresql_cannot_keep_is_named() {
    let world = World::<Sqlite>::start().await;
    let config = json!({"path": "letters"}).as_object().unwrap().clone();
    let file = NewEndpoint { name: "file".into(), protocol: "file".into(), config, ..NewEndpoint::default() };
    world.store().create_endpoint(file).await.unwrap();
    let headers = [("x".to_owned(), "a\0b".to_owned())].into();
    let id = world.send(NewMessage { headers, ..to("file") }).await;
    let postgres = Postgres::new().await;
    let error = import(&postgres, taken(&world.die_out()).await).await.unwrap_err();
    let MoveError::Store(StoreError::Invalid(invalid)) = error else { panic!("{error:?}") };
    assert_eq!(invalid.field, format!("message {id}: headers"));
    assert!(invalid.rule.contains("U+0000"), "{invalid}");
    is_still_empty(&postgres).await;
}

/// SQLite keeps any time, PostgreSQL none before 4713 BC.
#[tokio::test]
async fn a_time_before_all_times_is_named() {
    let world = World::<Sqlite>::start().await;
    world.send(NewMessage { scheduled_at: Some(jiff::Timestamp::MIN), ..to("a") }).await;
    let postgres = Postgres::new().await;
    let error = import(&postgres, taken(&world.die_out()).await).await.unwrap_err();
    assert!(matches!(error, MoveError::Store(StoreError::Conflict(_))), "{error:?}");
    assert!(error.to_string().contains("does not take a message: timestamp out of range"), "{error}");
    assert!(error.to_string().contains("line 1, column scheduled_at"), "{error}");
    is_still_empty(&postgres).await;
}

#[tokio::test]
async fn a_database_without_the_schema_is_told_apart() {
    let database = test_servers::Database::empty().await;
    let error = postrider::PostgresStore::import(&database.url(), std::io::empty()).await.unwrap_err();
    assert!(error.to_string().contains("run `postrider migrate`"), "{error}");
}
