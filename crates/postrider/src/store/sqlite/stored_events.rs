//! Events that applications stored by SQL. The file's node fans them out in commit order, each in the transaction that
//! deletes it, so that a crash neither loses nor doubles one.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;

use super::publish::ParsedEvents;
use super::query::Query;
use super::row::optional_at;
use super::stored_event::StoredEvent;
use super::writer::Write;
use super::{invalid_events, publish};
use crate::error::StoreError;
use crate::store::Result;

/// How long to wait for a full queue, and after an error.
const FULL_WAIT: Duration = Duration::from_millis(50);
const TROUBLE_WAIT: Duration = Duration::from_secs(1);
/// Limits on the events read before a transaction begins, at least one: other jobs wait meanwhile, and all of them are in
/// memory.
const READ_BUDGET: Duration = Duration::from_millis(4);
const READ_MAX: usize = 256;
const READ_BYTES_MAX: usize = 1 << 20;
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// What the writer remembers between its transactions.
pub(super) struct StoredEvents {
    /// Only the node fans them out.
    owned: bool,
    may_wait: bool,
    not_before: Option<Instant>,
    /// Why they wait until then.
    stopped_by: Option<StoreError>,
    /// The oldest ones.
    read: VecDeque<ReadEvent>,
    /// How many of `read` the current transaction fanned out.
    taken: usize,
    /// This event failed in a transaction with others: next time the others are committed first.
    troublesome: Option<i64>,
    full_told_at: Option<Instant>,
}

/// An event that was read and parsed outside of the transaction.
struct ReadEvent {
    event: StoredEvent,
    publication: Result<ParsedEvents>,
}

impl ReadEvent {
    fn oldest_after(conn: &Connection, id: i64) -> Result<Option<Self>> {
        let event = StoredEvent::oldest_after(conn, id)?;
        Ok(event.map(|event| Self { publication: event.publication(), event }))
    }
}

/// The committed events that are not fanned out yet.
pub(super) struct EventsAhead<'a> {
    pub(super) oldest: i64,
    pub(super) newest: i64,
    pub(super) stopped_by: Option<&'a StoreError>,
}

/// What a transaction did with them.
pub(super) enum FannedOut {
    /// Not at all.
    None,
    Some,
    /// The transaction must be rolled back; the next one avoids the error.
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
    pub(super) fn look(&mut self, conn: &Connection) -> Result<()> {
        self.may_wait = self.owned && any(conn)?;
        Ok(())
    }

    /// Outside of a transaction, so that other processes can write meanwhile.
    pub(super) fn read_ahead(&mut self, conn: &Connection) {
        if let Err(error) = self.try_read_ahead(conn) {
            self.in_trouble(&error);
        }
    }

    fn try_read_ahead(&mut self, conn: &Connection) -> Result<()> {
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

    pub(super) fn line(&self, conn: &Connection) -> Result<Option<EventsAhead<'_>>> {
        if !self.may_wait {
            return Ok(None);
        }
        let ends = "SELECT (SELECT min(id) FROM _postrider_events), (SELECT max(id) FROM _postrider_events)";
        let (oldest, newest) = conn.row(ends, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(oldest), Some(newest)) = (oldest, newest) else { return Ok(None) };
        Ok(Some(EventsAhead { oldest, newest, stopped_by: self.stopped_by.as_ref() }))
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
            if let Err(FanOutStop { refusal, unchanged }) = take(write, next) {
                self.stopped(refusal);
                return if unchanged { done } else { FannedOut::Spoiled };
            }
            self.taken += 1;
            done = FannedOut::Some;
        }
        self.may_wait = any(write.conn).unwrap_or(true);
        done
    }

    fn stopped(&mut self, refusal: EventRefusal) {
        match refusal {
            EventRefusal::Full(error) => {
                self.tell_full(&error);
                self.wait(FULL_WAIT, &error);
            }
            EventRefusal::Trouble(error) => {
                self.troublesome = self.read.get(self.taken).map(|next| next.event.id);
                self.in_trouble(&error);
            }
            // Its writes are rolled back; the next transaction makes it a dead letter.
            EventRefusal::ForGood(error) => self.read[self.taken].publication = Err(error),
        }
    }

    fn in_trouble(&mut self, error: &StoreError) {
        tracing::warn!(%error, "could not fan out stored events; retrying");
        self.wait(TROUBLE_WAIT, error);
    }

    fn wait(&mut self, time: Duration, error: &StoreError) {
        self.not_before = Some(Instant::now() + time);
        self.stopped_by = Some(error.clone());
    }

    fn tell_full(&mut self, error: &StoreError) {
        if self.full_told_at.is_none_or(|at| at.elapsed() >= FULL_TOLD_EVERY) {
            tracing::warn!(%error, "the queue is full: stored events wait for room");
            self.full_told_at = Some(Instant::now());
        }
    }
}

struct FanOutStop {
    refusal: EventRefusal,
    /// The event wrote nothing, and the transaction is still open.
    unchanged: bool,
}

enum EventRefusal {
    /// The whole queue is full. A full endpoint does not stop the events of others.
    Full(StoreError),
    Trouble(StoreError),
    ForGood(StoreError),
}

/// The event becomes messages, or a dead letter.
fn take(write: &mut Write<'_>, next: &ReadEvent) -> std::result::Result<(), FanOutStop> {
    let before = write.conn.total_changes();
    let result = try_take(write, next);
    // A failing disk makes SQLite end the transaction by itself, and with it whatever was done before in it.
    let unchanged = write.conn.total_changes() == before && !write.conn.is_autocommit();
    result.map_err(|refusal| FanOutStop { refusal, unchanged })
}

fn try_take(write: &mut Write<'_>, next: &ReadEvent) -> std::result::Result<(), EventRefusal> {
    let ReadEvent { event, publication } = next;
    if !is_there(write.conn, event.id).map_err(EventRefusal::Trouble)? {
        return Ok(());
    }
    let before = write.conn.total_changes();
    let published = match publication {
        Ok(publication) => fan_out(write, publication),
        Err(error) => Err(error.clone()),
    };
    match published {
        Ok(()) => {}
        Err(full @ StoreError::QueueFull { endpoint: None, .. }) => return Err(EventRefusal::Full(full)),
        Err(error) if !is_for_good(&error) => return Err(EventRefusal::Trouble(error)),
        Err(error) if write.conn.total_changes() != before => return Err(EventRefusal::ForGood(error)),
        Err(error) => invalid_events::bury(write, event, &error).map_err(EventRefusal::Trouble)?,
    }
    forget(write, event.id).map_err(EventRefusal::Trouble)
}

/// Separates an event that does not fit now from one that never will.
fn fan_out(write: &mut Write<'_>, publication: &ParsedEvents) -> Result<()> {
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

/// An endpoint may be full for long, and all later events wait behind this one.
fn is_for_good(error: &StoreError) -> bool {
    matches!(error, StoreError::QueueFull { endpoint: Some(_), .. }) || is_final(error)
}

/// All of them, before an export.
pub(super) fn fan_out_all(write: &mut Write<'_>) -> Result<()> {
    while let Some(next) = ReadEvent::oldest_after(write.conn, i64::MIN)? {
        try_take(write, &next).map_err(|_| still_there())?;
    }
    Ok(())
}

/// An export does not contain stored events.
pub(super) fn refuse_if_any(conn: &Connection) -> Result<()> {
    if any(conn)? { Err(still_there()) } else { Ok(()) }
}

fn still_there() -> StoreError {
    StoreError::Conflict(
        "events that were stored by SQL have not become messages yet; let a node deliver, or raise max_queue_size, and \
         try again"
            .to_owned(),
    )
}

fn any(conn: &Connection) -> Result<bool> {
    conn.value("SELECT EXISTS (SELECT 1 FROM _postrider_events)", [])
}

/// An export may have fanned it out meanwhile.
fn is_there(conn: &Connection, event: i64) -> Result<bool> {
    conn.value("SELECT EXISTS (SELECT 1 FROM _postrider_events WHERE id = ?1)", [event])
}

/// How many there are, and when the oldest one was stored. Computed from the ids, which have few gaps.
pub(super) fn waiting(conn: &Connection) -> Result<(u64, Option<Timestamp>)> {
    conn.row(
        "SELECT
           coalesce((SELECT max(id) FROM _postrider_events) - (SELECT min(id) FROM _postrider_events) + 1, 0),
           (SELECT CAST(created_at AS INTEGER) FROM _postrider_events ORDER BY id LIMIT 1)",
        [],
        |row| Ok((row.get(0)?, optional_at(row.get(1)?))),
    )
}

fn forget(write: &Write<'_>, event: i64) -> Result<()> {
    write.conn.run("DELETE FROM _postrider_events WHERE id = ?1", [event])
}

/// Retrying would not help.
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
