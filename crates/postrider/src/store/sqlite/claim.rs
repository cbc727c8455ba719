//! Claim: find what is due, count the attempt, hand it out. Never scans what is not due.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::keys::Place;
use super::row::{self, MESSAGE_COLUMNS, at, id_list, micros_of};
use super::writer::Write;
use super::{archive, nodes, storage_error};
use crate::breaker::CircuitState;
use crate::endpoint::{Endpoint, EndpointId};
use crate::message::{Claim, Fence, MessageId, State};
use crate::protocol::max_attempts_option;
use crate::store::{ClaimRequest, Claimed, Expired, NextDue, Pick, Result, Suspect, Waiting, Want};

/// How far a probe looks for a message with fewer attempts.
const PROBE_SCAN_MAX: usize = 1000;
/// Expired messages met on the way are archived, but not endlessly in one transaction.
const EXPIRED_PER_WANT_MAX: usize = 256;

pub(super) fn claim(write: &mut Write<'_>, request: &ClaimRequest) -> Result<Claimed> {
    nodes::check_live(write, request.node)?;
    let mut claimed = Claimed::default();
    for want in &request.wants {
        let next = claim_want(write, request, want, &mut claimed)?;
        claimed.next.push((want.endpoint, next));
    }
    Ok(claimed)
}

fn claim_want(
    write: &mut Write<'_>,
    request: &ClaimRequest,
    want: &Want,
    claimed: &mut Claimed,
) -> Result<NextDue> {
    let Some(endpoint) = write.known.by_id(want.endpoint).cloned() else { return Ok(NextDue::Nothing) };
    let probing = match (&want.pick, endpoint.circuit.state) {
        (Pick::Probe, CircuitState::HalfOpen { probe: Some(probe) }) => probe.node == request.node,
        _ => false,
    };
    if !probing && let Some(next) = not_before(write, &endpoint) {
        return Ok(next);
    }
    if write.known.is_paused() || !endpoint.is_open_for_delivery() {
        return Ok(NextDue::Nothing);
    }
    if let Some(until) = endpoint.held_until.filter(|until| *until > write.now) {
        return Ok(NextDue::At(until));
    }
    let before = claimed.claims.len();
    let (room, limited_until) = rate_limited(write, &endpoint, want.room)?;
    let next = match &want.pick {
        Pick::Due => claim_due(write, request, &endpoint, room, claimed)?,
        Pick::Probe => claim_probe(write, request, &endpoint, &mut claimed.claims, room)?,
        Pick::Suspects(ids) => claim_suspects(write, request, &ids[..ids.len().min(room as usize)], claimed)?,
    };
    use_rate(write, &endpoint, (claimed.claims.len() - before) as u32)?;
    Ok(match (next, limited_until) {
        (NextDue::Now, Some(until)) if room < want.room => NextDue::At(until),
        (next, _) => next,
    })
}

/// When people, the receiver or the circuit forbid claims: until when.
pub(super) fn not_before(write: &Write<'_>, endpoint: &Endpoint) -> Option<NextDue> {
    if write.known.is_paused() || !endpoint.is_open_for_delivery() {
        return Some(NextDue::Nothing);
    }
    match endpoint.circuit.state {
        CircuitState::Closed => {}
        CircuitState::Open { until } => return Some(NextDue::At(until)),
        CircuitState::HalfOpen { .. } => return Some(NextDue::Nothing),
    }
    endpoint.held_until.filter(|until| *until > write.now).map(NextDue::At)
}

fn claim_due(
    write: &mut Write<'_>,
    request: &ClaimRequest,
    endpoint: &Endpoint,
    room: u32,
    claimed: &mut Claimed,
) -> Result<NextDue> {
    let mut left = room as usize;
    let mut expired = 0;
    let mut next = None;
    let mut below = i64::MAX;
    while let Some((priority, due)) = first_below(write.conn, endpoint.id, below).map_err(storage_error)? {
        below = priority;
        if due > write.now {
            next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
            continue;
        }
        if left == 0 {
            return Ok(NextDue::Now);
        }
        let found = due_rows(write, endpoint.id, priority, left).map_err(storage_error)?;
        let full = found.len() == left;
        let is_over = |found: &Found| found.claim.message.expires_at.is_some_and(|at| at <= write.now);
        let (over, found): (Vec<_>, Vec<_>) = found.into_iter().partition(is_over);
        for over in &over {
            claimed.expired.push(expire(write, over)?);
        }
        expired += over.len();
        left -= found.len();
        take(write, request, found, &mut claimed.claims)?;
        if full || expired > EXPIRED_PER_WANT_MAX {
            return Ok(NextDue::Now);
        }
        // Anything left of this priority is due later.
        if let Some((_, due)) = first_at(write.conn, endpoint.id, priority).map_err(storage_error)? {
            next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
        }
    }
    Ok(next.map_or(NextDue::Nothing, NextDue::At))
}

fn claim_probe(
    write: &mut Write<'_>,
    request: &ClaimRequest,
    endpoint: &Endpoint,
    claims: &mut Vec<Claim>,
    room: u32,
) -> Result<NextDue> {
    if room == 0 {
        return Ok(NextDue::Now);
    }
    let mut found = fewest_attempts(write, endpoint.id).map_err(storage_error)?;
    if found.is_none() {
        found = suspect_to_probe(write, endpoint.id).map_err(storage_error)?;
    }
    let Some(id) = found else {
        let due = earliest_due(write.conn, endpoint.id).map_err(storage_error)?;
        return Ok(due.map_or(NextDue::Nothing, NextDue::At));
    };
    let found = row_by_id(write, id).map_err(storage_error)?;
    take(write, request, found.into_iter().collect(), claims)?;
    Ok(NextDue::Now)
}

fn claim_suspects(
    write: &mut Write<'_>,
    request: &ClaimRequest,
    ids: &[MessageId],
    claimed: &mut Claimed,
) -> Result<NextDue> {
    for id in ids {
        let Some(found) = row_by_id(write, *id).map_err(storage_error)? else { continue };
        if found.place != Place::Suspect || found.due_at > write.now {
            continue;
        }
        if found.claim.message.expires_at.is_some_and(|at| at <= write.now) {
            claimed.expired.push(expire(write, &found)?);
        } else {
            take(write, request, vec![found], &mut claimed.claims)?;
        }
    }
    Ok(NextDue::Nothing)
}

fn expire(write: &mut Write<'_>, found: &Found) -> Result<Expired> {
    let message = &found.claim.message;
    archive::finish(write, message.id, State::Expired)?;
    Ok(Expired { id: message.id, endpoint: message.endpoint, attempts: found.claim.attempt })
}

struct Found {
    claim: Claim,
    place: Place,
    due_at: Timestamp,
}

const FOUND_COLUMNS: &str = "attempts, attempts_before, losses, place, due_at";

fn found(row: &Row<'_>) -> rusqlite::Result<Found> {
    Ok(Found {
        claim: Claim {
            message: row::message(row)?,
            fence: Fence { node: crate::message::NodeId(0), batch: 0 },
            attempt: row.get(12)?,
            attempts_before: row.get(13)?,
            losses: row.get(14)?,
        },
        place: Place::from_column(row.get(15)?),
        due_at: at(row.get(16)?),
    })
}

/// Counts the attempts: a node that crashes from here on has made them.
fn take(write: &Write<'_>, request: &ClaimRequest, found: Vec<Found>, claims: &mut Vec<Claim>) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let ids = id_list(found.iter().map(|found| found.claim.message.id));
    write
        .conn
        .prepare_cached(
            // FAIL, not ABORT: no journal to undo the rows before, the transaction ends anyway.
            "UPDATE OR FAIL _postrider_queue
             SET place = 2, attempts = attempts + 1, node_id = ?2, batch = ?3, alone = ?4, started_at = ?5
             WHERE id IN (SELECT value FROM json_each(?1))",
        )
        .and_then(|mut statement| {
            let now = micros_of(write.now);
            statement.execute(params![ids, request.node.0, request.batch, request.alone, now])
        })
        .map_err(storage_error)?;
    let fence = Fence { node: request.node, batch: request.batch };
    claims.extend(found.into_iter().map(|found| Claim {
        fence,
        attempt: found.claim.attempt + 1,
        ..found.claim
    }));
    Ok(())
}

fn due_rows(
    write: &Write<'_>,
    endpoint: EndpointId,
    priority: i64,
    limit: usize,
) -> rusqlite::Result<Vec<Found>> {
    write
        .conn
        .prepare_cached(&format!(
            "SELECT {MESSAGE_COLUMNS}, {FOUND_COLUMNS} FROM _postrider_queue INDEXED BY _postrider_queue_due
             WHERE place = 0 AND endpoint_id = ?1 AND priority = ?2 AND due_at <= ?3
             ORDER BY due_at, id LIMIT ?4"
        ))?
        .query_map(params![endpoint.0, priority, micros_of(write.now), limit as i64], found)?
        .collect()
}

fn row_by_id(write: &Write<'_>, id: MessageId) -> rusqlite::Result<Option<Found>> {
    write
        .conn
        .prepare_cached(&format!(
            "SELECT {MESSAGE_COLUMNS}, {FOUND_COLUMNS} FROM _postrider_queue WHERE id = ?1"
        ))?
        .query_row(params![id.0], found)
        .optional()
}

/// The highest priority below `below` that has anything claimable, with its earliest due time.
fn first_below(
    conn: &Connection,
    endpoint: EndpointId,
    below: i64,
) -> rusqlite::Result<Option<(i64, Timestamp)>> {
    conn.prepare_cached(
        "SELECT priority, due_at FROM _postrider_queue INDEXED BY _postrider_queue_due
         WHERE place = 0 AND endpoint_id = ?1 AND priority < ?2 ORDER BY priority DESC, due_at LIMIT 1",
    )?
    .query_row(params![endpoint.0, below], |row| Ok((row.get(0)?, at(row.get(1)?))))
    .optional()
}

fn first_at(
    conn: &Connection,
    endpoint: EndpointId,
    priority: i64,
) -> rusqlite::Result<Option<(i64, Timestamp)>> {
    Ok(first_below(conn, endpoint, priority + 1)?.filter(|(found, _)| *found == priority))
}

/// Over all priorities; at most twelve probes of the index.
pub(super) fn earliest_due(conn: &Connection, endpoint: EndpointId) -> rusqlite::Result<Option<Timestamp>> {
    let mut earliest: Option<Timestamp> = None;
    let mut below = i64::MAX;
    while let Some((priority, due)) = first_below(conn, endpoint, below)? {
        below = priority;
        earliest = Some(earliest.map_or(due, |earliest| earliest.min(due)));
    }
    Ok(earliest)
}

fn fewest_attempts(write: &Write<'_>, endpoint: EndpointId) -> rusqlite::Result<Option<MessageId>> {
    let mut best: Option<(i64, i64)> = None;
    let mut below = i64::MAX;
    while let Some((priority, _)) = first_below(write.conn, endpoint, below)? {
        below = priority;
        let mut statement = write.conn.prepare_cached(
            "SELECT attempts, id FROM _postrider_queue INDEXED BY _postrider_queue_due
             WHERE place = 0 AND endpoint_id = ?1 AND priority = ?2 AND due_at <= ?3
               AND (expires_at IS NULL OR expires_at > ?3)
             ORDER BY due_at, id LIMIT ?4",
        )?;
        let mut rows =
            statement.query(params![endpoint.0, priority, micros_of(write.now), PROBE_SCAN_MAX as i64])?;
        while let Some(row) = rows.next()? {
            let attempts: i64 = row.get(0)?;
            if best.is_none_or(|(fewest, _)| attempts < fewest) {
                best = Some((attempts, row.get(1)?));
            }
            if attempts == 0 {
                break;
            }
        }
    }
    Ok(best.map(|(_, id)| MessageId(id)))
}

/// When only suspects are left to probe with, or the circuit would stay half-open until something new is
/// sent. It is not alone, so it cannot die of losing its lease here.
fn suspect_to_probe(write: &Write<'_>, endpoint: EndpointId) -> rusqlite::Result<Option<MessageId>> {
    write
        .conn
        .prepare_cached(
            "SELECT id FROM _postrider_queue INDEXED BY _postrider_queue_suspect
             WHERE place = 3 AND endpoint_id = ?1 AND due_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
             ORDER BY attempts, due_at LIMIT 1",
        )?
        .query_row(params![endpoint.0, micros_of(write.now)], |row| row.get(0).map(MessageId))
        .optional()
}

/// How much of `room` the rate limit leaves, and when the next one may go.
fn rate_limited(write: &Write<'_>, endpoint: &Endpoint, room: u32) -> Result<(u32, Option<Timestamp>)> {
    let Some(limit) = endpoint.options.rate_limit else { return Ok((room, None)) };
    let grant = limit.grant(rate_position(write.conn, endpoint)?, write.now, room);
    Ok((grant.granted, Some(grant.next_at)))
}

fn use_rate(write: &Write<'_>, endpoint: &Endpoint, used: u32) -> Result<()> {
    let Some(limit) = endpoint.options.rate_limit.filter(|_| used > 0) else { return Ok(()) };
    let grant = limit.grant(rate_position(write.conn, endpoint)?, write.now, used);
    write
        .conn
        .prepare_cached("UPDATE _postrider_endpoints SET rate_position = ?2 WHERE id = ?1")
        .and_then(|mut statement| statement.execute(params![endpoint.id.0, micros_of(grant.position)]))
        .map(|_| ())
        .map_err(storage_error)
}

pub(super) fn rate_position(conn: &Connection, endpoint: &Endpoint) -> Result<Option<Timestamp>> {
    conn.prepare_cached("SELECT rate_position FROM _postrider_endpoints WHERE id = ?1")
        .and_then(|mut statement| {
            statement.query_row(params![endpoint.id.0], |row| row.get::<_, Option<i64>>(0))
        })
        .map(row::optional_at)
        .map_err(storage_error)
}

/// Endpoints that have claimable messages: one step through the index per endpoint, not per message.
pub(super) fn waiting(conn: &Connection) -> rusqlite::Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    let mut after = i64::MIN;
    loop {
        let next: Option<i64> = conn
            .prepare_cached(
                "SELECT endpoint_id FROM _postrider_queue INDEXED BY _postrider_queue_due
                 WHERE place = 0 AND endpoint_id > ?1 ORDER BY endpoint_id LIMIT 1",
            )?
            .query_row([after], |row| row.get(0))
            .optional()?;
        let Some(id) = next else { return Ok(waiting) };
        after = id;
        if let Some(due_at) = earliest_due(conn, EndpointId(id))? {
            waiting.push(Waiting { endpoint: EndpointId(id), due_at });
        }
    }
}

pub(super) fn suspects(conn: &Connection, limit: usize) -> rusqlite::Result<Vec<Suspect>> {
    conn.prepare_cached(
        "SELECT id, endpoint_id, losses, due_at, attempts - attempts_before, options
         FROM _postrider_queue INDEXED BY _postrider_queue_suspect
         WHERE place = 3 ORDER BY due_at LIMIT ?1",
    )?
    .query_map([limit as i64], |row| {
        Ok(Suspect {
            id: MessageId(row.get(0)?),
            endpoint: EndpointId(row.get(1)?),
            losses: row.get(2)?,
            due_at: at(row.get(3)?),
            budget_used: row.get(4)?,
            max_attempts: max_attempts_option(&row::object(row.get_ref(5)?)?),
        })
    })?
    .collect()
}
