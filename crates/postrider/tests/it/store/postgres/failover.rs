//! Another server takes the place of the one that nodes were working with.

use std::sync::Arc;
use std::time::Duration;

use postrider::message::NodeId;
use postrider::store::NoDirectClaims;
use postrider::store::postgres::PostgresOptions;
use postrider::{PostgresStore, Store, StoreError};
use test_servers::{Database, Postgres, StandingClock};

use crate::store::world::join;

/// A primary with a standby, and a store whose time stands still on both.
struct Pair {
    primary: Postgres,
    standby: Postgres,
    _database: Database,
    url: String,
}

impl Pair {
    async fn start() -> Self {
        let primary = Postgres::start().unwrap();
        let database = Database::empty_on(&primary.url()).await;
        super::migrated(&database).await;
        StandingClock::install(&database, "2026-01-15T12:00:00Z".parse().unwrap()).await;
        let standby = primary.synchronous_standby().unwrap();
        let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
        let url = format!("postgres://postgres@{hosts}/{}", database.name());
        Self { primary, standby, _database: database, url }
    }

    async fn open(&self) -> PostgresStore {
        PostgresStore::open(PostgresOptions::new(&self.url)).await.unwrap()
    }

    async fn advance(&self, seconds: u32) {
        let client = PostgresStore::connect(&self.url).await.unwrap();
        let advance = format!("UPDATE public.test_clock SET now = now + interval '{seconds} s'");
        client.batch_execute(&advance).await.unwrap();
    }

    fn fail_over(&mut self) {
        self.primary.stop_immediately();
        self.standby.promote().unwrap();
    }
}

/// Each connection may have to fail once before its end is known.
async fn heartbeat(store: &PostgresStore, node: NodeId) -> Result<(), StoreError> {
    for _ in 0..100 {
        match store.heartbeat(node).await {
            Err(StoreError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            answered => return answered,
        }
    }
    panic!("the standby is never found");
}

#[tokio::test]
async fn no_lease_is_judged_until_one_lease_after_a_failover() {
    let mut pair = Pair::start().await;
    let store = pair.open().await;
    let (slow, quick) =
        (join(&store, Arc::new(NoDirectClaims)).await.0, join(&store, Arc::new(NoDirectClaims)).await.0);
    pair.advance(5).await;
    heartbeat(&store, quick).await.unwrap();
    pair.fail_over();
    // Too short an outage to be noticed by the silence alone.
    pair.advance(7).await;
    heartbeat(&store, quick).await.unwrap();
    pair.advance(5).await;
    heartbeat(&store, quick).await.unwrap();
    store.lost_claims(10).await.unwrap();
    heartbeat(&store, slow).await.expect("it is still looking for the standby");
    for _ in 0..4 {
        pair.advance(4).await;
        heartbeat(&store, quick).await.unwrap();
    }
    store.lost_claims(10).await.unwrap();
    let judged = heartbeat(&store, slow).await;
    assert!(matches!(judged, Err(StoreError::Conflict(_))), "{judged:?}");
}
