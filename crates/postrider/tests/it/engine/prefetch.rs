//! Where attempts are quick, a node claims a little ahead. Claims that it cannot start are released without counting an attempt.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use postrider::{Engine, EngineOptions, Operate as _, State};
use serde_json::json;

use super::PATIENCE;
use super::receiver::Answer;
use super::world::World;

const ROOM: u32 = 4;
/// Claimed ahead where attempts are quick.
const AHEAD: u32 = 7 * ROOM;

/// An endpoint whose attempts were quick so far and hang now, with more waiting than it can run.
async fn hanging_after_a_quick_start() -> (World, Engine) {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": ROOM })).await;
    let engine = world.engine().await;
    // So many that one slow one among them weighs little.
    world.send_many("a", 200).await;
    world.until_empty().await;
    world.receiver.answer(Answer::ok().held());
    world.send_many("a", 50).await;
    world.receiver.until("a full endpoint", |receiver| receiver.running("a") == ROOM as usize).await;
    until_processing(&world, ROOM + AHEAD).await;
    (world, engine)
}

async fn until_processing(world: &World, count: u32) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let processing = world.store.status().await.unwrap().processing;
        if processing == u64::from(count) {
            return;
        }
        assert!(Instant::now() < deadline, "{processing} are processing, not {count}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn nothing_is_claimed_ahead_for_a_receiver_that_takes_its_time() {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": ROOM })).await;
    world.receiver.answer(Answer::ok().after(Duration::from_millis(20)));
    let engine = world.engine().await;
    world.send_many("a", 20).await;
    world.until_empty().await;
    world.receiver.answer(Answer::ok().held());
    world.send_many("a", 20).await;
    world.receiver.until("a full endpoint", |receiver| receiver.running("a") == ROOM as usize).await;
    // Another endpoint's message has gone through the same dispatcher since.
    world.endpoint("b").await;
    world.receiver.script(|arrival| if arrival.path == "b" { Answer::ok() } else { Answer::ok().held() });
    let other = world.send("b", 0).await;
    world.until_state(other, State::Completed).await;
    assert_eq!(world.store.status().await.unwrap().processing, u64::from(ROOM));
    world.receiver.release();
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn a_pause_gives_back_what_was_claimed_ahead() {
    let (world, engine) = hanging_after_a_quick_start().await;
    world.store.set_endpoint_paused("a", true).await.unwrap();
    until_processing(&world, ROOM).await;
    world.receiver.release();
    until_processing(&world, 0).await;
    assert_eq!(world.receiver.count(), 200 + ROOM as usize);
    world.store.set_endpoint_paused("a", false).await.unwrap();
    world.until_empty().await;
    assert!(world.receiver.arrivals().iter().all(|arrival| arrival.attempt == 1), "waiting is no attempt");
    engine.stop().await;
}

#[tokio::test]
async fn a_system_pause_gives_back_what_was_claimed_ahead() {
    let (world, engine) = hanging_after_a_quick_start().await;
    world.store.pause("maintenance").await.unwrap();
    until_processing(&world, ROOM).await;
    world.receiver.release();
    until_processing(&world, 0).await;
    assert_eq!(world.receiver.count(), 200 + ROOM as usize);
    engine.stop().await;
}

#[tokio::test]
async fn what_waits_behind_attempts_that_hang_goes_back_to_the_queue() {
    let (world, engine) = hanging_after_a_quick_start().await;
    until_processing(&world, ROOM).await;
    world.receiver.release();
    world.until_empty().await;
    assert!(world.receiver.arrivals().iter().all(|arrival| arrival.attempt == 1), "waiting is no attempt");
    engine.stop().await;
}

#[tokio::test]
async fn a_stop_gives_back_what_was_claimed_ahead() {
    let (world, engine) = hanging_after_a_quick_start().await;
    let stopping = tokio::spawn(engine.stop());
    until_processing(&world, ROOM).await;
    world.receiver.release();
    stopping.await.unwrap();
    assert_eq!(world.receiver.count(), 200 + ROOM as usize);
    let engine = world.engine().await;
    world.until_empty().await;
    assert!(world.receiver.arrivals().iter().all(|arrival| arrival.attempt == 1), "waiting is no attempt");
    engine.stop().await;
}

#[tokio::test]
async fn retry_after_holds_back_what_was_claimed_ahead() {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
    let engine = world.engine().await;
    world.send_many("a", 200).await;
    world.until_empty().await;
    static REFUSALS: AtomicUsize = AtomicUsize::new(1);
    world.receiver.script(|_| {
        let refuses = REFUSALS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if refuses.is_ok() { Answer::status(429).retry_after(1) } else { Answer::ok() }
    });
    world.send_many("a", 20).await;
    world.until_empty().await;
    let arrivals = world.receiver.arrivals().split_off(200);
    let rest = arrivals[1].at - arrivals[0].at;
    assert!(rest >= Duration::from_millis(900), "the next one came after {rest:?}");
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_dropped_with_prefetched_claims_keeps_no_slots() {
    let world = World::new().await;
    world.endpoint_with("doomed", json!({ "max_in_flight": ROOM })).await;
    let options = EngineOptions { max_in_flight: 2 * ROOM, ..world.options() };
    let engine = world.engine_with(options).await;
    world.send_many("doomed", 200).await;
    world.until_empty().await;
    world.receiver.script(|arrival| match arrival.path.as_str() {
        "doomed" => Answer::ok().held(),
        _ => Answer::ok().after(Duration::from_millis(20)),
    });
    world.send_many("doomed", 50).await;
    until_processing(&world, 2 * ROOM).await;
    world.store.drop_endpoint("doomed", true).await.unwrap();
    world.endpoint("stays").await;
    world.receiver.release();
    world.receiver.until("an empty node", |receiver| receiver.running_in_all() == 0).await;
    world.send_many("stays", 40).await;
    world.until_empty().await;
    assert_eq!(world.receiver.most_running("stays"), 2 * ROOM as usize, "all of the node's room is there");
    engine.stop().await;
}
