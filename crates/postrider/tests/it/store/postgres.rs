//! The suite over one PostgreSQL database.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider::MessageId;
use postrider::clock::ManualClock;
use postrider::store::postgres::{PostgresOptions, PostgresStore};
use proptest::prelude::*;
use test_servers::{Address, Database, StandingClock};

use super::model;
use super::world::{Damage, Harness, World};

pub(super) mod prompt;
mod transactions;
mod open_changes;
mod sqlx_transactions;
mod isolation;
mod wakeups;
mod migrations;
mod engine;
mod surface;
mod refusals;
mod captures;
mod publishing;
mod event_rules;
mod replays;
mod letters;
mod rules;
mod roles;
mod paths;
mod callers;
mod prepared;
mod looking;
mod partitions;
mod tls;
pub(crate) mod post;
mod proxy;
mod many_nodes;
mod cut_off;
mod failover;
mod copies;
mod old_snapshots;
mod room;
mod deadlocks;
mod in_the_way;
mod settled_later;
mod frozen;
mod damage;
mod foreign_locks;

pub(crate) struct Postgres {
    pub(crate) database: Database,
    /// In the database, and in this process.
    clocks: (StandingClock, Arc<ManualClock>),
}

#[async_trait]
impl Harness for Postgres {
    type S = PostgresStore;
    const REOPENING_ENDS_EARLIER_NODES: bool = false;

    async fn new() -> Self {
        let database = at_rest().await;
        let clocks = (StandingClock::of(&database), Arc::new(ManualClock::at(start())));
        let postgres = Self { database, clocks };
        postgres.open().await.renew_name().await.expect("a copy has a name of its own");
        postgres
    }

    async fn open(&self) -> PostgresStore {
        let clock = Some(self.clocks.1.clone() as _);
        let options = PostgresOptions { clock, ..PostgresOptions::new(self.database.url()) };
        PostgresStore::open(options).await.expect("the store opens")
    }

    async fn beside(&self) -> PostgresStore {
        self.open().await
    }

    fn advance(&self, by: Duration) {
        self.clocks.0.advance(by);
        self.clocks.1.advance(by);
    }

    async fn damage(&self, id: MessageId, damage: Damage) {
        let junk = match damage {
            Damage::Headers => r#"'["no", "map"]'"#,
            Damage::Options => r#"'{"a": 1e999}'"#,
            Damage::CreatedAt => "'infinity'",
            Damage::ExpiresAt => "'294000-01-01'",
        };
        overwrite(&self.database, id, damage.column(), junk).await;
    }
}

/// Past all rules of the database.
async fn overwrite(database: &Database, id: MessageId, column: &str, value: &str) {
    let written = format!(
        "BEGIN; ALTER TABLE postrider.queue DISABLE TRIGGER USER;
         UPDATE postrider.queue SET {column} = {value} WHERE id = {id};
         ALTER TABLE postrider.queue ENABLE TRIGGER USER; COMMIT"
    );
    database.connect().await.batch_execute(&written).await.expect("a damaged row");
}

fn start() -> Timestamp {
    "2026-01-15T12:00:00Z".parse().expect("a time")
}

/// A migrated database whose clock stands still.
async fn at_rest() -> Database {
    let recipe = format!("{} and a standing clock", PostgresStore::migration_recipe());
    let database = Database::copied(&recipe, async |template| {
        migrated(template).await;
        StandingClock::install(template, start()).await;
    });
    database.await
}

/// An application's own connection.
pub(crate) async fn connect(world: &World<Postgres>) -> postrider::tokio_postgres::Client {
    world.harness().database.connect().await
}

pub(crate) async fn migrated(database: &Address) {
    let options = PostgresOptions { migrate: true, ..PostgresOptions::new(database.url()) };
    PostgresStore::open(options).await.expect("an empty database is migrated");
}

// Not `direct_claims!`: senders are anywhere, so what is sent is announced and claimed like everything else.
super::conformance::conformance!(crate::store::postgres::Postgres);

/// Fewer than for SQLite: each case has a database of its own.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn every_sequence_of_operations_ends_as_in_the_model(operations in model::operations()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(model::run::<Postgres>(operations));
    }
}
