//! A clean stop loses nothing and counts nothing that was not tried.

use std::time::{Duration, Instant};

use postrider::{EngineOptions, Operate as _, State};
use serde_json::json;

use super::receiver::Answer;
use super::world::World;

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
async fn what_does_not_end_in_time_is_given_back_uncounted() {
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
    for id in [keyed, behind, free] {
        let story = world.story(id).await;
        assert_eq!((story.state, story.attempt_count), (State::Pending, 0));
    }
    world.receiver.until("the connections to close", |receiver| receiver.running("a") == 0).await;
    world.receiver.answer(Answer::ok());
    let engine = world.engine().await;
    world.until_empty().await;
    let second: Vec<_> = world.receiver.arrivals().split_off(2);
    assert_eq!(second.len(), 3);
    assert!(second.iter().all(|arrival| arrival.attempt == 1), "the first try was not counted");
    engine.stop().await;
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
