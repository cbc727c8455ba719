//! Replays: started, looked at and switched by people, advanced by nodes.

use std::collections::BTreeMap;

use async_trait::async_trait;
use deadpool_postgres::{ClientWrapper, Transaction};
use jiff::Timestamp;
use postgres_types::{Json, ToSql};
use serde_json::json;
use tokio_postgres::Row;

use super::errors::store_error;
use super::row::{big_count, count, named, optional_named, optional_text, optional_time, time, value};
use super::{PostgresStore, SharedState};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::MessageId;
use crate::rate::RateLimit;
use crate::store::replaying::{
    FoundMessage, NextReplay, ReplayProgress, ReplayStep, ReplaySteps, RunningReplay, StepEnd,
};
use crate::store::{
    NewReplay, Replay, ReplayPreview, ReplaySample, ReplaySelection, ReplayState, ReplayStatus, Replays,
    Result, SAMPLE_MAX, Skip, UNFINISHED_MAX, too_many_replays,
};

/// The replay of [`Asked`], as SQL.
const NEW: &str = "postrider._new_replay($1, $2, $3, $4, $5, $6, $7, $8)";

/// The columns that [`told`] reads, in its order.
const SELECT: &str = "SELECT r.id, r.state, e.name, r.event_type, r.ordering_key, r.status, r.created_from, r.created_until,
    t.name, r.rate_limit, CASE WHEN r.counted_to >= r.last_id THEN r.counted END, r.done, r.skipped, r.waiting,
    r.started_at, r.ended_at
  FROM postrider.replays r LEFT JOIN postrider.endpoints e ON e.id = r.endpoint_id
    LEFT JOIN postrider.endpoints t ON t.id = r.to_endpoint_id";

#[async_trait]
impl Replays for PostgresStore {
    async fn replay_message(&self, id: MessageId, to: Option<&str>) -> Result<MessageId> {
        let replay = "SELECT postrider._replay_message($1, $2)";
        let replayed = self.shared.pool.query_one(replay, &[&id.0, &to]).await;
        Ok(MessageId(self.shared.refusals.noted(replayed)?.get(0)))
    }

    async fn preview_replay(&self, replay: NewReplay) -> Result<ReplayPreview> {
        preview(&self.shared, &replay.checked()?).await
    }

    async fn start_replay(&self, replay: NewReplay) -> Result<Replay> {
        start(&self.shared, &replay.checked()?).await
    }

    async fn replay(&self, id: i64) -> Result<Replay> {
        load(&self.shared, id).await
    }

    async fn replays(&self, before: Option<i64>, limit: usize) -> Result<Vec<Replay>> {
        list(&self.shared, before, limit).await
    }

    async fn stop_replay(&self, id: i64) -> Result<Replay> {
        switch(&self.shared, id, ReplayState::Stopped).await
    }

    async fn resume_replay(&self, id: i64) -> Result<Replay> {
        switch(&self.shared, id, ReplayState::Running).await
    }
}

/// A replay as the arguments of `_new_replay`.
struct Asked<'a> {
    replay: &'a NewReplay,
    status: Option<&'static str>,
    rate_limit: Option<Json<RateLimit>>,
}

impl<'a> Asked<'a> {
    fn of(replay: &'a NewReplay) -> Self {
        let status = replay.selection.status.map(ReplayStatus::as_str);
        Self { replay, status, rate_limit: replay.rate_limit.map(Json) }
    }

    fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        let selection = &self.replay.selection;
        vec![
            &selection.endpoint,
            &selection.event_type,
            &selection.ordering_key,
            &self.status,
            &selection.from,
            &selection.until,
            &self.replay.to,
            &self.rate_limit,
        ]
    }
}

async fn start(shared: &SharedState, replay: &NewReplay) -> Result<Replay> {
    let asked = Asked::of(replay);
    let (whole, max, too_many) = (Json(json!(replay)), UNFINISHED_MAX as i64, too_many_replays());
    let mut values = asked.values();
    values.extend([&whole as &(dyn ToSql + Sync), &max, &too_many]);
    let start = format!("SELECT postrider._start_replay({NEW}, $9, $10, $11)");
    let id = shared.pool.query_one(&start, &values).await?.get(0);
    load(shared, id).await
}

async fn preview(shared: &SharedState, replay: &NewReplay) -> Result<ReplayPreview> {
    let asked = Asked::of(replay);
    let count = format!(
        "SELECT c.messages, c.no_payload, c.endpoint_dropped, c.invalid_event
         FROM {NEW} AS r, postrider._replay_count(r, 0, r.last_id) AS c"
    );
    let row = shared.prompt.query_one(&count, &asked.values()).await?;
    let skipped = [(Skip::NoPayload, 1), (Skip::EndpointDropped, 2), (Skip::InvalidEvent, 3)]
        .map(|(skip, column)| (skip, big_count(&row, column)));
    let skipped: BTreeMap<String, u64> = skipped
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(skip, count)| (skip.as_str().to_owned(), count))
        .collect();
    let count = big_count(&row, 0) - skipped.values().sum::<u64>();
    if count == 0 {
        return Ok(ReplayPreview { count, skipped, sample: Vec::new() });
    }
    let sample = format!(
        "SELECT s.id, s.endpoint, s.status, s.event_type, s.ordering_key, s.created_at
         FROM {NEW} AS r, postrider._replay_sample(r, $9) AS s ORDER BY s.id"
    );
    let max = SAMPLE_MAX as i32;
    let mut values = asked.values();
    values.push(&max);
    let rows = shared.prompt.query(&sample, &values).await?;
    let sample = rows.iter().map(sampled).collect::<Result<_>>()?;
    Ok(ReplayPreview { count, skipped, sample })
}

fn sampled(row: &Row) -> Result<ReplaySample> {
    Ok(ReplaySample {
        id: MessageId(row.get(0)),
        endpoint: row.get(1),
        status: named(row, 2)?,
        event_type: optional_text(row, 3),
        ordering_key: optional_text(row, 4),
        created_at: time(row, 5),
    })
}

async fn load(shared: &SharedState, id: i64) -> Result<Replay> {
    let rows = shared.prompt.query(&format!("{SELECT} WHERE r.id = $1"), &[&id]).await?;
    let unknown = || StoreError::Unknown { what: "replay", name: id.to_string() };
    told(rows.first().ok_or_else(unknown)?)
}

async fn list(shared: &SharedState, before: Option<i64>, limit: usize) -> Result<Vec<Replay>> {
    let list = format!("{SELECT} WHERE r.id < $1 ORDER BY r.id DESC LIMIT $2");
    let rows = shared.prompt.query(&list, &[&before.unwrap_or(i64::MAX), &(limit as i64)]).await?;
    rows.iter().map(told).collect()
}

fn told(row: &Row) -> Result<Replay> {
    Ok(Replay {
        id: row.get(0),
        state: named(row, 1)?,
        selection: ReplaySelection {
            endpoint: row.get(2),
            event_type: row.get(3),
            ordering_key: row.get(4),
            status: optional_named(row, 5)?,
            from: optional_time(row, 6),
            until: optional_time(row, 7),
        },
        to: row.get(8),
        rate_limit: rate_limit(row, 9)?,
        total: row.get::<_, Option<i64>>(10).map(|total| total.unsigned_abs()),
        done: big_count(row, 11),
        skipped: skipped(row, 12)?,
        waiting: optional_text(row, 13),
        started_at: time(row, 14),
        ended_at: optional_time(row, 15),
    })
}

async fn switch(shared: &SharedState, id: i64, to: ReplayState) -> Result<Replay> {
    shared.pool.call("SELECT postrider._switch_replay($1, $2)", &[&id, &to.as_str()]).await?;
    load(shared, id).await
}

#[async_trait]
impl ReplaySteps for PostgresStore {
    /// Some ten milliseconds.
    const STEP_MESSAGES: usize = 250;
    type Table = ();

    /// Skips a replay that another node is sending: its row is locked. The lock taken here ends with the query, so several nodes
    /// may begin the same step.
    async fn next_replay(&self) -> Result<NextReplay> {
        let first =
            "SELECT r.id, postrider._now(), r.to_endpoint_id, r.rate_limit, r.rate_position, r.last_id,
                       r.counted_to, r.position, r.done, r.skipped, r.next_at
                     FROM postrider.replays r WHERE r.state = 'running'
                     ORDER BY r.next_at, r.id LIMIT 1 FOR UPDATE SKIP LOCKED";
        let rows = self.shared.own.query(first, &[]).await?;
        let Some(row) = rows.first() else { return Ok(NextReplay::NotBefore(None)) };
        let (now, next_at): (Timestamp, Timestamp) = (row.get(1), row.get(10));
        if next_at > now {
            return Ok(NextReplay::NotBefore(Some(next_at)));
        }
        match running(row) {
            Ok(replay) => Ok(NextReplay::Due(replay)),
            Err(error) => {
                self.set_aside(row.get(0), &error).await?;
                Ok(NextReplay::NotBefore(None))
            }
        }
    }

    async fn count_selected(&self, replay: i64, after: i64, to: i64) -> Result<u64> {
        let count = "SELECT c.messages FROM postrider.replays r, postrider._replay_count(r, $2, $3) c WHERE r.id = $1";
        Ok(big_count(&self.shared.own.query_one(count, &[&replay, &after, &to]).await?, 0))
    }

    async fn find_selected(
        &self,
        replay: i64,
        after: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<FoundMessage<()>>> {
        let find = "SELECT o.id, coalesce(octet_length(o.payload), 0)::bigint
                    FROM postrider.replays r, postrider._replay_window(r, $2, $3, $4) o WHERE r.id = $1 ORDER BY o.id";
        let rows = self.shared.own.query(find, &[&replay, &after, &to, &(limit as i64)]).await?;
        let found = |row: &Row| FoundMessage { id: MessageId(row.get(0)), bytes: row.get(1), table: () };
        Ok(rows.iter().map(found).collect())
    }

    async fn keep_count(&self, replay: RunningReplay, count: u64, counted_to: i64) -> Result<StepEnd> {
        let keep = "UPDATE postrider.replays SET counted = counted + $3, counted_to = $4, waiting = NULL,
                      next_at = postrider._now()
                    WHERE id = (SELECT id FROM postrider.replays WHERE id = $1 AND counted_to = $2 AND state = 'running'
                                FOR UPDATE SKIP LOCKED)
                    RETURNING id";
        let values: [&(dyn ToSql + Sync); 4] = [&replay.id, &replay.counted_to, &(count as i64), &counted_to];
        Ok(end_of(&self.shared.own.query(keep, &values).await?))
    }

    async fn send_again(
        &self,
        replay: RunningReplay,
        found: Vec<FoundMessage<()>>,
        reached: i64,
    ) -> Result<StepEnd> {
        let ids: Vec<i64> = found.iter().map(|message| message.id.0).collect();
        let take_step = async |client: &mut ClientWrapper| {
            let transaction = client.transaction().await.map_err(store_error)?;
            let Some(step) = send(&transaction, &replay, &ids, reached).await? else {
                return Ok(StepEnd::Overtaken);
            };
            keep(&transaction, &replay, step).await?;
            transaction.commit().await.map_err(store_error)?;
            Ok(StepEnd::Done)
        };
        self.shared.own.with(take_step).await
    }

    async fn postpone(
        &self,
        replay: RunningReplay,
        until: Timestamp,
        waiting: Option<String>,
    ) -> Result<StepEnd> {
        let wait = "UPDATE postrider.replays SET next_at = $4, waiting = $5
                    WHERE id = (SELECT id FROM postrider.replays
                                WHERE id = $1 AND position = $2 AND counted_to = $3 AND state = 'running'
                                FOR UPDATE SKIP LOCKED)
                    RETURNING id";
        let values: [&(dyn ToSql + Sync); 5] =
            [&replay.id, &replay.position, &replay.counted_to, &until, &waiting];
        Ok(end_of(&self.shared.own.query(wait, &values).await?))
    }
}

/// Of an update that returns the replay's row if it is as the step found it.
fn end_of(changed: &[Row]) -> StepEnd {
    if changed.is_empty() { StepEnd::Overtaken } else { StepEnd::Done }
}

impl PostgresStore {
    /// A damaged row must not stop the other replays: it shows the error and is tried again later.
    async fn set_aside(&self, replay: i64, error: &StoreError) -> Result<()> {
        let wait =
            "UPDATE postrider.replays SET waiting = $2, next_at = postrider._now() + interval '1 minute'
                    WHERE id = (SELECT id FROM postrider.replays WHERE id = $1 FOR UPDATE SKIP LOCKED)";
        self.shared.own.call(wait, &[&replay, &error.to_string()]).await
    }
}

fn running(row: &Row) -> Result<RunningReplay> {
    Ok(RunningReplay {
        id: row.get(0),
        now: row.get(1),
        to: row.get::<_, Option<i64>>(2).map(EndpointId),
        rate_limit: rate_limit(row, 3)?,
        rate_position: optional_time(row, 4),
        last_id: row.get(5),
        counted_to: row.get(6),
        position: row.get(7),
        done: big_count(row, 8),
        skipped: skipped(row, 9)?,
    })
}

fn rate_limit(row: &Row, column: usize) -> Result<Option<RateLimit>> {
    Ok(value::<Option<Json<RateLimit>>>(row, column)?.map(|limit| limit.0))
}

fn skipped(row: &Row, column: usize) -> Result<BTreeMap<String, u64>> {
    Ok(value::<Json<BTreeMap<String, u64>>>(row, column)?.0)
}

/// Locks the replay's row and sends; None when another node has it, or took this step, or the replay was stopped.
async fn send(
    transaction: &Transaction<'_>,
    replay: &RunningReplay,
    ids: &[i64],
    reached: i64,
) -> Result<Option<ReplayStep>> {
    let lock = "SELECT FROM postrider.replays WHERE id = $1 AND position = $2 AND state = 'running'
                FOR UPDATE SKIP LOCKED";
    let lock = transaction.prepare_cached(lock).await.map_err(store_error)?;
    let locked = transaction.query_opt(&lock, &[&replay.id, &replay.position]).await.map_err(store_error)?;
    if locked.is_none() {
        return Ok(None);
    }
    if ids.is_empty() {
        return Ok(Some(ReplayStep { position: reached, sent: 0, skipped: BTreeMap::new(), waiting: None }));
    }
    let send = "SELECT s.reached, s.sent, s.skipped, s.waiting
                FROM postrider.replays r, postrider._replay_messages(r, $2) s WHERE r.id = $1";
    let send = transaction.prepare_cached(send).await.map_err(store_error)?;
    let row = transaction.query_one(&send, &[&replay.id, &ids]).await.map_err(store_error)?;
    Ok(Some(ReplayStep {
        position: row.get::<_, Option<i64>>(0).unwrap_or(reached),
        sent: u64::from(count(&row, 1)),
        skipped: skipped(&row, 2)?,
        waiting: row.get(3),
    }))
}

async fn keep(transaction: &Transaction<'_>, replay: &RunningReplay, step: ReplayStep) -> Result<()> {
    let ReplayProgress { position, done, skipped, waiting, rate_position, next_at, completed } =
        replay.after(step);
    let keep = "UPDATE postrider.replays SET position = $2, done = $3, skipped = $4, waiting = $5, rate_position = $6,
                  next_at = $7 WHERE id = $1";
    let keep = transaction.prepare_cached(keep).await.map_err(store_error)?;
    let values: [&(dyn ToSql + Sync); 7] =
        [&replay.id, &position, &(done as i64), &Json(&skipped), &waiting, &rate_position, &next_at];
    transaction.execute(&keep, &values).await.map_err(store_error)?;
    let Some(selected) = completed else { return Ok(()) };
    let complete =
        "UPDATE postrider.replays SET state = 'completed', ended_at = postrider._now(), counted = $2,
                      waiting = NULL WHERE id = $1";
    transaction.execute(complete, &[&replay.id, &(selected as i64)]).await.map_err(store_error)?;
    let detail = Json(json!({ "messages": done, "skipped": skipped }));
    let log = "SELECT postrider._log_event('replay.completed', $1::bigint::text, $2)";
    transaction.execute(log, &[&replay.id, &detail]).await.map(drop).map_err(store_error)
}
