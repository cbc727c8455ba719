//! Dead letters redriven or discarded by filter while applications are in the middle of their transactions.

use std::time::Duration;

use postrider::error::StoreError;
use postrider::store::postgres::send_in;
use postrider::store::{DlqFilter, Sweep, SweepAction, Sweeps};
use postrider::{NewMessage, Operate, PostgresStore, State, Store};
use serde_json::json;
use tokio::time::timeout;

use super::{Postgres, connect};
use crate::store::conformance::redriving::kill_all;
use crate::store::world::{World, to};

/// Whoever waits for nobody is done by then.
const SOON: Duration = Duration::from_secs(5);
/// A sweep asks for its keys again and again; by then it has come to wait for one.
const UNDER_WAY: Duration = Duration::from_millis(500);

async fn swept(store: &PostgresStore, action: SweepAction) -> Result<Sweep, StoreError> {
    let of_a = DlqFilter { endpoint: Some("a".into()), ..DlqFilter::default() };
    let mut sweep = store.sweep(action, of_a.clone(), None).await?;
    while let Some(next) = sweep.next {
        sweep = store.sweep(action, of_a.clone(), Some(next)).await?;
    }
    Ok(sweep)
}

/// Dead letters of endpoint `a`, each of a key of its own.
async fn of_many_keys(count: usize) -> World<Postgres> {
    let mut world = World::start().await;
    world.endpoint("b", json!({})).await;
    let messages: Vec<NewMessage> = (0..count).map(|n| to("a").ordering_key(format!("k{n}"))).collect();
    kill_all(&mut world, messages).await;
    world
}

#[tokio::test]
async fn a_sweep_waits_for_nobody_who_sends_other_keys() {
    for action in [SweepAction::Discard, SweepAction::Redrive] {
        let world = of_many_keys(200).await;
        let mut app = connect(&world).await;
        let open = app.transaction().await.unwrap();
        send_in(&open, &to("b").ordering_key("mine")).await.unwrap();
        let sweep = timeout(SOON, swept(world.store(), action)).await.expect("nobody is in its way");
        assert_eq!(sweep.unwrap().done, 200);
    }
}

#[tokio::test]
async fn a_redrive_that_waits_for_a_sender_holds_up_no_other_and_is_who_gives_way() {
    let world = of_many_keys(60).await;
    let mut app = connect(&world).await;
    let open = app.transaction().await.unwrap();
    send_in(&open, &to("a").ordering_key("k7")).await.unwrap();
    let application = async {
        tokio::time::sleep(UNDER_WAY).await;
        let other = world.store().send(to("b").ordering_key("other"));
        timeout(SOON, other).await.expect("other keys wait for nobody").unwrap();
        // In no order: each of them may be in the hands of the sweep, which waits for this very transaction.
        for n in (0..60).rev() {
            send_in(&open, &to("a").ordering_key(format!("k{n}"))).await.unwrap();
        }
        open.commit().await.unwrap();
    };
    let (sweep, ()) = tokio::join!(swept(world.store(), SweepAction::Redrive), application);
    assert_eq!(sweep.unwrap().done, 60);
}

#[tokio::test]
async fn a_redrive_gives_up_on_a_sender_who_never_commits_and_says_so() {
    let mut world = of_many_keys(1).await;
    let mut app = connect(&world).await;
    let open = app.transaction().await.unwrap();
    send_in(&open, &to("a").ordering_key("k0")).await.unwrap();
    let refused = swept(world.store(), SweepAction::Redrive).await.unwrap_err();
    let says = "a sender of ordering key \"k0\" has an open transaction";
    assert!(matches!(&refused, StoreError::Conflict(why) if why.contains(says)), "{refused:?}");
    open.rollback().await.unwrap();
    assert_eq!(swept(world.store(), SweepAction::Redrive).await.unwrap().done, 1);
    assert_eq!(world.claim(world.a, 10).await.len(), 1);
}

/// A sender in the middle of its transaction saw that the key is held, and goes behind it.
#[tokio::test]
async fn a_key_whose_dead_head_is_discarded_beside_a_sender_goes_on() {
    for by_filter in [true, false] {
        let mut world = World::<Postgres>::start().await;
        let change = postrider::endpoint::EndpointChange {
            options: Some(json!({"on_dead": "hold"})),
            ..Default::default()
        };
        world.store().alter_endpoint("a", change).await.unwrap();
        let head = world.send_to_death(to("a").ordering_key("k")).await;
        let mut app = connect(&world).await;
        let open = app.transaction().await.unwrap();
        let next = send_in(&open, &to("a").ordering_key("k")).await.unwrap().id;
        let discard = async {
            match by_filter {
                true => drop(swept(world.store(), SweepAction::Discard).await.unwrap()),
                false => world.store().discard(head.id).await.unwrap(),
            }
        };
        timeout(SOON, discard).await.expect("to give a letter up needs nobody else");
        open.commit().await.unwrap();
        assert_eq!(world.state(head.message).await, State::Dead);
        // A node looks again.
        world.store().upkeep(10).await.unwrap();
        assert_eq!(world.claim_ids().await, [next], "by_filter: {by_filter}");
    }
}
