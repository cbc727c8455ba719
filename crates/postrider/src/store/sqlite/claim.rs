//! Claim: find what is due, count the attempt, hand it out. Never scans messages that are not due.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use super::keys::QueuePlace;
use super::query::Query;
use super::row::{self, CheckedRow, MESSAGE_COLUMNS, id_list, micros_of};
use super::shown::ShownRow;
use super::writer::Write;
use super::{archive, keys, nodes, settle};
use crate::breaker::CircuitState;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::Invalid;
use crate::message::{Claim, Fence, MessageId, State};
use crate::protocol::MessageOptions;
use crate::store::{
    ClaimRequest, Claimed, Expired, NextDue, Pick, Result, Suspect, Unreadable, Waiting, Want,
};

/// How far a probe looks for a message with fewer attempts.
const PROBE_SCAN_MAX: usize = 1000;
/// Expired and unreadable messages that one claim takes out of the queue at most: the transaction must end soon.
const FINISHED_PER_WANT_MAX: usize = 256;

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
    let Some(endpoint) = write.config.by_id(want.endpoint).cloned() else { return Ok(NextDue::Nothing) };
    let probing = match (&want.pick, endpoint.circuit.state) {
        (Pick::Probe, CircuitState::HalfOpen { probe: Some(probe) }) => probe.node == request.node,
        _ => false,
    };
    if !probing && let Some(next) = not_before(write, &endpoint) {
        return Ok(next);
    }
    if write.config.is_paused() || !endpoint.is_open_for_delivery() {
        return Ok(NextDue::Nothing);
    }
    if let Some(until) = endpoint.held_until.filter(|until| *until > write.now) {
        return Ok(NextDue::At(until));
    }
    let before = claimed.claims.len();
    let (room, limited_until) = rate_limited(write, &endpoint, want.room)?;
    let next = match &want.pick {
        Pick::Due => claim_due(write, request, &endpoint, room, claimed)?,
        Pick::Probe => claim_probe(write, request, &endpoint, claimed, room)?,
        Pick::Suspects(ids) => claim_suspects(write, request, &ids[..ids.len().min(room as usize)], claimed)?,
    };
    use_rate(write, &endpoint, (claimed.claims.len() - before) as u32)?;
    Ok(match (next, limited_until) {
        (NextDue::Now, Some(until)) if room < want.room => NextDue::At(until),
        (next, _) => next,
    })
}

/// Until when an operator, the receiver or the circuit forbids claims; None while claims are allowed.
pub(super) fn not_before(write: &Write<'_>, endpoint: &Endpoint) -> Option<NextDue> {
    if write.config.is_paused() || !endpoint.is_open_for_delivery() {
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
    let mut finished = 0;
    let mut next = None;
    let mut below = i64::MAX;
    while let Some((priority, due)) = first_readable_below(write, endpoint.id, below, claimed)? {
        below = priority;
        if due > write.now {
            next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
            continue;
        }
        if left == 0 {
            return Ok(NextDue::Now);
        }
        let rows = due_rows(write, endpoint.id, priority, left)?;
        let (count, full) = (rows.len(), rows.len() == left);
        let found = sort_out(write, rows, claimed)?;
        finished += count - found.len();
        left -= found.len();
        take(write, request, found, &mut claimed.claims)?;
        if full || finished > FINISHED_PER_WANT_MAX {
            return Ok(NextDue::Now);
        }
        // Anything left of this priority is due later.
        let rest = first_readable_below(write, endpoint.id, priority + 1, claimed)?;
        if let Some((_, due)) = rest.filter(|(found, _)| *found == priority) {
            next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
        }
    }
    Ok(next.map_or(NextDue::Nothing, NextDue::At))
}

fn claim_probe(
    write: &mut Write<'_>,
    request: &ClaimRequest,
    endpoint: &Endpoint,
    claimed: &mut Claimed,
    room: u32,
) -> Result<NextDue> {
    if room == 0 {
        return Ok(NextDue::Now);
    }
    for _ in 0..FINISHED_PER_WANT_MAX {
        let mut found = fewest_attempts(write, endpoint.id, claimed)?;
        if found.is_none() {
            found = suspect_to_probe(write, endpoint.id)?;
        }
        let Some(id) = found else {
            let due = earliest_due(write.conn, endpoint.id)?;
            return Ok(due.map_or(NextDue::Nothing, NextDue::At));
        };
        let row = row_by_id(write, id)?;
        let found = sort_out(write, row.into_iter().collect(), claimed)?;
        if !found.is_empty() {
            take(write, request, found, &mut claimed.claims)?;
            break;
        }
    }
    Ok(NextDue::Now)
}

fn claim_suspects(
    write: &mut Write<'_>,
    request: &ClaimRequest,
    ids: &[MessageId],
    claimed: &mut Claimed,
) -> Result<NextDue> {
    for id in ids {
        let Some(row) = row_by_id(write, *id)? else { continue };
        if row.place != QueuePlace::OnProbation || row.due_at > write.now {
            continue;
        }
        let found = sort_out(write, vec![row], claimed)?;
        take(write, request, found, &mut claimed.claims)?;
    }
    Ok(NextDue::Nothing)
}

/// Archives expired messages, makes dead letters of unreadable ones, and returns the others.
fn sort_out(
    write: &mut Write<'_>,
    rows: Vec<ClaimableMessage>,
    claimed: &mut Claimed,
) -> Result<Vec<ClaimableMessage>> {
    let mut fresh = Vec::with_capacity(rows.len());
    for row in rows {
        if let Some(what) = &row.unreadable {
            let message = &row.claim.message;
            claimed.unreadable.push(set_aside(write, message.id, message.endpoint, row.claim.attempt, what)?);
        } else if row.claim.message.expires_at.is_some_and(|at| at <= write.now) {
            claimed.expired.push(expire(write, &row)?);
        } else {
            fresh.push(row);
        }
    }
    Ok(fresh)
}

fn set_aside(
    write: &mut Write<'_>,
    id: MessageId,
    endpoint: EndpointId,
    attempts: u32,
    what: &Invalid,
) -> Result<Unreadable> {
    let unreadable = Unreadable::new(id, endpoint, attempts, what);
    settle::set_aside_pending(write, id, &unreadable.error)?;
    Ok(unreadable)
}

fn expire(write: &mut Write<'_>, found: &ClaimableMessage) -> Result<Expired> {
    let message = &found.claim.message;
    archive::finish(write, message.id, State::Expired)?;
    Ok(Expired { id: message.id, endpoint: message.endpoint, attempts: found.claim.attempt })
}

struct ClaimableMessage {
    claim: Claim,
    place: QueuePlace,
    due_at: Timestamp,
    /// It cannot be claimed, because no node can read all of it.
    unreadable: Option<Invalid>,
}

const CLAIM_COLUMNS: &str = "attempts, attempts_before, losses, place, due_at";

fn found(row: &Row<'_>) -> rusqlite::Result<ClaimableMessage> {
    let mut row = CheckedRow::of(row);
    let claim = Claim {
        message: row::message(&mut row),
        fence: Fence { node: crate::message::NodeId(0), batch: 0 },
        attempt: row.get(12),
        attempts_before: row.get(13),
        losses: row.get(14),
    };
    let (place, due_at) = (QueuePlace::from_column(row.get(15)), row.read(16, row::time));
    Ok(ClaimableMessage { claim, place, due_at, unreadable: row.unreadable() })
}

/// Counts the attempts: if the node crashes after this, they were made.
fn take(
    write: &Write<'_>,
    request: &ClaimRequest,
    found: Vec<ClaimableMessage>,
    claims: &mut Vec<Claim>,
) -> Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let ids = id_list(found.iter().map(|found| found.claim.message.id));
    write.conn.run(
        // FAIL, not ABORT: SQLite then keeps no journal to undo single rows; an error ends the transaction anyway.
        "UPDATE OR FAIL _postrider_queue
         SET place = 2, attempts = attempts + 1, node_id = ?2, batch = ?3, alone = ?4, started_at = ?5
         WHERE id IN (SELECT value FROM json_each(?1))",
        params![ids, request.node.0, request.batch, request.alone, micros_of(write.now)],
    )?;
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
) -> Result<Vec<ClaimableMessage>> {
    write.conn.rows(
        &format!(
            "SELECT {MESSAGE_COLUMNS}, {CLAIM_COLUMNS} FROM _postrider_queue INDEXED BY _postrider_queue_due
             WHERE place = 0 AND endpoint_id = ?1 AND priority = ?2 AND due_at <= ?3
             ORDER BY due_at, id LIMIT ?4"
        ),
        params![endpoint.0, priority, micros_of(write.now), limit as i64],
        found,
    )
}

fn row_by_id(write: &Write<'_>, id: MessageId) -> Result<Option<ClaimableMessage>> {
    write.conn.find(
        &format!("SELECT {MESSAGE_COLUMNS}, {CLAIM_COLUMNS} FROM _postrider_queue WHERE id = ?1"),
        params![id.0],
        found,
    )
}

/// The first claimable row of the highest priority.
struct FirstDue {
    id: MessageId,
    priority: i64,
    due_at: Timestamp,
    unreadable: Option<Invalid>,
}

fn first_below(conn: &Connection, endpoint: EndpointId, below: i64) -> Result<Option<FirstDue>> {
    conn.find(
        "SELECT id, priority, due_at FROM _postrider_queue INDEXED BY _postrider_queue_due
         WHERE place = 0 AND endpoint_id = ?1 AND priority < ?2 ORDER BY priority DESC, due_at LIMIT 1",
        params![endpoint.0, below],
        |row| {
            let mut row = CheckedRow::of(row);
            let (id, priority, due_at) = (MessageId(row.get(0)), row.get(1), row.read(2, row::time));
            Ok(FirstDue { id, priority, due_at, unreadable: row.unreadable() })
        },
    )
}

/// The highest priority below `below` that has anything claimable, with its earliest due time. A
/// message whose priority or due time cannot be read is set aside.
fn first_readable_below(
    write: &mut Write<'_>,
    endpoint: EndpointId,
    below: i64,
    claimed: &mut Claimed,
) -> Result<Option<(i64, Timestamp)>> {
    while let Some(first) = first_below(write.conn, endpoint, below)? {
        let Some(what) = &first.unreadable else { return Ok(Some((first.priority, first.due_at))) };
        if claimed.unreadable.len() >= FINISHED_PER_WANT_MAX {
            // The next look at the queue finds the rest.
            return Ok(None);
        }
        let attempts = 0;
        claimed.unreadable.push(set_aside(write, first.id, endpoint, attempts, what)?);
    }
    Ok(None)
}

/// Over all priorities; at most twelve probes of the index. An unreadable message counts as due now: a claim sets it
/// aside.
pub(super) fn earliest_due(conn: &Connection, endpoint: EndpointId) -> Result<Option<Timestamp>> {
    let mut earliest: Option<Timestamp> = None;
    let mut below = i64::MAX;
    while let Some(FirstDue { priority, due_at, unreadable, .. }) = first_below(conn, endpoint, below)? {
        if unreadable.is_some() {
            return Ok(Some(Timestamp::UNIX_EPOCH));
        }
        below = priority;
        earliest = Some(earliest.map_or(due_at, |earliest| earliest.min(due_at)));
    }
    Ok(earliest)
}

fn fewest_attempts(
    write: &mut Write<'_>,
    endpoint: EndpointId,
    claimed: &mut Claimed,
) -> Result<Option<MessageId>> {
    let mut best: Option<(u32, MessageId)> = None;
    let mut below = i64::MAX;
    while let Some((priority, _)) = first_readable_below(write, endpoint, below, claimed)? {
        below = priority;
        best = fewest_of(write, endpoint, priority, best)?;
    }
    Ok(best.map(|(_, id)| id))
}

fn fewest_of(
    write: &Write<'_>,
    endpoint: EndpointId,
    priority: i64,
    mut best: Option<(u32, MessageId)>,
) -> Result<Option<(u32, MessageId)>> {
    let mut statement = write.conn.prepare_cached(
        "SELECT attempts, id FROM _postrider_queue INDEXED BY _postrider_queue_due
         WHERE place = 0 AND endpoint_id = ?1 AND priority = ?2 AND due_at <= ?3
           AND (expires_at IS NULL OR expires_at > ?3)
         ORDER BY due_at, id LIMIT ?4",
    )?;
    let mut rows =
        statement.query(params![endpoint.0, priority, micros_of(write.now), PROBE_SCAN_MAX as i64])?;
    while let Some(row) = rows.next()? {
        let attempts = ShownRow(row).count(0);
        if best.is_none_or(|(fewest, _)| attempts < fewest) {
            best = Some((attempts, MessageId(row.get(1)?)));
        }
        if attempts == 0 {
            break;
        }
    }
    Ok(best)
}

/// Only messages on probation are left to probe with; without one the circuit would stay half-open until the next
/// send. It is not claimed alone, so losing its lease here cannot make it a dead letter.
fn suspect_to_probe(write: &Write<'_>, endpoint: EndpointId) -> Result<Option<MessageId>> {
    write.conn.find(
        "SELECT id FROM _postrider_queue INDEXED BY _postrider_queue_suspect
         WHERE place = 3 AND endpoint_id = ?1 AND due_at <= ?2 AND (expires_at IS NULL OR expires_at > ?2)
         ORDER BY attempts, due_at LIMIT 1",
        params![endpoint.0, micros_of(write.now)],
        |row| row.get(0).map(MessageId),
    )
}

/// How much of `room` the rate limit leaves, and when it allows the next message.
fn rate_limited(write: &Write<'_>, endpoint: &Endpoint, room: u32) -> Result<(u32, Option<Timestamp>)> {
    let Some(limit) = endpoint.options.rate_limit else { return Ok((room, None)) };
    let grant = limit.grant(rate_position(write.conn, endpoint)?, write.now, room);
    Ok((grant.granted, Some(grant.next_at)))
}

fn use_rate(write: &Write<'_>, endpoint: &Endpoint, used: u32) -> Result<()> {
    let Some(limit) = endpoint.options.rate_limit.filter(|_| used > 0) else { return Ok(()) };
    let grant = limit.grant(rate_position(write.conn, endpoint)?, write.now, used);
    write.conn.run(
        "UPDATE _postrider_endpoints SET rate_position = ?2 WHERE id = ?1",
        params![endpoint.id.0, micros_of(grant.position)],
    )
}

pub(super) fn rate_position(conn: &Connection, endpoint: &Endpoint) -> Result<Option<Timestamp>> {
    conn.row("SELECT rate_position FROM _postrider_endpoints WHERE id = ?1", params![endpoint.id.0], |row| {
        row.get::<_, Option<i64>>(0)
    })
    .map(row::optional_at)
}

/// Endpoints that have claimable messages: one step through the index per endpoint, not per message.
pub(super) fn waiting(conn: &Connection) -> Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    let mut after = i64::MIN;
    loop {
        let next: Option<i64> = conn.find(
            "SELECT endpoint_id FROM _postrider_queue INDEXED BY _postrider_queue_due
             WHERE place = 0 AND endpoint_id > ?1 AND typeof(endpoint_id) = 'integer'
             ORDER BY endpoint_id LIMIT 1",
            [after],
            |row| row.get(0),
        )?;
        let Some(id) = next else { return Ok(waiting) };
        after = id;
        if let Some(due_at) = earliest_due(conn, EndpointId(id))? {
            waiting.push(Waiting { endpoint: EndpointId(id), due_at });
        }
    }
}

pub(super) fn suspects(conn: &Connection, limit: usize) -> Result<Vec<Suspect>> {
    conn.rows(
        "SELECT id, endpoint_id, losses, due_at, attempts - attempts_before, options
         FROM _postrider_queue INDEXED BY _postrider_queue_suspect
         WHERE place = 3 ORDER BY due_at LIMIT ?1",
        [limit as i64],
        |row| {
            // Unreadable columns: the claim sets the message aside.
            let mut read = CheckedRow::of(row);
            Ok(Suspect {
                id: MessageId(read.get(0)),
                endpoint: EndpointId(read.get(1)),
                losses: keys::losses(row, 2),
                due_at: read.read(3, row::time),
                budget_used: read.get(4),
                max_attempts: MessageOptions::of(&read.read(5, row::object)).max_attempts,
            })
        },
    )
}
