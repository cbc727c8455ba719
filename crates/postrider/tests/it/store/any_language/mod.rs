//! Sending and looking by SQL alone, over connections that know nothing of this library.

mod migrating;
mod parity;
mod sending;
mod views;

use postrider::rusqlite::{self, Connection, params};
use postrider::store::sqlite::SqliteOptions;
use postrider::{NewMessage, Operate, Sent, SqliteStore};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::world::new_endpoint;

/// A running store, and an application's own connection to the same file.
struct Shop {
    folder: TempDir,
    store: SqliteStore,
    app: Connection,
}

impl Shop {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let store = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
        store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
        let app = Connection::open(&path).unwrap();
        Self { folder, store, app }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("shop.db")
    }

    async fn configure(&self, name: &str, value: &str) {
        self.store.configure(vec![(name.into(), value.into())]).await.unwrap();
    }

    fn send(&self, message: &NewMessage) -> Result<Sent, String> {
        send(&self.app, "INSERT", message)
    }

    fn number(&self, sql: &str) -> i64 {
        self.app.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn queued(&self) -> i64 {
        self.number("SELECT count(*) FROM postrider_queue")
    }
}

/// The message as SQL sends it, and what the statement says if it is refused.
fn send(conn: &Connection, insert: &str, message: &NewMessage) -> Result<Sent, String> {
    let NewMessage { endpoint, payload, content_type, headers, options, priority, .. } = message;
    let object = |value: Value| (value != json!({})).then(|| value.to_string());
    conn.execute(
        &format!(
            "{insert} INTO postrider_send (endpoint, payload, content_type, headers, options, priority, scheduled_at,
               expires_at, idempotency_key, correlation_id, ordering_key, event_type)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        ),
        params![
            endpoint,
            &payload[..],
            content_type,
            object(json!(headers)),
            object(json!(options)),
            priority,
            message.scheduled_at.map(|at| at.to_string()),
            message.expires_at.map(|at| at.to_string()),
            message.idempotency_key,
            message.correlation_id.map(|id| id.to_string()),
            message.ordering_key,
            message.event_type,
        ],
    )
    .and_then(|_| last_send(conn))
    .map_err(|error| said(&error))
}

fn last_send(conn: &Connection) -> rusqlite::Result<Sent> {
    conn.query_row("SELECT id, duplicate FROM postrider_last_send", [], |row| {
        Ok(Sent { id: postrider::MessageId(row.get(0)?), duplicate: row.get(1)? })
    })
}

fn said(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => panic!("{other:?}"),
    }
}

fn refusal(conn: &Connection, sql: &str) -> String {
    said(&conn.execute(sql, []).expect_err(sql))
}
