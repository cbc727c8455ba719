//! The embedded store: one SQLite file, one writer thread with group commit, readers beside it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::Connection;

use self::job::{CommitMode, JobOrder, WriterHandle};
use self::nodes::ListeningNodes;
use self::opening::open_connection;
use self::syncer::SyncFile;
use self::writer::Write;
use super::moving::{MoveError, Moved};
use super::refusals::Refusals;
use super::{
    ClaimRequest, Claimed, Cleaned, Expired, Hello, Joined, ReplayTurn, Result, Results, Settled, Settlement,
    Snapshot, Store, Suspect, Waiting,
};
use crate::breaker::Circuit;
use crate::clock::{Clock, SystemClock, truncated};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{LostClaim, NewMessage, NodeId, Sent};
use crate::send::check_payload;

mod archive;
mod bulk;
mod checkpoint;
mod claim;
mod config_cache;
mod counts;
mod dlq;
mod endpoints;
mod errors;
mod event_types;
mod events;
mod export;
mod figures;
mod finished;
mod inspect;
mod invalid_events;
mod job;
mod keys;
mod listing;
mod lock;
mod nodes;
mod opening;
mod operate;
mod outbox;
mod publish;
mod query;
mod redrive;
mod replaying;
mod replays;
mod results;
mod retention;
mod row;
mod schema;
mod send;
mod settings;
mod setback;
mod settle;
mod shown;
mod stored_event;
mod stored_events;
mod subscriptions;
mod surface;
mod sweep;
mod syncer;
mod tokens;
mod writer;

pub use outbox::{publish_batch_in, publish_in, send_batch_in, send_in};

const READERS_MAX: usize = 4;

/// How to open a store file.
#[derive(Clone)]
pub struct SqliteOptions {
    pub path: PathBuf,
    /// Bring an older schema up to date. Without it an old schema is an error; a missing file is created
    /// either way.
    pub migrate: bool,
    /// Take the lock that makes this process the file's one node. Senders and tools leave it.
    pub own: bool,
    pub clock: Arc<dyn Clock>,
    /// Replaced by tests.
    #[doc(hidden)]
    pub sync: SyncFile,
}

impl SqliteOptions {
    /// For a node: owns the file.
    pub fn node(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            migrate: false,
            own: true,
            clock: Arc::new(SystemClock),
            sync: Arc::new(File::sync_data),
        }
    }

    /// For a sender or a tool beside a running node.
    pub fn tool(path: impl AsRef<Path>) -> Self {
        Self { own: false, ..Self::node(path) }
    }
}

/// An open store file. Dropping it closes the file.
pub struct SqliteStore {
    path: PathBuf,
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    opened_at: Timestamp,
    owns: bool,
    listeners: Arc<ListeningNodes>,
    readers: Arc<Mutex<Vec<Connection>>>,
    refusals: Refusals,
    threads: Threads,
}

impl SqliteStore {
    /// Gives the store a new name, after a restore or a clone: ids of the two stores must never be equal.
    pub async fn renew_name(&self) -> Result<()> {
        self.write(CommitMode::Durable, |write| schema::renew_name(write.conn)).await
    }

    /// Closes the file, so that the next export is complete: no node can run on it, and nothing can be sent to it or
    /// changed in it. Every attempt is refused with `by`. False when it was closed already.
    pub async fn close_for_export(&self, by: &str) -> Result<bool> {
        self.owner_only()?;
        self.set_unreadable_aside().await?;
        let by = by.to_owned();
        self.write(CommitMode::Durable, move |write| export::close(write, &by)).await
    }

    /// Undoes [`SqliteStore::close_for_export`]; false when the file was not closed.
    pub async fn reopen(&self) -> Result<bool> {
        self.owner_only()?;
        self.write(CommitMode::Durable, export::reopen).await
    }

    /// Writes all of the store as one stream, for `PostgresStore::import`.
    pub async fn export(&self, to: impl io::Write + Send + 'static) -> Result<Moved, MoveError> {
        self.owner_only()?;
        self.set_unreadable_aside().await?;
        let now = self.now();
        self.read(move |conn| Ok(export::write_all(conn, now, to))).await?
    }

    async fn set_unreadable_aside(&self) -> Result<()> {
        let found = self.read(export::unreadable_messages).await?;
        if found.is_empty() {
            return Ok(());
        }
        self.write(CommitMode::Durable, move |write| export::set_aside(write, &found)).await
    }

    async fn send_one(&self, commit: CommitMode, message: NewMessage) -> Result<Sent> {
        Ok(self.send_all(commit, [message]).await?[0])
    }

    async fn send_all(
        &self,
        commit: CommitMode,
        messages: impl AsRef<[NewMessage]> + Send + 'static,
    ) -> Result<Vec<Sent>> {
        messages.as_ref().iter().try_for_each(check_payload)?;
        let order = JobOrder::of(messages.as_ref().iter().map(|message| &message.ordering_key));
        self.write_in(order, commit, move |write| send::send(write, messages.as_ref())).await
    }

    async fn write<T, F>(&self, commit: CommitMode, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Write<'_>) -> Result<T> + Send + 'static,
    {
        self.write_in(JobOrder::Any, commit, work).await
    }

    async fn write_in<T, F>(&self, order: JobOrder, commit: CommitMode, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Write<'_>) -> Result<T> + Send + 'static,
    {
        let writer = self.threads.writer.as_ref().expect("the writer lives as long as the store");
        self.refusals.noted(writer.run(order, commit, work).await)
    }

    async fn read<T, F>(&self, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T> + Send + 'static,
    {
        let (path, readers) = (self.path.clone(), self.readers.clone());
        let pool = move || readers.lock().expect("no reader panics while it holds the pool").pop();
        let returned = self.readers.clone();
        tokio::task::spawn_blocking(move || {
            let conn = match pool() {
                Some(conn) => conn,
                None => open_connection(&path)?,
            };
            let result = work(&conn);
            let mut readers = returned.lock().expect("no reader panics while it holds the pool");
            if readers.len() < READERS_MAX {
                readers.push(conn);
            }
            result
        })
        .await
        .unwrap_or_else(|error| Err(StoreError::Unavailable(error.to_string())))
    }

    fn owner_only(&self) -> Result<()> {
        if self.owns {
            return Ok(());
        }
        Err(StoreError::Unusable(
            "this handle does not own the file: open it as a node to dispatch".to_owned(),
        ))
    }
}

/// The writer and the checkpointer. Dropping waits for both; after that the file is closed and unlocked.
struct Threads {
    writer: Option<WriterHandle>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    checkpointer: Option<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.writer.take().inspect(WriterHandle::stop);
        self.stop = None;
        for thread in [self.checkpointer.take(), self.thread.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn now(&self) -> Timestamp {
        truncated(self.clock.now())
    }

    async fn join(&self, hello: Hello) -> Result<Joined> {
        self.owner_only()?;
        let name = hello.name.clone();
        let first = self.listeners.is_empty();
        let joined = self
            .write(CommitMode::Durable, move |write| {
                export::refuse_if_closed(write.conn)?;
                if first {
                    nodes::bury_earlier_nodes(write)?;
                    archive::make_months_ahead(write)?;
                }
                nodes::join(write, &name)
            })
            .await?;
        self.listeners.add(joined.node, &hello);
        Ok(joined)
    }

    async fn heartbeat(&self, node: NodeId) -> Result<Duration> {
        // Durable, so that a node whose disk fails loses its lease and stops.
        self.write(CommitMode::Durable, move |write| nodes::heartbeat(write, node)).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.listeners.part_with(node);
        // After its direct claims are on disk and its slots were given back.
        let left = self.write(CommitMode::AfterSync, move |write| nodes::leave(write, node)).await;
        self.listeners.remove(node);
        left
    }

    async fn snapshot(&self, known: Option<i64>) -> Result<Option<Arc<Snapshot>>> {
        self.write(CommitMode::Soon, move |write| Ok(write.config.snapshot(known))).await
    }

    async fn waiting(&self) -> Result<Vec<Waiting>> {
        self.read(claim::waiting).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed> {
        self.owner_only()?;
        self.write(CommitMode::AfterSync, move |write| claim::claim(write, &request)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        self.write(CommitMode::Soon, move |write| settle::settle(write, &settlements)).await
    }

    async fn suspects(&self, limit: usize) -> Result<Vec<Suspect>> {
        self.read(move |conn| claim::suspects(conn, limit)).await
    }

    async fn lost_claims(&self, limit: usize) -> Result<Vec<LostClaim>> {
        let opened_at = self.opened_at;
        self.write(CommitMode::Soon, move |write| {
            // When a file is opened after a pause, every lease has run out: give nodes one lease to renew theirs.
            // After the clock was set back `opened_at` means nothing: judge leases at once.
            let was_set_back = write.now < opened_at;
            let may_judge = was_set_back || write.now >= opened_at + write.config.settings().node_lease;
            nodes::lost_claims(write, may_judge, limit)
        })
        .await
    }

    async fn move_circuit(&self, endpoint: EndpointId, from_epoch: i64, to: Circuit) -> Result<bool> {
        self.write(CommitMode::Soon, move |write| endpoints::move_circuit(write, endpoint, from_epoch, to))
            .await
    }

    async fn upkeep(&self, limit: usize) -> Result<Vec<Expired>> {
        self.write(CommitMode::Soon, move |write| retention::expire(write, limit)).await
    }

    async fn clean_up(&self, limit: usize) -> Result<Cleaned> {
        self.write(CommitMode::Soon, move |write| retention::clean_up(write, limit)).await
    }

    async fn note_results(&self, results: Vec<(EndpointId, Results)>) -> Result<Vec<EndpointId>> {
        self.write(CommitMode::Soon, move |write| results::note(write, &results)).await
    }

    async fn advance_replays(&self, limit: usize) -> Result<ReplayTurn> {
        self.owner_only()?;
        crate::store::replaying::advance(self, limit).await
    }
}
