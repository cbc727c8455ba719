//! The circuit of an endpoint as its receiver sees it.

use std::sync::Arc;
use std::time::Duration;

use postrider::breaker::CircuitName;
use postrider::clock::ManualClock;
use postrider::engine::{EngineEvent, EngineEventKind};
use postrider::{Engine, NewMessage, Operate, State};
use serde_json::json;
use tokio::sync::broadcast;

use super::receiver::Answer;
use super::world::{World, to, until_event};

const THRESHOLD: usize = 5;
const COOLDOWN: Duration = Duration::from_secs(5);
const MESSAGES: usize = 10;

/// A circuit that ten messages opened, and nobody in flight.
struct Opened {
    world: World,
    clock: Arc<ManualClock>,
    engine: Engine,
    events: broadcast::Receiver<EngineEvent>,
}

impl Opened {
    async fn new() -> Self {
        let (world, clock) = World::standing_still().await;
        world.configure("circuit_breaker_threshold", &THRESHOLD.to_string()).await;
        world.configure("circuit_breaker_cooldown", &COOLDOWN.as_secs().to_string()).await;
        world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
        world.receiver.answer(Answer::status(500));
        let engine = world.engine().await;
        let mut events = engine.events();
        world.send_many("a", MESSAGES).await;
        until_circuit(&mut events, CircuitName::Open).await;
        Self { world, clock, engine, events }
    }

    /// Long enough for retries to come due, not for the circuit.
    async fn stays_quiet_for(&mut self, time: Duration) {
        let before = self.world.receiver.at("a").len();
        self.clock.advance(time);
        // The loop turns at least once a second: it has seen the new time when it has delivered this.
        self.world.endpoint("witness").await;
        self.world.receiver.script(|arrival| Answer::status(if arrival.path == "a" { 500 } else { 200 }));
        let witness = self.world.send("witness", 0).await;
        self.world.until_state(witness, State::Completed).await;
        assert_eq!(self.world.receiver.at("a").len(), before, "an open circuit lets nothing through");
        self.world.store.drop_endpoint("witness", false).await.unwrap();
    }
}

async fn until_circuit(events: &mut broadcast::Receiver<EngineEvent>, state: CircuitName) {
    until_event(events, |kind| match kind {
        EngineEventKind::Circuit { to, .. } => (*to == state).then_some(()),
        EngineEventKind::Attempted { .. } | EngineEventKind::Lost { .. } => None,
    })
    .await;
}

#[tokio::test]
async fn it_opens_after_the_threshold_probes_once_and_closes_on_success() {
    let mut opened = Opened::new().await;
    assert_eq!(opened.world.receiver.count(), THRESHOLD);
    assert_eq!(opened.world.store.endpoint("a").await.unwrap().circuit.state.name(), CircuitName::Open);
    opened.stays_quiet_for(COOLDOWN - Duration::from_millis(1)).await;

    opened.world.receiver.answer(Answer::ok().held());
    opened.clock.advance(Duration::from_millis(1));
    let receiver = &opened.world.receiver;
    receiver.until("the probe", |receiver| receiver.running("a") == 1).await;
    assert_eq!(receiver.at("a").last().unwrap().attempt, 1, "the one with the fewest attempts probes");
    // Whatever comes meanwhile waits for what the probe finds.
    opened.world.send_many("a", 5).await;
    opened.world.send("a", 0).await;
    assert_eq!(opened.world.store.endpoint("a").await.unwrap().circuit.state.name(), CircuitName::HalfOpen);
    assert_eq!(receiver.running("a"), 1);
    receiver.release();
    until_circuit(&mut opened.events, CircuitName::Closed).await;
    opened.world.until_empty().await;
    assert!(opened.world.dead_letters().await.is_empty());
    opened.engine.stop().await;
}

#[tokio::test]
async fn a_failed_probe_opens_it_for_a_fresh_cooldown() {
    let mut opened = Opened::new().await;
    for probes in 1..=3 {
        opened.clock.advance(COOLDOWN);
        until_circuit(&mut opened.events, CircuitName::Open).await;
        assert_eq!(opened.world.receiver.at("a").len(), THRESHOLD + probes, "one probe each time");
    }
    opened.stays_quiet_for(COOLDOWN - Duration::from_millis(1)).await;
    opened.world.receiver.answer(Answer::ok());
    opened.clock.advance(Duration::from_millis(1));
    opened.world.until_empty().await;
    opened.engine.stop().await;
}

#[tokio::test]
async fn a_probe_that_dies_does_not_put_off_the_next_one() {
    let (world, clock) = World::standing_still().await;
    world.configure("circuit_breaker_threshold", "1").await;
    world.configure("circuit_breaker_cooldown", "5").await;
    // The lease of a probe is longer than its timeout; nobody may wait for it once the probe has ended.
    let config = json!({ "timeout": 50 });
    world.endpoint_from(json!({ "name": "a", "config": config, "options": { "max_in_flight": 1 } })).await;
    world.receiver.answer(Answer::status(500));
    let engine = world.engine().await;
    let mut events = engine.events();
    for n in 0..4 {
        let options = json!({ "max_attempts": 1 }).as_object().unwrap().clone();
        world.send_message(NewMessage { options, ..to("a", n) }).await;
    }
    for probes in 0..4 {
        until_circuit(&mut events, CircuitName::Open).await;
        assert_eq!(world.receiver.count(), 1 + probes);
        clock.advance(COOLDOWN);
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_busy_receiver_and_bad_messages_never_open_it() {
    let world = World::new().await;
    world.configure("circuit_breaker_threshold", "1").await;
    world.endpoint("busy").await;
    world.endpoint("picky").await;
    world.receiver.script(|arrival| match (arrival.path.as_str(), arrival.attempt) {
        ("picky", _) => Answer::status(400),
        (_, attempt) => Answer::status(if attempt < 4 { 429 } else { 200 }),
    });
    let engine = world.engine().await;
    world.send_many("busy", 10).await;
    world.send_many("picky", 10).await;
    world.until_empty().await;
    assert_eq!(world.receiver.at("busy").len(), 40);
    assert_eq!(world.receiver.at("picky").len(), 10);
    let epochs = [world.store.endpoint("busy").await, world.store.endpoint("picky").await];
    assert!(epochs.into_iter().all(|endpoint| endpoint.unwrap().circuit.epoch == 0), "it never moved");
    engine.stop().await;
}

#[tokio::test]
async fn one_failure_among_successes_never_opens_it() {
    let world = World::new().await;
    world.configure("circuit_breaker_threshold", "2").await;
    world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
    world.receiver.script(|arrival| {
        Answer::status(if arrival.payload.ends_with('7') && arrival.attempt == 1 { 500 } else { 200 })
    });
    let engine = world.engine().await;
    world.send_many("a", 100).await;
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 110);
    assert_eq!(world.store.endpoint("a").await.unwrap().circuit.epoch, 0);
    engine.stop().await;
}

#[tokio::test]
async fn a_reset_lets_everything_flow_at_once() {
    let mut opened = Opened::new().await;
    opened.world.receiver.answer(Answer::ok());
    // The retries are due, the circuit is not.
    opened.clock.advance(COOLDOWN / 2);
    opened.world.store.reset_circuit("a").await.unwrap();
    opened.world.until_empty().await;
    assert!(opened.events.try_recv().is_ok(), "the deliveries are told");
    opened.engine.stop().await;
}

#[tokio::test]
async fn a_reset_from_another_process_reaches_the_node() {
    let opened = Opened::new().await;
    opened.world.receiver.answer(Answer::ok());
    opened.clock.advance(COOLDOWN / 2);
    opened.world.tool().reset_circuit("a").await.unwrap();
    opened.world.until_empty().await;
    opened.engine.stop().await;
}
