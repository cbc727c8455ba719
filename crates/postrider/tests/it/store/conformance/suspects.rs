use postrider::store::{Effect, Redrive, Suspect};
use postrider::verdict::Verdict;
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{DEAD, Harness, Ticket, World, due, to};

/// Messages that each lost one claim with a node, due again now.
async fn lost_once<H: Harness>(world: &mut World<H>, count: usize) -> Vec<MessageId> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(world.send(to("a")).await);
    }
    let silent = world.another_node().await;
    world.claim_as(silent, world.a, count as u32).await;
    let lost = world.lost().await;
    assert_eq!(lost.len(), count);
    for claim in &lost {
        assert_eq!((claim.losses, claim.alone), (0, false), "this loss is not counted before it is settled");
        world.lose(claim).await;
    }
    ids
}

pub(crate) async fn a_lost_message_is_a_suspect<H: Harness>(mut world: World<H>) {
    let ids = lost_once(&mut world, 2).await;
    let (now, endpoint) = (world.now(), world.a);
    let expected = ids.iter().map(|id| Suspect {
        id: *id,
        endpoint,
        losses: 1,
        due_at: now,
        budget_used: 1,
        max_attempts: None,
    });
    let mut suspects = world.store().suspects(10).await.unwrap();
    suspects.sort_by_key(|suspect| suspect.id);
    assert_eq!(suspects, expected.collect::<Vec<_>>());
    assert_eq!(world.store().suspects(1).await.unwrap().len(), 1, "bounded");
}

pub(crate) async fn a_suspect_brings_its_own_limit_of_attempts<H: Harness>(mut world: World<H>) {
    let options = json!({ "max_attempts": 2 }).as_object().unwrap().clone();
    world.send(NewMessage { options, ..to("a") }).await;
    let silent = world.another_node().await;
    world.claim_as(silent, world.a, 1).await;
    let lost = world.lost().await;
    world.lose(&lost[0]).await;
    assert_eq!(world.store().suspects(10).await.unwrap()[0].max_attempts, Some(2));
}

pub(crate) async fn a_suspect_is_never_claimed_among_others<H: Harness>(mut world: World<H>) {
    let suspects = lost_once(&mut world, 2).await;
    let innocent = world.send(to("a")).await;
    assert_eq!(world.claim_ids().await, [innocent]);
    let claims = world.claim_suspects(false, &suspects).await;
    let mut ids: Vec<_> = claims.iter().map(|claim| claim.message.id).collect();
    ids.sort();
    assert_eq!(ids, suspects);
    assert!(claims.iter().all(|claim| claim.losses == 1 && claim.attempt == 2));
    assert!(world.store().suspects(10).await.unwrap().is_empty(), "none of them is pending now");
}

pub(crate) async fn only_due_and_pending_suspects_are_claimed<H: Harness>(mut world: World<H>) {
    let ids = lost_once(&mut world, 3).await;
    let claimed = Ticket::of(&world.claim_suspects(false, &ids[..1]).await[0]);
    let retried = Ticket::of(&world.claim_suspects(false, &ids[1..2]).await[0]);
    world.retry(retried, 60).await;
    let claims = world.claim_suspects(false, &ids).await;
    assert_eq!(claims.iter().map(|claim| claim.message.id).collect::<Vec<_>>(), [ids[2]]);
    world.complete(claimed).await;
    let gone = [ids[0], MessageId(i64::MAX)];
    assert!(world.claim_suspects(false, &gone).await.is_empty());
}

pub(crate) async fn losses_add_up_and_being_alone_is_remembered<H: Harness>(mut world: World<H>) {
    let id = lost_once(&mut world, 1).await[0];
    let claims = world.claim_suspects(true, &[id]).await;
    assert_eq!(claims[0].losses, 1);
    world.crash().await;
    let lost = world.lost().await;
    assert_eq!(
        lost.iter().map(|lost| (lost.id, lost.losses, lost.alone)).collect::<Vec<_>>(),
        [(id, 1, true)]
    );
    world.lose(&lost[0]).await;
    assert_eq!(world.store().suspects(10).await.unwrap()[0].losses, 2);
    let claims = world.claim_suspects(false, &[id]).await;
    assert_eq!((claims[0].losses, claims[0].attempt), (2, 3));
    world.crash().await;
    let lost = world.lost().await;
    assert!(!lost[0].alone, "alone speaks of the last claim only");
    world.lose_as(&lost[0], DEAD).await;
    assert_eq!(world.state(id).await, State::Dead);
    assert!(world.store().suspects(10).await.unwrap().is_empty());
    assert_eq!(world.letter_of(id).await.last_error.as_deref(), Some("[RETRYABLE] lease expired"));
}

/// Every attempt has a number that no other had, and only those that are not spared cost budget.
pub(crate) async fn a_spared_attempt_keeps_its_number_and_costs_no_budget<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a").ordering_key("k")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    let silent = world.another_node().await;
    world.claim_as(silent, world.a, 1).await;
    for (attempt, losses) in [(2, 1), (3, 2)] {
        let lost = world.lost().await;
        assert_eq!((lost[0].attempt, lost[0].attempt - lost[0].attempts_before), (attempt, 2));
        let due_at = world.in_seconds(10);
        let settled = world.lose_as(&lost[0], Verdict::Spare { due_at }).await;
        assert_eq!(settled.effect, Effect::Applied(State::Pending));
        let story = world.story(id).await;
        assert_eq!((story.attempt_count, story.due_at), (attempt, Some(due_at)));
        let suspect = world.store().suspects(10).await.unwrap()[0];
        assert_eq!((suspect.losses, suspect.budget_used), (losses, 1), "it stays a suspect");
        world.live(10).await;
        assert_eq!(world.claim_ids().await, []);
        let claim = &world.claim_suspects(true, &[id]).await[0];
        assert_eq!((claim.attempt, claim.budget_used()), (attempt + 1, 2));
        world.crash().await;
    }
    let lost = world.lost().await;
    world.lose_as(&lost[0], DEAD).await;
    let letter = world.letter_of(id).await;
    assert_eq!(letter.attempt_count, 4);
    assert_eq!(letter.errors.iter().map(|error| error.attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    let claim = &world.ask(world.node, false, vec![due(world.a, 1)]).await.claims[0];
    assert_eq!(
        (claim.attempt, claim.budget_used(), claim.losses),
        (5, 1, 0),
        "numbers go on, the budget restarts"
    );
}

pub(crate) async fn a_failed_attempt_makes_no_suspect<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    assert!(world.store().suspects(10).await.unwrap().is_empty());
    assert_eq!(world.claim_ids().await, [id]);
}

pub(crate) async fn suspects_come_oldest_due_first<H: Harness>(mut world: World<H>) {
    let later = world.send(to("a")).await;
    let sooner = world.send(NewMessage { priority: 0, ..to("a") }).await;
    let silent = world.another_node().await;
    world.claim_as(silent, world.a, 2).await;
    for lost in world.lost().await {
        let seconds = if lost.id == later { 20 } else { 10 };
        world.lose_as(&lost, crate::store::world::retry_at(world.in_seconds(seconds))).await;
    }
    let order: Vec<_> = world.store().suspects(10).await.unwrap().iter().map(|suspect| suspect.id).collect();
    assert_eq!(order, [sooner, later]);
}

pub(crate) async fn a_suspect_head_holds_its_key<H: Harness>(mut world: World<H>) {
    let ids = world.send_keyed("k", 2).await;
    let silent = world.another_node().await;
    world.claim_as(silent, world.a, 5).await;
    let lost = world.lost().await;
    assert_eq!(lost.len(), 1);
    world.lose(&lost[0]).await;
    assert_eq!(world.claim_ids().await, []);
    assert!(world.claim_suspects(false, &ids[1..]).await.is_empty(), "asking by id does not jump the key");
    let ticket = Ticket::of(&world.claim_suspects(false, &ids[..1]).await[0]);
    world.complete(ticket).await;
    assert_eq!(world.claim_ids().await, [ids[1]]);
}
