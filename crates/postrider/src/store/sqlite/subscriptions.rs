//! Subscriptions in the store.

use rusqlite::{Connection, Row, params};
use serde_json::json;

use super::query::Query;
use super::row::{at, micros_of, rule};
use super::writer::Write;
use super::{event_types, events};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::event::{NewSubscription, Subscribed, Subscription};
use crate::json::Json;
use crate::pubsub;
use crate::store::Result;

pub(super) fn create(write: &mut Write<'_>, new: &NewSubscription) -> Result<Subscribed> {
    new.check()?;
    if pubsub::is_whole_name(&new.pattern) {
        event_types::by_name(write.conn, &new.pattern)?;
    }
    let endpoint = write.config.by_name(&new.endpoint)?.id;
    let text = |json: &Option<Json>| json.as_ref().map(ToString::to_string);
    let (filter, template) = (text(&new.filter), text(&new.template));
    if let Some(id) = find(write.conn, new, endpoint, &filter, &template)? {
        return Ok(Subscribed { subscription: by_id(write.conn, id)?, existed: true });
    }
    let id = write.conn.insert(
        "INSERT INTO _postrider_subscriptions (pattern, endpoint_id, filter, template, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5)",
        params![new.pattern, endpoint.0, filter, template, micros_of(write.now)],
    )?;
    let detail = json!({ "subscription": id, "endpoint": new.endpoint });
    events::log(write, "subscription.created", Some(&new.pattern), &detail)?;
    Ok(Subscribed { subscription: by_id(write.conn, id)?, existed: false })
}

/// An equal subscription.
fn find(
    conn: &Connection,
    new: &NewSubscription,
    endpoint: EndpointId,
    filter: &Option<String>,
    template: &Option<String>,
) -> Result<Option<i64>> {
    conn.find(
        "SELECT id FROM _postrider_subscriptions
         WHERE endpoint_id = ?1 AND pattern = ?2 AND filter IS ?3 AND template IS ?4",
        params![endpoint.0, new.pattern, filter, template],
        |row| row.get(0),
    )
}

pub(super) fn drop(write: &mut Write<'_>, id: i64) -> Result<()> {
    let pattern: Option<String> = write.conn.find(
        "DELETE FROM _postrider_subscriptions WHERE id = ?1 RETURNING pattern",
        [id],
        |row| row.get(0),
    )?;
    let pattern = pattern.ok_or_else(|| unknown(id))?;
    events::log(write, "subscription.dropped", Some(&pattern), &json!({ "subscription": id }))
}

/// When the endpoint is dropped.
pub(super) fn drop_of(write: &Write<'_>, endpoint: EndpointId) -> Result<()> {
    write.conn.run("DELETE FROM _postrider_subscriptions WHERE endpoint_id = ?1", [endpoint.0])
}

pub(super) fn set_enabled(write: &mut Write<'_>, id: i64, enabled: bool) -> Result<()> {
    let subscription = by_id(write.conn, id)?;
    if subscription.enabled == enabled {
        return Ok(());
    }
    write.conn.run("UPDATE _postrider_subscriptions SET enabled = ?2 WHERE id = ?1", params![id, enabled])?;
    let kind = if enabled { "subscription.enabled" } else { "subscription.disabled" };
    events::log(write, kind, Some(&subscription.pattern), &json!({ "subscription": id }))
}

pub(super) fn by_id(conn: &Connection, id: i64) -> Result<Subscription> {
    conn.find(
        "SELECT s.id, s.pattern, e.name, s.filter, s.template, s.enabled, s.created_at
         FROM _postrider_subscriptions s JOIN _postrider_endpoints e ON e.id = s.endpoint_id WHERE s.id = ?1",
        [id],
        subscription,
    )?
    .ok_or_else(|| unknown(id))
}

pub(super) fn list(conn: &Connection, after: Option<i64>, limit: usize) -> Result<Vec<Subscription>> {
    conn.rows(
        "SELECT s.id, s.pattern, e.name, s.filter, s.template, s.enabled, s.created_at
         FROM _postrider_subscriptions s JOIN _postrider_endpoints e ON e.id = s.endpoint_id
         WHERE s.id > ?1 ORDER BY s.id LIMIT ?2",
        params![after.unwrap_or(0), limit as i64],
        subscription,
    )
}

/// Subscriptions whose pattern matches the type; their filters are checked next.
pub(super) fn fitting(conn: &Connection, event_type: &str) -> Result<Vec<Fitting>> {
    conn.rows(
        "SELECT id, endpoint_id, filter, template FROM _postrider_subscriptions
         WHERE pattern IN (SELECT value FROM json_each(?1)) AND enabled = 1 ORDER BY id",
        [json!(pubsub::patterns_for(event_type)).to_string()],
        |row| {
            Ok(Fitting {
                id: row.get(0)?,
                endpoint: EndpointId(row.get(1)?),
                filter: rule(row.get_ref(2)?)?,
                template: rule(row.get_ref(3)?)?,
            })
        },
    )
}

pub(super) struct Fitting {
    pub(super) id: i64,
    pub(super) endpoint: EndpointId,
    pub(super) filter: Option<Json>,
    pub(super) template: Option<Json>,
}

fn unknown(id: i64) -> StoreError {
    StoreError::Unknown { what: "subscription", name: id.to_string() }
}

fn subscription(row: &Row<'_>) -> rusqlite::Result<Subscription> {
    Ok(Subscription {
        id: row.get(0)?,
        pattern: row.get(1)?,
        endpoint: row.get(2)?,
        filter: rule(row.get_ref(3)?)?,
        template: rule(row.get_ref(4)?)?,
        enabled: row.get(5)?,
        created_at: at(row.get(6)?),
    })
}
