//! Another server takes the place of the one that nodes were working with.

use std::sync::Arc;
use std::time::Duration;

use postrider::message::NodeId;
use postrider::store::postgres::PostgresOptions;
use postrider::store::{ClaimRequest, NoDirectClaims};
use postrider::{Operate, PostgresStore, Store, StoreError};
use serde_json::json;
use test_servers::{Database, Postgres, StandingClock};

use crate::store::world::{due, join, new_endpoint, to};

/// A database whose time stands still.
async fn standing_still(server: &Postgres) -> Database {
    let database = Database::empty_on(&server.url()).await;
    super::migrated(&database).await;
    StandingClock::install(&database, "2026-01-15T12:00:00Z".parse().unwrap()).await;
    database
}

async fn open(url: &str) -> PostgresStore {
    PostgresStore::open(PostgresOptions::new(url)).await.unwrap()
}

async fn advance(url: &str, seconds: u32) {
    let client = PostgresStore::connect(url).await.unwrap();
    let advance = format!("UPDATE public.test_clock SET now = now + interval '{seconds} s'");
    client.batch_execute(&advance).await.unwrap();
}

async fn two_nodes(store: &PostgresStore) -> (NodeId, NodeId) {
    (join(store, Arc::new(NoDirectClaims)).await.0, join(store, Arc::new(NoDirectClaims)).await.0)
}

/// Each connection may have to fail once before its end is known.
async fn heartbeat(store: &PostgresStore, node: NodeId) -> Result<Duration, StoreError> {
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
    let mut primary = Postgres::start().unwrap();
    let database = standing_still(&primary).await;
    let standby = primary.synchronous_standby().unwrap();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let url = &format!("postgres://postgres@{hosts}/{}", database.name());
    let store = open(url).await;
    let (slow, quick) = two_nodes(&store).await;
    advance(url, 5).await;
    heartbeat(&store, quick).await.unwrap();
    primary.stop_immediately();
    standby.promote().unwrap();
    let identity = "SELECT status FROM postrider.health_check() WHERE component = 'identity'";
    let promoted = PostgresStore::connect(url).await.unwrap();
    assert_eq!(
        promoted.query_one(identity, &[]).await.unwrap().get::<_, &str>(0),
        "ok",
        "a standby is no copy"
    );
    // Too short an outage to be noticed by the silence alone.
    advance(url, 7).await;
    heartbeat(&store, quick).await.unwrap();
    advance(url, 5).await;
    heartbeat(&store, quick).await.unwrap();
    store.lost_claims(10).await.unwrap();
    heartbeat(&store, slow).await.expect("it is still looking for the standby");
    for _ in 0..4 {
        advance(url, 4).await;
        heartbeat(&store, quick).await.unwrap();
    }
    store.lost_claims(10).await.unwrap();
    let judged = heartbeat(&store, slow).await;
    assert!(matches!(judged, Err(StoreError::Conflict(_))), "{judged:?}");
}

#[tokio::test]
async fn a_server_that_was_away_for_longer_than_a_lease_costs_nobody_theirs() {
    let mut server = Postgres::start().unwrap();
    let database = standing_still(&server).await;
    let url = &database.superuser_url();
    let store = open(url).await;
    store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
    let endpoint = store.endpoint("a").await.unwrap().id;
    let (first, second) = two_nodes(&store).await;
    store.send_batch(vec![to("a"); 20]).await.unwrap();
    for node in [first, second] {
        let wants = vec![due(endpoint, 10)];
        let claimed = store.claim(ClaimRequest { node, batch: 1, wants, alone: false }).await.unwrap();
        assert_eq!(claimed.claims.len(), 10);
    }
    // Durable, and with it the claims before it.
    store.send(to("a")).await.unwrap();
    server.stop_immediately();
    server.start_again().unwrap();
    advance(url, 600).await;
    // Whoever is back first would be the one to judge.
    heartbeat(&store, first).await.unwrap();
    assert!(store.lost_claims(100).await.unwrap().is_empty());
    advance(url, 14).await;
    heartbeat(&store, first).await.unwrap();
    assert!(store.lost_claims(100).await.unwrap().is_empty());
    heartbeat(&store, second).await.expect("everybody has one lease to come back");
}
