//! Senders and others at every isolation level, and senders and nodes that race settling nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::endpoint::EndpointChange;
use postrider::error::StoreError;
use postrider::message::NodeId;
use postrider::store::postgres::{send_batch_in, send_in};
use postrider::store::{ClaimRequest, Effect, NoDirectClaims, Redrive};
use postrider::tokio_postgres::{Client, IsolationLevel, Transaction};
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use super::{Postgres, connect};
use crate::store::world::{Harness, Ticket, World, due, join, short_lived, to};

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
async fn a_reserved_idempotency_key_that_a_sender_cannot_see_makes_it_try_again() {
    for level in LEVELS {
        let mut world = World::<Postgres>::start().await;
        world.configure("idempotency_retention", 600).await;
        let mut app = connect(&world).await;
        let transaction = with_old_snapshot(&mut app, level).await;
        let sent = world.send(to("a").idempotency_key("i")).await;
        deliver(&mut world, &[sent]).await;
        let lost = send_in(&transaction, &to("a").idempotency_key("i")).await.unwrap_err();
        assert!(matches!(&lost, StoreError::Unavailable(why) if why.contains("40001")), "{lost:?}");
        transaction.rollback().await.unwrap();
        let transaction = with_old_snapshot(&mut app, level).await;
        let again = send_in(&transaction, &to("a").idempotency_key("i")).await.unwrap();
        assert_eq!((again.id, again.duplicate), (sent, true));
        let other = send_in(&transaction, &to("a").idempotency_key("j")).await.unwrap();
        assert_eq!(send_in(&transaction, &to("a").idempotency_key("j")).await.unwrap().id, other.id);
        transaction.commit().await.unwrap();
        deliver(&mut world, &[other.id]).await;
        let again = world.store().send(to("a").idempotency_key("j")).await.unwrap();
        assert_eq!((again.id, again.duplicate), (other.id, true));
        world.live(601).await;
        let transaction = with_old_snapshot(&mut app, level).await;
        assert!(!send_in(&transaction, &to("a").idempotency_key("j")).await.unwrap().duplicate);
        transaction.commit().await.unwrap();
    }
}

#[tokio::test]
async fn keys_go_on_however_many_others_a_long_transaction_sends_under() {
    let mut world = World::<Postgres>::start().await;
    let (mut long, mut short) = (connect(&world).await, connect(&world).await);
    let under = |name: &str, count: usize| -> Vec<_> {
        (0..count).map(|n| to("a").ordering_key(format!("{name}{n}"))).collect()
    };
    // More than are looked at in one step.
    let (held, free) = (under("held", 150), under("later", 20));
    world.store().send_batch([held.clone(), free.clone()].concat()).await.unwrap();
    let heads = world.claim(world.a, 200).await;
    assert_eq!(heads.len(), 170);
    let (long, short) = (long.transaction().await.unwrap(), short.transaction().await.unwrap());
    // One by one, because a batch of so many would lock others, too.
    for message in &held {
        send_in(&long, message).await.unwrap();
    }
    let next = send_batch_in(&short, &free).await.unwrap();
    for head in heads {
        assert_eq!(world.complete(head).await.unblocked, None, "nothing to see yet");
    }
    short.commit().await.unwrap();
    world.store().upkeep(10).await.unwrap();
    let mut claimed = world.claim_ids().await;
    claimed.sort();
    assert_eq!(claimed, next.iter().map(|sent| sent.id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_claim_looks_at_few_of_many_locked_keys_and_claims_come_around_to_all() {
    let mut world = World::<Postgres>::start().await;
    let (mut long, mut app) = (connect(&world).await, connect(&world).await);
    let long = long.transaction().await.unwrap();
    let lock = "SELECT postrider._lock_key(postrider._key(0, 'k' || n)) FROM generate_series(1, 500) AS n";
    long.query(lock, &[]).await.unwrap();
    let stall = "INSERT INTO postrider._stalled_keys (key)
                 SELECT postrider._key(0, 'k' || n) FROM generate_series(1, 500) AS n";
    app.execute(stall, &[]).await.unwrap();
    // As over the connections that claims go over.
    app.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off").await.unwrap();
    let claim = app.transaction().await.unwrap();
    let nothing = "SELECT FROM postrider._claim($1, 1000, false, '{}', '{}', '{}', '[]', '{}', '{}', '{}')";
    claim.query(nothing, &[&world.node.0]).await.unwrap();
    let read =
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = '_stalled_keys'";
    let read: i64 = claim.query_one(read, &[]).await.unwrap().get(0);
    claim.commit().await.unwrap();
    assert!(read <= 110, "{read} rows were read");
    let behind = world.send_keyed("free", 2).await[1];
    let stall = "INSERT INTO postrider._stalled_keys (key)
                 SELECT postrider._key(key_scope, ordering_key) FROM postrider.queue WHERE place = 1";
    app.execute(stall, &[]).await.unwrap();
    // Its head is gone, and nobody looked who is next.
    app.execute("DELETE FROM postrider.queue WHERE place = 0", &[]).await.unwrap();
    let mut claimed = Vec::new();
    for _ in 0..1000 {
        claimed = world.claim_ids().await;
        if !claimed.is_empty() {
            break;
        }
    }
    assert_eq!(claimed, [behind]);
}

#[tokio::test]
async fn a_key_that_waited_for_its_sender_goes_on_before_what_was_sent_later() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    world.send(to("a").ordering_key("k")).await;
    let sender = app.transaction().await.unwrap();
    let next = send_in(&sender, &to("a").ordering_key("k")).await.unwrap().id;
    let mut backlog = Vec::new();
    for _ in 0..8 {
        backlog.push(world.send(to("a")).await);
    }
    let first = world.claim(world.a, 3).await;
    assert_eq!(world.complete(first[0]).await.unblocked, None, "nothing to see yet");
    sender.commit().await.unwrap();
    let then: Vec<_> = world.claim(world.a, 3).await.iter().map(|ticket| ticket.id).collect();
    assert_eq!(then, [next, backlog[2], backlog[3]]);
}

#[tokio::test]
async fn a_node_that_is_past_a_key_is_told_when_somebody_lets_it_go() {
    let mut world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    let later = world.in_seconds(3600);
    let held = NewMessage { scheduled_at: Some(later), ..to("a").ordering_key("k") };
    let (head, next) = (world.send(held).await, world.send(to("a").ordering_key("k")).await);
    for _ in 0..40 {
        world.send(to("a")).await;
    }
    assert_eq!(world.claim(world.a, 2).await.len(), 2);
    app.execute("SELECT postrider.cancel_message($1)", &[&head.0]).await.unwrap();
    // As long as a backlog lasts, and much sooner than a claim would look from the beginning by itself.
    let began = Instant::now();
    while !world.claim(world.a, 1).await.iter().any(|ticket| ticket.id == next) {
        assert!(began.elapsed() < Duration::from_secs(1), "nobody told");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn keys_that_share_a_hash_are_ordered_together() {
    let mut world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    let same = "CREATE OR REPLACE FUNCTION postrider._key(p_scope bigint, p_key text) RETURNS bigint LANGUAGE sql IMMUTABLE
                PARALLEL SAFE AS $$ SELECT hashtextextended(left(p_key, 0), 0) $$";
    app.batch_execute(same).await.unwrap();
    let holding = world.endpoint("h", json!({"on_dead": "hold"})).await;
    let batch = ["x", "y", "x", "y"].map(|key| to("h").ordering_key(key)).to_vec();
    let ids: Vec<_> = world.store().send_batch(batch).await.unwrap().iter().map(|sent| sent.id).collect();
    let head = world.claim(holding, 10).await;
    assert_eq!(head.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), ids[..1]);
    world.die(head[0]).await;
    assert!(world.claim(holding, 10).await.is_empty(), "the dead one holds both");
    assert_eq!(
        world.reason(ids[1]).await,
        format!("behind key \"y\": held by dead message {}; redrive, discard or release it", ids[0])
    );
    world.store().cancel(ids[1]).await.unwrap();
    assert_eq!(world.store().release_key("y", None).await.unwrap(), 0, "it is the other one that holds");
    assert_eq!(world.store().release_key("x", None).await.unwrap(), 1);
    for id in &ids[2..] {
        let next = world.claim(holding, 10).await;
        assert_eq!(next.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [*id]);
        world.complete(next[0]).await;
    }
    let letter = world.letter_of(ids[0]).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    assert_eq!(world.claim(holding, 10).await[0].id, ids[0]);
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
    world.store().upkeep(10).await.unwrap();
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

#[tokio::test]
async fn who_cannot_see_what_nodes_deliver_takes_nothing_away_from_them() {
    for level in LEVELS {
        let mut world = World::<Postgres>::start().await;
        let mut app = connect(&world).await;
        let letter = world.send_to_death(to("a").ordering_key("k")).await;
        let ids = world.send_keyed("k", 2).await;
        let transaction = with_old_snapshot(&mut app, level).await;
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, ids[0]);
        for change in [
            format!("SELECT postrider.cancel_message({})", ids[0].0),
            format!("SELECT postrider.reschedule_message({}, postrider._now())", ids[0].0),
            format!("SELECT postrider.erase_message({})", ids[0].0),
            format!("SELECT postrider.redrive_message({})", letter.id),
            "SELECT postrider.mark_expired_messages()".to_owned(),
        ] {
            transaction.batch_execute("SAVEPOINT s").await.unwrap();
            let refused = transaction.batch_execute(&change).await.unwrap_err();
            let refused = refused.as_db_error().unwrap();
            assert_eq!(refused.code().code(), "55000", "{change}: {refused}");
            assert!(refused.message().contains("READ COMMITTED"), "{refused}");
            transaction.batch_execute("ROLLBACK TO s").await.unwrap();
        }
        transaction.commit().await.unwrap();
        assert_eq!(world.claim_ids().await, [], "the first one is still being delivered");
        world.complete(ticket).await;
        deliver(&mut world, &ids[1..]).await;
    }
}

#[tokio::test]
async fn a_key_goes_on_although_who_released_it_cannot_see_its_next_message() {
    for level in LEVELS {
        for way in ["release_key('k')", "discard_message(1)", "drop_endpoint('a', true)"] {
            let mut world = World::<Postgres>::start().await;
            let mut app = connect(&world).await;
            let (one, other) = ("a", "b");
            let options = json!({"on_dead": "hold", "key_scope": "global"});
            world.endpoint(other, options.clone()).await;
            let change = EndpointChange { options: Some(options), ..EndpointChange::default() };
            world.store().alter_endpoint(one, change).await.unwrap();
            world.send_to_death(to(one).ordering_key("k")).await;
            let transaction = with_old_snapshot(&mut app, level).await;
            let next = world.send(to(other).ordering_key("k")).await;
            transaction.batch_execute(&format!("SELECT postrider.{way}")).await.unwrap();
            transaction.commit().await.unwrap();
            world.store().upkeep(10).await.unwrap();
            assert_eq!(world.reason(next).await, "due now", "{way}");
        }
    }
}

#[tokio::test]
async fn an_expired_holder_is_left_to_the_nodes_by_who_cannot_see_whether_one_delivers_it() {
    let world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    world.send(short_lived(world.now()).idempotency_key("i")).await;
    world.live(11).await;
    let transaction = with_old_snapshot(&mut app, IsolationLevel::RepeatableRead).await;
    let lost = send_in(&transaction, &to("a").idempotency_key("i")).await.unwrap_err();
    assert!(matches!(&lost, StoreError::Unavailable(why) if why.contains("40001")), "{lost:?}");
    transaction.rollback().await.unwrap();
    assert_eq!(world.store().upkeep(10).await.unwrap().len(), 1);
    let transaction = with_old_snapshot(&mut app, IsolationLevel::RepeatableRead).await;
    assert!(!send_in(&transaction, &to("a").idempotency_key("i")).await.unwrap().duplicate);
}

/// For every connection that is made from now on.
async fn isolate_applications(world: &World<Postgres>, app: &Client) {
    let isolate = format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
        world.harness().database.name()
    );
    app.batch_execute(&isolate).await.unwrap();
}

#[tokio::test]
async fn people_can_cancel_and_redrive_whatever_is_set_for_applications() {
    let mut world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    let letter = world.send_to_death(to("a").ordering_key("k")).await;
    let pending = world.send(to("a")).await;
    isolate_applications(&world, &app).await;
    let store = world.harness().open().await;
    store.cancel(pending).await.unwrap();
    assert_eq!(store.redrive(Redrive::One(letter.id)).await.unwrap(), 1);
    assert_eq!(world.states(&[pending, letter.message]).await, [State::Cancelled, State::Pending]);
}

#[tokio::test]
async fn nodes_see_each_others_claims_whatever_is_set_for_applications() {
    let world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    isolate_applications(&world, &app).await;
    let stores = [world.harness().open().await, world.harness().open().await];
    let (one, other) = (
        join(&stores[0], Arc::new(NoDirectClaims)).await.0,
        join(&stores[1], Arc::new(NoDirectClaims)).await.0,
    );
    let sent = world.send(to("a")).await;
    let claim = |n: usize, node| {
        let request = ClaimRequest { node, batch: 1, wants: vec![due(world.a, 10)], alone: false };
        stores[n].claim(request)
    };
    app.execute("SELECT pg_advisory_lock(1886548337, $1)", &[&(world.a.0 as i32)]).await.unwrap();
    let both_wait = async {
        until_waiting(&app, 2).await;
        app.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
    };
    let (first, second, ()) = tokio::join!(claim(0, one), claim(1, other), both_wait);
    let claims: Vec<MessageId> = [first, second]
        .into_iter()
        .flat_map(|claimed| claimed.unwrap().claims)
        .map(|c| c.message.id)
        .collect();
    assert_eq!(claims, [sent], "exactly one of them has it");
}

/// What a node does with the claim of another one whose lease ran out: it is lost, and claimed anew.
async fn take_over(transaction: &Transaction<'_>, late: Ticket, heir: NodeId) {
    let lose = "SELECT postrider._settle($1, NULL, ARRAY[ROW($2, $3, $4, $5, 'retry', postrider._now(), NULL, false, NULL,
                  ROW(1, $4, postrider._now(), '1 s', 'lost', 'retryable', 'lease expired', NULL, NULL))]
                  ::postrider._settlement[], '{}', NULL, false)";
    let fence = (&late.fence.node.0, &late.fence.batch);
    transaction.query(lose, &[&heir.0, &late.id.0, &late.endpoint.0, fence.0, fence.1]).await.unwrap();
    let claim = "SELECT FROM postrider._claim($1, 1, true, ARRAY[$2::bigint], ARRAY[1], ARRAY['suspects'],
                   jsonb_build_array(jsonb_build_array($3::bigint)), ARRAY[NULL]::smallint[], ARRAY[NULL]::timestamptz[],
                   ARRAY[NULL]::bigint[]) WHERE id IS NOT NULL";
    let claimed = transaction.query(claim, &[&heir.0, &late.endpoint.0, &late.id.0]).await.unwrap();
    assert_eq!(claimed.len(), 1);
}

async fn until_somebody_waits(app: &Client) {
    until_waiting(app, 1).await;
}

/// Until so many wait for a lock.
pub(super) async fn until_waiting(app: &Client, count: i64) {
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let deadline = Instant::now() + Duration::from_secs(20);
    while app.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < count {
        assert!(Instant::now() < deadline, "they do not wait");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_delivery_that_meets_the_loss_of_its_claim_does_not_end_the_next_one() {
    let mut world = World::<Postgres>::start().await;
    let id = world.send(to("a").ordering_key("k")).await;
    let behind = world.send(to("a").ordering_key("k")).await;
    let late = world.claim_one().await;
    let heir = world.another_node().await;
    let (mut judge, onlooker) = (connect(&world).await, connect(&world).await);
    let transaction = judge.transaction().await.unwrap();
    take_over(&transaction, late, heir).await;
    let judging = async {
        until_somebody_waits(&onlooker).await;
        transaction.commit().await.unwrap();
    };
    let (settled, ()) = tokio::join!(world.complete(late), judging);
    assert_eq!(settled.effect, Effect::Noted);
    assert_eq!(world.states(&[id, behind]).await, [State::Processing, State::Pending]);
}
