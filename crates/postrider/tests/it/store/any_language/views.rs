//! What can be read by SQL, and that it can only be read.

use std::time::Duration;

use jiff::Timestamp;
use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use postrider::{NewMessage, Operate, SqliteStore};
use serde_json::json;

use super::super::sqlite::Sqlite;
use super::super::world::{World, new_endpoint, to};
use super::{Shop, refusal, send};

const VIEWS: [&str; 13] = [
    "endpoints",
    "queue",
    "dlq",
    "archive",
    "attempts",
    "messages",
    "event_log",
    "event_types",
    "subscriptions",
    "replays",
    "settings",
    "nodes",
    "endpoint_status",
];

fn rows(conn: &Connection, sql: &str) -> Vec<String> {
    let mut statement = conn.prepare(sql).unwrap();
    let columns = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut texts = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let values = (0..columns).map(|column| match row.get_ref(column).unwrap() {
            postrider::rusqlite::types::ValueRef::Null => "-".to_owned(),
            postrider::rusqlite::types::ValueRef::Integer(number) => number.to_string(),
            postrider::rusqlite::types::ValueRef::Real(number) => number.to_string(),
            other => String::from_utf8_lossy(other.as_bytes().unwrap()).into_owned(),
        });
        texts.push(values.collect::<Vec<_>>().join(" "));
    }
    texts
}

#[tokio::test]
async fn every_view_can_be_read_and_none_can_be_changed() {
    let shop = Shop::open().await;
    shop.send(&to("a")).unwrap();
    for view in VIEWS {
        shop.app.execute_batch(&format!("SELECT * FROM postrider_{view}")).unwrap();
        let expected = format!("cannot modify postrider_{view} because it is a view");
        for change in [
            format!("DELETE FROM postrider_{view}"),
            format!("INSERT INTO postrider_{view} DEFAULT VALUES"),
            format!("UPDATE postrider_{view} SET rowid = 1"),
        ] {
            let refused = shop.app.execute(&change, []).unwrap_err().to_string();
            assert!(refused.starts_with(&expected), "{change}: {refused}");
        }
    }
    for change in [
        "DELETE FROM postrider_send",
        "DELETE FROM postrider_publish",
        "UPDATE postrider_last_send SET id = 7",
    ] {
        assert!(refusal(&shop.app, change).contains("because it is a view"), "{change}");
    }
    for view in ["send", "publish"] {
        assert_eq!(rows(&shop.app, &format!("SELECT * FROM postrider_{view}")), Vec::<String>::new());
    }
}

#[tokio::test]
async fn no_view_shows_a_secret() {
    let shop = Shop::open().await;
    let mut endpoint = new_endpoint("s", json!({}));
    endpoint.config.insert("auth".into(), json!({ "type": "bearer", "token": "swordfish" }));
    shop.store.create_endpoint(endpoint).await.unwrap();
    for view in VIEWS {
        let shown = rows(&shop.app, &format!("SELECT * FROM postrider_{view}")).join("\n");
        assert!(!shown.contains("swordfish"), "postrider_{view}: {shown}");
    }
    let names = rows(&shop.app, "SELECT name, protocol, enabled FROM postrider_endpoints ORDER BY name");
    assert_eq!(names, ["a http 1", "s http 1"]);
}

#[tokio::test]
async fn a_message_is_shown_once_where_it_is() {
    let mut world = World::<Sqlite>::start().await;
    let app = Connection::open(world.harness().path()).unwrap();
    let dead = world.send_to_death(to("a")).await;
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.send(NewMessage { priority: 3, ..to("a") }).await;
    world.claim_one().await;
    world.send(to("a")).await;
    let messages = "SELECT id, endpoint, state, priority, attempts FROM postrider_messages ORDER BY id";
    assert_eq!(
        rows(&app, messages),
        ["1 a dead 0 1", "2 a completed 0 1", "3 a processing 3 1", "4 a pending 0 0"]
    );
    let status = "SELECT name, pending, processing, dead, oldest_pending FROM postrider_endpoint_status";
    assert_eq!(rows(&app, status), ["a 1 1 1 2026-01-15T12:00:00.000000Z"]);
    let letters = "SELECT message_id, status, died_at FROM postrider_dlq";
    assert_eq!(rows(&app, letters), ["1 failed 2026-01-15T12:00:00.000000Z"]);
    let attempts = "SELECT message_id, number, outcome, duration_seconds FROM postrider_attempts";
    assert_eq!(rows(&app, attempts), ["1 1 failed 0.003"]);
    assert_eq!(rows(&app, "SELECT state FROM postrider_nodes"), ["live"]);
    world.store().redrive(postrider::store::Redrive::One(dead.id)).await.unwrap();
    assert_eq!(rows(&app, messages)[0], "1 a pending 0 1", "a redriven one is back in the queue");
}

#[tokio::test]
async fn the_oldest_that_waits_may_be_behind_its_key_and_is_never_due_later() {
    let world = World::<Sqlite>::start().await;
    let app = Connection::open(world.harness().path()).unwrap();
    let oldest = || rows(&app, "SELECT coalesce(oldest_pending, 'none') FROM postrider_endpoint_status");
    let never = "2226-01-01T00:00:00Z".parse().unwrap();
    let head = NewMessage { scheduled_at: Some(never), ordering_key: Some("k".into()), ..to("a") };
    world.send(head).await;
    assert_eq!(oldest(), ["none"]);
    world.send_keyed("k", 1).await;
    assert_eq!(oldest(), ["2026-01-15T12:00:00.000000Z"]);
}

#[tokio::test]
async fn settings_show_their_defaults_and_what_was_set() {
    let shop = Shop::open().await;
    shop.configure("max_queue_size", "77").await;
    let shown = rows(
        &shop.app,
        "SELECT name, value, is_default FROM postrider_settings WHERE name IN ('archive', 'max_queue_size') ORDER BY name",
    );
    assert_eq!(shown, ["archive on 1", "max_queue_size 77 0"]);
}

/// Days are long enough for the months of the archive to come and go.
#[tokio::test]
async fn the_archive_shows_every_month_there_is() {
    let mut world = World::<Sqlite>::start().await;
    let app = Connection::open(world.harness().path()).unwrap();
    let archived = "SELECT id, created_at FROM postrider_archive ORDER BY id";
    for _ in 0..2 {
        world.send(to("a")).await;
        let ticket = world.claim_one().await;
        world.complete(ticket).await;
        world.advance(150 * 86_400);
        world.crash().await;
    }
    assert_eq!(rows(&app, archived), ["1 2026-01-15T12:00:00.000000Z", "2 2026-06-14T12:00:00.000000Z"]);
    world.clean_up().await;
    assert_eq!(rows(&app, archived), ["2 2026-06-14T12:00:00.000000Z"], "the first month is dropped");
    app.execute_batch(
        "CREATE TABLE mine (a); ALTER TABLE mine RENAME TO yours; ALTER TABLE yours RENAME COLUMN a TO b",
    )
    .expect("nothing refers to the dropped month");
}

#[tokio::test]
async fn a_message_that_expires_outside_of_every_month_goes_to_the_nearest() {
    let world = World::<Sqlite>::start().await;
    let app = Connection::open(world.harness().path()).unwrap();
    let past = Timestamp::now() - Duration::from_secs(1);
    let stale = NewMessage { expires_at: Some(past), ..to("a").idempotency_key("i") };
    // By SQL it is made now, long after the last month of a clock that stands in January 2026.
    let holder = send(&app, "INSERT", &stale).unwrap();
    send(&app, "INSERT", &NewMessage::new("a", "2").idempotency_key("i")).unwrap();
    assert_eq!(rows(&app, "SELECT id, status FROM postrider_archive"), [format!("{} expired", holder.id)]);
    assert_eq!(world.state(holder.id).await, postrider::State::Expired);
}

#[tokio::test]
async fn the_applications_own_tables_and_version_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let app = Connection::open(&path).unwrap();
    app.execute_batch("PRAGMA user_version = 42; CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (7)")
        .unwrap();
    let store = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
    store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
    assert_eq!(rows(&app, "SELECT id FROM orders"), ["7"]);
    assert_eq!(rows(&app, "PRAGMA user_version"), ["42"]);
    assert_eq!(rows(&app, "PRAGMA integrity_check"), ["ok"]);
}
