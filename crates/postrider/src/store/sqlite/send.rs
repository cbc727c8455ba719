//! Send: check, find the holder of the idempotency key, insert. Used by the writer and in callers' transactions.

use std::sync::Arc;

use rusqlite::params;

use super::keys::{self, OrderingKey, QueuePlace};
use super::query::Query;
use super::row::{headers_text, micros_of, options_text};
use super::writer::Write;
use super::{archive, bulk, claim};
use crate::clock::truncated;
use crate::endpoint::Endpoint;
use crate::error::StoreError;
use crate::message::{Claim, Fence, Message, MessageId, NewMessage, NodeId, Sent, State};
use crate::store::{Arrival, Result};

/// Claims made while the message was inserted; a node's own batches count from 1.
const DIRECT_BATCH: i64 = 0;

/// All or nothing.
pub(super) fn send(write: &mut Write<'_>, messages: &[NewMessage]) -> Result<Vec<Sent>> {
    let limit = write.config.settings().max_batch_messages;
    if messages.len() as u64 > limit {
        let (field, setting) = ("messages", "max_batch_messages");
        return Err(StoreError::TooLarge { field, bytes: messages.len() as u64, limit, setting });
    }
    let mut sent = Vec::with_capacity(messages.len());
    while let Some(message) = messages.get(sent.len()) {
        let more = match bulk::behind_the_last(write, messages, sent.len()) {
            Some(chunk) => bulk::send(write, chunk).map(|more| sent.extend(more)),
            None => send_one(write, message).map(|more| sent.push(more)),
        };
        more.map_err(|error| without_its_own(error, messages, &sent))?;
    }
    Ok(sent)
}

/// The refused batch is rolled back, so the error neither counts its messages as queued nor names their ids.
fn without_its_own(error: StoreError, messages: &[NewMessage], sent: &[Sent]) -> StoreError {
    let mut own = messages.iter().zip(sent).filter(|(_, sent)| !sent.duplicate);
    match error {
        StoreError::QueueFull { queued, limit, endpoint } => {
            let counted =
                |message: &NewMessage| endpoint.as_ref().is_none_or(|name| *name == message.endpoint);
            let own = own.filter(|(message, _)| counted(message)).count();
            StoreError::QueueFull { queued: queued.saturating_sub(own as u64), limit, endpoint }
        }
        StoreError::IdempotencyConflict { holder, .. } => {
            let holder = holder.filter(|id| !own.any(|(_, sent)| sent.id == *id));
            StoreError::IdempotencyConflict { holder, at: sent.len() }
        }
        error => error,
    }
}

pub(super) fn send_one(write: &mut Write<'_>, message: &NewMessage) -> Result<Sent> {
    let endpoint = write.config.by_name(&message.endpoint)?.clone();
    crate::send::check_all_but_payload(message, &endpoint, write.config.settings())?;
    if let Some(id) = holder_of_idempotency_key(write, message, &endpoint)? {
        return Ok(Sent { id, duplicate: true });
    }
    make_room_for(write, &endpoint, 1)?;
    queue(write, message, &endpoint)
}

/// Sends a checked message for which there is room.
pub(super) fn send_checked(
    write: &mut Write<'_>,
    message: &NewMessage,
    endpoint: &Arc<Endpoint>,
) -> Result<Sent> {
    match holder_of_idempotency_key(write, message, endpoint)? {
        Some(id) => Ok(Sent { id, duplicate: true }),
        None => queue(write, message, endpoint),
    }
}

fn queue(write: &mut Write<'_>, message: &NewMessage, endpoint: &Arc<Endpoint>) -> Result<Sent> {
    let id = insert(write, message, endpoint)?;
    write.counts.queued(endpoint.id, 1);
    Ok(Sent { id, duplicate: false })
}

/// Refuses when the queue, or the endpoint's part of it, would hold more than its limit.
pub(super) fn make_room_for(write: &mut Write<'_>, endpoint: &Endpoint, more: u64) -> Result<()> {
    room_for(write, more)?;
    room_at(write, endpoint, more)
}

/// A replay leaves a tenth of the queue, and of the endpoint's part of it, free for senders.
pub(super) fn room_to_spare(write: &mut Write<'_>, endpoint: &Endpoint) -> Result<()> {
    let full =
        |queued: u64, limit: u64, endpoint: Option<String>| match limit > 0 && queued >= limit - limit / 10 {
            true => Err(StoreError::QueueFull { queued, limit, endpoint }),
            false => Ok(()),
        };
    full(write.counts.all_queued(write.conn)?, write.config.settings().max_queue_size, None)?;
    let limit = endpoint.options.max_queue_size.unwrap_or(0);
    full(write.counts.endpoint_queued(write.conn, endpoint.id)?, limit, Some(endpoint.name.to_string()))
}

pub(super) fn room_for(write: &mut Write<'_>, more: u64) -> Result<()> {
    let limit = write.config.settings().max_queue_size;
    if limit > 0 {
        let queued = write.counts.all_queued(write.conn)?;
        if queued + more > limit {
            return Err(StoreError::QueueFull { queued, limit, endpoint: None });
        }
    }
    Ok(())
}

pub(super) fn room_at(write: &mut Write<'_>, endpoint: &Endpoint, more: u64) -> Result<()> {
    if let Some(limit) = endpoint.options.max_queue_size.filter(|limit| *limit > 0) {
        let queued = write.counts.endpoint_queued(write.conn, endpoint.id)?;
        if queued + more > limit {
            let endpoint = Some(endpoint.name.to_string());
            return Err(StoreError::QueueFull { queued, limit, endpoint });
        }
    }
    Ok(())
}

pub(super) fn holder_of_idempotency_key(
    write: &mut Write<'_>,
    message: &NewMessage,
    endpoint: &Endpoint,
) -> Result<Option<MessageId>> {
    let Some(key) = &message.idempotency_key else { return Ok(None) };
    let queued: Option<(i64, i64, Option<i64>, bool)> = write.conn.find(
        "SELECT id, place, expires_at, payload IS ?3 AND content_type = ?4 FROM _postrider_queue
         WHERE endpoint_id = ?1 AND idempotency_key = ?2",
        params![endpoint.id.0, key, &message.payload[..], message.content_type],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2).unwrap_or(None), row.get(3)?)),
    )?;
    if let Some((id, place, expires_at, same)) = queued {
        let claimed = QueuePlace::from_column(place) == QueuePlace::Claimed;
        if expires_at.is_some_and(|at| at <= micros_of(write.now)) && !claimed {
            archive::finish(write, MessageId(id), State::Expired)?;
            return Ok(None);
        }
        return same_or_conflict(MessageId(id), same).map(Some);
    }
    let reserved: Option<(i64, bool)> = write.conn.find(
        "SELECT message_id, payload IS ?3 AND content_type IS ?4 FROM _postrider_reservations
         WHERE endpoint_id = ?1 AND idempotency_key = ?2 AND until > ?5",
        params![endpoint.id.0, key, &message.payload[..], message.content_type, micros_of(write.now)],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    reserved.map(|(id, same)| same_or_conflict(MessageId(id), same)).transpose()
}

fn same_or_conflict(holder: MessageId, same: bool) -> Result<MessageId> {
    if same { Ok(holder) } else { Err(StoreError::IdempotencyConflict { holder: Some(holder), at: 0 }) }
}

fn insert(write: &mut Write<'_>, message: &NewMessage, endpoint: &Arc<Endpoint>) -> Result<MessageId> {
    let now = micros_of(write.now);
    let due_at = message.scheduled_at.map_or(now, |at| micros_of(at).max(now));
    let key = message
        .ordering_key
        .as_ref()
        .map(|key| OrderingKey { scope: keys::scope_of(endpoint), key: key.clone().into() });
    let place = match &key {
        Some(key) if keys::head(write, key)?.is_some() || keys::is_held(write, key)? => QueuePlace::BehindKey,
        _ => QueuePlace::Ready,
    };
    let direct =
        if place == QueuePlace::Ready && due_at <= now { reserve(write, message, endpoint)? } else { None };
    let inserted = insert_row(write, message, endpoint, due_at, key.as_ref(), place, direct);
    if let (Err(_), Some(node)) = (&inserted, direct) {
        write.listeners.give_back(node, endpoint.id);
    }
    let id = inserted?;
    write.newest = write.newest.max(id.0);
    match direct {
        Some(node) => write.news.push(Arrival::Claimed(Claim {
            message: Arc::new(queued(message, endpoint, id, write)),
            fence: Fence { node, batch: DIRECT_BATCH },
            attempt: 1,
            attempts_before: 0,
            losses: 0,
        })),
        None if place == QueuePlace::Ready => write.tell_pending(endpoint.id),
        None => {}
    }
    Ok(id)
}

/// A node with room, when the endpoint may be delivered to and nothing is due before this message.
fn reserve(write: &Write<'_>, message: &NewMessage, endpoint: &Endpoint) -> Result<Option<NodeId>> {
    let expired = message.expires_at.is_some_and(|at| at <= write.now);
    if expired || endpoint.options.rate_limit.is_some() || claim::not_before(write, endpoint).is_some() {
        return Ok(None);
    }
    let Some(node) = write.listeners.reserve(endpoint.id) else { return Ok(None) };
    let waiting = claim::earliest_due(write.conn, endpoint.id);
    if waiting.as_ref().is_ok_and(|due| due.is_none_or(|due| due > write.now)) {
        return Ok(Some(node));
    }
    write.listeners.give_back(node, endpoint.id);
    waiting.map(|_| None)
}

fn insert_row(
    write: &Write<'_>,
    message: &NewMessage,
    endpoint: &Endpoint,
    due_at: i64,
    key: Option<&OrderingKey>,
    place: QueuePlace,
    direct: Option<NodeId>,
) -> Result<MessageId> {
    let now = micros_of(write.now);
    let (place, attempts, node, started_at) = match direct {
        Some(node) => (QueuePlace::Claimed, 1, node.0, now),
        None => (place, 0, 0, 0),
    };
    write.conn.insert(
        "INSERT INTO _postrider_queue (endpoint_id, place, priority, due_at, attempts, node_id, started_at,
           key_scope, ordering_key, created_at, scheduled_at, expires_at, idempotency_key, correlation_id,
           event_type, content_type, headers, options, payload, key_position, behind_key)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
           ?2 = 1)",
        params![
            endpoint.id.0,
            place as i64,
            message.priority,
            due_at,
            attempts,
            node,
            started_at,
            key.map(|key| key.scope),
            key.map(|key| &key.key),
            now,
            message.scheduled_at.map(micros_of),
            message.expires_at.map(micros_of),
            message.idempotency_key,
            message.correlation_id.map(|id| id.to_string()),
            message.event_type,
            message.content_type,
            headers_text(&message.headers),
            options_text(&message.options),
            &message.payload[..],
            key.map(|key| next_position(write, key)).transpose()?,
        ],
    )
    .map(MessageId)
}

/// After all messages of its key. Positions are given under the write lock, so their order is commit order.
fn next_position(write: &Write<'_>, key: &OrderingKey) -> Result<i64> {
    write.conn.value(
        "SELECT max(coalesce(max(key_position), 0), 0) + 1 FROM _postrider_queue
         WHERE key_scope = ?1 AND ordering_key = ?2",
        params![key.scope, key.key],
    )
}

fn queued(message: &NewMessage, endpoint: &Endpoint, id: MessageId, write: &Write<'_>) -> Message {
    Message {
        id,
        endpoint: endpoint.id,
        payload: message.payload.clone(),
        content_type: message.content_type.clone(),
        headers: message.headers.clone(),
        options: message.options.clone(),
        priority: message.priority,
        expires_at: message.expires_at.map(truncated),
        correlation_id: message.correlation_id,
        ordering_key: message.ordering_key.clone(),
        event_type: message.event_type.clone(),
        created_at: write.now,
    }
}
