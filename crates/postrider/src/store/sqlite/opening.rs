//! Opening the file: its schema, its connections and the threads that serve them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::checkpoint::WalGauge;
use super::config_cache::ConfigCache;
use super::job::WriterHandle;
use super::lock::FileLock;
use super::nodes::ListeningNodes;
use super::query::Query;
use super::setback::ClockWatch;
use super::stored_events::StoredEvents;
use super::syncer::Syncer;
use super::writer::WriterThread;
use super::{SqliteOptions, SqliteStore, Threads, archive, checkpoint, nodes, schema};
use crate::clock::truncated;
use crate::error::StoreError;
use crate::store::Result;
use crate::store::refusals::Refusals;

/// How long a transaction of another process may keep the writer waiting.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENTS_CACHED: usize = 256;
/// Enough for both ends of the queue and the inner pages of its trees; the system's page cache has the rest.
const WRITER_CACHE_KIB: i64 = 4 * 1024;

impl SqliteStore {
    /// Whether the file exists and has a store in it. Changes nothing.
    pub fn is_installed(path: impl AsRef<Path>) -> Result<bool> {
        let path = resolved(path.as_ref())?;
        if !path.exists() {
            return Ok(false);
        }
        let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        conn.busy_timeout(BUSY_TIMEOUT)?;
        Ok(schema::version(&conn)? != 0)
    }

    /// Opens the file; a missing one is created with the current schema.
    pub fn open(mut options: SqliteOptions) -> Result<Self> {
        // SQLite follows links to find its WAL; lock and syncer must look in the same place.
        let typed = std::mem::take(&mut options.path);
        options.path = resolved(&typed)?;
        let lock = options.own.then(|| FileLock::take(&options.path, &typed)).transpose()?;
        let mut conn = open_connection(&options.path)?;
        if options.migrate || schema::version(&conn)? == 0 {
            schema::migrate(&mut conn, options.clock.now())?;
        }
        schema::check(&conn)?;
        if options.own {
            schema::refresh_surface(&mut conn)?;
        }
        conn.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        let name: String = conn.value("SELECT value FROM _postrider_meta WHERE name = 'store'", [])?;
        let newest_message = conn.value("SELECT coalesce(max(id), 0) FROM _postrider_queue", [])?;
        let last_heartbeat = nodes::last_heartbeat(&conn)?;
        let listeners = Arc::new(ListeningNodes::default());
        let gauge = WalGauge::default();
        let (commands, receiver) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        let checkpointer =
            if options.own { Some(checkpoint::spawn(&options.path, gauge.clone(), stopped)?) } else { None };
        let writer = WriterThread {
            conn,
            clock: options.clock.clone(),
            commands: receiver,
            config: ConfigCache::default(),
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

/// Every connection gets the same settings.
pub(super) fn open_connection(path: &Path) -> Result<Connection> {
    let conn = Connection::open(path)?;
    conn.busy_timeout(BUSY_TIMEOUT)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    // Without it SQLite compiles statements on partial indexes anew for every bound value.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mode: String = conn.value("PRAGMA journal_mode = WAL", [])?;
    if mode != "wal" {
        return Err(StoreError::Unusable(format!(
            "{} cannot use SQLite's WAL (journal mode is {mode}); put it on a local disk",
            path.display()
        )));
    }
    conn.execute_batch(
        // The syncer does what FULL would do, while the writer continues.
        "PRAGMA synchronous = NORMAL;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = 67108864;
         PRAGMA temp_store = MEMORY;",
    )?;
    Ok(conn)
}
