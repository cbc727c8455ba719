//! Arrivals wait until a change of endpoints or settings is loaded, and for nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use postrider::store::Arrival;
use postrider::{Engine, Operate, Store};

use super::faulty::Faulty;
use super::world::{World, stand_still, to, until};

async fn start() -> (World, Arc<Faulty>, Engine) {
    let world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    let faulty = Faulty::over(&world.store);
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    (world, faulty, engine)
}

#[tokio::test]
async fn a_moved_circuit_holds_up_no_message() {
    let (world, faulty, engine) = start().await;
    let loading = faulty.loading.lock().await;
    let b = world.store.endpoint("b").await.unwrap();
    let open = b.circuit.opened(world.store.now(), Duration::from_secs(30));
    assert!(world.store.move_circuit(b.id, b.circuit.epoch, open).await.unwrap());
    world.send("a", 1).await;
    world.receiver.until("the message", |receiver| receiver.count() == 1).await;
    drop(loading);
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn a_change_holds_up_no_message_after_its_reload_however_often_circuits_move() {
    let (world, faulty, engine) = start().await;
    let loading = faulty.loading.lock().await;
    world.store.set_endpoint_paused("b", true).await.unwrap();
    world.send("a", 1).await;
    let mut b = world.store.endpoint("b").await.unwrap();
    for _ in 0..100 {
        let open = b.circuit.opened(world.store.now(), Duration::from_secs(30));
        assert!(world.store.move_circuit(b.id, b.circuit.epoch, open).await.unwrap());
        b.circuit = open;
    }
    assert_eq!(world.receiver.count(), 0, "the change is not loaded yet");
    drop(loading);
    world.receiver.until("the message", |receiver| receiver.count() == 1).await;
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_holds_up_no_message_while_the_node_backs_off_from_its_store() {
    let time = stand_still();
    let (world, faulty, engine) = start().await;
    world.send("a", 1).await;
    until(|| world.receiver.count() == 1).await;
    faulty.fail(true);
    world.tool().send(to("b", 1)).await.unwrap();
    until(|| faulty.refused_to_dispatcher.load(SeqCst) > 0).await;
    world.store.set_endpoint_paused("b", true).await.unwrap();
    world.send("a", 2).await;
    until(|| world.receiver.count() == 2).await;
    faulty.fail(false);
    world.store.set_endpoint_paused("b", false).await.unwrap();
    drop(time);
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn more_arrivals_than_may_be_held_are_handled_before_the_change_is_loaded() {
    let (world, faulty, engine) = start().await;
    let a = world.store.endpoint("a").await.unwrap().id;
    let loading = faulty.loading.lock().await;
    world.store.set_endpoint_paused("b", true).await.unwrap();
    world.send("a", 1).await;
    let arrivals = faulty.arrivals.lock().unwrap().clone().expect("the node has joined");
    for _ in 0..10_000 {
        arrivals.send(Arrival::Pending(a)).unwrap();
    }
    world.receiver.until("the message", |receiver| receiver.count() == 1).await;
    drop(loading);
    world.until_empty().await;
    engine.stop().await;
}
