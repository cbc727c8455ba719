//! A running store, and an application's own connection to the same file.

use std::path::PathBuf;

use postrider::Operate;
use postrider::SqliteStore;
use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use serde_json::json;
use tempfile::TempDir;

use super::world::new_endpoint;

pub(crate) struct Shop {
    pub(crate) folder: TempDir,
    pub(crate) store: SqliteStore,
    pub(crate) app: Connection,
}

impl Shop {
    /// With one endpoint `a`, and a table of the application's own.
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let store = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
        store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
        let app = Connection::open(&path).unwrap();
        app.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").unwrap();
        Self { folder, store, app }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    pub(crate) async fn queued(&self) -> u64 {
        let status = self.store.status().await.unwrap();
        status.pending + status.processing
    }
}
