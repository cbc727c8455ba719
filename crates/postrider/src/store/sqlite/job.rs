//! Jobs for the writer. A job runs in a transaction that it may share with others, and is answered after the commit.

use std::sync::mpsc::Sender;

use tokio::sync::oneshot;

use super::writer::Write;
use crate::error::StoreError;
use crate::store::Result;

/// When a job is answered, and whether its commit is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CommitMode {
    /// Committed, not yet synced: survives kill -9; losing it in a power cut only means a redelivery.
    Soon,
    /// Like `Soon`, but it may have read messages that are not durable yet: answered when they are.
    AfterSync,
    /// Answered like `Soon`, but synced at once, and no node is told before that: if the message is lost, its id is
    /// given to another one.
    Fast,
    Durable,
}

impl CommitMode {
    pub(super) fn needs_sync(self) -> bool {
        match self {
            Self::Soon | Self::AfterSync => false,
            Self::Fast | Self::Durable => true,
        }
    }

    pub(super) fn waits_for_sync(self) -> bool {
        match self {
            Self::Soon | Self::Fast => false,
            Self::AfterSync | Self::Durable => true,
        }
    }
}

/// Whether a job may run before events that applications stored earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobOrder {
    Any,
    /// It sends messages with ordering keys.
    BehindStored,
}

impl JobOrder {
    pub(super) fn of<'a>(mut ordering_keys: impl Iterator<Item = &'a Option<String>>) -> Self {
        if ordering_keys.any(Option::is_some) { Self::BehindStored } else { Self::Any }
    }
}

pub(super) enum WriterCommand {
    Do(Box<dyn WriteJob>),
    /// The disk is free again.
    Synced,
    Stop,
}

pub(super) trait WriteJob: Send {
    fn commit(&self) -> CommitMode;
    /// The stored event that it must run after: the newest one at the first call.
    fn goes_behind(&mut self, newest: i64) -> Option<i64>;
    /// May run again in another transaction if this one was rolled back.
    fn run(&mut self, write: &mut Write<'_>) -> std::result::Result<(), ()>;
    fn finish(self: Box<Self>, committed: std::result::Result<(), StoreError>);
}

struct Task<T, F> {
    order: JobOrder,
    behind: Option<i64>,
    commit: CommitMode,
    work: F,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Write<'_>) -> Result<T> + Send> WriteJob for Task<T, F> {
    fn commit(&self) -> CommitMode {
        self.commit
    }

    fn goes_behind(&mut self, newest: i64) -> Option<i64> {
        match self.order {
            JobOrder::Any => None,
            JobOrder::BehindStored => Some(*self.behind.get_or_insert(newest)),
        }
    }

    fn run(&mut self, write: &mut Write<'_>) -> std::result::Result<(), ()> {
        let result = (self.work)(write);
        let outcome = if result.is_ok() { Ok(()) } else { Err(()) };
        self.result = Some(result);
        outcome
    }

    fn finish(self: Box<Self>, committed: std::result::Result<(), StoreError>) {
        let result = match (committed, self.result) {
            (Ok(()), Some(result)) => result,
            (Ok(()), None) => unreachable!("a committed job has run"),
            // The job's own error says more than the failed commit.
            (Err(_), Some(Err(refusal))) => Err(refusal),
            (Err(error), _) => Err(error),
        };
        // An error means that the caller was cancelled; the commit stands.
        let _ = self.reply.send(result);
    }
}

/// Hands work to the writer thread.
#[derive(Clone)]
pub(super) struct WriterHandle {
    commands: Sender<WriterCommand>,
}

impl WriterHandle {
    pub(super) fn new(commands: Sender<WriterCommand>) -> Self {
        Self { commands }
    }

    /// The writer still runs all earlier jobs, except those held back behind stored events.
    pub(super) fn stop(&self) {
        // An error means that it has stopped.
        let _ = self.commands.send(WriterCommand::Stop);
    }

    /// Runs `work` in a transaction and returns once that is committed. `work` may run more than once.
    pub(super) async fn run<T, F>(&self, order: JobOrder, commit: CommitMode, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Write<'_>) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Unavailable("the store was closed".to_owned());
        let task = Box::new(Task { order, behind: None, commit, work, result: None, reply });
        self.commands.send(WriterCommand::Do(task)).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}
