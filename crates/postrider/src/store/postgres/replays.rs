//! Replays: started, looked at and switched by people, advanced by nodes in `sql/replaying.sql`.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use postgres_types::{Json, ToSql};
use serde_json::json;
use tokio_postgres::Row;

use super::row::{Span, big_count, optional_text, time};
use super::{PostgresStore, Shared};
use crate::error::StoreError;
use crate::message::MessageId;
use crate::rate::RateLimit;
use crate::store::{
    NewReplay, PATIENCE_SECONDS, Replay, ReplayPreview, ReplaySample, ReplaySelection, ReplayState,
    ReplayStatus, ReplayTurn, Replays, Result, SAMPLE_MAX, STEP_BYTES_MAX, Skip, UNFINISHED_MAX,
    too_many_replays,
};

/// Messages in one step: some ten milliseconds.
const STEP_MESSAGES: usize = 250;

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

async fn start(shared: &Shared, replay: &NewReplay) -> Result<Replay> {
    let asked = Asked::of(replay);
    let (whole, max, too_many) = (Json(json!(replay)), UNFINISHED_MAX as i64, too_many_replays());
    let mut values = asked.values();
    values.extend([&whole as &(dyn ToSql + Sync), &max, &too_many]);
    let start = format!("SELECT postrider._start_replay({NEW}, $9, $10, $11)");
    let id = shared.pool.query_one(&start, &values).await?.get(0);
    load(shared, id).await
}

async fn preview(shared: &Shared, replay: &NewReplay) -> Result<ReplayPreview> {
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
    Ok(ReplayPreview { count, skipped, sample: rows.iter().map(sampled).collect() })
}

fn sampled(row: &Row) -> ReplaySample {
    ReplaySample {
        id: MessageId(row.get(0)),
        endpoint: row.get(1),
        status: ReplayStatus::named(row.get(2)).unwrap_or(ReplayStatus::Failed),
        event_type: optional_text(row, 3),
        ordering_key: optional_text(row, 4),
        created_at: time(row, 5),
    }
}

async fn load(shared: &Shared, id: i64) -> Result<Replay> {
    let rows = shared.prompt.query(&format!("{SELECT} WHERE r.id = $1"), &[&id]).await?;
    let unknown = || StoreError::Unknown { what: "replay", name: id.to_string() };
    rows.first().map(told).ok_or_else(unknown)
}

async fn list(shared: &Shared, before: Option<i64>, limit: usize) -> Result<Vec<Replay>> {
    let list = format!("{SELECT} WHERE r.id < $1 ORDER BY r.id DESC LIMIT $2");
    let rows = shared.prompt.query(&list, &[&before.unwrap_or(i64::MAX), &(limit as i64)]).await?;
    Ok(rows.iter().map(told).collect())
}

fn told(row: &Row) -> Replay {
    Replay {
        id: row.get(0),
        state: ReplayState::named(row.get(1)),
        selection: ReplaySelection {
            endpoint: row.get(2),
            event_type: row.get(3),
            ordering_key: row.get(4),
            status: row.get::<_, Option<&str>>(5).and_then(ReplayStatus::named),
            from: row.get(6),
            until: row.get(7),
        },
        to: row.get(8),
        rate_limit: row.get::<_, Option<Json<RateLimit>>>(9).map(|limit| limit.0),
        total: row.get::<_, Option<i64>>(10).map(|total| total.unsigned_abs()),
        done: big_count(row, 11),
        skipped: row.get::<_, Json<BTreeMap<String, u64>>>(12).0,
        waiting: row.get(13),
        started_at: row.get(14),
        ended_at: row.get(15),
    }
}

async fn switch(shared: &Shared, id: i64, to: ReplayState) -> Result<Replay> {
    shared.pool.call("SELECT postrider._switch_replay($1, $2)", &[&id, &to.as_str()]).await?;
    load(shared, id).await
}

/// Whichever node is first has the turn: the others find the replay's row locked, and leave it.
pub(super) async fn advance(shared: &Shared, limit: usize) -> Result<ReplayTurn> {
    let advance = "SELECT worked, next_at FROM postrider._advance_replay($1, $2, $3)";
    let patience = Span(Duration::from_secs(PATIENCE_SECONDS));
    let limit = limit.min(STEP_MESSAGES) as i32;
    let row = shared.own.query_one(advance, &[&limit, &STEP_BYTES_MAX, &patience]).await?;
    Ok(match row.get(0) {
        true => ReplayTurn::Worked,
        false => ReplayTurn::Idle(row.get(1)),
    })
}
