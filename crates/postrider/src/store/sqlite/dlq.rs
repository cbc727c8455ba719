//! The dead letter queue: bury, look, redrive, discard.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::archive::{self, Leaving};
use super::keys::{self, Key, Place};
use super::row::{self, at, micros_of};
use super::writer::Write;
use super::{endpoints, events, send, storage_error};
use crate::endpoint::{EndpointId, OnDead};
use crate::error::StoreError;
use crate::message::MessageId;
use crate::settings::AttemptLog;
use crate::store::{
    AttemptError, AttemptOutcome, AttemptRecord, DeadLetter, DlqFilter, DlqStatus, DlqSummary, Redrive,
    Result,
};

const ERRORS_MAX: usize = 100;
const LIST_DEFAULT: usize = 100;

/// A filter as the parameters ?1 to ?7 of the two statements that take one.
macro_rules! filter_params {
    ($filter:expr, $endpoint:expr, $limit:expr) => {
        params![
            $filter.after.unwrap_or(0),
            $filter.id,
            $filter.message.map(|id| id.0),
            $endpoint,
            $filter.status.map(DlqStatus::as_str),
            $filter.reason,
            $limit
        ]
    };
}

/// A claimed message dies: the whole of it goes to the DLQ with its last errors.
pub(super) fn bury(
    write: &mut Write<'_>,
    id: MessageId,
    key: Option<&Key>,
    reason: &str,
    record: &AttemptRecord,
) -> Result<Option<EndpointId>> {
    let errors = last_errors(write.conn, id).map_err(storage_error)?;
    let errors = serde_json::to_string(&errors).expect("attempt errors are always JSON");
    let (endpoint, created_at): (i64, i64) = write
        .conn
        .prepare_cached("SELECT endpoint_id, created_at FROM _postrider_queue WHERE id = ?1")
        .and_then(|mut statement| statement.query_row([id.0], |row| Ok((row.get(0)?, row.get(1)?))))
        .map_err(storage_error)?;
    let endpoint = EndpointId(endpoint);
    let holds = key.is_some()
        && write.known.by_id(endpoint).is_some_and(|endpoint| endpoint.options.on_dead == OnDead::Hold);
    let losses_now = u32::from(record.outcome == AttemptOutcome::Lost);
    let bytes: i64 = write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_dlq (message_id, endpoint_id, status, reason, died_at, errors, holds_key, bytes,
               priority, attempts, losses, key_scope, ordering_key, created_at, scheduled_at, expires_at,
               idempotency_key, correlation_id, event_type, last_error, content_type, headers, options, payload)
             SELECT id, endpoint_id, 'failed', ?2, ?3, ?4, ?5,
               length(payload) + coalesce(length(headers), 0) + length(?4) + 200,
               priority, attempts, losses + ?7, key_scope, ordering_key, created_at, scheduled_at, expires_at,
               idempotency_key, correlation_id, event_type, ?6, content_type, headers, options, payload
             FROM _postrider_queue WHERE id = ?1 RETURNING bytes",
        )
        .and_then(|mut statement| {
            let now = micros_of(write.now);
            statement.query_row(params![id.0, reason, now, errors, holds, record.error, losses_now], |row| {
                row.get(0)
            })
        })
        .map_err(storage_error)?;
    if write.known.settings().attempt_log == AttemptLog::Off {
        archive::forget_attempts(write, id)?;
    }
    write.counts.dead(endpoint, 1);
    write.counts.dlq_bytes(endpoint, bytes);
    let (has_idempotency_key, place, key) = (false, Place::Claimed, key.cloned());
    let leaving = Leaving { id, endpoint, created_at, has_idempotency_key, place, key };
    archive::remove(write, &leaving)
}

fn last_errors(conn: &Connection, id: MessageId) -> rusqlite::Result<Vec<AttemptError>> {
    let mut errors = conn
        .prepare_cached(
            "SELECT number, started_at, coalesce(error, '') FROM _postrider_attempts
             WHERE message_id = ?1 AND outcome <> 'delivered' ORDER BY id DESC LIMIT ?2",
        )?
        .query_map(params![id.0, ERRORS_MAX as i64], |row| {
            Ok(AttemptError { attempt: row.get(0)?, at: at(row.get(1)?), error: row.get(2)? })
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    errors.reverse();
    Ok(errors)
}

/// In original order. Redriving twice at once yields one message: only a `failed` row is put back.
pub(super) fn redrive(write: &mut Write<'_>, selection: &Redrive) -> Result<u64> {
    let rows = match selection {
        Redrive::One(dlq_id) => vec![redrivable(write.conn, *dlq_id)?],
        Redrive::Endpoint(name) => {
            failed(write.conn, &DlqFilter { endpoint: Some(name.clone()), ..DlqFilter::default() })?
        }
        Redrive::All => failed(write.conn, &DlqFilter::default())?,
        Redrive::Matching(filter) => failed(write.conn, filter)?,
    };
    // Each goes before everything pending of its key, so the last of them goes first.
    for (dlq_id, endpoint) in rows.iter().rev() {
        let Some(endpoint) = write.known.by_id(*endpoint).cloned() else {
            return Err(StoreError::Conflict(format!("the endpoint of dead letter {dlq_id} was dropped")));
        };
        send::make_room_for(write, &endpoint, 1)?;
        put_back(write, *dlq_id, endpoint.id)?;
    }
    if !rows.is_empty() {
        let detail = json!({ "messages": rows.len(), "selection": format!("{selection:?}") });
        events::log(write, "redrive", None, &detail)?;
    }
    Ok(rows.len() as u64)
}

fn redrivable(conn: &Connection, dlq_id: i64) -> Result<(i64, EndpointId)> {
    let found: Option<(i64, String, bool)> = conn
        .query_row(
            "SELECT endpoint_id, status, payload IS NULL FROM _postrider_dlq WHERE id = ?1",
            [dlq_id],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()
        .map_err(storage_error)?;
    match found {
        None => Err(unknown(dlq_id)),
        Some((_, _, true)) => Err(StoreError::Conflict(format!("dead letter {dlq_id} was erased"))),
        Some((endpoint, status, false)) if status == "failed" => Ok((dlq_id, EndpointId(endpoint))),
        Some((_, status, false)) => {
            Err(StoreError::Conflict(format!("dead letter {dlq_id} is {status} already")))
        }
    }
}

/// What of the filter can be redriven, by message id: that is the order in which they were sent.
fn failed(conn: &Connection, filter: &DlqFilter) -> Result<Vec<(i64, EndpointId)>> {
    let endpoint = endpoint_id(conn, filter)?;
    let limit = if filter.limit == 0 { i64::MAX } else { filter.limit as i64 };
    conn.prepare_cached(
        "SELECT id, endpoint_id FROM _postrider_dlq
         WHERE status = 'failed' AND payload IS NOT NULL
           AND endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE dropped_at IS NULL)
           AND id > ?1 AND (?2 IS NULL OR id = ?2) AND (?3 IS NULL OR message_id = ?3)
           AND (?4 IS NULL OR endpoint_id = ?4) AND (?5 IS NULL OR status = ?5) AND (?6 IS NULL OR reason = ?6)
         ORDER BY message_id, id LIMIT ?7",
    )
    .and_then(|mut statement| {
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, EndpointId(row.get(1)?)));
        statement.query_map(filter_params!(filter, endpoint, limit), row)?.collect()
    })
    .map_err(storage_error)
}

/// The budget restarts while attempt numbers go on; expiry and idempotency key are cleared.
fn put_back(write: &mut Write<'_>, dlq_id: i64, endpoint: EndpointId) -> Result<()> {
    let key = key_of(write.conn, dlq_id)?;
    stop_holding(write, dlq_id)?;
    let (place, position) = match &key {
        None => (Place::Ready, None),
        Some(key) => {
            let (place, position) = before_everything(write, key)?;
            (place, Some(position))
        }
    };
    write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_queue (id, endpoint_id, place, priority, due_at, attempts, attempts_before,
               key_scope, ordering_key, key_position, behind_key, created_at, correlation_id, event_type, last_error,
               content_type, headers, options, payload)
             SELECT message_id, endpoint_id, ?2, priority, ?3, attempts, attempts,
               key_scope, ordering_key, ?4, ?2 = 1, created_at, correlation_id, event_type, last_error,
               content_type, headers, options, payload
             FROM _postrider_dlq WHERE id = ?1",
        )
        .and_then(|mut statement| {
            statement.execute(params![dlq_id, place as i64, micros_of(write.now), position])
        })
        .map_err(storage_error)?;
    end_dead_letter(write, dlq_id, endpoint, DlqStatus::Redriven)?;
    write.counts.queued(endpoint, 1);
    write.tell_pending(Some(endpoint));
    Ok(())
}

/// The place and position of a message that is put before all others of its key.
fn before_everything(write: &mut Write<'_>, key: &Key) -> Result<(Place, i64)> {
    let Some(head) = keys::head(write, key)? else {
        let place = if keys::is_held(write, key)? { Place::Blocked } else { Place::Ready };
        return Ok((place, 0));
    };
    let place = match head.place {
        Place::Ready | Place::Suspect => {
            keys::set_place(write, head.id, Place::Blocked)?;
            Place::Ready
        }
        // One of the key is claimed, or the key is still held by another dead letter. A head that only
        // waited for the dead letter just taken away is not followed but preceded.
        Place::Blocked if !keys::has_claimed(write, key)? && !keys::is_held(write, key)? => Place::Ready,
        Place::Blocked | Place::Claimed => Place::Blocked,
    };
    Ok((place, head.position - 1))
}

pub(super) fn discard(write: &mut Write<'_>, dlq_id: i64) -> Result<()> {
    let (_, endpoint) = redrivable(write.conn, dlq_id).or_else(|error| match error {
        // Erasing a dead letter does not keep anybody from discarding it.
        StoreError::Conflict(_) => erased_but_failed(write.conn, dlq_id)?.ok_or(error),
        other => Err(other),
    })?;
    let key = key_of(write.conn, dlq_id)?;
    end_dead_letter(write, dlq_id, endpoint, DlqStatus::Discarded)?;
    if let Some(key) = key {
        let unblocked = keys::advance_if_idle(write, &key)?;
        write.tell_pending(unblocked);
    }
    Ok(())
}

fn erased_but_failed(conn: &Connection, dlq_id: i64) -> Result<Option<(i64, EndpointId)>> {
    conn.query_row(
        "SELECT id, endpoint_id FROM _postrider_dlq WHERE id = ?1 AND status = 'failed'",
        [dlq_id],
        |row| Ok((row.get(0)?, EndpointId(row.get(1)?))),
    )
    .optional()
    .map_err(storage_error)
}

fn end_dead_letter(
    write: &mut Write<'_>,
    dlq_id: i64,
    endpoint: EndpointId,
    status: DlqStatus,
) -> Result<()> {
    write
        .conn
        .prepare_cached("UPDATE _postrider_dlq SET status = ?2, holds_key = 0 WHERE id = ?1")
        .and_then(|mut statement| statement.execute(params![dlq_id, status.as_str()]))
        .map_err(storage_error)?;
    write.counts.dead(endpoint, -1);
    Ok(())
}

fn stop_holding(write: &Write<'_>, dlq_id: i64) -> Result<()> {
    write
        .conn
        .prepare_cached("UPDATE _postrider_dlq SET holds_key = 0 WHERE id = ?1")
        .and_then(|mut statement| statement.execute([dlq_id]))
        .map(|_| ())
        .map_err(storage_error)
}

/// Lets keys go on that wait for a dead head; the dead letters stay.
pub(super) fn release_key(write: &mut Write<'_>, key: &str, endpoint: Option<&str>) -> Result<u64> {
    let scopes = match endpoint {
        Some(name) => Some(keys::scope_of(write.known.by_name(name)?)),
        None => None,
    };
    let held: Vec<(i64, i64)> = write
        .conn
        .prepare_cached(
            "SELECT id, key_scope FROM _postrider_dlq
             WHERE holds_key = 1 AND ordering_key = ?1 AND (?2 IS NULL OR key_scope = ?2)",
        )
        .and_then(|mut statement| {
            statement.query_map(params![key, scopes], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .map_err(storage_error)?;
    for (dlq_id, scope) in &held {
        stop_holding(write, *dlq_id)?;
        let unblocked = keys::advance_if_idle(write, &Key { scope: *scope, key: key.to_owned() })?;
        write.tell_pending(unblocked);
    }
    if !held.is_empty() {
        events::log(write, "key.released", Some(key), &json!({ "heads": held.len() }))?;
    }
    Ok(held.len() as u64)
}

/// Every key that waits for a dead head of this endpoint goes on: in the global scope others wait behind it.
pub(super) fn release_all(write: &mut Write<'_>, endpoint: EndpointId) -> Result<()> {
    let held: Vec<Key> = write
        .conn
        .prepare_cached(
            "UPDATE _postrider_dlq SET holds_key = 0 WHERE holds_key = 1 AND endpoint_id = ?1
             RETURNING key_scope, ordering_key",
        )
        .and_then(|mut statement| {
            statement
                .query_map([endpoint.0], |row| Ok(Key { scope: row.get(0)?, key: row.get(1)? }))?
                .collect()
        })
        .map_err(storage_error)?;
    for key in held {
        let unblocked = keys::advance_if_idle(write, &key)?;
        write.tell_pending(unblocked);
    }
    Ok(())
}

fn key_of(conn: &Connection, dlq_id: i64) -> Result<Option<Key>> {
    conn.prepare_cached("SELECT key_scope, ordering_key FROM _postrider_dlq WHERE id = ?1")
        .and_then(|mut statement| {
            statement.query_row([dlq_id], |row| {
                Ok(match (row.get(0)?, row.get(1)?) {
                    (Some(scope), Some(key)) => Some(Key { scope, key }),
                    _ => None,
                })
            })
        })
        .map_err(storage_error)
}

pub(super) fn erase(write: &Write<'_>, id: MessageId) -> Result<()> {
    write
        .conn
        .execute("UPDATE _postrider_dlq SET payload = NULL, headers = NULL WHERE message_id = ?1", [id.0])
        .map(|_| ())
        .map_err(storage_error)
}

fn unknown(dlq_id: i64) -> StoreError {
    StoreError::Unknown { what: "dead letter", name: dlq_id.to_string() }
}

pub(super) fn list(conn: &Connection, filter: &DlqFilter) -> Result<Vec<DeadLetter>> {
    let endpoint = endpoint_id(conn, filter)?;
    let limit = if filter.limit == 0 { LIST_DEFAULT } else { filter.limit } as i64;
    conn.prepare_cached(
        "SELECT d.id, message_id, e.name, status, reason, died_at, attempts, last_error, errors, payload,
                content_type, headers, ordering_key, event_type, d.created_at
         FROM _postrider_dlq d JOIN _postrider_endpoints e ON e.id = d.endpoint_id
         WHERE d.id > ?1 AND (?2 IS NULL OR d.id = ?2) AND (?3 IS NULL OR message_id = ?3)
           AND (?4 IS NULL OR endpoint_id = ?4) AND (?5 IS NULL OR status = ?5) AND (?6 IS NULL OR reason = ?6)
         ORDER BY d.id LIMIT ?7",
    )
    .and_then(|mut statement| {
        statement.query_map(filter_params!(filter, endpoint, limit), dead_letter)?.collect()
    })
    .map_err(storage_error)
}

fn endpoint_id(conn: &Connection, filter: &DlqFilter) -> Result<Option<i64>> {
    filter.endpoint.as_ref().map(|name| Ok(endpoints::load_by_name(conn, name)?.id.0)).transpose()
}

fn dead_letter(row: &rusqlite::Row<'_>) -> rusqlite::Result<DeadLetter> {
    Ok(DeadLetter {
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
        attempt_count: row.get(6)?,
        last_error: row.get(7)?,
        errors: serde_json::from_str(row.get_ref(8)?.as_str()?).unwrap_or_default(),
        payload: row::payload(row, 9)?,
        content_type: row.get(10)?,
        headers: row::headers(row.get_ref(11)?)?,
        ordering_key: row.get(12)?,
        event_type: row.get(13)?,
        created_at: at(row.get(14)?),
    })
}

pub(super) fn summary(conn: &Connection) -> rusqlite::Result<Vec<DlqSummary>> {
    conn.prepare_cached(
        "SELECT e.name, sum(status = 'failed'), sum(status = 'redriven'), sum(status = 'discarded'),
                min(CASE WHEN status = 'failed' THEN died_at END)
         FROM _postrider_dlq d JOIN _postrider_endpoints e ON e.id = d.endpoint_id
         GROUP BY e.id ORDER BY e.name",
    )?
    .query_map([], |row| {
        Ok(DlqSummary {
            endpoint: row.get(0)?,
            failed: row.get(1)?,
            redriven: row.get(2)?,
            discarded: row.get(3)?,
            oldest_failed: row::optional_at(row.get(4)?),
        })
    })?
    .collect()
}
