//! A node that dies without a word: what it had claimed is judged, put on probation and delivered.

use std::sync::Arc;
use std::time::Duration;

use postrider::endpoint::EndpointChange;
use postrider::engine::EngineEventKind;
use postrider::store::{ClaimRequest, Hello, NoDirectClaims, Pick, Redrive, Want};
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::node::Node;
use super::receiver::Answer;
use super::world::{World, quick, to, until_event};

/// Sends this many to each, all of which hang when the node dies.
async fn lose(world: &mut World, each: &[(&str, usize)]) -> Vec<MessageId> {
    world.receiver.answer(Answer::ok().held());
    let node = Node::start(world).await;
    let mut ids = Vec::new();
    for (endpoint, count) in each {
        ids.extend(world.send_many(endpoint, *count).await);
    }
    world.receiver.until("all to hang", |receiver| receiver.running_in_all() == ids.len()).await;
    node.kill(world).await;
    world.receiver.forget_most_running();
    ids
}

#[tokio::test]
async fn lost_claims_go_through_the_retry_decision_and_come_back_at_most_eight_at_a_time() {
    let mut world = World::new().await;
    for endpoint in ["a", "b"] {
        world.endpoint(endpoint).await;
    }
    let lost = lose(&mut world, &[("a", 16), ("b", 16)]).await;
    // What was never claimed does not wait for them.
    world.receiver.answer(Answer::ok().after(Duration::from_millis(10)));
    let engine = world.engine().await;
    let mut events = engine.events();
    for _ in &lost {
        let state = until_event(&mut events, |kind| match kind {
            EngineEventKind::Lost { state, .. } => Some(*state),
            EngineEventKind::Attempted { .. } | EngineEventKind::Circuit { .. } => None,
        });
        assert_eq!(state.await, State::Pending);
    }
    world.until_empty().await;
    assert_eq!(world.receiver.most_running_in_all(), 8);
    let again = world.receiver.arrivals().split_off(lost.len());
    assert_eq!(again.len(), lost.len());
    let counted =
        engine.measures().read().endpoints.into_iter().map(|endpoint| endpoint.attempts[4].2).sum::<u64>();
    assert_eq!(counted, lost.len() as u64, "each loss is counted by the node that noticed it");
    assert!(again.iter().all(|arrival| arrival.attempt == 2), "the lost attempt is counted");
    for id in lost {
        let story = world.story(id).await;
        assert_eq!(story.attempt_count, 2);
        assert_eq!(story.attempts[0].error.as_deref(), Some("[RETRYABLE] lease expired"));
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_message_that_may_be_tried_once_is_dead_when_its_node_dies() {
    let mut world = World::new().await;
    world.endpoint_from(json!({ "name": "once", "retry_policy": quick(1) })).await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::ok().held());
    let node = Node::start(&world).await;
    let mut once = world.send_many("once", 3).await;
    let options = json!({ "max_attempts": 1 }).as_object().unwrap().clone();
    once.push(world.send_message(NewMessage { options, ..to("a", "its own limit") }).await);
    let neighbour = world.send("a", "neighbour").await;
    world.receiver.until("all to hang", |receiver| receiver.running_in_all() == 5).await;
    node.kill(&mut world).await;
    world.receiver.answer(Answer::ok());
    let engine = world.engine().await;
    for id in &once {
        let story = world.until_state(*id, State::Dead).await;
        assert_eq!((story.attempt_count, story.attempts.len()), (1, 1));
        assert_eq!(story.last_error.as_deref(), Some("[RETRYABLE] lease expired"));
    }
    world.until_state(neighbour, State::Completed).await;
    assert_eq!(world.receiver.count(), 5 + 1, "none of them is started again");
    world.store.redrive(Redrive::All).await.unwrap();
    for id in &once {
        assert_eq!(world.until_state(*id, State::Completed).await.attempt_count, 2, "numbers go on");
    }
    let again = world.receiver.arrivals().split_off(6);
    assert!(again.iter().all(|arrival| arrival.attempt == 2), "{again:?}");
    engine.stop().await;
}

#[tokio::test]
async fn a_first_lost_claim_is_tried_again_at_once() {
    let mut world = World::new().await;
    let slow = json!({ "backoff": "fixed", "base_delay_seconds": 3600, "max_delay_seconds": 3600 });
    world.endpoint_from(json!({ "name": "a", "retry_policy": slow })).await;
    let lost = lose(&mut world, &[("a", 3)]).await;
    world.receiver.answer(Answer::ok());
    let engine = world.engine().await;
    for id in lost {
        world.until_state(id, State::Completed).await;
    }
    engine.stop().await;
}

#[tokio::test]
async fn a_backlog_flows_on_beside_lost_claims() {
    let mut world = World::new().await;
    let endpoints = ["a", "b", "c", "d"];
    for endpoint in endpoints {
        world.endpoint(endpoint).await;
    }
    let lost = lose(&mut world, &endpoints.map(|endpoint| (endpoint, 16))).await;
    world.receiver.answer(Answer::ok());
    for endpoint in endpoints {
        world.send_many(endpoint, 500).await;
    }
    let engine = world.engine().await;
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 2 * lost.len() + 4 * 500);
    engine.stop().await;
}

/// Kills the node whenever it attempts the poison; how often that was until the poison was dead.
async fn kill_until_dead(world: &mut World, poison: MessageId) -> usize {
    for kills in 0..10 {
        let node = Node::start(world).await;
        loop {
            if world.story(poison).await.state == State::Dead {
                world.until_empty().await;
                return kills;
            }
            if world.receiver.arrivals().last().is_some_and(|_| poison_runs(world)) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        node.kill(world).await;
    }
    panic!("the poison killed its node ten times and lives: {:?}", world.story(poison).await);
}

fn poison_runs(world: &World) -> bool {
    world.receiver.arrivals().iter().any(|arrival| arrival.payload == "poison" && arrival.ended.is_none())
}

async fn with_poison(world: &World, poison: NewMessage) -> (MessageId, Vec<MessageId>) {
    world.receiver.script(|arrival| match arrival.payload.as_str() {
        "poison" => Answer::ok().held(),
        _ => Answer::ok().after(Duration::from_millis(20)),
    });
    let mut messages: Vec<NewMessage> = (0..30).map(|n| to("a", n)).collect();
    messages.insert(10, poison);
    let mut ids = world.send_all(messages).await;
    let poison = ids.remove(10);
    (poison, ids)
}

async fn assert_only_the_poison_died(world: &World, poison: MessageId, neighbours: &[MessageId]) {
    let letters = world.dead_letters().await;
    assert_eq!(letters.iter().map(|letter| letter.message).collect::<Vec<_>>(), [poison]);
    assert_eq!(letters[0].last_error.as_deref(), Some("[RETRYABLE] lease expired"));
    for id in neighbours {
        assert_eq!(world.story(*id).await.state, State::Completed);
    }
}

#[tokio::test]
async fn a_message_that_kills_its_node_dies_alone() {
    let mut world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(3) })).await;
    let (poison, neighbours) = with_poison(&world, to("a", "poison")).await;
    let kills = kill_until_dead(&mut world, poison).await;
    assert_eq!(kills, 3, "as often as it has attempts");
    assert_only_the_poison_died(&world, poison, &neighbours).await;
}

#[tokio::test]
async fn a_message_that_kills_its_node_dies_of_its_own_last_attempt() {
    let mut world = World::new().await;
    world.endpoint("a").await;
    let options = json!({ "max_attempts": 2 }).as_object().unwrap().clone();
    let poison = NewMessage { options, ..to("a", "poison") };
    let (poison, neighbours) = with_poison(&world, poison).await;
    let kills = kill_until_dead(&mut world, poison).await;
    assert!((2..=3).contains(&kills), "it takes its last attempt alone, after {kills} kills");
    assert_only_the_poison_died(&world, poison, &neighbours).await;
}

#[tokio::test]
async fn the_key_of_a_message_that_kills_its_node_goes_on_after_it() {
    let mut world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(2) })).await;
    let (poison, neighbours) = with_poison(&world, to("a", "poison").ordering_key("k")).await;
    let behind = world.send_message(to("a", "behind").ordering_key("k")).await;
    kill_until_dead(&mut world, poison).await;
    assert_only_the_poison_died(&world, poison, &neighbours).await;
    world.until_state(behind, State::Completed).await;
}

fn slower(name: &str) -> Value {
    let policy = json!({ "max_attempts": 20, "backoff": "fixed", "base_delay_seconds": 0.4 });
    json!({ "name": name, "retry_policy": policy })
}

#[tokio::test]
async fn lost_claims_of_paused_endpoints_do_not_hold_up_those_of_others() {
    let mut world = World::new().await;
    let paused = ["p0", "p1", "p2", "p3", "p4"];
    for endpoint in paused {
        world.endpoint(endpoint).await;
    }
    world.endpoint_from(slower("open")).await;
    let each: Vec<(&str, usize)> =
        paused.into_iter().map(|endpoint| (endpoint, 16)).chain([("open", 4)]).collect();
    lose(&mut world, &each).await;
    for endpoint in paused {
        world.store.set_endpoint_paused(endpoint, true).await.unwrap();
    }
    world.receiver.answer(Answer::ok());
    let engine = world.engine().await;
    world.receiver.until("those of the other", |receiver| receiver.at("open").len() == 8).await;
    engine.stop().await;
}

#[tokio::test]
async fn lost_claims_of_an_endpoint_that_asked_to_wait_do_not_hold_up_those_of_others() {
    let mut world = World::new().await;
    world.endpoint("busy").await;
    world.endpoint_from(slower("open")).await;
    lose(&mut world, &[("busy", 16), ("open", 4)]).await;
    world.receiver.script(|arrival| match arrival.path.as_str() {
        "busy" => Answer::status(503).retry_after(60),
        _ => Answer::ok(),
    });
    let engine = world.engine().await;
    world.receiver.until("those of the other", |receiver| receiver.at("open").len() == 8).await;
    assert!(world.receiver.at("busy").len() <= 16 + 8, "after the first trial it is left alone");
    engine.stop().await;
}

#[tokio::test]
async fn lost_claims_of_an_endpoint_without_room_do_not_hold_up_those_of_others() {
    let mut world = World::new().await;
    world
        .endpoint_from(json!({ "name": "full", "options": { "max_in_flight": 8 }, "retry_policy": quick(9) }))
        .await;
    world.endpoint_from(slower("open")).await;
    lose(&mut world, &[("full", 8), ("open", 4)]).await;
    world.receiver.script(|arrival| if arrival.path == "full" { Answer::ok().held() } else { Answer::ok() });
    // It has room for one of the eight that were lost.
    let options = Some(json!({ "max_in_flight": 1 }));
    world.store.alter_endpoint("full", EndpointChange { options, ..Default::default() }).await.unwrap();
    let engine = world.engine().await;
    world.receiver.until("those of the other", |receiver| receiver.at("open").len() == 8).await;
    world.receiver.until("a full endpoint", |receiver| receiver.running("full") == 1).await;
    world.receiver.release();
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_dropped_during_the_trial_of_its_messages_does_not_end_all_trials() {
    let mut world = World::new().await;
    world.endpoint("doomed").await;
    world.endpoint_from(slower("stays")).await;
    lose(&mut world, &[("doomed", 4), ("stays", 4)]).await;
    world
        .receiver
        .script(|arrival| if arrival.path == "doomed" { Answer::ok().held() } else { Answer::ok() });
    let engine = world.engine().await;
    world.receiver.until("the trial", |receiver| receiver.running("doomed") == 4).await;
    world.store.drop_endpoint("doomed", true).await.unwrap();
    world.receiver.release();
    world.until_empty().await;
    assert_eq!(world.receiver.at("stays").len(), 8);
    engine.stop().await;
}

#[tokio::test]
async fn a_lost_message_that_hangs_holds_up_no_other() {
    let mut world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(20), "config": { "timeout": 60 } })).await;
    let lost = lose(&mut world, &[("a", 16)]).await;
    world.receiver.script(|arrival| if arrival.payload == "0" { Answer::ok().held() } else { Answer::ok() });
    let engine = world.engine().await;
    for id in &lost[1..] {
        world.until_state(*id, State::Completed).await;
    }
    assert_eq!(world.receiver.running("a"), 1);
    world.receiver.release();
    world.until_empty().await;
    engine.stop().await;
}

/// The engine's time stands still until it is moved.
struct FrozenTime {
    _blocks: std::sync::mpsc::Sender<()>,
}

impl FrozenTime {
    fn new() -> Self {
        tokio::time::pause();
        // Paused time jumps ahead when there is nothing to do, but not while something blocks.
        let (blocks, blocked) = std::sync::mpsc::channel();
        tokio::task::spawn_blocking(move || blocked.recv());
        Self { _blocks: blocks }
    }

    /// Moves it a little, after the store and the receiver had some real time.
    async fn step(&self) {
        self.pass(Duration::from_millis(2)).await;
    }

    async fn pass(&self, time: Duration) {
        tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(10))).await.unwrap();
        tokio::time::advance(time).await;
    }
}

impl Drop for FrozenTime {
    fn drop(&mut self) {
        tokio::time::resume();
    }
}

#[tokio::test]
async fn claims_of_a_silent_node_are_tried_again_within_a_second_of_its_lease() {
    let (world, clock) = World::standing_still().await;
    world.endpoint("a").await;
    let id = world.send("a", 1).await;
    let (arrivals, _heard) = mpsc::unbounded_channel();
    let hello = Hello { name: "silent".into(), arrivals, direct: Arc::new(NoDirectClaims) };
    let node = world.store.join(hello).await.unwrap().node;
    let endpoint = world.store.endpoint("a").await.unwrap().id;
    let wants = vec![Want { endpoint, room: 1, pick: Pick::Due }];
    let request = ClaimRequest { node, batch: 1, wants, alone: false };
    assert_eq!(world.store.claim(request).await.unwrap().claims.len(), 1);
    // Heartbeats of the other come three times a lease, and none of them just when this one's ends.
    clock.advance(Duration::from_secs(3));
    let time = FrozenTime::new();
    let began = tokio::time::Instant::now();
    let engine = world.engine().await;
    // In small steps: a timer that is due in the middle of one is late.
    for tenth in 31..=160 {
        clock.advance(Duration::from_millis(100));
        time.pass(Duration::from_millis(100)).await;
        assert!(tenth >= 150 || world.story(id).await.state == State::Processing, "judged at {tenth} / 10 s");
    }
    while world.story(id).await.state != State::Completed {
        let passed = began.elapsed();
        assert!(passed < Duration::from_secs(14), "nobody looks for it: {:?}", world.story(id).await);
        time.step().await;
    }
    assert_eq!(world.receiver.arrivals()[0].attempt, 2);
    drop(time);
    engine.stop().await;
}

#[tokio::test]
async fn a_suspect_that_its_key_lets_go_again_is_noticed() {
    let mut world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::status(400));
    let engine = world.engine().await;
    let dead = world.store.send(to("a", 0).ordering_key("k")).await.unwrap().id;
    world.until_state(dead, State::Dead).await;
    engine.stop().await;
    world.receiver.answer(Answer::ok().held());
    let node = Node::start(&world).await;
    let lost = world.store.send(to("a", 1).ordering_key("k")).await.unwrap().id;
    world.receiver.until("it to hang", |receiver| receiver.running("a") == 1).await;
    node.kill(&mut world).await;
    // The dead one goes before it again: the suspect is behind its key until that one is settled.
    world.store.redrive(Redrive::All).await.unwrap();
    let time = FrozenTime::new();
    let began = tokio::time::Instant::now();
    let engine = world.engine().await;
    world.receiver.until("the head", |receiver| receiver.running("a") == 1).await;
    // It looks for suspects when it starts, and finds none.
    while began.elapsed() < Duration::from_millis(120) {
        time.step().await;
    }
    world.receiver.release();
    // Every five seconds it looks again by itself: that must not be what finds it.
    while world.story(lost).await.state != State::Completed {
        assert!(began.elapsed() < Duration::from_secs(4), "nobody was told of it");
        time.step().await;
    }
    assert_eq!(world.story(dead).await.state, State::Completed);
    drop(time);
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_dropped_while_the_node_empties_for_its_message_does_not_stop_the_node() {
    let mut world = World::new().await;
    world.endpoint_from(json!({ "name": "doomed", "retry_policy": quick(3) })).await;
    world.endpoint("stays").await;
    lose(&mut world, &[("doomed", 1)]).await;
    let node = Node::start(&world).await;
    world.receiver.until("the second try", |receiver| receiver.at("doomed").len() == 2).await;
    node.kill(&mut world).await;

    // Its next attempt is its last, so it has to be alone, and the node is not empty.
    world.send("stays", 0).await;
    let engine = world.engine().await;
    world.receiver.until("another that hangs", |receiver| receiver.running("stays") == 1).await;
    let mut running = 1;
    loop {
        world.send("stays", "more").await;
        running += 1;
        let arrived = world.receiver.until("it", |receiver| receiver.running("stays") == running);
        if tokio::time::timeout(Duration::from_millis(200), arrived).await.is_err() {
            break;
        }
    }
    world.store.drop_endpoint("doomed", true).await.unwrap();
    world.receiver.release();
    world.until_empty().await;
    assert_eq!(world.receiver.at("stays").len(), running);
    engine.stop().await;
}
