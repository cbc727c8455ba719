//! Event types in the store.

use rusqlite::{Connection, Row, params};
use serde_json::json;

use super::events;
use super::query::Query;
use super::row::{at, micros_of, rule};
use super::writer::Write;
use crate::error::StoreError;
use crate::event::{EventType, NewEventType};
use crate::store::Result;

pub(super) fn create(write: &mut Write<'_>, new: &NewEventType) -> Result<EventType> {
    new.check()?;
    if find(write.conn, &new.name)?.is_some() {
        return Err(StoreError::Exists { what: "event type", name: new.name.clone() });
    }
    let schema = new.schema.as_ref().map(ToString::to_string);
    write.conn.run(
        "INSERT INTO _postrider_event_types (name, description, schema, created_at) VALUES (?1, ?2, ?3, ?4)",
        params![new.name, new.description, schema, micros_of(write.now)],
    )?;
    events::log(write, "event_type.created", Some(&new.name), &json!({}))?;
    by_name(write.conn, &new.name)
}

/// Its subscriptions stay: a pattern may match other types, and the type may be created again.
pub(super) fn drop(write: &mut Write<'_>, name: &str) -> Result<()> {
    let dropped = write.conn.run_counted("DELETE FROM _postrider_event_types WHERE name = ?1", [name])?;
    if dropped == 0 {
        return Err(unknown(name));
    }
    events::log(write, "event_type.dropped", Some(name), &json!({}))
}

pub(super) fn by_name(conn: &Connection, name: &str) -> Result<EventType> {
    find(conn, name)?.ok_or_else(|| unknown(name))
}

pub(super) fn find(conn: &Connection, name: &str) -> Result<Option<EventType>> {
    conn.find(
        "SELECT name, description, schema, created_at FROM _postrider_event_types WHERE name = ?1",
        [name],
        event_type,
    )
}

pub(super) fn list(conn: &Connection, after: Option<&str>, limit: usize) -> Result<Vec<EventType>> {
    conn.rows(
        "SELECT name, description, schema, created_at FROM _postrider_event_types
         WHERE name > ?1 ORDER BY name LIMIT ?2",
        params![after.unwrap_or(""), limit as i64],
        event_type,
    )
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
