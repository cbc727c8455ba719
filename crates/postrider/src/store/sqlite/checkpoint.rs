//! Checkpoints: a thread copies the WAL into the file, and the writer copies the last frames between two transactions,
//! so that the WAL restarts under any load.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use rusqlite::Connection;

use super::opening::open_connection;
use crate::store::Result;

const CHECKPOINT_INTERVAL: Duration = Duration::from_millis(500);
/// Above this the WAL should restart: 4096 pages are 16 MiB.
const WAL_PAGES_MAX: i64 = 4096;

/// How the checkpoint thread asks the writer for the last step.
#[derive(Clone, Default)]
pub(super) struct WalGauge {
    finish: Arc<AtomicBool>,
}

impl WalGauge {
    pub(super) fn finish_checkpoint_if_asked(&self, conn: &Connection) {
        if self.finish.swap(false, Ordering::Relaxed)
            && let Err(error) = passive_checkpoint(conn)
        {
            tracing::warn!(%error, "checkpoint failed; the WAL grows until one succeeds");
        }
    }
}

/// Starts the thread; it ends when `stop`'s other end is dropped.
pub(super) fn spawn(path: &Path, gauge: WalGauge, stop: Receiver<()>) -> Result<std::thread::JoinHandle<()>> {
    let conn = open_connection(path)?;
    let thread = std::thread::Builder::new().name("postrider-checkpoint".to_owned());
    let handle = thread.spawn(move || run(&conn, &gauge, &stop));
    handle.map_err(|error| crate::StoreError::Unavailable(error.to_string()))
}

fn run(conn: &Connection, gauge: &WalGauge, stop: &Receiver<()>) {
    let mut seen = None;
    while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(CHECKPOINT_INTERVAL) {
        let version = conn.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0)).ok();
        if version == seen {
            continue;
        }
        seen = version;
        match passive_checkpoint(conn) {
            Ok(pages) if pages > WAL_PAGES_MAX => gauge.finish.store(true, Ordering::Relaxed),
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "checkpoint failed; the WAL grows until one succeeds"),
        }
    }
}

/// Pages in the WAL.
fn passive_checkpoint(conn: &Connection) -> rusqlite::Result<i64> {
    conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1))
}
