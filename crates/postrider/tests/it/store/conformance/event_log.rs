use std::time::Duration;

use postrider::endpoint::EndpointChange;
use postrider::store::{End, Redrive};
use postrider::verdict::{DeadReason, Verdict};
use postrider::{NewMessage, Operate, Store};
use serde_json::json;

use crate::log_lines::LogLines;
use crate::store::world::{DEAD, Harness, World, new_endpoint, to};

/// What was logged since, oldest first: `kind subject`.
async fn logged_since<H: Harness>(world: &World<H>, known: usize) -> Vec<String> {
    let mut events = world.events().await;
    events.reverse();
    let told = |event: postrider::store::EventRecord| match event.subject {
        Some(subject) => format!("{} {subject}", event.kind),
        None => event.kind,
    };
    events.into_iter().skip(known).map(told).collect()
}

pub(crate) async fn what_people_and_receivers_do_to_an_endpoint_is_logged<H: Harness>(mut world: World<H>) {
    let known = world.events().await.len();
    let b = world.endpoint("b", json!({})).await;
    let change = EndpointChange { options: Some(json!({"max_in_flight": 1})), ..EndpointChange::default() };
    world.store().alter_endpoint("b", change).await.unwrap();
    for on in [true, false] {
        world.store().set_endpoint_paused("b", on).await.unwrap();
        world.store().set_endpoint_enabled("b", !on).await.unwrap();
    }
    let closed = world.store().endpoint("b").await.unwrap().circuit;
    let open = closed.opened(world.now(), Duration::from_secs(30));
    assert!(world.store().move_circuit(b, closed.epoch, open).await.unwrap());
    let half_open = open.probing(world.node, world.in_seconds(20));
    assert!(world.store().move_circuit(b, open.epoch, half_open).await.unwrap());
    world.store().reset_circuit("b").await.unwrap();
    world.send(NewMessage { endpoint: "b".into(), ..to("a") }).await;
    let ticket = world.claim(b, 1).await[0];
    let gone = Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: true };
    world.end(ticket, ticket.attempted(world.now(), gone)).await;
    world.store().drop_endpoint("b", true).await.unwrap();
    assert_eq!(
        logged_since(&world, known).await,
        [
            "endpoint.created b",
            "endpoint.changed b",
            "endpoint.paused b",
            "endpoint.disabled b",
            "endpoint.resumed b",
            "endpoint.enabled b",
            "circuit.open b",
            "circuit.half_open b",
            "circuit.reset b",
            "endpoint.disabled b",
            "endpoint.dropped b",
        ]
    );
    let events = world.events().await;
    let detail = |kind: &str| &events.iter().find(|event| event.kind == kind).expect(kind).detail;
    assert_eq!(detail("endpoint.disabled"), &json!({ "by": "gone" }), "the latest");
    assert_eq!(detail("endpoint.changed"), &json!({ "fields": ["options"] }), "names, not values");
}

pub(crate) async fn what_is_done_to_the_whole_store_is_logged<H: Harness>(mut world: World<H>) {
    let known = world.events().await.len();
    world.configure("max_queue_size", 7).await;
    world.store().pause("upgrade").await.unwrap();
    world.store().resume().await.unwrap();
    let letter = world.send_to_death(to("a")).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    let ticket = world.claim_one().await;
    world.end(ticket, ticket.attempted(world.now(), DEAD)).await;
    world.store().erase(ticket.id).await.unwrap();
    world.advance(31 * 86_400 - 60);
    // The event log itself goes after 30 days, too.
    world.configure("event_log_retention_days", 365).await;
    world.clean_up().await;
    let erased = format!("message.erased {}", ticket.id);
    let kinds = logged_since(&world, known).await;
    let months = |kind: &&String| !kind.starts_with("archive.");
    assert_eq!(
        kinds.iter().filter(months).collect::<Vec<_>>(),
        [
            "settings.changed",
            "system.paused",
            "system.resumed",
            "redrive",
            &*erased,
            "settings.changed",
            "dlq.evicted",
        ]
    );
    let events = world.events().await;
    let detail = |kind: &str| &events.iter().find(|event| event.kind == kind).expect(kind).detail;
    assert_eq!(detail("dlq.evicted")["rule"], "dlq_retention_days");
    assert_eq!(detail("system.paused"), &json!({ "reason": "upgrade" }));
    assert_eq!(detail("redrive")["messages"], 1);
}

pub(crate) async fn keys_that_people_release_and_nodes_that_come_and_go_are_logged<H: Harness>(
    mut world: World<H>,
) {
    world.store().create_endpoint(new_endpoint("strict", json!({"on_dead": "hold"}))).await.unwrap();
    let keyed = NewMessage { endpoint: "strict".into(), ..to("a").ordering_key("k") };
    world.send_to_death(keyed).await;
    let known = world.events().await.len();
    world.store().release_key("k", None).await.unwrap();
    let (leaving, silent) = (world.another_node().await, world.another_node().await);
    world.send(to("a")).await;
    let ticket = world.claim_as(silent, world.a, 1).await[0];
    world.store().leave(leaving).await.unwrap();
    world.lost().await;
    assert_eq!(
        logged_since(&world, known).await,
        ["key.released k", "node.joined test", "node.joined test", "node.left test", "node.lost test"]
    );
    world.end(ticket, End::Released).await;
}

pub(crate) async fn cancelling_leaves_a_line_in_the_log<H: Harness>(world: World<H>) {
    let (logged, _guard) = LogLines::gather();
    let id = world.send(to("a")).await;
    world.store().cancel(id).await.unwrap();
    assert!(world.store().cancel(id).await.is_err(), "only once");
    let mut lines = logged.read();
    lines.retain(|line| line["target"] == postrider::outcome_log::OUTCOME);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let fields = ["level", "message", "message_id", "state"].map(|field| lines[0][field].clone());
    assert_eq!(fields, [json!("INFO"), json!("A message was cancelled"), json!(id), json!("cancelled")]);
}
