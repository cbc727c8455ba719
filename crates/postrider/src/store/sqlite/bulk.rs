//! Plain messages of a batch or a fan-out, several in one statement: SQLite then opens the queue's many indexes once.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::claim;
use super::publish::OutgoingMessage;
use super::row::{headers_text, micros_of, options_text};
use super::send::make_room_for;
use super::writer::Write;
use crate::endpoint::{Endpoint, EndpointId};
use crate::message::{MessageId, NewMessage, Sent};
use crate::store::{Arrival, Result};

/// Messages in one statement: as many as possible by the larger one, the rest by the smaller one. Larger statements
/// gain little.
const CHUNKS: [usize; 2] = [16, 4];
const SHARED_PARAMETERS: usize = 1;
const ROW_PARAMETERS: usize = 9;

static INSERTS: LazyLock<[String; 2]> = LazyLock::new(|| CHUNKS.map(insert_of));

fn insert_of(rows: usize) -> String {
    // FAIL, not ABORT: SQLite then keeps no journal to undo single rows; an error ends the transaction anyway.
    let mut sql =
        "INSERT OR FAIL INTO _postrider_queue (place, due_at, created_at, endpoint_id, priority, expires_at,
         correlation_id, event_type, content_type, headers, options, payload) VALUES "
            .to_owned();
    for row in 0..rows {
        let first = SHARED_PARAMETERS + row * ROW_PARAMETERS + 1;
        let parameters: Vec<String> = (first..first + ROW_PARAMETERS).map(|n| format!("?{n}")).collect();
        let comma = if row == 0 { "" } else { ", " };
        let _ = write!(sql, "{comma}(0, ?1, ?1, {})", parameters.join(", "));
    }
    sql
}

/// As many as the largest statement takes.
fn next_chunk<T>(rest: &[T], fits: impl Fn(&T) -> bool) -> Option<&[T]> {
    let fitting = rest.iter().take(CHUNKS[0]).take_while(|one| fits(one)).count();
    CHUNKS.into_iter().find(|size| *size <= fitting).map(|size| &rest[..size])
}

/// The next messages from `at` on, when they are plain and wait behind the one just inserted: none of them can
/// be claimed by this transaction, because that one is due before them.
pub(super) fn behind_the_last<'a>(
    write: &Write<'_>,
    messages: &'a [NewMessage],
    at: usize,
) -> Option<&'a [NewMessage]> {
    let last = messages.get(at.checked_sub(1)?)?;
    let endpoint = write.config.by_name(&last.endpoint).ok()?.id;
    let waits = matches!(write.news.last(), Some(Arrival::Pending(pending)) if *pending == endpoint);
    let alike = |message: &NewMessage| is_plain(message) && message.endpoint == last.endpoint;
    if waits && is_plain(last) { next_chunk(&messages[at..], alike) } else { None }
}

/// The next messages of a fan-out, when they are plain and no node would claim one of them as it is inserted.
pub(super) fn waiting<'a>(
    write: &Write<'_>,
    outgoing: &'a [OutgoingMessage],
) -> Option<&'a [OutgoingMessage]> {
    let waits =
        |endpoint: &Endpoint| write.listeners.is_empty() || claim::not_before(write, endpoint).is_some();
    next_chunk(outgoing, |one| is_plain(&one.message) && waits(&one.endpoint))
}

/// A chunk that [`waiting`] found; all of it was checked, and has room.
pub(super) fn queue(write: &mut Write<'_>, chunk: &[OutgoingMessage]) -> Result<()> {
    let rows = chunk.iter().map(|one| (one.endpoint.id, &one.message));
    write.newest = write.newest.max(insert(write, rows)?);
    for one in chunk {
        write.counts.queued(one.endpoint.id, 1);
        write.tell_pending(one.endpoint.id);
    }
    Ok(())
}

fn is_plain(message: &NewMessage) -> bool {
    message.ordering_key.is_none() && message.idempotency_key.is_none() && message.scheduled_at.is_none()
}

/// A chunk that [`behind_the_last`] found.
pub(super) fn send(write: &mut Write<'_>, chunk: &[NewMessage]) -> Result<Vec<Sent>> {
    let endpoint = write.config.by_name(&chunk[0].endpoint)?.clone();
    for message in chunk {
        crate::send::check_all_but_payload(message, &endpoint, write.config.settings())?;
    }
    make_room_for(write, &endpoint, chunk.len() as u64)?;
    let rows = chunk.iter().map(|message| (endpoint.id, message));
    let last = insert(write, rows)?;
    write.newest = write.newest.max(last);
    write.counts.queued(endpoint.id, chunk.len() as i64);
    // Ids are given under the write lock, one after the other.
    let first = last + 1 - chunk.len() as i64;
    Ok((first..=last).map(|id| Sent { id: MessageId(id), duplicate: false }).collect())
}

/// The id of the last one.
fn insert<'a>(
    write: &Write<'_>,
    rows: impl ExactSizeIterator<Item = (EndpointId, &'a NewMessage)>,
) -> Result<i64> {
    let size = CHUNKS.iter().position(|size| *size == rows.len()).expect("a chunk has one of the sizes");
    let mut statement = write.conn.prepare_cached(&INSERTS[size])?;
    statement.raw_bind_parameter(1, micros_of(write.now))?;
    for (row, (endpoint, message)) in rows.enumerate() {
        let at = SHARED_PARAMETERS + row * ROW_PARAMETERS;
        statement.raw_bind_parameter(at + 1, endpoint.0)?;
        statement.raw_bind_parameter(at + 2, message.priority)?;
        statement.raw_bind_parameter(at + 3, message.expires_at.map(micros_of))?;
        statement.raw_bind_parameter(at + 4, message.correlation_id.map(|id| id.to_string()))?;
        statement.raw_bind_parameter(at + 5, &message.event_type)?;
        statement.raw_bind_parameter(at + 6, &message.content_type)?;
        statement.raw_bind_parameter(at + 7, headers_text(&message.headers))?;
        statement.raw_bind_parameter(at + 8, options_text(&message.options))?;
        statement.raw_bind_parameter(at + 9, &message.payload[..])?;
    }
    statement.raw_execute()?;
    Ok(write.conn.last_insert_rowid())
}
