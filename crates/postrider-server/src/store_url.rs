//! Where a store is, as people write it, and how a command opens it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postrider::SqliteStore;
use postrider::store::sqlite::SqliteOptions;

use crate::failure::Failure;

pub(crate) const STORE_DEFAULT: &str = "sqlite:postrider.db";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoreUrl {
    path: PathBuf,
}

impl StoreUrl {
    pub(crate) fn or_default(text: Option<&str>) -> Result<Self, Failure> {
        Self::parse(text.unwrap_or(STORE_DEFAULT))
    }

    pub(crate) fn sqlite(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let refused = |rule: &str| Failure::usage(format!("store: {text:?} {rule}"));
        match text.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() || path.starts_with(":memory:") {
                    return Err(refused("must name a file, as sqlite:postrider.db"));
                }
                Ok(Self::sqlite(path))
            }
            Some(("postgres" | "postgresql", _)) => {
                Err(refused("names a PostgreSQL store, and this version has SQLite only: use sqlite:PATH"))
            }
            _ => Err(refused("must be written as sqlite:PATH, such as sqlite:postrider.db")),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn exists(&self) -> bool {
        self.path.exists()
    }

    /// For a node: owns the file; a missing one is created.
    pub(crate) async fn open_node(&self, migrate: bool) -> Result<Arc<SqliteStore>, Failure> {
        self.open(SqliteOptions { migrate, ..SqliteOptions::node(&self.path) }).await
    }

    /// For a command beside a running node. A mistyped path must not leave a new store behind.
    pub(crate) async fn open_tool(&self) -> Result<Arc<SqliteStore>, Failure> {
        if !self.exists() {
            return Err(Failure::store(format!("there is no store at {}", self.path.display()))
                .hint("`postrider serve` and `postrider migrate` create one; --store says where it is"));
        }
        self.open(SqliteOptions::tool(&self.path)).await
    }

    /// For `migrate`: creates a missing store, brings an older one up to date.
    pub(crate) async fn open_migrating(&self) -> Result<Arc<SqliteStore>, Failure> {
        self.open(SqliteOptions { migrate: true, ..SqliteOptions::tool(&self.path) }).await
    }

    /// For a new store id: no node may run meanwhile, or its messages would change their ids between attempts.
    pub(crate) async fn open_renaming(&self) -> Result<Arc<SqliteStore>, Failure> {
        self.open(SqliteOptions { migrate: true, ..SqliteOptions::node(&self.path) }).await
    }

    async fn open(&self, options: SqliteOptions) -> Result<Arc<SqliteStore>, Failure> {
        let opened = tokio::task::spawn_blocking(move || SqliteStore::open(options))
            .await
            .expect("opening a store does not panic");
        Ok(Arc::new(opened?))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sqlite_files_are_stores_yet() {
        assert_eq!(StoreUrl::parse("sqlite:a/b.db").expect("right").path(), Path::new("a/b.db"));
        assert_eq!(StoreUrl::parse("sqlite:///tmp/b.db").expect("right").path(), Path::new("/tmp/b.db"));
        for bad in ["sqlite:", "sqlite::memory:", "postrider.db", "postgres://x", "mysql:x"] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
