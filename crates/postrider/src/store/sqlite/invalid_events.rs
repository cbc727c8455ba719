//! Dead letters of events that could not be fanned out.

use rusqlite::{Connection, params};

use super::query::Query;
use super::row::{headers_text, micros_of, options_text};
use super::stored_event::StoredEvent;
use super::stored_events::is_final;
use super::writer::Write;
use super::{dlq, publish};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::JSON;
use crate::store::{DlqStatus, INVALID_EVENT, Result};

/// Dead letters of events belong to this endpoint, which is created as a dropped one. No other endpoint can have its name.
pub(super) const NO_ENDPOINT: &str = "(events)";

/// The event as it was stored, with a new message id and the error.
pub(super) fn bury(write: &mut Write<'_>, event: &StoredEvent, error: &StoreError) -> Result<()> {
    tracing::warn!(event_type = event.new.event_type, %error, "A stored event is invalid; it is in the DLQ");
    let id = next_message_id(write.conn)?;
    let endpoint = no_endpoint(write)?;
    let new = &event.new;
    let last_error = format!("[PERMANENT] {error}");
    let bytes: i64 = write.conn.value(
        "INSERT INTO _postrider_dlq (message_id, endpoint_id, status, reason, died_at, errors, bytes,
           priority, attempts, losses, ordering_key, created_at, scheduled_at, expires_at, idempotency_key,
           correlation_id, event_type, last_error, content_type, headers, options, payload)
         VALUES (?1, ?2, 'failed', ?3, ?4, '[]', length(?15) + coalesce(length(?13), 0) + length(?12) + 200,
           ?5, 0, 0, ?6, ?4, ?7, ?8, ?9, ?10, ?11, ?12, ?16, ?13, ?14, ?15)
         RETURNING bytes",
        params![
            id,
            endpoint.0,
            INVALID_EVENT,
            micros_of(write.now),
            new.priority,
            new.ordering_key,
            new.scheduled_at.map(micros_of),
            new.expires_at.map(micros_of),
            new.idempotency_key,
            new.correlation_id.map(|id| id.to_string()),
            new.event_type,
            last_error,
            headers_text(&new.headers),
            options_text(&new.options),
            &new.payload[..],
            JSON,
        ],
    )?;
    write.counts.dead(endpoint, 1);
    write.counts.dlq_bytes(endpoint, bytes);
    Ok(())
}

/// Publishes the event of a dead letter again; false when it was redriven or discarded meanwhile. An event that cannot be
/// published is false too with `skip_invalid`, otherwise an error.
pub(super) fn publish_again(write: &mut Write<'_>, dlq_id: i64, skip_invalid: bool) -> Result<bool> {
    let Some((endpoint, event)) = buried(write.conn, dlq_id)? else {
        return Ok(false);
    };
    let before = write.conn.total_changes();
    match event.publication().and_then(|publication| publish::publish(write, &publication)) {
        Ok(_) => dlq::end_dead_letter(write, dlq_id, endpoint, DlqStatus::Redriven).map(|()| true),
        Err(error) if skip_invalid && is_final(&error) && write.conn.total_changes() == before => Ok(false),
        Err(error) => Err(error),
    }
}

/// Expiry and idempotency key are cleared, as for every redrive.
fn buried(conn: &Connection, dlq_id: i64) -> Result<Option<(EndpointId, StoredEvent)>> {
    conn.find(
        "SELECT endpoint_id, event_type, payload, headers, options, priority, scheduled_at, NULL, NULL,
           correlation_id, ordering_key
         FROM _postrider_dlq WHERE id = ?1 AND status = 'failed' AND payload IS NOT NULL",
        [dlq_id],
        |row| StoredEvent::of_row(row).map(|event| (EndpointId(event.id), event)),
    )
}

/// Whether this is the endpoint of events.
pub(super) fn is_no_endpoint(conn: &Connection, id: EndpointId) -> Result<bool> {
    let sql = "SELECT count(*) FROM _postrider_endpoints WHERE id = ?1 AND name = ?2";
    conn.value(sql, params![id.0, NO_ENDPOINT])
}

/// An id that no message has or will get.
fn next_message_id(conn: &Connection) -> Result<i64> {
    let next = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = '_postrider_queue' RETURNING seq";
    match conn.find(next, [], |row| row.get(0))? {
        Some(id) => Ok(id),
        // Nothing was ever queued here.
        None => {
            conn.run("INSERT INTO sqlite_sequence (name, seq) VALUES ('_postrider_queue', 1)", []).map(|()| 1)
        }
    }
}

fn no_endpoint(write: &Write<'_>) -> Result<EndpointId> {
    let known = "SELECT id FROM _postrider_endpoints WHERE name = ?1";
    let found = write.conn.find(known, [NO_ENDPOINT], |row| row.get(0))?;
    if let Some(id) = found {
        return Ok(EndpointId(id));
    }
    let now = micros_of(write.now);
    write
        .conn
        .insert(
            "INSERT INTO _postrider_endpoints
               (name, protocol, config, retry_policy, options, created_at, dropped_at)
             VALUES (?1, 'none', '{}', '{}', '{}', ?2, ?2)",
            params![NO_ENDPOINT, now],
        )
        .map(EndpointId)
}
