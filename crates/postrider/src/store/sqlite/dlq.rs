//! The dead letter queue: bury, look, discard. `redrive.rs` puts letters back.

use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};
use serde_json::json;

use super::archive::{self, LeavingMessage};
use super::events;
use super::keys::{self, OrderingKey};
use super::query::Query;
use super::row::{self, at, micros_of};
use super::shown::ShownRow;
use super::writer::Write;
use crate::endpoint::{EndpointId, OnDead};
use crate::error::StoreError;
use crate::message::MessageId;
use crate::settings::AttemptLog;
use crate::store::{AttemptError, DeadLetter, DlqFilter, DlqStatus, DlqSummary, ListedDeadLetter, Result};

const ERRORS_MAX: usize = 100;
const LIST_DEFAULT: usize = 100;

/// Why a message dies.
pub(super) struct Death<'a> {
    pub(super) reason: &'a str,
    pub(super) error: Option<&'a str>,
    /// Claims lost just now.
    pub(super) losses: u32,
    /// Attempts that were claimed and never begun.
    pub(super) uncounted: u32,
}

/// Moves a message to the DLQ, with its last errors.
pub(super) fn bury(
    write: &mut Write<'_>,
    leaving: &LeavingMessage,
    death: &Death<'_>,
) -> Result<Option<EndpointId>> {
    let &LeavingMessage { id, endpoint, .. } = leaving;
    let errors = last_errors(write.conn, id)?;
    let errors = serde_json::to_string(&errors).expect("attempt errors are always JSON");
    let holds = leaving.key.is_some()
        && write.config.by_id(endpoint).is_some_and(|endpoint| endpoint.options.on_dead == OnDead::Hold);
    let Death { reason, error, losses, uncounted } = death;
    let bytes: i64 = write.conn.value(
        "INSERT INTO _postrider_dlq (message_id, endpoint_id, status, reason, died_at, errors, holds_key,
           bytes, priority, attempts, losses, key_scope, ordering_key, created_at, scheduled_at, expires_at,
           idempotency_key, correlation_id, event_type, last_error, content_type, headers, options, payload)
         SELECT id, endpoint_id, 'failed', ?2, ?3, ?4, ?5,
           coalesce(length(payload), 0) + coalesce(length(headers), 0) + length(?4) + 200,
           priority, attempts - ?8, losses + ?7, key_scope, ordering_key, created_at, scheduled_at, expires_at,
           idempotency_key, correlation_id, event_type, ?6, content_type, headers, options, payload
         FROM _postrider_queue WHERE id = ?1 RETURNING bytes",
        params![id.0, reason, micros_of(write.now), errors, holds, error, losses, uncounted],
    )?;
    if write.config.settings().attempt_log == AttemptLog::Off {
        archive::forget_attempts(write, id)?;
    }
    write.counts.dead(endpoint, 1);
    write.counts.dlq_bytes(endpoint, bytes);
    archive::remove(write, leaving)
}

fn last_errors(conn: &Connection, id: MessageId) -> Result<Vec<AttemptError>> {
    let mut errors = conn.rows(
        "SELECT number, started_at, coalesce(error, '') FROM _postrider_attempts
         WHERE message_id = ?1 AND outcome <> 'delivered' ORDER BY id DESC LIMIT ?2",
        params![id.0, ERRORS_MAX as i64],
        |row| {
            let (row, error) = (ShownRow(row), ShownRow(row).text(2).unwrap_or_default());
            Ok(AttemptError { attempt: row.count(0), at: row.time(1).unwrap_or_default(), error })
        },
    )?;
    errors.reverse();
    Ok(errors)
}

pub(super) fn redrivable(conn: &Connection, dlq_id: i64) -> Result<(i64, EndpointId)> {
    let found: Option<(i64, String, bool)> = conn.find(
        "SELECT endpoint_id, status, payload IS NULL FROM _postrider_dlq WHERE id = ?1",
        [dlq_id],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    match found {
        None => Err(unknown(dlq_id)),
        Some((_, _, true)) => Err(StoreError::Conflict(format!("dead letter {dlq_id} was erased"))),
        Some((endpoint, status, false)) if status == "failed" => Ok((dlq_id, EndpointId(endpoint))),
        Some((_, status, false)) => {
            Err(StoreError::Conflict(format!("dead letter {dlq_id} is {status} already")))
        }
    }
}

pub(super) fn discard(write: &mut Write<'_>, dlq_id: i64) -> Result<()> {
    let (_, endpoint) = redrivable(write.conn, dlq_id).or_else(|error| match error {
        // An erased dead letter can be discarded.
        StoreError::Conflict(_) => if_failed(write.conn, dlq_id)?.ok_or(error),
        other => Err(other),
    })?;
    end_by_discarding(write, dlq_id, endpoint)
}

/// False when it was redriven or discarded meanwhile.
pub(super) fn discard_if_failed(write: &mut Write<'_>, dlq_id: i64) -> Result<bool> {
    match if_failed(write.conn, dlq_id)? {
        Some((_, endpoint)) => end_by_discarding(write, dlq_id, endpoint).map(|()| true),
        None => Ok(false),
    }
}

fn end_by_discarding(write: &mut Write<'_>, dlq_id: i64, endpoint: EndpointId) -> Result<()> {
    let key = key_of(write.conn, dlq_id)?;
    end_dead_letter(write, dlq_id, endpoint, DlqStatus::Discarded)?;
    if let Some(key) = key {
        let unblocked = keys::advance_if_idle(write, &key)?;
        write.tell_freed(unblocked)?;
    }
    Ok(())
}

/// Erased or not.
fn if_failed(conn: &Connection, dlq_id: i64) -> Result<Option<(i64, EndpointId)>> {
    conn.find(
        "SELECT id, endpoint_id FROM _postrider_dlq WHERE id = ?1 AND status = 'failed'",
        [dlq_id],
        |row| Ok((row.get(0)?, EndpointId(row.get(1)?))),
    )
}

pub(super) fn end_dead_letter(
    write: &mut Write<'_>,
    dlq_id: i64,
    endpoint: EndpointId,
    status: DlqStatus,
) -> Result<()> {
    write.conn.run(
        "UPDATE _postrider_dlq SET status = ?2, holds_key = 0 WHERE id = ?1",
        params![dlq_id, status.as_str()],
    )?;
    write.counts.dead(endpoint, -1);
    Ok(())
}

pub(super) fn stop_holding(write: &Write<'_>, dlq_id: i64) -> Result<()> {
    write.conn.run("UPDATE _postrider_dlq SET holds_key = 0 WHERE id = ?1", [dlq_id])
}

/// Releases keys that wait for a dead head; the dead letters stay.
pub(super) fn release_key(write: &mut Write<'_>, key: &str, endpoint: Option<&str>) -> Result<u64> {
    let scopes = match endpoint {
        Some(name) => Some(keys::scope_of(write.config.by_name(name)?)),
        None => None,
    };
    let held: Vec<(i64, i64)> = write.conn.rows(
        "SELECT id, key_scope FROM _postrider_dlq
         WHERE holds_key = 1 AND ordering_key = ?1 AND (?2 IS NULL OR key_scope = ?2)",
        params![key, scopes],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    for (dlq_id, scope) in &held {
        stop_holding(write, *dlq_id)?;
        let unblocked =
            keys::advance_if_idle(write, &OrderingKey { scope: *scope, key: key.to_owned().into() })?;
        write.tell_freed(unblocked)?;
    }
    if !held.is_empty() {
        events::log(write, "key.released", Some(key), &json!({ "heads": held.len() }))?;
    }
    Ok(held.len() as u64)
}

/// Releases every key that waits for a dead head of this endpoint: in the global scope, messages of other endpoints
/// wait for it too.
pub(super) fn release_all(write: &mut Write<'_>, endpoint: EndpointId) -> Result<()> {
    let held: Vec<OrderingKey> = write.conn.rows(
        "UPDATE _postrider_dlq SET holds_key = 0 WHERE holds_key = 1 AND endpoint_id = ?1
         RETURNING key_scope, ordering_key",
        [endpoint.0],
        |row| Ok(OrderingKey { scope: row.get(0)?, key: row.get(1)? }),
    )?;
    for key in held {
        let unblocked = keys::advance_if_idle(write, &key)?;
        write.tell_freed(unblocked)?;
    }
    Ok(())
}

fn key_of(conn: &Connection, dlq_id: i64) -> Result<Option<OrderingKey>> {
    conn.row("SELECT key_scope, ordering_key FROM _postrider_dlq WHERE id = ?1", [dlq_id], |row| {
        Ok(OrderingKey::of(row.get(0)?, row.get(1)?))
    })
}

pub(super) fn erase(write: &Write<'_>, id: MessageId) -> Result<()> {
    write.conn.run("UPDATE _postrider_dlq SET payload = NULL, headers = NULL WHERE message_id = ?1", [id.0])
}

fn unknown(dlq_id: i64) -> StoreError {
    StoreError::Unknown { what: "dead letter", name: dlq_id.to_string() }
}

pub(super) fn list(conn: &Connection, filter: &DlqFilter) -> Result<Vec<DeadLetter>> {
    let (conditions, mut values) = conditions(conn, filter)?;
    values.push(if filter.limit == 0 { LIST_DEFAULT as i64 } else { filter.limit as i64 }.into());
    conn.rows(
        &format!(
            "SELECT d.id, message_id, e.name, status, reason, died_at, attempts, last_error, errors, payload,
                    content_type, headers, ordering_key, event_type, d.created_at, priority, d.options,
                    idempotency_key, correlation_id, scheduled_at, expires_at
             FROM _postrider_dlq d JOIN _postrider_endpoints e ON e.id = d.endpoint_id
             WHERE {conditions} ORDER BY d.id LIMIT ?"
        ),
        params_from_iter(values),
        dead_letter,
    )
}

/// The filter as conditions on the letter `d`. Only the fields that are set, so that SQLite can use an index.
pub(super) fn conditions(conn: &Connection, filter: &DlqFilter) -> Result<(String, Vec<Value>)> {
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let named = [
        ("d.id > ?", filter.after.map(Value::from)),
        ("d.id = ?", filter.id.map(Value::from)),
        ("d.message_id = ?", filter.message.map(|id| id.0.into())),
        ("d.status = ?", filter.status.map(|status| status.as_str().to_owned().into())),
        ("d.reason = ?", text(&filter.reason)),
        ("instr(d.last_error, ?) = 1", filter.class.map(|class| class.tag().to_owned().into())),
        ("instr(d.last_error, ?) > 0", text(&filter.error)),
        ("d.event_type = ?", text(&filter.event_type)),
        ("d.ordering_key = ?", text(&filter.ordering_key)),
        ("d.correlation_id = ?", filter.correlation_id.map(|id| id.to_string().into())),
        ("d.died_at >= ?", filter.from.map(|at| micros_of(at).into())),
        ("d.died_at < ?", filter.until.map(|at| micros_of(at).into())),
    ];
    let (mut sql, mut values): (Vec<_>, Vec<_>) =
        named.into_iter().filter_map(|(condition, value)| Some((condition.to_owned(), value?))).unzip();
    if let Some(name) = &filter.endpoint {
        let ids = every_id_of(conn, name)?;
        sql.push(format!("d.endpoint_id IN ({})", vec!["?"; ids.len()].join(", ")));
        values.extend(ids.into_iter().map(Value::from));
    }
    Ok((if sql.is_empty() { "1".to_owned() } else { sql.join(" AND ") }, values))
}

/// Dead letters outlive their endpoint, and a new endpoint may have its name.
fn every_id_of(conn: &Connection, name: &str) -> Result<Vec<i64>> {
    let ids: Vec<i64> = conn.column("SELECT id FROM _postrider_endpoints WHERE name = ?1", [name])?;
    if ids.is_empty() { Err(StoreError::unknown_endpoint(name)) } else { Ok(ids) }
}

fn dead_letter(row: &rusqlite::Row<'_>) -> rusqlite::Result<DeadLetter> {
    let shown = ShownRow(row);
    Ok(DeadLetter {
        listed: ListedDeadLetter {
            id: row.get(0)?,
            message: MessageId(row.get(1)?),
            endpoint: row.get(2)?,
            status: match row.get_ref(3)?.as_str()? {
                "redriven" => DlqStatus::Redriven,
                "discarded" => DlqStatus::Discarded,
                _ => DlqStatus::Failed,
            },
            reason: row.get(4)?,
            died_at: at(row.get(5)?),
            attempt_count: shown.count(6),
            last_error: shown.text(7),
            content_type: shown.text(10).unwrap_or_default(),
            ordering_key: shown.text(12),
            event_type: shown.text(13),
            created_at: shown.time(14).unwrap_or_default(),
            priority: shown.priority(15),
            idempotency_key: shown.text(17),
            correlation_id: shown.uuid(18),
            scheduled_at: shown.time(19),
            expires_at: shown.time(20),
        },
        errors: serde_json::from_str(&shown.text(8).unwrap_or_default()).unwrap_or_default(),
        payload: shown.bytes(9),
        headers: shown.headers(11),
        options: shown.object(16),
    })
}

pub(super) fn summary(conn: &Connection) -> Result<Vec<DlqSummary>> {
    conn.rows(
        "SELECT e.name, sum(iif(status = 'failed', n, 0)), sum(iif(status = 'redriven', n, 0)),
                sum(iif(status = 'discarded', n, 0)), min(iif(status = 'failed', oldest, NULL)),
                max(iif(status = 'failed', newest, NULL)),
                json_group_object(reason, n) FILTER (WHERE status = 'failed')
         FROM (SELECT endpoint_id, status, reason, count(*) AS n, min(died_at) AS oldest,
                 max(died_at) AS newest
               FROM _postrider_dlq GROUP BY endpoint_id, status, reason) d
         JOIN _postrider_endpoints e ON e.id = d.endpoint_id
         GROUP BY e.id ORDER BY e.name",
        [],
        |row| {
            Ok(DlqSummary {
                endpoint: row.get(0)?,
                failed: row.get(1)?,
                redriven: row.get(2)?,
                discarded: row.get(3)?,
                oldest_failed: row::optional_at(row.get(4)?),
                newest_failed: row::optional_at(row.get(5)?),
                reasons: serde_json::from_str(row.get_ref(6)?.as_str()?).unwrap_or_default(),
            })
        },
    )
}
