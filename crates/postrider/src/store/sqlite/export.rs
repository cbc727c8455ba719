//! The whole file as a stream, and the mark that closes a file which went elsewhere.

use std::io::Write as Sink;

use jiff::Timestamp;
use rusqlite::types::{FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::json;

use super::archive::Month;
use super::row::{at, time};
use super::shown::{self, Shown};
use super::writer::Write;
use super::{events, known, nodes, settle, storage_error, stored_events};
use crate::error::StoreError;
use crate::message::MessageId;
use crate::store::moving::{Header, Kind, LastIds, MoveError, Moved, Outgoing, SECTIONS, Section, Value};
use crate::store::{Result, UNREADABLE_FIELD};
use crate::verdict::Class;

/// The section of what is queued.
const MESSAGE: &str = "message";
/// Begins every refusal of a closed file.
const CLOSED: &str = "this store was closed by ";
/// What a node, a sender or an operator would change.
const CLOSED_TABLES: [&str; 10] = [
    "_postrider_queue",
    "_postrider_dlq",
    "_postrider_endpoints",
    "_postrider_settings",
    "_postrider_last_send",
    "_postrider_event_types",
    "_postrider_subscriptions",
    "_postrider_events",
    "_postrider_replays",
    "_postrider_tokens",
];

/// From now on nothing is sent to this file, delivered from it or changed in it, by whatever program. False when it
/// was closed already.
pub(super) fn close(write: &mut Write<'_>, by: &str) -> Result<bool> {
    // This process owns the file, so whoever seems to live is dead, and the stream is to say so.
    nodes::bury_earlier_nodes(write)?;
    if closed(write.conn).map_err(storage_error)?.is_some() {
        return Ok(false);
    }
    stored_events::fan_out_all(write)?;
    let refusal = refusal_of(by);
    close_tables(write.conn, &refusal)
        .and_then(|()| {
            write.conn.execute("INSERT INTO _postrider_meta (name, value) VALUES ('closed', ?1)", [&refusal])
        })
        .map_err(storage_error)?;
    events::log(write, "store.closed", None, &json!({ "by": by }))?;
    Ok(true)
}

fn close_tables(conn: &Connection, refusal: &str) -> rusqlite::Result<()> {
    let quoted = format!("55000 {refusal}").replace('\'', "''");
    trigger_statements(|name, event, table| {
        format!(
            "CREATE TRIGGER IF NOT EXISTS {name} BEFORE {event} ON {table}
             BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
        )
    })
    .try_for_each(|sql| conn.execute_batch(&sql))
}

/// After a migration: a file that is closed stays closed, its new tables too.
pub(super) fn close_new_tables(conn: &Connection) -> rusqlite::Result<()> {
    closed(conn)?.map_or(Ok(()), |refusal| close_tables(conn, &refusal))
}

/// False when it was not closed.
pub(super) fn reopen(write: &mut Write<'_>) -> Result<bool> {
    let closed =
        write.conn.execute("DELETE FROM _postrider_meta WHERE name = 'closed'", []).map_err(storage_error)?;
    if closed == 0 {
        return Ok(false);
    }
    trigger_statements(|name, _, _| format!("DROP TRIGGER IF EXISTS {name}"))
        .try_for_each(|sql| write.conn.execute_batch(&sql))
        .map_err(storage_error)?;
    events::log(write, "store.reopened", None, &json!({}))?;
    Ok(true)
}

fn trigger_statements(sql: impl Fn(&str, &str, &str) -> String) -> impl Iterator<Item = String> {
    CLOSED_TABLES.into_iter().flat_map(move |table| {
        ["INSERT", "UPDATE", "DELETE"].map(|event| sql(&format!("{table}_closed_{event}"), event, table))
    })
}

fn refusal_of(by: &str) -> String {
    format!("{CLOSED}{by}; it goes on where that was imported, or here after `postrider export --reopen`")
}

/// As the next claim would: what no node can read is no message for another store.
pub(super) fn set_aside(write: &mut Write<'_>, unreadable: &[(MessageId, String)]) -> Result<()> {
    unreadable.iter().try_for_each(|(id, error)| settle::set_aside_pending(write, *id, error))
}

pub(super) fn refuse_if_closed(conn: &Connection) -> Result<()> {
    match closed(conn).map_err(storage_error)? {
        Some(refusal) => Err(StoreError::Unusable(refusal)),
        None => Ok(()),
    }
}

/// Why nothing happens in this file any more, if that is so.
pub(super) fn closed(conn: &Connection) -> rusqlite::Result<Option<String>> {
    conn.prepare_cached("SELECT value FROM _postrider_meta WHERE name = 'closed'")?
        .query_row([], |row| row.get(0))
        .optional()
}

/// What the triggers of a closed file say.
pub(super) fn refusal(error: &rusqlite::Error) -> Option<StoreError> {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => {
            let refusal = message.strip_prefix("55000 ").filter(|refusal| refusal.starts_with(CLOSED))?;
            Some(StoreError::Conflict(refusal.to_owned()))
        }
        _ => None,
    }
}

/// All of the file as of one moment.
pub(super) fn write_all(conn: &Connection, now: Timestamp, to: impl Sink) -> Result<Moved, MoveError> {
    let picture = conn.unchecked_transaction().map_err(storage_error)?;
    stored_events::refuse_if_any(&picture)?;
    let mut out = Outgoing::begin(to, &header(&picture, now).map_err(storage_error)?)?;
    for section in SECTIONS {
        for sql in selects(&picture, section).map_err(storage_error)? {
            write_rows(&picture, section, &sql, &mut out)?;
        }
    }
    out.end()
}

fn header(conn: &Connection, now: Timestamp) -> rusqlite::Result<Header> {
    let store =
        conn.query_row("SELECT value FROM _postrider_meta WHERE name = 'store'", [], |row| row.get(0))?;
    let last = |table: &str| -> rusqlite::Result<i64> {
        conn.query_row("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1", [table], |row| {
            row.get(0)
        })
    };
    let last_ids = LastIds {
        message: last("_postrider_queue")?,
        endpoint: last("_postrider_endpoints")?,
        node: last("_postrider_nodes")?,
        dead_letter: last("_postrider_dlq")?,
        event: last("_postrider_event_log")?,
        subscription: last("_postrider_subscriptions")?,
        replay: last("_postrider_replays")?,
    };
    let mut header = Header::new(store, now, known::paused(conn)?, last_ids);
    header.archive_months = Month::existing(conn)?.iter().map(Month::first_day).collect();
    header.attempt_months = conn
        .prepare("SELECT DISTINCT strftime('%Y-%m-01', started_at / 1000000, 'unixepoch') FROM _postrider_attempts")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(header)
}

/// What yields the section's columns, in their order.
fn selects(conn: &Connection, section: &Section) -> rusqlite::Result<Vec<String>> {
    let columns: Vec<&str> =
        section.columns.iter().map(|(column, _)| expression(section.name, column)).collect();
    let columns = columns.join(", ");
    Ok(sources(conn, section)?.iter().map(|source| format!("SELECT {columns} FROM {source}")).collect())
}

fn sources(conn: &Connection, section: &Section) -> rusqlite::Result<Vec<String>> {
    let source = match section.name {
        "setting" => "_postrider_settings",
        "endpoint" => "_postrider_endpoints",
        "event_type" => "_postrider_event_types",
        "subscription" => "_postrider_subscriptions",
        "node" => "_postrider_nodes",
        "message" => "_postrider_queue",
        // Those that were claimed directly share a batch, and each has its own beginning.
        "claim" => "_postrider_queue WHERE place = 2 GROUP BY node_id, started_at, alone",
        "reservation" => "_postrider_reservations",
        "dead_letter" => "_postrider_dlq",
        "archived" => return Ok(Month::existing(conn)?.into_iter().rev().map(Month::table).collect()),
        "attempt" => "_postrider_attempts ORDER BY id",
        "replay" => "_postrider_replays",
        "replayed" => "_postrider_replayed",
        "event" => "_postrider_event_log",
        "token" => "_postrider_tokens",
        other => unreachable!("a section without a table: {other}"),
    };
    Ok(vec![source.to_owned()])
}

fn expression<'a>(section: &str, column: &'a str) -> &'a str {
    match (section, column) {
        ("node", "state") => "CASE state WHEN 'live' THEN 'lost' ELSE state END",
        ("message", "place") => "CASE WHEN place <> 2 THEN place WHEN losses = 0 THEN 0 ELSE 3 END",
        ("message", "attempts") => "attempts - (place = 2)",
        ("claim", "batch") => "row_number() OVER (PARTITION BY node_id ORDER BY started_at, alone)",
        ("claim", "ids") => "json_group_array(id)",
        _ => column,
    }
}

fn write_rows(
    conn: &Connection,
    section: &'static Section,
    sql: &str,
    out: &mut Outgoing<impl Sink>,
) -> Result<(), MoveError> {
    let mut statement = conn.prepare(sql).map_err(storage_error)?;
    let mut rows = statement.query([]).map_err(storage_error)?;
    while let Some(row) = rows.next().map_err(storage_error)? {
        let values: Vec<Value> = values(section, row)
            .map(|value| match value {
                Ok(value) => Ok(value),
                // It would be delivered otherwise than it was sent. A message that is queued is set aside before.
                Err(broken) if section.name == MESSAGE => Err(broken.refusal(section, row)),
                Err(broken) => Ok(broken.shown(section, row)),
            })
            .collect::<Result<_>>()?;
        out.row(section, &values)?;
    }
    Ok(())
}

/// Messages that are queued and that no stream can carry, with what is wrong with each.
pub(super) fn unreadable_messages(conn: &Connection) -> rusqlite::Result<Vec<(MessageId, String)>> {
    let section = SECTIONS.iter().find(|section| section.name == MESSAGE).expect("messages are moved");
    let mut found = Vec::new();
    // What is closed was looked through when that was done.
    let selects = if closed(conn)?.is_some() { Vec::new() } else { selects(conn, section)? };
    for sql in selects {
        let mut statement = conn.prepare(&sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if let Some(broken) = values(section, row).find_map(std::result::Result::err) {
                let error = format!("{} {}", Class::Permanent.tag(), broken.said());
                found.push((MessageId(row.get(0)?), error));
            }
        }
    }
    Ok(found)
}

/// A column into which another program wrote what it cannot hold.
struct Broken<'r> {
    column: &'static str,
    kind: Kind,
    field: ValueRef<'r>,
    error: FromSqlError,
}

impl Broken<'_> {
    fn said(&self) -> String {
        format!("{}: cannot be read: {}", self.column, self.error)
    }

    fn refusal(&self, section: &Section, row: &Row<'_>) -> StoreError {
        StoreError::Unusable(format!("{} {}: {}", section.name, Shown(row).whole(0), self.said()))
    }

    /// As near to it as the stream can come, and nothing is left out silently.
    fn shown(&self, section: &Section, row: &Row<'_>) -> Value {
        let (section, id, error) = (section.name, Shown(row).whole(0), self.said());
        tracing::warn!(section, id, %error, "A column cannot be read; it is exported as text, or as nothing");
        let text = || shown::text(self.field).unwrap_or_default().replace('\0', "\u{fffd}");
        match self.kind {
            Kind::Whole => Value::Whole(0),
            Kind::Flag => Value::Flag(false),
            Kind::Text | Kind::Note => Value::Text(text()),
            Kind::Json | Kind::Notes => Value::Json(json!({ UNREADABLE_FIELD: text() })),
            Kind::Bytes => Value::Bytes(text().into_bytes()),
            Kind::Time => Value::Time(self.field.as_i64().map(at).unwrap_or_default()),
            Kind::Uuid => Value::Null,
            Kind::Ids => Value::Ids(Vec::new()),
        }
    }
}

fn values<'r>(
    section: &'static Section,
    row: &'r Row<'_>,
) -> impl Iterator<Item = std::result::Result<Value, Broken<'r>>> {
    section.columns.iter().enumerate().map(|(at, (column, kind))| {
        let (kind, field) = (*kind, row.get_ref_unwrap(at));
        value(field, kind).map_err(|error| Broken { column, kind, field, error })
    })
}

fn value(field: ValueRef<'_>, kind: Kind) -> FromSqlResult<Value> {
    if field == ValueRef::Null {
        return Ok(Value::Null);
    }
    let broken = |error: Box<dyn std::error::Error + Send + Sync>| FromSqlError::Other(error);
    Ok(match kind {
        Kind::Whole => Value::Whole(field.as_i64()?),
        Kind::Flag => Value::Flag(field.as_i64()? != 0),
        Kind::Text | Kind::Note => Value::Text(field.as_str()?.to_owned()),
        Kind::Json | Kind::Notes => {
            Value::Json(serde_json::from_str(field.as_str()?).map_err(|error| broken(error.into()))?)
        }
        Kind::Bytes => Value::Bytes(field.as_bytes()?.to_vec()),
        Kind::Time => Value::Time(time(field)?),
        Kind::Uuid => {
            Value::Uuid(field.as_str()?.parse().map_err(|error: uuid::Error| broken(error.into()))?)
        }
        Kind::Ids => Value::Ids(serde_json::from_str(field.as_str()?).map_err(|error| broken(error.into()))?),
    })
}
