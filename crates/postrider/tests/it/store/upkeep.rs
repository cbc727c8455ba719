//! How much a step of cleaning up looks at in SQLite, however much is kept.

use std::sync::Arc;
use std::time::Duration;

use postrider::clock::ManualClock;
use postrider::rusqlite::Connection;
use postrider::store::NoDirectClaims;
use postrider::store::sqlite::SqliteOptions;
use postrider::{MessageId, Operate, SqliteStore, State, Store};
use serde_json::json;
use tempfile::TempDir;

use super::world::{join, new_endpoint, to};

const DAY: u64 = 86_400;

/// A store with an endpoint `a` on the 15th of January, and a look into its file.
struct House {
    _folder: TempDir,
    clock: Arc<ManualClock>,
    store: SqliteStore,
    file: Connection,
}

impl House {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let clock = Arc::new(ManualClock::at("2026-01-15T12:00:00Z".parse().unwrap()));
        let options = SqliteOptions { clock: clock.clone(), ..SqliteOptions::node(&path) };
        let store = SqliteStore::open(options).unwrap();
        join(&store, Arc::new(NoDirectClaims)).await;
        store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
        Self { _folder: folder, clock, store, file: Connection::open(&path).unwrap() }
    }

    async fn cancelled(&self) -> MessageId {
        let id = self.store.send(to("a")).await.unwrap().id;
        self.store.cancel(id).await.unwrap();
        id
    }

    fn pass_days(&self, days: u64) {
        self.clock.advance(Duration::from_secs(days * DAY));
    }

    fn count(&self, table: &str) -> i64 {
        self.file.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap()
    }

    /// Attempts of this message, long past their months.
    fn add_old_attempts(&self, message: i64, count: i64) {
        self.file
            .execute(
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?2)
                 INSERT INTO _postrider_attempts (message_id, number, node_id, started_at, duration, outcome)
                 SELECT ?1, n, 1, 0, 0, 'failed' FROM n",
                [message, count],
            )
            .unwrap();
    }

    async fn clean_up(&self) {
        for _ in 0..1000 {
            if !self.store.clean_up(250).await.unwrap().more {
                return;
            }
        }
        panic!("cleaning up never ends");
    }
}

#[tokio::test]
async fn attempts_that_are_kept_are_passed_over_to_a_limit() {
    let house = House::open().await;
    let queued = house.store.send(to("a")).await.unwrap().id;
    let gone = i64::MAX;
    // Here they are few enough to look behind them.
    house.add_old_attempts(queued.0, 1000);
    house.add_old_attempts(gone, 1);
    house.clean_up().await;
    assert_eq!(house.count("_postrider_attempts"), 1000);
    // Here they are too many, and a step that looked behind them all would be as long as they are many.
    house.add_old_attempts(queued.0, 2000);
    house.add_old_attempts(gone, 1);
    house.clean_up().await;
    assert_eq!(house.count("_postrider_attempts"), 3001);
    house.store.cancel(queued).await.unwrap();
    house.clean_up().await;
    assert_eq!(house.count("_postrider_attempts"), 0, "they go when their message is no longer queued");
}

#[tokio::test]
async fn events_are_looked_at_a_step_at_a_time() {
    let house = House::open().await;
    let add = |at: i64, count: i64| {
        let insert = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?2)
                      INSERT INTO _postrider_event_log (at, kind, detail) SELECT ?1, 'test', '{}' FROM n";
        house.file.execute(insert, [at, count]).unwrap();
    };
    house.file.execute("DELETE FROM _postrider_event_log", []).unwrap();
    // The clock was set back once: what is old stands behind what is kept.
    add(house.store.now().as_microsecond(), 300);
    add(0, 300);
    house.clean_up().await;
    assert_eq!(house.count("_postrider_event_log"), 600);
    house.pass_days(31);
    house.clean_up().await;
    assert_eq!(house.count("_postrider_event_log WHERE kind = 'test'"), 0);
}

#[tokio::test]
async fn a_month_of_the_archive_is_looked_at_only_when_all_of_it_may_go() {
    let house = House::open().await;
    house.store.configure(vec![("archive_retention_months".into(), "2".into())]).await.unwrap();
    let id = house.cancelled().await;
    // The 20th of March: it is past its months, but others of January need not be.
    house.pass_days(64);
    house.clean_up().await;
    assert_eq!(house.store.story(id).await.unwrap().state, State::Cancelled);
    // The 2nd of April.
    house.pass_days(13);
    house.clean_up().await;
    house.store.story(id).await.unwrap_err();
    assert_eq!(house.count("sqlite_master WHERE name = '_postrider_archive_2026_01'"), 0);
}
