//! Redrive: dead letters go back to the queue. Many of them in steps, so that no transaction is long.
//!
//! The letters are selected once, by a reader. A step takes whole ordering keys: if only half of a key's letters were
//! back, a message that was sent later could be delivered before the other half.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use rusqlite::{Connection, params, params_from_iter};
use serde_json::json;

use super::dlq;
use super::invalid_events;
use super::keys::{self, OrderingKey, QueuePlace};
use super::query::Query;
use super::row::micros_of;
use super::writer::Write;
use super::{events, send};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::{DlqFilter, DlqStatus, INVALID_EVENT, Redrive, Result, Room};

/// Letters in one step, unless a single key has more: about 4 ms.
const STEP_LETTERS: usize = 100;

/// Which letters can be put back; `d` is the letter.
pub(super) const REDRIVABLE: &str = "d.status = 'failed' AND d.payload IS NOT NULL AND (d.reason = 'invalid_event' \
     OR d.endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE dropped_at IS NULL))";

/// What a redrive puts back, whole keys together.
pub(super) struct LettersToRedrive {
    selection: Redrive,
    letters: Vec<PlannedLetter>,
}

struct PlannedLetter {
    dead: Redrivable,
    /// The same for all letters of a key. In the order in which the first of each group was sent.
    group: usize,
}

/// A letter that can be put back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Redrivable {
    pub(super) id: i64,
    pub(super) endpoint: EndpointId,
    /// An event that could not be fanned out.
    pub(super) is_event: bool,
}

/// How far it has come.
#[derive(Clone, Copy, Default)]
pub(super) struct RedriveCursor {
    looked_at: usize,
    pub(super) redriven: u64,
    /// The same for all, so that they are claimed in the order of their ids.
    due_at: Option<Timestamp>,
    /// Its row in the event log: the first step inserts it, the others update it.
    event: Option<i64>,
}

impl LettersToRedrive {
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

    pub(super) fn is_done(&self, progress: RedriveCursor) -> bool {
        progress.looked_at == self.letters.len()
    }

    fn next_step(&self, progress: RedriveCursor) -> &[PlannedLetter] {
        let left = &self.letters[progress.looked_at..];
        let is_end = |at: &usize| *at >= STEP_LETTERS && left[*at].group != left[at - 1].group;
        &left[..(1..left.len()).find(is_end).unwrap_or(left.len())]
    }
}

/// Puts the next letters back, as far as they are still `failed`: redriving twice at once yields one message.
pub(super) fn step(
    write: &mut Write<'_>,
    plan: &LettersToRedrive,
    before: RedriveCursor,
) -> Result<RedriveCursor> {
    if let Redrive::One(dlq_id) = plan.selection {
        // It may have been redriven or discarded since it was selected.
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
    Ok(RedriveCursor { looked_at: before.looked_at + letters.len(), redriven, due_at: Some(due_at), event })
}

/// Refuses before anything changes when not all of them fit. Senders are checked against the queue as it is between
/// two steps, so the queue may exceed the limit by what they send.
fn make_room(write: &mut Write<'_>, plan: &LettersToRedrive) -> Result<()> {
    room_for(write, plan.letters.iter().map(|letter| letter.dead.endpoint))
}

/// Refuses unless there is room for one letter to each of these endpoints.
pub(super) fn room_for(
    write: &mut Write<'_>,
    endpoints: impl ExactSizeIterator<Item = EndpointId>,
) -> Result<()> {
    send::room_for(write, endpoints.len() as u64)?;
    let mut projected: BTreeMap<EndpointId, u64> = BTreeMap::new();
    endpoints.for_each(|endpoint| *projected.entry(endpoint).or_default() += 1);
    for (endpoint, more) in projected {
        if let Some(endpoint) = write.config.by_id(endpoint).cloned() {
            send::room_at(write, &endpoint, more)?;
        }
    }
    Ok(())
}

/// How many letters the limits of the queue and of these endpoints allow.
pub(super) fn room_left(write: &mut Write<'_>, endpoints: impl Iterator<Item = EndpointId>) -> Result<Room> {
    let mut room = Vec::new();
    let mut put = |of, limit: u64, queued: u64| {
        if limit > 0 {
            room.push((of, limit.saturating_sub(queued)));
        }
    };
    put(None, write.config.settings().max_queue_size, write.counts.all_queued(write.conn)?);
    for endpoint in BTreeSet::from_iter(endpoints) {
        let limit = write.config.by_id(endpoint).and_then(|endpoint| endpoint.options.max_queue_size);
        put(Some(endpoint), limit.unwrap_or(0), write.counts.endpoint_queued(write.conn, endpoint)?);
    }
    Ok(room.into_iter().collect())
}

/// One letter by its id; the error says why it cannot be redriven.
fn one(conn: &Connection, dlq_id: i64) -> Result<PlannedLetter> {
    let (id, endpoint) = dlq::redrivable(conn, dlq_id)?;
    let (is_event, dropped): (bool, bool) = conn.row(
        "SELECT d.reason = ?2, e.dropped_at IS NOT NULL
         FROM _postrider_dlq d JOIN _postrider_endpoints e ON e.id = d.endpoint_id WHERE d.id = ?1",
        params![dlq_id, INVALID_EVENT],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    if dropped && !is_event {
        return Err(StoreError::Conflict(format!("the endpoint of dead letter {dlq_id} was dropped")));
    }
    Ok(PlannedLetter { dead: Redrivable { id, endpoint, is_event }, group: 0 })
}

/// The redrivable letters of the filter, by message id, which is the order in which they were sent.
fn failed(conn: &Connection, filter: &DlqFilter) -> Result<Vec<PlannedLetter>> {
    let limit = if filter.limit == 0 { i64::MAX } else { filter.limit as i64 };
    let (conditions, mut values) = dlq::conditions(conn, filter)?;
    values.push(limit.into());
    let mut groups: HashMap<OrderingKey, usize> = HashMap::new();
    let sql = format!(
        "SELECT d.id, d.endpoint_id, d.key_scope, d.ordering_key, d.reason = '{INVALID_EVENT}'
         FROM _postrider_dlq d
         WHERE {REDRIVABLE} AND {conditions} ORDER BY d.message_id, d.id LIMIT ?"
    );
    let mut own = 0..;
    conn.rows(&sql, params_from_iter(values), |row| {
        let own = own.next().expect("numbers do not end");
        let group = match OrderingKey::of(row.get(2)?, row.get(3)?) {
            Some(key) => *groups.entry(key).or_insert(own),
            None => own,
        };
        let dead = Redrivable { id: row.get(0)?, endpoint: EndpointId(row.get(1)?), is_event: row.get(4)? };
        Ok(PlannedLetter { dead, group })
    })
}

/// Puts them back in the order in which they were sent; how many. With `alone` an event's error is returned, otherwise
/// the letter is skipped.
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

/// The budget restarts, attempt numbers continue, expiry and idempotency key are cleared. False when it was redriven or
/// discarded meanwhile.
fn requeue(write: &mut Write<'_>, dlq_id: i64, endpoint: EndpointId, due_at: Timestamp) -> Result<bool> {
    if write.config.by_id(endpoint).is_none() {
        return Ok(false);
    }
    let Some((message, key)) = message_if_failed(write.conn, dlq_id)? else { return Ok(false) };
    dlq::stop_holding(write, dlq_id)?;
    // Lower than the position of any sent message.
    let position = key.is_some().then_some(message - (1 << 62));
    let place = match (&key, position) {
        (Some(key), Some(position)) => place_at(write, key, position)?,
        _ => QueuePlace::Ready,
    };
    write.conn.run(
        "INSERT INTO _postrider_queue (id, endpoint_id, place, priority, due_at, attempts, attempts_before,
           key_scope, ordering_key, key_position, behind_key, created_at, correlation_id, event_type,
           last_error, content_type, headers, options, payload)
         SELECT message_id, endpoint_id, ?2, priority, ?3, attempts, attempts,
           key_scope, ordering_key, ?4, ?2 = 1, created_at, correlation_id, event_type,
           last_error, content_type, headers, options, payload
         FROM _postrider_dlq WHERE id = ?1",
        params![dlq_id, place as i64, micros_of(due_at), position],
    )?;
    dlq::end_dead_letter(write, dlq_id, endpoint, DlqStatus::Redriven)?;
    write.counts.queued(endpoint, 1);
    write.tell_freed(Some(endpoint))?;
    Ok(true)
}

/// None when the letter is not `failed` any more, or erased; else its message, and its key if it has one.
fn message_if_failed(conn: &Connection, dlq_id: i64) -> Result<Option<(i64, Option<OrderingKey>)>> {
    conn.find(
        "SELECT message_id, key_scope, ordering_key FROM _postrider_dlq
         WHERE id = ?1 AND status = 'failed' AND payload IS NOT NULL",
        [dlq_id],
        |row| Ok((row.get(0)?, OrderingKey::of(row.get(1)?, row.get(2)?))),
    )
}

/// The place of a message that goes before all of its key, except redriven ones that were sent earlier.
fn place_at(write: &mut Write<'_>, key: &OrderingKey, position: i64) -> Result<QueuePlace> {
    let Some(head) = keys::head(write, key)? else {
        return Ok(if keys::is_held(write, key)? { QueuePlace::BehindKey } else { QueuePlace::Ready });
    };
    if head.position < position {
        // The head may have waited for this letter.
        let unblocked = keys::advance_if_idle(write, key)?;
        write.tell_freed(unblocked)?;
        return Ok(QueuePlace::BehindKey);
    }
    Ok(match head.place {
        QueuePlace::Ready | QueuePlace::OnProbation => {
            keys::set_place(write, head.id, QueuePlace::BehindKey)?;
            QueuePlace::Ready
        }
        // The head waited only for this letter, so the letter goes first. Otherwise one of the key is claimed, or another
        // dead letter holds the key.
        QueuePlace::BehindKey if !keys::has_claimed(write, key)? && !keys::is_held(write, key)? => {
            QueuePlace::Ready
        }
        QueuePlace::BehindKey | QueuePlace::Claimed => QueuePlace::BehindKey,
    })
}
