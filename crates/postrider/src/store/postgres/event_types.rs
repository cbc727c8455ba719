//! Event types.

use postgres_types::Json;
use tokio_postgres::Row;

use super::SharedState;
use super::row::json;
use crate::error::StoreError;
use crate::event::{EventType, NewEventType};
use crate::store::Result;

pub(super) async fn create(shared: &SharedState, new: NewEventType) -> Result<EventType> {
    new.check()?;
    let create = "SELECT postrider.create_event_type($1, $2, $3)";
    shared.pool.call(create, &[&new.name, &new.description, &new.schema.as_ref().map(Json)]).await?;
    by_name(shared, &new.name).await
}

pub(super) async fn drop(shared: &SharedState, name: &str) -> Result<()> {
    check_name(name)?;
    shared.pool.call("SELECT postrider.drop_event_type($1)", &[&name]).await
}

pub(super) async fn by_name(shared: &SharedState, name: &str) -> Result<EventType> {
    check_name(name)?;
    let one = "SELECT name, description, schema, created_at FROM postrider.event_types WHERE name = $1";
    shared.prompt.query(one, &[&name]).await?.first().map(event_type).ok_or_else(|| unknown(name))
}

pub(super) async fn list(shared: &SharedState, after: Option<&str>, limit: usize) -> Result<Vec<EventType>> {
    let page = "SELECT name, description, schema, created_at FROM postrider.event_types
                WHERE name COLLATE \"C\" > $1 ORDER BY name COLLATE \"C\" LIMIT $2";
    let after = after.unwrap_or_default().split('\0').next();
    Ok(shared.prompt.query(page, &[&after, &(limit as i64)]).await?.iter().map(event_type).collect())
}

/// PostgreSQL has no text with U+0000 in it, so there is no such name.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.contains('\0') { Err(unknown(name)) } else { Ok(()) }
}

fn unknown(name: &str) -> StoreError {
    StoreError::Unknown { what: "event type", name: name.to_owned() }
}

fn event_type(row: &Row) -> EventType {
    EventType { name: row.get(0), description: row.get(1), schema: json(row, 2), created_at: row.get(3) }
}
