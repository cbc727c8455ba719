//! One thread owns the writing connection. It runs all waiting jobs in one transaction. Jobs that must be durable
//! then go to the [`super::syncer`], where many senders share one fsync while the writer runs the next group.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rusqlite::Connection;

use super::archive::Months;
use super::config_cache::ConfigCache;
use super::counts::QueueCounts;
use super::job::{CommitMode, WriteJob, WriterCommand};
use super::nodes::ListeningNodes;
use super::query::Query;
use super::setback::{self, ClockWatch};
use super::stored_events::{EventsAhead, FannedOut, StoredEvents};
use super::syncer::{Syncer, Unsynced};
use crate::clock::Clock;
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::{Arrival, Result};

/// How often an idle writer looks whether another process committed: well within the promised 20 ms.
const LOOK_OUTSIDE: Duration = Duration::from_millis(15);
/// A transaction takes no further job after this long; other processes wait for the file meanwhile.
const TRANSACTION_BUDGET: Duration = Duration::from_millis(4);
const GROUP_JOBS_MAX: usize = 1024;
/// While the disk syncs the last group, jobs gather for the next one: an earlier commit would not be durable any
/// earlier and would cost another transaction. They gather for at most this time, and at most this many.
const COMPANY_WAIT: Duration = Duration::from_millis(5);
const COMPANY_JOBS_MAX: usize = 16;

/// What a job sees of its transaction.
pub(super) struct Write<'a> {
    pub(super) conn: &'a Connection,
    pub(super) now: Timestamp,
    pub(super) config: &'a mut ConfigCache,
    pub(super) listeners: &'a ListeningNodes,
    pub(super) counts: QueueCounts,
    pub(super) months: &'a mut Months,
    /// This process is the file's node.
    pub(super) owns: bool,
    /// The highest id inserted.
    pub(super) newest: i64,
    /// For the nodes, after the commit.
    pub(super) news: Vec<Arrival>,
}

impl Write<'_> {
    /// A message was inserted.
    pub(super) fn tell_pending(&mut self, endpoint: EndpointId) {
        if !self.is_told(endpoint) {
            self.news.push(Arrival::Pending(endpoint));
        }
    }

    /// A message that was queued before became claimable. A node in another process finds new ids by itself; for these
    /// it reads `_postrider_freed`.
    pub(super) fn tell_freed(&mut self, endpoint: Option<EndpointId>) -> Result<()> {
        let Some(endpoint) = endpoint.filter(|endpoint| !self.is_told(*endpoint)) else { return Ok(()) };
        self.news.push(Arrival::Pending(endpoint));
        if self.owns {
            return Ok(());
        }
        self.conn.run(
            "INSERT INTO _postrider_freed (endpoint_id, turn)
             VALUES (?1, (SELECT coalesce(max(turn), 0) + 1 FROM _postrider_freed))
             ON CONFLICT (endpoint_id) DO UPDATE SET turn = excluded.turn",
            [endpoint.0],
        )
    }

    /// A batch to one endpoint is told once.
    fn is_told(&self, endpoint: EndpointId) -> bool {
        matches!(self.news.last(), Some(Arrival::Pending(last)) if *last == endpoint)
    }
}

pub(super) struct WriterThread {
    /// Dropped first: it answers all callers before the file is closed.
    pub(super) syncer: Syncer,
    pub(super) conn: Connection,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) commands: Receiver<WriterCommand>,
    pub(super) config: ConfigCache,
    pub(super) months: Months,
    pub(super) listeners: Arc<ListeningNodes>,
    /// This process is the file's node.
    pub(super) owns: bool,
    pub(super) data_version: i64,
    /// The last turn of `_postrider_freed` that the nodes were told of.
    pub(super) freed: i64,
    /// The newest message this writer knows of; a higher one came from outside.
    pub(super) newest_message: i64,
    /// Another process wrote messages and may not have synced them.
    pub(super) unsynced_outside: bool,
    pub(super) stored_events: StoredEvents,
    pub(super) watch: ClockWatch,
    /// Jobs that must run after some of the stored events; other jobs do not wait for them.
    pub(super) held: VecDeque<Box<dyn WriteJob>>,
    pub(super) wal: super::checkpoint::WalGauge,
}

impl WriterThread {
    pub(super) fn run(mut self) {
        let mut waiting: VecDeque<Box<dyn WriteJob>> = VecDeque::new();
        let mut stopping = false;
        while !stopping || !waiting.is_empty() {
            let patience = match waiting.is_empty() {
                true if self.has_work_of_its_own() => Duration::ZERO,
                true => LOOK_OUTSIDE,
                false => self.wait_for_company(&waiting),
            };
            let first = if patience.is_zero() { None } else { Some(self.commands.recv_timeout(patience)) };
            match first {
                None => {}
                Some(Ok(WriterCommand::Do(job))) => waiting.push_back(job),
                Some(Ok(WriterCommand::Synced)) => {}
                Some(Ok(WriterCommand::Stop) | Err(RecvTimeoutError::Disconnected)) => stopping = true,
                Some(Err(RecvTimeoutError::Timeout)) if waiting.is_empty() => self.look_outside(),
                Some(Err(RecvTimeoutError::Timeout)) => self.commit_group(&mut waiting),
            }
            while waiting.len() < GROUP_JOBS_MAX {
                match self.commands.try_recv() {
                    Ok(WriterCommand::Do(job)) => waiting.push_back(job),
                    Ok(WriterCommand::Synced) => {}
                    Ok(WriterCommand::Stop) => stopping = true,
                    Err(_) => break,
                }
            }
            let is_time = !waiting.is_empty() && (stopping || self.wait_for_company(&waiting).is_zero());
            if is_time || self.has_work_of_its_own() {
                self.commit_group(&mut waiting);
            }
            self.wal.finish_checkpoint_if_asked(&self.conn);
        }
    }

    fn has_work_of_its_own(&self) -> bool {
        self.may_fan_out() || !self.held.is_empty() || self.watch.due().is_some()
    }

    /// Their messages must be on disk before a node is told.
    fn may_fan_out(&self) -> bool {
        self.stored_events.are_due() && self.syncer.broken().is_none()
    }

    /// How long these jobs may wait for others: no time, unless all of them need the disk and it is busy.
    fn wait_for_company(&self, waiting: &VecDeque<Box<dyn WriteJob>>) -> Duration {
        let all_durable = || waiting.iter().all(|job| job.commit() == CommitMode::Durable);
        if self.syncer.is_busy() && waiting.len() < COMPANY_JOBS_MAX && all_durable() {
            COMPANY_WAIT
        } else {
            Duration::ZERO
        }
    }

    fn commit_group(&mut self, waiting: &mut VecDeque<Box<dyn WriteJob>>) {
        if let Some(broken) = self.syncer.broken() {
            let (refused, others): (VecDeque<_>, VecDeque<_>) = self
                .held
                .drain(..)
                .chain(waiting.drain(..))
                .partition(|job| job.commit().needs_sync() || job.commit().waits_for_sync());
            refused.into_iter().for_each(|job| job.finish(Err(broken.clone())));
            *waiting = others;
        }
        if self.watch.due().is_some() && !waiting.is_empty() {
            // In its own transaction: if correcting times fails, other jobs are not refused.
            self.commit_group(&mut VecDeque::new());
        }
        let mut ran = Vec::with_capacity(waiting.len());
        match self.transaction(waiting, &mut ran) {
            Ok(Committed { news, fanned_out }) => {
                // A node is told of a message only when the message cannot be lost any more.
                let any = |commit: fn(CommitMode) -> bool| ran.iter().any(|job| commit(job.commit()));
                let outside = self.unsynced_outside && any(CommitMode::waits_for_sync);
                let unsynced = outside || fanned_out || self.syncer.is_busy() || any(CommitMode::needs_sync);
                let (now, later): (Vec<_>, Vec<_>) =
                    ran.into_iter().partition(|job| !unsynced || !job.commit().waits_for_sync());
                if unsynced {
                    self.unsynced_outside = false;
                    self.syncer.sync(Unsynced { jobs: later, news });
                } else {
                    self.listeners.tell(news);
                }
                now.into_iter().for_each(|job| job.finish(Ok(())));
            }
            // A stored event failed before any job ran.
            Err(Rollback::Spoiled) if ran.is_empty() => self.commit_group(waiting),
            Err(Rollback::Spoiled) if ran.len() > 1 => {
                // One job failed half-way: run each by itself.
                for job in ran {
                    let mut single = VecDeque::from([job]);
                    while !single.is_empty() {
                        self.commit_group(&mut single);
                    }
                }
            }
            Err(Rollback::Spoiled) => {
                let error = StoreError::Unavailable("the change was rolled back".to_owned());
                ran.into_iter().for_each(|job| job.finish(Err(error.clone())));
            }
            Err(Rollback::Failed(error)) => {
                self.stored_events.retry_later(&error);
                ran.extend(self.held.drain(..).chain(waiting.drain(..)));
                ran.into_iter().for_each(|job| job.finish(Err(error.clone())));
            }
        }
    }

    fn transaction(
        &mut self,
        waiting: &mut VecDeque<Box<dyn WriteJob>>,
        ran: &mut Vec<Box<dyn WriteJob>>,
    ) -> std::result::Result<Committed, Rollback> {
        // A sender may have stored an event before it asked for these jobs.
        self.look_outside();
        if self.may_fan_out() {
            self.stored_events.read_ahead(&self.conn);
        }
        self.conn.run("BEGIN IMMEDIATE", [])?;
        // Under the lock: see all commits of other processes before deciding anything.
        self.look_outside();
        if self.conn.is_autocommit() {
            return Err(Rollback::Failed(StoreError::Unavailable(
                "the transaction could not begin".to_owned(),
            )));
        }
        let started = Instant::now();
        let now = crate::clock::truncated(self.clock.now());
        self.watch.observe(now, started);
        let mending = self.watch.due().filter(|_| waiting.is_empty());
        let may_fan_out = self.may_fan_out();
        let mut write = Write {
            conn: &self.conn,
            now,
            config: &mut self.config,
            listeners: &self.listeners,
            counts: QueueCounts::default(),
            months: &mut self.months,
            owns: self.owns,
            newest: 0,
            news: Vec::new(),
        };
        // First, because they were committed earlier than these jobs were asked for.
        let mut fanned_out = false;
        let outcome = if may_fan_out {
            fan_out(&mut write, &mut self.stored_events, started).map(|any| fanned_out = any)
        } else {
            Ok(())
        };
        let mut corrected = None;
        let outcome = match (outcome, mending) {
            (Ok(()), Some(step)) => correct(&mut write, step, started).map(|next| corrected = next),
            (outcome, _) => outcome,
        };
        let outcome = outcome.and_then(|()| {
            match self.stored_events.line(write.conn)? {
                Some(line) => hold_back(&line, &mut self.held, waiting),
                None => self.held.drain(..).rev().for_each(|job| waiting.push_front(job)),
            }
            run_jobs(&mut write, waiting, ran, started)
        });
        let news = std::mem::take(&mut write.news);
        let newest = write.newest;
        let outcome = outcome.and_then(|()| commit(&self.conn));
        match outcome {
            Ok(()) => {
                self.newest_message = self.newest_message.max(newest);
                self.stored_events.are_gone();
                if mending.is_some() {
                    self.watch.corrected(corrected);
                }
                Ok(Committed { news, fanned_out })
            }
            Err(rollback) => {
                // After some errors SQLite has rolled back by itself.
                if !self.conn.is_autocommit() {
                    let _ = self.conn.execute_batch("ROLLBACK");
                }
                self.config.forget();
                self.months.forget();
                self.stored_events.are_back();
                if mending.is_some() {
                    self.watch.retry_later();
                }
                self.listeners.take_back(news);
                Err(rollback)
            }
        }
    }

    /// Another connection's commit moves `data_version`; our own do not.
    fn look_outside(&mut self) {
        let version = self.conn.value::<i64>("PRAGMA data_version", []);
        match version {
            Ok(version) if version == self.data_version => {}
            Ok(version) => {
                self.data_version = version;
                if let Err(error) = self.tell_what_came_in() {
                    tracing::warn!(%error, "could not see what another process changed; looking again");
                    self.data_version = -1;
                }
            }
            Err(error) => tracing::warn!(%error, "could not look for changes of other processes"),
        }
    }

    /// Ids are given under the write lock, so their order is commit order and a forward cursor is safe.
    fn tell_what_came_in(&mut self) -> Result<()> {
        let mut news = Vec::new();
        self.stored_events.look(&self.conn)?;
        // First: messages that came with a change or after it are delivered by the change.
        if self.config.forget_if_outdated(&self.conn)? {
            news.push(Arrival::Reconfigured);
        }
        news.push(Arrival::Outside);
        let newest: i64 = self.conn.value("SELECT coalesce(max(id), 0) FROM _postrider_queue", [])?;
        if newest > self.newest_message {
            let endpoints: Vec<i64> = self.conn.column(
                "SELECT DISTINCT endpoint_id FROM _postrider_queue
                 WHERE id > ?1 AND typeof(endpoint_id) = 'integer' LIMIT 1000",
                [self.newest_message],
            )?;
            self.newest_message = newest;
            self.unsynced_outside = true;
            news.extend(endpoints.into_iter().map(|id| Arrival::Pending(EndpointId(id))));
        }
        let freed = "SELECT endpoint_id, turn FROM _postrider_freed WHERE turn > ?1";
        for (endpoint, turn) in self.conn.rows(freed, [self.freed], |row| Ok((row.get(0)?, row.get(1)?)))? {
            news.push(Arrival::Pending(EndpointId(endpoint)));
            self.freed = self.freed.max(turn);
            self.unsynced_outside = true;
        }
        self.listeners.tell(news);
        Ok(())
    }
}

/// What a committed transaction reports.
struct Committed {
    news: Vec<Arrival>,
    /// Stored events became messages.
    fanned_out: bool,
}

/// True when there were any.
fn fan_out(
    write: &mut Write<'_>,
    events: &mut StoredEvents,
    started: Instant,
) -> std::result::Result<bool, Rollback> {
    write.config.load_if_forgotten(write.conn)?;
    match events.fan_out(write, started + TRANSACTION_BUDGET) {
        FannedOut::None => Ok(false),
        FannedOut::Some => Ok(true),
        FannedOut::Spoiled => Err(Rollback::Spoiled),
    }
}

fn correct(
    write: &mut Write<'_>,
    step: setback::Correction,
    started: Instant,
) -> std::result::Result<Option<setback::Correction>, Rollback> {
    write.config.load_if_forgotten(write.conn)?;
    setback::correct(write, step, started + TRANSACTION_BUDGET).map_err(Rollback::Failed)
}

/// Holds back the jobs that must run after these events. Where the events cannot be fanned out, the jobs fail with
/// the same reason.
fn hold_back(
    line: &EventsAhead<'_>,
    held: &mut VecDeque<Box<dyn WriteJob>>,
    waiting: &mut VecDeque<Box<dyn WriteJob>>,
) {
    let all: Vec<_> = held.drain(..).chain(waiting.drain(..)).collect();
    for mut job in all {
        let waits = job.goes_behind(line.newest).is_some_and(|event| line.oldest <= event);
        match (waits, line.stopped_by) {
            (false, _) => waiting.push_back(job),
            (true, None) => held.push_back(job),
            (true, Some(error)) => job.finish(Err(error.clone())),
        }
    }
}

fn run_jobs(
    write: &mut Write<'_>,
    waiting: &mut VecDeque<Box<dyn WriteJob>>,
    ran: &mut Vec<Box<dyn WriteJob>>,
    started: Instant,
) -> std::result::Result<(), Rollback> {
    write.config.load_if_forgotten(write.conn)?;
    while let Some(mut job) = waiting.pop_front() {
        let before = write.conn.total_changes();
        let outcome = job.run(write);
        ran.push(job);
        // A full disk makes SQLite end the transaction by itself: nothing may follow outside of one.
        if write.conn.is_autocommit() || (outcome.is_err() && write.conn.total_changes() != before) {
            return Err(Rollback::Spoiled);
        }
        if started.elapsed() > TRANSACTION_BUDGET {
            break;
        }
    }
    Ok(write.counts.write(write.conn)?)
}

fn commit(conn: &Connection) -> std::result::Result<(), Rollback> {
    Ok(conn.run("COMMIT", [])?)
}

enum Rollback {
    /// A job failed after it had changed something.
    Spoiled,
    /// The database refused and the transaction was rolled back.
    Failed(StoreError),
}

impl From<StoreError> for Rollback {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}
