//! Settle: end a claim by its fence, exactly once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};
use serde_json::json;

use super::archive::{self, Leaving};
use super::dlq::{self, Death};
use super::keys::{self, Key, Place};
use super::row::micros_of;
use super::shown::Shown;
use super::writer::Write;
use super::{endpoints, events, storage_error};
use crate::endpoint::{DisabledBy, EndpointId};
use crate::error::{Invalid, StoreError};
use crate::message::{Fence, MessageId, NodeId, State};
use crate::settings::AttemptLog;
use crate::store::{AttemptOutcome, AttemptRecord, Effect, End, Result, Settled, Settlement, UNREADABLE};
use crate::verdict::Verdict;

/// Below this many, one by one is as quick.
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

/// What was simply delivered, which is nearly all on a good day: no key to advance, no key to reserve, no
/// attempt to record. Everything else goes one by one.
fn settle_in_bulk(write: &mut Write<'_>, settlements: &[Settlement]) -> Result<HashSet<MessageId>> {
    let delivered: HashMap<MessageId, EndpointId> = settlements
        .iter()
        .filter(|settlement| matches!(settlement.end, End::Attempted { verdict: Verdict::Complete, .. }))
        .map(|settlement| (settlement.id, settlement.endpoint))
        .collect();
    if delivered.len() < BULK_MIN || write.known.settings().attempt_log != AttemptLog::Failures {
        return Ok(HashSet::new());
    }
    Ok(archive::complete_in_bulk(write, &delivered)?.into_iter().collect())
}

/// A queued message as far as settling is concerned.
struct Standing {
    place: Place,
    fence: Fence,
    key: Option<Key>,
    losses: u32,
    delivered_late: bool,
    leaving: Leaving,
}

fn settle_one(write: &mut Write<'_>, settlement: &Settlement) -> Result<Settled> {
    let settled = |effect, unblocked| {
        Ok(Settled { id: settlement.id, endpoint: settlement.endpoint, effect, unblocked })
    };
    let delivered = matches!(settlement.end, End::Attempted { verdict: Verdict::Complete, .. });
    let Some(standing) = standing(write, settlement.id)? else {
        let effect = match &settlement.end {
            End::Attempted { record, .. } if delivered => acknowledged_late(write, settlement.id, record)?,
            _ => Effect::Fenced,
        };
        return settled(effect, None);
    };
    let claimed = standing.place == Place::Claimed;
    if !(claimed && standing.fence == settlement.fence) {
        if !delivered {
            return settled(Effect::Fenced, None);
        }
        if claimed && standing.key.is_some() {
            note_late_delivery(write, settlement.id)?;
            return settled(Effect::Noted, None);
        }
    }
    let (state, unblocked) = end_claim(write, settlement, &standing, delivered)?;
    settled(Effect::Applied(state), unblocked)
}

/// It is finished already. One that was cancelled meanwhile, because its endpoint was dropped, is completed after all; for
/// every other the acknowledgement is worth a line in its story.
fn acknowledged_late(write: &mut Write<'_>, id: MessageId, record: &AttemptRecord) -> Result<Effect> {
    if !archive::complete_cancelled(write, id)? {
        record_attempt_if_wanted(write, id, record)?;
        return Ok(Effect::Fenced);
    }
    if write.known.settings().attempt_log != AttemptLog::Off {
        record_attempt(write, id, record)?;
    }
    Ok(Effect::Applied(State::Completed))
}

fn end_claim(
    write: &mut Write<'_>,
    settlement: &Settlement,
    standing: &Standing,
    delivered: bool,
) -> Result<(State, Option<EndpointId>)> {
    let id = settlement.id;
    if let End::Attempted { record, .. } = &settlement.end {
        record_attempt_if_wanted(write, id, record)?;
    }
    if let Some(until) = settlement.hold_endpoint_until {
        endpoints::hold(write, settlement.endpoint, until)?;
    }
    if delivered && standing.place != Place::Claimed {
        // The archive takes a delivered message from the queue only with a claim, or with this note.
        note_late_delivery(write, id)?;
    }
    if delivered || standing.delivered_late {
        let unblocked = archive::leave(write, &standing.leaving, State::Completed, None)?;
        return Ok((State::Completed, unblocked));
    }
    match &settlement.end {
        End::Released => Ok((State::Pending, release(write, id)?)),
        End::ExpiredUnstarted => {
            let unblocked = archive::leave(write, &standing.leaving, State::Expired, Some(1))?;
            Ok((State::Expired, unblocked))
        }
        End::Unreadable { error } => Ok((State::Dead, set_aside(write, standing, error)?)),
        End::Attempted { verdict, record } => match verdict {
            Verdict::Complete => unreachable!("a delivered message was archived above"),
            Verdict::Expire => {
                let unblocked = archive::leave(write, &standing.leaving, State::Expired, None)?;
                Ok((State::Expired, unblocked))
            }
            Verdict::Retry { due_at } => {
                Ok((State::Pending, back_to_pending(write, id, standing, record, *due_at)?))
            }
            Verdict::Spare { due_at } => {
                let unblocked = back_to_pending(write, id, standing, record, *due_at)?;
                spare(write, id)?;
                Ok((State::Pending, unblocked))
            }
            Verdict::Dead { reason, disable_endpoint } => {
                let losses = u32::from(record.outcome == AttemptOutcome::Lost);
                let death =
                    Death { reason: reason.as_str(), error: record.error.as_deref(), losses, uncounted: 0 };
                let unblocked = dlq::bury(write, &standing.leaving, &death)?;
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
    standing: &Standing,
    record: &AttemptRecord,
    due_at: Timestamp,
) -> Result<Option<EndpointId>> {
    let losses = standing.losses + u32::from(record.outcome == AttemptOutcome::Lost);
    write
        .conn
        .prepare_cached(
            "UPDATE _postrider_queue SET place = ?2, due_at = ?3, losses = ?4, last_error = ?5,
               node_id = 0, batch = 0, alone = 0, started_at = 0 WHERE id = ?1",
        )
        .and_then(|mut statement| {
            let place = Place::free(losses) as i64;
            statement.execute(params![id.0, place, micros_of(due_at), losses, record.error])
        })
        .map_err(storage_error)?;
    match &standing.key {
        Some(key) => keys::put_back(write, id, key),
        None => Ok(None),
    }
}

/// No node can read it, so it waits for people in the DLQ. An attempt that was claimed was not made.
fn set_aside(write: &mut Write<'_>, standing: &Standing, error: &str) -> Result<Option<EndpointId>> {
    let uncounted = u32::from(standing.place == Place::Claimed);
    let death = Death { reason: UNREADABLE, error: Some(error), losses: 0, uncounted };
    dlq::bury(write, &standing.leaving, &death)
}

/// The same for one that a claim met on the way.
pub(super) fn set_aside_pending(write: &mut Write<'_>, id: MessageId, error: &str) -> Result<()> {
    let Some(standing) = standing(write, id)? else { return Ok(()) };
    let unblocked = set_aside(write, &standing, error)?;
    write.tell_freed(unblocked)
}

/// Its last attempt keeps its number and costs no budget.
fn spare(write: &Write<'_>, id: MessageId) -> Result<()> {
    write
        .conn
        .prepare_cached("UPDATE _postrider_queue SET attempts_before = attempts_before + 1 WHERE id = ?1")
        .and_then(|mut statement| statement.execute([id.0]))
        .map(|_| ())
        .map_err(storage_error)
}

/// Gives a claim back as if it had not been made.
pub(super) fn release(write: &mut Write<'_>, id: MessageId) -> Result<Option<EndpointId>> {
    let Some(standing) = standing(write, id)? else { return Ok(None) };
    if standing.delivered_late {
        return archive::leave(write, &standing.leaving, State::Completed, Some(1));
    }
    give_back(write, id, standing.losses, 1)?;
    match &standing.key {
        Some(key) => keys::put_back(write, id, key),
        None => Ok(None),
    }
}

/// Nothing changes unless it is claimed.
fn give_back(write: &Write<'_>, id: MessageId, losses: u32, uncounted: u32) -> Result<()> {
    write
        .conn
        .prepare_cached(
            "UPDATE _postrider_queue SET place = ?2, attempts = attempts - ?3, node_id = 0, batch = 0, alone = 0,
               started_at = 0 WHERE id = ?1 AND place = 2",
        )
        .and_then(|mut statement| statement.execute(params![id.0, Place::free(losses) as i64, uncounted]))
        .map(|_| ())
        .map_err(storage_error)
}

fn note_late_delivery(write: &Write<'_>, id: MessageId) -> Result<()> {
    write
        .conn
        .prepare_cached("UPDATE _postrider_queue SET delivered_late = 1 WHERE id = ?1")
        .and_then(|mut statement| statement.execute([id.0]))
        .map(|_| ())
        .map_err(storage_error)
}

/// A failed attempt is always recorded: the dead letter quotes it. What is kept afterwards is a setting.
fn record_attempt_if_wanted(write: &mut Write<'_>, id: MessageId, record: &AttemptRecord) -> Result<()> {
    let wanted = match record.outcome {
        AttemptOutcome::Failed | AttemptOutcome::Lost => true,
        AttemptOutcome::Delivered => write.known.settings().attempt_log == AttemptLog::All,
    };
    if wanted { record_attempt(write, id, record) } else { Ok(()) }
}

fn record_attempt(write: &Write<'_>, id: MessageId, record: &AttemptRecord) -> Result<()> {
    write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_attempts
               (message_id, number, node_id, started_at, duration, outcome, class, error, status, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                id.0,
                record.number,
                record.node.0,
                micros_of(record.started_at),
                record.duration.as_micros() as i64,
                record.outcome.as_str(),
                record.class.map(|class| class.as_str()),
                record.error,
                record.status,
                record.body.as_deref(),
            ])
        })
        .map(|_| ())
        .map_err(storage_error)
}

fn standing(write: &Write<'_>, id: MessageId) -> Result<Option<Standing>> {
    write
        .conn
        .prepare_cached(
            "SELECT place, node_id, batch, key_scope, ordering_key, losses, delivered_late, endpoint_id, created_at,
                    idempotency_key IS NOT NULL
             FROM _postrider_queue WHERE id = ?1",
        )
        .and_then(|mut statement| {
            statement
                .query_row([id.0], |row| {
                    // Whatever another program wrote into the row, its claim can end.
                    let shown = Shown(row);
                    let place = Place::from_column(shown.whole(0));
                    let key = Key::of(row.get(3).unwrap_or(None), row.get(4).unwrap_or(None));
                    Ok(Standing {
                        place,
                        fence: Fence { node: NodeId(shown.whole(1)), batch: shown.whole(2) },
                        losses: keys::losses(row, 5),
                        delivered_late: shown.whole(6) != 0,
                        leaving: Leaving {
                            id,
                            endpoint: EndpointId(shown.whole(7)),
                            created_at: shown.time(8).unwrap_or(write.now),
                            has_idempotency_key: row.get(9)?,
                            place,
                            key: key.clone(),
                        },
                        key,
                    })
                })
                .optional()
        })
        .map_err(storage_error)
}

/// What cancel, reschedule and erase may touch: pending, not in a node's hands.
pub(super) fn pending(write: &Write<'_>, id: MessageId) -> Result<Leaving> {
    match standing(write, id)? {
        Some(standing) if standing.place == Place::Claimed => Err(StoreError::Conflict(format!(
            "message {id} is processing; only a pending one can be changed"
        ))),
        Some(standing) => Ok(standing.leaving),
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

/// Its endpoint goes away, so even one in flight is given back and cancelled. It was tried all the same, and is completed
/// if its receiver acknowledges it.
pub(super) fn cancel_by_force(write: &mut Write<'_>, id: MessageId) -> Result<()> {
    let Some(standing) = standing(write, id)? else { return Ok(()) };
    let state = if standing.delivered_late { State::Completed } else { State::Cancelled };
    give_back(write, id, standing.losses, 0)?;
    let unblocked = archive::leave(write, &standing.leaving, state, None)?;
    write.tell_freed(unblocked)
}

pub(super) fn reschedule(write: &mut Write<'_>, id: MessageId, due_at: Timestamp) -> Result<()> {
    crate::send::check_time("at", due_at)?;
    let leaving = pending(write, id)?;
    let changed = write
        .conn
        .prepare_cached(
            "UPDATE _postrider_queue SET due_at = max(?2, ?3), scheduled_at = ?2
             WHERE id = ?1 AND (expires_at IS NULL OR expires_at > ?2)",
        )
        .and_then(|mut statement| statement.execute(params![id.0, micros_of(due_at), micros_of(write.now)]))
        .map_err(storage_error)?;
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
        Err(StoreError::Conflict(_)) if standing(write, id)?.is_none() => {}
        Err(error) => return Err(error),
    }
    archive::erase(write, id)?;
    dlq::erase(write, id)?;
    write
        .conn
        .prepare_cached("UPDATE _postrider_attempts SET body = NULL WHERE message_id = ?1")
        .and_then(|mut statement| statement.execute([id.0]))
        .map_err(storage_error)?;
    let subject: Arc<str> = id.to_string().into();
    events::log(write, "message.erased", Some(&subject), &json!({ "message": id }))
}
