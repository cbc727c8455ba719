//! Events that applications stored by SQL: the owner of the file fans them out in commit order, each in the transaction
//! that forgets it, so that a crash neither loses nor doubles one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;

use super::publish::Publication;
use super::row::optional_at;
use super::stored_event::StoredEvent;
use super::writer::Write;
use super::{invalid_events, publish, storage_error};
use crate::error::StoreError;
use crate::store::Result;

/// A full queue drains in its own time; what keeps the disk from writing may take longer.
const FULL_WAIT: Duration = Duration::from_millis(50);
const TROUBLE_WAIT: Duration = Duration::from_secs(1);
/// What is read before a transaction begins: as much as it has time for, and one at least. Whoever else wants the writer waits for
/// it, and all of it is in memory.
const READ_BUDGET: Duration = Duration::from_millis(4);
const READ_MAX: usize = 256;
const READ_BYTES_MAX: usize = 1 << 20;
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// What the writer knows of them between its transactions.
pub(super) struct StoredEvents {
    /// Tools leave them to the node.
    owned: bool,
    may_wait: bool,
    not_before: Option<Instant>,
    /// Why they wait until then.
    stopped_by: Option<StoreError>,
    /// The oldest ones.
    read: VecDeque<ReadEvent>,
    /// So many of them are fanned out by the transaction that goes on.
    taken: usize,
    /// Failed together with those before it: next time they are committed before it is tried.
    troublesome: Option<i64>,
    full_told_at: Option<Instant>,
}

/// One that was read and checked, as far as that can be done without the lock. It takes a moment.
struct ReadEvent {
    event: StoredEvent,
    publication: Result<Publication>,
}

impl ReadEvent {
    fn oldest_after(conn: &Connection, id: i64) -> rusqlite::Result<Option<Self>> {
        let event = StoredEvent::oldest_after(conn, id)?;
        Ok(event.map(|event| Self { publication: event.publication(), event }))
    }
}

/// Those that are left, of all that were committed.
pub(super) struct Line<'a> {
    pub(super) oldest: i64,
    pub(super) newest: i64,
    pub(super) stopped_by: Option<&'a StoreError>,
}

/// How far a transaction came with them.
pub(super) enum FannedOut {
    /// Not at all.
    None,
    Some,
    /// The transaction has to be rolled back, and goes better the next time.
    Spoiled,
}

impl StoredEvents {
    pub(super) fn of_file(owned: bool) -> Self {
        Self {
            owned,
            may_wait: owned,
            not_before: None,
            stopped_by: None,
            read: VecDeque::new(),
            taken: 0,
            troublesome: None,
            full_told_at: None,
        }
    }

    pub(super) fn are_due(&self) -> bool {
        self.may_wait && self.not_before.is_none_or(|at| at <= Instant::now())
    }

    /// After another process changed the file.
    pub(super) fn look(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        self.may_wait = self.owned && any(conn)?;
        Ok(())
    }

    /// Outside of a transaction, so that nobody waits for the file meanwhile.
    pub(super) fn read_ahead(&mut self, conn: &Connection) {
        if let Err(error) = self.try_read_ahead(conn) {
            self.in_trouble(&storage_error(error));
        }
    }

    fn try_read_ahead(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        let until = Instant::now() + READ_BUDGET;
        let mut bytes: usize = self.read.iter().map(|read| read.event.new.payload.len()).sum();
        while self.read.is_empty()
            || (self.read.len() < READ_MAX && bytes < READ_BYTES_MAX && Instant::now() < until)
        {
            let last = self.read.back().map_or(i64::MIN, |read| read.event.id);
            let Some(next) = ReadEvent::oldest_after(conn, last)? else { break };
            bytes += next.event.new.payload.len();
            self.read.push_back(next);
        }
        Ok(())
    }

    /// The transaction that fanned them out was committed.
    pub(super) fn are_gone(&mut self) {
        self.read.drain(..self.taken);
        self.taken = 0;
    }

    /// It was rolled back.
    pub(super) fn are_back(&mut self) {
        self.taken = 0;
        self.may_wait = self.owned;
    }

    pub(super) fn retry_later(&mut self, error: &StoreError) {
        self.wait(TROUBLE_WAIT, error);
    }

    pub(super) fn line(&self, conn: &Connection) -> rusqlite::Result<Option<Line<'_>>> {
        if !self.may_wait {
            return Ok(None);
        }
        let ends = "SELECT (SELECT min(id) FROM _postrider_events), (SELECT max(id) FROM _postrider_events)";
        let (oldest, newest) =
            conn.prepare_cached(ends)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(oldest), Some(newest)) = (oldest, newest) else { return Ok(None) };
        Ok(Some(Line { oldest, newest, stopped_by: self.stopped_by.as_ref() }))
    }

    /// Fans out those that were read until the time is used up.
    pub(super) fn fan_out(&mut self, write: &mut Write<'_>, until: Instant) -> FannedOut {
        let mut done = FannedOut::None;
        self.not_before = None;
        self.stopped_by = None;
        while let Some(next) = self.read.get(self.taken) {
            let is_first = self.taken == 0;
            if !is_first && (Instant::now() > until || self.troublesome == Some(next.event.id)) {
                return done;
            }
            if let Err(Stopped { refusal, unchanged }) = take(write, next) {
                self.stopped(refusal);
                return if unchanged { done } else { FannedOut::Spoiled };
            }
            self.taken += 1;
            done = FannedOut::Some;
        }
        self.may_wait = any(write.conn).unwrap_or(true);
        done
    }

    /// By the next one.
    fn stopped(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Full(error) => {
                self.tell_full(&error);
                self.wait(FULL_WAIT, &error);
            }
            Refusal::Trouble(error) => {
                self.troublesome = self.read.get(self.taken).map(|next| next.event.id);
                self.in_trouble(&error);
            }
            // What was written of it is rolled back; then it becomes a dead letter.
            Refusal::ForGood(error) => self.read[self.taken].publication = Err(error),
        }
    }

    fn in_trouble(&mut self, error: &StoreError) {
        tracing::warn!(%error, "Stored events could not be fanned out; trying again");
        self.wait(TROUBLE_WAIT, error);
    }

    fn wait(&mut self, time: Duration, error: &StoreError) {
        self.not_before = Some(Instant::now() + time);
        self.stopped_by = Some(error.clone());
    }

    fn tell_full(&mut self, error: &StoreError) {
        if self.full_told_at.is_none_or(|at| at.elapsed() >= FULL_TOLD_EVERY) {
            tracing::warn!(%error, "Stored events wait until their messages fit into the queue");
            self.full_told_at = Some(Instant::now());
        }
    }
}

struct Stopped {
    refusal: Refusal,
    /// Nothing of the event was written, and the transaction still goes on.
    unchanged: bool,
}

enum Refusal {
    /// The whole queue is. An endpoint that is full holds up nobody else.
    Full(StoreError),
    Trouble(StoreError),
    ForGood(StoreError),
}

/// The event becomes messages, or a dead letter.
fn take(write: &mut Write<'_>, next: &ReadEvent) -> std::result::Result<(), Stopped> {
    let before = write.conn.total_changes();
    let result = try_take(write, next);
    // A failing disk makes SQLite end the transaction by itself, and with it whatever was done before in it.
    let unchanged = write.conn.total_changes() == before && !write.conn.is_autocommit();
    result.map_err(|refusal| Stopped { refusal, unchanged })
}

fn try_take(write: &mut Write<'_>, next: &ReadEvent) -> std::result::Result<(), Refusal> {
    let ReadEvent { event, publication } = next;
    if !is_there(write.conn, event.id).map_err(storage_error).map_err(Refusal::Trouble)? {
        return Ok(());
    }
    let before = write.conn.total_changes();
    let published = match publication {
        Ok(publication) => fan_out(write, publication),
        Err(error) => Err(error.clone()),
    };
    match published {
        Ok(()) => {}
        Err(full @ StoreError::QueueFull { endpoint: None, .. }) => return Err(Refusal::Full(full)),
        Err(error) if !is_for_good(&error) => return Err(Refusal::Trouble(error)),
        Err(error) if write.conn.total_changes() != before => return Err(Refusal::ForGood(error)),
        Err(error) => invalid_events::bury(write, event, &error).map_err(Refusal::Trouble)?,
    }
    forget(write, event.id).map_err(Refusal::Trouble)
}

/// Tells what does not fit now from what never will.
fn fan_out(write: &mut Write<'_>, publication: &Publication) -> Result<()> {
    match publish::publish(write, publication) {
        Ok(_) => Ok(()),
        Err(full @ StoreError::QueueFull { limit, endpoint: None, .. }) => {
            let bytes = publish::size(write, publication)?;
            let (field, setting) = ("event_type", "max_queue_size");
            Err(if bytes > limit { StoreError::TooLarge { field, bytes, limit, setting } } else { full })
        }
        Err(error) => Err(error),
    }
}

/// An endpoint that is full may be so for long, and everybody else's events are behind this one.
fn is_for_good(error: &StoreError) -> bool {
    matches!(error, StoreError::QueueFull { endpoint: Some(_), .. }) || is_final(error)
}

/// Every one of them, before the file goes elsewhere.
pub(super) fn fan_out_all(write: &mut Write<'_>) -> Result<()> {
    while let Some(next) = ReadEvent::oldest_after(write.conn, i64::MIN).map_err(storage_error)? {
        try_take(write, &next).map_err(|_| still_there())?;
    }
    Ok(())
}

/// A stream does not carry them.
pub(super) fn refuse_if_any(conn: &Connection) -> Result<()> {
    if any(conn).map_err(storage_error)? { Err(still_there()) } else { Ok(()) }
}

fn still_there() -> StoreError {
    StoreError::Conflict(
        "events that were stored by SQL have not become messages yet; let a node deliver, or raise max_queue_size, and \
         try again"
            .to_owned(),
    )
}

fn any(conn: &Connection) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM _postrider_events)")?.query_row([], |row| row.get(0))
}

/// Another one may have fanned it out meanwhile: an export does.
fn is_there(conn: &Connection, event: i64) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT EXISTS (SELECT 1 FROM _postrider_events WHERE id = ?1)")?
        .query_row([event], |row| row.get(0))
}

/// How many there are, and since when the oldest one is there. Ids have no gaps worth counting, so nothing is counted.
pub(super) fn waiting(conn: &Connection) -> rusqlite::Result<(u64, Option<Timestamp>)> {
    conn.prepare_cached(
        "SELECT coalesce((SELECT max(id) FROM _postrider_events) - (SELECT min(id) FROM _postrider_events) + 1, 0),
           (SELECT CAST(created_at AS INTEGER) FROM _postrider_events ORDER BY id LIMIT 1)",
    )?
    .query_row([], |row| Ok((row.get(0)?, optional_at(row.get(1)?))))
}

fn forget(write: &Write<'_>, event: i64) -> Result<()> {
    write
        .conn
        .prepare_cached("DELETE FROM _postrider_events WHERE id = ?1")
        .and_then(|mut statement| statement.execute([event]))
        .map(|_| ())
        .map_err(storage_error)
}

/// Trying again would not help.
pub(super) fn is_final(error: &StoreError) -> bool {
    match error {
        StoreError::Invalid(_)
        | StoreError::Unknown { .. }
        | StoreError::IdempotencyConflict { .. }
        | StoreError::TooLarge { .. }
        | StoreError::Disabled { .. }
        | StoreError::Exists { .. } => true,
        StoreError::QueueFull { .. }
        | StoreError::Conflict(_)
        | StoreError::Unavailable(_)
        | StoreError::Unusable(_)
        | StoreError::Denied(_)
        | StoreError::Unreachable(_)
        | StoreError::Uncertain(_) => false,
    }
}
