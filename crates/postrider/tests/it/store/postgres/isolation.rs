//! Senders at every isolation level, and senders that race settling nodes.

use postrider::error::StoreError;
use postrider::store::postgres::send_in;
use postrider::tokio_postgres::{Client, IsolationLevel, Transaction};
use postrider::{MessageId, State, Store};

use super::{Postgres, connect};
use crate::store::world::{World, to};

const LEVELS: [IsolationLevel; 2] = [IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// A transaction that sees nothing of what is committed from now on.
async fn with_old_snapshot(app: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    let transaction = app.build_transaction().isolation_level(level).start().await.unwrap();
    transaction.query("SELECT FROM postrider.queue", &[]).await.unwrap();
    transaction
}

async fn deliver(world: &mut World<Postgres>, expected: &[MessageId]) {
    for id in expected {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, *id);
        world.complete(ticket).await;
    }
    assert_eq!(world.claim_ids().await, []);
}

#[tokio::test]
async fn a_sender_with_an_old_snapshot_stands_behind_what_it_cannot_see() {
    for level in LEVELS {
        let mut world = World::<Postgres>::start().await;
        let mut app = connect(&world).await;
        let transaction = with_old_snapshot(&mut app, level).await;
        let first = world.send(to("a").ordering_key("k")).await;
        let second = send_in(&transaction, &to("a").ordering_key("k")).await.unwrap().id;
        transaction.commit().await.unwrap();
        let third = world.send(to("a").ordering_key("k")).await;
        deliver(&mut world, &[first, second, third]).await;
    }
}

#[tokio::test]
async fn a_sender_with_an_old_snapshot_is_delivered_when_nothing_is_before_it() {
    for level in LEVELS {
        let mut world = World::<Postgres>::start().await;
        let mut app = connect(&world).await;
        // What it still sees was delivered long ago.
        let head = world.send(to("a").ordering_key("k")).await;
        let transaction = with_old_snapshot(&mut app, level).await;
        deliver(&mut world, &[head]).await;
        let sent = send_in(&transaction, &to("a").ordering_key("k")).await.unwrap().id;
        let plain = send_in(&transaction, &to("a")).await.unwrap().id;
        transaction.commit().await.unwrap();
        let mut claimed = world.claim_ids().await;
        claimed.sort();
        assert_eq!(claimed, [sent, plain]);
    }
}

#[tokio::test]
async fn a_loser_of_an_idempotency_key_that_cannot_see_the_winner_has_to_try_again() {
    let world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    let transaction = with_old_snapshot(&mut app, IsolationLevel::RepeatableRead).await;
    world.send(to("a").idempotency_key("i")).await;
    let lost = send_in(&transaction, &to("a").idempotency_key("i")).await.unwrap_err();
    assert!(matches!(&lost, StoreError::Unavailable(why) if why.contains("40001")), "{lost:?}");
}

#[tokio::test]
async fn a_key_goes_on_when_its_next_message_was_not_yet_committed() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    let head = world.send(to("a").ordering_key("k")).await;
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, head);
    let transaction = app.transaction().await.unwrap();
    let next = send_in(&transaction, &to("a").ordering_key("k")).await.unwrap().id;
    assert_eq!(world.complete(ticket).await.unblocked, None, "nothing to see yet");
    assert_eq!(world.claim_ids().await, []);
    transaction.commit().await.unwrap();
    assert_eq!(world.claim_ids().await, [next]);
}

#[tokio::test]
async fn a_key_goes_on_when_the_last_of_its_senders_rolled_back() {
    let mut world = World::<Postgres>::start().await;
    let (mut one, mut other) = (connect(&world).await, connect(&world).await);
    world.send(to("a").ordering_key("k")).await;
    let ticket = world.claim_one().await;
    let transaction = one.transaction().await.unwrap();
    let next = send_in(&transaction, &to("a").ordering_key("k")).await.unwrap().id;
    world.complete(ticket).await;
    transaction.commit().await.unwrap();
    // Another sender is at the key when the node looks, and nobody tells of its end.
    let transaction = other.transaction().await.unwrap();
    send_in(&transaction, &to("a").ordering_key("k")).await.unwrap();
    assert_eq!(world.store().waiting().await.unwrap(), []);
    transaction.rollback().await.unwrap();
    while world.arrivals.try_recv().is_ok() {}
    world.store().expire(10).await.unwrap();
    assert!(world.arrivals.try_recv().is_ok(), "whoever keeps house finds it");
    assert_eq!(world.claim_ids().await, [next]);
}

#[tokio::test]
async fn inserts_that_race_settles_lose_no_wake_up() {
    let mut world = World::<Postgres>::start().await;
    let mut current = world.send(to("a").ordering_key("k")).await;
    for round in 0..100 {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, current, "round {round}");
        let (settled, next) = tokio::join!(world.complete(ticket), world.send(to("a").ordering_key("k")));
        assert_eq!(settled.effect, postrider::store::Effect::Applied(State::Completed));
        current = next;
    }
    assert_eq!(world.claim_ids().await, [current]);
}
