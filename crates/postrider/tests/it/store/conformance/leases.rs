use std::sync::Arc;
use std::time::Duration;

use postrider::error::StoreError;
use postrider::store::{Effect, Hello, NoDirectClaims};
use postrider::{MessageId, State, Store};
use tokio::sync::mpsc;

use crate::store::world::{DEAD, Harness, Ticket, World, due, to};

async fn lost_ids<H: Harness>(world: &World<H>) -> Vec<MessageId> {
    world.store().lost_claims(100).await.unwrap().iter().map(|lost| lost.id).collect()
}

pub(crate) async fn a_silent_node_loses_its_claims_after_its_lease<H: Harness>(mut world: World<H>) {
    let (mine, theirs) = (world.send(to("a")).await, world.send(to("a")).await);
    world.claim(world.a, 1).await;
    let silent = world.another_node().await;
    let ticket = world.claim_as(silent, world.a, 1).await[0];
    let claimed_at = world.now();
    world.live(14).await;
    assert_eq!(lost_ids(&world).await, []);
    world.live(2).await;
    let lost = world.store().lost_claims(10).await.unwrap();
    assert_eq!(lost.len(), 1, "only the silent one's");
    let lost = &lost[0];
    assert_eq!((lost.id, lost.endpoint, lost.fence), (theirs, world.a, ticket.fence));
    assert_eq!((lost.attempt, lost.attempts_before, lost.started_at), (1, 0, claimed_at));
    assert_eq!(world.states(&[mine, theirs]).await, [State::Processing; 2]);
}

pub(crate) async fn heartbeats_keep_a_lease<H: Harness>(mut world: World<H>) {
    world.send(to("a")).await;
    world.claim_one().await;
    world.live(100).await;
    assert_eq!(lost_ids(&world).await, []);
}

pub(crate) async fn the_lease_is_as_long_as_its_setting<H: Harness>(mut world: World<H>) {
    world.configure("node_lease", 60).await;
    let silent = world.another_node().await;
    let id = world.send(to("a")).await;
    world.claim_as(silent, world.a, 1).await;
    world.live(59).await;
    assert_eq!(lost_ids(&world).await, []);
    world.live(2).await;
    assert_eq!(lost_ids(&world).await, [id]);
}

pub(crate) async fn the_store_says_for_how_long_it_grants_a_lease<H: Harness>(mut world: World<H>) {
    for seconds in [60, 10] {
        world.configure("node_lease", seconds).await;
        let lease = Duration::from_secs(seconds);
        assert_eq!(world.store().heartbeat(world.node).await.unwrap(), lease);
        let (sender, _arrivals) = mpsc::unbounded_channel();
        let direct = Arc::new(NoDirectClaims);
        let hello = Hello { name: "silent".into(), arrivals: sender, direct };
        let silent = world.store().join(hello).await.unwrap();
        assert_eq!(silent.lease, lease);
        // Whatever is set meanwhile.
        world.configure("node_lease", 30).await;
        let id = world.send(to("a")).await;
        world.claim_as(silent.node, world.a, 1).await;
        world.live(seconds - 1).await;
        assert_eq!(lost_ids(&world).await, []);
        world.live(1).await;
        assert_eq!(lost_ids(&world).await, [id]);
        let lost = world.store().lost_claims(1).await.unwrap();
        world.lose_as(&lost[0], DEAD).await;
    }
}

pub(crate) async fn a_node_that_was_judged_is_told_so<H: Harness>(mut world: World<H>) {
    let silent = world.another_node().await;
    world.send(to("a")).await;
    let ticket = world.claim_as(silent, world.a, 1).await[0];
    let waiting = world.send(to("a")).await;
    let lost = world.lost().await;
    world.lose(&lost[0]).await;
    let told = world.store().heartbeat(silent).await.expect_err("its lease was lost");
    assert!(matches!(told, StoreError::Conflict(_)), "{told:?}");
    assert_eq!(world.retry(ticket, 1).await.effect, Effect::Fenced);
    let request = postrider::store::ClaimRequest {
        node: silent,
        batch: 999,
        wants: vec![due(world.a, 1)],
        alone: false,
    };
    assert!(world.store().claim(request).await.is_err(), "a lost node gets nothing");
    assert_eq!(world.state(waiting).await, State::Pending);
}

pub(crate) async fn lost_claims_are_told_until_they_are_settled<H: Harness>(mut world: World<H>) {
    let silent = world.another_node().await;
    for _ in 0..5 {
        world.send(to("a")).await;
    }
    world.claim_as(silent, world.a, 5).await;
    assert_eq!(world.lost().await.len(), 5);
    assert_eq!(world.store().lost_claims(2).await.unwrap().len(), 2, "bounded");
    let lost = world.store().lost_claims(100).await.unwrap();
    assert_eq!(lost.len(), 5, "whoever asked first may have died before settling");
    world.lose(&lost[0]).await;
    assert_eq!(lost_ids(&world).await.len(), 4);
    for claim in &lost[1..] {
        world.lose(claim).await;
    }
    assert_eq!(lost_ids(&world).await, []);
    assert_eq!(world.lose(&lost[0]).await.effect, Effect::Fenced, "settled by another node in between");
}

pub(crate) async fn a_lost_claim_counts_as_an_attempt_and_says_why<H: Harness>(mut world: World<H>) {
    let silent = world.another_node().await;
    let id = world.send(to("a")).await;
    world.claim_as(silent, world.a, 1).await;
    let lost = world.lost().await;
    assert_eq!(world.lose(&lost[0]).await.effect, Effect::Applied(State::Pending));
    let story = world.story(id).await;
    assert_eq!((story.attempt_count, story.last_error.as_deref()), (1, Some("[RETRYABLE] lease expired")));
    assert_eq!(Ticket::of(&world.claim_suspects(false, &[id]).await[0]).attempt, 2);
}

pub(crate) async fn a_crash_loses_claims_and_no_message<H: Harness>(mut world: World<H>) {
    let (claimed, pending) = (world.send(to("a")).await, world.send(to("a")).await);
    world.claim(world.a, 1).await;
    world.crash().await;
    if H::REOPENING_ENDS_EARLIER_NODES {
        assert_eq!(lost_ids(&world).await, [claimed], "nobody else can be alive");
    } else {
        world.live(14).await;
        assert_eq!(lost_ids(&world).await, [], "the store was away, not the node");
        world.live(2).await;
        assert_eq!(lost_ids(&world).await, [claimed]);
    }
    let lost = world.store().lost_claims(10).await.unwrap();
    world.lose(&lost[0]).await;
    assert_eq!(world.states(&[claimed, pending]).await, [State::Pending; 2]);
    assert_eq!(world.story(claimed).await.attempt_count, 1, "the crash counts as one");
}

pub(crate) async fn an_attempt_that_never_ends_is_lost_though_its_node_lives<H: Harness>(
    mut world: World<H>,
) {
    world.configure("stale_recovery_timeout", 60).await;
    let stuck = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    let started_at = world.now();
    world.live(30).await;
    let running = world.send(to("a")).await;
    let other = world.claim_one().await;
    assert_eq!(other.id, running);
    world.live(29).await;
    assert_eq!(lost_ids(&world).await, []);
    world.live(2).await;
    let lost = world.store().lost_claims(10).await.unwrap();
    assert_eq!(lost.iter().map(|lost| (lost.id, lost.started_at)).collect::<Vec<_>>(), [(stuck, started_at)]);
    world.lose(&lost[0]).await;
    assert_eq!(world.die(ticket).await.effect, Effect::Fenced);
    world.store().heartbeat(world.node).await.expect("the node itself lives");
    assert_eq!(world.complete(other).await.effect, Effect::Applied(State::Completed));
}

pub(crate) async fn a_clean_stop_gives_claims_back_uncounted<H: Harness>(mut world: World<H>) {
    let leaving = world.another_node().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_as(leaving, world.a, 1).await[0];
    world.store().leave(leaving).await.unwrap();
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempt_count), (State::Pending, 0));
    assert!(world.store().heartbeat(leaving).await.is_err());
    assert!(world.store().suspects(10).await.unwrap().is_empty(), "nothing was lost");
    assert_eq!(world.die(ticket).await.effect, Effect::Fenced);
    assert_eq!(world.claim_one().await.attempt, 1);
    assert_eq!(world.lost().await.len(), 0);
}

pub(crate) async fn a_node_that_was_judged_gives_nothing_back_uncounted<H: Harness>(mut world: World<H>) {
    let frozen = world.another_node().await;
    let id = world.send(to("a")).await;
    world.claim_as(frozen, world.a, 1).await;
    let lost = world.lost().await;
    // It wakes up before anybody has settled what it lost.
    world.store().leave(frozen).await.unwrap();
    assert_eq!(lost_ids(&world).await, [id], "somebody still has to judge it");
    assert_eq!(world.lose(&lost[0]).await.effect, Effect::Applied(State::Pending));
    assert_eq!(world.story(id).await.attempt_count, 1);
    assert_eq!(world.claim_ids().await, [], "it is on probation");
}

pub(crate) async fn every_node_is_another_one<H: Harness>(mut world: World<H>) {
    let mut nodes = vec![world.node];
    for _ in 0..3 {
        nodes.push(world.another_node().await);
        world.crash().await;
        nodes.push(world.node);
    }
    let count = nodes.len();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), count, "a fence names a claim for ever, so nodes are never reused");
}
