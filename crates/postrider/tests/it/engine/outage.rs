//! A failing store is an expected day: the engine backs off, goes on, and loses nothing.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use postrider::breaker::CircuitName;
use postrider::rusqlite::Connection;
use postrider::{Engine, NewMessage, Operate, State};
use serde_json::json;
use tokio::sync::Semaphore;

use super::faulty::Faulty;
use super::receiver::Answer;
use super::world::{World, stand_still, to, until};

#[tokio::test]
async fn attempts_that_end_while_the_store_fails_are_settled_when_it_is_back() {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": 8 })).await;
    world.receiver.answer(Answer::ok().held());
    let faulty = Faulty::over(&world.store);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    world.send_many("a", 50).await;
    world.receiver.until("a full endpoint", |receiver| receiver.running("a") == 8).await;
    faulty.fail(true);
    world.receiver.release();
    world.receiver.until("the answers", |receiver| receiver.running("a") == 0).await;
    // Half a second of refusals: the pauses between them double from 50 ms on.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let refused = faulty.refused.load(SeqCst);
    assert!((2..40).contains(&refused), "asked {refused} times in half a second");
    assert!(engine.is_progressing(), "a node whose store is away for a moment is a healthy one");
    faulty.fail(false);
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 50, "nothing was delivered twice");
    engine.stop().await;
}

#[tokio::test]
async fn a_refused_settle_is_made_again_as_soon_as_its_pause_is_over() {
    let world = World::new().await;
    world.endpoint("a").await;
    let faulty = Faulty::over(&world.store);
    faulty.refused_settles.store(4, SeqCst);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let id = world.send("a", 1).await;
    world.until_state(id, State::Completed).await;
    let asked = faulty.asked_to_settle.lock().unwrap().clone();
    let pauses: Vec<Duration> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(pauses.len(), 4);
    for (pause, millis) in pauses.iter().zip([50, 100, 200, 400]) {
        // Timers are of whole milliseconds.
        let about = Duration::from_millis(millis)..Duration::from_millis(millis + 3);
        assert!(about.contains(pause), "{pauses:?}");
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_store_that_settles_nothing_is_not_asked_for_ever_more() {
    let world = World::new().await;
    world.endpoint("a").await;
    let faulty = Faulty::over(&world.store);
    faulty.postponing.store(true, SeqCst);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    world.send_many("a", 5000).await;
    // Each time what waits to be settled is taken up, there must not be room for more.
    until(|| faulty.postponed.lock().unwrap().values().any(|count| *count >= 4)).await;
    let claimed = faulty.claimed.load(SeqCst);
    assert!(claimed <= 2048, "{claimed} claimed and none settled");
    faulty.postponing.store(false, SeqCst);
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 5000, "nothing was delivered twice");
    engine.stop().await;
}

#[tokio::test]
async fn a_circuit_that_cannot_move_is_left_alone_between_tries() {
    let (world, clock) = World::standing_still().await;
    world.configure("circuit_breaker_threshold", "1").await;
    world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
    world.receiver.answer(Answer::status(500));
    let faulty = Faulty::over(&world.store);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let id = world.send("a", 1).await;
    let deadline = Instant::now() + super::PATIENCE;
    while world.store.endpoint("a").await.unwrap().circuit.state.name() != CircuitName::Open {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.until_state(id, State::Pending).await;
    world.receiver.answer(Answer::ok());
    faulty.fail(true);
    clock.advance(Duration::from_secs(30));
    // Two turns of the loop, so that it has tried to take the probe.
    tokio::time::sleep(Duration::from_millis(2000)).await;
    let refused = faulty.refused.load(SeqCst);
    assert!((1..60).contains(&refused), "asked {refused} times in two seconds");
    faulty.fail(false);
    world.until_state(id, State::Completed).await;
    engine.stop().await;
}

#[tokio::test]
async fn a_file_locked_for_longer_than_the_store_waits_costs_nothing_but_time() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::ok().held());
    let engine = world.engine().await;
    let mut ids = world.send_many("a", 10).await;
    ids.push(world.send_message(NewMessage { priority: 3, ..to("a", "eleventh") }).await);
    world.receiver.until("all to hang", |receiver| receiver.running("a") == 11).await;
    let other = Connection::open(world.path()).unwrap();
    other.busy_timeout(Duration::from_secs(5)).unwrap();
    other.execute_batch("BEGIN EXCLUSIVE").unwrap();
    world.receiver.release();
    let locked = Instant::now();
    while locked.elapsed() < Duration::from_secs(6) {
        assert!(engine.is_progressing());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    other.execute_batch("COMMIT").unwrap();
    for id in ids {
        let story = world.until_state(id, State::Completed).await;
        assert_eq!(story.attempt_count, 1);
    }
    let more = world.send("a", "more").await;
    world.until_state(more, State::Completed).await;
    assert_eq!(world.receiver.count(), 12, "nothing was delivered twice");
    assert!(engine.is_progressing());
    engine.stop().await;
}

#[tokio::test]
async fn two_lost_heartbeats_do_not_cost_the_lease() {
    let world = World::new().await;
    world.configure("node_lease", "5").await;
    let faulty = Faulty::over(&world.store);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let began = Instant::now();
    // The first ones come at once; those after it are a third of the lease apart.
    while began.elapsed() < Duration::from_millis(500) {
        assert!(engine.is_progressing());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    faulty.refused_heartbeats.store(2, SeqCst);
    while began.elapsed() < Duration::from_millis(6000) {
        assert!(engine.is_progressing(), "the lease was lost after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(faulty.refused_heartbeats.load(SeqCst), 0);
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_the_heartbeat_and_not_from_its_answer() {
    let world = World::new().await;
    world.configure("node_lease", "5").await;
    let faulty = Faulty::over(&world.store);
    faulty.answers.forget_permits(Semaphore::MAX_PERMITS);
    let time = stand_still();
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    until(|| faulty.heartbeats.load(SeqCst) == 1).await;
    tokio::time::advance(Duration::from_secs(4)).await;
    faulty.answers.add_permits(1);
    until(|| faulty.heartbeats.load(SeqCst) == 2).await;
    tokio::time::advance(Duration::from_millis(900)).await;
    until(|| engine.is_progressing()).await;
    tokio::time::advance(Duration::from_millis(200)).await;
    assert!(!engine.is_progressing(), "the store may have judged it by now");
    faulty.answers.add_permits(1000);
    drop(time);
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_node_trusts_the_lease_that_the_store_granted() {
    let world = World::new().await;
    world.configure("node_lease", "60").await;
    let faulty = Faulty::over(&world.store);
    *faulty.lowers_lease.lock().unwrap() = Some(5);
    let time = stand_still();
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    until(|| faulty.heartbeats.load(SeqCst) == 1).await;
    faulty.refused_heartbeats.store(u32::MAX, SeqCst);
    // A third of the lease that the first one granted.
    tokio::time::advance(Duration::from_secs(2)).await;
    until(|| faulty.heartbeats.load(SeqCst) == 2).await;
    assert!(engine.is_progressing());
    tokio::time::advance(Duration::from_millis(3100)).await;
    assert!(!engine.is_progressing(), "the store may have judged it by now");
    drop(time);
    engine.stop().await;
}

#[tokio::test]
async fn a_node_that_judges_many_lost_claims_keeps_its_own_lease() {
    let world = World::new().await;
    world.configure("node_lease", "5").await;
    let faulty = Faulty::over(&world.store);
    faulty.endless_losses.store(true, SeqCst);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let deadline = Instant::now() + super::PATIENCE;
    while faulty.heartbeats.load(SeqCst) < 3 {
        assert!(Instant::now() < deadline, "too busy with others to confirm it");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(engine.is_progressing());
    faulty.endless_losses.store(false, SeqCst);
    engine.stop().await;
}

#[tokio::test]
async fn a_node_whose_disk_refuses_to_sync_loses_its_lease() {
    let refuses = Arc::new(AtomicBool::new(false));
    let refused = refuses.clone();
    let sync = move || if refused.load(SeqCst) { Err(io::ErrorKind::Other.into()) } else { Ok(()) };
    let world = World::syncing(sync).await;
    world.configure("node_lease", "5").await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    assert!(engine.is_progressing());
    refuses.store(true, SeqCst);
    world.store.send(to("a", 1)).await.unwrap_err();
    refuses.store(false, SeqCst);
    let deadline = Instant::now() + super::PATIENCE;
    while engine.is_progressing() {
        assert!(Instant::now() < deadline, "it goes on as if nothing had happened");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.store.send(to("a", 2)).await.unwrap_err();
    assert_eq!(world.receiver.count(), 0, "nothing was started that may not be there");
    engine.stop().await;
}

#[tokio::test]
async fn a_node_that_lost_its_lease_works_again_before_it_has_left() {
    let world = World::new().await;
    world.configure("node_lease", "5").await;
    world.endpoint("a").await;
    let faulty = Faulty::over(&world.store);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let leaving = faulty.leaving.lock().await;
    lose_the_lease(&world, &faulty).await;
    // The old node is gone; who listens to the store, and in whose name is this claimed?
    world.tool().send(to("a", 1)).await.unwrap();
    world.receiver.until("the message", |receiver| receiver.count() == 1).await;
    drop(leaving);
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn a_claim_made_under_a_lease_that_was_lost_since_starts_nothing() {
    let world = World::new().await;
    world.configure("node_lease", "5").await;
    world.endpoint("a").await;
    let faulty = Faulty::over(&world.store);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let handing_out = faulty.handing_out.lock().await;
    let id = world.tool().send(to("a", 1)).await.unwrap().id;
    world.until_state(id, State::Processing).await;
    lose_the_lease(&world, &faulty).await;
    world.until_state(id, State::Pending).await;
    drop(handing_out);
    world.until_empty().await;
    let attempts: Vec<u32> = world.receiver.arrivals().iter().map(|arrival| arrival.attempt).collect();
    assert_eq!(attempts, [2], "the first was lost with the lease");
    engine.stop().await;
}

/// The store takes the lease from the node, which notices and joins again.
async fn lose_the_lease(world: &World, faulty: &Faulty) {
    let judge = "UPDATE _postrider_nodes SET state = 'lost' WHERE state = 'live'";
    assert_eq!(Connection::open(world.path()).unwrap().execute(judge, []).unwrap(), 1);
    let deadline = Instant::now() + super::PATIENCE;
    while faulty.left.load(SeqCst) == 0 {
        assert!(Instant::now() < deadline, "it never learns that it lost its lease");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
