//! Redrive: dead letters go back to the queue. Many of them in steps, so that nobody waits long for the file.
//!
//! What is selected is looked up once, beside the writer, and fixed from then on. A step takes whole ordering
//! keys: a key whose letters came back by halves would go on with what was sent later.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use serde_json::json;

use super::dlq;
use super::invalid_events;
use super::keys::{self, Key, Place};
use super::row::micros_of;
use super::writer::Write;
use super::{events, send, storage_error};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::{DlqFilter, DlqStatus, INVALID_EVENT, Redrive, Result, Room};

/// Letters in one step, unless a single key has more: about 4 ms.
const STEP_LETTERS: usize = 100;

/// What can be put back at all; `d` is the letter.
pub(super) const REDRIVABLE: &str = "d.status = 'failed' AND d.payload IS NOT NULL AND (d.reason = 'invalid_event' \
     OR d.endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE dropped_at IS NULL))";

/// What a redrive is going to put back, whole keys together.
pub(super) struct Plan {
    selection: Redrive,
    letters: Vec<Letter>,
}

struct Letter {
    dead: Redrivable,
    /// Those of one key have the same; numbered in the order in which the first of each was sent.
    group: usize,
}

/// A letter that can be put back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Redrivable {
    pub(super) id: i64,
    pub(super) endpoint: EndpointId,
    /// One that could not be fanned out.
    pub(super) is_event: bool,
}

/// How far it has come.
#[derive(Clone, Copy, Default)]
pub(super) struct Progress {
    looked_at: usize,
    pub(super) redriven: u64,
    /// All are due at one time, so that among them the order is that of their ids.
    due_at: Option<Timestamp>,
    /// It is logged once, from the first step on.
    event: Option<i64>,
}

impl Plan {
    pub(super) fn new(conn: &Connection, selection: Redrive) -> Result<Self> {
        let all = DlqFilter::default();
        let mut letters = match &selection {
            Redrive::One(dlq_id) => vec![one(conn, *dlq_id)?],
            Redrive::Endpoint(name) => failed(conn, &DlqFilter { endpoint: Some(name.clone()), ..all })?,
            Redrive::All => failed(conn, &all)?,
            Redrive::Matching(filter) => failed(conn, filter)?,
        };
        letters.sort_by_key(|letter| letter.group);
        Ok(Self { selection, letters })
    }

    pub(super) fn is_done(&self, progress: Progress) -> bool {
        progress.looked_at == self.letters.len()
    }

    fn next_step(&self, progress: Progress) -> &[Letter] {
        let left = &self.letters[progress.looked_at..];
        let is_end = |at: &usize| *at >= STEP_LETTERS && left[*at].group != left[at - 1].group;
        &left[..(1..left.len()).find(is_end).unwrap_or(left.len())]
    }
}

/// Puts the next letters back, as far as they are still `failed`: redriving twice at once yields one message.
pub(super) fn step(write: &mut Write<'_>, plan: &Plan, before: Progress) -> Result<Progress> {
    if let Redrive::One(dlq_id) = plan.selection {
        // Somebody else may have been first since it was looked up.
        one(write.conn, dlq_id)?;
    }
    if before.looked_at == 0 {
        make_room(write, plan)?;
    }
    let letters = plan.next_step(before);
    let due_at = before.due_at.unwrap_or(write.now);
    let alone = matches!(plan.selection, Redrive::One(_));
    let dead: Vec<Redrivable> = letters.iter().map(|letter| letter.dead).collect();
    let redriven = before.redriven + put_back(write, &dead, due_at, alone)?;
    let detail = json!({ "messages": redriven, "selection": plan.selection });
    let event = match before.event {
        Some(event) => events::amend(write, event, &detail).map(|()| Some(event))?,
        None if redriven > 0 => Some(events::begin(write, "redrive", None, &detail)?),
        None => None,
    };
    Ok(Progress { looked_at: before.looked_at + letters.len(), redriven, due_at: Some(due_at), event })
}

/// Refused before anything has changed when not all of them fit. What is sent while the steps go on is checked
/// by itself, so the limit may be passed by that much.
fn make_room(write: &mut Write<'_>, plan: &Plan) -> Result<()> {
    room_for(write, plan.letters.iter().map(|letter| letter.dead.endpoint))
}

/// A letter back to each of these endpoints.
pub(super) fn room_for(
    write: &mut Write<'_>,
    endpoints: impl ExactSizeIterator<Item = EndpointId>,
) -> Result<()> {
    send::room_for(write, endpoints.len() as u64)?;
    let mut projected: BTreeMap<EndpointId, u64> = BTreeMap::new();
    endpoints.for_each(|endpoint| *projected.entry(endpoint).or_default() += 1);
    for (endpoint, more) in projected {
        if let Some(endpoint) = write.known.by_id(endpoint).cloned() {
            send::room_at(write, &endpoint, more)?;
        }
    }
    Ok(())
}

/// How many letters could go back, as far as limits of the queue or of these endpoints say.
pub(super) fn room_left(write: &mut Write<'_>, endpoints: impl Iterator<Item = EndpointId>) -> Result<Room> {
    let mut room = Vec::new();
    let mut put = |of, limit: u64, queued: u64| {
        if limit > 0 {
            room.push((of, limit.saturating_sub(queued)));
        }
    };
    put(None, write.known.settings().max_queue_size, write.counts.all_queued(write.conn)?);
    for endpoint in BTreeSet::from_iter(endpoints) {
        let limit = write.known.by_id(endpoint).and_then(|endpoint| endpoint.options.max_queue_size);
        put(Some(endpoint), limit.unwrap_or(0), write.counts.endpoint_queued(write.conn, endpoint)?);
    }
    Ok(room.into_iter().collect())
}

/// By its own id, so it is said why it cannot be.
fn one(conn: &Connection, dlq_id: i64) -> Result<Letter> {
    let (id, endpoint) = dlq::redrivable(conn, dlq_id)?;
    let (is_event, dropped): (bool, bool) = conn
        .prepare_cached(
            "SELECT d.reason = ?2, e.dropped_at IS NOT NULL
             FROM _postrider_dlq d JOIN _postrider_endpoints e ON e.id = d.endpoint_id WHERE d.id = ?1",
        )
        .and_then(|mut statement| {
            statement.query_row(params![dlq_id, INVALID_EVENT], |row| Ok((row.get(0)?, row.get(1)?)))
        })
        .map_err(storage_error)?;
    if dropped && !is_event {
        return Err(StoreError::Conflict(format!("the endpoint of dead letter {dlq_id} was dropped")));
    }
    Ok(Letter { dead: Redrivable { id, endpoint, is_event }, group: 0 })
}

/// What of the filter can be redriven, by message id: that is the order in which they were sent.
fn failed(conn: &Connection, filter: &DlqFilter) -> Result<Vec<Letter>> {
    let limit = if filter.limit == 0 { i64::MAX } else { filter.limit as i64 };
    let (conditions, mut values) = dlq::conditions(conn, filter)?;
    values.push(limit.into());
    let mut groups: HashMap<Key, usize> = HashMap::new();
    conn.prepare_cached(&format!(
        "SELECT d.id, d.endpoint_id, d.key_scope, d.ordering_key, d.reason = '{INVALID_EVENT}' FROM _postrider_dlq d
         WHERE {REDRIVABLE} AND {conditions} ORDER BY d.message_id, d.id LIMIT ?"
    ))
    .and_then(|mut statement| {
        let mut rows = statement.query(params_from_iter(values))?;
        let mut letters = Vec::new();
        while let Some(row) = rows.next()? {
            let own = letters.len();
            let group = match Key::of(row.get(2)?, row.get(3)?) {
                Some(key) => *groups.entry(key).or_insert(own),
                None => own,
            };
            let dead =
                Redrivable { id: row.get(0)?, endpoint: EndpointId(row.get(1)?), is_event: row.get(4)? };
            letters.push(Letter { dead, group });
        }
        Ok(letters)
    })
    .map_err(storage_error)
}

/// How many of them went back; they are in the order in which they were sent. One that is redriven alone may fail.
pub(super) fn put_back(
    write: &mut Write<'_>,
    letters: &[Redrivable],
    due_at: Timestamp,
    alone: bool,
) -> Result<u64> {
    let mut done = 0;
    for letter in letters.iter().filter(|letter| !letter.is_event) {
        done += u64::from(requeue(write, letter.id, letter.endpoint, due_at)?);
    }
    for letter in letters.iter().filter(|letter| letter.is_event) {
        done += u64::from(invalid_events::publish_again(write, letter.id, !alone)?);
    }
    Ok(done)
}

/// The budget restarts while attempt numbers go on; expiry and idempotency key are cleared. False when somebody
/// else was first.
fn requeue(write: &mut Write<'_>, dlq_id: i64, endpoint: EndpointId, due_at: Timestamp) -> Result<bool> {
    if write.known.by_id(endpoint).is_none() {
        return Ok(false);
    }
    let Some((message, key)) = message_if_failed(write.conn, dlq_id)? else { return Ok(false) };
    dlq::stop_holding(write, dlq_id)?;
    // No sender gives one as low as this.
    let position = key.is_some().then_some(message - (1 << 62));
    let place = match (&key, position) {
        (Some(key), Some(position)) => place_at(write, key, position)?,
        _ => Place::Ready,
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
            statement.execute(params![dlq_id, place as i64, micros_of(due_at), position])
        })
        .map_err(storage_error)?;
    dlq::end_dead_letter(write, dlq_id, endpoint, DlqStatus::Redriven)?;
    write.counts.queued(endpoint, 1);
    write.tell_freed(Some(endpoint))?;
    Ok(true)
}

/// None when the letter is not `failed` any more, or erased; else its message, and its key if it has one.
fn message_if_failed(conn: &Connection, dlq_id: i64) -> Result<Option<(i64, Option<Key>)>> {
    conn.prepare_cached(
        "SELECT message_id, key_scope, ordering_key FROM _postrider_dlq
         WHERE id = ?1 AND status = 'failed' AND payload IS NOT NULL",
    )
    .and_then(|mut statement| {
        statement.query_row([dlq_id], |row| Ok((row.get(0)?, Key::of(row.get(1)?, row.get(2)?)))).optional()
    })
    .map_err(storage_error)
}

/// The place of a message that is put before everything of its key, but behind those put back that were sent before it.
fn place_at(write: &mut Write<'_>, key: &Key, position: i64) -> Result<Place> {
    let Some(head) = keys::head(write, key)? else {
        return Ok(if keys::is_held(write, key)? { Place::Blocked } else { Place::Ready });
    };
    if head.position < position {
        // It may have waited for this very letter.
        let unblocked = keys::advance_if_idle(write, key)?;
        write.tell_freed(unblocked)?;
        return Ok(Place::Blocked);
    }
    Ok(match head.place {
        Place::Ready | Place::Suspect => {
            keys::set_place(write, head.id, Place::Blocked)?;
            Place::Ready
        }
        // One of the key is claimed, or the key is still held by another dead letter. A head that only
        // waited for the dead letter just taken away is not followed but preceded.
        Place::Blocked if !keys::has_claimed(write, key)? && !keys::is_held(write, key)? => Place::Ready,
        Place::Blocked | Place::Claimed => Place::Blocked,
    })
}
