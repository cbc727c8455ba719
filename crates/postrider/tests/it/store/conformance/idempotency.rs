use postrider::error::StoreError;
use postrider::store::Redrive;
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, to};

fn once(payload: &'static str) -> NewMessage {
    NewMessage::new("a", payload).idempotency_key("once")
}

async fn is_duplicate<H: Harness>(world: &World<H>, of: MessageId, message: NewMessage) {
    let sent = world.store().send(message).await.unwrap();
    assert_eq!((sent.id, sent.duplicate), (of, true));
}

async fn is_conflict<H: Harness>(world: &World<H>, of: MessageId, message: NewMessage) {
    let refused = world.store().send(message).await.unwrap_err();
    assert!(
        matches!(refused, StoreError::IdempotencyConflict { holder: Some(holder), at: 0 } if holder == of),
        "{refused:?}"
    );
    assert_eq!(refused.sqlstate(), "23505");
}

pub(crate) async fn the_same_key_and_payload_give_the_same_message<H: Harness>(mut world: World<H>) {
    let id = world.send(once("1")).await;
    is_duplicate(&world, id, once("1")).await;
    is_duplicate(&world, id, NewMessage { priority: 9, ..once("1") }.ordering_key("k")).await;
    assert_eq!(world.queued().await, 1);
    let ticket = world.claim_one().await;
    is_duplicate(&world, id, once("1")).await;
    world.retry(ticket, 60).await;
    is_duplicate(&world, id, once("1")).await;
    assert_eq!(world.queued().await, 1);
}

pub(crate) async fn another_payload_or_content_type_is_a_conflict<H: Harness>(mut world: World<H>) {
    let id = world.send(once("1")).await;
    is_conflict(&world, id, once("2")).await;
    is_conflict(&world, id, NewMessage { content_type: "text/plain".into(), ..once("1") }).await;
    world.claim_one().await;
    is_conflict(&world, id, once("2")).await;
    assert_eq!(world.queued().await, 1);
}

pub(crate) async fn a_key_belongs_to_one_endpoint<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({})).await;
    let at_a = world.send(once("1")).await;
    let at_b = world.send(NewMessage { endpoint: "b".into(), ..once("2") }).await;
    assert_ne!(at_a, at_b);
}

pub(crate) async fn a_finished_message_frees_its_key<H: Harness>(mut world: World<H>) {
    let completed = world.send(once("1")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let cancelled = world.send(once("2")).await;
    world.store().cancel(cancelled).await.unwrap();
    let dead = world.send(once("3")).await;
    world.kill(dead).await;
    let expired = world.send(NewMessage { expires_at: Some(world.in_seconds(1)), ..once("4") }).await;
    world.live(2).await;
    world.store().upkeep(10).await.unwrap();
    let last = world.send(once("5")).await;
    assert_eq!(
        world.states(&[completed, cancelled, dead, expired, last]).await,
        [State::Completed, State::Cancelled, State::Dead, State::Expired, State::Pending]
    );
}

pub(crate) async fn retention_reserves_a_key_after_completion<H: Harness>(mut world: World<H>) {
    world.configure("idempotency_retention", 60).await;
    let id = world.send(once("1")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.advance(59);
    is_duplicate(&world, id, once("1")).await;
    is_conflict(&world, id, once("2")).await;
    world.advance(2);
    let next = world.send(once("2")).await;
    assert_ne!(next, id);
    is_duplicate(&world, next, once("2")).await;
}

pub(crate) async fn an_expired_holder_is_expired_first<H: Harness>(world: World<H>) {
    let holder = world.send(NewMessage { expires_at: Some(world.in_seconds(5)), ..once("1") }).await;
    world.advance(6);
    let next = world.send(once("2")).await;
    assert_ne!(next, holder);
    assert_eq!(world.states(&[holder, next]).await, [State::Expired, State::Pending]);
    assert_eq!(world.queued().await, 1);
}

pub(crate) async fn a_running_holder_keeps_its_key_past_its_expiry<H: Harness>(mut world: World<H>) {
    let holder = world.send(NewMessage { expires_at: Some(world.in_seconds(5)), ..once("1") }).await;
    world.claim_one().await;
    world.live(6).await;
    is_duplicate(&world, holder, once("1")).await;
    is_conflict(&world, holder, once("2")).await;
    assert_eq!(world.state(holder).await, State::Processing);
}

pub(crate) async fn only_a_completed_message_reserves_its_key<H: Harness>(mut world: World<H>) {
    world.configure("idempotency_retention", 60).await;
    let cancelled = world.send(once("1")).await;
    world.store().cancel(cancelled).await.unwrap();
    world.send_to_death(once("2")).await;
    let expired = world.send(NewMessage { expires_at: Some(world.in_seconds(1)), ..once("3") }).await;
    world.live(2).await;
    world.store().upkeep(10).await.unwrap();
    assert_eq!(world.state(expired).await, State::Expired);
    world.send(once("4")).await;
}

pub(crate) async fn a_batch_meets_its_own_keys<H: Harness>(world: World<H>) {
    let sent = world.store().send_batch(vec![once("1"), to("a"), once("1")]).await.unwrap();
    assert_eq!(sent[0].id, sent[2].id);
    assert_eq!(sent.iter().map(|sent| sent.duplicate).collect::<Vec<_>>(), [false, false, true]);
    assert_eq!(world.queued().await, 2);

    let other = |payload| NewMessage::new("a", payload).idempotency_key("other");
    let refused = world.store().send_batch(vec![to("a"), other("1"), other("2")]).await.unwrap_err();
    assert!(matches!(refused, StoreError::IdempotencyConflict { holder: None, at: 2 }), "{refused:?}");
    assert_eq!(world.queued().await, 2, "all or nothing");
    world.send(other("2")).await;
}

pub(crate) async fn a_batch_says_which_message_has_a_key_of_another<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({})).await;
    let at_b = |payload| NewMessage { endpoint: "b".into(), ..once(payload) };
    let holder = world.send(at_b("1")).await;
    let other = world.send(once("1")).await;
    let batches = [
        (vec![to("a"), to("a"), at_b("2"), once("2")], 2, holder),
        (vec![to("a"), once("2"), at_b("2")], 1, other),
        (vec![once("1"), at_b("1"), once("1"), once("2")], 3, other),
    ];
    for (batch, place, id) in batches {
        let refused = world.store().send_batch(batch).await.unwrap_err();
        assert!(
            matches!(refused, StoreError::IdempotencyConflict { holder: Some(holder), at } if (holder, at) == (id, place)),
            "{refused:?}"
        );
    }
    assert_eq!(world.queued().await, 2);
}

pub(crate) async fn a_redriven_message_lost_its_key<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(once("1")).await;
    let holder = world.send(once("2")).await;
    assert_eq!(world.store().redrive(Redrive::One(letter.id)).await.unwrap(), 1);
    assert_eq!(world.story(letter.message).await.idempotency_key, None);
    assert_eq!(world.state(letter.message).await, State::Pending);
    is_duplicate(&world, holder, once("2")).await;
}
