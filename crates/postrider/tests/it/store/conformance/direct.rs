use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use postrider::message::Claim;
use postrider::store::Arrival;
use postrider::{MessageId, NewMessage, Operate, State, Store};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::store::world::{Harness, Slots, Ticket, World, join, to};

/// A node that has this much room for what is sent through it.
pub(super) async fn with_room<H: Harness>(
    world: &World<H>,
    room: usize,
) -> (Arc<Slots>, UnboundedReceiver<Arrival>) {
    world.store().leave(world.node).await.unwrap();
    let slots = Arc::new(Slots(room.into()));
    let (_, arrivals) = join(world.store(), slots.clone()).await;
    (slots, arrivals)
}

/// The next thing that is work. A store may take a moment to tell, never seconds.
pub(super) async fn next_work(arrivals: &mut UnboundedReceiver<Arrival>) -> Arrival {
    let next = async {
        loop {
            match arrivals.recv().await.expect("the store lives") {
                Arrival::Outside | Arrival::Reconfigured | Arrival::CircuitMoved => {}
                work @ (Arrival::Claimed(_) | Arrival::Pending(_)) => return work,
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), next).await.expect("the node is told")
}

async fn next_claim(arrivals: &mut UnboundedReceiver<Arrival>) -> Claim {
    match next_work(arrivals).await {
        Arrival::Claimed(claim) => claim,
        other => panic!("{other:?} instead of a claim"),
    }
}

pub(crate) async fn a_message_sent_to_a_free_node_is_claimed_in_the_same_breath<H: Harness>(world: World<H>) {
    let (slots, mut arrivals) = with_room(&world, 1).await;
    let id = world.send(to("a").idempotency_key("i")).await;
    let claim = next_claim(&mut arrivals).await;
    assert_eq!((claim.message.id, claim.attempt, claim.attempts_before), (id, 1, 0));
    assert_eq!(claim.message.payload, to("a").payload);
    assert_eq!(world.state(id).await, State::Processing);
    assert_eq!(world.story(id).await.attempt_count, 1);
    assert_eq!(slots.0.load(Ordering::SeqCst), 0, "its slot stays reserved");
    world.complete(Ticket::of(&claim)).await;
    assert_eq!(world.state(id).await, State::Completed);
}

pub(crate) async fn a_keyed_message_waits_for_its_predecessor<H: Harness>(world: World<H>) {
    let (slots, mut arrivals) = with_room(&world, 5).await;
    let first = world.send(to("a").ordering_key("k")).await;
    let claim = next_claim(&mut arrivals).await;
    assert_eq!(claim.message.id, first);
    let second = world.send(to("a").ordering_key("k")).await;
    let other = world.send(to("a").ordering_key("other")).await;
    assert_eq!(next_claim_of(&mut arrivals, other).await.message.id, other);
    assert_eq!(world.state(second).await, State::Pending);
    assert_eq!(slots.0.load(Ordering::SeqCst), 3, "no slot is lost");
}

/// Skips announcements, but no other claim.
async fn next_claim_of(arrivals: &mut UnboundedReceiver<Arrival>, id: MessageId) -> Claim {
    loop {
        if let Arrival::Claimed(claim) = next_work(arrivals).await {
            assert_eq!(claim.message.id, id);
            return claim;
        }
    }
}

pub(crate) async fn a_refused_batch_gives_its_slots_back<H: Harness>(world: World<H>) {
    let (slots, mut arrivals) = with_room(&world, 5).await;
    let batch = vec![to("a"), to("a"), NewMessage { priority: 11, ..to("a") }];
    world.store().send_batch(batch).await.unwrap_err();
    let id = world.send(to("a")).await;
    assert_eq!(next_claim(&mut arrivals).await.message.id, id, "nothing of the batch ever arrives");
    assert_eq!(slots.0.load(Ordering::SeqCst), 4);
}
