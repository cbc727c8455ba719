//! Events that applications stored by SQL: the owner of the file fans them out in commit order, each in the transaction
//! that forgets it, so that a crash neither loses nor doubles one.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::publish::{self, Publication};
use super::row::{
    at, correlation, headers, headers_text, micros_of, object, optional_at, options_text, payload,
};
use super::writer::Write;
use super::{dlq, storage_error};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::message::JSON;
use crate::store::{DlqStatus, Result};

/// Reason of the dead letter that an event becomes which cannot be fanned out.
pub(super) const INVALID_EVENT: &str = "invalid_event";
/// Dead letters of events belong to this name. No endpoint can be called so, and none is: it was dropped when it was made.
const NO_ENDPOINT: &str = "(events)";
/// A full queue drains in its own time; what keeps the disk from writing may take longer.
const FULL_WAIT: Duration = Duration::from_millis(50);
const TROUBLE_WAIT: Duration = Duration::from_secs(1);

/// What the writer knows of them between its transactions.
pub(super) struct StoredEvents {
    /// Tools leave them to the node.
    owned: bool,
    may_wait: bool,
    not_before: Option<Instant>,
    /// Refused after something of it was written, which is rolled back: next time it becomes a dead letter.
    refused: Option<(i64, StoreError)>,
}

/// How far a transaction came with them.
pub(super) enum FannedOut {
    /// Not at all.
    None,
    Some,
    /// The transaction has to be rolled back, and goes better the next time.
    Spoiled,
}

impl StoredEvents {
    pub(super) fn of_file(owned: bool) -> Self {
        Self { owned, may_wait: owned, not_before: None, refused: None }
    }

    pub(super) fn are_due(&self) -> bool {
        self.may_wait && self.not_before.is_none_or(|at| at <= Instant::now())
    }

    /// After another process changed the file.
    pub(super) fn look(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        self.may_wait = self.owned && any(conn)?;
        Ok(())
    }

    /// The transaction that fanned them out was rolled back.
    pub(super) fn are_back(&mut self) {
        self.may_wait = self.owned;
    }

    pub(super) fn wait_for_better_times(&mut self) {
        self.not_before = Some(Instant::now() + TROUBLE_WAIT);
    }

    /// Fans out the oldest ones until the time is used up.
    pub(super) fn fan_out(&mut self, write: &mut Write<'_>, until: Instant) -> FannedOut {
        let mut done = FannedOut::None;
        self.not_before = None;
        loop {
            let refused = self.refused.take();
            let was_refused = refused.is_some();
            match next(write, refused) {
                Ok(true) => done = FannedOut::Some,
                Ok(false) => {
                    self.may_wait = false;
                    return done;
                }
                Err(Stopped { error, unchanged }) => return self.stopped(error, unchanged, done),
            }
            // A refused one is committed by itself: were the next one refused as well, this one would come again.
            if was_refused || Instant::now() > until {
                return done;
            }
        }
    }

    fn stopped(&mut self, error: Refusal, unchanged: bool, done: FannedOut) -> FannedOut {
        match error {
            Refusal::Later(wait) => self.not_before = Some(Instant::now() + wait),
            Refusal::ForGood(event, error) => self.refused = Some((event, error)),
        }
        if unchanged { done } else { FannedOut::Spoiled }
    }
}

struct Stopped {
    error: Refusal,
    /// Nothing of the event was written.
    unchanged: bool,
}

enum Refusal {
    Later(Duration),
    ForGood(i64, StoreError),
}

/// The oldest event becomes messages, or a dead letter; false when there is none.
fn next(write: &mut Write<'_>, refused: Option<(i64, StoreError)>) -> std::result::Result<bool, Stopped> {
    let before = write.conn.total_changes();
    let result = try_next(write, refused);
    let unchanged = write.conn.total_changes() == before;
    result.map_err(|error| Stopped { error, unchanged })
}

fn try_next(write: &mut Write<'_>, refused: Option<(i64, StoreError)>) -> std::result::Result<bool, Refusal> {
    let trouble = |error: StoreError| {
        tracing::warn!(%error, "Stored events could not be fanned out; trying again");
        Refusal::Later(TROUBLE_WAIT)
    };
    let Some(event) = oldest(write.conn).map_err(|error| trouble(storage_error(error)))? else {
        return Ok(false);
    };
    let before = write.conn.total_changes();
    let refusal = match refused {
        Some((id, error)) if id == event.id => Some(error),
        _ => Publication::of_one(event.new.clone())
            .and_then(|publication| publish::publish(write, &publication))
            .err(),
    };
    match refusal {
        None => {}
        Some(StoreError::QueueFull { .. }) => return Err(Refusal::Later(FULL_WAIT)),
        Some(error) if !is_final(&error) => return Err(trouble(error)),
        Some(error) if write.conn.total_changes() != before => return Err(Refusal::ForGood(event.id, error)),
        Some(error) => bury(write, &event, &error).map_err(trouble)?,
    }
    forget(write, event.id).map_err(trouble)?;
    Ok(true)
}

/// Every one of them, before the file goes elsewhere.
pub(super) fn fan_out_all(write: &mut Write<'_>) -> Result<()> {
    loop {
        match try_next(write, None) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(_) => return Err(still_there()),
        }
    }
}

/// A stream does not carry them.
pub(super) fn refuse_if_any(conn: &Connection) -> Result<()> {
    if any(conn).map_err(storage_error)? { Err(still_there()) } else { Ok(()) }
}

fn still_there() -> StoreError {
    StoreError::Conflict(
        "events that were stored by SQL have not become messages yet; let a node deliver, or raise max_queue_size, and \
         try again"
            .to_owned(),
    )
}

fn any(conn: &Connection) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM _postrider_events)")?.query_row([], |row| row.get(0))
}

struct StoredEvent {
    id: i64,
    created_at: Timestamp,
    new: NewEvent,
}

fn oldest(conn: &Connection) -> rusqlite::Result<Option<StoredEvent>> {
    conn.prepare_cached(
        "SELECT id, created_at, event_type, payload, headers, options, priority, scheduled_at, expires_at,
           idempotency_key, correlation_id, ordering_key
         FROM _postrider_events ORDER BY id LIMIT 1",
    )?
    .query_row([], stored)
    .optional()
}

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredEvent> {
    Ok(StoredEvent {
        id: row.get(0)?,
        created_at: at(row.get(1)?),
        new: NewEvent {
            event_type: row.get(2)?,
            payload: payload(row, 3)?.unwrap_or_default(),
            headers: headers(row.get_ref(4)?)?,
            options: object(row.get_ref(5)?)?,
            priority: row.get(6)?,
            scheduled_at: optional_at(row.get(7)?),
            expires_at: optional_at(row.get(8)?),
            idempotency_key: row.get(9)?,
            correlation_id: correlation(row, 10)?,
            ordering_key: row.get(11)?,
        },
    })
}

fn forget(write: &Write<'_>, event: i64) -> Result<()> {
    write
        .conn
        .prepare_cached("DELETE FROM _postrider_events WHERE id = ?1")
        .and_then(|mut statement| statement.execute([event]))
        .map(|_| ())
        .map_err(storage_error)
}

/// The event as it was stored, under a message id of its own, with what is wrong with it.
fn bury(write: &mut Write<'_>, event: &StoredEvent, error: &StoreError) -> Result<()> {
    tracing::warn!(event_type = event.new.event_type, %error, "A stored event is invalid; it is in the DLQ");
    let id = next_message_id(write.conn).map_err(storage_error)?;
    let endpoint = no_endpoint(write).map_err(storage_error)?;
    let new = &event.new;
    let last_error = format!("[PERMANENT] {error}");
    let bytes: i64 = write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_dlq (message_id, endpoint_id, status, reason, died_at, errors, bytes, priority, attempts,
               losses, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id, event_type,
               last_error, content_type, headers, options, payload)
             VALUES (?1, ?2, 'failed', ?3, ?4, '[]', length(?15) + coalesce(length(?13), 0) + length(?12) + 200, ?5, 0, 0,
               ?6, ?16, ?7, ?8, ?9, ?10, ?11, ?12, ?17, ?13, ?14, ?15)
             RETURNING bytes",
        )
        .and_then(|mut statement| {
            statement.query_row(
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
                    micros_of(event.created_at),
                    JSON,
                ],
                |row| row.get(0),
            )
        })
        .map_err(storage_error)?;
    write.counts.dead(endpoint, 1);
    write.counts.dlq_bytes(endpoint, bytes);
    Ok(())
}

/// Redrives a dead letter that an event became; false when somebody else was first. What is wrong with it now is said, or
/// else it stays as it was.
pub(super) fn publish_again(write: &mut Write<'_>, dlq_id: i64, whatever_comes: bool) -> Result<bool> {
    let Some((endpoint, event)) = buried(write.conn, dlq_id).map_err(storage_error)? else {
        return Ok(false);
    };
    let before = write.conn.total_changes();
    match Publication::of_one(event).and_then(|publication| publish::publish(write, &publication)) {
        Ok(_) => dlq::end_dead_letter(write, dlq_id, endpoint, DlqStatus::Redriven).map(|()| true),
        Err(error) if whatever_comes && is_final(&error) && write.conn.total_changes() == before => Ok(false),
        Err(error) => Err(error),
    }
}

/// Trying again would not help.
fn is_final(error: &StoreError) -> bool {
    match error {
        StoreError::Invalid(_)
        | StoreError::Unknown { .. }
        | StoreError::IdempotencyConflict { .. }
        | StoreError::TooLarge { .. }
        | StoreError::Disabled { .. }
        | StoreError::Exists { .. } => true,
        StoreError::QueueFull { .. }
        | StoreError::Conflict(_)
        | StoreError::Unavailable(_)
        | StoreError::Unusable(_)
        | StoreError::Denied(_)
        | StoreError::Unreachable(_)
        | StoreError::Uncertain(_) => false,
    }
}

/// Expiry and idempotency key are cleared, as for every redrive.
fn buried(conn: &Connection, dlq_id: i64) -> rusqlite::Result<Option<(EndpointId, NewEvent)>> {
    conn.prepare_cached(
        "SELECT endpoint_id, created_at, event_type, payload, headers, options, priority, scheduled_at, NULL, NULL,
           correlation_id, ordering_key
         FROM _postrider_dlq WHERE id = ?1 AND status = 'failed' AND payload IS NOT NULL",
    )?
    .query_row([dlq_id], |row| stored(row).map(|event| (EndpointId(event.id), event.new)))
    .optional()
}

/// One that no message has or will have.
fn next_message_id(conn: &Connection) -> rusqlite::Result<i64> {
    let next = "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = '_postrider_queue' RETURNING seq";
    match conn.prepare_cached(next)?.query_row([], |row| row.get(0)).optional()? {
        Some(id) => Ok(id),
        // Nothing was ever queued here.
        None => conn
            .execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('_postrider_queue', 1)", [])
            .map(|_| 1),
    }
}

fn no_endpoint(write: &Write<'_>) -> rusqlite::Result<EndpointId> {
    let known = "SELECT id FROM _postrider_endpoints WHERE name = ?1";
    let found = write.conn.prepare_cached(known)?.query_row([NO_ENDPOINT], |row| row.get(0)).optional()?;
    if let Some(id) = found {
        return Ok(EndpointId(id));
    }
    let now = micros_of(write.now);
    write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_endpoints (name, protocol, config, retry_policy, options, created_at, dropped_at)
             VALUES (?1, 'none', '{}', '{}', '{}', ?2, ?2)",
        )?
        .insert(params![NO_ENDPOINT, now])
        .map(EndpointId)
}
