//! Plain messages of a batch, several in one statement: opening the queue's many indexes once for all of them
//! is what makes a batch cheap.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::row::{headers_text, micros_of, options_text};
use super::send::make_room_for;
use super::storage_error;
use super::writer::Write;
use crate::message::{MessageId, NewMessage, Sent};
use crate::store::{Arrival, Result};

/// Messages in one statement. More gain little and make the statement long.
const CHUNK: usize = 16;
const SHARED_PARAMETERS: usize = 2;
const ROW_PARAMETERS: usize = 8;

static INSERT: LazyLock<String> = LazyLock::new(|| {
    // FAIL, not ABORT: no journal to undo the rows before, the transaction ends anyway.
    let mut sql =
        "INSERT OR FAIL INTO _postrider_queue (endpoint_id, place, due_at, created_at, priority, expires_at,
         correlation_id, event_type, content_type, headers, options, payload) VALUES "
            .to_owned();
    for row in 0..CHUNK {
        let first = SHARED_PARAMETERS + row * ROW_PARAMETERS + 1;
        let parameters: Vec<String> = (first..first + ROW_PARAMETERS).map(|n| format!("?{n}")).collect();
        let comma = if row == 0 { "" } else { ", " };
        let _ = write!(sql, "{comma}(?1, 0, ?2, ?2, {})", parameters.join(", "));
    }
    sql
});

/// The next messages from `at` on, when they are plain and wait behind the one just inserted: none of them can
/// be claimed in the same breath, because that one is due before them.
pub(super) fn behind_the_last<'a>(
    write: &Write<'_>,
    messages: &'a [NewMessage],
    at: usize,
) -> Option<&'a [NewMessage]> {
    let last = messages.get(at.checked_sub(1)?)?;
    let chunk = messages.get(at..at + CHUNK)?;
    let endpoint = write.known.by_name(&last.endpoint).ok()?.id;
    let waits = matches!(write.news.last(), Some(Arrival::Pending(pending)) if *pending == endpoint);
    let alike = |message: &NewMessage| is_plain(message) && message.endpoint == last.endpoint;
    (waits && is_plain(last) && chunk.iter().all(alike)).then_some(chunk)
}

fn is_plain(message: &NewMessage) -> bool {
    message.ordering_key.is_none() && message.idempotency_key.is_none() && message.scheduled_at.is_none()
}

/// A chunk that [`behind_the_last`] found.
pub(super) fn send(write: &mut Write<'_>, chunk: &[NewMessage]) -> Result<Vec<Sent>> {
    let endpoint = write.known.by_name(&chunk[0].endpoint)?.clone();
    for message in chunk {
        crate::send::check(message, &endpoint, write.known.settings())?;
    }
    make_room_for(write, &endpoint, chunk.len() as u64)?;
    let last = insert(write, endpoint.id.0, chunk).map_err(storage_error)?;
    write.newest = write.newest.max(last);
    write.counts.queued(endpoint.id, chunk.len() as i64);
    // Ids are given under the write lock, one after the other.
    let first = last + 1 - chunk.len() as i64;
    Ok((first..=last).map(|id| Sent { id: MessageId(id), duplicate: false }).collect())
}

/// The id of the last one.
fn insert(write: &Write<'_>, endpoint: i64, chunk: &[NewMessage]) -> rusqlite::Result<i64> {
    let mut statement = write.conn.prepare_cached(&INSERT)?;
    statement.raw_bind_parameter(1, endpoint)?;
    statement.raw_bind_parameter(2, micros_of(write.now))?;
    for (row, message) in chunk.iter().enumerate() {
        let at = SHARED_PARAMETERS + row * ROW_PARAMETERS;
        statement.raw_bind_parameter(at + 1, message.priority)?;
        statement.raw_bind_parameter(at + 2, message.expires_at.map(micros_of))?;
        statement.raw_bind_parameter(at + 3, message.correlation_id.map(|id| id.to_string()))?;
        statement.raw_bind_parameter(at + 4, &message.event_type)?;
        statement.raw_bind_parameter(at + 5, &message.content_type)?;
        statement.raw_bind_parameter(at + 6, headers_text(&message.headers))?;
        statement.raw_bind_parameter(at + 7, options_text(&message.options))?;
        statement.raw_bind_parameter(at + 8, &message.payload[..])?;
    }
    statement.raw_execute()?;
    Ok(write.conn.last_insert_rowid())
}
