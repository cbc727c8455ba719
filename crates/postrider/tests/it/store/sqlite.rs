//! The suite over one SQLite file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::SqliteStore;
use postrider::clock::ManualClock;
use postrider::store::sqlite::SqliteOptions;
use proptest::prelude::*;
use tempfile::TempDir;

use super::model;
use super::world::Harness;

pub(crate) struct Sqlite {
    folder: TempDir,
    clock: Arc<ManualClock>,
}

impl Sqlite {
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }
}

#[async_trait]
impl Harness for Sqlite {
    type S = SqliteStore;
    const REOPENING_ENDS_EARLIER_NODES: bool = true;

    async fn new() -> Self {
        let start = "2026-01-15T12:00:00Z".parse().expect("a time");
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, clock: Arc::new(ManualClock::at(start)) }
    }

    async fn open(&self) -> SqliteStore {
        let path = self.path();
        let clock = self.clock.clone();
        SqliteStore::open(SqliteOptions { migrate: true, clock, ..SqliteOptions::node(path) })
            .expect("the file opens")
    }

    async fn beside(&self) -> SqliteStore {
        let clock = self.clock.clone();
        SqliteStore::open(SqliteOptions { clock, ..SqliteOptions::tool(self.path()) })
            .expect("the file opens")
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }
}

super::conformance::conformance!(crate::store::sqlite::Sqlite);
super::conformance::direct_claims!(crate::store::sqlite::Sqlite);

/// Enough for every run; `PROPTEST_CASES=1000` looks longer.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn every_sequence_of_operations_ends_as_in_the_model(operations in model::operations()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(model::run::<Sqlite>(operations));
    }
}
