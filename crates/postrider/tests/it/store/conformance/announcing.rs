use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postrider::store::{Arrival, DlqFilter, Hello, Redrive, SweepAction, Sweeps};
use postrider::{NewMessage, Operate, State, Store};
use serde_json::json;

use super::direct::{next_work, with_room};
use crate::store::world::{Harness, Slots, World, to};

pub(crate) async fn without_room_a_message_stays_pending_and_is_announced<H: Harness>(world: World<H>) {
    let (_slots, mut arrivals) = with_room(&world, 0).await;
    let id = world.send(to("a")).await;
    let told = next_work(&mut arrivals).await;
    assert!(matches!(told, Arrival::Pending(endpoint) if endpoint == world.a), "{told:?}");
    assert_eq!(world.state(id).await, State::Pending);
}

pub(crate) async fn a_message_never_overtakes_what_is_due_already<H: Harness>(world: World<H>) {
    let waiting = world.send(to("a")).await;
    let (slots, mut arrivals) = with_room(&world, 5).await;
    let id = world.send(to("a")).await;
    let told = next_work(&mut arrivals).await;
    assert!(matches!(told, Arrival::Pending(endpoint) if endpoint == world.a), "{told:?}");
    assert_eq!(world.states(&[waiting, id]).await, [State::Pending; 2]);
    assert_eq!(slots.0.load(Ordering::SeqCst), 5, "no slot is lost");
}

pub(crate) async fn what_may_not_go_now_is_never_claimed_directly<H: Harness>(world: World<H>) {
    let limit = json!({"rate_limit": {"limit": 1, "interval": "hour"}});
    world.endpoint("limited", limit).await;
    world.endpoint("paused", json!({})).await;
    world.store().set_endpoint_paused("paused", true).await.unwrap();
    world.endpoint("open", json!({})).await;
    let open = world.store().endpoint("open").await.unwrap();
    let to_open = open.circuit.opened(world.now(), Duration::from_secs(30));
    assert!(world.store().move_circuit(open.id, open.circuit.epoch, to_open).await.unwrap());
    let (slots, mut arrivals) = with_room(&world, 5).await;

    let scheduled = world.send(NewMessage { scheduled_at: Some(world.in_seconds(9)), ..to("a") }).await;
    let paused = world.send(to("paused")).await;
    let open = world.send(to("open")).await;
    let states = world.states(&[scheduled, paused, open]).await;
    assert_eq!(states, [State::Pending; 3]);
    assert_eq!(slots.0.load(Ordering::SeqCst), 5, "no slot is lost");
    let limited = [world.send(to("limited")).await, world.send(to("limited")).await];
    let states = world.states(&limited).await;
    assert_eq!(states[1], State::Pending, "at most one may go this hour");
    assert!(arrivals.try_recv().is_ok());
}

pub(crate) async fn nothing_is_claimed_directly_while_all_is_paused<H: Harness>(world: World<H>) {
    let (slots, _arrivals) = with_room(&world, 5).await;
    world.store().pause("maintenance").await.unwrap();
    let id = world.send(to("a")).await;
    assert_eq!(world.state(id).await, State::Pending);
    assert_eq!(slots.0.load(Ordering::SeqCst), 5);
}

/// The node was told everything that happened before.
async fn forget_news<H: Harness>(world: &mut World<H>, other: &H::S) {
    let a = world.a;
    other.send(to("a")).await.unwrap();
    until_told(world, |told| matches!(told, Arrival::Pending(endpoint) if *endpoint == a)).await;
    while world.arrivals.try_recv().is_ok() {}
}

async fn until_told<H: Harness>(world: &mut World<H>, wanted: impl Fn(&Arrival) -> bool) {
    let told = async { while !wanted(&world.arrivals.recv().await.expect("the store lives")) {} };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("the node is told");
}

pub(crate) async fn what_another_process_sets_free_is_told_as_a_send_is<H: Harness>(mut world: World<H>) {
    let mut freed = Vec::new();
    for name in ["redriven", "swept", "discarded", "released", "rescheduled", "cancelled"] {
        freed.push(world.endpoint(name, json!({ "on_dead": "hold" })).await);
    }
    let redriven = world.send_to_death(to("redriven")).await.id;
    world.send_to_death(to("swept")).await;
    let discarded = world.send_to_death(to("discarded").ordering_key("d")).await.id;
    world.send(to("discarded").ordering_key("d")).await;
    world.send_to_death(to("released").ordering_key("r")).await;
    world.send(to("released").ordering_key("r")).await;
    let later = |endpoint| NewMessage { scheduled_at: Some(world.in_seconds(60)), ..to(endpoint) };
    let rescheduled = world.send(later("rescheduled")).await;
    let cancelled = world.send(later("cancelled").ordering_key("c")).await;
    world.send(to("cancelled").ordering_key("c")).await;

    let other = world.harness().beside().await;
    forget_news(&mut world, &other).await;
    let swept = DlqFilter { endpoint: Some("swept".into()), ..DlqFilter::default() };
    other.redrive(Redrive::One(redriven)).await.unwrap();
    other.sweep(SweepAction::Redrive, swept, None).await.unwrap();
    other.discard(discarded).await.unwrap();
    assert_eq!(other.release_key("r", None).await.unwrap(), 1);
    other.reschedule(rescheduled, world.now()).await.unwrap();
    other.cancel(cancelled).await.unwrap();
    while !freed.is_empty() {
        let told = next_work(&mut world.arrivals).await;
        freed.retain(|endpoint| !matches!(told, Arrival::Pending(told) if told == *endpoint));
    }
}

pub(crate) async fn what_another_process_changes_is_told<H: Harness>(mut world: World<H>) {
    let other = world.harness().beside().await;
    let circuit = other.endpoint("a").await.unwrap().circuit;
    let opened = circuit.opened(world.now(), Duration::from_secs(30));
    assert!(world.store().move_circuit(world.a, circuit.epoch, opened).await.unwrap());
    until_told(&mut world, |told| matches!(told, Arrival::CircuitMoved)).await;
    let reconfigured = |told: &Arrival| matches!(told, Arrival::Reconfigured);
    for enabled in [false, true] {
        other.set_endpoint_enabled("a", enabled).await.unwrap();
        until_told(&mut world, reconfigured).await;
    }
    for paused in [true, false] {
        other.set_endpoint_paused("a", paused).await.unwrap();
        until_told(&mut world, reconfigured).await;
    }
    other.pause("maintenance").await.unwrap();
    until_told(&mut world, reconfigured).await;
    other.resume().await.unwrap();
    until_told(&mut world, reconfigured).await;
    other.reset_circuit("a").await.unwrap();
    // SQLite does not say what another process changed.
    until_told(&mut world, |told| matches!(told, Arrival::CircuitMoved | Arrival::Reconfigured)).await;
}

pub(crate) async fn a_node_that_went_away_without_listening_loses_nothing<H: Harness>(mut world: World<H>) {
    let (sender, arrivals) = tokio::sync::mpsc::unbounded_channel();
    drop(arrivals);
    let direct = Arc::new(Slots(5.into()));
    world.store().leave(world.node).await.unwrap();
    world.store().join(Hello { name: "deaf".into(), arrivals: sender, direct }).await.unwrap();
    let id = world.send(to("a")).await;
    world.crash().await;
    let lost = world.lost().await;
    for claim in &lost {
        world.lose(claim).await;
    }
    assert_eq!(world.state(id).await, State::Pending, "it is claimable again");
}
