//! What the writer is asked to do: a job runs in a transaction that others may share, and is answered when that is committed.

use std::sync::mpsc::Sender;

use tokio::sync::oneshot;

use super::writer::Write;
use crate::error::StoreError;
use crate::store::Result;

/// Does the commit have to be on disk before anybody is told?
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Commit {
    /// In the file, not yet synced: survives a killed process, and a lost one only means a redelivery.
    Soon,
    /// Like `Soon`, but what it saw may have been sent a moment ago: it is answered when that is durable.
    AfterSync,
    /// Answered like `Soon`, but synced at once, and no node hears of it before: a lost message whose id somebody
    /// has seen would give that id to another one.
    Fast,
    Durable,
}

impl Commit {
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

/// May it go before events that applications stored earlier?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Any,
    /// It brings messages under ordering keys.
    BehindStored,
}

impl Order {
    pub(super) fn of<'a>(mut ordering_keys: impl Iterator<Item = &'a Option<String>>) -> Self {
        if ordering_keys.any(Option::is_some) { Self::BehindStored } else { Self::Any }
    }
}

/// What the writer is told.
pub(super) enum Command {
    Do(Box<dyn Job>),
    /// The disk is free again.
    Synced,
    Stop,
}

pub(super) trait Job: Send {
    fn commit(&self) -> Commit;
    /// The stored event that it has to go behind: the newest one when it was first asked.
    fn goes_behind(&mut self, newest: i64) -> Option<i64>;
    /// May run again in another transaction if this one was rolled back.
    fn run(&mut self, write: &mut Write<'_>) -> std::result::Result<(), ()>;
    fn finish(self: Box<Self>, committed: std::result::Result<(), StoreError>);
}

struct Task<T, F> {
    order: Order,
    behind: Option<i64>,
    commit: Commit,
    work: F,
    result: Option<Result<T>>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Write<'_>) -> Result<T> + Send> Job for Task<T, F> {
    fn commit(&self) -> Commit {
        self.commit
    }

    fn goes_behind(&mut self, newest: i64) -> Option<i64> {
        match self.order {
            Order::Any => None,
            Order::BehindStored => Some(*self.behind.get_or_insert(newest)),
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
            // Its own refusal says more than the failed commit around it.
            (Err(_), Some(Err(refusal))) => Err(refusal),
            (Err(error), _) => Err(error),
        };
        // Nobody waits any more: the caller was cancelled, which undoes nothing.
        let _ = self.reply.send(result);
    }
}

/// Hands work to the writer thread.
#[derive(Clone)]
pub(super) struct WriterHandle {
    commands: Sender<Command>,
}

impl WriterHandle {
    pub(super) fn new(commands: Sender<Command>) -> Self {
        Self { commands }
    }

    /// Everything handed over before is still done, but for what goes behind stored events.
    pub(super) fn stop(&self) {
        // An error means that it has stopped.
        let _ = self.commands.send(Command::Stop);
    }

    /// Runs `work` in a transaction and returns once that is committed. `work` may run more than once.
    pub(super) async fn run<T, F>(&self, order: Order, commit: Commit, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Write<'_>) -> Result<T> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let stopped = || StoreError::Unavailable("the store was closed".to_owned());
        let task = Box::new(Task { order, behind: None, commit, work, result: None, reply });
        self.commands.send(Command::Do(task)).map_err(|_| stopped())?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}
