//! The embedded store: one SQLite file, one writer thread with group commit, readers beside it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use self::checkpoint::WalGauge;
use self::job::{Commit, Order, WriterHandle};
use self::known::Known;
use self::lock::FileLock;
use self::nodes::Listeners;
use self::setback::ClockWatch;
use self::stored_events::StoredEvents;
use self::syncer::{SyncFile, Syncer};
use self::writer::{Write, Writer};
use super::moving::{MoveError, Moved};
use super::refusals::Refusals;
use super::{
    ClaimRequest, Claimed, Cleaned, DeadLetter, DlqFilter, DlqSummary, EndpointHealth, EventRecord, Expired,
    Hello, Joined, Operate, Redrive, ReplayTurn, Result, Results, Settled, Settlement, Snapshot, Store,
    StoreStatus, Story, Suspect, Waiting,
};
use crate::breaker::Circuit;
use crate::clock::{Clock, SystemClock, truncated};
use crate::endpoint::{Endpoint, EndpointChange, EndpointId, NewEndpoint};
use crate::error::StoreError;
use crate::message::{LostClaim, MessageId, NewMessage, NodeId, Sent};
use crate::outcome::log_cancelled;
use crate::send::check_payload;
use crate::settings::Settings;

mod archive;
mod bulk;
mod checkpoint;
mod claim;
mod counts;
mod dlq;
mod endpoints;
mod event_types;
mod events;
mod export;
mod figures;
mod finished;
mod inspect;
mod invalid_events;
mod job;
mod keys;
mod known;
mod listing;
mod lock;
mod nodes;
mod outbox;
mod publish;
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

/// How long a transaction of another process may keep the writer waiting.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENTS_CACHED: usize = 256;
/// The ends of the queue and the inner pages of its trees; the rest is in the page cache of the system.
const WRITER_CACHE_KIB: i64 = 4 * 1024;
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
    /// By the system, or by a test's hand.
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

/// A store file, open. Closing is dropping: what was answered is in the file.
pub struct SqliteStore {
    path: PathBuf,
    name: Arc<str>,
    clock: Arc<dyn Clock>,
    opened_at: Timestamp,
    owns: bool,
    listeners: Arc<Listeners>,
    readers: Arc<Mutex<Vec<Connection>>>,
    refusals: Refusals,
    threads: Threads,
}

impl SqliteStore {
    /// Whether there is a file, and it has a store in it. Changes nothing.
    pub fn is_installed(path: impl AsRef<Path>) -> Result<bool> {
        let path = resolved(path.as_ref())?;
        if !path.exists() {
            return Ok(false);
        }
        let look = || {
            let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
            conn.busy_timeout(BUSY_TIMEOUT)?;
            schema::version(&conn)
        };
        look().map(|version| version != 0).map_err(storage_error)
    }

    /// Opens the file; a missing one is created with the current schema.
    pub fn open(mut options: SqliteOptions) -> Result<Self> {
        // SQLite follows links to find its WAL; lock and syncer must look in the same place.
        let typed = std::mem::take(&mut options.path);
        options.path = resolved(&typed)?;
        let lock = options.own.then(|| FileLock::take(&options.path, &typed)).transpose()?;
        let mut conn = open_connection(&options.path)?;
        if options.migrate || schema::version(&conn).map_err(storage_error)? == 0 {
            schema::migrate(&mut conn, options.clock.now())?;
        }
        schema::check(&conn)?;
        if options.own {
            schema::refresh_surface(&mut conn)?;
        }
        conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB).map_err(storage_error)?;
        let name: String = conn
            .query_row("SELECT value FROM _postrider_meta WHERE name = 'store'", [], |row| row.get(0))
            .map_err(storage_error)?;
        let newest_message = conn
            .query_row("SELECT coalesce(max(id), 0) FROM _postrider_queue", [], |row| row.get(0))
            .map_err(storage_error)?;
        let last_heartbeat = nodes::last_heartbeat(&conn).map_err(storage_error)?;
        let listeners = Arc::new(Listeners::default());
        let gauge = WalGauge::default();
        let (commands, receiver) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let checkpointer =
            if options.own { Some(checkpoint::spawn(&options.path, gauge.clone(), stopped)?) } else { None };
        let writer = Writer {
            conn,
            clock: options.clock.clone(),
            commands: receiver,
            known: Known::default(),
            months: archive::Months::default(),
            listeners: listeners.clone(),
            syncer: Syncer::spawn(&options.path, options.sync, listeners.clone(), commands.clone())?,
            owns: options.own,
            data_version: -1,
            freed: 0,
            newest_message,
            unsynced_outside: true,
            stored_events: StoredEvents::of_file(options.own),
            watch: ClockWatch::of_file(options.own, last_heartbeat, options.clock.now()),
            held: Default::default(),
            wal: gauge,
        };
        let thread = std::thread::Builder::new()
            .name("postrider-writer".to_owned())
            .spawn(move || {
                writer.run();
                drop(lock);
            })
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        let opened_at = truncated(options.clock.now());
        Ok(Self {
            path: options.path,
            name: name.into(),
            clock: options.clock,
            opened_at,
            owns: options.own,
            listeners,
            readers: Arc::default(),
            refusals: Refusals::default(),
            threads: Threads {
                writer: Some(WriterHandle::new(commands)),
                stop: Some(stop),
                thread: Some(thread),
                checkpointer,
            },
        })
    }

    /// Gives the store a new name, after a restore or a clone: ids of the two stores must never be equal.
    pub async fn renew_name(&self) -> Result<()> {
        self.write(Commit::Durable, |write| schema::renew_name(write.conn).map_err(storage_error)).await
    }

    /// Closes the file for good, so that what is exported next is all there will be: no node runs on it, and nothing
    /// is sent to it or changed in it. Whoever tries is told what closed it. False when it was closed already.
    pub async fn close_for_export(&self, by: &str) -> Result<bool> {
        self.owner_only()?;
        self.set_unreadable_aside().await?;
        let by = by.to_owned();
        self.write(Commit::Durable, move |write| export::close(write, &by)).await
    }

    /// Takes [`SqliteStore::close_for_export`] back; false when the file was not closed.
    pub async fn reopen(&self) -> Result<bool> {
        self.owner_only()?;
        self.write(Commit::Durable, export::reopen).await
    }

    /// Writes all of the store as one stream, for `PostgresStore::import`.
    pub async fn export(&self, to: impl io::Write + Send + 'static) -> Result<Moved, MoveError> {
        self.owner_only()?;
        self.set_unreadable_aside().await?;
        let now = self.now();
        self.read(move |conn| Ok(export::write_all(conn, now, to))).await?
    }

    async fn set_unreadable_aside(&self) -> Result<()> {
        let found = self.read(|conn| export::unreadable_messages(conn).map_err(storage_error)).await?;
        if found.is_empty() {
            return Ok(());
        }
        self.write(Commit::Durable, move |write| export::set_aside(write, &found)).await
    }

    async fn send_one(&self, commit: Commit, message: NewMessage) -> Result<Sent> {
        Ok(self.send_all(commit, [message]).await?[0])
    }

    async fn send_all(
        &self,
        commit: Commit,
        messages: impl AsRef<[NewMessage]> + Send + 'static,
    ) -> Result<Vec<Sent>> {
        messages.as_ref().iter().try_for_each(check_payload)?;
        let order = Order::of(messages.as_ref().iter().map(|message| &message.ordering_key));
        self.write_in(order, commit, move |write| send::send(write, messages.as_ref())).await
    }

    async fn write<T, F>(&self, commit: Commit, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnMut(&mut Write<'_>) -> Result<T> + Send + 'static,
    {
        self.write_in(Order::Any, commit, work).await
    }

    async fn write_in<T, F>(&self, order: Order, commit: Commit, work: F) -> Result<T>
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

/// The writer and the checkpointer; dropping waits for both, so the file is at rest and unlocked after.
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
            .write(Commit::Durable, move |write| {
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
        self.write(Commit::Durable, move |write| nodes::heartbeat(write, node)).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.listeners.part_with(node);
        // After what was claimed for it is on disk, and its slots are back.
        let left = self.write(Commit::AfterSync, move |write| nodes::leave(write, node)).await;
        self.listeners.remove(node);
        left
    }

    async fn snapshot(&self, known: Option<i64>) -> Result<Option<Arc<Snapshot>>> {
        self.write(Commit::Soon, move |write| Ok(write.known.snapshot(known))).await
    }

    async fn waiting(&self) -> Result<Vec<Waiting>> {
        self.read(|conn| claim::waiting(conn).map_err(storage_error)).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed> {
        self.owner_only()?;
        self.write(Commit::AfterSync, move |write| claim::claim(write, &request)).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        self.write(Commit::Soon, move |write| settle::settle(write, &settlements)).await
    }

    async fn suspects(&self, limit: usize) -> Result<Vec<Suspect>> {
        self.read(move |conn| claim::suspects(conn, limit).map_err(storage_error)).await
    }

    async fn lost_claims(&self, limit: usize) -> Result<Vec<LostClaim>> {
        let opened_at = self.opened_at;
        self.write(Commit::Soon, move |write| {
            // A store that was away for a while finds every lease run out: wait until nodes had a chance.
            // After a setback `opened_at` means nothing: judge leases at once.
            let was_set_back = write.now < opened_at;
            let may_judge = was_set_back || write.now >= opened_at + write.known.settings().node_lease;
            nodes::lost_claims(write, may_judge, limit)
        })
        .await
    }

    async fn move_circuit(&self, endpoint: EndpointId, from_epoch: i64, to: Circuit) -> Result<bool> {
        self.write(Commit::Soon, move |write| endpoints::move_circuit(write, endpoint, from_epoch, to)).await
    }

    async fn expire(&self, limit: usize) -> Result<Vec<Expired>> {
        self.write(Commit::Soon, move |write| retention::expire(write, limit)).await
    }

    async fn clean_up(&self, limit: usize) -> Result<Cleaned> {
        self.write(Commit::Soon, move |write| retention::clean_up(write, limit)).await
    }

    async fn note_results(&self, results: Vec<(EndpointId, Results)>) -> Result<Vec<EndpointId>> {
        self.write(Commit::Soon, move |write| results::note(write, &results)).await
    }

    async fn advance_replays(&self, limit: usize) -> Result<ReplayTurn> {
        self.owner_only()?;
        replaying::advance(self, limit).await
    }
}

#[async_trait]
impl Operate for SqliteStore {
    async fn send(&self, message: NewMessage) -> Result<Sent> {
        self.send_one(Commit::Durable, message).await
    }

    async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.send_all(Commit::Durable, messages).await
    }

    async fn send_fast(&self, message: NewMessage) -> Result<Sent> {
        self.send_one(Commit::Fast, message).await
    }

    async fn send_batch_fast(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.send_all(Commit::Fast, messages).await
    }

    async fn create_endpoint(&self, endpoint: NewEndpoint) -> Result<Endpoint> {
        self.write(Commit::Durable, move |write| endpoints::create(write, endpoint.clone())).await
    }

    async fn alter_endpoint(&self, name: &str, change: EndpointChange) -> Result<Endpoint> {
        let name = name.to_owned();
        self.write(Commit::Durable, move |write| endpoints::alter(write, &name, change.clone())).await
    }

    async fn drop_endpoint(&self, name: &str, force: bool) -> Result<()> {
        loop {
            let name = name.to_owned();
            if self.write(Commit::Durable, move |write| endpoints::drop(write, &name, force)).await? {
                return Ok(());
            }
        }
    }

    async fn endpoint(&self, name: &str) -> Result<Endpoint> {
        let name = name.to_owned();
        self.read(move |conn| endpoints::load_by_name(conn, &name)).await
    }

    async fn endpoint_health(&self, name: &str) -> Result<EndpointHealth> {
        let name = name.to_owned();
        self.read(move |conn| {
            let endpoint = endpoints::load_by_name(conn, &name)?;
            results::health(conn, endpoint.id).map_err(storage_error)
        })
        .await
    }

    async fn endpoints(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
        let after = after.map(str::to_owned);
        self.read(move |conn| endpoints::list(conn, after.as_deref(), limit).map_err(storage_error)).await
    }

    async fn set_endpoint_enabled(&self, name: &str, enabled: bool) -> Result<()> {
        let name = name.to_owned();
        self.write(Commit::Durable, move |write| endpoints::set_enabled(write, &name, enabled)).await
    }

    async fn set_endpoint_paused(&self, name: &str, paused: bool) -> Result<()> {
        let name = name.to_owned();
        self.write(Commit::Durable, move |write| endpoints::set_paused(write, &name, paused)).await
    }

    async fn reset_circuit(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.write(Commit::Durable, move |write| endpoints::reset_circuit(write, &name)).await
    }

    async fn pause(&self, reason: &str) -> Result<()> {
        let reason = reason.to_owned();
        self.write(Commit::Durable, move |write| settings::pause(write, &reason)).await
    }

    async fn resume(&self) -> Result<()> {
        self.write(Commit::Durable, settings::resume).await
    }

    async fn cancel(&self, id: MessageId) -> Result<()> {
        self.write(Commit::Durable, move |write| settle::cancel(write, id)).await?;
        log_cancelled(id);
        Ok(())
    }

    async fn reschedule(&self, id: MessageId, at: Timestamp) -> Result<()> {
        self.write(Commit::Durable, move |write| settle::reschedule(write, id, at)).await
    }

    async fn erase(&self, id: MessageId) -> Result<()> {
        self.write(Commit::Durable, move |write| settle::erase(write, id)).await
    }

    async fn release_key(&self, key: &str, endpoint: Option<&str>) -> Result<u64> {
        let (key, endpoint) = (key.to_owned(), endpoint.map(str::to_owned));
        self.write(Commit::Durable, move |write| dlq::release_key(write, &key, endpoint.as_deref())).await
    }

    async fn story(&self, id: MessageId) -> Result<Story> {
        let now = self.now();
        self.read(move |conn| inspect::story(conn, now, id)).await
    }

    async fn dlq(&self, filter: DlqFilter) -> Result<Vec<DeadLetter>> {
        self.read(move |conn| dlq::list(conn, &filter)).await
    }

    async fn redrive(&self, selection: Redrive) -> Result<u64> {
        let plan = Arc::new(self.read(move |conn| redrive::Plan::new(conn, selection)).await?);
        let mut progress = redrive::Progress::default();
        while !plan.is_done(progress) {
            let plan = plan.clone();
            progress =
                self.write(Commit::Durable, move |write| redrive::step(write, &plan, progress)).await?;
        }
        Ok(progress.redriven)
    }

    async fn discard(&self, dlq_id: i64) -> Result<()> {
        self.write(Commit::Durable, move |write| dlq::discard(write, dlq_id)).await
    }

    async fn dlq_summary(&self) -> Result<Vec<DlqSummary>> {
        self.read(|conn| dlq::summary(conn).map_err(storage_error)).await
    }

    async fn settings(&self) -> Result<Settings> {
        self.read(known::load_settings).await
    }

    async fn configure(&self, changes: Vec<(String, String)>) -> Result<()> {
        self.write(Commit::Durable, move |write| settings::configure(write, &changes)).await
    }

    async fn events(&self, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>> {
        self.read(move |conn| events::list(conn, before, limit).map_err(storage_error)).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        let (name, now) = (self.name.clone(), self.clock.now());
        self.read(move |conn| inspect::status(conn, &name, now)).await
    }
}

fn resolved(path: &Path) -> Result<PathBuf> {
    let unusable = |what: &Path, rule: &str| Err(StoreError::Unusable(format!("{} {rule}", what.display())));
    match path.canonicalize() {
        Ok(folder) if folder.is_dir() => return unusable(path, "is a folder; name a file in it"),
        Ok(file) => return Ok(file),
        Err(_) => {}
    }
    // The file does not exist yet; its folder may be a link.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (parent.canonicalize(), path.file_name()) {
        (Ok(parent), Some(name)) if parent.is_dir() => Ok(parent.join(name)),
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => {
            unusable(parent, "does not exist; create that folder, or name a file elsewhere")
        }
        (Err(error), _) => unusable(parent, &format!("cannot be opened: {error}")),
        (Ok(_), _) => unusable(parent, "is not a folder; name a file elsewhere"),
    }
}

/// Every connection of ours is set up alike.
fn open_connection(path: &Path) -> Result<Connection> {
    let conn = Connection::open(path).map_err(storage_error)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(storage_error)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Without it SQLite compiles statements on partial indexes anew for every bound value.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(storage_error)?;
    let mode: String =
        conn.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(storage_error)?;
    if mode != "wal" {
        return Err(StoreError::Unusable(format!(
            "{} cannot use SQLite's WAL (journal mode is {mode}); put it on a local disk",
            path.display()
        )));
    }
    conn.execute_batch(
        // The syncer does what FULL would do, without keeping the writer waiting.
        "PRAGMA synchronous = NORMAL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA temp_store = MEMORY;",
    )
    .map_err(storage_error)?;
    Ok(conn)
}

/// A database that says no is an expected day, unless it says that it cannot be used at all.
fn storage_error(error: rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode;
    if let Some(refusal) = export::refusal(&error) {
        return refusal;
    }
    match error.sqlite_error_code() {
        Some(
            ErrorCode::NotADatabase
            | ErrorCode::DatabaseCorrupt
            | ErrorCode::CannotOpen
            | ErrorCode::ReadOnly,
        ) => StoreError::Unusable(format!("the store cannot be used: {error}")),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::Unavailable(format!("another program is writing to it ({error})"))
        }
        Some(ErrorCode::DiskFull) => StoreError::Unavailable(format!("its disk is full ({error})")),
        _ => StoreError::Unavailable(error.to_string()),
    }
}
