//! Sends inside applications' own sqlx transactions.

use postrider::sqlx::postgres::PgConnectOptions;
use postrider::sqlx::{Connection, PgConnection};
use postrider::store::postgres;
use postrider::store::postgres::sqlx::{publish_batch_in, publish_in, send_batch_in, send_in};
use postrider::{NewEvent, NewMessage, Operate, State, StoreError};
use serde_json::json;

use super::Postgres;
use super::transactions::{behind_pgbouncer, deliver_all, with_orders};
use crate::store::world::{World, new_endpoint, to};

async fn connect(url: &str) -> PgConnection {
    // PgBouncer knows nothing of what sqlx would ask for.
    let options = url.parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
    PgConnection::connect_with(&options).await.unwrap()
}

async fn app(world: &World<Postgres>) -> PgConnection {
    connect(&world.harness().database.url()).await
}

/// Every field that a message has.
fn complete(world: &World<Postgres>) -> NewMessage {
    let options = json!({ "max_attempts": 3 });
    NewMessage {
        headers: [("shop".to_owned(), "one".to_owned())].into(),
        options: options.as_object().unwrap().clone(),
        priority: 7,
        scheduled_at: Some(world.in_seconds(10)),
        expires_at: Some(world.in_seconds(60)),
        correlation_id: Some("0191d6f8-4f6e-7c7b-8d6e-0f3c2b1a0e5d".parse().unwrap()),
        event_type: Some("order.placed".to_owned()),
        content_type: "text/plain".to_owned(),
        ..to("a").ordering_key("k").idempotency_key("i")
    }
}

#[tokio::test]
async fn a_message_commits_with_the_data_it_belongs_to() {
    let mut world = World::<Postgres>::start().await;
    let mut app = app(&world).await;
    let mut transaction = app.begin().await.unwrap();
    postrider::sqlx::query("CREATE TABLE orders (total integer)").execute(&mut *transaction).await.unwrap();
    let sent = send_in(&mut transaction, &to("a").ordering_key("k")).await.unwrap();
    assert_eq!(world.claim_ids().await, [], "not before it is committed");
    transaction.commit().await.unwrap();
    assert_eq!(world.claim_ids().await, [sent.id]);
    let orders = super::connect(&world).await.query("SELECT FROM orders", &[]).await;
    assert!(orders.unwrap().is_empty(), "and the table is there");
}

#[tokio::test]
async fn an_event_commits_or_rolls_back_with_the_data_it_belongs_to() {
    let world = with_orders().await;
    let mut app = app(&world).await;
    let event = NewEvent::new("orders", "1").idempotency_key("i");
    let mut transaction = app.begin().await.unwrap();
    assert_eq!(publish_in(&mut transaction, &event).await.unwrap(), 2);
    transaction.rollback().await.unwrap();
    assert_eq!(world.queued().await, 0);
    let mut transaction = app.begin().await.unwrap();
    assert_eq!(publish_in(&mut transaction, &event).await.unwrap(), 2);
    let batch = [event, NewEvent::new("orders", "2")];
    assert_eq!(publish_batch_in(&mut transaction, &batch).await.unwrap(), 2, "one was there already");
    transaction.commit().await.unwrap();
    assert_eq!(world.queued().await, 4);
    let refused = publish_in(&mut app, &NewEvent::new("nothing", "1")).await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no event type \"nothing\"");
}

#[tokio::test]
async fn a_rolled_back_message_never_existed() {
    let mut world = World::<Postgres>::start().await;
    let mut app = app(&world).await;
    let mut transaction = app.begin().await.unwrap();
    let one = send_in(&mut transaction, &to("a").ordering_key("k")).await.unwrap();
    let batch = send_batch_in(&mut transaction, &[to("a"), to("a")]).await.unwrap();
    transaction.rollback().await.unwrap();
    for sent in batch.iter().chain([&one]) {
        assert!(matches!(world.store().story(sent.id).await, Err(StoreError::Unknown { .. })));
    }
    assert_eq!(world.claim_ids().await, []);
}

#[tokio::test]
async fn every_field_arrives_as_through_the_stores_own_driver() {
    let world = World::<Postgres>::start().await;
    let mut app = app(&world).await;
    let message = complete(&world);
    let plain = send_in(&mut app, &message).await.unwrap();
    assert!(send_in(&mut app, &message).await.unwrap().duplicate);
    let other = NewMessage { idempotency_key: Some("other".to_owned()), ..message.clone() };
    let batch = send_batch_in(&mut app, &[to("a"), other.clone()]).await.unwrap();
    let own = NewMessage { idempotency_key: Some("own".to_owned()), ..message };
    let expected = world.story(world.send(own).await).await;
    for id in [plain.id, batch[1].id] {
        let mut story = world.story(id).await;
        (story.id, story.idempotency_key) = (expected.id, expected.idempotency_key.clone());
        story.reason.clone_from(&expected.reason);
        assert_eq!(story, expected);
    }
    assert_eq!(world.state(batch[0].id).await, State::Pending);
}

#[tokio::test]
async fn every_refusal_is_the_same_typed_error() {
    let world = World::<Postgres>::start().await;
    world.store().create_endpoint(new_endpoint("full", json!({ "max_queue_size": 1 }))).await.unwrap();
    world.send(to("full")).await;
    world.endpoint("disabled", json!({})).await;
    world.store().set_endpoint_enabled("disabled", false).await.unwrap();
    world.send(to("a").idempotency_key("taken")).await;
    // What is full is counted once a second.
    postrider::Store::upkeep(world.store(), 1).await.unwrap();
    let other_payload = NewMessage { payload: "2".into(), ..to("a").idempotency_key("taken") };
    let refused = [
        ("Unknown", to("nowhere")),
        ("Disabled", to("disabled")),
        ("Invalid", NewMessage { priority: 11, ..to("a") }),
        ("Invalid", to("a").ordering_key("\0")),
        ("TooLarge", NewMessage { payload: vec![b'1'; 1_048_577].into(), ..to("a") }),
        ("IdempotencyConflict", other_payload),
        ("QueueFull", to("full")),
    ];
    let own = super::connect(&world).await;
    let mut app = app(&world).await;
    for (kind, message) in refused {
        let expected = format!("{:?}", postgres::send_in(&own, &message).await.unwrap_err());
        assert!(expected.starts_with(kind), "{expected}");
        let error = send_in(&mut app, &message).await.unwrap_err();
        assert_eq!(format!("{error:?}"), expected);
        let error = send_batch_in(&mut app, &[message]).await.unwrap_err();
        assert!(format!("{error:?}").starts_with(kind), "{error:?}");
    }
    let cut = "SELECT pg_terminate_backend(pg_backend_pid())";
    postrider::sqlx::query(cut).execute(&mut app).await.unwrap_err();
    let error = send_in(&mut app, &to("a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn senders_behind_pgbouncer_share_connections() {
    let mut world = World::<Postgres>::start().await;
    let (_bouncer, url) = behind_pgbouncer(&world);
    let mut apps = Vec::new();
    for _ in 0..4 {
        apps.push(connect(&url).await);
    }
    let mut sent = Vec::new();
    // Each on the one connection that the others used before: what they prepared there is not theirs.
    for round in 0..12 {
        let mut transaction = apps[round % 4].begin().await.unwrap();
        sent.push(send_in(&mut transaction, &to("a").ordering_key("k")).await.unwrap().id);
        let batch = [to("a").ordering_key("k"), to("a").ordering_key("k")];
        sent.extend(send_batch_in(&mut transaction, &batch).await.unwrap().iter().map(|sent| sent.id));
        transaction.commit().await.unwrap();
    }
    assert_eq!(deliver_all(&mut world).await, sent);
}
