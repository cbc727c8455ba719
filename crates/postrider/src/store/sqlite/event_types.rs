//! Event types in the store.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use super::row::{at, micros_of, rule};
use super::writer::Write;
use super::{events, storage_error};
use crate::error::StoreError;
use crate::event::{EventType, NewEventType};
use crate::store::Result;

pub(super) fn create(write: &mut Write<'_>, new: &NewEventType) -> Result<EventType> {
    new.check()?;
    if find(write.conn, &new.name)?.is_some() {
        return Err(StoreError::Exists { what: "event type", name: new.name.clone() });
    }
    write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_event_types (name, description, schema, created_at) VALUES (?1, ?2, ?3, ?4)",
        )
        .and_then(|mut statement| {
            let schema = new.schema.as_ref().map(ToString::to_string);
            statement.execute(params![new.name, new.description, schema, micros_of(write.now)])
        })
        .map_err(storage_error)?;
    events::log(write, "event_type.created", Some(&new.name), &json!({}))?;
    by_name(write.conn, &new.name)
}

/// Its subscriptions stay: a pattern may fit other types, and the type may come back.
pub(super) fn drop(write: &mut Write<'_>, name: &str) -> Result<()> {
    let dropped = write
        .conn
        .execute("DELETE FROM _postrider_event_types WHERE name = ?1", [name])
        .map_err(storage_error)?;
    if dropped == 0 {
        return Err(unknown(name));
    }
    events::log(write, "event_type.dropped", Some(name), &json!({}))
}

pub(super) fn by_name(conn: &Connection, name: &str) -> Result<EventType> {
    find(conn, name)?.ok_or_else(|| unknown(name))
}

pub(super) fn find(conn: &Connection, name: &str) -> Result<Option<EventType>> {
    conn.prepare_cached(
        "SELECT name, description, schema, created_at FROM _postrider_event_types WHERE name = ?1",
    )
    .and_then(|mut statement| statement.query_row([name], event_type).optional())
    .map_err(storage_error)
}

pub(super) fn list(conn: &Connection, after: Option<&str>, limit: usize) -> rusqlite::Result<Vec<EventType>> {
    conn.prepare_cached(
        "SELECT name, description, schema, created_at FROM _postrider_event_types
         WHERE name > ?1 ORDER BY name LIMIT ?2",
    )?
    .query_map(params![after.unwrap_or(""), limit as i64], event_type)?
    .collect()
}

fn unknown(name: &str) -> StoreError {
    StoreError::Unknown { what: "event type", name: name.to_owned() }
}

fn event_type(row: &Row<'_>) -> rusqlite::Result<EventType> {
    Ok(EventType {
        name: row.get(0)?,
        description: row.get(1)?,
        schema: rule(row.get_ref(2)?)?,
        created_at: at(row.get(3)?),
    })
}
