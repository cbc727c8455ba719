//! Several nodes on one database: who they are, what they agree on, and how soon they hear of it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use postrider::breaker::CircuitName;
use postrider::rate::{Grant, Interval, RateLimit};
use postrider::store::Effect;
use postrider::store::postgres::PostgresOptions;
use postrider::{Engine, NewMessage, Operate, PostgresStore, State, Store};
use serde_json::json;
use tokio::runtime::Builder;

use super::post::{Post, create_endpoint, node_of, node_with_files, until};
use super::{Postgres, connect};
use crate::engine::receiver::{Answer, Receiver};
use crate::store::world::{Harness, World, to};

/// Every dispatcher has looked around once more after this.
const A_TURN: Duration = Duration::from_millis(1200);

async fn stop_all(nodes: impl IntoIterator<Item = Engine>) {
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test]
async fn nodes_are_registered_as_long_as_their_hearts_beat() {
    let post = Post::open().await;
    post.configure("node_lease", "5").await;
    let (one, two) = (post.node("one").await, post.node("two").await);
    let live =
        "SELECT count(*) FROM postrider.get_worker_status() WHERE state = 'live' AND lease_until > now()
                AND name IN ('one', 'two')";
    assert_eq!(post.number(live).await, 2);
    let beating =
        "SELECT count(*) FROM postrider.get_worker_status() WHERE heartbeat_at > joined_at + interval '1 s'";
    until("a heartbeat of both", async || post.number(beating).await == 2).await;
    one.stop().await;
    let left = "SELECT count(*) FROM postrider.get_worker_status() WHERE state = 'left' AND name = 'one'";
    assert_eq!((post.number(left).await, post.number(live).await), (1, 1));
    two.stop().await;
    let told = "SELECT count(*) FROM postrider.event_log WHERE kind IN ('node.joined', 'node.left')";
    assert_eq!(post.number(told).await, 4);
}

#[tokio::test]
async fn a_node_that_fell_silent_is_shown_as_lost() {
    let mut world = World::<Postgres>::start().await;
    let silent = world.another_node().await;
    world.send(to("a")).await;
    world.claim_as(silent, world.a, 1).await;
    let app = connect(&world).await;
    let status = async || {
        let status = "SELECT state, in_flight FROM postrider.get_worker_status() WHERE node_id = $1";
        let row = app.query_one(status, &[&silent.0]).await.unwrap();
        (row.get::<_, String>(0), row.get::<_, i64>(1))
    };
    assert_eq!(status().await, ("live".to_owned(), 1));
    let lost = world.lost().await;
    assert_eq!(status().await, ("lost".to_owned(), 1));
    world.lose(&lost[0]).await;
    assert_eq!(status().await, ("lost".to_owned(), 0));
}

#[tokio::test]
async fn what_a_killed_node_was_delivering_another_one_tries_without_a_backoff() {
    let post = Post::open().await;
    post.configure("node_lease", "5").await;
    let endpoint = json!({
        "name": "a", "protocol": "http", "config": { "url": post.receiver.url("a") },
        "retry_policy": { "backoff": "fixed", "base_delay_seconds": 3600, "max_delay_seconds": 3600 },
    });
    post.store.create_endpoint(serde_json::from_value(endpoint).unwrap()).await.unwrap();
    post.receiver.answer(Answer::ok().held());
    let process = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, files) = (post.database.url(), tempfile::tempdir().unwrap());
    let root = files.path().to_owned();
    let one = process.spawn(async move {
        let store = PostgresStore::open(PostgresOptions::new(url)).await.unwrap();
        node_with_files(Arc::new(store), "one", root).await
    });
    let one = one.await.unwrap();
    let id = post.send("a", "1").await;
    post.receiver.until("it to hang", |receiver| receiver.running("a") == 1).await;
    let two = post.node("two").await;
    drop(one);
    process.shutdown_background();
    post.receiver.answer(Answer::ok());
    post.until_state(id, State::Completed).await;
    let attempts: Vec<u32> = post.receiver.at("a").iter().map(|arrival| arrival.attempt).collect();
    assert_eq!(attempts, [1, 2]);
    two.stop().await;
}

/// Three nodes, and a circuit that their failures opened.
struct Opened {
    postgres: Postgres,
    store: PostgresStore,
    receiver: Receiver,
    nodes: Vec<Engine>,
}

const COOLDOWN: Duration = Duration::from_secs(5);
const MESSAGES: usize = 30;

impl Opened {
    async fn new() -> Self {
        let (postgres, receiver) = (Postgres::new().await, Receiver::start().await);
        let store = postgres.open().await;
        let settings = [("circuit_breaker_threshold", "2"), ("circuit_breaker_cooldown", "5")];
        store.configure(settings.map(|(name, value)| (name.into(), value.into())).into()).await.unwrap();
        create_endpoint(&store, &receiver, "a", json!({ "max_in_flight": 1 })).await;
        receiver.answer(Answer::status(500));
        let mut nodes = Vec::new();
        for name in ["one", "two", "three"] {
            nodes.push(node_of(&postgres, name).await);
        }
        let opened = Self { postgres, store, receiver, nodes };
        opened.store.send_batch(vec![NewMessage::new("a", "{}"); MESSAGES]).await.unwrap();
        opened.until_circuit(CircuitName::Open).await;
        opened.receiver.until("nobody under way", |receiver| receiver.running("a") == 0).await;
        tokio::time::sleep(A_TURN).await;
        opened
    }

    async fn until_circuit(&self, state: CircuitName) {
        until("the circuit to move", async || {
            self.store.endpoint("a").await.unwrap().circuit.state.name() == state
        })
        .await;
    }
}

#[tokio::test]
async fn of_many_nodes_one_probes_an_open_circuit() {
    let opened = Opened::new().await;
    let receiver = &opened.receiver;
    for failing in [true, true, false] {
        let before = receiver.count();
        receiver.answer(Answer::status(if failing { 500 } else { 200 }).after(A_TURN));
        receiver.forget_most_running();
        opened.postgres.advance(COOLDOWN);
        receiver.until("the probe", |receiver| receiver.running("a") == 1).await;
        receiver.until("its end", |receiver| receiver.at("a")[before].answered.is_some()).await;
        assert_eq!(receiver.at("a")[before].attempt, 1, "the one with the fewest attempts");
        if failing {
            opened.until_circuit(CircuitName::Open).await;
            tokio::time::sleep(A_TURN).await;
            assert_eq!(
                (receiver.count(), receiver.most_running("a")),
                (before + 1, 1),
                "and nothing beside it"
            );
        }
    }
    opened.until_circuit(CircuitName::Closed).await;
    receiver.answer(Answer::ok());
    // Some are to be tried again later.
    opened.postgres.advance(Duration::from_secs(60));
    until("everything delivered", async || opened.store.status().await.unwrap().pending == 0).await;
    let events = opened.store.events(None, 100).await.unwrap();
    let moves: Vec<&str> =
        events.iter().rev().filter_map(|event| event.kind.strip_prefix("circuit.")).collect();
    assert_eq!(moves, ["open", "half_open", "open", "half_open", "open", "half_open", "closed"]);
    stop_all(opened.nodes).await;
}

#[tokio::test]
async fn the_database_grants_a_rate_as_the_program_does() {
    let world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    let grant =
        "SELECT granted, new_position, next_at FROM postrider._rate_grant($1::text::jsonb, $2, $3, $4)";
    let limits = [
        (7, Interval::Second, Some(1)),
        (50, Interval::Second, Some(5)),
        (3, Interval::Minute, None),
        (11, Interval::Hour, Some(4)),
        (999_983, Interval::Hour, Some(27)),
    ];
    for (limit, interval, burst) in limits {
        let rate = RateLimit { limit, interval, burst };
        let (mut position, mut now) = (None, world.now());
        for (gap, wanted) in
            [(0, 1), (0, 100), (1, 5), (50_000, 1), (142_858, 3), (1_000_000, 9), (u64::MAX >> 32, 99)]
        {
            now += Duration::from_micros(gap);
            let ours = rate.grant(position, now, wanted);
            let text = serde_json::to_string(&rate).unwrap();
            let row = app.query_one(grant, &[&text, &position, &now, &(wanted as i32)]).await.unwrap();
            let theirs =
                Grant { granted: row.get::<_, i32>(0) as u32, position: row.get(1), next_at: row.get(2) };
            assert_eq!(theirs, ours, "{wanted} of {text} at {now} from {position:?}");
            position = Some(ours.position);
        }
    }
}

#[tokio::test]
async fn a_rate_limit_is_held_by_all_nodes_together() {
    let (postgres, receiver) = (Postgres::new().await, Receiver::start().await);
    let store = postgres.open().await;
    let limit = json!({ "limit": 4, "interval": "second", "burst": 6 });
    create_endpoint(&store, &receiver, "a", json!({ "rate_limit": limit })).await;
    let nodes = [node_of(&postgres, "one").await, node_of(&postgres, "two").await];
    store.send_batch(vec![NewMessage::new("a", "{}"); 18]).await.unwrap();
    let mut allowed = 6;
    while allowed < 18 {
        receiver.until("all that is allowed", |receiver| receiver.count() >= allowed).await;
        tokio::time::sleep(A_TURN).await;
        assert_eq!(receiver.count(), allowed, "by the burst and by the rate since");
        postgres.advance(Duration::from_secs(1));
        allowed += 4;
    }
    receiver.until("the rest", |receiver| receiver.count() == 18).await;
    stop_all(nodes).await;
}

/// Asks for attempts of both nodes that came out like this since the change.
async fn until_each_node(post: &Post, outcome: &str) {
    let seen = format!("SELECT count(DISTINCT node_id) FROM postrider.attempts WHERE {outcome}");
    until(&format!("attempts of both nodes with {outcome}"), async || {
        post.send_many("a", 20).await;
        post.number(&seen).await == 2
    })
    .await;
}

#[tokio::test]
async fn changes_reach_every_node() {
    let post = Post::open().await;
    post.configure("attempt_log", "all").await;
    post.endpoint("a", json!({ "max_in_flight": 2 })).await;
    post.receiver.script(|arrival| Answer::status(if arrival.path == "moved" { 404 } else { 200 }));
    let nodes = [post.node("one").await, post.node("two").await];
    until_each_node(&post, "response_status = 200").await;
    let app = post.database.connect().await;
    let config = json!({ "url": post.receiver.url("moved") });
    let alter = format!("SELECT postrider.alter_endpoint('a', config => '{config}'::jsonb)");
    app.batch_execute(&alter).await.unwrap();
    until_each_node(&post, "response_status = 404").await;
    app.batch_execute("SELECT postrider.configure('capture_response', 'all')").await.unwrap();
    until_each_node(&post, "response_status = 404 AND response_body IS NOT NULL").await;
    stop_all(nodes).await;
}

/// Nothing of what is sent now is delivered by any node, though each has the time to.
async fn is_quiet(post: &Post) {
    until("the pause to have reached every node", async || {
        let before = post.receiver.count();
        post.send_many("a", 4).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
        post.receiver.count() == before
    })
    .await;
    let before = post.receiver.count();
    post.send_many("a", 20).await;
    tokio::time::sleep(A_TURN).await;
    assert_eq!(post.receiver.count(), before, "paused");
}

#[tokio::test]
async fn a_pause_reaches_every_node_and_survives_their_restart() {
    let post = Post::open().await;
    post.endpoint("a", json!({ "max_in_flight": 4 })).await;
    let app = post.database.connect().await;
    let mut nodes = vec![post.node("one").await, post.node("two").await];
    let pauses = [
        ("SELECT postrider.pause_endpoint('a')", "SELECT postrider.resume_endpoint('a')"),
        ("SELECT postrider.pause('moving house')", "SELECT postrider.resume()"),
    ];
    for (pause, resume) in pauses {
        app.batch_execute(pause).await.unwrap();
        is_quiet(&post).await;
        stop_all(nodes).await;
        nodes = vec![post.node("one").await, post.node("two").await];
        is_quiet(&post).await;
        app.batch_execute(resume).await.unwrap();
        post.until_empty().await;
    }
    let arrivals = post.receiver.arrivals();
    let distinct: HashSet<&str> = arrivals.iter().map(|arrival| &*arrival.id).collect();
    assert_eq!(distinct.len(), arrivals.len(), "each once");
    stop_all(nodes).await;
}

#[tokio::test]
async fn senders_that_wait_for_each_other_cost_no_node_its_lease() {
    let world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    let transaction = app.transaction().await.unwrap();
    postrider::store::postgres::send_in(&transaction, &to("a").ordering_key("k")).await.unwrap();
    // More of them than a store has connections for.
    let waiting =
        futures_util::future::join_all((0..20).map(|_| world.store().send(to("a").ordering_key("k"))));
    let heartbeats = async {
        tokio::time::sleep(A_TURN).await;
        world.store().heartbeat(world.node).await.expect("nobody waits for a sender");
        world.store().upkeep(10).await.expect("nobody waits for a sender");
        transaction.commit().await.unwrap();
    };
    let (sent, ()) = tokio::join!(waiting, heartbeats);
    assert!(sent.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_settlement_that_takes_its_time_is_not_forgotten_and_holds_up_no_heartbeat() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    let transaction = app.transaction().await.unwrap();
    transaction
        .execute("SELECT FROM postrider.queue WHERE id = $1 FOR UPDATE", &[&ticket.id.0])
        .await
        .unwrap();
    let settling = world.complete(ticket);
    let heartbeat = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let beat = tokio::time::timeout(A_TURN * 2, world.store().heartbeat(world.node)).await;
        beat.expect("it does not wait for the settlement").unwrap();
        transaction.rollback().await.unwrap();
    };
    let (settled, ()) = tokio::join!(settling, heartbeat);
    assert_eq!(settled.effect, Effect::Applied(State::Completed));
}

/// Its name is part of every id that receivers see.
#[tokio::test]
async fn a_store_gets_no_other_name_beside_running_nodes() {
    let world = World::<Postgres>::start().await;
    let before = world.store().name();
    let refused = world.store().renew_name().await.unwrap_err();
    assert!(refused.to_string().starts_with("nodes are running on this store: "), "{refused}");
    world.store().leave(world.node).await.unwrap();
    world.store().renew_name().await.unwrap();
    assert_ne!(world.store().name(), before);
}
