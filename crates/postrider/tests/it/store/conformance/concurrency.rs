use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use postrider::message::NodeId;
use postrider::store::ClaimRequest;
use postrider::{MessageId, NewMessage, Operate, State, Store};

use crate::store::world::{Harness, Ticket, World, due, to};

pub(crate) async fn of_racing_senders_exactly_one_wins<H: Harness>(world: World<H>) {
    let race = (0..20).map(|_| world.store().send(to("a").idempotency_key("once")));
    let sent: Vec<_> = join_all(race).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(sent.iter().filter(|sent| !sent.duplicate).count(), 1);
    assert!(sent.iter().all(|each| each.id == sent[0].id), "{sent:?}");
    assert_eq!(world.queued().await, 1);
}

async fn is_accepted<H: Harness>(world: &World<H>, batch: Vec<NewMessage>) -> bool {
    world.store().send_batch(batch).await.is_ok()
}

pub(crate) async fn a_refused_send_does_not_touch_its_neighbours<H: Harness>(world: World<H>) {
    let batches = (0..30u8).map(|at| {
        let priority = if at % 3 == 0 { 11 } else { 0 };
        is_accepted(&world, vec![to("a").ordering_key("k"), NewMessage { priority, ..to("a") }])
    });
    let accepted: Vec<bool> = join_all(batches).await;
    let expected: Vec<bool> = (0..30).map(|at| at % 3 != 0).collect();
    assert_eq!(accepted, expected);
    assert_eq!(world.queued().await, 40);
}

/// Takes and completes whatever there is until all are done; what it started, in its order.
async fn work<H: Harness>(world: &World<H>, node: NodeId, left: &Cell<usize>) -> Vec<Ticket> {
    let (mut done, mut batch) = (Vec::new(), 0);
    while left.get() > 0 {
        batch += 1;
        let request = ClaimRequest { node, batch, wants: vec![due(world.a, 7)], alone: false };
        for claim in world.store().claim(request).await.unwrap().claims {
            let ticket = Ticket::of(&claim);
            done.push(ticket);
            world.complete(ticket).await;
            left.set(left.get() - 1);
        }
    }
    done
}

pub(crate) async fn senders_and_nodes_at_once_lose_and_double_nothing<H: Harness>(world: World<H>) {
    const SENDERS: usize = 5;
    const EACH: usize = 30;
    let nodes = [world.node, world.another_node().await, world.another_node().await];
    let senders = (0..SENDERS).map(|sender| {
        let world = &world;
        async move {
            let mut ids = Vec::new();
            for at in 0..EACH {
                let key = format!("sender {sender}");
                let message = if at % 3 == 0 { to("a") } else { to("a").ordering_key(key) };
                ids.push((message.ordering_key.clone(), world.send(message).await));
            }
            ids
        }
    });
    let left = Cell::new(SENDERS * EACH);
    let workers = join_all(nodes.map(|node| work(&world, node, &left)));
    let all = async { tokio::join!(join_all(senders), workers) };
    let (sent, done) =
        tokio::time::timeout(Duration::from_secs(60), all).await.expect("nothing is forgotten");
    let mut delivered: Vec<MessageId> = done.iter().flatten().map(|ticket| ticket.id).collect();
    delivered.sort();
    let mut expected: Vec<MessageId> = sent.iter().flatten().map(|(_, id)| *id).collect();
    expected.sort();
    assert_eq!(delivered, expected, "each exactly once");
    for id in &expected {
        assert_eq!(world.state(*id).await, State::Completed);
    }
    // Within one node the order of starts is known; over all nodes ids of a key grow with their sender.
    let key_of: BTreeMap<MessageId, String> =
        sent.into_iter().flatten().filter_map(|(key, id)| key.map(|key| (id, key))).collect();
    for node in done {
        let mut last: BTreeMap<&str, MessageId> = BTreeMap::new();
        for ticket in node {
            let Some(key) = key_of.get(&ticket.id) else { continue };
            let before = last.insert(key, ticket.id);
            assert!(before.is_none_or(|before| before < ticket.id), "{key}: {before:?} then {}", ticket.id);
        }
    }
    assert_eq!(world.queued().await, 0);
}
