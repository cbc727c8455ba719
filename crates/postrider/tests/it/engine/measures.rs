//! What a node counts of its own work.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use postrider::store::AttemptOutcome::{Delivered, Failed, Lost};
use postrider::store::EndpointHealth;
use postrider::store::figures::{ENDPOINTS_MAX, OTHERS};
use postrider::verdict::Class::{Gone, Permanent, Retryable};
use postrider::{Engine, Operate, State};
use serde_json::json;

use super::PATIENCE;
use super::faulty::Faulty;
use super::receiver::Answer;
use super::world::{World, quick};

#[tokio::test]
async fn attempts_are_counted_by_what_they_came_to() {
    let world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(3) })).await;
    world.endpoint("b").await;
    world.receiver.script(|arrival| Answer::status(if arrival.attempt < 3 { 500 } else { 200 }));
    let engine = world.engine().await;
    let measures = engine.measures();
    let id = world.send("a", 1).await;
    world.until_state(id, State::Completed).await;
    let read = measures.read();
    assert_eq!((read.in_flight, read.endpoints.len()), (0, 2));
    let a = &read.endpoints[0];
    assert_eq!(a.endpoint, "a");
    let expected = [
        (Delivered, None, 1),
        (Failed, Some(Retryable), 2),
        (Failed, Some(Permanent), 0),
        (Failed, Some(Gone), 0),
        (Lost, Some(Retryable), 0),
    ];
    assert_eq!(a.attempts, expected);
    assert_eq!((a.durations.count(), a.delays.count()), (3, 1));
    assert!(a.delays.sum_seconds >= a.durations.sum_seconds, "{a:?}");
    assert_eq!(read.endpoints[1].durations.count(), 0);
    engine.stop().await;
}

#[tokio::test]
async fn an_attempt_without_an_answer_is_counted_because_the_receiver_may_have_the_message() {
    let world = World::new().await;
    let config = json!({ "timeout": 0.5 });
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(9), "config": config })).await;
    let nowhere = json!({ "url": "http://127.0.0.1:1/" });
    world.endpoint_from(json!({ "name": "b", "retry_policy": quick(2), "config": nowhere })).await;
    world.receiver.script(|arrival| match arrival.attempt {
        1 => Answer::ok().held(),
        2 => Answer::close(),
        3 => Answer::status(500),
        _ => Answer::ok(),
    });
    let engine = world.engine().await;
    let (a, b) = (world.send("a", 1).await, world.send("b", 2).await);
    world.until_state(a, State::Completed).await;
    world.until_state(b, State::Dead).await;
    let read = engine.measures().read();
    let counted = read.endpoints.iter().map(|endpoint| (endpoint.attempts[1].2, endpoint.ambiguous));
    assert_eq!(counted.collect::<Vec<_>>(), [(3, 2), (2, 0)]);
    engine.stop().await;
}

#[tokio::test]
async fn what_runs_is_in_flight_and_what_a_dropped_endpoint_did_is_kept() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::status(200));
    let engine = world.engine().await;
    let measures = engine.measures();
    let id = world.send("a", 1).await;
    world.until_state(id, State::Completed).await;
    world.receiver.answer(Answer::ok().held());
    world.send("a", 2).await;
    world.receiver.until("it to run", |receiver| receiver.running_in_all() == 1).await;
    assert_eq!((measures.read().in_flight, measures.read().endpoints[0].in_flight), (1, 1));
    world.store.drop_endpoint("a", true).await.unwrap();
    let is_gone = async {
        while measures.read().endpoints[0].endpoint != OTHERS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_gone).await.expect("the endpoint goes");
    assert_eq!(measures.read().endpoints[0].attempts[0], (Delivered, None, 1));
    engine.stop().await;
}

#[tokio::test]
async fn who_was_counted_among_the_others_stays_there() {
    let world = World::new().await;
    let name = |number: usize| format!("e{number:03}");
    for number in 0..=ENDPOINTS_MAX {
        world.endpoint(&name(number)).await;
    }
    world.receiver.answer(Answer::status(200));
    let engine = world.engine().await;
    let measures = engine.measures();
    let id = world.send(&name(ENDPOINTS_MAX), 1).await;
    world.until_state(id, State::Completed).await;
    let delivered = || {
        let read = measures.read();
        let others =
            read.endpoints.iter().find(|of| of.endpoint == OTHERS).expect("more than have their own");
        (read.endpoints.len(), others.attempts[0].2)
    };
    assert_eq!(delivered(), (ENDPOINTS_MAX + 1, 1));
    world.store.drop_endpoint(&name(0), true).await.unwrap();
    let is_gone = async {
        while measures.read().endpoints[0].endpoint == name(0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_gone).await.expect("the endpoint goes");
    assert_eq!(delivered(), (ENDPOINTS_MAX, 1));
    engine.stop().await;
}

#[tokio::test]
async fn the_store_hears_what_attempts_came_to_though_it_was_away() {
    let world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(5) })).await;
    world.endpoint("b").await;
    world.receiver.script(|arrival| Answer::status(if arrival.attempt < 3 { 500 } else { 200 }));
    let faulty = Faulty::over(&world.store);
    faulty.refused_notes.store(2, SeqCst);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let first = world.send("a", 1).await;
    let story = world.until_state(first, State::Completed).await;
    let is_told = async {
        while faulty.refused_notes.load(SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_told).await.expect("it is told again and again");
    world.receiver.answer(Answer::status(503));
    let second = world.send("a", 2).await;
    world.receiver.until("a failure", |receiver| receiver.count() > 3).await;
    engine.stop().await;
    let health = world.store.endpoint_health("a").await.unwrap();
    let failed = world.story(second).await.attempt_count;
    assert_eq!((health.delivered, health.failed), (1, 2 + u64::from(failed)));
    assert_eq!(health.consecutive_failures, u64::from(failed));
    assert!(health.last_error.is_some_and(|error| error.starts_with("[RETRYABLE] answered 503")));
    assert!(
        health.last_success_at >= Some(story.created_at) && health.last_failure_at > health.last_success_at
    );
    assert_eq!(world.store.endpoint_health("b").await.unwrap(), EndpointHealth::default());
}
