use postrider::message::LostClaim;
use postrider::store::{AttemptOutcome, Effect, End};
use postrider::verdict::Verdict;
use postrider::{MessageId, Operate, State, Store};

use crate::store::world::{DEAD, Harness, Ticket, World, retry_at, to};

/// A message claimed by a node that then fell silent for too long.
async fn frozen<H: Harness>(world: &mut World<H>, key: Option<&str>) -> (MessageId, Ticket, LostClaim) {
    let mut message = to("a");
    message.ordering_key = key.map(str::to_owned);
    let id = world.send(message).await;
    let slow = world.another_node().await;
    let ticket = world.claim_as(slow, world.a, 1).await[0];
    let mut lost = world.lost().await;
    assert_eq!(lost.len(), 1);
    (id, ticket, lost.remove(0))
}

/// The message again, in the hands of a live node.
async fn reclaimed<H: Harness>(world: &mut World<H>, key: Option<&str>) -> (MessageId, Ticket, Ticket) {
    let (id, late, lost) = frozen(world, key).await;
    world.lose(&lost).await;
    let claims = world.claim_suspects(false, &[id]).await;
    (id, late, Ticket::of(&claims[0]))
}

pub(crate) async fn a_late_failure_changes_nothing<H: Harness>(mut world: World<H>) {
    let (id, late, lost) = frozen(&mut world, None).await;
    world.lose(&lost).await;
    let before = world.story(id).await;
    for verdict in [retry_at(world.in_seconds(500)), DEAD, Verdict::Expire] {
        assert_eq!(world.settle(late, verdict).await.effect, Effect::Fenced);
    }
    assert_eq!(world.end(late, End::Released).await.effect, Effect::Fenced);
    assert_eq!(world.end(late, End::ExpiredUnstarted).await.effect, Effect::Fenced);
    assert_eq!(world.story(id).await, before);

    let claims = world.claim_suspects(false, &[id]).await;
    let current = Ticket::of(&claims[0]);
    assert_eq!(current.attempt, 2);
    let before = world.story(id).await;
    for verdict in [retry_at(world.in_seconds(500)), DEAD, Verdict::Expire] {
        assert_eq!(world.settle(late, verdict).await.effect, Effect::Fenced);
    }
    assert_eq!(world.story(id).await, before);
    assert_eq!(world.complete(current).await.effect, Effect::Applied(State::Completed));
}

pub(crate) async fn a_settled_claim_cannot_be_settled_again<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    assert_eq!(world.die(ticket).await.effect, Effect::Fenced);
    assert_eq!(world.retry(ticket, 1).await.effect, Effect::Fenced);
    assert_ne!(world.complete(ticket).await.effect, Effect::Noted);
    assert_eq!(world.state(id).await, State::Completed);
    assert_eq!((world.queued().await, world.letters().await.len()), (0, 0));

    let unknown = Ticket { id: MessageId(i64::MAX), ..ticket };
    assert_eq!(world.complete(unknown).await.effect, Effect::Fenced);
}

pub(crate) async fn a_late_delivery_completes_a_waiting_message<H: Harness>(mut world: World<H>) {
    for key in [None, Some("k")] {
        let (id, late, lost) = frozen(&mut world, key).await;
        world.lose(&lost).await;
        assert_eq!(world.complete(late).await.effect, Effect::Applied(State::Completed), "{key:?}");
        assert_eq!(world.state(id).await, State::Completed);
        assert_eq!(world.queued().await, 0);
        assert!(world.store().suspects(10).await.unwrap().is_empty());
    }
}

pub(crate) async fn a_late_delivery_lets_the_next_of_its_key_go<H: Harness>(mut world: World<H>) {
    let (_, late, lost) = frozen(&mut world, Some("k")).await;
    let next = world.send(to("a").ordering_key("k")).await;
    world.lose(&lost).await;
    assert_eq!(world.claim_ids().await, []);
    assert_eq!(world.complete(late).await.unblocked, Some(world.a));
    assert_eq!(world.claim_ids().await, [next]);
}

pub(crate) async fn a_late_delivery_completes_an_unkeyed_message_at_once<H: Harness>(mut world: World<H>) {
    let (id, late, current) = reclaimed(&mut world, None).await;
    assert_eq!(world.complete(late).await.effect, Effect::Applied(State::Completed));
    assert_eq!(world.state(id).await, State::Completed);
    assert_eq!(world.queued().await, 0);
    for verdict in [DEAD, retry_at(world.now())] {
        assert_eq!(world.settle(current, verdict).await.effect, Effect::Fenced);
    }
    assert_eq!(world.end(current, End::Released).await.effect, Effect::Fenced);
    assert_eq!(world.state(id).await, State::Completed);
    assert!(world.letters().await.is_empty());
}

pub(crate) async fn a_late_delivery_of_a_keyed_message_waits_for_the_current_claim<H: Harness>(
    mut world: World<H>,
) {
    let ends = |ticket: Ticket, world: &World<H>| {
        [
            ticket.attempted(world.now(), retry_at(world.in_seconds(60))),
            ticket.attempted(world.now(), DEAD),
            ticket.attempted(world.now(), Verdict::Complete),
            ticket.attempted(world.now(), Verdict::Expire),
            End::Released,
            End::ExpiredUnstarted,
        ]
    };
    for which in 0..6 {
        let (id, late, current) = reclaimed(&mut world, Some("k")).await;
        let next = world.send(to("a").ordering_key("k")).await;
        assert_eq!(world.complete(late).await.effect, Effect::Noted);
        assert_eq!(world.state(id).await, State::Processing, "a live node may be sending it this moment");
        assert_eq!(world.claim_ids().await, [], "so nothing of its key is started");
        let end = ends(current, &world).into_iter().nth(which).unwrap();
        let kind = format!("{end:?}");
        let settled = world.end(current, end).await;
        assert_eq!(settled.effect, Effect::Applied(State::Completed), "{kind}");
        assert_eq!(settled.unblocked, Some(world.a), "{kind}");
        assert_eq!(world.state(id).await, State::Completed, "{kind}");
        assert!(world.letters().await.is_empty(), "{kind}");
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, next);
        world.complete(ticket).await;
    }
}

pub(crate) async fn a_noted_delivery_survives_a_forced_drop<H: Harness>(mut world: World<H>) {
    let (id, late, current) = reclaimed(&mut world, Some("k")).await;
    let next = world.send(to("a").ordering_key("k")).await;
    assert_eq!(world.complete(late).await.effect, Effect::Noted);
    world.store().drop_endpoint("a", true).await.unwrap();
    assert_eq!(world.states(&[id, next]).await, [State::Completed, State::Cancelled]);
    assert_eq!(world.die(current).await.effect, Effect::Fenced);
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn what_is_acknowledged_after_a_forced_drop_is_completed_with_its_attempt<H: Harness>(
    mut world: World<H>,
) {
    let mut ids = Vec::new();
    for key in ["k", "l", "m", "n", "o", "p"] {
        ids.push(world.send(to("a").ordering_key(key)).await);
    }
    let never_tried = world.send(to("a").ordering_key("k")).await;
    let tickets = world.claim(world.a, 10).await;
    assert_eq!(tickets.len(), 6);
    world.store().drop_endpoint("a", true).await.unwrap();
    assert_eq!(world.states(&ids).await, [State::Cancelled; 6]);

    for failed in [retry_at(world.now()), DEAD] {
        assert_eq!(world.settle(tickets[5], failed).await.effect, Effect::Fenced);
    }
    let (queued, events) = (world.queued().await, world.events().await.len());
    // One by one, and several at once.
    assert_eq!(world.complete(tickets[0]).await.effect, Effect::Applied(State::Completed));
    let several = world.complete_all(&tickets[1..5]).await;
    assert!(several.iter().all(|settled| settled.effect == Effect::Applied(State::Completed)), "{several:?}");
    for id in &ids[..5] {
        let story = world.story(*id).await;
        assert_eq!((story.state, story.attempt_count), (State::Completed, 1));
        assert_eq!(
            story.attempts.iter().map(|attempt| attempt.outcome).collect::<Vec<_>>(),
            [AttemptOutcome::Delivered]
        );
        assert!(story.payload.is_some());
    }
    assert_eq!(world.complete(tickets[0]).await.effect, Effect::Fenced, "once");
    assert_eq!(world.states(&[ids[5], never_tried]).await, [State::Cancelled; 2]);
    assert_eq!((world.queued().await, world.events().await.len()), (queued, events));
}

pub(crate) async fn a_noted_delivery_outlives_the_loss_of_the_next_claim<H: Harness>(mut world: World<H>) {
    let (id, late, lost) = frozen(&mut world, Some("k")).await;
    world.lose(&lost).await;
    let dying = world.node;
    let claims = world.claim_suspects(false, &[id]).await;
    assert_eq!(claims[0].fence.node, dying);
    assert_eq!(world.complete(late).await.effect, Effect::Noted);
    world.crash().await;
    let lost = world.lost().await;
    assert_eq!(lost.iter().map(|lost| lost.id).collect::<Vec<_>>(), [id]);
    assert_eq!(world.lose(&lost[0]).await.effect, Effect::Applied(State::Completed));
    assert_eq!(world.state(id).await, State::Completed);
}

pub(crate) async fn a_released_claim_takes_no_fence_with_it<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let mut tickets = Vec::new();
    for _ in 0..4 {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.attempt, 1);
        world.end(ticket, End::Released).await;
        tickets.push(ticket);
    }
    let current = world.claim_one().await;
    for old in tickets {
        assert_ne!(old.fence, current.fence);
        assert_eq!(world.die(old).await.effect, Effect::Fenced, "the attempt number alone is no fence");
    }
    assert_eq!(world.state(id).await, State::Processing);
    assert_eq!(world.die(current).await.effect, Effect::Applied(State::Dead));
    assert!(world.store().cancel(id).await.is_err());
}
