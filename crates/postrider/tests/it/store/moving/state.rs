//! Every kind of state there is, compared on both sides.

use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use postrider::breaker::Circuit;
use postrider::endpoint::{EndpointChange, EndpointId};
use postrider::rate::{Interval, RateLimit};
use postrider::rusqlite::Connection;
use postrider::store::{
    AttemptOutcome, AttemptRecord, DlqFilter, End, NewReplay, NewToken, Redrive, ReplaySelection,
    ReplayState, ReplayStatus, ReplayTurn, Replays, Scope, Tokens,
};
use postrider::verdict::{DeadReason, Verdict};
use postrider::{
    Json, MessageId, NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PostgresStore, PubSub,
    State, Store,
};
use serde_json::json;
use test_servers::{Binaries, Database};

use super::super::postgres::{Postgres, migrated};
use super::super::sqlite::Sqlite;
use super::super::world::{Harness, Slots, World, due, join, retry_at, short_lived, to};
use super::picture::{self, Picture};
use super::{destination, import, taken};

const DAY: u64 = 24 * 3600;

/// A store in which everything has happened at least once.
async fn lived_in() -> World<Sqlite> {
    let mut world = World::<Sqlite>::start().await;
    for (name, value) in [("idempotency_retention", "1000000"), ("attempt_log", "all"), ("archive", "on")] {
        world.configure(name, value).await;
    }
    for (name, scope) in [("shop", Scope::Application), ("operator", Scope::Admin)] {
        world.store().create_token(NewToken { name: name.to_owned(), scope }).await.unwrap();
    }
    world.endpoint("hold", json!({"on_dead": "hold"})).await;
    world.endpoint("global", json!({"key_scope": "global"})).await;
    archive(&mut world).await;
    // The archive gets another month.
    world.live(1).await;
    world.advance(40 * DAY);
    world.crash().await;
    archive(&mut world).await;
    endpoints(&mut world).await;
    dead_letters(&mut world).await;
    events(&mut world).await;
    queue(&mut world).await;
    replays(&world).await;
    world
}

/// Types, subscriptions, messages of an event, and one that was invalid.
async fn events(world: &mut World<Sqlite>) {
    let schema = Json::parse(br#"{"minimum": 12345678901234567890123}"#).unwrap();
    let described = NewEventType {
        description: Some("It is".into()),
        schema: Some(schema),
        ..NewEventType::new("large")
    };
    for new in [described, NewEventType::new("orders.created")] {
        world.store().create_event_type(new).await.unwrap();
    }
    let filter = Json::parse(br#"{"total": 12345678901234567890123}"#).unwrap();
    let filtered = NewSubscription::new("orders.*", "hold").filter(filter).template(json!("{{/total}}"));
    let ids = [
        world.store().subscribe(filtered).await.unwrap().subscription.id,
        world.store().subscribe(NewSubscription::new("*", "a")).await.unwrap().subscription.id,
        world.store().subscribe(NewSubscription::new("large", "hold")).await.unwrap().subscription.id,
    ];
    world.store().set_subscription_enabled(ids[1], false).await.unwrap();
    world.store().unsubscribe(ids[2]).await.unwrap();
    let event = NewEvent::new("orders.created", r#"{"total": 12345678901234567890123}"#);
    assert_eq!(world.store().publish(event.idempotency_key("published")).await.unwrap(), 1);
    let file = Connection::open(world.harness().path()).unwrap();
    file.execute("INSERT INTO postrider_publish (event_type, payload) VALUES ('large', '1')", []).unwrap();
    // Whatever writes, writes after it.
    world.configure("max_fanout", 77).await;
    let invalid = DlqFilter { reason: Some("invalid_event".into()), ..DlqFilter::default() };
    assert_eq!(world.store().dlq(invalid).await.unwrap().len(), 1);
}

/// Completed, expired, cancelled, erased, and one whose key stays reserved.
async fn archive(world: &mut World<Sqlite>) {
    world.send(to("a").idempotency_key(format!("done {}", world.now()))).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.send(to("a").ordering_key("k")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    let ticket = world.claim_one().await;
    let verdict = Verdict::Complete;
    let record = AttemptRecord {
        number: ticket.attempt,
        node: ticket.fence.node,
        started_at: world.now(),
        duration: Duration::from_micros(1_234_567),
        outcome: AttemptOutcome::Delivered,
        class: None,
        error: None,
        response_status: Some(204),
        response_body: Some(Bytes::from_static(b"\0\xffbody")),
    };
    world.end(ticket, End::Attempted { verdict, record }).await;
    world.send(short_lived(world.now())).await;
    world.advance(11);
    world.store().upkeep(10).await.unwrap();
    let cancelled = world.send(to("a")).await;
    world.store().cancel(cancelled).await.unwrap();
    let erased = world.send(to("a")).await;
    world.store().erase(erased).await.unwrap();
}

/// Circuits, pauses, rests, rates, and one that was dropped.
async fn endpoints(world: &mut World<Sqlite>) {
    for name in ["paused", "disabled", "gone", "open", "probing", "resting", "dropped"] {
        world.endpoint(name, json!({})).await;
    }
    let store = world.store();
    let moved = async |name: &str, to: &dyn Fn(Circuit) -> Circuit| {
        let endpoint = store.endpoint(name).await.unwrap();
        assert!(store.move_circuit(endpoint.id, endpoint.circuit.epoch, to(endpoint.circuit)).await.unwrap());
    };
    let (now, later, node) = (world.now(), world.in_seconds(600), world.node);
    moved("open", &|circuit| circuit.opened(now, Duration::from_secs(77))).await;
    moved("probing", &|circuit| circuit.opened(now, Duration::from_secs(7))).await;
    moved("probing", &|circuit| circuit.probing(node, later)).await;
    store.set_endpoint_paused("paused", true).await.unwrap();
    store.set_endpoint_enabled("disabled", false).await.unwrap();
    let change = EndpointChange {
        config: Some(
            json!({"url": "https://example.org/ä", "signing_secrets": ["${POSTRIDER_SECRET_X}"], "timeout": 2.5})
                .as_object()
                .unwrap()
                .clone(),
        ),
        retry_policy: Some(json!({"max_attempts": 3, "jitter": 0.2, "schedule_seconds": [1, 2.5]})),
        options: Some(json!({"rate_limit": {"limit": 5, "interval": "minute"}, "max_in_flight": 7})),
        ..EndpointChange::default()
    };
    store.alter_endpoint("resting", change).await.unwrap();
    world.send(to("dropped")).await;
    world.store().drop_endpoint("dropped", true).await.unwrap();
    for name in ["gone", "resting"] {
        let endpoint = world.store().endpoint(name).await.unwrap().id;
        let id = world.send(to(name)).await;
        let ticket = world.claim(endpoint, 1).await[0];
        assert_eq!(ticket.id, id);
        let verdict = match name {
            "gone" => Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: true },
            _ => retry_at(world.in_seconds(5)),
        };
        let end = ticket.attempted(world.now(), verdict);
        world.end_and_hold(ticket, end, Some(world.in_seconds(300))).await;
    }
}

/// Failed, redriven, discarded, erased, one that holds its key, and what waits for it.
async fn dead_letters(world: &mut World<Sqlite>) {
    world.send_to_death(to("a").idempotency_key("dead")).await;
    let another = world.send_to_death(to("a")).await;
    world.store().discard(another.id).await.unwrap();
    let erased = world.send_to_death(to("a")).await;
    world.store().erase(erased.message).await.unwrap();
    let letter = world.send_to_death(to("a").ordering_key("again")).await;
    world.send(to("a").ordering_key("again")).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    world.send_to_death(to("hold").ordering_key("held")).await;
    world.send(to("hold").ordering_key("held")).await;
    world.send(to("hold").ordering_key("held")).await;
    // It came back to the queue, died again, and was put back once more.
    let dead = world.send_to_death(to("global").ordering_key("twice")).await;
    world.store().redrive(Redrive::One(dead.id)).await.unwrap();
    let dead = world.kill(dead.message).await;
    world.store().redrive(Redrive::One(dead.id)).await.unwrap();
}

/// Ready, scheduled, retrying, behind a key, on probation, claimed in every way, delivered late.
async fn queue(world: &mut World<Sqlite>) {
    let now = world.now();
    let everything = NewMessage {
        payload: (0..=255).collect::<Vec<u8>>().into(),
        content_type: "application/octet-stream".into(),
        headers: [("x-a".to_owned(), "1".to_owned()), ("x-b".to_owned(), "zwei".to_owned())].into(),
        options: json!({"max_attempts": 4, "timeout": 1.5}).as_object().unwrap().clone(),
        priority: 9,
        scheduled_at: Some(now + Duration::from_micros(3_600_000_001)),
        expires_at: Some(now + Duration::from_micros(7_200_000_003)),
        idempotency_key: Some("ü once".into()),
        correlation_id: Some("67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap()),
        ordering_key: Some("\u{10348} key".into()),
        event_type: Some("order.paid".into()),
        ..to("a")
    };
    world.send(everything).await;
    world.send(NewMessage { content_type: "text/plain".into(), payload: Bytes::new(), ..to("a") }).await;
    world.send_keyed("line", 4).await;
    let retried = world.endpoint("retried", json!({})).await;
    world.send(to("retried")).await;
    let ticket = world.claim(retried, 1).await[0];
    world.retry(ticket, 60).await;
    suspects(world).await;
    noted(world).await;
    claims(world, retried).await;
}

/// Lost once, lost twice, and a suspect whose key waits.
async fn suspects(world: &mut World<Sqlite>) {
    let lost = world.endpoint("lost", json!({})).await;
    for key in [None, Some("suspect"), Some("suspect")] {
        let message = to("lost");
        world.send(key.map_or(message.clone(), |key| message.ordering_key(key))).await;
    }
    let silent = world.another_node().await;
    assert_eq!(world.claim_as(silent, lost, 10).await.len(), 2);
    for claim in world.lost().await {
        world.lose(&claim).await;
    }
}

/// A keyed message that a fenced node delivered while another one has it.
async fn noted(world: &mut World<Sqlite>) {
    let late = world.endpoint("late", json!({})).await;
    world.send(to("late").ordering_key("late")).await;
    world.send(to("late").ordering_key("late")).await;
    let slow = world.another_node().await;
    let ticket = world.claim_as(slow, late, 1).await[0];
    let lost = world.lost().await;
    world.lose(lost.iter().find(|lost| lost.id == ticket.id).unwrap()).await;
    let want = postrider::store::Want {
        endpoint: late,
        room: 1,
        pick: postrider::store::Pick::Suspects(vec![ticket.id]),
    };
    assert_eq!(world.ask(world.node, true, vec![want]).await.claims.len(), 1);
    world.complete(ticket).await;
}

async fn claims(world: &mut World<Sqlite>, endpoint: EndpointId) {
    for _ in 0..5 {
        world.send(to("retried")).await;
    }
    world.send(to("retried").ordering_key("claimed")).await;
    world.send(to("retried").ordering_key("claimed")).await;
    assert_eq!(world.claim(endpoint, 2).await.len(), 2);
    world.advance(1);
    let other = world.another_node().await;
    let alone = world.ask(other, true, vec![due(endpoint, 1)]).await;
    assert_eq!(alone.claims.len(), 1);
    assert_eq!(world.claim(endpoint, 2).await.len(), 2);
    // Claimed as they are sent: they share a batch, and each has its own beginning.
    let direct = world.endpoint("direct", json!({})).await;
    let (node, _arrivals) = join(world.store(), Arc::new(Slots(2.into()))).await;
    for _ in 0..2 {
        world.advance(1);
        let id = world.send(to("direct")).await;
        assert_eq!(world.state(id).await, State::Processing, "claimed for {node:?} at {direct:?}");
    }
}

/// One that is completed, one that was stopped on its way, one that waits for its endpoint.
async fn replays(world: &World<Sqlite>) {
    let limit = RateLimit { limit: 2, interval: Interval::Minute, burst: Some(3) };
    let until = Some(world.now());
    let selection = ReplaySelection { endpoint: Some("a".into()), until, ..ReplaySelection::default() };
    let replay = NewReplay { selection, to: Some("paused".into()), rate_limit: None };
    let store = world.store();
    let advanced = async |id: i64, done: u64| {
        while store.replay(id).await.unwrap().done < done {
            store.advance_replays(2).await.unwrap();
        }
    };
    let completed = store.start_replay(replay.clone()).await.unwrap().id;
    advanced(completed, 1).await;
    while let ReplayTurn::Worked = store.advance_replays(100).await.unwrap() {}
    let limited = NewReplay { rate_limit: Some(limit), ..replay.clone() };
    let stopped = store.start_replay(limited).await.unwrap().id;
    advanced(stopped, 2).await;
    store.stop_replay(stopped).await.unwrap();
    let failed = ReplaySelection {
        event_type: Some("order.paid".into()),
        ordering_key: Some("k".into()),
        status: Some(ReplayStatus::Failed),
        from: Some(world.now()),
        ..ReplaySelection::default()
    };
    store.start_replay(NewReplay { selection: failed, ..NewReplay::default() }).await.unwrap();
    store.start_replay(NewReplay { to: Some("disabled".into()), ..replay }).await.unwrap();
    while let ReplayTurn::Worked = store.advance_replays(100).await.unwrap() {}
    let states: Vec<_> = store
        .replays(None, 10)
        .await
        .unwrap()
        .into_iter()
        .map(|replay| (replay.state, replay.waiting.is_some()))
        .collect();
    assert_eq!(
        states,
        [
            (ReplayState::Running, true),
            (ReplayState::Completed, false),
            (ReplayState::Stopped, false),
            (ReplayState::Completed, false),
        ]
    );
}

async fn last_message(world: &World<Sqlite>) -> MessageId {
    let file = Connection::open(world.harness().path()).unwrap();
    let last = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '_postrider_queue'";
    MessageId(file.query_row(last, [], |row| row.get(0)).unwrap())
}

/// Moves it and compares all there is to compare.
pub(super) async fn moved(world: World<Sqlite>) -> World<Postgres> {
    let (last, a) = (last_message(&world).await, world.a);
    let postgres = destination(&world).await;
    let original = Picture::of(world.store(), last).await;
    let sqlite = world.die_out();
    let stream = taken(&sqlite).await;
    let told = import(&postgres, stream).await.unwrap();

    let (closed, store) = (sqlite.open().await, postgres.open().await);
    assert_eq!((store.name(), &*store.name()), (closed.name(), &*told.store), "it keeps its name");
    assert_eq!(Picture::of(&store, last).await, original);
    assert_eq!(picture::events(&store).await, picture::events(&closed).await);
    let file = Connection::open(sqlite.path()).unwrap();
    picture::compare_tables(&file, &postgres.database).await;
    picture::compare_claims(&file, &postgres.database).await;
    picture::check_gauge(&postgres.database).await;
    World::over(postgres, a).await
}

#[tokio::test]
async fn everything_comes_over_as_it_was() {
    let world = lived_in().await;
    let last = last_message(&world).await;
    let states: Vec<State> = {
        let mut states = Vec::new();
        for id in 1..=last.0 {
            states.push(world.state(MessageId(id)).await);
        }
        states
    };
    assert!(State::ALL.iter().all(|state| states.contains(state)), "not every state is there: {states:?}");
    let world = moved(world).await;
    assert!(world.send(to("a")).await > last, "no id is given twice");
}

/// The oldest and the newest that we promise, where they are there.
#[tokio::test]
async fn every_version_of_postgresql_takes_it() {
    let sqlite = lived_in().await.die_out();
    let stream = taken(&sqlite).await;
    let file = Connection::open(sqlite.path()).unwrap();
    for version in [14, 18] {
        let Some(binaries) = Binaries::downloaded(version) else { continue };
        let server = test_servers::Postgres::of(binaries).unwrap();
        let database = Database::empty_on(&server.url()).await;
        migrated(&database).await;
        PostgresStore::import(&database.url(), Cursor::new(stream.clone())).await.unwrap();
        picture::compare_tables(&file, &database).await;
        picture::check_gauge(&database).await;
    }
}

#[tokio::test]
async fn what_was_being_delivered_was_lost_with_its_attempt() {
    let mut world = World::<Sqlite>::start().await;
    let keyed = world.send_keyed("k", 2).await;
    let plain = world.send(to("a")).await;
    assert_eq!(world.claim(world.a, 10).await.len(), 2);
    let world = moved(world).await;
    assert_eq!(
        world.states(&[keyed[0], keyed[1], plain]).await,
        [State::Processing, State::Pending, State::Processing]
    );
    // At once: nobody waits for the lease of a node that cannot come back.
    let mut lost = world.store().lost_claims(10).await.unwrap();
    lost.sort_by_key(|lost| lost.id);
    assert_eq!(
        lost.iter().map(|lost| (lost.id, lost.attempt)).collect::<Vec<_>>(),
        [(keyed[0], 1), (plain, 1)]
    );
    for lost in &lost {
        world.lose(lost).await;
    }
    let story = world.story(plain).await;
    assert_eq!((story.state, story.attempt_count), (State::Pending, 1));
    assert_eq!(story.last_error.as_deref(), Some("[RETRYABLE] lease expired"));
    let suspects: Vec<MessageId> =
        world.store().suspects(10).await.unwrap().iter().map(|suspect| suspect.id).collect();
    assert_eq!(suspects, [keyed[0], plain], "both are tried with few others, and the key waits for its head");
}

#[tokio::test]
async fn an_idempotency_key_is_kept_for_as_long_as_it_was_reserved() {
    let mut world = World::<Sqlite>::start().await;
    world.configure("idempotency_retention", 3600).await;
    let done = world.send(to("a").idempotency_key("done")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let queued = world.send(to("a").idempotency_key("queued")).await;
    let world = moved(world).await;
    for (key, id) in [("done", done), ("queued", queued)] {
        let sent = world.store().send(to("a").idempotency_key(key)).await.unwrap();
        assert_eq!((sent.id, sent.duplicate), (id, true));
        let other = NewMessage { payload: "other".into(), ..to("a") };
        world.store().send(other.idempotency_key(key)).await.expect_err("the same key and another payload");
    }
}

/// The highest id may be gone without a trace by the time the store moves.
#[tokio::test]
async fn ids_that_are_gone_are_not_given_again() {
    let mut world = World::<Sqlite>::start().await;
    world.configure("archive", "off").await;
    world.endpoint("short", json!({})).await;
    let letter = world.send_to_death(to("a")).await;
    world.configure("dlq_retention_days", 1).await;
    let mut last = world.send(to("a")).await;
    for _ in 0..3 {
        last = world.send(to("a")).await;
        world.store().cancel(last).await.unwrap();
    }
    world.advance(2 * DAY);
    world.crash().await;
    world.clean_up().await;
    assert!(world.letters().await.is_empty());
    let node = world.node;
    let mut world = moved(world).await;
    assert!(world.node > node);
    assert_eq!(world.send(to("a")).await, MessageId(last.0 + 1));
    assert!(world.endpoint("new", json!({})).await > world.a);
    world.claim(world.a, 1).await;
    let again = world.send_to_death(to("new")).await;
    assert!(again.id > letter.id, "{} after {}", again.id, letter.id);
}

#[tokio::test]
async fn an_event_without_an_endpoint_is_skipped_by_replays_as_that() {
    let world = World::<Sqlite>::start().await;
    let checked =
        NewEventType { schema: Some(json!({"type": "object"}).into()), ..NewEventType::new("checked") };
    world.store().create_event_type(checked).await.unwrap();
    let file = Connection::open(world.harness().path()).unwrap();
    file.execute("INSERT INTO postrider_publish (event_type, payload) VALUES ('checked', '1')", []).unwrap();
    // Whatever writes, writes after it.
    world.configure("max_fanout", 77).await;
    skips_the_event(&world).await;
    let world = moved(world).await;
    // A stored event has the time of the machine.
    world.advance(jiff::Timestamp::now().duration_since(world.now()).as_secs().unsigned_abs() + 1);
    skips_the_event(&world).await;
    let letter = &world.store().dlq(DlqFilter::default()).await.unwrap()[0];
    let refused = world.store().redrive(Redrive::One(letter.id)).await.unwrap_err();
    assert!(refused.to_string().contains("is an event without an endpoint"), "{refused}");
}

async fn skips_the_event<H: Harness>(world: &World<H>) {
    let selection = ReplaySelection { status: Some(ReplayStatus::Failed), ..ReplaySelection::default() };
    let all = NewReplay { selection, ..NewReplay::default() };
    let skipped = json!({"invalid_event": 1});
    let preview = world.store().preview_replay(all.clone()).await.unwrap();
    assert_eq!((preview.count, json!(preview.skipped)), (0, skipped.clone()));
    let done = world.replayed(all).await;
    assert_eq!((done.total, json!(done.skipped)), (Some(1), skipped));
    let letter = &world.store().dlq(DlqFilter::default()).await.unwrap()[0];
    let refused = world.store().replay_message(letter.message, None).await.unwrap_err();
    assert!(refused.to_string().contains("is an event without an endpoint"), "{refused}");
}

#[tokio::test]
async fn a_paused_store_stays_paused() {
    let world = World::<Sqlite>::start().await;
    world.store().pause("the night\0shift").await.unwrap();
    world.configure("max_queue_size", 2).await;
    world.send(to("a")).await;
    let postgres = destination(&world).await;
    import(&postgres, taken(&world.die_out()).await).await.unwrap();
    let store = postgres.open().await;
    assert_eq!(store.status().await.unwrap().paused.as_deref(), Some("the night\u{fffd}shift"));
    store.send(to("a")).await.unwrap();
    store.send(to("a")).await.expect_err("what came over counts, and so does the limit");
    store.resume().await.unwrap();
}
