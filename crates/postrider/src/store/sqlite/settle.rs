//! Settle: end a claim by its fence, exactly once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::params;
use serde_json::json;

use super::archive::{self, LeavingMessage};
use super::dlq::{self, Death};
use super::keys::{self, OrderingKey, QueuePlace};
use super::query::Query;
use super::row::micros_of;
use super::shown::ShownRow;
use super::writer::Write;
use super::{endpoints, events};
use crate::endpoint::{DisabledBy, EndpointId};
use crate::error::{Invalid, StoreError};
use crate::message::{Fence, MessageId, NodeId, State};
use crate::settings::AttemptLog;
use crate::store::{AttemptOutcome, AttemptRecord, Effect, End, Result, Settled, Settlement, UNREADABLE};
use crate::verdict::Verdict;

/// Fewer than this are as quick one by one.
const BULK_MIN: usize = 4;

pub(super) fn settle(write: &mut Write<'_>, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let done = settle_in_bulk(write, settlements)?;
    settlements
        .iter()
        .map(|settlement| match done.contains(&settlement.id) {
            true => Ok(Settled {
                id: settlement.id,
                endpoint: settlement.endpoint,
                effect: Effect::Applied(State::Completed),
                unblocked: None,
            }),
            false => settle_one(write, settlement),
        })
        .collect()
}

/// Deliveries without an ordering key, an idempotency key or an attempt to record: nearly all of them. All other
/// settlements are applied one by one.
fn settle_in_bulk(write: &mut Write<'_>, settlements: &[Settlement]) -> Result<HashSet<MessageId>> {
    let delivered: HashMap<MessageId, EndpointId> = settlements
        .iter()
        .filter(|settlement| matches!(settlement.end, End::Attempted { verdict: Verdict::Complete, .. }))
        .map(|settlement| (settlement.id, settlement.endpoint))
        .collect();
    if delivered.len() < BULK_MIN || write.config.settings().attempt_log != AttemptLog::Failures {
        return Ok(HashSet::new());
    }
    Ok(archive::complete_in_bulk(write, &delivered)?.into_iter().collect())
}

/// What settling needs of a queued message.
struct QueuedMessage {
    place: QueuePlace,
    fence: Fence,
    key: Option<OrderingKey>,
    losses: u32,
    delivered_late: bool,
    leaving: LeavingMessage,
}

fn settle_one(write: &mut Write<'_>, settlement: &Settlement) -> Result<Settled> {
    let settled = |effect, unblocked| {
        Ok(Settled { id: settlement.id, endpoint: settlement.endpoint, effect, unblocked })
    };
    let delivered = matches!(settlement.end, End::Attempted { verdict: Verdict::Complete, .. });
    let Some(queued) = queued(write, settlement.id)? else {
        let effect = match &settlement.end {
            End::Attempted { record, .. } if delivered => acknowledged_late(write, settlement.id, record)?,
            _ => Effect::Fenced,
        };
        return settled(effect, None);
    };
    let claimed = queued.place == QueuePlace::Claimed;
    if !(claimed && queued.fence == settlement.fence) {
        if !delivered {
            return settled(Effect::Fenced, None);
        }
        if claimed && queued.key.is_some() {
            note_late_delivery(write, settlement.id)?;
            return settled(Effect::Noted, None);
        }
    }
    let (state, unblocked) = end_claim(write, settlement, &queued, delivered)?;
    settled(Effect::Applied(state), unblocked)
}

/// The message is finished already. If it was cancelled because its endpoint was dropped, it becomes completed;
/// otherwise the acknowledgement is recorded as an attempt.
fn acknowledged_late(write: &mut Write<'_>, id: MessageId, record: &AttemptRecord) -> Result<Effect> {
    if !archive::complete_cancelled(write, id)? {
        record_attempt_if_wanted(write, id, record)?;
        return Ok(Effect::Fenced);
    }
    if write.config.settings().attempt_log != AttemptLog::Off {
        record_attempt(write, id, record)?;
    }
    Ok(Effect::Applied(State::Completed))
}

fn end_claim(
    write: &mut Write<'_>,
    settlement: &Settlement,
    queued: &QueuedMessage,
    delivered: bool,
) -> Result<(State, Option<EndpointId>)> {
    let id = settlement.id;
    if let End::Attempted { record, .. } = &settlement.end {
        record_attempt_if_wanted(write, id, record)?;
    }
    if let Some(until) = settlement.hold_endpoint_until {
        endpoints::hold(write, settlement.endpoint, until)?;
    }
    if delivered && queued.place != QueuePlace::Claimed {
        // The archive takes a delivered message from the queue only with a claim, or with this note.
        note_late_delivery(write, id)?;
    }
    if delivered || queued.delivered_late {
        let unblocked = archive::leave(write, &queued.leaving, State::Completed, None)?;
        return Ok((State::Completed, unblocked));
    }
    match &settlement.end {
        End::Released => Ok((State::Pending, release(write, id)?)),
        End::ExpiredUnstarted => {
            let unblocked = archive::leave(write, &queued.leaving, State::Expired, Some(1))?;
            Ok((State::Expired, unblocked))
        }
        End::Unreadable { error } => Ok((State::Dead, set_aside(write, queued, error)?)),
        End::Attempted { verdict, record } => match verdict {
            Verdict::Complete => unreachable!("a delivered message was archived above"),
            Verdict::Expire => {
                let unblocked = archive::leave(write, &queued.leaving, State::Expired, None)?;
                Ok((State::Expired, unblocked))
            }
            Verdict::Retry { due_at, asked } => {
                Ok((State::Pending, back_to_pending(write, id, queued, record, *due_at, *asked)?))
            }
            Verdict::Spare { due_at } => {
                let unblocked = back_to_pending(write, id, queued, record, *due_at, false)?;
                spare(write, id)?;
                Ok((State::Pending, unblocked))
            }
            Verdict::Dead { reason, disable_endpoint } => {
                let losses = u32::from(record.outcome == AttemptOutcome::Lost);
                let death =
                    Death { reason: reason.as_str(), error: record.error.as_deref(), losses, uncounted: 0 };
                let unblocked = dlq::bury(write, &queued.leaving, &death)?;
                if *disable_endpoint {
                    endpoints::disable(write, settlement.endpoint, DisabledBy::Gone)?;
                }
                Ok((State::Dead, unblocked))
            }
        },
    }
}

fn back_to_pending(
    write: &mut Write<'_>,
    id: MessageId,
    queued: &QueuedMessage,
    record: &AttemptRecord,
    due_at: Timestamp,
    asked: bool,
) -> Result<Option<EndpointId>> {
    let losses = queued.losses + u32::from(record.outcome == AttemptOutcome::Lost);
    let place = QueuePlace::free(losses) as i64;
    write.conn.run(
        "UPDATE _postrider_queue SET place = ?2, due_at = ?3, losses = ?4, last_error = ?5, asked = ?6,
         node_id = 0, batch = 0, alone = 0, started_at = 0 WHERE id = ?1",
        params![id.0, place, micros_of(due_at), losses, record.error, asked],
    )?;
    match &queued.key {
        Some(key) => keys::put_back(write, id, key),
        None => Ok(None),
    }
}

/// No node can read it, so it becomes a dead letter. A claimed attempt was not made and is not counted.
fn set_aside(write: &mut Write<'_>, queued: &QueuedMessage, error: &str) -> Result<Option<EndpointId>> {
    let uncounted = u32::from(queued.place == QueuePlace::Claimed);
    let death = Death { reason: UNREADABLE, error: Some(error), losses: 0, uncounted };
    dlq::bury(write, &queued.leaving, &death)
}

/// The same for a pending message that a claim found.
pub(super) fn set_aside_pending(write: &mut Write<'_>, id: MessageId, error: &str) -> Result<()> {
    let Some(queued) = queued(write, id)? else { return Ok(()) };
    let unblocked = set_aside(write, &queued, error)?;
    write.tell_freed(unblocked)
}

/// Its last attempt keeps its number and costs no budget.
fn spare(write: &Write<'_>, id: MessageId) -> Result<()> {
    write.conn.run("UPDATE _postrider_queue SET attempts_before = attempts_before + 1 WHERE id = ?1", [id.0])
}

/// Gives a claim back as if it had not been made.
pub(super) fn release(write: &mut Write<'_>, id: MessageId) -> Result<Option<EndpointId>> {
    let Some(queued) = queued(write, id)? else { return Ok(None) };
    if queued.delivered_late {
        return archive::leave(write, &queued.leaving, State::Completed, Some(1));
    }
    give_back(write, id, queued.losses, 1)?;
    match &queued.key {
        Some(key) => keys::put_back(write, id, key),
        None => Ok(None),
    }
}

/// Nothing changes unless it is claimed.
fn give_back(write: &Write<'_>, id: MessageId, losses: u32, uncounted: u32) -> Result<()> {
    write.conn.run(
        "UPDATE _postrider_queue SET place = ?2, attempts = attempts - ?3, node_id = 0, batch = 0, alone = 0,
         started_at = 0 WHERE id = ?1 AND place = 2",
        params![id.0, QueuePlace::free(losses) as i64, uncounted],
    )
}

fn note_late_delivery(write: &Write<'_>, id: MessageId) -> Result<()> {
    write.conn.run("UPDATE _postrider_queue SET delivered_late = 1 WHERE id = ?1", [id.0])
}

/// A failed attempt is always recorded: the dead letter quotes it. What is kept afterwards is a setting.
fn record_attempt_if_wanted(write: &mut Write<'_>, id: MessageId, record: &AttemptRecord) -> Result<()> {
    let wanted = match record.outcome {
        AttemptOutcome::Failed | AttemptOutcome::Lost => true,
        AttemptOutcome::Delivered => write.config.settings().attempt_log == AttemptLog::All,
    };
    if wanted { record_attempt(write, id, record) } else { Ok(()) }
}

fn record_attempt(write: &Write<'_>, id: MessageId, record: &AttemptRecord) -> Result<()> {
    write.conn.run(
        "INSERT INTO _postrider_attempts
           (message_id, number, node_id, started_at, duration, outcome, class, error, response_status,
            response_body)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            id.0,
            record.number,
            record.node.0,
            micros_of(record.started_at),
            record.duration.as_micros() as i64,
            record.outcome.as_str(),
            record.class.map(|class| class.as_str()),
            record.error,
            record.response_status,
            record.response_body.as_deref(),
        ],
    )
}

fn queued(write: &Write<'_>, id: MessageId) -> Result<Option<QueuedMessage>> {
    write.conn.find(
        "SELECT place, node_id, batch, key_scope, ordering_key, losses, delivered_late, endpoint_id,
           created_at, idempotency_key IS NOT NULL
         FROM _postrider_queue WHERE id = ?1",
        [id.0],
        |row| {
            // A claim must end even if another program wrote into the row.
            let shown = ShownRow(row);
            let place = QueuePlace::from_column(shown.whole(0));
            let key = OrderingKey::of(row.get(3).unwrap_or(None), row.get(4).unwrap_or(None));
            Ok(QueuedMessage {
                place,
                fence: Fence { node: NodeId(shown.whole(1)), batch: shown.whole(2) },
                losses: keys::losses(row, 5),
                delivered_late: shown.whole(6) != 0,
                leaving: LeavingMessage {
                    id,
                    endpoint: EndpointId(shown.whole(7)),
                    created_at: shown.time(8).unwrap_or(write.now),
                    has_idempotency_key: row.get(9)?,
                    place,
                    key: key.clone(),
                },
                key,
            })
        },
    )
}

/// What cancel, reschedule and erase may change: a pending message.
pub(super) fn pending(write: &Write<'_>, id: MessageId) -> Result<LeavingMessage> {
    match queued(write, id)? {
        Some(queued) if queued.place == QueuePlace::Claimed => Err(StoreError::Conflict(format!(
            "message {id} is processing; only a pending one can be changed"
        ))),
        Some(queued) => Ok(queued.leaving),
        None => Err(match archive::state_of(write.conn, id)? {
            Some(state) => {
                StoreError::Conflict(format!("message {id} is {state}; only a pending one can be changed"))
            }
            None => StoreError::unknown_message(id),
        }),
    }
}

pub(super) fn cancel(write: &mut Write<'_>, id: MessageId) -> Result<()> {
    let leaving = pending(write, id)?;
    let unblocked = archive::leave(write, &leaving, State::Cancelled, None)?;
    write.tell_freed(unblocked)
}

/// Its endpoint is dropped, so even a message in flight is released and cancelled. If the receiver acknowledges the
/// running attempt, it becomes completed.
pub(super) fn cancel_by_force(write: &mut Write<'_>, id: MessageId) -> Result<()> {
    let Some(queued) = queued(write, id)? else { return Ok(()) };
    let state = if queued.delivered_late { State::Completed } else { State::Cancelled };
    give_back(write, id, queued.losses, 0)?;
    let unblocked = archive::leave(write, &queued.leaving, state, None)?;
    write.tell_freed(unblocked)
}

pub(super) fn reschedule(write: &mut Write<'_>, id: MessageId, due_at: Timestamp) -> Result<()> {
    crate::send::check_time("at", due_at)?;
    let leaving = pending(write, id)?;
    let changed = write.conn.run_counted(
        "UPDATE _postrider_queue SET due_at = max(?2, ?3), scheduled_at = ?2, asked = 0
         WHERE id = ?1 AND (expires_at IS NULL OR expires_at > ?2)",
        params![id.0, micros_of(due_at), micros_of(write.now)],
    )?;
    if changed == 0 {
        return Err(Invalid::new("at", "must be before the message expires").into());
    }
    write.tell_freed(Some(leaving.endpoint))
}

/// A pending message without its payload cannot be delivered, so it is cancelled as well.
pub(super) fn erase(write: &mut Write<'_>, id: MessageId) -> Result<()> {
    match pending(write, id) {
        Ok(leaving) => {
            let unblocked = archive::leave(write, &leaving, State::Cancelled, None)?;
            write.tell_freed(unblocked)?;
        }
        Err(StoreError::Conflict(_)) if queued(write, id)?.is_none() => {}
        // All that is left of it, with `archive` off or after its retention.
        Err(StoreError::Unknown { .. }) if archive::has_reservation(write.conn, id)? => {}
        Err(error) => return Err(error),
    }
    archive::erase(write, id)?;
    dlq::erase(write, id)?;
    write.conn.run("UPDATE _postrider_attempts SET response_body = NULL WHERE message_id = ?1", [id.0])?;
    let subject: Arc<str> = id.to_string().into();
    events::log(write, "message.erased", Some(&subject), &json!({ "message": id }))
}
