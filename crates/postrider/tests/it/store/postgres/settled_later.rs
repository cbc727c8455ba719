//! Settlements beside what somebody's open transaction holds, or with one that the server cannot take: those are left for
//! later, and all others are made.

use postrider::message::LostClaim;
use postrider::store::{AttemptOutcome, AttemptRecord, ClaimRequest, Effect, End, Settlement};
use postrider::verdict::Verdict;
use postrider::{State, Store};
use serde_json::json;
use tokio::time::timeout;

use super::in_the_way::SOON;
use super::{Postgres, connect};
use crate::store::world::{DEAD, Harness, Ticket, World, due, retry_at, to};

fn delivered(world: &World<Postgres>, ticket: Ticket) -> Settlement {
    let Ticket { id, endpoint, fence, .. } = ticket;
    let end = ticket.attempted(world.now(), Verdict::Complete);
    Settlement { id, endpoint, fence, end, hold_endpoint_until: None }
}

const COMPLETED: Effect = Effect::Applied(State::Completed);

async fn effects(world: &World<Postgres>, settlements: Vec<Settlement>) -> Vec<Effect> {
    let settled = timeout(SOON, world.store().settle(settlements)).await.expect("a node waits for nobody");
    settled.unwrap().iter().map(|settled| settled.effect).collect()
}

#[tokio::test]
async fn what_an_open_transaction_holds_is_settled_later_and_everything_else_at_once() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..3 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 3).await;
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {} FOR UPDATE", tickets[1].id);
    person.batch_execute(&hold).await.unwrap();
    let settlements = tickets.iter().map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, settlements).await, [COMPLETED, Effect::Later, COMPLETED]);
    assert_eq!(world.state(tickets[1].id).await, State::Processing);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.complete(tickets[1]).await.effect, COMPLETED);
    assert_eq!(world.queued().await, 0);
}

#[tokio::test]
async fn however_many_of_a_claim_somebody_holds_the_others_are_settled() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..8 {
        world.send(to("a")).await;
    }
    let (together, alone) = (world.claim(world.a, 7).await, world.claim(world.a, 1).await);
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id <= {} FOR UPDATE", together[4].id);
    person.batch_execute(&hold).await.unwrap();
    let all = || together.iter().chain(&alone).map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, all()).await, [[Effect::Later; 5].as_slice(), &[COMPLETED; 3]].concat());
    let claims = "SELECT count(*) FROM postrider._claims";
    let claims: i64 = connect(&world).await.query_one(claims, &[]).await.unwrap().get(0);
    assert_eq!(claims, 1, "the other one is over");
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(effects(&world, all()).await, [[COMPLETED; 5].as_slice(), &[Effect::Fenced; 3]].concat());
}

#[tokio::test]
async fn beside_what_somebody_holds_the_next_of_a_key_is_claimed_in_the_same_breath() {
    let mut world = World::<Postgres>::start().await;
    let held = world.send(to("a")).await;
    let keyed = world.send_keyed("k", 2).await;
    let tickets = world.claim(world.a, 9).await;
    assert_eq!(tickets.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [held, keyed[0]]);
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {held} FOR UPDATE");
    person.batch_execute(&hold).await.unwrap();
    // From now on it is known that somebody is in the way.
    assert_eq!(effects(&world, vec![delivered(&world, tickets[0])]).await, [Effect::Later]);
    let both = tickets.iter().map(|ticket| delivered(&world, *ticket)).collect();
    let request = ClaimRequest { node: world.node, batch: 99, wants: vec![due(world.a, 9)], alone: false };
    let (settled, claimed) = tokio::join!(effects(&world, both), world.store().claim(request));
    assert_eq!(settled, [Effect::Later, COMPLETED]);
    let claimed: Vec<_> = claimed.unwrap().claims.iter().map(|claim| claim.message.id).collect();
    assert_eq!(claimed, keyed[1..]);
}

#[tokio::test]
async fn what_was_claimed_with_something_that_somebody_takes_back_is_settled_later() {
    let mut world = World::<Postgres>::start().await;
    let b = world.endpoint("b", json!({})).await;
    for name in ["a", "b", "b"] {
        world.send(to(name)).await;
    }
    let node = world.node;
    let mixed = world.ask(node, false, vec![due(world.a, 1), due(b, 1)]).await.claims;
    let apart = world.claim(b, 1).await[0];
    let person = connect(&world).await;
    person.batch_execute("BEGIN; SELECT postrider.drop_endpoint('a', true)").await.unwrap();
    let tickets = [Ticket::of(&mixed[0]), Ticket::of(&mixed[1]), apart];
    let all = || tickets.iter().map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, all()).await, [Effect::Later, Effect::Later, COMPLETED]);
    person.batch_execute("COMMIT").await.unwrap();
    assert_eq!(
        effects(&world, all()).await,
        [COMPLETED, COMPLETED, Effect::Fenced],
        "the first was acknowledged"
    );
    assert_eq!(world.queued().await, 0);
}

/// As `CREATE INDEX` on the dead letters does.
#[tokio::test]
async fn what_needs_a_table_that_somebody_has_locked_does_not_hold_up_deliveries() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..3 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 3).await;
    let person = connect(&world).await;
    person.batch_execute("BEGIN; LOCK TABLE postrider.dlq IN SHARE MODE").await.unwrap();
    let all = || {
        let dead =
            Settlement { end: tickets[0].attempted(world.now(), DEAD), ..delivered(&world, tickets[0]) };
        vec![dead, delivered(&world, tickets[1]), delivered(&world, tickets[2])]
    };
    assert_eq!(effects(&world, all()).await, [Effect::Later, COMPLETED, COMPLETED]);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(effects(&world, all()).await[0], Effect::Applied(State::Dead));
}

/// A claim that was cut meanwhile, and of which only others are left.
#[tokio::test]
async fn a_late_delivery_of_a_claim_that_somebody_holds_keeps_nothing_else_from_being_settled() {
    let mut world = World::<Postgres>::start().await;
    let c = world.endpoint("c", json!({})).await;
    for name in ["a", "a", "a", "a", "c", "a"] {
        world.send(to(name)).await;
    }
    let node = world.node;
    let claimed = world.ask(node, false, vec![due(world.a, 4), due(c, 1)]).await.claims;
    let tickets: Vec<Ticket> = claimed.iter().map(Ticket::of).collect();
    let free = world.claim(world.a, 1).await[0];
    let other = world.harness().open().await;
    let lost = Settlement {
        end: tickets[0].attempted(world.now(), retry_at(world.in_seconds(60))),
        ..delivered(&world, tickets[0])
    };
    other.settle(vec![lost]).await.unwrap();
    let person = connect(&world).await;
    person.batch_execute("BEGIN; SELECT postrider.drop_endpoint('c', true)").await.unwrap();
    let held =
        vec![delivered(&world, tickets[1]), delivered(&world, tickets[2]), delivered(&world, tickets[3])];
    assert_eq!(effects(&world, held).await, [Effect::Later; 3]);
    // Nothing but what was cut out of that claim, whose row has nothing of it any more.
    let late = vec![delivered(&world, tickets[0]), delivered(&world, free)];
    assert_eq!(effects(&world, late).await, [Effect::Later, COMPLETED]);
}

#[tokio::test]
async fn what_the_server_cannot_take_keeps_nothing_else_from_being_settled() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..40 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 40).await;
    let unfit = [tickets[0], tickets[1], tickets[2], tickets[20], tickets[39]].map(|ticket| ticket.id);
    let owner = connect(&world).await;
    let refuse = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON postrider.archive FOR EACH ROW
         WHEN (NEW.id IN ({})) EXECUTE FUNCTION refuse()",
        unfit.map(|id| id.0.to_string()).join(", ")
    );
    owner.batch_execute(&refuse).await.unwrap();
    let mut left = tickets.clone();
    // A slow machine needs more than one turn, as a node takes them.
    for _ in 0..20 {
        let settlements = left.iter().map(|ticket| delivered(&world, *ticket)).collect();
        let mut effects = effects(&world, settlements).await.into_iter();
        left.retain(|_| effects.next() == Some(Effect::Later));
        if left.len() == unfit.len() {
            break;
        }
    }
    assert_eq!(left.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), unfit);
    owner.batch_execute("DROP TRIGGER refuse ON postrider.archive").await.unwrap();
    let settlements = left.iter().map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, settlements).await, [COMPLETED; 5]);
    let claims = owner.query_one("SELECT count(*) FROM postrider._claims", &[]).await.unwrap();
    assert_eq!(claims.get::<_, i64>(0), 0);
}

/// Whatever patience the database has with its applications.
#[tokio::test]
async fn a_node_has_its_own_patience() {
    let mut world = World::<Postgres>::start().await;
    let database = &world.harness().database;
    let owner = database.connect().await;
    for setting in ["statement_timeout = '100ms'", "lock_timeout = '1ms'"] {
        let set = format!("ALTER DATABASE {} SET {setting}", database.name());
        owner.batch_execute(&set).await.unwrap();
    }
    world.crash().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {id} FOR UPDATE");
    owner.batch_execute(&hold).await.unwrap();
    assert_eq!(effects(&world, vec![delivered(&world, ticket)]).await, [Effect::Later]);
}

/// What is left of a claim is written down in the same breath as one of its messages goes back.
#[tokio::test]
async fn a_late_delivery_is_noted_though_its_claim_was_shortened_when_it_was_lost() {
    let mut world = World::<Postgres>::start().await;
    let keyed = world.send(to("a").ordering_key("k")).await;
    for _ in 0..7 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 8).await;
    let late = tickets[0];
    assert_eq!(late.id, keyed);
    let mut settlements = vec![Settlement {
        end: late.attempted(world.now(), retry_at(world.now())),
        ..delivered(&world, late)
    }];
    settlements.extend(tickets[1..7].iter().map(|ticket| delivered(&world, *ticket)));
    world.store().settle(settlements).await.unwrap();
    let current = world.claim(world.a, 8).await;
    assert_eq!(current.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [keyed]);
    assert_eq!(world.complete(late).await.effect, Effect::Noted);
    assert_eq!(world.complete(current[0]).await.effect, Effect::Applied(State::Completed));
}

#[tokio::test]
async fn a_lost_claim_that_is_judged_later_leaves_the_others_of_its_node_to_be_judged() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..3 {
        world.send(to("a")).await;
    }
    let gone = world.another_node().await;
    world.claim_as(gone, world.a, 3).await;
    let lost = world.lost().await;
    assert_eq!(lost.len(), 3);
    // Another process, that never had them.
    let judge = world.harness().open().await;
    let judged = async || {
        let verdict = retry_at(world.now());
        let LostClaim { id, endpoint, fence, attempt, .. } = lost[0];
        let ticket = Ticket { id, endpoint, fence, attempt };
        let record = AttemptRecord { outcome: AttemptOutcome::Lost, ..ticket.record(world.now(), &verdict) };
        let end = End::Attempted { verdict, record };
        judge.settle(vec![Settlement { end, ..delivered(&world, ticket) }]).await.unwrap()[0].effect
    };
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {} FOR UPDATE", lost[0].id);
    person.batch_execute(&hold).await.unwrap();
    assert_eq!(judged().await, Effect::Later);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(judged().await, Effect::Applied(State::Pending));
    let left = world.store().lost_claims(10).await.unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
}
