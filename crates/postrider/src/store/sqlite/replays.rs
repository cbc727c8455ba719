//! Replays as rows: start, look, stop, resume. `replaying.rs` does their steps.

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde_json::json;

use super::endpoints;
use super::finished::Selected;
use super::job::CommitMode;
use super::query::Query;
use super::row::{at, micros_of, named, optional_at, optional_named};
use super::writer::Write;
use super::{SqliteStore, events, replaying};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::MessageId;
use crate::rate::RateLimit;
use crate::store::replaying::{NextReplay, RunningReplay};
use crate::store::{
    NewReplay, Replay, ReplayPreview, ReplaySelection, ReplayState, ReplayStatus, Replays, Result,
    SAMPLE_MAX, Skip, Store, UNFINISHED_MAX, too_many_replays,
};

/// The columns that [`told`] reads, in its order.
const COLUMNS: &str = "r.id, r.state, (SELECT name FROM _postrider_endpoints WHERE id = r.endpoint_id), r.event_type, \
     r.ordering_key, r.status, r.created_from, r.created_until, \
     (SELECT name FROM _postrider_endpoints WHERE id = r.to_endpoint_id), r.rate_limit, \
     CASE WHEN r.counted_to >= r.last_id THEN r.counted END, r.done, r.skipped, r.waiting, r.started_at, r.ended_at";

#[async_trait]
impl Replays for SqliteStore {
    async fn replay_message(&self, id: MessageId, to: Option<&str>) -> Result<MessageId> {
        let to = to.map(str::to_owned);
        self.write(CommitMode::Durable, move |write| replaying::replay_message(write, id, to.as_deref()))
            .await
    }

    async fn preview_replay(&self, replay: NewReplay) -> Result<ReplayPreview> {
        let (replay, now) = (replay.checked()?, self.now());
        self.read(move |conn| preview(conn, now, &replay)).await
    }

    async fn start_replay(&self, replay: NewReplay) -> Result<Replay> {
        let replay = replay.checked()?;
        self.write(CommitMode::Durable, move |write| start(write, &replay)).await
    }

    async fn replay(&self, id: i64) -> Result<Replay> {
        self.read(move |conn| load(conn, id)).await
    }

    async fn replays(&self, before: Option<i64>, limit: usize) -> Result<Vec<Replay>> {
        self.read(move |conn| list(conn, before, limit)).await
    }

    async fn stop_replay(&self, id: i64) -> Result<Replay> {
        self.write(CommitMode::Durable, move |write| stop(write, id)).await
    }

    async fn resume_replay(&self, id: i64) -> Result<Replay> {
        self.write(CommitMode::Durable, move |write| resume(write, id)).await
    }
}

pub(super) fn start(write: &mut Write<'_>, replay: &NewReplay) -> Result<Replay> {
    let id_of = |name: &String| write.config.by_name(name).map(|endpoint| endpoint.id.0);
    let endpoint = replay.selection.endpoint.as_ref().map(id_of).transpose()?;
    let to = replay.to.as_ref().map(id_of).transpose()?;
    let unfinished: u64 =
        write.conn.value("SELECT count(*) FROM _postrider_replays WHERE state <> 'completed'", [])?;
    if unfinished >= UNFINISHED_MAX {
        return Err(StoreError::Conflict(too_many_replays()));
    }
    let now = micros_of(write.now);
    let selection = &replay.selection;
    let id = write.conn.insert(
        "INSERT INTO _postrider_replays (state, endpoint_id, event_type, ordering_key, status, created_from,
           created_until, to_endpoint_id, rate_limit, last_id, next_at, started_at)
         VALUES ('running', ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
           (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '_postrider_queue'), ?9, ?9)",
        params![
            endpoint,
            selection.event_type,
            selection.ordering_key,
            selection.status.map(ReplayStatus::as_str),
            selection.from.map(micros_of),
            selection.until.map(micros_of),
            to,
            replay.rate_limit.map(|limit| json!(limit).to_string()),
            now,
        ],
    )?;
    log(write, "replay.started", id, &json!(replay))?;
    load(write.conn, id)
}

pub(super) fn load(conn: &Connection, id: i64) -> Result<Replay> {
    conn.find(&format!("SELECT {COLUMNS} FROM _postrider_replays AS r WHERE r.id = ?1"), [id], told)?
        .ok_or_else(|| StoreError::Unknown { what: "replay", name: id.to_string() })
}

pub(super) fn list(conn: &Connection, before: Option<i64>, limit: usize) -> Result<Vec<Replay>> {
    conn.rows(
        &format!("SELECT {COLUMNS} FROM _postrider_replays AS r WHERE r.id < ?1 ORDER BY r.id DESC LIMIT ?2"),
        params![before.unwrap_or(i64::MAX), limit as i64],
        told,
    )
}

pub(super) fn stop(write: &mut Write<'_>, id: i64) -> Result<Replay> {
    if expect_unfinished(write.conn, id)? == ReplayState::Running {
        let sql =
            "UPDATE _postrider_replays SET state = 'stopped', waiting = NULL, ended_at = ?2 WHERE id = ?1";
        write.conn.run(sql, params![id, micros_of(write.now)])?;
        log(write, "replay.stopped", id, &json!({}))?;
    }
    load(write.conn, id)
}

pub(super) fn resume(write: &mut Write<'_>, id: i64) -> Result<Replay> {
    if expect_unfinished(write.conn, id)? == ReplayState::Stopped {
        let sql =
            "UPDATE _postrider_replays SET state = 'running', next_at = ?2, ended_at = NULL WHERE id = ?1";
        write.conn.run(sql, params![id, micros_of(write.now)])?;
        log(write, "replay.resumed", id, &json!({}))?;
    }
    load(write.conn, id)
}

fn expect_unfinished(conn: &Connection, id: i64) -> Result<ReplayState> {
    match load(conn, id)?.state {
        ReplayState::Completed => Err(StoreError::Conflict(format!("replay {id} is completed already"))),
        state @ (ReplayState::Running | ReplayState::Stopped) => Ok(state),
    }
}

pub(super) fn log(write: &mut Write<'_>, kind: &str, id: i64, detail: &serde_json::Value) -> Result<()> {
    events::log(write, kind, Some(&id.to_string()), detail)
}

/// What the replay would send if it started now.
pub(super) fn preview(conn: &Connection, now: Timestamp, replay: &NewReplay) -> Result<ReplayPreview> {
    let id_of = |name: &String| endpoints::load_by_name(conn, name).map(|endpoint| endpoint.id);
    let endpoint = replay.selection.endpoint.as_ref().map(id_of).transpose()?;
    let to = replay.to.as_ref().map(id_of).transpose()?;
    let ReplaySelection { event_type, ordering_key, status, from, until, .. } = replay.selection.clone();
    let (from, until) = (from.map(micros_of), until.map(micros_of));
    let selected =
        Selected { endpoint, event_type, ordering_key, status, from, until, finished_by: micros_of(now) };
    let [count, no_payload, dropped, events] = selected.count_all(conn, i64::MAX, to)?;
    let sample = match count {
        0 => Vec::new(),
        _ => selected.sample(conn, i64::MAX, to, SAMPLE_MAX)?,
    };
    let skipped =
        [(Skip::NoPayload, no_payload), (Skip::EndpointDropped, dropped), (Skip::InvalidEvent, events)];
    let skipped = skipped.into_iter().filter(|(_, count)| *count > 0);
    let skipped = skipped.map(|(skip, count)| (skip.as_str().to_owned(), count)).collect();
    Ok(ReplayPreview { count, skipped, sample })
}

/// Those that ended long ago, oldest first.
pub(super) fn clean_up(write: &mut Write<'_>, before: i64, limit: usize) -> Result<usize> {
    let sql = "DELETE FROM _postrider_replays WHERE id IN
                 (SELECT id FROM _postrider_replays WHERE ended_at <= ?1 ORDER BY id LIMIT ?2)";
    write.conn.run_counted(sql, params![before, limit as i64])
}

fn told(row: &Row<'_>) -> rusqlite::Result<Replay> {
    Ok(Replay {
        id: row.get(0)?,
        state: named(row, 1)?,
        selection: ReplaySelection {
            endpoint: row.get(2)?,
            event_type: row.get(3)?,
            ordering_key: row.get(4)?,
            status: optional_named(row, 5)?,
            from: optional_at(row.get(6)?),
            until: optional_at(row.get(7)?),
        },
        to: row.get(8)?,
        rate_limit: rate_limit(row, 9)?,
        total: row.get(10)?,
        done: row.get(11)?,
        skipped: json_of(row, 12)?,
        waiting: row.get(13)?,
        started_at: at(row.get(14)?),
        ended_at: optional_at(row.get(15)?),
    })
}

fn rate_limit(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<RateLimit>> {
    match row.get_ref(column)?.as_str_or_null()? {
        None => Ok(None),
        Some(_) => json_of(row, column).map(Some),
    }
}

fn json_of<T: serde::de::DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    serde_json::from_str(row.get_ref(column)?.as_str()?)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

/// The running replay that waited longest for its turn.
pub(super) fn next_running(conn: &Connection, now: Timestamp) -> Result<NextReplay> {
    let first = conn.find(
        "SELECT id, to_endpoint_id, rate_limit, rate_position, last_id, counted_to, position, done, skipped,
           next_at
         FROM _postrider_replays WHERE state = 'running' ORDER BY next_at, id LIMIT 1",
        [],
        |row| {
            let replay = RunningReplay {
                id: row.get(0)?,
                now,
                to: row.get::<_, Option<i64>>(1)?.map(EndpointId),
                rate_limit: rate_limit(row, 2)?,
                rate_position: optional_at(row.get(3)?),
                last_id: row.get(4)?,
                counted_to: row.get(5)?,
                position: row.get(6)?,
                done: row.get(7)?,
                // One damaged row must not stop the other replays.
                skipped: json_of(row, 8).unwrap_or_default(),
            };
            Ok((replay, at(row.get(9)?)))
        },
    )?;
    Ok(match first {
        Some((replay, next_at)) if next_at <= now => NextReplay::Due(replay),
        Some((_, next_at)) => NextReplay::NotBefore(Some(next_at)),
        None => NextReplay::NotBefore(None),
    })
}

/// What a running replay selects.
pub(super) fn selected(conn: &Connection, id: i64) -> Result<Selected> {
    conn.row(
        "SELECT endpoint_id, event_type, ordering_key, status, created_from, created_until, started_at
         FROM _postrider_replays WHERE id = ?1",
        [id],
        |row| {
            Ok(Selected {
                endpoint: row.get::<_, Option<i64>>(0)?.map(EndpointId),
                event_type: row.get(1)?,
                ordering_key: row.get(2)?,
                status: optional_named(row, 3)?,
                from: row.get(4)?,
                until: row.get(5)?,
                finished_by: row.get(6)?,
            })
        },
    )
}
