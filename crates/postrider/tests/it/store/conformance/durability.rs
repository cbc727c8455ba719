use postrider::error::StoreError;
use postrider::store::StoreStatus;
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, to};

pub(crate) async fn everything_survives_a_crash<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({"on_dead": "hold"})).await;
    let done = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let tried = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 500).await;
    let letter = world.send_to_death(to("b").ordering_key("k")).await;
    let scheduled = NewMessage { scheduled_at: Some(world.in_seconds(900)), ..to("a").idempotency_key("i") };
    let scheduled = world.send(scheduled).await;
    let cancelled = world.send(to("a")).await;
    world.store().cancel(cancelled).await.unwrap();
    let ids = [done, tried, letter.message, scheduled, cancelled];
    let mut before = Vec::new();
    for id in ids {
        before.push(world.story(id).await);
    }
    let (events, letters) = (world.events().await, world.letters().await);
    let (name, status) = (world.store().name(), world.store().status().await.unwrap());

    world.crash().await;
    for story in before {
        assert_eq!(world.story(story.id).await, story);
    }
    assert_eq!(world.letters().await, letters);
    assert!(world.events().await.ends_with(&events), "the log only grows");
    // The lease of the node that crashed may not be over yet.
    let after = world.store().status().await.unwrap();
    let after = StoreStatus { live_nodes: status.live_nodes, ..after };
    assert_eq!((world.store().name(), after), (name, status));
    let again = world.store().send(to("a").idempotency_key("i")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (scheduled, true));
}

pub(crate) async fn a_fast_send_keeps_every_rule<H: Harness>(mut world: World<H>) {
    let first = world.store().send_fast(to("a").idempotency_key("i")).await.unwrap();
    let again = world.store().send_fast(to("a").idempotency_key("i")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (first.id, true));
    let bad = NewMessage { priority: 11, ..to("a") };
    assert!(matches!(world.store().send_fast(bad.clone()).await, Err(StoreError::Invalid(_))));
    let batch = vec![to("a"), bad];
    assert!(world.store().send_batch_fast(batch).await.is_err(), "all or nothing");
    let keyed = || to("a").ordering_key("k");
    let batch = world.store().send_batch_fast(vec![keyed(), keyed()]).await.unwrap();
    world.configure("max_queue_size", 3).await;
    assert!(matches!(world.store().send_fast(to("a")).await, Err(StoreError::QueueFull { .. })));
    world.crash().await;
    assert_eq!(world.queued().await, 3);
    assert_eq!(world.claim_ids().await, [first.id, batch[0].id], "the second waits for its key");
}

pub(crate) async fn ids_are_never_reused<H: Harness>(mut world: World<H>) {
    world.configure("archive", "off").await;
    let mut highest = MessageId(0);
    for round in 0..4 {
        let id = world.send(to("a")).await;
        assert!(id > highest, "{id} after {highest} in round {round}");
        highest = id;
        let ticket = world.claim_one().await;
        world.complete(ticket).await;
        assert!(world.store().story(id).await.is_err(), "no trace of it is left");
        world.crash().await;
    }
}

pub(crate) async fn two_stores_never_share_a_name<H: Harness>(mut world: World<H>) {
    let other = World::<H>::start().await;
    assert_ne!(world.store().name(), other.store().name(), "receivers tell their ids apart");
    let name = world.store().name();
    assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
    world.crash().await;
    assert_eq!(world.store().name(), name);
}

pub(crate) async fn a_crash_in_the_middle_of_work_loses_nothing<H: Harness>(mut world: World<H>) {
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(world.send(to("a")).await);
    }
    for round in 0..4 {
        for ticket in world.claim(world.a, 3).await.into_iter().take(round) {
            world.complete(ticket).await;
        }
        world.crash().await;
        for lost in world.lost().await {
            world.lose(&lost).await;
        }
    }
    let states = world.states(&ids).await;
    let count = |wanted| states.iter().filter(|state| **state == wanted).count() as u64;
    assert_eq!(count(State::Completed), 1 + 2 + 3);
    assert_eq!(count(State::Pending), 14);
    let status = world.store().status().await.unwrap();
    assert_eq!((status.pending, status.processing), (14, 0));
}
