//! Changes of endpoints in transactions that stay open, and settlements that cross: nodes go on.

use std::future::Future;
use std::time::Duration;

use jiff::Timestamp;
use postrider::breaker::CircuitName;
use postrider::endpoint::{DisabledBy, EndpointId};
use postrider::store::Settlement;
use postrider::tokio_postgres::{Client, Transaction};
use postrider::verdict::{DeadReason, Verdict};
use postrider::{Operate, State, Store};
use serde_json::json;

use super::isolation::until_waiting;
use super::{Postgres, connect};
use crate::store::world::{Ticket, World, due, retry_at, to};

const COOLDOWN: Duration = Duration::from_secs(30);
const GONE: Verdict = Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: true };

/// Far less than the transaction beside it would take.
async fn at_once<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), work).await.expect("a node waits for nobody")
}

fn settlement(now: Timestamp, ticket: Ticket, verdict: Verdict, hold: Option<Timestamp>) -> Settlement {
    let Ticket { id, endpoint, fence, .. } = ticket;
    Settlement { id, endpoint, fence, end: ticket.attempted(now, verdict), hold_endpoint_until: hold }
}

/// With endpoints `limited` and `gone`, and two messages for each.
async fn start() -> (World<Postgres>, [EndpointId; 2]) {
    let world = World::<Postgres>::start().await;
    let limit = json!({ "rate_limit": { "limit": 1, "interval": "minute" } });
    let endpoints = [world.endpoint("limited", limit).await, world.endpoint("gone", json!({})).await];
    for name in ["a", "limited", "gone"] {
        world.store().send_batch(vec![to(name); 2]).await.unwrap();
    }
    (world, endpoints)
}

/// A transaction of a person that is not yet committed.
async fn in_the_middle_of(world: &World<Postgres>, change: &str) -> Client {
    let person = connect(world).await;
    person.batch_execute(&format!("BEGIN; SELECT postrider.{change}")).await.unwrap();
    person
}

async fn disabled(world: &World<Postgres>) -> usize {
    world.events().await.iter().filter(|event| event.kind == "endpoint.disabled").count()
}

/// Claims for all, and one receiver asks for rest, one is gone, and every circuit opens.
async fn node_goes_on(world: &mut World<Postgres>, [limited, gone]: [EndpointId; 2]) {
    let wants = vec![due(world.a, 1), due(limited, 2), due(gone, 1)];
    let claimed = at_once(world.ask(world.node, false, wants)).await;
    let tickets: Vec<Ticket> = claimed.claims.iter().map(Ticket::of).collect();
    assert_eq!(tickets.iter().map(|ticket| ticket.endpoint).collect::<Vec<_>>(), [world.a, limited, gone]);
    let (now, until) = (world.now(), world.in_seconds(20));
    let settled = at_once(world.store().settle(vec![
        settlement(now, tickets[2], GONE, None),
        settlement(now, tickets[1], retry_at(until), Some(until)),
        settlement(now, tickets[0], retry_at(until), Some(until)),
    ]));
    assert_eq!(settled.await.unwrap().len(), 3);
    for name in ["a", "limited"] {
        let endpoint = world.store().endpoint(name).await.unwrap();
        assert_eq!(endpoint.held_until, Some(until));
        let opened = endpoint.circuit.opened(now, COOLDOWN);
        let moved = at_once(world.store().move_circuit(endpoint.id, endpoint.circuit.epoch, opened)).await;
        assert!(moved.unwrap(), "the circuit of {name}");
    }
    assert_eq!(world.store().endpoint("gone").await.unwrap().disabled, Some(DisabledBy::Gone));
    assert!(at_once(world.claim(gone, 1)).await.is_empty(), "what is left for it is kept");
    at_once(world.store().upkeep(10)).await.unwrap();
}

#[tokio::test]
async fn nodes_go_on_while_a_change_is_not_yet_committed() {
    for change in [
        r#"alter_endpoint('limited', options => '{"rate_limit": {"limit": 9, "interval": "minute"}}')"#,
        r#"create_endpoint('new', 'http', '{"url": "https://example.com"}')"#,
        "disable_endpoint('a')",
        "pause_endpoint('gone')",
        "subscribe('*', 'gone')",
        "reset_circuit_breaker('gone')",
        "configure('node_lease', '20')",
        "pause('for a while')",
    ] {
        let (mut world, endpoints) = start().await;
        let known = world.store().snapshot(None).await.unwrap().unwrap().version;
        let person = in_the_middle_of(&world, change).await;
        node_goes_on(&mut world, endpoints).await;
        let snapshot = world.store().snapshot(Some(known)).await.unwrap().expect("circuits moved");
        let open =
            |name: &str| snapshot.endpoints.iter().find(|endpoint| *endpoint.name == *name).unwrap().circuit;
        assert_eq!(["a", "limited"].map(|name| open(name).state.name()), [CircuitName::Open; 2]);
        person.batch_execute("ROLLBACK").await.unwrap();
        world.store().upkeep(10).await.unwrap();
        let known = Some(snapshot.version);
        assert!(world.store().snapshot(known).await.unwrap().is_some(), "nodes hear that it is disabled");
        world.store().upkeep(10).await.unwrap();
        assert_eq!(disabled(&world).await, 1, "{change}");
    }
}

#[tokio::test]
async fn nodes_go_on_while_everything_is_resumed() {
    let (mut world, endpoints) = start().await;
    let person = connect(&world).await;
    let resume = "BEGIN; SELECT postrider.pause('for a while'); SELECT postrider.resume()";
    person.batch_execute(resume).await.unwrap();
    node_goes_on(&mut world, endpoints).await;
    person.batch_execute("COMMIT").await.unwrap();
    world.store().upkeep(10).await.unwrap();
    assert_eq!(disabled(&world).await, 1);
}

#[tokio::test]
async fn whoever_enables_an_endpoint_has_the_last_word_on_what_was_gone_before() {
    let (mut world, [_, gone]) = start().await;
    let person = in_the_middle_of(&world, "pause_endpoint('a')").await;
    let ticket = world.claim(gone, 1).await[0];
    at_once(world.settle(ticket, GONE)).await;
    person.batch_execute("COMMIT").await.unwrap();
    world.store().set_endpoint_enabled("gone", true).await.unwrap();
    world.store().upkeep(10).await.unwrap();
    assert_eq!(world.store().endpoint("gone").await.unwrap().disabled, None);
    assert_eq!(world.claim(gone, 1).await.len(), 1);
    let events = world.events().await;
    let kinds: Vec<&str> = events.iter().take(2).map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["endpoint.enabled", "endpoint.disabled"], "latest first");
}

#[tokio::test]
async fn a_circuit_that_somebody_is_resetting_is_tried_again_later() {
    let world = World::<Postgres>::start().await;
    let person = in_the_middle_of(&world, "reset_circuit_breaker('a')").await;
    let move_it = async || {
        let circuit = world.store().endpoint("a").await.unwrap().circuit;
        let opened = circuit.opened(world.now(), COOLDOWN);
        at_once(world.store().move_circuit(world.a, circuit.epoch, opened)).await.unwrap()
    };
    assert!(!move_it().await);
    person.batch_execute("COMMIT").await.unwrap();
    assert!(move_it().await);
}

async fn settle_and_hold(node: &Transaction<'_>, ticket: Ticket) {
    let settle =
        "SELECT postrider._settle($1, NULL, ARRAY[ROW($2, $3, $1, $4, 'retry', postrider._now(), NULL, false,
                    postrider._now() + interval '20 s', NULL)]::postrider._settlement[], '{}', NULL, false)";
    let (of_node, batch) = (&ticket.fence.node.0, &ticket.fence.batch);
    at_once(node.query(settle, &[of_node, &ticket.id.0, &ticket.endpoint.0, batch])).await.unwrap();
}

#[tokio::test]
async fn settlements_that_hold_the_same_endpoints_in_opposite_order_do_not_wait() {
    let mut world = World::<Postgres>::start().await;
    let b = world.endpoint("b", json!({})).await;
    let mut tickets = Vec::new();
    for (name, id) in [("a", world.a), ("b", b), ("b", b), ("a", world.a)] {
        world.send(to(name)).await;
        tickets.extend(world.claim(id, 1).await);
    }
    let (mut one, mut other) = (connect(&world).await, connect(&world).await);
    let (one, other) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
    settle_and_hold(&one, tickets[0]).await;
    settle_and_hold(&other, tickets[2]).await;
    settle_and_hold(&one, tickets[1]).await;
    settle_and_hold(&other, tickets[3]).await;
    one.commit().await.unwrap();
    other.commit().await.unwrap();
    for name in ["a", "b"] {
        assert_eq!(world.store().endpoint(name).await.unwrap().held_until, Some(world.in_seconds(20)));
    }
}

#[tokio::test]
async fn settlements_and_a_forced_drop_never_wait_in_a_circle() {
    let mut world = World::<Postgres>::start().await;
    world.store().send_batch(vec![to("a"); 3]).await.unwrap();
    let tickets = world.claim(world.a, 3).await;
    let (mut holder, person, onlooker) =
        (connect(&world).await, connect(&world).await, connect(&world).await);
    let held = holder.transaction().await.unwrap();
    held.query("SELECT FROM postrider.queue WHERE id = $1 FOR UPDATE", &[&tickets[1].id.0]).await.unwrap();
    let now = world.now();
    let settle = world.store().settle(vec![
        settlement(now, tickets[2], retry_at(now), None),
        settlement(now, tickets[1], retry_at(now), None),
        settlement(now, tickets[0], GONE, None),
    ]);
    let drop = async {
        until_waiting(&onlooker, 1).await;
        person.batch_execute("SELECT postrider.drop_endpoint('a', true)").await
    };
    let let_them_go = async {
        until_waiting(&onlooker, 2).await;
        held.rollback().await.unwrap();
    };
    let (settled, dropped, ()) = tokio::join!(settle, drop, let_them_go);
    settled.unwrap();
    dropped.unwrap();
    let states = world.states(&[tickets[0].id, tickets[1].id, tickets[2].id]).await;
    assert_eq!(states, [State::Dead, State::Cancelled, State::Cancelled]);
}
