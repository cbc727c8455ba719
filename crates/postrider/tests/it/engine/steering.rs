//! What people change reaches the running engine, from its own process and from another one.

use std::time::Duration;

use postrider::endpoint::EndpointChange;
use postrider::{MessageId, Operate, State};
use serde_json::json;

use super::receiver::Answer;
use super::world::{World, to};

/// Has the engine stopped starting attempts? It may be a moment behind the store.
async fn until_quiet(world: &World, path: &str) {
    loop {
        let before = world.receiver.at(path).len();
        tokio::time::sleep(Duration::from_millis(150)).await;
        if world.receiver.at(path).len() == before && world.receiver.running(path) == 0 {
            return;
        }
    }
}

/// Of these, none was attempted.
async fn assert_waiting(world: &World, ids: &[MessageId]) {
    for id in ids {
        let story = world.story(*id).await;
        assert_eq!((story.state, story.attempt_count), (State::Pending, 0));
    }
}

#[tokio::test]
async fn a_paused_endpoint_gets_nothing_until_it_is_resumed() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    let engine = world.engine().await;
    let tool = world.tool();
    let here: &dyn Operate = &*world.store;
    for operator in [here, &tool] {
        operator.set_endpoint_paused("a", true).await.unwrap();
        let waiting = world.send_many("a", 10).await;
        let before = world.receiver.at("a").len();
        let other = world.send("b", 0).await;
        world.until_state(other, State::Completed).await;
        assert_waiting(&world, &waiting).await;
        assert_eq!(world.receiver.at("a").len(), before);
        operator.set_endpoint_paused("a", false).await.unwrap();
        world.until_empty().await;
    }
    assert_eq!(world.receiver.at("a").len(), 20);
    engine.stop().await;
}

#[tokio::test]
async fn a_system_pause_stops_everything_until_it_is_lifted() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    let engine = world.engine().await;
    let tool = world.tool();
    let here: &dyn Operate = &*world.store;
    for operator in [here, &tool] {
        operator.pause("maintenance").await.unwrap();
        let mut waiting = world.send_many("a", 5).await;
        waiting.push(world.send("b", 0).await);
        until_quiet(&world, "a").await;
        assert_waiting(&world, &waiting).await;
        assert!(engine.is_progressing(), "a paused node is a healthy one");
        operator.resume().await.unwrap();
        world.until_empty().await;
    }
    assert_eq!(world.receiver.count(), 12);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_noticed_in_the_middle_of_a_flood() {
    let world = World::new().await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    world.send_many("a", 5000).await;
    world.receiver.until("a flood", |receiver| receiver.count() > 200).await;
    world.store.set_endpoint_paused("a", true).await.unwrap();
    until_quiet(&world, "a").await;
    let status = world.store.status().await.unwrap();
    assert!(status.pending > 0, "it was paused in the middle");
    world.store.set_endpoint_paused("a", false).await.unwrap();
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 5000);
    engine.stop().await;
}

#[tokio::test]
async fn a_new_address_is_used_for_the_next_attempts() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.script(|arrival| Answer::status(if arrival.path == "a" { 500 } else { 200 }));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    world.receiver.until("some attempts", |receiver| receiver.at("a").len() >= 2).await;
    let config = json!({ "url": world.receiver.url("moved") }).as_object().unwrap().clone();
    let change = EndpointChange { config: Some(config), ..EndpointChange::default() };
    world.tool().alter_endpoint("a", change).await.unwrap();
    let story = world.until_state(id, State::Completed).await;
    let moved = world.receiver.at("moved");
    assert_eq!(moved.len(), 1);
    assert_eq!(moved[0].attempt, story.attempt_count);
    engine.stop().await;
}

#[tokio::test]
async fn more_room_is_used_and_less_room_is_kept() {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": 2 })).await;
    world.receiver.answer(Answer::ok().after(Duration::from_millis(5)));
    let engine = world.engine().await;
    for room in [2, 6, 1] {
        let options = Some(json!({ "max_in_flight": room }));
        world.store.alter_endpoint("a", EndpointChange { options, ..Default::default() }).await.unwrap();
        // Enough successes for the concurrency to rise to what is allowed.
        world.send_many("a", 40).await;
        world.until_empty().await;
        world.receiver.forget_most_running();
        world.send_many("a", 40).await;
        world.until_empty().await;
        assert_eq!(world.receiver.most_running("a"), room);
    }
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_made_while_the_engine_runs_is_served() {
    let world = World::new().await;
    let engine = world.engine().await;
    world.endpoint("new").await;
    world.send("new", 1).await;
    let tool = world.tool();
    let config = json!({ "url": world.receiver.url("newer") });
    let endpoint = json!({ "name": "newer", "protocol": "http", "config": config });
    tool.create_endpoint(serde_json::from_value(endpoint).unwrap()).await.unwrap();
    tool.send(super::world::to("newer", 2)).await.unwrap();
    world.receiver.until("both", |receiver| receiver.count() == 2).await;
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn a_redriven_message_is_delivered_again() {
    use postrider::store::Redrive;
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::status(400));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    world.until_state(id, State::Dead).await;
    world.receiver.answer(Answer::ok());
    assert_eq!(world.tool().redrive(Redrive::All).await.unwrap(), 1);
    world.until_state(id, State::Completed).await;
    assert_eq!(world.receiver.arrivals()[1].attempt, 2, "attempt numbers go on");
    engine.stop().await;
}

/// A caller that changes an endpoint and then sends relies on the change, in this process and in another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_sent_after_a_change_of_its_endpoint_is_delivered_by_the_change() {
    let world = World::new().await;
    world.endpoint("a").await;
    let engine = world.engine().await;
    let tool = world.tool();
    let here: &dyn Operate = &*world.store;
    for (turn, operator) in [here, &tool].into_iter().cycle().take(40).enumerate() {
        let path = format!("turn-{turn}");
        let config = json!({ "url": world.receiver.url(&path) });
        let change = EndpointChange { config: config.as_object().cloned(), ..EndpointChange::default() };
        operator.alter_endpoint("a", change).await.unwrap();
        let id = operator.send(to("a", turn)).await.unwrap().id;
        world.until_state(id, State::Completed).await;
        assert_eq!(world.receiver.at(&path).len(), 1, "{turn}");
    }
    engine.stop().await;
}

/// Changes of other endpoints are loaded together. One by one, these would take far longer than the test waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_changes_do_not_hold_up_messages() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    let engine = world.engine().await;
    let changes = (0..2000).map(|turn| world.store.set_endpoint_paused("b", turn % 2 == 0));
    for changed in futures_util::future::join_all(changes).await {
        changed.unwrap();
    }
    let id = world.send("a", 1).await;
    world.until_state(id, State::Completed).await;
    engine.stop().await;
}
