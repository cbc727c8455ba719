use std::time::Duration;

use postrider::endpoint::EndpointChange;
use postrider::error::StoreError;
use postrider::store::{Effect, End, NextDue, Redrive};
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{DEAD, Harness, Ticket, World, to};

pub(crate) async fn a_key_is_delivered_in_the_order_it_was_sent<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 4).await;
    for (at, id) in ids.iter().enumerate() {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, *id);
        assert_eq!(world.claim_ids().await, [], "one at a time");
        let settled = world.complete(ticket).await;
        assert_eq!(settled.unblocked, (at + 1 < ids.len()).then_some(world.a));
    }
}

pub(crate) async fn a_batch_of_one_key_is_delivered_in_its_order<H: Harness>(mut world: World<H>) {
    let sent = world.store().send_batch(vec![to("a").ordering_key("k"); 3]).await.unwrap();
    for sent in sent {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, sent.id);
        world.complete(ticket).await;
    }
}

pub(crate) async fn a_scheduled_head_holds_its_key_but_no_other<H: Harness>(mut world: World<H>) {
    let at = world.in_seconds(30);
    let head = world.send(NewMessage { scheduled_at: Some(at), ..to("a").ordering_key("k") }).await;
    let next = world.send(NewMessage { priority: 10, ..to("a").ordering_key("k") }).await;
    let other = world.send(to("a").ordering_key("other")).await;
    let unkeyed = world.send(to("a")).await;
    assert_eq!(world.claim_ids().await, [other, unkeyed]);
    assert_eq!(world.next_due(world.a).await, NextDue::At(at));
    world.live(30).await;
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, head);
    world.complete(ticket).await;
    assert_eq!(world.claim_ids().await, [next]);
}

pub(crate) async fn a_retrying_head_holds_its_key_but_no_other<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 2).await;
    let other = world.send(to("a").ordering_key("other")).await;
    let tickets = world.claim(world.a, 1).await;
    let settled = world.retry(tickets[0], 30).await;
    assert_eq!((settled.effect, settled.unblocked), (Effect::Applied(State::Pending), None));
    assert_eq!(world.claim_ids().await, [other]);
    world.live(30).await;
    let ticket = world.claim_one().await;
    assert_eq!((ticket.id, ticket.attempt), (ids[0], 2));
    world.die(ticket).await;
    assert_eq!(world.claim_ids().await, [ids[1]], "the next one goes on by default");
}

pub(crate) async fn a_released_head_stays_the_head<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 3).await;
    for _ in 0..2 {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, ids[0]);
        assert_eq!(world.end(ticket, End::Released).await.unblocked, None);
    }
    assert_eq!(world.claim_ids().await, [ids[0]]);
}

pub(crate) async fn the_head_stands_for_its_key<H: Harness>(mut world: World<H>) {
    let low = world.send(to("a").ordering_key("k")).await;
    let urgent_behind = world.send(NewMessage { priority: 10, ..to("a").ordering_key("k") }).await;
    let middle = world.send(NewMessage { priority: 5, ..to("a") }).await;
    let order = world.claim(world.a, 10).await;
    assert_eq!(order.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [middle, low]);
    world.complete(order[1]).await;
    assert_eq!(world.claim_ids().await, [urgent_behind]);
}

pub(crate) async fn the_next_of_a_key_goes_before_what_was_sent_after_it<H: Harness>(mut world: World<H>) {
    let keyed = world.send_keyed("k", 2).await;
    let mut backlog = Vec::new();
    for _ in 0..8 {
        backlog.push(world.send(to("a")).await);
    }
    let first = world.claim(world.a, 3).await;
    assert_eq!(first.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [keyed[0], backlog[0], backlog[1]]);
    world.complete(first[0]).await;
    let then = world.claim(world.a, 3).await;
    assert_eq!(then.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [keyed[1], backlog[2], backlog[3]]);
}

pub(crate) async fn keys_belong_to_one_endpoint_unless_global<H: Harness>(mut world: World<H>) {
    let b = world.endpoint("b", json!({})).await;
    let at_a = world.send(to("a").ordering_key("k")).await;
    let at_b = world.send(to("b").ordering_key("k")).await;
    assert_eq!(world.claim_ids().await, [at_a]);
    assert_eq!(world.claim(b, 10).await[0].id, at_b);
}

pub(crate) async fn a_global_key_is_ordered_over_endpoints<H: Harness>(mut world: World<H>) {
    let global = json!({"key_scope": "global"});
    let (g, h) = (world.endpoint("g", global.clone()).await, world.endpoint("h", global).await);
    let first = world.send(to("g").ordering_key("k")).await;
    let second = world.send(to("h").ordering_key("k")).await;
    let third = world.send(to("g").ordering_key("k")).await;
    let local = world.send(to("a").ordering_key("k")).await;
    assert_eq!(world.claim_ids().await, [local], "an ordinary endpoint keeps its own keys");
    assert!(world.claim(h, 10).await.is_empty());
    let ticket = world.claim(g, 10).await[0];
    assert_eq!(ticket.id, first);
    assert_eq!(world.complete(ticket).await.unblocked, Some(h));
    assert!(world.claim(g, 10).await.is_empty());
    let ticket = world.claim(h, 10).await[0];
    assert_eq!(ticket.id, second);
    assert_eq!(world.complete(ticket).await.unblocked, Some(g));
    assert_eq!(world.claim(g, 10).await[0].id, third);
}

/// Endpoint `hold` with three messages of one key, the first of which died.
async fn held<H: Harness>(world: &mut World<H>) -> (postrider::endpoint::EndpointId, Vec<MessageId>) {
    let hold = world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.send(to("hold").ordering_key("k")).await);
    }
    world.kill(ids[0]).await;
    assert!(world.claim(hold, 10).await.is_empty(), "the key waits for a decision");
    (hold, ids)
}

async fn next_of<H: Harness>(world: &mut World<H>, endpoint: postrider::endpoint::EndpointId) -> Ticket {
    let claims = world.claim(endpoint, 10).await;
    assert_eq!(claims.len(), 1, "{claims:?}");
    claims[0]
}

pub(crate) async fn a_dead_head_holds_where_asked_and_only_its_key<H: Harness>(mut world: World<H>) {
    let (hold, ids) = held(&mut world).await;
    let late = world.send(to("hold").ordering_key("k")).await;
    let other = world.send(to("hold").ordering_key("other")).await;
    assert_eq!(next_of(&mut world, hold).await.id, other);
    assert_eq!(world.states(&[ids[1], ids[2], late]).await, [State::Pending; 3]);
}

pub(crate) async fn a_held_key_goes_on_when_released<H: Harness>(mut world: World<H>) {
    let (hold, ids) = held(&mut world).await;
    assert_eq!(world.store().release_key("unknown", None).await.unwrap(), 0);
    assert_eq!(world.store().release_key("k", Some("a")).await.unwrap(), 0);
    assert_eq!(world.store().release_key("k", Some("hold")).await.unwrap(), 1);
    assert_eq!(world.store().release_key("k", Some("hold")).await.unwrap(), 0, "once");
    let ticket = next_of(&mut world, hold).await;
    assert_eq!(ticket.id, ids[1]);
    world.complete(ticket).await;
    assert_eq!(next_of(&mut world, hold).await.id, ids[2]);
    assert_eq!(world.state(ids[0]).await, State::Dead, "the dead one stays where it is");
}

pub(crate) async fn a_key_is_released_everywhere_when_no_endpoint_is_named<H: Harness>(mut world: World<H>) {
    let (hold, ids) = held(&mut world).await;
    assert_eq!(world.store().release_key("k", None).await.unwrap(), 1);
    assert_eq!(next_of(&mut world, hold).await.id, ids[1]);
}

pub(crate) async fn a_held_key_goes_on_when_its_head_is_discarded<H: Harness>(mut world: World<H>) {
    let (hold, ids) = held(&mut world).await;
    let letter = world.letter_of(ids[0]).await;
    world.store().discard(letter.id).await.unwrap();
    assert_eq!(next_of(&mut world, hold).await.id, ids[1]);
}

pub(crate) async fn a_held_key_goes_on_with_its_redriven_head<H: Harness>(mut world: World<H>) {
    let (hold, ids) = held(&mut world).await;
    let letter = world.letter_of(ids[0]).await;
    assert_eq!(world.store().redrive(Redrive::One(letter.id)).await.unwrap(), 1);
    for id in ids {
        let ticket = next_of(&mut world, hold).await;
        assert_eq!(ticket.id, id);
        world.complete(ticket).await;
    }
}

pub(crate) async fn a_redriven_message_waits_for_another_head_that_holds<H: Harness>(mut world: World<H>) {
    let hold = world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let first = world.send_to_death(to("hold").ordering_key("k")).await;
    world.store().release_key("k", Some("hold")).await.unwrap();
    let second = world.send_to_death(to("hold").ordering_key("k")).await;
    world.store().redrive(Redrive::One(first.id)).await.unwrap();
    assert!(world.claim(hold, 10).await.is_empty(), "the second one holds the key");
    world.store().discard(second.id).await.unwrap();
    assert_eq!(next_of(&mut world, hold).await.id, first.message);
}

pub(crate) async fn a_head_that_dies_again_holds_again<H: Harness>(mut world: World<H>) {
    let (hold, ids) = held(&mut world).await;
    world.store().redrive(Redrive::All).await.unwrap();
    let ticket = next_of(&mut world, hold).await;
    world.settle(ticket, DEAD).await;
    assert!(world.claim(hold, 10).await.is_empty());
    assert_eq!(world.store().release_key("k", Some("hold")).await.unwrap(), 1);
    assert_eq!(next_of(&mut world, hold).await.id, ids[1]);
}

pub(crate) async fn a_redriven_message_goes_before_everything_pending_of_its_key<H: Harness>(
    mut world: World<H>,
) {
    let ids = world.send_keyed("k", 4).await;
    let letter = world.kill(ids[0]).await;
    let running = world.claim_one().await;
    assert_eq!(running.id, ids[1]);
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    assert_eq!(world.claim_ids().await, [], "not beside the one that runs");
    world.complete(running).await;
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, ids[0]);
    world.complete(ticket).await;
    assert_eq!(world.claim_ids().await, [ids[2]]);
}

pub(crate) async fn a_redriven_message_waits_for_a_retry_that_runs_before_it<H: Harness>(
    mut world: World<H>,
) {
    let ids = world.send_keyed("k", 3).await;
    let letter = world.kill(ids[0]).await;
    let running = world.claim_one().await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    world.retry(running, 60).await;
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, ids[0], "what is pending again is behind the redriven one");
    world.complete(ticket).await;
    assert_eq!(world.claim_ids().await, [], "and its retry time still holds");
    world.live(60).await;
    assert_eq!(world.claim_ids().await, [ids[1]]);
}

/// A redriven message stands before the one that runs, so the head of the key is not the one that is active.
async fn redriven_before_a_running_one<H: Harness>(world: &mut World<H>) -> (Vec<MessageId>, Ticket) {
    let ids = world.send_keyed("k", 3).await;
    let letter = world.kill(ids[0]).await;
    let running = world.claim_one().await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    (ids, running)
}

pub(crate) async fn cancelling_one_behind_starts_nothing<H: Harness>(mut world: World<H>) {
    let (ids, running) = redriven_before_a_running_one(&mut world).await;
    world.store().cancel(ids[2]).await.unwrap();
    assert_eq!(world.claim_ids().await, [], "one of its key runs");
    world.complete(running).await;
    assert_eq!(world.claim_ids().await, [ids[0]]);
}

pub(crate) async fn cancelling_the_redriven_one_starts_nothing<H: Harness>(mut world: World<H>) {
    let (ids, running) = redriven_before_a_running_one(&mut world).await;
    world.store().cancel(ids[0]).await.unwrap();
    assert_eq!(world.claim_ids().await, []);
    world.complete(running).await;
    assert_eq!(world.claim_ids().await, [ids[2]]);
}

pub(crate) async fn expiring_one_behind_starts_nothing<H: Harness>(mut world: World<H>) {
    let (ids, running) = redriven_before_a_running_one(&mut world).await;
    let expires_at = Some(world.in_seconds(5));
    let expiring = world.send(NewMessage { expires_at, ..to("a").ordering_key("k") }).await;
    world.live(6).await;
    assert_eq!(world.store().upkeep(10).await.unwrap().len(), 1);
    assert_eq!(world.state(expiring).await, State::Expired);
    assert_eq!(world.claim_ids().await, []);
    world.complete(running).await;
    assert_eq!(world.claim_ids().await, [ids[0]]);
}

pub(crate) async fn dropping_an_endpoint_lets_the_keys_go_that_it_held<H: Harness>(mut world: World<H>) {
    world.endpoint("g", json!({"key_scope": "global", "on_dead": "hold"})).await;
    let h = world.endpoint("h", json!({"key_scope": "global"})).await;
    world.send_to_death(to("g").ordering_key("k")).await;
    let waiting = world.send(to("h").ordering_key("k")).await;
    assert!(world.claim(h, 10).await.is_empty());
    world.store().drop_endpoint("g", true).await.unwrap();
    assert_eq!(next_of(&mut world, h).await.id, waiting);
}

pub(crate) async fn a_forced_drop_starts_nothing_beside_what_runs<H: Harness>(mut world: World<H>) {
    let global = json!({"key_scope": "global"});
    let (g, h) = (world.endpoint("g", global.clone()).await, world.endpoint("h", global).await);
    let dead = world.send(to("h").ordering_key("k")).await;
    let letter = world.kill(dead).await;
    world.send(to("h").ordering_key("k")).await;
    world.send(to("g").ordering_key("k")).await;
    let running = next_of(&mut world, h).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    world.store().drop_endpoint("g", true).await.unwrap();
    assert!(world.claim(g, 10).await.is_empty());
    assert!(world.claim(h, 10).await.is_empty(), "one of its key runs");
    world.complete(running).await;
    assert_eq!(next_of(&mut world, h).await.id, dead);
}

pub(crate) async fn the_scope_of_keys_stays_while_letters_may_come_back<H: Harness>(mut world: World<H>) {
    let dead = world.send(to("a").ordering_key("k")).await;
    let letter = world.kill(dead).await;
    let change =
        || EndpointChange { options: Some(json!({"key_scope": "global"})), ..EndpointChange::default() };
    let refused = world.store().alter_endpoint("a", change()).await.unwrap_err();
    let StoreError::Invalid(invalid) = refused else { panic!("{refused}") };
    assert_eq!(invalid.field, "options.key_scope");
    world.store().discard(letter.id).await.unwrap();
    world.store().alter_endpoint("a", change()).await.unwrap();
}

pub(crate) async fn what_is_redriven_one_by_one_keeps_the_original_order<H: Harness>(mut world: World<H>) {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
        let ids = world.send_keyed("k", 5).await;
        let mut letters = Vec::new();
        for id in &ids[..4] {
            letters.push(world.kill(*id).await.id);
        }
        for n in order {
            world.store().redrive(Redrive::One(letters[n])).await.unwrap();
        }
        let last = world.send(to("a").ordering_key("k")).await;
        for id in ids.into_iter().chain([last]) {
            let ticket = world.claim_one().await;
            assert_eq!(ticket.id, id);
            world.complete(ticket).await;
        }
    }
}

pub(crate) async fn what_is_redriven_while_an_earlier_one_runs_goes_behind_it<H: Harness>(
    mut world: World<H>,
) {
    let ids = world.send_keyed("k", 3).await;
    let (first, second) = (world.kill(ids[0]).await, world.kill(ids[1]).await);
    world.store().redrive(Redrive::One(first.id)).await.unwrap();
    let running = world.claim_one().await;
    world.store().redrive(Redrive::One(second.id)).await.unwrap();
    world.retry(running, 60).await;
    assert_eq!(world.claim_ids().await, [], "it waits for the retry");
    world.live(60).await;
    for id in ids {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, id);
        world.complete(ticket).await;
    }
}

pub(crate) async fn a_redriven_head_lets_those_go_that_were_redriven_before_it<H: Harness>(
    mut world: World<H>,
) {
    let hold = world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let first = world.send_to_death(to("hold").ordering_key("k")).await;
    world.store().release_key("k", Some("hold")).await.unwrap();
    let second = world.send_to_death(to("hold").ordering_key("k")).await;
    world.store().redrive(Redrive::One(first.id)).await.unwrap();
    assert!(world.claim(hold, 10).await.is_empty(), "the second one holds the key");
    world.store().redrive(Redrive::One(second.id)).await.unwrap();
    for letter in [first, second] {
        let ticket = next_of(&mut world, hold).await;
        assert_eq!(ticket.id, letter.message);
        world.complete(ticket).await;
    }
}

pub(crate) async fn a_bulk_redrive_keeps_the_original_order<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 4).await;
    for id in &ids[..3] {
        world.kill(*id).await;
    }
    assert_eq!(world.store().redrive(Redrive::Endpoint("a".into())).await.unwrap(), 3);
    for id in ids {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, id);
        world.complete(ticket).await;
    }
}

pub(crate) async fn expired_and_cancelled_heads_never_hold<H: Harness>(mut world: World<H>) {
    let hold = world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let expires_at = Some(world.now() + Duration::from_secs(5));
    let expired = world.send(NewMessage { expires_at, ..to("hold").ordering_key("k") }).await;
    let cancelled = world.send(to("hold").ordering_key("k")).await;
    let last = world.send(to("hold").ordering_key("k")).await;
    world.live(6).await;
    assert_eq!(world.store().upkeep(10).await.unwrap().len(), 1);
    world.store().cancel(cancelled).await.unwrap();
    assert_eq!(next_of(&mut world, hold).await.id, last);
    assert_eq!(world.states(&[expired, cancelled]).await, [State::Expired, State::Cancelled]);
}

pub(crate) async fn one_cancelled_in_the_middle_is_skipped<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 3).await;
    let ticket = world.claim_one().await;
    world.store().cancel(ids[1]).await.unwrap();
    assert_eq!(world.claim_ids().await, []);
    assert_eq!(world.complete(ticket).await.unblocked, Some(world.a));
    assert_eq!(world.claim_ids().await, [ids[2]]);
}

pub(crate) async fn a_rescheduled_head_holds_its_key<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 2).await;
    let at = world.in_seconds(30);
    world.store().reschedule(ids[0], at).await.unwrap();
    assert_eq!(world.claim_ids().await, []);
    world.store().reschedule(ids[1], world.now()).await.unwrap();
    assert_eq!(world.claim_ids().await, [], "a due time does not jump the key");
    world.live(30).await;
    assert_eq!(world.claim_ids().await, [ids[0]]);
}

pub(crate) async fn the_order_of_a_key_survives_a_crash<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 3).await;
    world.claim_one().await;
    world.crash().await;
    assert_eq!(world.claim_ids().await, [], "the lost head holds its key");
    let lost = world.lost().await;
    world.lose(&lost[0]).await;
    assert_eq!(world.claim_ids().await, []);
    let ticket = Ticket::of(&world.claim_suspects(true, &ids).await[0]);
    assert_eq!(ticket.id, ids[0]);
    assert_eq!(world.complete(ticket).await.unblocked, Some(world.a));
    assert_eq!(world.claim_ids().await, [ids[1]]);
    assert_eq!(world.store().suspects(10).await.unwrap(), []);
}
