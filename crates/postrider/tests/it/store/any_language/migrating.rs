//! Files of an earlier version, and of a build with other tables of keys.

use std::path::Path;

use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use postrider::{Operate, SqliteStore, StoreError};

use super::super::world::to;
use super::{Shop, send};

const VERSION_1: &str = include_str!("../../../../src/store/sqlite/sql/0001_init.sql");

/// A store as the first version left it, with one endpoint and one message.
fn store_of_version_1(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.execute_batch(VERSION_1).unwrap();
    conn.execute_batch(
        r#"PRAGMA user_version = 42;
           INSERT INTO _postrider_meta (name, value) VALUES ('store', 'abcdefgh'), ('config_version', 1), ('schema_version', 1);
           INSERT INTO _postrider_endpoints (name, protocol, config, retry_policy, options, created_at)
           VALUES ('a', 'http', '{"url":"https://example.com/hook"}', '{}',
                   '{"on_dead":"continue","key_scope":"endpoint","durability":"durable"}', 0);
           INSERT INTO _postrider_counts (endpoint_id, queued) VALUES (0, 1), (1, 1);
           INSERT INTO _postrider_queue (endpoint_id, place, priority, due_at, created_at, content_type, payload)
           VALUES (1, 0, 0, 0, 0, 'application/json', x'31');"#,
    )
    .unwrap();
    conn
}

#[tokio::test]
async fn a_store_of_the_first_version_is_migrated_when_asked_and_takes_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let app = store_of_version_1(&path);
    let refused =
        SqliteStore::open(SqliteOptions::node(&path)).err().expect("an old schema is not used as it is");
    assert!(matches!(&refused, StoreError::Unusable(why) if why.contains("postrider migrate")), "{refused}");
    for _ in 0..2 {
        let options = SqliteOptions { migrate: true, ..SqliteOptions::node(&path) };
        let store = SqliteStore::open(options).expect("migrating twice is as good as once");
        assert_eq!(store.status().await.unwrap().pending, 1);
    }
    let sent = send(&app, "INSERT", &to("a")).unwrap();
    assert_eq!((sent.id.0, sent.duplicate), (2, false));
    let version: i64 = app.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 42);
}

#[tokio::test]
async fn a_closed_store_of_the_first_version_stays_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let app = store_of_version_1(&path);
    app.execute_batch(
        "INSERT INTO _postrider_meta (name, value) VALUES ('closed', 'this store was closed by a move');
         CREATE TRIGGER _postrider_queue_closed_INSERT BEFORE INSERT ON _postrider_queue
         BEGIN SELECT RAISE(ABORT, '55000 this store was closed by a move'); END",
    )
    .unwrap();
    let store = SqliteStore::open(SqliteOptions { migrate: true, ..SqliteOptions::node(&path) }).unwrap();
    assert_eq!(send(&app, "INSERT", &to("a")).unwrap_err(), "55000 this store was closed by a move");
    assert!(store.reopen().await.unwrap());
    send(&app, "INSERT", &to("a")).unwrap();
}

#[tokio::test]
async fn a_node_of_another_build_brings_its_own_rules() {
    let shop = Shop::open().await;
    let path = shop.path();
    shop.app
        .execute_batch(
            "DROP VIEW postrider_send;
             CREATE VIEW postrider_send AS SELECT 1 AS endpoint;
             UPDATE _postrider_meta SET value = x'00' WHERE name = 'surface'",
        )
        .unwrap();
    let Shop { folder: _folder, store, app } = shop;
    drop(store);
    let tool = SqliteStore::open(SqliteOptions::tool(&path)).unwrap();
    assert!(send(&app, "INSERT", &to("a")).is_err(), "a tool leaves it as it is");
    drop(tool);
    let _node = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
    send(&Connection::open(&path).unwrap(), "INSERT", &to("a")).unwrap();
}

#[tokio::test]
async fn views_of_the_application_stay_whatever_they_are_called() {
    let shop = Shop::open().await;
    let path = shop.path();
    shop.app
        .execute_batch(
            "CREATE VIEW postrider_of_mine AS SELECT 7 AS answer;
             UPDATE _postrider_meta SET value = x'00' WHERE name = 'surface'",
        )
        .unwrap();
    let Shop { folder: _folder, store, app } = shop;
    drop(store);
    let _node = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
    let answer: i64 = app.query_row("SELECT answer FROM postrider_of_mine", [], |row| row.get(0)).unwrap();
    assert_eq!(answer, 7);
    send(&app, "INSERT", &to("a")).unwrap();
}
