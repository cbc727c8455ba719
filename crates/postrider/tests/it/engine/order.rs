//! Strict order within a key, and nothing but within a key.

use std::collections::HashMap;

use postrider::State;
use serde_json::json;

use super::receiver::{Answer, Arrival};
use super::world::{World, to};

#[tokio::test]
async fn a_failing_head_holds_its_key_but_no_other() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.script(|arrival| match arrival.payload.as_str() {
        "head" => Answer::status(500),
        _ => Answer::ok(),
    });
    let engine = world.engine().await;
    let head = world.send_message(to("a", "head").ordering_key("stuck")).await;
    let behind = world.send_message(to("a", "behind").ordering_key("stuck")).await;
    let other = world.send_message(to("a", "other").ordering_key("free")).await;
    let none = world.send("a", "none").await;
    world.until_state(other, State::Completed).await;
    world.until_state(none, State::Completed).await;
    world.receiver.until("three attempts", |receiver| tries(receiver.arrivals(), "head") >= 3).await;
    assert_eq!(world.story(behind).await.state, State::Pending);
    assert_eq!(tries(world.receiver.arrivals(), "behind"), 0);
    world.receiver.answer(Answer::ok());
    world.until_state(head, State::Completed).await;
    world.until_state(behind, State::Completed).await;
    engine.stop().await;
}

fn tries(arrivals: Vec<Arrival>, payload: &str) -> usize {
    arrivals.iter().filter(|arrival| arrival.payload == payload).count()
}

#[tokio::test]
async fn the_next_of_a_key_goes_on_when_its_head_dies() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.script(|arrival| Answer::status(if arrival.payload == "head" { 400 } else { 200 }));
    let engine = world.engine().await;
    let head = world.send_message(to("a", "head").ordering_key("k")).await;
    let behind = world.send_message(to("a", "behind").ordering_key("k")).await;
    world.until_state(behind, State::Completed).await;
    assert_eq!(world.story(head).await.state, State::Dead);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_stays_in_order_whatever_fails() {
    const KEYS: usize = 25;
    const EACH: usize = 16;
    let world = World::new().await;
    // A circuit that opens would only make it slow.
    world.configure("circuit_breaker_threshold", "1000").await;
    for name in ["a", "b"] {
        let policy =
            json!({ "max_attempts": 0, "backoff": "fixed", "base_delay_seconds": 0.01, "jitter": 0.5 });
        world.endpoint_from(json!({ "name": name, "retry_policy": policy })).await;
    }
    world.receiver.script(|_| match rand::random::<f64>() {
        dice if dice < 0.2 => Answer::status(500),
        dice if dice < 0.3 => Answer::close(),
        dice => Answer::ok().after(std::time::Duration::from_micros((dice * 2000.0) as u64)),
    });
    let engine = world.engine().await;
    // Half of them one by one, so that some are claimed as they are inserted; half in batches.
    for n in 0..EACH {
        let messages = (0..KEYS).map(|key| to("a", n).ordering_key(format!("k{key}")));
        world.send_all(messages.collect()).await;
        for key in 0..KEYS {
            world.send_message(to("b", n).ordering_key(format!("k{key}"))).await;
        }
    }
    world.until_empty().await;
    engine.stop().await;

    let mut by_key: HashMap<(String, String), Vec<Arrival>> = HashMap::new();
    for arrival in world.receiver.arrivals() {
        let key = (arrival.path.clone(), arrival.key.clone().expect("all of them have keys"));
        by_key.entry(key).or_default().push(arrival);
    }
    assert_eq!(by_key.len(), 2 * KEYS);
    for (key, arrivals) in by_key {
        let mut delivered = 0;
        for (n, arrival) in arrivals.iter().enumerate() {
            let expected = delivered.to_string();
            assert_eq!(arrival.payload, expected, "{key:?}: {arrivals:?}");
            assert!(n == 0 || arrivals[n - 1].ended.unwrap() < arrival.began, "{key:?} overlaps");
            delivered += usize::from(arrival.answered == Some(200));
        }
        assert_eq!(delivered, EACH, "{key:?}");
    }
}

#[tokio::test]
async fn a_global_key_is_in_order_over_its_endpoints() {
    let world = World::new().await;
    for name in ["a", "b"] {
        world.endpoint_with(name, json!({ "key_scope": "global" })).await;
    }
    world.receiver.script(|arrival| Answer::status(if arrival.attempt == 1 { 503 } else { 200 }));
    let engine = world.engine().await;
    for n in 0..10 {
        let endpoint = if n % 2 == 0 { "a" } else { "b" };
        world.send_message(to(endpoint, n).ordering_key("k")).await;
    }
    world.until_empty().await;
    let delivered: Vec<String> = world
        .receiver
        .arrivals()
        .into_iter()
        .filter(|arrival| arrival.answered == Some(200))
        .map(|arrival| arrival.payload)
        .collect();
    assert_eq!(delivered, (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
    engine.stop().await;
}
