//! The suite over one SQLite file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use postrider::clock::ManualClock;
use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use postrider::{MessageId, SqliteStore, StoreError};
use proptest::prelude::*;
use tempfile::TempDir;

use super::model;
use super::world::{Damage, Harness};

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Sqlite {
    folder: TempDir,
    clock: Arc<ManualClock>,
}

impl Sqlite {
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub(crate) fn set_back(&self, days: u64) {
        self.clock_back_by(Duration::from_secs(days * 86_400));
    }

    pub(crate) fn clock_back_by(&self, time: Duration) {
        self.clock.set_back(time);
    }

    /// Past all rules of the file.
    pub(crate) fn overwrite(&self, id: MessageId, column: &str, value: &str) {
        let shell = Connection::open(self.path()).expect("the file opens");
        shell.busy_timeout(Duration::from_secs(5)).expect("a timeout");
        let rules: Vec<(String, String)> = shell
            .prepare("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = '_postrider_queue'")
            .and_then(|mut rules| rules.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .expect("the rules");
        let dropped: String = rules.iter().map(|(name, _)| format!("DROP TRIGGER {name};")).collect();
        let made_again: String = rules.iter().map(|(_, sql)| format!("{sql};")).collect();
        shell
            .execute_batch(&format!(
                "PRAGMA ignore_check_constraints = ON; BEGIN IMMEDIATE; {dropped}
                 UPDATE _postrider_queue SET {column} = {value} WHERE id = {id}; {made_again} COMMIT"
            ))
            .expect("a damaged row");
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
        let options =
            || SqliteOptions { migrate: true, clock: self.clock.clone(), ..SqliteOptions::node(self.path()) };
        // A process that another test is about to start holds the lock of a closed store until its exec.
        let deadline = Instant::now() + PATIENCE;
        loop {
            match SqliteStore::open(options()) {
                Err(StoreError::Unusable(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                opened => return opened.expect("the file opens"),
            }
        }
    }

    async fn beside(&self) -> SqliteStore {
        let clock = self.clock.clone();
        SqliteStore::open(SqliteOptions { clock, ..SqliteOptions::tool(self.path()) })
            .expect("the file opens")
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    async fn damage(&self, id: MessageId, damage: Damage) {
        let junk = match damage {
            Damage::Headers => "'{not json'",
            Damage::Options => "CAST(x'22ff22' AS TEXT)",
            Damage::CreatedAt | Damage::ExpiresAt => "9223372036854775807",
        };
        self.overwrite(id, damage.column(), junk);
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
