//! The archive: finished messages in one table per month of creation.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use jiff::tz::Offset;
use rusqlite::types::Null;
use rusqlite::{Connection, params};

use super::keys::{self, OrderingKey, QueuePlace};
use super::query::Query;
use super::row::{at, id_list, micros_of};
use super::surface;
use super::writer::Write;
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{MessageId, State};
use crate::settings::{ArchiveMode, AttemptLog};
use crate::store::Result;

const MONTHS_AHEAD: i32 = 3;
/// 9998-12-31, so that every month has a next one.
const LAST_MONTH: Timestamp = Timestamp::constant(253_370_678_400, 0);
const TABLE_PREFIX: &str = "_postrider_archive_";
/// Claimed, without keys, made between ?5 and ?6.
const SIMPLE: &str = "AND place = 2 AND ordering_key IS NULL AND idempotency_key IS NULL
                      AND created_at >= ?5 AND created_at < ?6";

/// A month of the archive: `_postrider_archive_2026_11`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Month {
    year: i16,
    month: i8,
}

impl Month {
    pub(super) fn of(micros: i64) -> Self {
        Self::at(at(micros))
    }

    /// Between 1970 and 9998: other years do not fit into the name of a table.
    fn at(at: Timestamp) -> Self {
        let date = Offset::UTC.to_datetime(at.clamp(Timestamp::UNIX_EPOCH, LAST_MONTH));
        Self { year: date.year(), month: date.month() }
    }

    /// In microseconds.
    pub(super) fn begins_at(self) -> i64 {
        let first = jiff::civil::date(self.year, self.month, 1).at(0, 0, 0, 0);
        Offset::UTC.to_timestamp(first).map_or(i64::MAX, micros_of)
    }

    /// In microseconds: when the next one begins.
    pub(super) fn ends_at(self) -> i64 {
        self.next().begins_at()
    }

    pub(super) fn first_day(&self) -> String {
        format!("{:04}-{:02}-01", self.year, self.month)
    }

    pub(super) fn table(self) -> String {
        format!("{TABLE_PREFIX}{:04}_{:02}", self.year, self.month)
    }

    /// Newest first: most questions are about what just happened.
    pub(super) fn existing(conn: &Connection) -> Result<Vec<Self>> {
        let mut months = conn.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name GLOB '_postrider_archive_[0-9]*'",
            [],
            |row| Ok(Self::parse(row.get_ref(0)?.as_str()?)),
        )?;
        months.sort_unstable_by(|a, b| b.cmp(a));
        Ok(months.into_iter().flatten().collect())
    }

    pub(super) fn begin(self, conn: &Connection) -> Result<()> {
        let sql = include_str!("sql/archive_month.sql").replace("{table}", &self.table());
        Ok(conn.execute_batch(&sql)?)
    }

    fn parse(table: &str) -> Option<Self> {
        let (year, month) = table.strip_prefix(TABLE_PREFIX)?.split_once('_')?;
        Some(Self { year: year.parse().ok()?, month: month.parse().ok()? })
    }

    fn next(self) -> Self {
        match self.month {
            12 => Self { year: self.year + 1, month: 1 },
            month => Self { month: month + 1, ..self },
        }
    }
}

/// SQL per month, made once.
#[derive(Default)]
pub(super) struct Months {
    made: BTreeMap<Month, Statements>,
}

/// Each for one message, by its id, and for many, by a list of ids.
struct Statements {
    whole: String,
    whole_many: String,
    metadata: String,
    metadata_many: String,
}

impl Months {
    pub(super) fn forget(&mut self) {
        self.made.clear();
    }

    fn statements(&mut self, conn: &Connection, month: Month) -> Result<&Statements> {
        match self.made.entry(month) {
            Entry::Occupied(made) => Ok(made.into_mut()),
            Entry::Vacant(place) => {
                if !Month::existing(conn)?.contains(&month) {
                    month.begin(conn).and_then(|()| surface::refresh_archive(conn))?;
                }
                Ok(place.insert(Statements::into_table(&month.table())))
            }
        }
    }
}

impl Statements {
    fn into_table(table: &str) -> Self {
        const ONE: &str = "= ?1";
        const MANY: &str = "IN (SELECT value FROM json_each(?1))";
        let simple = format!("{MANY} {SIMPLE}");
        // FAIL, not ABORT: SQLite then keeps no journal to undo single rows; an error ends the transaction anyway.
        let insert = |headers: &str, payload: &str, which: &str| {
            format!(
                "INSERT OR FAIL INTO {table} (id, endpoint_id, status, finished_at, priority, attempts, place,
                   delivered_late, ordering_key, created_at, scheduled_at, expires_at, idempotency_key,
                   correlation_id, event_type, last_error, content_type, headers, options, payload)
                 SELECT id, endpoint_id, ?2, ?3, priority, attempts - ?4, place,
                   delivered_late, ordering_key, created_at, scheduled_at, expires_at, idempotency_key,
                   correlation_id, event_type, last_error, content_type, {headers}, options, {payload}
                 FROM _postrider_queue WHERE id {which}"
            )
        };
        Self {
            whole: insert("headers", "payload", ONE),
            whole_many: insert("headers", "payload", &simple),
            metadata: insert("NULL", "NULL", ONE),
            metadata_many: insert("NULL", "NULL", &simple),
        }
    }
}

/// Tables for the months to come, so that no delivery has to make one.
pub(super) fn make_months_ahead(write: &mut Write<'_>) -> Result<()> {
    let mut month = Month::of(micros_of(write.now));
    for _ in 0..=MONTHS_AHEAD {
        write.months.statements(write.conn, month)?;
        month = month.next();
    }
    Ok(())
}

/// A message on its way out of the queue.
pub(super) struct LeavingMessage {
    pub(super) id: MessageId,
    pub(super) endpoint: EndpointId,
    pub(super) created_at: Timestamp,
    pub(super) has_idempotency_key: bool,
    pub(super) place: QueuePlace,
    pub(super) key: Option<OrderingKey>,
}

/// Finishes a pending message that a claim or expiry found, and tells nodes which endpoint that unblocks.
pub(super) fn finish(write: &mut Write<'_>, id: MessageId, state: State) -> Result<()> {
    let leaving = super::settle::pending(write, id)?;
    let unblocked = leave(write, &leaving, state, None)?;
    write.tell_freed(unblocked)
}

/// Queue to archive. `uncounted` attempts were claimed and never begun. Returns the endpoint whose next
/// message of the same key is claimable now.
pub(super) fn leave(
    write: &mut Write<'_>,
    leaving: &LeavingMessage,
    state: State,
    uncounted: Option<u32>,
) -> Result<Option<EndpointId>> {
    let settings = write.config.settings().clone();
    if settings.archive != ArchiveMode::Off {
        let statements = write.months.statements(write.conn, Month::at(leaving.created_at))?;
        let sql = match settings.archive {
            ArchiveMode::On => &statements.whole,
            ArchiveMode::Metadata | ArchiveMode::Off => &statements.metadata,
        };
        let now = micros_of(write.now);
        write.conn.run(sql, params![leaving.id.0, state.as_str(), now, uncounted.unwrap_or(0)])?;
    }
    if leaving.has_idempotency_key && state == State::Completed && !settings.idempotency_retention.is_zero() {
        reserve_key(write, leaving.id)?;
    }
    if settings.attempt_log == AttemptLog::Off {
        forget_attempts(write, leaving.id)?;
    }
    remove(write, leaving)
}

/// Completes those of `delivered` that are claimed, have no keys and were made this month, all at once. The
/// fence does not matter: without an ordering key a late delivery counts as well.
pub(super) fn complete_in_bulk(
    write: &mut Write<'_>,
    delivered: &HashMap<MessageId, EndpointId>,
) -> Result<Vec<MessageId>> {
    let month = Month::of(micros_of(write.now));
    let (from, to) = (month.begins_at(), month.next().begins_at());
    let ids: Vec<MessageId> = delivered.keys().copied().collect();
    let list = id_list(ids.iter().copied());
    let mode = write.config.settings().archive;
    let archived = match mode {
        ArchiveMode::Off => None,
        ArchiveMode::On | ArchiveMode::Metadata => {
            let statements = write.months.statements(write.conn, month)?;
            let whole = mode == ArchiveMode::On;
            let sql = if whole { &statements.whole_many } else { &statements.metadata_many };
            let parameters = params![list, State::Completed.as_str(), micros_of(write.now), 0, from, to];
            Some(write.conn.run_counted(sql, parameters)?)
        }
    };
    // Nearly always all of them.
    let done = match archived == Some(ids.len()) {
        true => ids,
        false => simple_ones(write, &list, from, to)?,
    };
    let deleted = write.conn.run_counted(
        "DELETE FROM _postrider_queue WHERE id IN (SELECT value FROM json_each(?1))",
        [id_list(done.iter().copied())],
    )?;
    // A message that was deleted and not archived would be lost, so the two counts must agree.
    if archived.is_some_and(|archived| archived != deleted) {
        return Err(StoreError::Unavailable("the queue changed while messages left it".to_owned()));
    }
    done.iter().for_each(|id| write.counts.queued(delivered[id], -1));
    Ok(done)
}

fn simple_ones(write: &Write<'_>, list: &str, from: i64, to: i64) -> Result<Vec<MessageId>> {
    write.conn.rows(
        &format!("SELECT id FROM _postrider_queue WHERE id IN (SELECT value FROM json_each(?1)) {SIMPLE}"),
        params![list, Null, Null, Null, from, to],
        |row| row.get(0).map(MessageId),
    )
}

/// The receiver acknowledged a message that was cancelled during the attempt. False when it was not cancelled, or is
/// not in the archive.
pub(super) fn complete_cancelled(write: &Write<'_>, id: MessageId) -> Result<bool> {
    let Some(month) = month_of(write.conn, id)? else { return Ok(false) };
    let sql = format!(
        "UPDATE {} SET status = 'completed', delivered_late = 1, finished_at = ?2
         WHERE id = ?1 AND status = 'cancelled'",
        month.table()
    );
    let completed = write.conn.run_counted(&sql, params![id.0, micros_of(write.now)])?;
    Ok(completed > 0)
}

/// Deletes it from the queue; the next message of its key may become claimable.
pub(super) fn remove(write: &mut Write<'_>, leaving: &LeavingMessage) -> Result<Option<EndpointId>> {
    write.conn.run("DELETE FROM _postrider_queue WHERE id = ?1", [leaving.id.0])?;
    write.counts.queued(leaving.endpoint, -1);
    match &leaving.key {
        // A message behind its key unblocks no other: one of the key is ready or claimed, or the key is held.
        Some(key) if leaving.place != QueuePlace::BehindKey => keys::advance(write, key),
        Some(_) | None => Ok(None),
    }
}

fn reserve_key(write: &Write<'_>, id: MessageId) -> Result<()> {
    let until = micros_of(write.now + write.config.settings().idempotency_retention);
    write.conn.run(
        "INSERT INTO _postrider_reservations (endpoint_id, idempotency_key, message_id, until, content_type,
           payload)
         SELECT endpoint_id, idempotency_key, id, ?2, content_type, CAST(payload AS BLOB)
         FROM _postrider_queue WHERE id = ?1
         ON CONFLICT (endpoint_id, idempotency_key) DO UPDATE SET message_id = excluded.message_id,
           until = excluded.until, content_type = excluded.content_type, payload = excluded.payload",
        params![id.0, until],
    )
}

/// Whether a copy of its payload is kept for its idempotency key.
pub(super) fn has_reservation(conn: &Connection, id: MessageId) -> Result<bool> {
    conn.value("SELECT EXISTS (SELECT 1 FROM _postrider_reservations WHERE message_id = ?1)", [id.0])
}

pub(super) fn forget_attempts(write: &Write<'_>, id: MessageId) -> Result<()> {
    write.conn.run("DELETE FROM _postrider_attempts WHERE message_id = ?1", [id.0])
}

/// The month that holds the message.
pub(super) fn month_of(conn: &Connection, id: MessageId) -> Result<Option<Month>> {
    for month in Month::existing(conn)? {
        let there: bool =
            conn.value(&format!("SELECT EXISTS (SELECT 1 FROM {} WHERE id = ?1)", month.table()), [id.0])?;
        if there {
            return Ok(Some(month));
        }
    }
    Ok(None)
}

/// The state of a message that is not queued any more; None for an unknown one.
pub(super) fn state_of(conn: &Connection, id: MessageId) -> Result<Option<State>> {
    let dead: Option<i64> = conn.find(
        "SELECT id FROM _postrider_dlq WHERE message_id = ?1 AND status <> 'redriven' LIMIT 1",
        [id.0],
        |row| row.get(0),
    )?;
    let Some(month) = month_of(conn, id)? else {
        return Ok(dead.map(|_| State::Dead));
    };
    let status: String =
        conn.value(&format!("SELECT status FROM {} WHERE id = ?1", month.table()), [id.0])?;
    Ok(Some(finished_state(&status)))
}

pub(super) fn finished_state(status: &str) -> State {
    match status {
        "expired" => State::Expired,
        "cancelled" => State::Cancelled,
        _ => State::Completed,
    }
}

pub(super) fn erase(write: &Write<'_>, id: MessageId) -> Result<()> {
    if let Some(month) = month_of(write.conn, id)? {
        let sql = format!("UPDATE {} SET payload = NULL, headers = NULL WHERE id = ?1", month.table());
        write.conn.run(&sql, [id.0])?;
    }
    write.conn.run("UPDATE _postrider_reservations SET payload = NULL WHERE message_id = ?1", [id.0])
}
