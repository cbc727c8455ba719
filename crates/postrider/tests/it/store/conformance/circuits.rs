use std::time::Duration;

use postrider::breaker::{Circuit, CircuitName, CircuitState};
use postrider::{Operate, Store};

use crate::store::world::{Harness, World};

const COOLDOWN: Duration = Duration::from_secs(30);

async fn circuit<H: Harness>(world: &World<H>) -> Circuit {
    world.store().endpoint("a").await.unwrap().circuit
}

pub(crate) async fn of_two_nodes_one_moves_a_circuit<H: Harness>(world: World<H>) {
    let read = circuit(&world).await;
    assert_eq!(read.state, CircuitState::Closed);
    let opened = read.opened(world.now(), COOLDOWN);
    assert!(world.store().move_circuit(world.a, read.epoch, opened).await.unwrap());
    assert!(!world.store().move_circuit(world.a, read.epoch, read.closed()).await.unwrap(), "too late");
    assert_eq!(circuit(&world).await, opened);
    let lease = world.in_seconds(20);
    let (mine, theirs) =
        (opened.probing(world.node, lease), opened.probing(world.another_node().await, lease));
    let race = tokio::join!(
        world.store().move_circuit(world.a, opened.epoch, mine),
        world.store().move_circuit(world.a, opened.epoch, theirs),
    );
    assert_ne!(race.0.unwrap(), race.1.unwrap(), "exactly one probes");
}

pub(crate) async fn a_circuit_survives_a_crash_in_every_state<H: Harness>(mut world: World<H>) {
    let mut current = circuit(&world).await;
    let (now, lease, node) = (world.now(), world.in_seconds(20), world.node);
    let moves: [&dyn Fn(Circuit) -> Circuit; 4] = [
        &|circuit| circuit.opened(now, COOLDOWN),
        &|circuit| circuit.probing(node, lease),
        &|circuit| circuit.probe_given_up(),
        &|circuit| circuit.closed(),
    ];
    for step in moves {
        let next = step(current);
        assert!(world.store().move_circuit(world.a, current.epoch, next).await.unwrap());
        world.crash().await;
        assert_eq!(circuit(&world).await, next);
        current = next;
    }
}

pub(crate) async fn every_node_sees_a_move<H: Harness>(world: World<H>) {
    let known = world.store().snapshot(None).await.unwrap().unwrap().version;
    let read = circuit(&world).await;
    let opened = read.opened(world.now(), COOLDOWN);
    world.store().move_circuit(world.a, read.epoch, opened).await.unwrap();
    let snapshot = world.store().snapshot(Some(known)).await.unwrap().expect("news");
    assert_eq!(snapshot.endpoints[0].circuit, opened);
    assert_eq!(world.store().status().await.unwrap().endpoints[0].circuit, CircuitName::Open);
}

pub(crate) async fn a_person_can_reset_a_circuit<H: Harness>(world: World<H>) {
    let read = circuit(&world).await;
    let opened = read.opened(world.now(), COOLDOWN);
    world.store().move_circuit(world.a, read.epoch, opened).await.unwrap();
    world.store().reset_circuit("a").await.unwrap();
    let reset = circuit(&world).await;
    assert_eq!(reset.state, CircuitState::Closed);
    assert!(reset.epoch > opened.epoch, "results begun before it do not count");
    assert!(world.store().reset_circuit("nowhere").await.is_err());
    let events = world.events().await;
    assert_eq!((events[0].kind.as_str(), events[0].subject.as_deref()), ("circuit.reset", Some("a")));
}

pub(crate) async fn moves_of_a_circuit_are_logged<H: Harness>(world: World<H>) {
    let read = circuit(&world).await;
    let opened = read.opened(world.now(), COOLDOWN);
    world.store().move_circuit(world.a, read.epoch, opened).await.unwrap();
    let probing = opened.probing(world.node, world.in_seconds(20));
    world.store().move_circuit(world.a, opened.epoch, probing).await.unwrap();
    world.store().move_circuit(world.a, probing.epoch, probing.closed()).await.unwrap();
    let events = world.events().await;
    let kinds: Vec<&str> = events.iter().rev().map(|event| event.kind.as_str()).collect();
    let circuits: Vec<&str> = kinds.into_iter().filter(|kind| kind.starts_with("circuit.")).collect();
    assert_eq!(circuits, ["circuit.open", "circuit.half_open", "circuit.closed"]);
}
