//! No receiver gets more at once, or more often, than it was promised; nor does the node run more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use postrider::engine::EngineEventKind;
use postrider::{EngineOptions, State};
use serde_json::json;

use super::receiver::Answer;
use super::world::{World, to, until_event};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_never_gets_more_at_once_than_its_room_however_messages_come_in() {
    let world = Arc::new(World::new().await);
    world.endpoint_with("a", json!({ "max_in_flight": 4 })).await;
    world.receiver.answer(Answer::ok().after(Duration::from_millis(2)));
    let engine = world.engine().await;
    // Single sends are claimed as they are inserted, batches and retries through the queue: they race.
    let senders: Vec<_> = (0..6)
        .map(|sender| {
            let world = world.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    if sender % 3 == 0 {
                        world.send_many("a", 3).await;
                    } else {
                        world.send("a", 0).await;
                    }
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 2 * 25 * 3 + 4 * 25);
    assert_eq!(world.receiver.most_running("a"), 4, "the room is used, and no more");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_never_runs_more_at_once_than_its_room_over_all_endpoints() {
    let world = Arc::new(World::new().await);
    for n in 0..20 {
        world.endpoint(&format!("e{n}")).await;
    }
    world.receiver.answer(Answer::ok().after(Duration::from_millis(3)));
    let options = EngineOptions { max_in_flight: 8, ..world.options() };
    let engine = world.engine_with(options).await;
    let senders: Vec<_> = (0..20)
        .map(|n| {
            let world = world.clone();
            tokio::spawn(async move {
                let endpoint = format!("e{n}");
                for _ in 0..5 {
                    world.send(&endpoint, 0).await;
                    world.send_many(&endpoint, 3).await;
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 20 * 5 * 4);
    assert_eq!(world.receiver.most_running_in_all(), 8, "the room is used, and no more");
    engine.stop().await;
}

#[tokio::test]
async fn concurrency_falls_while_a_receiver_is_overloaded_and_rises_again() {
    let world = World::new().await;
    world.configure("circuit_breaker_threshold", "1000").await;
    world.endpoint_with("a", json!({ "max_in_flight": 16 })).await;
    let overloaded = Arc::new(AtomicBool::new(false));
    let script = overloaded.clone();
    world.receiver.script(move |_| {
        let status = if script.load(Ordering::SeqCst) { 503 } else { 200 };
        Answer::status(status).after(Duration::from_millis(10))
    });
    let engine = world.engine().await;
    world.send_many("a", 100).await;
    world.until_empty().await;
    assert_eq!(world.receiver.most_running("a"), 16);

    overloaded.store(true, Ordering::SeqCst);
    let before = world.receiver.count();
    world.send_many("a", 100).await;
    world.receiver.until("two hundred refusals", |receiver| receiver.count() >= before + 200).await;
    world.receiver.forget_most_running();
    let before = world.receiver.count();
    world.receiver.until("twenty more", |receiver| receiver.count() >= before + 20).await;
    assert!(world.receiver.most_running("a") <= 2, "{} at once", world.receiver.most_running("a"));

    overloaded.store(false, Ordering::SeqCst);
    world.until_empty().await;
    world.receiver.forget_most_running();
    world.send_many("a", 300).await;
    world.until_empty().await;
    assert!(world.receiver.most_running("a") >= 12, "{} at once", world.receiver.most_running("a"));
    engine.stop().await;
}

#[tokio::test]
async fn a_rate_limit_is_held() {
    let world = World::new().await;
    let limit = json!({ "limit": 50, "interval": "second", "burst": 5 });
    world.endpoint_with("a", json!({ "rate_limit": limit })).await;
    let engine = world.engine().await;
    let begun = Instant::now();
    world.send_many("a", 60).await;
    for n in 0..15 {
        world.send("a", n).await;
    }
    world.until_empty().await;
    let arrivals = world.receiver.arrivals();
    assert_eq!(arrivals.len(), 75);
    // However late a machine is: none comes before the burst and the rate allow it.
    for (n, arrival) in arrivals.iter().enumerate() {
        let earliest = Duration::from_millis(20) * (n as u32).saturating_sub(5);
        let after = arrival.at - begun;
        assert!(after >= earliest, "number {n} after {after:?}, not {earliest:?}");
    }
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_dropped_while_attempts_run_takes_no_room_along() {
    use postrider::Operate as _;
    let world = World::new().await;
    world.endpoint("doomed").await;
    world.endpoint("stays").await;
    world.receiver.script(|arrival| match arrival.path.as_str() {
        "doomed" => Answer::ok().held(),
        _ => Answer::ok().after(Duration::from_millis(5)),
    });
    let options = EngineOptions { max_in_flight: 8, ..world.options() };
    let engine = world.engine_with(options).await;
    let mut events = engine.events();
    let doomed = world.send_many("doomed", 20).await;
    // An eighth of the room is kept for endpoints that answer.
    world.receiver.until("a full node", |receiver| receiver.running("doomed") == 7).await;
    world.store.drop_endpoint("doomed", true).await.unwrap();
    for id in doomed {
        assert_eq!(world.story(id).await.state, State::Cancelled);
    }
    let first = world.send("stays", 0).await;
    world.receiver.release();
    until_event(&mut events, |kind| match kind {
        EngineEventKind::Attempted { message, .. } => (*message == first).then_some(()),
        EngineEventKind::Lost { .. } | EngineEventKind::Circuit { .. } => None,
    })
    .await;
    world.receiver.until("an empty node", |receiver| receiver.running_in_all() == 0).await;
    world.receiver.forget_most_running();
    world.send_all((0..100).map(|n| to("stays", n)).collect()).await;
    world.until_empty().await;
    assert_eq!(world.receiver.most_running("stays"), 8, "all of the node's room is there");
    engine.stop().await;
}
