use std::sync::Arc;

use postrider::error::StoreError;
use postrider::store::{Expired, NextDue, NoDirectClaims, Pick, Waiting, Want};
use postrider::{Invalid, MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, due, join, retry_at, to};

pub(crate) async fn priority_goes_before_due_time_before_id<H: Harness>(mut world: World<H>) {
    let at = |priority, seconds| NewMessage { priority, scheduled_at: Some(seconds), ..to("a") };
    let late = world.send(at(0, world.in_seconds(3))).await;
    let early = world.send(at(0, world.in_seconds(1))).await;
    let urgent_late = world.send(at(10, world.in_seconds(4))).await;
    let middle = world.send(at(5, world.in_seconds(4))).await;
    let urgent_later = world.send(at(10, world.in_seconds(4))).await;
    world.live(10).await;
    assert_eq!(world.claim_ids().await, [urgent_late, urgent_later, middle, early, late]);
}

pub(crate) async fn nothing_is_claimed_before_its_schedule<H: Harness>(mut world: World<H>) {
    let at = world.in_seconds(60);
    let id = world.send(NewMessage { scheduled_at: Some(at), priority: 10, ..to("a") }).await;
    assert_eq!(world.claim_ids().await, []);
    assert_eq!(world.next_due(world.a).await, NextDue::At(at));
    assert_eq!(world.store().waiting().await.unwrap(), [Waiting { endpoint: world.a, due_at: at }]);
    world.live(59).await;
    assert_eq!(world.claim_ids().await, []);
    world.live(1).await;
    assert_eq!(world.claim_ids().await, [id]);
    assert_eq!(world.store().waiting().await.unwrap(), []);
}

pub(crate) async fn nothing_is_claimed_past_its_expiry<H: Harness>(mut world: World<H>) {
    let mut expiring = Vec::new();
    for _ in 0..3 {
        expiring.push(world.send(NewMessage { expires_at: Some(world.in_seconds(5)), ..to("a") }).await);
    }
    let lasting = world.send(to("a")).await;
    world.live(6).await;
    assert_eq!(world.claim_ids().await, [lasting]);
    world.store().upkeep(10).await.unwrap();
    assert_eq!(world.states(&expiring).await, [State::Expired; 3]);
    let story = world.story(expiring[0]).await;
    assert_eq!((story.finished_at, story.attempt_count), (Some(world.now()), 0));
    assert_eq!(world.store().waiting().await.unwrap(), []);
}

/// A node writes a line of each.
pub(crate) async fn what_expires_on_the_way_of_a_claim_is_told<H: Harness>(mut world: World<H>) {
    let expires_at = Some(world.in_seconds(20));
    let message = || NewMessage { expires_at, ..to("a") };
    let lost = world.send(message()).await;
    world.claim_one().await;
    world.crash().await;
    for claim in world.lost().await {
        world.lose(&claim).await;
    }
    let tried = world.send(message()).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    let fresh = world.send(message()).await;
    world.live(5).await;
    let told = |id: MessageId, attempts: u32, a| Expired { id, endpoint: a, attempts };
    let claimed = world.ask(world.node, false, vec![due(world.a, 10)]).await;
    assert_eq!(claimed.expired, [told(tried, 1, world.a), told(fresh, 0, world.a)]);
    let suspects = Want { endpoint: world.a, room: 10, pick: Pick::Suspects(vec![lost]) };
    let claimed = world.ask(world.node, true, vec![suspects]).await;
    assert_eq!((claimed.expired, claimed.claims.len()), (vec![told(lost, 1, world.a)], 0));
    assert_eq!(world.states(&[lost, tried, fresh]).await, [State::Expired; 3]);
    assert_eq!(world.store().upkeep(10).await.unwrap(), [], "each of them once");
}

pub(crate) async fn expiry_is_applied_in_bounded_steps<H: Harness>(world: World<H>) {
    let mut expiring = Vec::new();
    for _ in 0..3 {
        expiring.push(world.send(NewMessage { expires_at: Some(world.in_seconds(5)), ..to("a") }).await);
    }
    world.live(6).await;
    assert_eq!(world.store().upkeep(2).await.unwrap().len(), 2);
    assert_eq!(world.store().upkeep(2).await.unwrap().len(), 1);
    assert_eq!(world.store().upkeep(2).await.unwrap().len(), 0);
    assert_eq!(world.states(&expiring).await, [State::Expired; 3]);
}

pub(crate) async fn what_has_not_expired_is_not_expired<H: Harness>(mut world: World<H>) {
    let id = world.send(NewMessage { expires_at: Some(world.in_seconds(5)), ..to("a") }).await;
    world.live(4).await;
    assert_eq!(world.store().upkeep(10).await.unwrap().len(), 0);
    let ticket = world.claim_one().await;
    world.live(4).await;
    assert_eq!(world.store().upkeep(10).await.unwrap().len(), 0, "a running attempt is left alone");
    assert_eq!(world.state(id).await, State::Processing);
    world.complete(ticket).await;
    assert_eq!(world.state(id).await, State::Completed);
}

pub(crate) async fn an_attempt_counts_from_the_claim_on<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    for attempt in 1..=3 {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.attempt, attempt);
        let story = world.story(id).await;
        assert_eq!((story.state, story.attempt_count, story.due_at), (State::Processing, attempt, None));
        world.retry(ticket, 0).await;
    }
}

pub(crate) async fn room_is_respected_and_the_rest_is_announced<H: Harness>(mut world: World<H>) {
    for _ in 0..5 {
        world.send(to("a")).await;
    }
    let claimed = world.ask(world.node, false, vec![due(world.a, 2)]).await;
    assert_eq!(claimed.claims.len(), 2);
    assert_eq!(claimed.next, [(world.a, NextDue::Now)]);
    assert_eq!(world.ask(world.node, false, vec![due(world.a, 0)]).await.claims.len(), 0);
    assert_eq!(world.claim(world.a, 10).await.len(), 3);
    assert_eq!(world.next_due(world.a).await, NextDue::Nothing);
}

pub(crate) async fn many_endpoints_are_served_at_once<H: Harness>(mut world: World<H>) {
    let (b, c) = (world.endpoint("b", json!({})).await, world.endpoint("c", json!({})).await);
    let at = world.in_seconds(30);
    for name in ["a", "a", "a", "b"] {
        world.send(to(name)).await;
    }
    world.send(NewMessage { scheduled_at: Some(at), ..to("b") }).await;
    let mut waiting = world.store().waiting().await.unwrap();
    waiting.sort_by_key(|waiting| waiting.endpoint);
    let now = world.now();
    assert_eq!(waiting, [Waiting { endpoint: world.a, due_at: now }, Waiting { endpoint: b, due_at: now }]);

    let claimed = world.ask(world.node, false, vec![due(c, 5), due(b, 5), due(world.a, 2)]).await;
    let count = |endpoint| claimed.claims.iter().filter(|claim| claim.message.endpoint == endpoint).count();
    assert_eq!([count(world.a), count(b), count(c)], [2, 1, 0]);
    assert_eq!(claimed.next, [(c, NextDue::Nothing), (b, NextDue::At(at)), (world.a, NextDue::Now)]);
    let fences: Vec<_> = claimed.claims.iter().map(|claim| claim.fence.node).collect();
    assert_eq!(fences, [world.node; 3]);
}

pub(crate) async fn two_nodes_never_claim_the_same_message<H: Harness>(mut world: World<H>) {
    let other = world.another_node().await;
    for _ in 0..20 {
        world.send(to("a")).await;
    }
    let mut ids: Vec<MessageId> = Vec::new();
    for _ in 0..5 {
        for node in [world.node, other] {
            ids.extend(world.claim_as(node, world.a, 3).await.iter().map(|ticket| ticket.id));
        }
    }
    assert_eq!(ids.len(), 20);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 20);
}

pub(crate) async fn a_probe_is_the_due_message_with_the_fewest_attempts<H: Harness>(mut world: World<H>) {
    let tried = world.send(NewMessage { priority: 10, ..to("a") }).await;
    for _ in 0..2 {
        let ticket = world.claim_one().await;
        world.retry(ticket, 0).await;
    }
    let fresh = world.send(to("a")).await;
    world.send(NewMessage { scheduled_at: Some(world.in_seconds(60)), ..to("a") }).await;
    let probe = |endpoint| Want { endpoint, room: 10, pick: Pick::Probe };
    let claimed = world.ask(world.node, false, vec![probe(world.a)]).await;
    let ids: Vec<MessageId> = claimed.claims.iter().map(|claim| claim.message.id).collect();
    assert_eq!(ids, [fresh], "one, and not the one that was tried");
    let older = world.send(to("a")).await;
    let claims = world.claim(world.a, 2).await;
    assert_eq!(claims.iter().map(|claim| claim.id).collect::<Vec<_>>(), [tried, older]);
    for claim in claims {
        world.retry(claim, 0).await;
    }
    let newer = world.send(to("a")).await;
    let claimed = world.ask(world.node, false, vec![probe(world.a)]).await;
    assert_eq!(claimed.claims[0].message.id, newer, "though others of its priority were due before it");
    let claimed = world.ask(world.node, false, vec![probe(world.a)]).await;
    assert_eq!(claimed.claims[0].message.id, older);
}

pub(crate) async fn a_probe_is_a_suspect_when_nothing_else_is_due<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let silent = world.another_node().await;
    world.claim_as(silent, world.a, 1).await;
    let lost = world.lost().await;
    world.lose(&lost[0]).await;
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let probing = circuit.probing(world.node, world.in_seconds(20));
    assert!(world.store().move_circuit(world.a, circuit.epoch, probing).await.unwrap());
    let probe = Want { endpoint: world.a, room: 1, pick: Pick::Probe };
    let claimed = world.ask(world.node, false, vec![probe]).await;
    let ids: Vec<MessageId> = claimed.claims.iter().map(|claim| claim.message.id).collect();
    assert_eq!(ids, [id], "or the circuit would stay half-open for ever");
}

pub(crate) async fn a_probe_that_finds_nothing_free_does_not_ask_again_at_once<H: Harness>(
    mut world: World<H>,
) {
    world.send(to("a")).await;
    let other = world.another_node().await;
    assert_eq!(world.claim_as(other, world.a, 1).await.len(), 1);
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let probing = circuit.probing(world.node, world.in_seconds(20));
    assert!(world.store().move_circuit(world.a, circuit.epoch, probing).await.unwrap());
    let probe = Want { endpoint: world.a, room: 1, pick: Pick::Probe };
    let claimed = world.ask(world.node, false, vec![probe]).await;
    assert!(claimed.claims.is_empty(), "it is in another node's hands");
    let waits = match claimed.next[0].1 {
        NextDue::Nothing => true,
        NextDue::At(at) => at > world.now(),
        NextDue::Now => false,
    };
    assert!(waits, "{:?}", claimed.next);
}

pub(crate) async fn an_open_circuit_costs_nothing<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let before = world.story(id).await;
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let opened = circuit.opened(world.now(), std::time::Duration::from_secs(30));
    assert!(world.store().move_circuit(world.a, circuit.epoch, opened).await.unwrap());
    assert_eq!(world.claim_ids().await, []);
    let after = world.story(id).await;
    assert_eq!((after.state, after.attempt_count, after.due_at), (before.state, 0, before.due_at));
    let probing = opened.probing(world.node, world.in_seconds(60));
    assert!(world.store().move_circuit(world.a, opened.epoch, probing).await.unwrap());
    assert_eq!(world.claim_ids().await, [], "only the probe goes");
    let probe = Want { endpoint: world.a, room: 1, pick: Pick::Probe };
    assert_eq!(world.ask(world.node, false, vec![probe]).await.claims[0].message.id, id);
}

pub(crate) async fn paused_and_disabled_endpoints_give_nothing<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    world.store().set_endpoint_paused("a", true).await.unwrap();
    assert_eq!(world.claim_ids().await, []);
    world.store().set_endpoint_paused("a", false).await.unwrap();
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    assert_eq!(world.claim_ids().await, []);
    world.store().set_endpoint_enabled("a", true).await.unwrap();
    world.store().pause("maintenance").await.unwrap();
    assert_eq!(world.claim_ids().await, []);
    let snapshot = world.store().snapshot(None).await.unwrap().unwrap();
    assert_eq!(snapshot.paused.as_deref(), Some("maintenance"));
    world.store().resume().await.unwrap();
    assert_eq!(world.story(id).await.attempt_count, 0, "waiting costs no attempt");
    assert_eq!(world.claim_ids().await, [id]);
}

pub(crate) async fn a_rate_limit_holds_over_all_nodes<H: Harness>(mut world: World<H>) {
    let limit = json!({"rate_limit": {"limit": 2, "interval": "second", "burst": 3}});
    let limited = world.endpoint("limited", limit).await;
    let other = world.another_node().await;
    for _ in 0..10 {
        world.send(to("limited")).await;
    }
    assert_eq!(world.claim_as(world.node, limited, 2).await.len(), 2);
    assert_eq!(world.claim_as(other, limited, 10).await.len(), 1, "one of the burst is left");
    assert_eq!(world.claim_as(world.node, limited, 10).await.len(), 0);
    assert!(matches!(world.next_due(limited).await, NextDue::At(at) if at <= world.in_seconds(1)));
    world.live(1).await;
    assert_eq!(world.claim_as(other, limited, 10).await.len(), 2);
    assert_eq!(world.claim_as(world.node, limited, 10).await.len(), 0);
}

pub(crate) async fn a_rate_is_not_used_up_by_looking<H: Harness>(mut world: World<H>) {
    let limit = json!({"rate_limit": {"limit": 2, "interval": "hour"}});
    let limited = world.endpoint("limited", limit).await;
    for _ in 0..5 {
        assert_eq!(world.claim(limited, 10).await.len(), 0);
    }
    for _ in 0..3 {
        world.send(to("limited")).await;
    }
    assert_eq!(world.claim(limited, 10).await.len(), 2);
}

pub(crate) async fn a_receiver_that_asks_for_rest_holds_its_endpoint<H: Harness>(mut world: World<H>) {
    let (first, second) = (world.send(to("a")).await, world.send(to("a")).await);
    let ticket = world.claim(world.a, 1).await[0];
    let until = world.in_seconds(20);
    let end = ticket.attempted(world.now(), retry_at(world.in_seconds(30)));
    world.end_and_hold(ticket, end, Some(until)).await;
    let endpoint = world.store().endpoint("a").await.unwrap();
    assert_eq!(endpoint.held_until, Some(until));
    let snapshot = world.store().snapshot(None).await.unwrap().unwrap();
    assert_eq!(snapshot.endpoints[0].held_until, Some(until), "every node hears of it");
    assert_eq!(world.claim_ids().await, []);
    world.live(20).await;
    assert_eq!(world.claim_ids().await, [second]);
    world.live(10).await;
    assert_eq!(world.claim_ids().await, [first]);
}

pub(crate) async fn only_a_node_that_joined_can_claim<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let (stranger, _arrivals) = join(world.store(), Arc::new(NoDirectClaims)).await;
    world.store().leave(stranger).await.unwrap();
    let request = postrider::store::ClaimRequest {
        node: stranger,
        batch: 1,
        wants: vec![due(world.a, 1)],
        alone: false,
    };
    let refused = world.store().claim(request).await.expect_err("it left");
    assert!(matches!(refused, StoreError::Conflict(_)), "{refused:?}");
    assert_eq!(world.claim_ids().await, [id]);
}

pub(crate) async fn who_is_rescheduled_to_the_past_is_due_now<H: Harness>(mut world: World<H>) {
    let first = world.send(to("a")).await;
    let second = world.send(to("a")).await;
    world.advance(1);
    world.store().reschedule(second, world.now() - std::time::Duration::from_secs(3600)).await.unwrap();
    assert_eq!(world.story(second).await.due_at, Some(world.now()));
    assert_eq!(world.claim_ids().await, [first, second]);
}

pub(crate) async fn nobody_is_rescheduled_past_its_expiry<H: Harness>(world: World<H>) {
    let id = world.send(NewMessage { expires_at: Some(world.in_seconds(60)), ..to("a") }).await;
    for seconds in [60, 61] {
        let refused = world.store().reschedule(id, world.in_seconds(seconds)).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(Invalid { field, .. }) if field == "at"), "{refused}");
    }
    world.store().reschedule(id, world.in_seconds(59)).await.unwrap();
}

pub(crate) async fn only_a_pending_message_is_cancelled_or_rescheduled<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let at = world.in_seconds(30);
    world.store().reschedule(id, at).await.unwrap();
    assert_eq!(world.story(id).await.due_at, Some(at));
    assert_eq!(world.claim_ids().await, []);
    world.live(30).await;
    let ticket = world.claim_one().await;
    let refused = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::Conflict(_))), "{result:?}")
    };
    refused(world.store().cancel(id).await);
    refused(world.store().reschedule(id, at).await);
    world.complete(ticket).await;
    refused(world.store().cancel(id).await);
    refused(world.store().reschedule(id, at).await);
    assert_eq!(world.state(id).await, State::Completed);

    let cancelled = world.send(to("a")).await;
    world.store().cancel(cancelled).await.unwrap();
    refused(world.store().cancel(cancelled).await);
    assert_eq!(world.state(cancelled).await, State::Cancelled);
    assert_eq!(world.claim_ids().await, []);
    let nobody = world.store().cancel(MessageId(i64::MAX)).await.unwrap_err();
    assert!(matches!(nobody, StoreError::Unknown { what: "message", .. }), "{nobody:?}");
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn a_probe_waits_too_when_the_receiver_asked_for_rest<H: Harness>(mut world: World<H>) {
    world.send(to("a")).await;
    world.send(to("a")).await;
    let ticket = world.claim(world.a, 1).await[0];
    let until = world.in_seconds(20);
    let end = ticket.attempted(world.now(), retry_at(world.in_seconds(30)));
    world.end_and_hold(ticket, end, Some(until)).await;
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let probing = circuit.probing(world.node, world.in_seconds(60));
    assert!(world.store().move_circuit(world.a, circuit.epoch, probing).await.unwrap());
    let probe = vec![Want { endpoint: world.a, room: 1, pick: Pick::Probe }];
    let claimed = world.ask(world.node, false, probe.clone()).await;
    assert!(claimed.claims.is_empty());
    assert_eq!(claimed.next, [(world.a, NextDue::At(until))]);
    world.live(20).await;
    assert_eq!(world.ask(world.node, false, probe).await.claims.len(), 1);
}

pub(crate) async fn a_message_that_dies_of_a_busy_receiver_holds_the_endpoint_all_the_same<H: Harness>(
    mut world: World<H>,
) {
    world.send(to("a")).await;
    let next = world.send(to("a")).await;
    let ticket = world.claim(world.a, 1).await[0];
    let until = world.in_seconds(20);
    let end = ticket.attempted(world.now(), crate::store::world::DEAD);
    world.end_and_hold(ticket, end, Some(until)).await;
    assert_eq!(world.claim_ids().await, []);
    world.live(20).await;
    assert_eq!(world.claim_ids().await, [next]);
}
