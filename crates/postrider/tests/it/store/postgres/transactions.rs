//! Sends inside applications' own transactions, which stay open as long as they like.

use std::time::Duration;

use futures_util::future::join_all;
use postrider::error::StoreError;
use postrider::store::postgres::{publish_batch_in, publish_in, send_batch_in, send_in};
use postrider::{
    MessageId, NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PubSub, State, Store,
};
use serde_json::json;
use test_servers::PgBouncer;

use super::isolation::until_waiting;
use super::{Postgres, connect};
use crate::store::world::{World, to};

/// Long enough to tell one that waits from one that is slow.
const A_WHILE: Duration = Duration::from_millis(200);

/// Claims and completes all there is, one after the other.
pub(super) async fn deliver_all(world: &mut World<Postgres>) -> Vec<MessageId> {
    let mut delivered = Vec::new();
    while let Some(ticket) = world.claim(world.a, 1).await.first() {
        delivered.push(ticket.id);
        world.complete(*ticket).await;
    }
    delivered
}

#[tokio::test]
async fn a_message_commits_with_the_data_it_belongs_to() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    app.batch_execute("CREATE TABLE orders (total integer)").await.unwrap();
    let transaction = app.transaction().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES (4200)", &[]).await.unwrap();
    let sent = send_in(&transaction, &to("a").ordering_key("k")).await.unwrap();
    assert_eq!(world.claim_ids().await, [], "not before it is committed");
    transaction.commit().await.unwrap();
    let story = world.story(sent.id).await;
    assert_eq!((story.state, story.ordering_key.as_deref()), (State::Pending, Some("k")));
    assert_eq!(story.payload, Some(to("a").payload));
    assert_eq!(world.claim_ids().await, [sent.id]);
}

/// The server tells of an error before it lets go of what the transaction held.
#[tokio::test]
async fn what_is_refused_holds_nothing_any_more_when_that_is_told() {
    let world = World::<Postgres>::start().await;
    let expires = NewMessage { expires_at: Some(world.in_seconds(60)), ..to("a") };
    let id = world.send(expires).await;
    let app = connect(&world).await;
    let free = app.prepare("SELECT FROM postrider.queue WHERE id = $1 FOR UPDATE NOWAIT").await.unwrap();
    for round in 0..500 {
        world.store().reschedule(id, world.in_seconds(60)).await.unwrap_err();
        assert_eq!(app.execute(&free, &[&id.0]).await.unwrap(), 1, "{round}");
    }
}

#[tokio::test]
async fn a_rolled_back_message_never_existed() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    let message = to("a").ordering_key("k").idempotency_key("i");
    let transaction = app.transaction().await.unwrap();
    let sent = send_in(&transaction, &message).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(matches!(world.store().story(sent.id).await, Err(StoreError::Unknown { .. })));
    assert_eq!(world.claim_ids().await, []);
    let again = world.store().send(message).await.unwrap();
    assert!(!again.duplicate, "its idempotency key was never taken");
    assert_eq!(world.claim_ids().await, [again.id], "nor does it stand before others of its ordering key");
}

/// With an event type that endpoint `a` wants twice.
pub(super) async fn with_orders() -> World<Postgres> {
    let world = World::<Postgres>::start().await;
    world.store().create_event_type(NewEventType::new("orders")).await.unwrap();
    for pattern in ["orders", "*"] {
        world.store().subscribe(NewSubscription::new(pattern, "a")).await.unwrap();
    }
    world
}

#[tokio::test]
async fn an_event_commits_or_rolls_back_with_the_data_it_belongs_to() {
    let world = with_orders().await;
    let mut app = connect(&world).await;
    let event = NewEvent::new("orders", "1").idempotency_key("i");
    let transaction = app.transaction().await.unwrap();
    assert_eq!(publish_in(&transaction, &event).await.unwrap(), 2);
    transaction.rollback().await.unwrap();
    assert_eq!(world.queued().await, 0);
    let transaction = app.transaction().await.unwrap();
    assert_eq!(publish_in(&transaction, &event).await.unwrap(), 2);
    let batch = [event, NewEvent::new("orders", "2")];
    assert_eq!(publish_batch_in(&transaction, &batch).await.unwrap(), 2, "one was there already");
    transaction.commit().await.unwrap();
    assert_eq!(world.queued().await, 4);
    let refused = publish_in(&app, &NewEvent::new("nothing", "1")).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no event type \"nothing\"");
}

#[tokio::test]
async fn an_error_says_what_is_wrong_and_a_savepoint_keeps_the_transaction() {
    let world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    let mut transaction = app.transaction().await.unwrap();
    let savepoint = transaction.savepoint("attempt").await.unwrap();
    let refused = send_batch_in(&savepoint, &[to("a"), NewMessage { priority: 11, ..to("a") }]).await;
    assert!(
        matches!(&refused, Err(StoreError::Invalid(invalid)) if invalid.field == "priority"),
        "{refused:?}"
    );
    savepoint.rollback().await.unwrap();
    send_in(&transaction, &to("a")).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(world.queued().await, 1);
}

#[tokio::test]
async fn a_key_is_delivered_in_commit_order_though_transactions_interleave() {
    let mut world = World::<Postgres>::start().await;
    let (mut one, other) = (connect(&world).await, connect(&world).await);
    let keyed = to("a").ordering_key("k");
    let first = one.transaction().await.unwrap();
    let mut expected = vec![send_in(&first, &keyed).await.unwrap().id];
    let mut second = tokio::spawn({
        let keyed = keyed.clone();
        async move { send_in(&other, &keyed).await.unwrap().id }
    });
    assert!(tokio::time::timeout(A_WHILE, &mut second).await.is_err(), "it waits for the first to commit");
    let unrelated = world.send(to("a").ordering_key("other")).await;
    assert_eq!(deliver_all(&mut world).await, [unrelated], "other keys wait for nobody");
    expected.push(send_in(&first, &keyed).await.unwrap().id);
    first.commit().await.unwrap();
    expected.push(second.await.unwrap());
    expected.push(world.send(keyed).await);
    assert_eq!(deliver_all(&mut world).await, expected);
}

#[tokio::test]
async fn of_two_transactions_under_one_idempotency_key_the_second_gets_the_message_of_the_first() {
    let world = World::<Postgres>::start().await;
    let (mut one, other, onlooker) = (connect(&world).await, connect(&world).await, connect(&world).await);
    let send = "SELECT postrider.send_with_options('a', '1', p_idempotency_key => 'i')";
    let first = one.transaction().await.unwrap();
    let sent: i64 = first.query_one(send, &[]).await.unwrap().get(0);
    let second = tokio::spawn(async move { other.query_one(send, &[]).await });
    until_waiting(&onlooker, 1).await;
    first.commit().await.unwrap();
    assert_eq!(second.await.unwrap().unwrap().get::<_, i64>(0), sent);
    assert_eq!(world.queued().await, 1);
}

/// As many as there are connections for those who may wait.
#[tokio::test]
async fn senders_who_wait_for_a_key_hold_up_nobody_else_and_are_given_up() {
    let world = World::<Postgres>::start().await;
    let (mut app, onlooker) = (connect(&world).await, connect(&world).await);
    let transaction = app.transaction().await.unwrap();
    send_in(&transaction, &to("a").ordering_key("k")).await.unwrap();
    let store = world.store();
    let others = async {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while onlooker.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < 8 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        store.settings().await.unwrap();
        store.status().await.unwrap();
        store.send(to("a")).await.unwrap();
        store.send_batch(vec![to("a"), to("a")]).await.unwrap();
        onlooker.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0)
    };
    let waiters = join_all((0..8).map(|_| store.send(to("a").ordering_key("k"))));
    let both = async { tokio::join!(others, waiters) };
    let deadline = Duration::from_secs(60);
    let (still_waiting, given_up) =
        tokio::time::timeout(deadline, both).await.expect("nobody waits for ever");
    assert!(still_waiting > 0, "the others did not wait until the senders were given up");
    for sent in given_up {
        let Err(StoreError::Unavailable(why)) = sent else { panic!("the key is still locked: {sent:?}") };
        assert!(why.contains("another transaction"), "{why}");
    }
    transaction.commit().await.unwrap();
    store.send(to("a").ordering_key("k")).await.unwrap();
    assert_eq!(world.queued().await, 5);
}

/// What it committed too late stands before others in the global namespace of keys.
#[tokio::test]
async fn messages_to_an_endpoint_that_was_dropped_meanwhile_hold_up_their_key_no_longer_than_a_second() {
    let mut world = World::<Postgres>::start().await;
    let global = || json!({"key_scope": "global"});
    world.endpoint("dropped", global()).await;
    let lasting = world.endpoint("lasting", global()).await;
    let mut app = connect(&world).await;
    let transaction = app.transaction().await.unwrap();
    let mut orphans = Vec::new();
    for _ in 0..5 {
        orphans.push(send_in(&transaction, &to("dropped").ordering_key("k")).await.unwrap().id);
    }
    let behind = send_in(&transaction, &to("lasting").ordering_key("k")).await.unwrap().id;
    world.store().drop_endpoint("dropped", true).await.unwrap();
    transaction.commit().await.unwrap();
    world.store().upkeep(100).await.unwrap();
    assert_eq!(world.states(&orphans).await, [State::Cancelled; 5]);
    let claimed: Vec<MessageId> = world.claim(lasting, 10).await.iter().map(|ticket| ticket.id).collect();
    assert_eq!(claimed, [behind]);
}

#[tokio::test]
async fn ids_that_commit_out_of_order_lose_nothing() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    let early = app.transaction().await.unwrap();
    let first = send_in(&early, &to("a")).await.unwrap().id;
    let mut later = Vec::new();
    for _ in 0..5 {
        later.push(world.send(to("a")).await);
    }
    // Two at a time, so that claims remember where they ended.
    for pair in later.chunks(2) {
        let claims = world.claim(world.a, 2).await;
        assert_eq!(claims.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), pair);
    }
    early.commit().await.unwrap();
    assert_eq!(world.claim_ids().await, [first], "behind everything that was claimed already");
}

#[tokio::test]
async fn two_batches_with_the_same_keys_in_opposite_order_wait_for_each_other() {
    let mut world = World::<Postgres>::start().await;
    let batch: Vec<NewMessage> = (0..10).map(|n| to("a").ordering_key(format!("k{n}"))).collect();
    let reversed: Vec<NewMessage> = batch.iter().rev().cloned().collect();
    for _ in 0..20 {
        let store = world.store();
        let both = tokio::join!(store.send_batch(batch.clone()), store.send_batch(reversed.clone()));
        both.0.unwrap();
        both.1.unwrap();
    }
    assert_eq!(deliver_all(&mut world).await.len(), 400);
}

#[tokio::test]
async fn an_open_transaction_that_cancels_a_message_holds_up_no_claim() {
    let mut world = World::<Postgres>::start().await;
    let keyed = world.send_keyed("k", 2).await;
    let plain = [world.send(to("a")).await, world.send(to("a")).await];
    for decided in ["ROLLBACK", "COMMIT"] {
        let app = connect(&world).await;
        app.batch_execute("BEGIN").await.unwrap();
        app.execute("SELECT postrider.cancel_message($1)", &[&keyed[0].0]).await.unwrap();
        let claims = tokio::time::timeout(Duration::from_secs(5), world.claim(world.a, 1)).await;
        let claims = claims.expect("nobody waits for an application");
        assert_eq!(claims.len(), 1);
        assert!(plain.contains(&claims[0].id));
        world.complete(claims[0]).await;
        app.batch_execute(decided).await.unwrap();
    }
    assert_eq!(world.states(&keyed).await, [State::Cancelled, State::Pending]);
    assert_eq!(deliver_all(&mut world).await, keyed[1..]);
}

/// The database by way of a PgBouncer in transaction mode, as long as that is kept.
pub(super) fn behind_pgbouncer(world: &World<Postgres>) -> (PgBouncer, String) {
    let database = &world.harness().database;
    let bouncer = PgBouncer::before(database.port()).expect("a PgBouncer");
    let url = bouncer.url(database.owner(), database.name());
    (bouncer, url)
}

#[tokio::test]
async fn senders_behind_pgbouncer_share_connections() {
    let mut world = World::<Postgres>::start().await;
    let (_bouncer, url) = behind_pgbouncer(&world);
    let mut apps = Vec::new();
    for _ in 0..5 {
        let no_tls = postrider::tokio_postgres::NoTls;
        let (client, connection) = postrider::tokio_postgres::connect(&url, no_tls).await.unwrap();
        tokio::spawn(connection);
        apps.push(client);
    }
    let mut sent = Vec::new();
    for round in 0..20 {
        let app = &mut apps[round % 5];
        let transaction = app.transaction().await.unwrap();
        sent.push(send_in(&transaction, &to("a").ordering_key("k")).await.unwrap().id);
        let batch = [to("a").ordering_key("k"), to("a").ordering_key("k")];
        sent.extend(send_batch_in(&transaction, &batch).await.unwrap().iter().map(|sent| sent.id));
        transaction.commit().await.unwrap();
    }
    assert_eq!(deliver_all(&mut world).await, sent);
}

#[tokio::test]
async fn ten_thousand_keys_fit_into_one_transaction() {
    let mut world = World::<Postgres>::start().await;
    let batch: Vec<NewMessage> = (0..10_000).map(|n| to("a").ordering_key(format!("k{n}"))).collect();
    let sent = world.store().send_batch(batch).await.unwrap();
    assert_eq!(sent.len(), 10_000);
    let claims = world.claim(world.a, 10_000).await;
    assert_eq!(claims.len(), 10_000, "each of them is the head of its key");
}

#[tokio::test]
async fn an_application_needs_no_rights_but_its_own() {
    let database = test_servers::Database::empty().await;
    let url = database.superuser_url();
    let left = postrider::PostgresStore::migrate(&url).await.unwrap();
    assert_eq!(left, [""; 0], "a superuser may make roles");
    let store =
        postrider::PostgresStore::open(postrider::store::postgres::PostgresOptions::new(&url)).await.unwrap();
    store.create_endpoint(crate::store::world::new_endpoint("a", serde_json::json!({}))).await.unwrap();
    let grant = format!("GRANT postrider_application TO {}", database.owner());
    database.connect_as_superuser().await.batch_execute(&grant).await.unwrap();
    let app = database.connect().await;
    let sent = send_in(&app, &to("a").idempotency_key("i")).await.unwrap();
    let again = send_in(&app, &to("a").idempotency_key("i")).await.unwrap();
    assert_eq!((again.id, again.duplicate), (sent.id, true));
    send_batch_in(&app, &[to("a"), to("a").ordering_key("k")]).await.unwrap();
    assert!(app.query("SELECT payload FROM postrider.queue", &[]).await.is_err());
}

/// Keys of this scope, those first that a small batch locks first; with the stripe of each.
async fn striped_keys(app: &postrider::tokio_postgres::Client, scope: i64) -> Vec<(String, i32)> {
    let keys = "SELECT k, postrider._key_stripe(postrider._key($1, k)) FROM (SELECT 'x' || n AS k FROM generate_series(1, 300) AS n) AS keys
                ORDER BY postrider._key($1, k)";
    app.query(keys, &[&scope]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// One batch has a few keys, the other so many that it locks stripes of keys instead. `keyed` gives a message its key.
async fn batches_of_few_and_of_many_keys(
    endpoints: [&str; 2],
    keyed: impl Fn(NewMessage, &str) -> NewMessage,
    scopes: [i64; 2],
) {
    let world = World::<Postgres>::start().await;
    world.endpoint("b", serde_json::json!({})).await;
    let (mut one, mut few, mut many) = (connect(&world).await, connect(&world).await, connect(&world).await);
    let high = striped_keys(&one, scopes[0]).await.into_iter().find(|(_, stripe)| *stripe > 60).unwrap().0;
    let low = striped_keys(&one, scopes[1]).await.into_iter().rfind(|(_, stripe)| *stripe < 3).unwrap().0;
    let first = keyed(to(endpoints[0]), &high);
    let in_the_middle = one.transaction().await.unwrap();
    send_in(&in_the_middle, &first).await.unwrap();
    let of_few = [first, keyed(to(endpoints[1]), &low)];
    let of_many: Vec<NewMessage> = (0..500).map(|n| keyed(to("a"), &format!("y{n}"))).collect();
    let (few, many) = (few.transaction().await.unwrap(), many.transaction().await.unwrap());
    let send_few = async {
        send_batch_in(&few, &of_few).await.unwrap();
        few.commit().await.unwrap();
    };
    let send_many = async {
        tokio::time::sleep(A_WHILE).await;
        send_batch_in(&many, &of_many).await.unwrap();
        many.commit().await.unwrap();
    };
    let let_them_go = async {
        tokio::time::sleep(A_WHILE * 2).await;
        in_the_middle.rollback().await.unwrap();
    };
    tokio::join!(send_few, send_many, let_them_go);
}

#[tokio::test]
async fn batches_of_few_and_of_many_keys_never_wait_in_a_circle() {
    let ordered = |message: NewMessage, key: &str| message.ordering_key(key);
    batches_of_few_and_of_many_keys(["a", "a"], ordered, [1, 1]).await;
    batches_of_few_and_of_many_keys(["a", "b"], ordered, [1, 2]).await;
    let idempotent = |message: NewMessage, key: &str| message.idempotency_key(key);
    batches_of_few_and_of_many_keys(["a", "b"], idempotent, [!1, !2]).await;
}

#[tokio::test]
async fn a_sender_that_knew_a_short_queue_does_not_read_all_of_a_long_one() {
    let world = World::<Postgres>::start().await;
    let (mut app, other) = (connect(&world).await, connect(&world).await);
    other.batch_execute("ALTER TABLE postrider.queue SET (autovacuum_enabled = off)").await.unwrap();
    let message = |n: usize| to("a").ordering_key(format!("k{n}")).idempotency_key(format!("i{n}"));
    for n in 0..20 {
        // Plans made for so few are kept.
        if n == 5 {
            other.batch_execute("VACUUM ANALYZE postrider.queue").await.unwrap();
        }
        send_in(&app, &message(n)).await.unwrap();
    }
    let many = "SELECT postrider.send_batch('a', array_agg(to_jsonb(n))) FROM generate_series(1, 10000) AS n";
    other.query(many, &[]).await.unwrap();
    let transaction = app.transaction().await.unwrap();
    send_in(&transaction, &message(20)).await.unwrap();
    let read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relid = 'postrider.queue'::regclass";
    let read: i64 = transaction.query_one(read, &[]).await.unwrap().get(0);
    assert_eq!(read, 0, "rows were read without an index");
}

/// Whoever erases waits for those who have the message in hand, and then finds it wherever they put it.
#[tokio::test]
async fn what_moves_meanwhile_is_erased_all_the_same() {
    let mut world = World::<Postgres>::start().await;
    let letter = world.send_to_death(to("a")).await;
    let pending = world.send(to("a")).await;
    let mut app = connect(&world).await;
    for (moving, message) in [
        (format!("SELECT postrider.redrive_message({})", letter.id), letter.message),
        (format!("SELECT postrider.cancel_message({pending})"), pending),
    ] {
        let transaction = app.transaction().await.unwrap();
        transaction.batch_execute(&moving).await.unwrap();
        let mut erasing = std::pin::pin!(world.store().erase(message));
        assert!(tokio::time::timeout(A_WHILE, &mut erasing).await.is_err(), "it waits");
        transaction.commit().await.unwrap();
        erasing.await.unwrap();
        let story = world.story(message).await;
        assert_eq!((story.state, story.payload), (State::Cancelled, None), "{moving}");
    }
}
