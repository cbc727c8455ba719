//! Redrives of many dead letters: done in steps, so that senders and nodes are not kept waiting.

use std::collections::BTreeMap;

use postrider::error::StoreError;
use postrider::store::{Arrival, DlqFilter, Redrive};
use postrider::{MessageId, NewMessage, Operate, State};
use serde_json::json;

use crate::store::world::{DEAD, Harness, World, to};

/// More than any store puts back in one step.
const MANY: usize = 1500;

/// All of them die, one after the other of each key.
pub(in crate::store) async fn kill_all<H: Harness>(
    world: &mut World<H>,
    messages: Vec<NewMessage>,
) -> Vec<MessageId> {
    let sent = world.store().send_batch(messages).await.unwrap();
    let mut left = sent.len();
    while left > 0 {
        let tickets = world.claim(world.a, 1000).await;
        assert!(!tickets.is_empty(), "{left} of them cannot be claimed");
        left -= tickets.len();
        for ticket in tickets {
            world.settle(ticket, DEAD).await;
        }
    }
    sent.into_iter().map(|sent| sent.id).collect()
}

pub(crate) async fn a_long_redrive_is_done_in_steps<H: Harness>(mut world: World<H>) {
    let ids = kill_all(&mut world, vec![to("a"); MANY]).await;
    while world.arrivals.try_recv().is_ok() {}
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), MANY as u64);
    let a = world.a;
    let told = |arrival: &Arrival| matches!(arrival, Arrival::Pending(endpoint) if *endpoint == a);
    let steps = std::iter::from_fn(|| world.arrivals.try_recv().ok()).filter(told).count();
    assert!(steps > 3, "{steps} for {MANY}");
    let status = world.store().status().await.unwrap();
    assert_eq!((status.pending, status.dead), (MANY as u64, 0));
    let claims = world.claim(world.a, MANY as u32).await;
    assert_eq!(claims.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), ids, "in original order");
}

pub(crate) async fn a_long_redrive_is_logged_once<H: Harness>(mut world: World<H>) {
    kill_all(&mut world, vec![to("a"); MANY]).await;
    world.store().redrive(Redrive::Endpoint("a".into())).await.unwrap();
    let events = world.events().await;
    let told: Vec<_> = events.iter().filter(|event| event.kind == "redrive").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].detail["messages"], MANY);
}

pub(crate) async fn a_long_redrive_keeps_the_order_of_every_key<H: Harness>(mut world: World<H>) {
    // Keys of one letter and of many, all mixed, and plain ones between them.
    let key = |at: usize| match at % 7 {
        0 | 3 => Some("often".to_owned()),
        5 => None,
        _ => Some(format!("k{}", at % 211)),
    };
    let message = |at: usize| NewMessage { ordering_key: key(at), ..to("a") };
    let dead = kill_all(&mut world, (0..MANY).map(message).collect()).await;
    let later = world.store().send_batch((0..300).map(message).collect()).await.unwrap();
    let mut expected: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
    let all = dead.into_iter().enumerate().chain(later.into_iter().map(|sent| sent.id).enumerate());
    all.for_each(|(at, id)| expected.entry(key(at)).or_default().push(id));

    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), MANY as u64);
    let mut started: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
    let keys: BTreeMap<MessageId, Option<String>> =
        expected.iter().flat_map(|(key, ids)| ids.iter().map(|id| (*id, key.clone()))).collect();
    loop {
        let tickets = world.claim(world.a, 1000).await;
        if tickets.is_empty() {
            break;
        }
        for ticket in tickets {
            started.entry(keys[&ticket.id].clone()).or_default().push(ticket.id);
            world.complete(ticket).await;
        }
    }
    // Plain ones have no order but that of being due, and what was sent later was due before.
    let plain = |of: &mut BTreeMap<Option<String>, Vec<MessageId>>| of.remove(&None).map(|ids| ids.len());
    assert_eq!(plain(&mut started), plain(&mut expected));
    assert_eq!(started, expected);
}

pub(crate) async fn a_redrive_that_does_not_fit_changes_nothing<H: Harness>(mut world: World<H>) {
    kill_all(&mut world, vec![to("a"); MANY]).await;
    world.endpoint("b", json!({})).await;
    world.configure("max_queue_size", MANY - 1).await;
    let refused = world.store().redrive(Redrive::All).await.unwrap_err();
    assert!(matches!(refused, StoreError::QueueFull { queued: 0, endpoint: None, .. }), "{refused:?}");
    world.configure("max_queue_size", 0).await;
    let change = postrider::endpoint::EndpointChange {
        options: Some(json!({"max_queue_size": MANY - 1})),
        ..Default::default()
    };
    world.store().alter_endpoint("a", change).await.unwrap();
    let refused = world.store().redrive(Redrive::All).await.unwrap_err();
    assert!(matches!(refused, StoreError::QueueFull { queued: 0, endpoint: Some(_), .. }), "{refused:?}");
    let status = world.store().status().await.unwrap();
    assert_eq!((status.pending, status.dead), (0, MANY as u64));
    let some = DlqFilter { limit: MANY - 1, ..DlqFilter::default() };
    assert_eq!(world.store().redrive(Redrive::Matching(some)).await.unwrap(), MANY as u64 - 1);
}

pub(crate) async fn racing_long_redrives_yield_one_message_each<H: Harness>(mut world: World<H>) {
    let message =
        |at: usize| NewMessage { ordering_key: at.is_multiple_of(3).then(|| "k".into()), ..to("a") };
    let ids = kill_all(&mut world, (0..MANY / 3).map(message).collect()).await;
    let again = || world.store().redrive(Redrive::All);
    let (one, two, three) = tokio::join!(again(), again(), again());
    assert_eq!(one.unwrap() + two.unwrap() + three.unwrap(), ids.len() as u64);
    assert_eq!(world.queued().await, ids.len() as u64);
    assert!(world.states(&ids).await.iter().all(|state| *state == State::Pending));
}
