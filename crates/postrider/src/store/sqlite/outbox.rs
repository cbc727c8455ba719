//! Send and publish inside the caller's own transaction: messages commit, or roll back, with the caller's data.

use rusqlite::Connection;

use super::archive::Months;
use super::config_cache::ConfigCache;
use super::counts::QueueCounts;
use super::nodes::ListeningNodes;
use super::publish::{self, ParsedEvents};
use super::send;
use super::writer::Write;
use crate::clock::{Clock, SystemClock, truncated};
use crate::event::NewEvent;
use crate::message::{NewMessage, Sent};
use crate::send::check_payload;
use crate::store::Result;

/// Sends within the transaction that is open on `conn`; a running node notices the commit by itself.
///
/// Begin the transaction with `BEGIN IMMEDIATE`: SQLite cannot upgrade a reader that has fallen behind.
///
/// ```
/// # use postrider::{NewEndpoint, NewMessage, Operate, SqliteStore};
/// # use postrider::store::sqlite::{SqliteOptions, send_in};
/// # use postrider::rusqlite::{Connection, TransactionBehavior};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("shop.db");
/// # let store = SqliteStore::open(SqliteOptions::node(&path))?;
/// # let config = serde_json::json!({ "url": "https://example.com/hooks" });
/// # store.create_endpoint(NewEndpoint {
/// #     name: "orders".into(), protocol: "http".into(), config: config.as_object().unwrap().clone(), ..NewEndpoint::default()
/// # }).await?;
/// let mut app = Connection::open(&path)?;
/// app.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
///
/// let order = app.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// order.execute("INSERT INTO orders (total) VALUES (4200)", [])?;
/// let sent = send_in(&order, &NewMessage::new("orders", r#"{"total":4200}"#).ordering_key("customer-7"))?;
/// order.commit()?;
/// assert!(!sent.duplicate);
/// # Ok(())
/// # }
/// ```
pub fn send_in(conn: &Connection, message: &NewMessage) -> Result<Sent> {
    let mut config = ConfigCache::for_one_send(conn, &message.endpoint)?;
    send_with(conn, &mut config, std::slice::from_ref(message)).map(|sent| sent[0])
}

/// All or nothing: on an error nothing of the batch is left in the transaction.
pub fn send_batch_in(conn: &Connection, messages: &[NewMessage]) -> Result<Vec<Sent>> {
    let mut config = ConfigCache::default();
    config.load_if_forgotten(conn)?;
    send_with(conn, &mut config, messages)
}

fn send_with(conn: &Connection, config: &mut ConfigCache, messages: &[NewMessage]) -> Result<Vec<Sent>> {
    messages.iter().try_for_each(check_payload)?;
    within_savepoint(conn, config, |write| send::send(write, messages))
}

/// Publishes within the transaction that is open on `conn`: every message of the event commits, or rolls back, with the
/// caller's data. How many there are.
///
/// ```
/// # use postrider::{NewEndpoint, NewEvent, NewEventType, NewSubscription, Operate, PubSub, SqliteStore};
/// # use postrider::store::sqlite::{SqliteOptions, publish_in};
/// # use postrider::rusqlite::{Connection, TransactionBehavior};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("shop.db");
/// # let store = SqliteStore::open(SqliteOptions::node(&path))?;
/// # let config = serde_json::json!({ "url": "https://example.com/hooks" });
/// # store.create_endpoint(NewEndpoint {
/// #     name: "billing".into(), protocol: "http".into(), config: config.as_object().unwrap().clone(), ..NewEndpoint::default()
/// # }).await?;
/// store.create_event_type(NewEventType::new("orders.created")).await?;
/// store.subscribe(NewSubscription::new("orders.*", "billing").filter(serde_json::json!({ "country": "SE" }))).await?;
///
/// let mut app = Connection::open(&path)?;
/// app.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
/// let order = app.transaction_with_behavior(TransactionBehavior::Immediate)?;
/// order.execute("INSERT INTO orders (total) VALUES (4200)", [])?;
/// let event = NewEvent::new("orders.created", r#"{"total":4200,"country":"SE"}"#).ordering_key("customer-7");
/// assert_eq!(publish_in(&order, &event)?, 1);
/// order.commit()?;
/// # Ok(())
/// # }
/// ```
pub fn publish_in(conn: &Connection, event: &NewEvent) -> Result<u64> {
    publish_with(conn, &ParsedEvents::of_one(event.clone())?)
}

/// Several, all or nothing: on an error nothing of them is left in the transaction.
pub fn publish_batch_in(conn: &Connection, events: &[NewEvent]) -> Result<u64> {
    publish_with(conn, &ParsedEvents::of(events.to_vec())?)
}

fn publish_with(conn: &Connection, publication: &ParsedEvents) -> Result<u64> {
    let mut config = ConfigCache::default();
    config.load_if_forgotten(conn)?;
    within_savepoint(conn, &mut config, |write| publish::publish(write, publication))
}

fn within_savepoint<T>(
    conn: &Connection,
    config: &mut ConfigCache,
    work: impl FnOnce(&mut Write<'_>) -> Result<T>,
) -> Result<T> {
    let (listeners, mut months) = (ListeningNodes::default(), Months::default());
    let mut write = Write {
        conn,
        now: truncated(SystemClock.now()),
        config,
        listeners: &listeners,
        counts: QueueCounts::default(),
        months: &mut months,
        owns: false,
        newest: 0,
        news: Vec::new(),
    };
    // The caller may continue its transaction after an error, so undo the batch here.
    conn.execute_batch("SAVEPOINT postrider_send")?;
    let done = work(&mut write).and_then(|done| write.counts.write(conn).map(|()| done));
    let end = match done {
        Ok(_) => "RELEASE postrider_send",
        Err(_) => "ROLLBACK TO postrider_send; RELEASE postrider_send",
    };
    conn.execute_batch(end)?;
    done
}
