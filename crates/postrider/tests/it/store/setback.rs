//! The wall clock of a SQLite store is set back by days: nothing waits longer than its policy.

use std::time::Duration;

use jiff::Timestamp;
use postrider::breaker::CircuitState;
use postrider::store::{End, NextDue};
use postrider::verdict::Verdict;
use postrider::{MessageId, NewMessage, Operate, State, Store};

use super::sqlite::Sqlite;
use super::world::{Ticket, World, retry_at, to};

const DAY: u64 = 86_400;

/// Any transaction of the store sees what the clock says now.
async fn look(world: &World<Sqlite>) {
    for _ in 0..5 {
        world.store().snapshot(None).await.unwrap();
    }
}

async fn due_at(world: &World<Sqlite>, id: MessageId) -> Timestamp {
    world.story(id).await.due_at.expect("it is pending")
}

/// Fails with this status, and is due again after `seconds`: by its policy, or because its receiver `asked` for that.
async fn fail(world: &World<Sqlite>, ticket: Ticket, status: u16, seconds: u64, asked: bool) {
    let mut record = ticket.record(world.now(), &retry_at(world.now()));
    record.response_status = Some(status);
    let verdict = Verdict::Retry { due_at: world.in_seconds(seconds), asked };
    world.end(ticket, End::Attempted { verdict, record }).await;
}

#[tokio::test]
async fn after_the_clock_was_set_back_nothing_waits_longer_than_its_policy() {
    let mut world = World::<Sqlite>::start().await;
    let retried = world.send(to("a").ordering_key("k")).await;
    let asked = world.send(to("a")).await;
    let tickets = world.claim(world.a, 2).await;
    fail(&world, tickets[0], 500, 10, false).await;
    fail(&world, tickets[1], 503, 80_000, true).await;
    let behind = world.send(to("a").ordering_key("k")).await;
    let fresh = world.send(to("a")).await;
    let scheduled_at = world.in_seconds(100 * DAY);
    let scheduled = world.send(NewMessage { scheduled_at: Some(scheduled_at), ..to("a") }).await;
    let expires_at = world.in_seconds(3600);
    let expiring = world.send(NewMessage { expires_at: Some(expires_at), ..to("a") }).await;

    world.harness().set_back(5);
    look(&world).await;
    let now = world.now();
    assert_eq!(due_at(&world, retried).await, now + Duration::from_secs(10), "as after its first attempt");
    assert_eq!(
        due_at(&world, asked).await,
        now + Duration::from_secs(10),
        "no receiver can ask for that much"
    );
    for id in [behind, fresh, expiring] {
        assert_eq!(due_at(&world, id).await, now);
    }
    assert_eq!(due_at(&world, scheduled).await, scheduled_at);
    assert_eq!(world.story(expiring).await.expires_at, Some(expires_at));
    assert_eq!(world.claim_ids().await, [fresh, expiring]);
    world.live(10).await;
    assert_eq!(world.claim_ids().await, [retried, asked]);
}

#[tokio::test]
async fn what_a_receiver_asked_for_is_left_alone() {
    let mut world = World::<Sqlite>::start().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    fail(&world, ticket, 429, 3600, true).await;
    let asked_for = due_at(&world, id).await;
    world.harness().clock_back_by(Duration::from_secs(3600));
    look(&world).await;
    assert_eq!(due_at(&world, id).await, asked_for, "within a day it may have asked for that");
}

/// A busy receiver that did not say when to come back asked for nothing.
#[tokio::test]
async fn a_busy_answer_without_retry_after_is_pulled_in() {
    for status in [429, 503] {
        let mut world = World::<Sqlite>::start().await;
        let id = world.send(to("a")).await;
        let ticket = world.claim_one().await;
        fail(&world, ticket, status, 10, false).await;
        world.harness().clock_back_by(Duration::from_secs(3600));
        look(&world).await;
        assert_eq!(due_at(&world, id).await, world.in_seconds(10), "after {status}");
    }
}

/// Asked once is not asked for ever: a later retry by the policy is judged by the policy.
#[tokio::test]
async fn what_a_receiver_asked_for_does_not_outlast_its_attempt() {
    let mut world = World::<Sqlite>::start().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    fail(&world, ticket, 503, 60, true).await;
    world.live(60).await;
    let ticket = world.claim_one().await;
    fail(&world, ticket, 503, 20, false).await;
    world.harness().clock_back_by(Duration::from_secs(3600));
    look(&world).await;
    assert_eq!(due_at(&world, id).await, world.in_seconds(20));
}

#[tokio::test]
async fn a_clock_that_was_set_back_while_no_node_ran_is_noticed_at_the_start() {
    let mut world = World::<Sqlite>::start().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    fail(&world, ticket, 500, 10, false).await;
    world.store().heartbeat(world.node).await.unwrap();
    world.harness().set_back(3);
    world.crash().await;
    look(&world).await;
    assert_eq!(due_at(&world, id).await, world.in_seconds(10));
}

#[tokio::test]
async fn a_clock_that_is_corrected_by_a_minute_changes_nothing() {
    let mut world = World::<Sqlite>::start().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 500).await;
    let before = due_at(&world, id).await;
    world.harness().clock_back_by(Duration::from_secs(50));
    look(&world).await;
    world.crash().await;
    look(&world).await;
    assert_eq!(due_at(&world, id).await, before);
}

#[tokio::test]
async fn circuits_holds_and_claims_do_not_outlast_their_time() {
    let mut world = World::<Sqlite>::start().await;
    let [first, second] = [world.send(to("a")).await, world.send(to("a")).await];
    let tickets = world.claim(world.a, 2).await;
    let end = tickets[0].attempted(world.now(), retry_at(world.in_seconds(10)));
    world.end_and_hold(tickets[0], end, Some(world.in_seconds(20))).await;
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let opened = circuit.opened(world.now(), Duration::from_secs(30));
    assert!(world.store().move_circuit(world.a, circuit.epoch, opened).await.unwrap());

    world.harness().set_back(2);
    look(&world).await;
    let endpoint = world.store().endpoint("a").await.unwrap();
    assert_eq!(endpoint.circuit.state, CircuitState::Open { until: world.in_seconds(30) });
    assert!(endpoint.circuit.epoch > opened.epoch, "nodes take it over");
    assert!(endpoint.held_until.is_some_and(|until| until <= world.in_seconds(300)));
    assert_eq!(world.next_due(world.a).await, NextDue::At(world.in_seconds(30)));
    // What never ends is still found.
    world.live(301).await;
    let lost: Vec<_> = world.store().lost_claims(10).await.unwrap().iter().map(|lost| lost.id).collect();
    assert_eq!(lost, [second]);
    assert_eq!(world.state(first).await, State::Pending);
}

#[tokio::test]
async fn a_reserved_key_is_free_again_after_its_time() {
    let mut world = World::<Sqlite>::start().await;
    world.configure("idempotency_retention", 600).await;
    let message = || to("a").idempotency_key("i");
    world.send(message()).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.harness().set_back(7);
    look(&world).await;
    assert!(world.store().send(message()).await.unwrap().duplicate);
    world.live(601).await;
    assert!(!world.store().send(message()).await.unwrap().duplicate);
}
