//! What is sent arrives, once, as it was sent, when it may.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use postrider::endpoint::Endpoint;
use postrider::engine::EngineEventKind;
use postrider::rusqlite::{Connection, TransactionBehavior};
use postrider::sink::{ConnectSink, Delivery, Environment, Sink, SinkConnection, Undelivered};
use postrider::store::figures::OTHERS;
use postrider::store::sqlite::send_in;
use postrider::verdict::{Failure, Receipt};
use postrider::{EngineOptions, NewMessage, Operate as _, State, Store as _};
use serde_json::json;

use super::PATIENCE;
use super::receiver::Answer;
use super::world::{World, to, until_event};

#[tokio::test]
async fn everything_sent_is_delivered_once_when_nothing_fails() {
    let world = World::new().await;
    for endpoint in ["a", "b", "c"] {
        world.endpoint(endpoint).await;
    }
    let before = world.send_many("a", 50).await;
    let engine = world.engine().await;
    let mut sent: HashSet<String> = before.iter().map(|id| world.public(*id)).collect();
    for n in 0..50 {
        sent.insert(world.public(world.send("b", n).await));
    }
    sent.extend(world.send_many("c", 100).await.into_iter().map(|id| world.public(id)));
    world.until_empty().await;
    let arrivals = world.receiver.arrivals();
    assert_eq!(arrivals.len(), 200, "nothing came twice");
    assert_eq!(arrivals.iter().map(|arrival| arrival.id.clone()).collect::<HashSet<_>>(), sent);
    assert!(arrivals.iter().all(|arrival| arrival.attempt == 1));
    engine.stop().await;
}

#[tokio::test]
async fn a_message_sent_through_the_node_is_claimed_as_it_is_inserted() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::ok().held());
    let engine = world.engine().await;
    // The endpoint's room is published before the engine is there, so this send skips the queue.
    let id = world.send("a", 1).await;
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempt_count), (State::Processing, 1));
    world.receiver.until("the message", |receiver| receiver.running("a") == 1).await;
    assert_eq!(world.receiver.arrivals()[0].attempt, 1);
    world.receiver.release();
    assert_eq!(world.until_state(id, State::Completed).await.attempt_count, 1);
    engine.stop().await;
}

#[tokio::test]
async fn messages_of_another_connection_arrive_when_it_commits_and_never_when_it_rolls_back() {
    let world = World::new().await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    let mut app = Connection::open(world.path()).unwrap();
    app.busy_timeout(Duration::from_secs(5)).unwrap();
    for n in 0..40 {
        let transaction = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        send_in(&transaction, &to("a", n)).unwrap();
        if n % 2 == 0 {
            transaction.commit().unwrap();
        } else {
            transaction.rollback().unwrap();
        }
    }
    world.receiver.until("the committed ones", |receiver| receiver.count() >= 20).await;
    world.until_empty().await;
    let mut arrived: Vec<u32> =
        world.receiver.arrivals().iter().map(|arrival| arrival.payload.parse().unwrap()).collect();
    arrived.sort_unstable();
    assert_eq!(arrived, (0..40).step_by(2).collect::<Vec<_>>());
    engine.stop().await;
}

#[tokio::test]
async fn a_scheduled_message_is_not_attempted_before_its_time() {
    let (world, clock) = World::standing_still().await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    let scheduled_at = Some(world.store.now() + Duration::from_secs(60));
    let later = world.send_message(NewMessage { scheduled_at, ..to("a", "later") }).await;
    let now = world.send("a", "now").await;
    world.until_state(now, State::Completed).await;
    clock.advance(Duration::from_millis(59_999));
    let again = world.send("a", "again").await;
    world.until_state(again, State::Completed).await;
    assert_eq!(world.story(later).await.state, State::Pending);
    clock.advance(Duration::from_millis(1));
    world.until_state(later, State::Completed).await;
    let payloads: Vec<String> =
        world.receiver.arrivals().into_iter().map(|arrival| arrival.payload).collect();
    assert_eq!(payloads, ["now", "again", "later"]);
    engine.stop().await;
}

#[tokio::test]
async fn a_message_past_its_expiry_is_never_attempted() {
    let (world, clock) = World::standing_still().await;
    world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
    world.receiver.answer(Answer::ok().held());
    let engine = world.engine().await;
    let first = world.send("a", "first").await;
    let expires_at = Some(world.store.now() + Duration::from_secs(5));
    let short = world.send_message(NewMessage { expires_at, ..to("a", "short") }).await;
    world.receiver.until("the first", |receiver| receiver.running("a") == 1).await;
    clock.advance(Duration::from_secs(5));
    world.receiver.release();
    world.until_state(first, State::Completed).await;
    let story = world.until_state(short, State::Expired).await;
    assert_eq!(story.attempt_count, 0);
    assert_eq!(world.receiver.count(), 1);
    engine.stop().await;
}

#[tokio::test]
async fn with_one_slot_the_higher_priority_goes_first() {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
    world.receiver.answer(Answer::ok().held());
    let engine = world.engine().await;
    world.send("a", "first").await;
    world.receiver.until("the first", |receiver| receiver.running("a") == 1).await;
    for priority in [0, 3, 10, 1, 10] {
        world.send_message(NewMessage { priority, ..to("a", priority) }).await;
    }
    world.receiver.release();
    world.until_empty().await;
    let order: Vec<String> = world.receiver.arrivals().into_iter().map(|arrival| arrival.payload).collect();
    assert_eq!(order, ["first", "10", "10", "3", "1", "0"]);
    engine.stop().await;
}

#[tokio::test]
async fn a_file_gets_every_message_once() {
    let world = World::new().await;
    let config = json!({ "path": "out.jsonl" });
    world.endpoint_from(json!({ "name": "log", "protocol": "file", "config": config })).await;
    let engine = world.engine().await;
    let ids = world.send_many("log", 300).await;
    world.until_empty().await;
    let written = std::fs::read_to_string(world.folder().join("out.jsonl")).unwrap();
    let lines: HashSet<String> = written
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["id"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(written.lines().count(), 300);
    assert_eq!(lines, ids.iter().map(|id| world.public(*id)).collect());
    engine.stop().await;
}

#[tokio::test]
async fn an_attempt_is_told_once_its_end_is_in_the_store() {
    let world = World::new().await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    assert!(engine.is_progressing());
    let mut events = engine.events();
    let id = world.send("a", 1).await;
    let (message, attempt, state, status) = until_event(&mut events, |kind| match kind {
        EngineEventKind::Attempted { message, attempt, state, response_status: status, .. } => {
            Some((*message, *attempt, *state, *status))
        }
        EngineEventKind::Lost { .. } | EngineEventKind::Circuit { .. } => None,
    })
    .await;
    assert_eq!((message, attempt, state, status), (id, 1, State::Completed, Some(200)));
    assert_eq!(world.story(id).await.state, State::Completed);
    assert!(engine.is_progressing());
    engine.stop().await;
}

#[tokio::test]
async fn what_is_delivered_while_its_endpoint_is_dropped_is_completed() {
    let world = World::new().await;
    world.endpoint("doomed").await;
    world.receiver.answer(Answer::ok());
    let engine = world.engine().await;
    let first = world.send("doomed", 1).await;
    world.until_state(first, State::Completed).await;
    world.receiver.answer(Answer::ok().held());
    let id = world.send("doomed", 2).await;
    world.receiver.until("the attempt", |receiver| receiver.running("doomed") == 1).await;
    world.store.drop_endpoint("doomed", true).await.unwrap();
    assert_eq!(world.store.story(id).await.unwrap().state, State::Cancelled);
    // The node knows of no such endpoint any more when the receiver answers.
    let measures = engine.measures();
    let is_gone = async {
        while measures.read().endpoints[0].endpoint != OTHERS {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_gone).await.expect("the endpoint goes");
    world.receiver.release();
    world.until_state(id, State::Completed).await;
    assert_eq!(world.store.story(id).await.unwrap().attempts.len(), 1);
    engine.stop().await;
}

/// A receiver that repeats the secret that it was sent.
#[derive(Debug)]
struct Parrot;

const SAID: &str = "no user has \"leak-1\", not even \"leak-1-é\"";

#[async_trait]
impl Sink for Parrot {
    async fn deliver(&self, _: &Delivery) -> Result<Receipt, Undelivered> {
        Err(Failure::permanent(SAID).into())
    }

    fn connection(&self) -> SinkConnection {
        SinkConnection::Down { error: SAID.to_owned() }
    }
}

impl ConnectSink for Parrot {
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(Self))
    }
}

#[tokio::test]
async fn a_secret_that_a_receiver_repeats_is_masked_wherever_its_error_is_shown() {
    let world = World::new().await;
    let auth = json!({ "type": "bearer", "token": "leak-1" });
    world.endpoint_from(json!({ "name": "a", "config": { "auth": auth } })).await;
    let options = world.options();
    let environment = Environment { connector: Arc::new(Parrot), ..options.environment.clone() };
    let engine = world.engine_with(EngineOptions { environment, ..options }).await;
    let id = world.send("a", 1).await;
    world.until_state(id, State::Dead).await;
    let endpoint = world.store.endpoint("a").await.unwrap();
    let masked = "no user has \"***\", not even \"***-é\"";
    assert_eq!(engine.connection(endpoint.id), Some(SinkConnection::Down { error: masked.to_owned() }));
    let tested = engine.test_delivery(endpoint, to("a", 2), 100).run().await.error;
    let kept = world.dead_letters().await[0].last_error.clone();
    for error in [tested, kept] {
        assert_eq!(error.as_deref(), Some(format!("[PERMANENT] {masked}").as_str()));
    }
    engine.stop().await;
}
