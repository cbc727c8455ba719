//! A replay's steps on SQLite: readers find its next messages; the writer sends them and moves its position in one
//! transaction.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::params;
use serde_json::json;

use super::finished::{FinishedTable, Original};
use super::job::CommitMode;
use super::query::Query;
use super::replays;
use super::row::micros_of;
use super::writer::Write;
use super::{SqliteStore, archive, events, invalid_events, send};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{MessageId, NewMessage};
use crate::store::replaying::{FoundMessage, NextReplay, ReplayStep, ReplaySteps, RunningReplay, StepEnd};
use crate::store::{Result, Skip, Store};

type SelectedMessage = FoundMessage<Arc<FinishedTable>>;

#[async_trait]
impl ReplaySteps for SqliteStore {
    /// About 4 ms.
    const STEP_MESSAGES: usize = 100;
    type Table = Arc<FinishedTable>;

    async fn next_replay(&self) -> Result<NextReplay> {
        let now = self.now();
        self.read(move |conn| replays::next_running(conn, now)).await
    }

    async fn count_selected(&self, replay: i64, after: i64, to: i64) -> Result<u64> {
        self.read(move |conn| replays::selected(conn, replay)?.count(conn, after, to)).await
    }

    async fn find_selected(
        &self,
        replay: i64,
        after: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<SelectedMessage>> {
        self.read(move |conn| replays::selected(conn, replay)?.window(conn, after, to, limit)).await
    }

    async fn keep_count(&self, replay: RunningReplay, count: u64, counted_to: i64) -> Result<StepEnd> {
        self.write(CommitMode::Soon, move |write| {
            let counted = write.conn.run_counted(
                "UPDATE _postrider_replays SET counted = counted + ?3, counted_to = ?4, waiting = NULL,
                   next_at = ?5
                 WHERE id = ?1 AND counted_to = ?2 AND state = 'running'",
                params![replay.id, replay.counted_to, count, counted_to, micros_of(write.now)],
            )?;
            Ok(end_of(counted))
        })
        .await
    }

    async fn send_again(
        &self,
        replay: RunningReplay,
        found: Vec<SelectedMessage>,
        reached: i64,
    ) -> Result<StepEnd> {
        self.write(CommitMode::Durable, move |write| step(write, &replay, &found, reached)).await
    }

    async fn postpone(
        &self,
        replay: RunningReplay,
        until: Timestamp,
        waiting: Option<String>,
    ) -> Result<StepEnd> {
        self.write(CommitMode::Soon, move |write| {
            let postponed = write.conn.run_counted(
                "UPDATE _postrider_replays SET next_at = ?4, waiting = ?5
                 WHERE id = ?1 AND position = ?2 AND counted_to = ?3 AND state = 'running'",
                params![replay.id, replay.position, replay.counted_to, micros_of(until), waiting],
            )?;
            Ok(end_of(postponed))
        })
        .await
    }
}

/// Of an update that changes the replay's row if it is as the step found it.
fn end_of(changed: usize) -> StepEnd {
    if changed == 0 { StepEnd::Overtaken } else { StepEnd::Done }
}

fn step(
    write: &mut Write<'_>,
    replay: &RunningReplay,
    found: &[SelectedMessage],
    reached: i64,
) -> Result<StepEnd> {
    let is_current: bool = write.conn.value(
        "SELECT EXISTS (SELECT 1 FROM _postrider_replays
                        WHERE id = ?1 AND position = ?2 AND state = 'running')",
        [replay.id, replay.position],
    )?;
    if !is_current {
        return Ok(StepEnd::Overtaken);
    }
    let mut step = ReplayStep { position: reached, sent: 0, skipped: BTreeMap::new(), waiting: None };
    let mut position = replay.position;
    for found in found {
        match send_one_again(write, found, replay.to) {
            Ok(Some(Ok(_))) => step.sent += 1,
            Ok(Some(Err(skip))) => *step.skipped.entry(skip.as_str().to_owned()).or_default() += 1,
            // It was deleted since it was found.
            Ok(None) => {}
            Err(wait @ (StoreError::QueueFull { .. } | StoreError::Disabled { .. })) => {
                (step.position, step.waiting) = (position, Some(wait.to_string()));
                break;
            }
            Err(error) => return Err(error),
        }
        position = found.id.0;
    }
    keep(write, replay, step)?;
    Ok(StepEnd::Done)
}

fn keep(write: &mut Write<'_>, replay: &RunningReplay, step: ReplayStep) -> Result<()> {
    let progress = replay.after(step);
    write.conn.run(
        "UPDATE _postrider_replays SET position = ?2, done = ?3, skipped = ?4, waiting = ?5,
           rate_position = ?6, next_at = ?7 WHERE id = ?1",
        params![
            replay.id,
            progress.position,
            progress.done,
            json!(progress.skipped).to_string(),
            progress.waiting,
            progress.rate_position.map(micros_of),
            micros_of(progress.next_at),
        ],
    )?;
    let Some(selected) = progress.completed else { return Ok(()) };
    write.conn.run(
        "UPDATE _postrider_replays SET state = 'completed', ended_at = ?2, counted = ?3, waiting = NULL
         WHERE id = ?1",
        params![replay.id, micros_of(write.now), selected],
    )?;
    let detail = json!({ "messages": progress.done, "skipped": progress.skipped });
    replays::log(write, "replay.completed", replay.id, &detail)
}

/// The new message, or why it was skipped; None when the original was deleted.
fn send_one_again(
    write: &mut Write<'_>,
    found: &SelectedMessage,
    to: Option<EndpointId>,
) -> Result<Option<std::result::Result<MessageId, Skip>>> {
    let original = Original::load(write.conn, &found.table, found.id)?;
    let Some(original) = original else { return Ok(None) };
    let Some(endpoint) = write.config.by_id(to.unwrap_or(original.endpoint)).cloned() else {
        let is_event = invalid_events::is_no_endpoint(write.conn, original.endpoint)?;
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
    write.conn.run(
        "INSERT INTO _postrider_replayed (id, original_id, at) VALUES (?1, ?2, ?3)",
        params![id.0, original.0, micros_of(write.now)],
    )
}

/// Replays one message at once.
pub(super) fn replay_message(write: &mut Write<'_>, id: MessageId, to: Option<&str>) -> Result<MessageId> {
    let original = finished(write, id)?;
    let endpoint = match to {
        Some(name) => write.config.by_name(name)?.clone(),
        None => match write.config.by_id(original.endpoint) {
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
        Err(error) => error,
    }
}

fn finished(write: &Write<'_>, id: MessageId) -> Result<Original> {
    let queued: Option<bool> =
        write.conn.find("SELECT place = 2 FROM _postrider_queue WHERE id = ?1", [id.0], |row| row.get(0))?;
    if let Some(claimed) = queued {
        let state = if claimed { "processing" } else { "pending" };
        return Err(StoreError::Conflict(format!(
            "message {id} is {state}; only a finished one can be replayed"
        )));
    }
    let table = match archive::month_of(write.conn, id)? {
        Some(month) => FinishedTable::month(month),
        None => FinishedTable::dlq(),
    };
    Original::load(write.conn, &table, id)?.ok_or_else(|| StoreError::unknown_message(id))
}
