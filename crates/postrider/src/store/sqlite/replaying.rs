//! A replay taken one step further: its next messages are looked up beside the writer, then made in one transaction with
//! the move of its position.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{OptionalExtension, params};
use serde_json::json;

use super::finished::{Found, Original, Table};
use super::job::Commit;
use super::replays::{self, Running};
use super::row::micros_of;
use super::writer::Write;
use super::{SqliteStore, archive, events, invalid_events, send, storage_error};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{MessageId, NewMessage};
use crate::rate::Grant;
use crate::store::{PATIENCE_SECONDS, ReplayTurn, Result, Skip, Store};

/// Messages in one step: about 4 ms.
const STEP_MESSAGES: usize = 100;

pub(super) async fn advance(store: &SqliteStore, limit: usize) -> Result<ReplayTurn> {
    let now = store.now();
    let running =
        match store.read(move |conn| replays::next_running(conn, now).map_err(storage_error)).await? {
            Ok(running) => running,
            Err(next_at) => return Ok(ReplayTurn::Idle(next_at)),
        };
    let id = running.id;
    if let Err(error) = go_on(store, running, now, limit).await {
        // Whatever keeps it from going on, it says so and lets the others have their turn.
        store.write(Commit::Soon, move |write| wait(write, id, &error.to_string())).await?;
    }
    Ok(ReplayTurn::Worked)
}

async fn go_on(store: &SqliteStore, running: Running, now: Timestamp, limit: usize) -> Result<()> {
    if running.counted_to < running.last_id {
        return count(store, running).await;
    }
    let wanted = limit.min(STEP_MESSAGES);
    let granted = grant(&running, now, wanted as u32);
    if let Some(Grant { granted: 0, next_at, .. }) = granted {
        return store.write(Commit::Soon, move |write| wait_until(write, &running, next_at)).await;
    }
    let wanted = granted.map_or(wanted, |grant| grant.granted as usize);
    let (looked, at) = (running.clone(), running.position);
    let look = store
        .read(move |conn| looked.selected.next(conn, at, looked.last_id, wanted).map_err(storage_error))
        .await?;
    let (found, reached) = (look.found, look.reached);
    store.write(Commit::Durable, move |write| step(write, &running, &found, reached)).await
}

/// None when it has no limit of its own.
fn grant(running: &Running, now: Timestamp, wanted: u32) -> Option<Grant> {
    running.rate_limit.map(|limit| limit.grant(running.rate_position, now, wanted))
}

async fn count(store: &SqliteStore, running: Running) -> Result<()> {
    let looked = running.clone();
    let (count, reached) = store
        .read(move |conn| {
            looked.selected.count(conn, looked.counted_to, looked.last_id).map_err(storage_error)
        })
        .await?;
    store
        .write(Commit::Soon, move |write| {
            let sql = "UPDATE _postrider_replays SET counted = counted + ?3, counted_to = ?4, waiting = NULL, next_at = ?5
                       WHERE id = ?1 AND counted_to = ?2 AND state = 'running'";
            let now = micros_of(write.now);
            let values = params![running.id, running.counted_to, count, reached, now];
            write.conn.execute(sql, values).map(|_| ()).map_err(storage_error)
        })
        .await
}

fn wait(write: &mut Write<'_>, id: i64, why: &str) -> Result<()> {
    let sql = "UPDATE _postrider_replays SET waiting = ?2, next_at = ?3 WHERE id = ?1 AND state = 'running'";
    let next_at = write.now + Duration::from_secs(PATIENCE_SECONDS);
    write.conn.execute(sql, params![id, why, micros_of(next_at)]).map(|_| ()).map_err(storage_error)
}

fn wait_until(write: &mut Write<'_>, running: &Running, next_at: Timestamp) -> Result<()> {
    let sql =
        "UPDATE _postrider_replays SET next_at = ?2, waiting = NULL WHERE id = ?1 AND state = 'running'";
    write.conn.execute(sql, params![running.id, micros_of(next_at)]).map(|_| ()).map_err(storage_error)
}

/// What a step did.
struct Step {
    position: i64,
    sent: u32,
    skipped: BTreeMap<String, u64>,
    /// Why it went no further.
    waiting: Option<String>,
}

fn step(write: &mut Write<'_>, running: &Running, found: &[Found], reached: i64) -> Result<()> {
    let Some(skipped) = where_it_was(write, running)? else { return Ok(()) };
    let mut step = Step { position: running.position, sent: 0, skipped, waiting: None };
    for found in found {
        match send_again(write, found, running.to) {
            Ok(Some(Ok(_))) => step.sent += 1,
            Ok(Some(Err(skip))) => *step.skipped.entry(skip.as_str().to_owned()).or_default() += 1,
            // It went since it was found.
            Ok(None) => {}
            Err(wait @ (StoreError::QueueFull { .. } | StoreError::Disabled { .. })) => {
                step.waiting = Some(wait.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
        step.position = found.id.0;
    }
    if step.waiting.is_none() {
        step.position = reached;
    }
    keep(write, running, &step)
}

/// What was skipped so far; None when somebody else took it further, or stopped it.
fn where_it_was(write: &Write<'_>, running: &Running) -> Result<Option<BTreeMap<String, u64>>> {
    let skipped: Option<String> = write
        .conn
        .prepare_cached(
            "SELECT skipped FROM _postrider_replays WHERE id = ?1 AND position = ?2 AND state = 'running'",
        )
        .and_then(|mut statement| {
            statement.query_row([running.id, running.position], |row| row.get(0)).optional()
        })
        .map_err(storage_error)?;
    Ok(skipped.map(|skipped| serde_json::from_str(&skipped).unwrap_or_default()))
}

fn keep(write: &mut Write<'_>, running: &Running, step: &Step) -> Result<()> {
    let rate_position = match grant(running, write.now, step.sent) {
        Some(grant) => Some(grant.position),
        None => running.rate_position,
    };
    let pause = if step.waiting.is_some() { PATIENCE_SECONDS } else { 0 };
    let next_at = write.now + Duration::from_secs(pause);
    write
        .conn
        .prepare_cached(
            "UPDATE _postrider_replays SET position = ?2, done = done + ?3, skipped = ?4, waiting = ?5,
               rate_position = ?6, next_at = ?7 WHERE id = ?1",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                running.id,
                step.position,
                step.sent,
                json!(step.skipped).to_string(),
                step.waiting,
                rate_position.map(micros_of),
                micros_of(next_at),
            ])
        })
        .map_err(storage_error)?;
    if step.position < running.last_id {
        return Ok(());
    }
    complete(write, running.id)
}

/// Retention may have taken some since they were counted.
fn complete(write: &mut Write<'_>, id: i64) -> Result<()> {
    let sql = "UPDATE _postrider_replays SET state = 'completed', ended_at = ?2,
                 counted = done + (SELECT coalesce(sum(value), 0) FROM json_each(skipped)) WHERE id = ?1";
    write.conn.execute(sql, params![id, micros_of(write.now)]).map_err(storage_error)?;
    let replay = replays::load(write.conn, id)?;
    replays::log(
        write,
        "replay.completed",
        id,
        &json!({ "messages": replay.done, "skipped": replay.skipped }),
    )
}

/// The new message, or why there is none; None when the old one is gone.
fn send_again(
    write: &mut Write<'_>,
    found: &Found,
    to: Option<EndpointId>,
) -> Result<Option<std::result::Result<MessageId, Skip>>> {
    let original = Original::load(write.conn, &found.table, found.id).map_err(storage_error)?;
    let Some(original) = original else { return Ok(None) };
    let Some(endpoint) = write.known.by_id(to.unwrap_or(original.endpoint)).cloned() else {
        let is_event =
            invalid_events::is_no_endpoint(write.conn, original.endpoint).map_err(storage_error)?;
        return Ok(Some(Err(if is_event { Skip::InvalidEvent } else { Skip::EndpointDropped })));
    };
    if original.unreadable.is_some() {
        return Ok(Some(Err(Skip::Invalid)));
    }
    let Some(payload) = original.payload else { return Ok(Some(Err(Skip::NoPayload))) };
    send::room_to_spare(write, &endpoint)?;
    let message = NewMessage { endpoint: endpoint.name.to_string(), payload, ..original.message };
    Ok(Some(match send::send_one(write, &message) {
        Ok(sent) => remember(write, sent.id, original.id).map(|()| Ok(sent.id))?,
        Err(StoreError::Invalid(_)) => Err(Skip::Invalid),
        Err(StoreError::TooLarge { .. }) => Err(Skip::TooLarge),
        Err(other) => return Err(other),
    }))
}

fn remember(write: &Write<'_>, id: MessageId, original: MessageId) -> Result<()> {
    write
        .conn
        .prepare_cached("INSERT INTO _postrider_replayed (id, original_id, at) VALUES (?1, ?2, ?3)")
        .and_then(|mut statement| statement.execute(params![id.0, original.0, micros_of(write.now)]))
        .map(|_| ())
        .map_err(storage_error)
}

/// One message, now, or it is said why not.
pub(super) fn replay_message(write: &mut Write<'_>, id: MessageId, to: Option<&str>) -> Result<MessageId> {
    let original = finished(write, id)?;
    let endpoint = match to {
        Some(name) => write.known.by_name(name)?.clone(),
        None => match write.known.by_id(original.endpoint) {
            Some(endpoint) => endpoint.clone(),
            None => return Err(without_endpoint(write, &original)),
        },
    };
    if let Some(unreadable) = original.unreadable {
        return Err(unreadable.into());
    }
    let payload = original
        .payload
        .ok_or_else(|| StoreError::Conflict(format!("message {id} has no payload any more")))?;
    let message = NewMessage { endpoint: endpoint.name.to_string(), payload, ..original.message };
    let new = send::send_one(write, &message)?.id;
    remember(write, new, id)?;
    events::log(
        write,
        "replay",
        Some(&endpoint.name),
        &json!({ "messages": 1, "message": id, "replayed_as": new }),
    )?;
    Ok(new)
}

fn without_endpoint(write: &Write<'_>, original: &Original) -> StoreError {
    let id = original.id;
    match invalid_events::is_no_endpoint(write.conn, original.endpoint) {
        Ok(true) => {
            StoreError::Conflict(format!("message {id} is an event without an endpoint; replay it to one"))
        }
        Ok(false) => StoreError::Conflict(format!(
            "the endpoint of message {id} was dropped; replay it to another one"
        )),
        Err(error) => storage_error(error),
    }
}

fn finished(write: &Write<'_>, id: MessageId) -> Result<Original> {
    let queued: Option<bool> = write
        .conn
        .query_row("SELECT place = 2 FROM _postrider_queue WHERE id = ?1", [id.0], |row| row.get(0))
        .optional()
        .map_err(storage_error)?;
    if let Some(claimed) = queued {
        let state = if claimed { "processing" } else { "pending" };
        return Err(StoreError::Conflict(format!(
            "message {id} is {state}; only a finished one can be replayed"
        )));
    }
    let table = match archive::month_of(write.conn, id).map_err(storage_error)? {
        Some(month) => Table::month(month),
        None => Table::dlq(),
    };
    Original::load(write.conn, &table, id)
        .map_err(storage_error)?
        .ok_or_else(|| StoreError::unknown_message(id))
}
