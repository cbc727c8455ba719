//! Endpoints and their circuits in the store.

use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};

use super::query::Query;
use super::row::{at, micros_of, object, optional_at};
use super::writer::Write;
use super::{dlq, events, settle, subscriptions};
use crate::breaker::{Circuit, CircuitState, Probe};
use crate::endpoint::{
    CheckedEndpoint, DisabledBy, Endpoint, EndpointChange, EndpointId, EndpointOptions, NewEndpoint,
};
use crate::error::StoreError;
use crate::message::{MessageId, NodeId};
use crate::protocol::{EndpointConfig, Protocol};
use crate::retry::RetryOverrides;
use crate::store::{Arrival, Result};

/// A forced drop cancels at most this many messages in one transaction.
const DROP_BATCH: usize = 500;

const COLUMNS: &str = "id, name, protocol, config, retry_policy, options, disabled_by, paused, circuit, \
     circuit_epoch, circuit_until, circuit_probe_node, held_until, revision, created_at";

pub(super) fn load_all(conn: &Connection) -> Result<Vec<Endpoint>> {
    conn.rows(&format!("SELECT {COLUMNS} FROM _postrider_endpoints WHERE dropped_at IS NULL"), [], endpoint)
}

pub(super) fn load_by_name(conn: &Connection, name: &str) -> Result<Endpoint> {
    conn.find(
        &format!("SELECT {COLUMNS} FROM _postrider_endpoints WHERE dropped_at IS NULL AND name = ?1"),
        [name],
        endpoint,
    )?
    .ok_or_else(|| StoreError::unknown_endpoint(name))
}

pub(super) fn list(conn: &Connection, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
    conn.rows(
        &format!(
            "SELECT {COLUMNS} FROM _postrider_endpoints WHERE dropped_at IS NULL AND name > ?1
             ORDER BY name LIMIT ?2"
        ),
        params![after.unwrap_or(""), limit as i64],
        endpoint,
    )
}

fn endpoint(row: &Row<'_>) -> rusqlite::Result<Endpoint> {
    let broken = |column: usize, error: crate::Invalid| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    };
    let json =
        |column: usize| -> rusqlite::Result<Value> { Ok(Value::Object(object(row.get_ref(column)?)?)) };
    let protocol = Protocol::from_name(row.get_ref(2)?.as_str()?).map_err(|error| broken(2, error))?;
    Ok(Endpoint {
        id: EndpointId(row.get(0)?),
        name: row.get::<_, Arc<str>>(1)?,
        protocol,
        config: EndpointConfig::new(protocol, object(row.get_ref(3)?)?),
        retry: RetryOverrides::check(Some(&json(4)?)).map_err(|error| broken(4, error))?,
        options: EndpointOptions::check(Some(&json(5)?)).map_err(|error| broken(5, error))?,
        disabled: match row.get_ref(6)?.as_str_or_null()? {
            Some("gone") => Some(DisabledBy::Gone),
            Some(_) => Some(DisabledBy::Operator),
            None => None,
        },
        paused: row.get(7)?,
        circuit: circuit(row)?,
        held_until: optional_at(row.get(12)?),
        revision: row.get(13)?,
        created_at: at(row.get(14)?),
    })
}

fn circuit(row: &Row<'_>) -> rusqlite::Result<Circuit> {
    let until: Option<i64> = row.get(10)?;
    let state = match row.get_ref(8)?.as_str()? {
        "open" => CircuitState::Open { until: at(until.unwrap_or(0)) },
        "half_open" => {
            let node: Option<i64> = row.get(11)?;
            let probe =
                node.zip(until).map(|(node, until)| Probe { node: NodeId(node), lease_until: at(until) });
            CircuitState::HalfOpen { probe }
        }
        _ => CircuitState::Closed,
    };
    Ok(Circuit { epoch: row.get(9)?, state })
}

pub(super) fn create(write: &mut Write<'_>, new: NewEndpoint) -> Result<Endpoint> {
    let checked = new.check(write.config.settings())?;
    if write.config.by_name(&checked.name).is_ok() {
        return Err(StoreError::Exists { what: "endpoint", name: checked.name });
    }
    write.conn.run(
        "INSERT INTO _postrider_endpoints (name, protocol, config, retry_policy, options, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            checked.name,
            checked.protocol.as_str(),
            Value::Object(checked.config.clone()).to_string(),
            json!(checked.retry).to_string(),
            json!(checked.options).to_string(),
            micros_of(write.now)
        ],
    )?;
    changed(write, &checked.name, "endpoint.created", json!({ "protocol": checked.protocol.as_str() }))?;
    load_by_name(write.conn, &checked.name)
}

pub(super) fn alter(write: &mut Write<'_>, name: &str, change: EndpointChange) -> Result<Endpoint> {
    let current = load_by_name(write.conn, name)?;
    let checked: CheckedEndpoint = NewEndpoint {
        name: name.to_owned(),
        protocol: current.protocol.as_str().to_owned(),
        config: change.config_over(current.config.clone().into_map()),
        retry_policy: Some(change.retry_policy.unwrap_or_else(|| json!(current.retry))),
        options: Some(change.options.unwrap_or_else(|| json!(current.options))),
    }
    .check(write.config.settings())?;
    if checked.options.key_scope != current.options.key_scope && has_keyed_messages(write.conn, current.id)? {
        let rule = "cannot change while the endpoint has messages or dead letters with ordering keys";
        return Err(crate::Invalid::new("options.key_scope", rule).into());
    }
    let fields: Vec<&str> = [
        ("config", checked.config != *current.config),
        ("retry_policy", checked.retry != current.retry),
        ("options", checked.options != current.options),
    ]
    .iter()
    .filter(|(_, differs)| *differs)
    .map(|(field, _)| *field)
    .collect();
    write.conn.run(
        "UPDATE _postrider_endpoints SET config = ?2, retry_policy = ?3, options = ?4, revision = revision + 1
         WHERE id = ?1",
        params![
            current.id.0,
            Value::Object(checked.config).to_string(),
            json!(checked.retry).to_string(),
            json!(checked.options).to_string()
        ],
    )?;
    changed(write, name, "endpoint.changed", json!({ "fields": fields }))?;
    load_by_name(write.conn, name)
}

fn has_keyed_messages(conn: &Connection, endpoint: EndpointId) -> Result<bool> {
    conn.value(
        "SELECT EXISTS (SELECT 1 FROM _postrider_queue WHERE endpoint_id = ?1 AND ordering_key IS NOT NULL)
         OR EXISTS (SELECT 1 FROM _postrider_dlq
                     WHERE endpoint_id = ?1 AND status = 'failed' AND ordering_key IS NOT NULL)",
        [endpoint.0],
    )
}

/// Cancels up to [`DROP_BATCH`] messages of the endpoint and drops it when none is left; true when done.
pub(super) fn drop(write: &mut Write<'_>, name: &str, force: bool) -> Result<bool> {
    let id = load_by_name(write.conn, name)?.id;
    let queued: Vec<i64> = write.conn.column(
        "SELECT id FROM _postrider_queue WHERE endpoint_id = ?1 ORDER BY id LIMIT ?2",
        params![id.0, DROP_BATCH as i64 + 1],
    )?;
    if !queued.is_empty() && !force {
        return Err(StoreError::Conflict(format!(
            "endpoint {name:?} has messages; force the drop to cancel them, or let them be delivered first"
        )));
    }
    for message in queued.iter().take(DROP_BATCH) {
        settle::cancel_by_force(write, MessageId(*message))?;
    }
    if queued.len() > DROP_BATCH {
        return Ok(false);
    }
    dlq::release_all(write, id)?;
    subscriptions::drop_of(write, id)?;
    write.conn.run(
        "UPDATE _postrider_endpoints SET dropped_at = ?2, config = '{}' WHERE id = ?1",
        params![id.0, micros_of(write.now)],
    )?;
    changed(write, name, "endpoint.dropped", json!({ "forced": force }))?;
    Ok(true)
}

pub(super) fn set_enabled(write: &mut Write<'_>, name: &str, enabled: bool) -> Result<()> {
    let id = load_by_name(write.conn, name)?.id;
    if enabled { set_disabled_by(write, id, None) } else { disable(write, id, DisabledBy::Operator) }
}

pub(super) fn disable(write: &mut Write<'_>, id: EndpointId, by: DisabledBy) -> Result<()> {
    set_disabled_by(write, id, Some(by))
}

/// A receiver that is gone does not override what an operator set.
fn set_disabled_by(write: &mut Write<'_>, id: EndpointId, by: Option<DisabledBy>) -> Result<()> {
    let by = by.map(|by| match by {
        DisabledBy::Operator => "operator",
        DisabledBy::Gone => "gone",
    });
    let name: Option<String> = write.conn.find(
        "UPDATE _postrider_endpoints SET disabled_by = ?2
         WHERE id = ?1 AND disabled_by IS NOT ?2 AND (disabled_by IS NULL OR ?2 IS NOT 'gone')
         RETURNING name",
        params![id.0, by],
        |row| row.get(0),
    )?;
    match (name, by) {
        (None, _) => Ok(()),
        (Some(name), Some(by)) => changed(write, &name, "endpoint.disabled", json!({ "by": by })),
        (Some(name), None) => changed(write, &name, "endpoint.enabled", json!({})),
    }
}

pub(super) fn set_paused(write: &mut Write<'_>, name: &str, paused: bool) -> Result<()> {
    let id = load_by_name(write.conn, name)?.id;
    let moved = write.conn.run_counted(
        "UPDATE _postrider_endpoints SET paused = ?2 WHERE id = ?1 AND paused <> ?2",
        params![id.0, paused],
    )?;
    if moved == 0 {
        return Ok(());
    }
    changed(write, name, if paused { "endpoint.paused" } else { "endpoint.resumed" }, json!({}))
}

/// A receiver sent Retry-After. Kept in the store, so that it outlives a restart.
pub(super) fn hold(write: &mut Write<'_>, id: EndpointId, until: Timestamp) -> Result<()> {
    write.conn.run(
        "UPDATE _postrider_endpoints SET held_until = max(coalesce(held_until, 0), ?2) WHERE id = ?1",
        params![id.0, micros_of(until)],
    )?;
    write.config.hold_endpoint(id, until);
    Ok(())
}

pub(super) fn move_circuit(
    write: &mut Write<'_>,
    id: EndpointId,
    from_epoch: i64,
    to: Circuit,
) -> Result<bool> {
    swap_circuit(write, id, from_epoch, to, &format!("circuit.{}", to.state.name().as_str()))
}

/// Compare-and-swap on the epoch; `kind` is that of the event.
fn swap_circuit(
    write: &mut Write<'_>,
    id: EndpointId,
    from_epoch: i64,
    to: Circuit,
    kind: &str,
) -> Result<bool> {
    let (until, probe) = match to.state {
        CircuitState::Closed | CircuitState::HalfOpen { probe: None } => (None, None),
        CircuitState::Open { until } => (Some(micros_of(until)), None),
        CircuitState::HalfOpen { probe: Some(probe) } => {
            (Some(micros_of(probe.lease_until)), Some(probe.node.0))
        }
    };
    let name: Option<String> = write.conn.find(
        "UPDATE _postrider_endpoints
         SET circuit = ?3, circuit_epoch = ?4, circuit_until = ?5, circuit_probe_node = ?6
         WHERE id = ?1 AND circuit_epoch = ?2 AND dropped_at IS NULL RETURNING name",
        params![id.0, from_epoch, to.state.name().as_str(), to.epoch, until, probe],
        |row| row.get(0),
    )?;
    let Some(name) = name else { return Ok(false) };
    log_change(write, &name, kind, json!({ "epoch": to.epoch }))?;
    write.news.push(Arrival::CircuitMoved);
    Ok(true)
}

pub(super) fn reset_circuit(write: &mut Write<'_>, name: &str) -> Result<()> {
    let endpoint = load_by_name(write.conn, name)?;
    write.conn.run("UPDATE _postrider_endpoints SET held_until = NULL WHERE id = ?1", [endpoint.id.0])?;
    let (epoch, closed) = (endpoint.circuit.epoch, endpoint.circuit.closed());
    swap_circuit(write, endpoint.id, epoch, closed, "circuit.reset").map(|_| ())
}

/// Logs the change, increases the version and tells every node of this process.
fn changed(write: &mut Write<'_>, name: &str, kind: &str, detail: Value) -> Result<()> {
    log_change(write, name, kind, detail)?;
    write.news.push(Arrival::Reconfigured);
    Ok(())
}

fn log_change(write: &mut Write<'_>, name: &str, kind: &str, detail: Value) -> Result<()> {
    events::log(write, kind, Some(name), &detail)?;
    move_version(write)?;
    write.config.refresh_endpoint(write.conn, name)
}

fn move_version(write: &Write<'_>) -> Result<()> {
    write.conn.run("UPDATE _postrider_meta SET value = value + 1 WHERE name = 'config_version'", [])
}

/// After a change of settings or pause.
pub(super) fn reload(write: &mut Write<'_>) -> Result<()> {
    move_version(write)?;
    write.config.forget();
    write.config.load_if_forgotten(write.conn)?;
    write.news.push(Arrival::Reconfigured);
    Ok(())
}
