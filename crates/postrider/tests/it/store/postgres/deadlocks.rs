//! Batches that are sent in several parts lock their keys like one.

use std::time::{Duration, Instant};

use postrider::tokio_postgres::Client;
use postrider::{Operate, Store};
use serde_json::json;

use super::prompt::{self, Prompt};
use super::{Postgres, connect};
use crate::store::world::{World, to};

async fn until_waiting(app: &Client, count: i64) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let deadline = Instant::now() + Duration::from_secs(20);
    while app.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < count {
        assert!(Instant::now() < deadline, "too few wait");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Two statements that need the keys `k` and `l` in opposite order. Both wait for a sender of `k`, one after the other: the
/// first one would have nothing then, and the second one `l`.
async fn meet(world: &World<Postgres>, [one, other]: [&str; 2]) {
    let (mut sender, onlooker) = (connect(world).await, connect(world).await);
    let (first, second) = (Prompt::of(world).await, Prompt::of(world).await);
    let sending = sender.transaction().await.unwrap();
    let send = "SELECT postrider.send_with_options('a', '{}', p_ordering_key => 'k')";
    sending.execute(send, &[]).await.unwrap();
    let in_order = async {
        until_waiting(&onlooker, 1).await;
        second.run(other).await;
    };
    let release = async {
        until_waiting(&onlooker, 2).await;
        sending.rollback().await.unwrap();
    };
    tokio::join!(first.run(one), in_order, release);
}

#[tokio::test]
async fn batches_of_events_in_opposite_order_do_not_deadlock() {
    let (world, owner) = prompt::start().await;
    owner.run("SELECT postrider.create_event_type('orders')").await;
    owner.run("SELECT postrider.subscribe('orders', 'a'), postrider.subscribe('*', 'a')").await;
    owner.configure("max_batch_messages", 2).await;
    let event = |key: &str| json!({"event_type": "orders", "payload": {}, "ordering_key": key});
    let publish = |events| format!("SELECT postrider.publish_batch('{}')", json!(events));
    let there = publish([event("k"), event("l")]);
    let back = publish([event("l"), event("k")]);
    meet(&world, [&there, &back]).await;
    assert_eq!(world.queued().await, 8);
}

#[tokio::test]
async fn idempotency_and_ordering_keys_of_different_parts_do_not_deadlock() {
    let (world, owner) = prompt::start().await;
    owner.run("SELECT postrider.create_event_type('orders')").await;
    owner.run("SELECT postrider.subscribe('orders', 'a')").await;
    owner.configure("max_batch_messages", 2).await;
    owner.run("SELECT postrider.subscribe('*', 'a')").await;
    let ordered = json!({"event_type": "orders", "payload": {}, "ordering_key": "k"});
    let once = json!({"event_type": "orders", "payload": {}, "idempotency_key": "i"});
    let publish = |events| format!("SELECT postrider.publish_batch('{}')", json!(events));
    meet(&world, [&publish([&ordered, &once]), &publish([&once, &ordered])]).await;
    assert_eq!(world.queued().await, 6);
}

#[tokio::test]
async fn ranges_with_their_keys_in_opposite_order_do_not_deadlock() {
    let (world, owner) = prompt::start().await;
    for key in ["k", "l", "l", "k"] {
        let id = world.send(to("a").ordering_key(key)).await;
        world.store().cancel(id).await.unwrap();
        world.advance(1);
    }
    world.store().heartbeat(world.node).await.unwrap();
    owner.configure("max_batch_messages", 1).await;
    let range = |from: u32, to: u32| {
        format!(
            "SELECT postrider.replay_range(1, '2026-01-15 12:00:0{from}+00', '2026-01-15 12:00:0{to}+00')"
        )
    };
    meet(&world, [&range(0, 2), &range(2, 4)]).await;
    assert_eq!(world.queued().await, 4);
}
