//! Events that applications stored by SQL: the owner of the file fans them out in commit order, each in the transaction
//! that forgets it, so that a crash neither loses nor doubles one.

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
const FULL_TOLD_EVERY: Duration = Duration::from_secs(60);

/// What the writer knows of them between its transactions.
pub(super) struct StoredEvents {
    /// Tools leave them to the node.
    owned: bool,
    may_wait: bool,
    not_before: Option<Instant>,
    /// Refused after something of it was written, which is rolled back: next time it becomes a dead letter.
    refused: Option<(i64, StoreError)>,
    full_told_at: Option<Instant>,
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
        Self { owned, may_wait: owned, not_before: None, refused: None, full_told_at: None }
    }

    pub(super) fn are_due(&self) -> bool {
        self.may_wait && self.not_before.is_none_or(|at| at <= Instant::now())
    }

    /// After another process changed the file.
    pub(super) fn look(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        self.may_wait = self.owned && any(conn)?;
        Ok(())
    }

    /// The transaction that fanned them out was rolled back.
    pub(super) fn are_back(&mut self) {
        self.may_wait = self.owned;
    }

    pub(super) fn wait_for_better_times(&mut self) {
        self.wait(TROUBLE_WAIT);
    }

    /// Fans out the oldest ones until the time is used up.
    pub(super) fn fan_out(&mut self, write: &mut Write<'_>, until: Instant) -> FannedOut {
        let mut done = FannedOut::None;
        self.not_before = None;
        loop {
            let refused = self.refused.take();
            let was_refused = refused.is_some();
            match next(write, refused) {
                Ok(true) => done = FannedOut::Some,
                Ok(false) => {
                    self.may_wait = false;
                    return done;
                }
                Err(Stopped { refusal, unchanged }) => return self.stopped(refusal, unchanged, done),
            }
            // A refused one is committed by itself: were the next one refused as well, this one would come again.
            if was_refused || Instant::now() > until {
                return done;
            }
        }
    }

    fn stopped(&mut self, refusal: Refusal, unchanged: bool, done: FannedOut) -> FannedOut {
        match refusal {
            Refusal::Full(error) => {
                self.tell_full(&error);
                self.wait(FULL_WAIT);
            }
            Refusal::Trouble(error) => {
                tracing::warn!(%error, "Stored events could not be fanned out; trying again");
                self.wait(TROUBLE_WAIT);
            }
            Refusal::ForGood(event, error) => self.refused = Some((event, error)),
        }
        if unchanged { done } else { FannedOut::Spoiled }
    }

    fn wait(&mut self, time: Duration) {
        self.not_before = Some(Instant::now() + time);
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
    ForGood(i64, StoreError),
}

/// The oldest event becomes messages, or a dead letter; false when there is none.
fn next(write: &mut Write<'_>, refused: Option<(i64, StoreError)>) -> std::result::Result<bool, Stopped> {
    let before = write.conn.total_changes();
    let result = try_next(write, refused);
    // A failing disk makes SQLite end the transaction by itself, and with it whatever was done before in it.
    let unchanged = write.conn.total_changes() == before && !write.conn.is_autocommit();
    result.map_err(|refusal| Stopped { refusal, unchanged })
}

fn try_next(write: &mut Write<'_>, refused: Option<(i64, StoreError)>) -> std::result::Result<bool, Refusal> {
    let oldest = StoredEvent::oldest(write.conn).map_err(storage_error).map_err(Refusal::Trouble)?;
    let Some(event) = oldest else { return Ok(false) };
    let before = write.conn.total_changes();
    let published = match refused {
        Some((id, error)) if id == event.id => Err(error),
        _ => event.publication().and_then(|publication| fan_out(write, &publication)),
    };
    match published {
        Ok(()) => {}
        Err(full @ StoreError::QueueFull { endpoint: None, .. }) => return Err(Refusal::Full(full)),
        Err(error) if !is_for_good(&error) => return Err(Refusal::Trouble(error)),
        Err(error) if write.conn.total_changes() != before => return Err(Refusal::ForGood(event.id, error)),
        Err(error) => invalid_events::bury(write, &event, &error).map_err(Refusal::Trouble)?,
    }
    forget(write, event.id).map_err(Refusal::Trouble)?;
    Ok(true)
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
    loop {
        match try_next(write, None) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(_) => return Err(still_there()),
        }
    }
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
        | StoreError::Unusable(_) => false,
    }
}
