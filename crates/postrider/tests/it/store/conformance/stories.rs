use std::time::Duration;

use postrider::error::StoreError;
use postrider::store::Redrive;
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, retry_at, to};

pub(crate) async fn a_waiting_message_says_why<H: Harness>(mut world: World<H>) {
    let scheduled = world.send(NewMessage { scheduled_at: Some(world.in_seconds(99)), ..to("a") }).await;
    let reason = world.reason(scheduled).await;
    assert!(reason.contains("scheduled"), "{reason}");
    assert!(reason.contains(&world.in_seconds(99).to_string()), "{reason}");

    let tried = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.settle(ticket, retry_at(world.in_seconds(77))).await;
    let reason = world.reason(tried).await;
    assert!(reason.contains("next try"), "{reason}");
    assert!(reason.contains(&world.in_seconds(77).to_string()), "{reason}");

    let keyed = world.send_keyed("customer 7", 2).await;
    let reason = world.reason(keyed[1]).await;
    assert!(reason.contains("behind") && reason.contains("customer 7"), "{reason}");
    for (id, waits_for_receiver) in [(scheduled, false), (tried, true), (keyed[0], true), (keyed[1], false)] {
        assert_eq!(world.story(id).await.waits_for_receiver, waits_for_receiver, "{id}");
    }
}

pub(crate) async fn an_endpoint_that_cannot_deliver_is_the_reason<H: Harness>(world: World<H>) {
    let id = world.send(to("a")).await;
    world.store().set_endpoint_paused("a", true).await.unwrap();
    assert!(world.reason(id).await.contains("paused"));
    world.store().set_endpoint_paused("a", false).await.unwrap();
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    assert!(world.reason(id).await.contains("disabled"));
    world.store().set_endpoint_enabled("a", true).await.unwrap();
    let endpoint = world.store().endpoint("a").await.unwrap();
    let opened = endpoint.circuit.opened(world.now(), Duration::from_secs(30));
    world.store().move_circuit(world.a, endpoint.circuit.epoch, opened).await.unwrap();
    let reason = world.reason(id).await;
    assert!(reason.contains("circuit"), "{reason}");
    assert!(world.story(id).await.waits_for_receiver);
    world.store().reset_circuit("a").await.unwrap();
    world.store().pause("upgrade").await.unwrap();
    let reason = world.reason(id).await;
    assert!(reason.contains("paused") && reason.contains("upgrade"), "{reason}");
    assert!(!world.story(id).await.waits_for_receiver);
}

pub(crate) async fn a_retry_waits_for_an_open_circuit_too<H: Harness>(mut world: World<H>) {
    let mut ids = Vec::new();
    for seconds in [10, 60] {
        ids.push(world.send(to("a")).await);
        let ticket = world.claim_one().await;
        world.settle(ticket, retry_at(world.in_seconds(seconds))).await;
    }
    let endpoint = world.store().endpoint("a").await.unwrap();
    let opened = endpoint.circuit.opened(world.now(), Duration::from_secs(30));
    world.store().move_circuit(world.a, endpoint.circuit.epoch, opened).await.unwrap();
    for (id, seconds) in ids.into_iter().zip([30, 60]) {
        let next = world.in_seconds(seconds);
        let says = format!("waiting after attempt 1, circuit open: next try at {next}");
        assert_eq!(world.reason(id).await, says);
        assert!(world.story(id).await.waits_for_receiver);
    }
}

pub(crate) async fn a_store_without_a_node_is_the_reason<H: Harness>(world: World<H>) {
    let id = world.send(to("a")).await;
    assert_eq!(world.reason(id).await, "due now");
    assert_eq!(world.store().status().await.unwrap().live_nodes, 1);
    world.advance(15);
    assert_eq!(world.reason(id).await, "no node runs; due now");
    assert_eq!(world.store().status().await.unwrap().live_nodes, 0);
    // An open circuit is not what a message waits for while nothing could probe it.
    let endpoint = world.store().endpoint("a").await.unwrap();
    let opened = endpoint.circuit.opened(world.now(), Duration::from_secs(30));
    world.store().move_circuit(world.a, endpoint.circuit.epoch, opened).await.unwrap();
    let next_try = world.in_seconds(30);
    assert_eq!(world.reason(id).await, format!("no node runs; circuit open: next try at {next_try}"));
}

pub(crate) async fn a_used_up_rate_limit_is_the_reason_until_there_is_room<H: Harness>(mut world: World<H>) {
    let rate_limit = json!({"limit": 1, "interval": "minute"});
    let limited = world.endpoint("limited", json!({"rate_limit": rate_limit})).await;
    world.send(to("limited")).await;
    let next = world.send(to("limited")).await;
    assert_eq!(world.reason(next).await, "due now");
    assert_eq!(world.claim(limited, 10).await.len(), 1);
    assert_eq!(world.reason(next).await, format!("rate limited: next try at {}", world.in_seconds(60)));
    world.live(60).await;
    assert_eq!(world.reason(next).await, "due now");
}

pub(crate) async fn the_one_in_hand_is_the_reason_also_for_those_put_back_before_it<H: Harness>(
    mut world: World<H>,
) {
    let mut letters = Vec::new();
    for _ in 0..2 {
        letters.push(world.send_to_death(to("a").ordering_key("k")).await);
    }
    let keyed = world.send_keyed("k", 2).await;
    assert_eq!(world.claim_one().await.id, keyed[0]);
    world.store().redrive(Redrive::All).await.unwrap();
    for id in [letters[0].message, letters[1].message, keyed[1]] {
        let expected = format!(r#"behind key "k": message {} is before it"#, keyed[0]);
        assert_eq!(world.reason(id).await, expected, "{id}");
    }
}

pub(crate) async fn a_held_key_is_the_reason<H: Harness>(mut world: World<H>) {
    world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let letter = world.send_to_death(to("hold").ordering_key("customer 7")).await;
    let id = world.send(to("hold").ordering_key("customer 7")).await;
    let reason = world.reason(id).await;
    assert!(reason.contains("customer 7"), "{reason}");
    assert!(reason.contains(&letter.message.to_string()), "{reason}");
}

pub(crate) async fn only_a_pending_message_has_a_reason<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    assert_eq!(world.story(id).await.reason, None);
    world.complete(ticket).await;
    assert_eq!(world.story(id).await.reason, None);
    let unknown = world.store().story(MessageId(i64::MAX)).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "message", .. }), "{unknown:?}");
}

fn with_secret() -> NewMessage {
    NewMessage {
        headers: [("authorization".to_owned(), "secret".to_owned())].into(),
        correlation_id: Some(uuid::Uuid::from_u128(9)),
        ..to("a").ordering_key("k")
    }
}

async fn is_erased<H: Harness>(world: &World<H>, id: MessageId, state: State) {
    world.store().erase(id).await.unwrap_or_else(|error| panic!("{state}: {error}"));
    let story = world.story(id).await;
    assert_eq!((story.listed.state, story.payload, story.headers.len()), (state, None, 0));
    assert_eq!(
        (story.listed.ordering_key.as_deref(), story.listed.correlation_id),
        (Some("k"), with_secret().correlation_id)
    );
}

pub(crate) async fn a_message_is_erased_wherever_it_is<H: Harness>(mut world: World<H>) {
    let completed = world.send(with_secret()).await;
    let ticket = world.claim_one().await;
    let refused = world.store().erase(completed).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict(_)), "not while it is sent: {refused:?}");
    world.complete(ticket).await;
    is_erased(&world, completed, State::Completed).await;

    let letter = world.send_to_death(with_secret()).await;
    is_erased(&world, letter.message, State::Dead).await;
    let letter = world.letter_of(letter.message).await;
    assert_eq!((letter.payload, letter.headers.len()), (None, 0));

    let pending = world.send(with_secret()).await;
    is_erased(&world, pending, State::Cancelled).await;
    assert_eq!(world.claim_ids().await, [], "nothing is left of it to deliver");
    let unknown = world.store().erase(MessageId(i64::MAX)).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { .. }), "{unknown:?}");
}

pub(crate) async fn status_counts_each_endpoint<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    world.send_to_death(to("a")).await;
    let first = world.now();
    world.send(to("a")).await;
    world.send(to("b")).await;
    world.live(5).await;
    world.send(to("a")).await;
    world.claim(world.a, 1).await;
    let status = world.store().status().await.unwrap();
    assert_eq!((status.pending, status.processing, status.dead), (2, 1, 1));
    assert_eq!(status.oldest_pending, Some(first));
    assert_eq!(status.store, *world.store().name());
    let figures: Vec<_> = status
        .endpoints
        .iter()
        .map(|of| (of.name.as_str(), of.pending, of.processing, of.dead, of.oldest_pending))
        .collect();
    assert_eq!(figures, [("a", 1, 1, 1, Some(world.now())), ("b", 1, 0, 0, Some(first))]);
}

pub(crate) async fn what_waits_behind_its_key_waits_and_what_is_due_later_does_not<H: Harness>(
    mut world: World<H>,
) {
    let held = world.endpoint("held", json!({ "on_dead": "hold" })).await;
    let later = NewMessage { scheduled_at: Some(world.in_seconds(1000)), ..to("a") };
    world.send(NewMessage { ordering_key: Some("later".into()), ..later.clone() }).await;
    world.send(later).await;
    let oldest = async |world: &World<H>, name: &str| {
        let status = world.store().status().await.unwrap();
        let of = status.endpoints.into_iter().find(|of| of.name == name).expect("the endpoint");
        assert_eq!(status.oldest_pending, of.oldest_pending, "nothing else waits");
        of.oldest_pending
    };
    assert_eq!(oldest(&world, "a").await, None, "nothing is due");

    world.send_keyed("k", 1).await;
    let ticket = world.claim_one().await;
    let second = world.now();
    world.send_keyed("k", 1).await;
    world.live(3).await;
    world.send_keyed("k", 1).await;
    assert_eq!(oldest(&world, "a").await, Some(second), "behind one that runs");
    world.retry(ticket, 60).await;
    assert_eq!(oldest(&world, "a").await, Some(second), "behind one that is tried again later");
    world.live(60).await;
    for _ in 0..3 {
        let ticket = world.claim_one().await;
        world.complete(ticket).await;
    }
    assert_eq!(oldest(&world, "a").await, None);

    let keyed = NewMessage { ordering_key: Some("k".into()), ..to("held") };
    world.send(keyed.clone()).await;
    let ticket = world.claim(held, 1).await.pop().expect("the head");
    let behind = world.now();
    world.send(keyed).await;
    world.die(ticket).await;
    world.live(5).await;
    assert_eq!(oldest(&world, "held").await, Some(behind), "behind a dead letter");
}
