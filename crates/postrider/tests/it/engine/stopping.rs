//! A clean stop loses nothing and counts nothing that was not tried.

use std::time::{Duration, Instant};

use postrider::{EngineOptions, Operate as _, State, Store as _};
use serde_json::json;

use super::receiver::Answer;
use super::world::{World, quick};

#[tokio::test]
async fn an_idle_engine_stops_at_once() {
    let world = World::new().await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    world.send_many("a", 5).await;
    world.until_empty().await;
    let began = Instant::now();
    engine.stop().await;
    assert!(began.elapsed() < Duration::from_secs(1), "it took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_stop_waits_for_running_attempts_and_starts_no_more() {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": 4 })).await;
    world.receiver.answer(Answer::ok().held());
    let engine = world.engine().await;
    let ids = world.send_many("a", 10).await;
    world.receiver.until("a full endpoint", |receiver| receiver.running("a") == 4).await;
    let stopping = tokio::spawn(engine.stop());
    // Sent while it stops: kept for the next engine.
    let late = world.send("a", "late").await;
    world.receiver.release();
    stopping.await.unwrap();
    assert_eq!(world.receiver.count(), 4);
    for (n, id) in ids.iter().enumerate() {
        let story = world.story(*id).await;
        let expected = if n < 4 { (State::Completed, 1) } else { (State::Pending, 0) };
        assert_eq!((story.state, story.attempt_count), expected);
    }
    assert_eq!(world.story(late).await.state, State::Pending);
    let engine = world.engine().await;
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 11);
    assert!(world.receiver.arrivals().iter().all(|arrival| arrival.attempt == 1));
    engine.stop().await;
}

#[tokio::test]
async fn what_does_not_end_in_time_is_given_back_and_costs_no_budget() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::ok().held());
    let options = EngineOptions { drain_timeout: Duration::from_millis(200), ..world.options() };
    let engine = world.engine_with(options).await;
    let keyed = world.send_message(super::world::to("a", "keyed").ordering_key("k")).await;
    let behind = world.send_message(super::world::to("a", "behind").ordering_key("k")).await;
    let free = world.send("a", "free").await;
    world.receiver.until("both to hang", |receiver| receiver.running("a") == 2).await;
    let began = Instant::now();
    engine.stop().await;
    assert!(began.elapsed() >= Duration::from_millis(200) && began.elapsed() < Duration::from_secs(3));
    for (id, started) in [(keyed, 1), (behind, 0), (free, 1)] {
        let story = world.story(id).await;
        assert_eq!((story.state, story.attempt_count), (State::Pending, started));
        assert!(story.due_at.is_some_and(|due_at| due_at <= world.store.now()));
    }
    let error = world.story(free).await.listed.last_error;
    assert_eq!(error.as_deref(), Some("[RETRYABLE] the node stopped before the receiver answered"));
    world.receiver.until("the connections to close", |receiver| receiver.running("a") == 0).await;
    world.receiver.answer(Answer::ok());
    let engine = world.engine().await;
    world.until_empty().await;
    let second: Vec<_> = world.receiver.arrivals().split_off(2);
    assert_eq!(second.len(), 3);
    let expected = |payload: &str| if payload == "behind" { 1 } else { 2 };
    assert!(second.iter().all(|arrival| arrival.attempt == expected(&arrival.payload)), "{second:?}");
    engine.stop().await;
}

#[tokio::test]
async fn a_stop_that_cuts_attempts_off_costs_no_budget_but_the_only_start() {
    let world = World::new().await;
    world.endpoint_from(json!({ "name": "twice", "retry_policy": quick(2) })).await;
    world.endpoint_from(json!({ "name": "once", "retry_policy": quick(1) })).await;
    world.receiver.answer(Answer::ok().held());
    let (twice, once) = (world.send("twice", 0).await, world.send("once", 0).await);
    for start in 1..=3 {
        let options = EngineOptions { drain_timeout: Duration::from_millis(100), ..world.options() };
        let engine = world.engine_with(options).await;
        world.receiver.until("the start", |receiver| receiver.at("twice").len() == start).await;
        world.receiver.until("the other's", |receiver| receiver.at("once").len() == 1).await;
        engine.stop().await;
        assert_eq!(world.story(twice).await.state, State::Pending);
        assert_eq!(world.story(once).await.state, State::Dead);
    }
    let attempts: Vec<u32> = world.receiver.at("twice").iter().map(|arrival| arrival.attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    world.receiver.answer(Answer::status(500));
    let engine = world.engine().await;
    assert_eq!(world.until_state(twice, State::Dead).await.attempt_count, 5, "three cut off, two failed");
    engine.stop().await;
    assert_eq!(world.receiver.at("once").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn engines_that_come_and_go_in_the_middle_of_a_flood_deliver_everything_once() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::ok().after(Duration::from_millis(1)));
    for round in 1..=4 {
        let engine = world.engine().await;
        world.send_many("a", 300).await;
        for n in 0..20 {
            world.send("a", n).await;
        }
        world.receiver.until("some", |receiver| receiver.count() >= round * 100).await;
        engine.stop().await;
        assert_eq!(world.store.status().await.unwrap().processing, 0, "nothing is left in its hands");
    }
    let engine = world.engine().await;
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 4 * 320, "every attempt was waited for, so nothing came twice");
    engine.stop().await;
}
