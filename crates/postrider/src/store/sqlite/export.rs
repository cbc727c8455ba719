//! The whole file as a stream, and the triggers that close an exported file.

use std::io::Write as Sink;

use jiff::Timestamp;
use rusqlite::types::{FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, Row};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::archive::Month;
use super::query::Query;
use super::row::{at, time};
use super::shown::{self, ShownRow};
use super::writer::Write;
use super::{config_cache, events, nodes, settle, stored_events};
use crate::error::StoreError;
use crate::message::MessageId;
use crate::store::moving::{
    ColumnKind, LastIds, MoveError, Moved, MovedValue, SECTIONS, Section, StreamHeader, StreamWriter,
};
use crate::store::{Result, UNREADABLE_FIELD};
use crate::verdict::Class;

/// The section of queued messages.
const MESSAGE: &str = "message";
/// The stream has a digest of what a reservation keeps, as PostgreSQL does.
const RESERVED_DIGEST: (&str, &str) = ("reservation", "digest");
/// Begins every refusal of a closed file.
const CLOSED: &str = "this store was closed by ";
/// Tables that nodes, senders and operators change.
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

/// From now on no program can send to this file, deliver from it or change it. False when it was closed already.
pub(super) fn close(write: &mut Write<'_>, by: &str) -> Result<bool> {
    // This process owns the file, so other nodes marked `live` are dead.
    nodes::bury_earlier_nodes(write)?;
    if closed(write.conn)?.is_some() {
        return Ok(false);
    }
    stored_events::fan_out_all(write)?;
    let refusal = refusal_of(by);
    close_tables(write.conn, &refusal).and_then(|()| {
        write.conn.run("INSERT INTO _postrider_meta (name, value) VALUES ('closed', ?1)", [&refusal])
    })?;
    events::log(write, "store.closed", None, &json!({ "by": by }))?;
    Ok(true)
}

fn close_tables(conn: &Connection, refusal: &str) -> Result<()> {
    let quoted = format!("55000 {refusal}").replace('\'', "''");
    trigger_statements(|name, event, table| {
        format!(
            "CREATE TRIGGER IF NOT EXISTS {name} BEFORE {event} ON {table}
             BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
        )
    })
    .try_for_each(|sql| Ok(conn.execute_batch(&sql)?))
}

/// After a migration: closes the new tables of a closed file.
pub(super) fn close_new_tables(conn: &Connection) -> Result<()> {
    closed(conn)?.map_or(Ok(()), |refusal| close_tables(conn, &refusal))
}

/// False when it was not closed.
pub(super) fn reopen(write: &mut Write<'_>) -> Result<bool> {
    let closed = write.conn.run_counted("DELETE FROM _postrider_meta WHERE name = 'closed'", [])?;
    if closed == 0 {
        return Ok(false);
    }
    trigger_statements(|name, _, _| format!("DROP TRIGGER IF EXISTS {name}"))
        .try_for_each(|sql| write.conn.execute_batch(&sql))?;
    events::log(write, "store.reopened", None, &json!({}))?;
    Ok(true)
}

fn trigger_statements(sql: impl Fn(&str, &str, &str) -> String) -> impl Iterator<Item = String> {
    CLOSED_TABLES.into_iter().flat_map(move |table| {
        ["INSERT", "UPDATE", "DELETE"].map(|event| sql(&format!("{table}_closed_{event}"), event, table))
    })
}

fn refusal_of(by: &str) -> String {
    format!(
        "{CLOSED}{by}; use the store that it was imported into, or reopen this one with `postrider export --reopen`"
    )
}

/// Makes dead letters of unreadable messages, as the next claim would.
pub(super) fn set_aside(write: &mut Write<'_>, unreadable: &[(MessageId, String)]) -> Result<()> {
    unreadable.iter().try_for_each(|(id, error)| settle::set_aside_pending(write, *id, error))
}

pub(super) fn refuse_if_closed(conn: &Connection) -> Result<()> {
    match closed(conn)? {
        Some(refusal) => Err(StoreError::Unusable(refusal)),
        None => Ok(()),
    }
}

/// Why the file is closed; None when it is open.
pub(super) fn closed(conn: &Connection) -> Result<Option<String>> {
    conn.find("SELECT value FROM _postrider_meta WHERE name = 'closed'", [], |row| row.get(0))
}

/// The error of a closed file's triggers.
pub(super) fn refusal(error: &rusqlite::Error) -> Option<StoreError> {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => {
            let refusal = message.strip_prefix("55000 ").filter(|refusal| refusal.starts_with(CLOSED))?;
            Some(StoreError::Conflict(refusal.to_owned()))
        }
        _ => None,
    }
}

/// The whole file in one snapshot.
pub(super) fn write_all(conn: &Connection, now: Timestamp, to: impl Sink) -> Result<Moved, MoveError> {
    let picture = conn.unchecked_transaction()?;
    stored_events::refuse_if_any(&picture)?;
    let mut out = StreamWriter::begin(to, &header(&picture, now)?)?;
    for section in SECTIONS {
        for sql in selects(&picture, section)? {
            write_rows(&picture, section, &sql, &mut out)?;
        }
    }
    out.end()
}

fn header(conn: &Connection, now: Timestamp) -> Result<StreamHeader> {
    let store = conn.value("SELECT value FROM _postrider_meta WHERE name = 'store'", [])?;
    let last = |table: &str| -> Result<i64> {
        conn.row("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = ?1", [table], |row| {
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
    let mut header = StreamHeader::new(store, now, config_cache::paused(conn)?, last_ids);
    header.archive_months = Month::existing(conn)?.iter().map(Month::first_day).collect();
    header.attempt_months = conn
        .prepare("SELECT DISTINCT strftime('%Y-%m-01', started_at / 1000000, 'unixepoch') FROM _postrider_attempts")?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(header)
}

/// Statements that select the section's columns in order.
fn selects(conn: &Connection, section: &Section) -> Result<Vec<String>> {
    let columns: Vec<&str> =
        section.columns.iter().map(|(column, _)| expression(section.name, column)).collect();
    let columns = columns.join(", ");
    Ok(sources(conn, section)?.iter().map(|source| format!("SELECT {columns} FROM {source}")).collect())
}

fn sources(conn: &Connection, section: &Section) -> Result<Vec<String>> {
    let source = match section.name {
        "setting" => "_postrider_settings",
        "endpoint" => "_postrider_endpoints",
        "event_type" => "_postrider_event_types",
        "subscription" => "_postrider_subscriptions",
        "node" => "_postrider_nodes",
        "message" => "_postrider_queue",
        // Direct claims share batch 0 and differ in `started_at`.
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
        RESERVED_DIGEST => "coalesce(CAST(content_type || x'00' || payload AS BLOB), x'')",
        _ => column,
    }
}

fn write_rows(
    conn: &Connection,
    section: &'static Section,
    sql: &str,
    out: &mut StreamWriter<impl Sink>,
) -> Result<(), MoveError> {
    let mut statement = conn.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let values: Vec<MovedValue> = values(section, row)
            .map(|value| match value {
                Ok(value) => Ok(value),
                // It would not be delivered as it was sent. Unreadable queued messages were set aside before.
                Err(broken) if section.name == MESSAGE => Err(broken.refusal(section, row)),
                Err(broken) => Ok(broken.shown(section, row)),
            })
            .collect::<Result<_>>()?;
        out.row(section, &values)?;
    }
    Ok(())
}

/// Queued messages that cannot be exported, with the error of each.
pub(super) fn unreadable_messages(conn: &Connection) -> Result<Vec<(MessageId, String)>> {
    let section = SECTIONS.iter().find(|section| section.name == MESSAGE).expect("messages are moved");
    let mut found = Vec::new();
    // A closed file was checked when it was closed.
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

/// A column that cannot be read, because another program wrote into it.
struct Broken<'r> {
    column: &'static str,
    kind: ColumnKind,
    field: ValueRef<'r>,
    error: FromSqlError,
}

impl Broken<'_> {
    fn said(&self) -> String {
        format!("{}: cannot be read: {}", self.column, self.error)
    }

    fn refusal(&self, section: &Section, row: &Row<'_>) -> StoreError {
        StoreError::Unusable(format!("{} {}: {}", section.name, ShownRow(row).whole(0), self.said()))
    }

    /// The nearest value that the stream can hold, with a warning.
    fn shown(&self, section: &Section, row: &Row<'_>) -> MovedValue {
        let (section, id, error) = (section.name, ShownRow(row).whole(0), self.said());
        tracing::warn!(section, id, %error, "could not read a column; exporting it as text or null");
        let text = || shown::text(self.field).unwrap_or_default().replace('\0', "\u{fffd}");
        match self.kind {
            ColumnKind::Whole => MovedValue::Whole(0),
            ColumnKind::Flag => MovedValue::Flag(false),
            ColumnKind::Text | ColumnKind::Note => MovedValue::Text(text()),
            ColumnKind::Json | ColumnKind::Notes => MovedValue::Json(json!({ UNREADABLE_FIELD: text() })),
            ColumnKind::Bytes => MovedValue::Bytes(text().into_bytes()),
            ColumnKind::Time => MovedValue::Time(self.field.as_i64().map(at).unwrap_or_default()),
            ColumnKind::Uuid => MovedValue::Null,
            ColumnKind::Ids => MovedValue::Ids(Vec::new()),
        }
    }
}

fn values<'r>(
    section: &'static Section,
    row: &'r Row<'_>,
) -> impl Iterator<Item = std::result::Result<MovedValue, Broken<'r>>> {
    section.columns.iter().enumerate().map(|(at, (column, kind))| {
        let (kind, field) = (*kind, row.get_ref_unwrap(at));
        match value(field, kind) {
            Ok(MovedValue::Bytes(kept)) if (section.name, *column) == RESERVED_DIGEST => {
                Ok(MovedValue::Bytes(digest(kept)))
            }
            Ok(value) => Ok(value),
            Err(error) => Err(Broken { column, kind, field, error }),
        }
    })
}

/// No payload has the empty digest, so a reservation whose payload was erased refuses every send under its key.
fn digest(kept: Vec<u8>) -> Vec<u8> {
    if kept.is_empty() { kept } else { Sha256::digest(&kept).to_vec() }
}

fn value(field: ValueRef<'_>, kind: ColumnKind) -> FromSqlResult<MovedValue> {
    if field == ValueRef::Null {
        return Ok(MovedValue::Null);
    }
    let broken = |error: Box<dyn std::error::Error + Send + Sync>| FromSqlError::Other(error);
    Ok(match kind {
        ColumnKind::Whole => MovedValue::Whole(field.as_i64()?),
        ColumnKind::Flag => MovedValue::Flag(field.as_i64()? != 0),
        ColumnKind::Text | ColumnKind::Note => MovedValue::Text(field.as_str()?.to_owned()),
        ColumnKind::Json | ColumnKind::Notes => {
            MovedValue::Json(serde_json::from_str(field.as_str()?).map_err(|error| broken(error.into()))?)
        }
        ColumnKind::Bytes => MovedValue::Bytes(field.as_bytes()?.to_vec()),
        ColumnKind::Time => MovedValue::Time(time(field)?),
        ColumnKind::Uuid => {
            MovedValue::Uuid(field.as_str()?.parse().map_err(|error: uuid::Error| broken(error.into()))?)
        }
        ColumnKind::Ids => {
            MovedValue::Ids(serde_json::from_str(field.as_str()?).map_err(|error| broken(error.into()))?)
        }
    })
}
