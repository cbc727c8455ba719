//! kill -9 of node and broker at random, under load: every committed message is at the broker in the end, and none was only
//! believed delivered. The seed is printed; `POSTRIDER_TEST_SEED` gives it again, and `POSTRIDER_TEST_KILLS` makes more kills.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use postrider::store::sqlite::SqliteOptions;
use postrider::store::{Listing, MessageFilter};
use postrider::{Engine, EngineOptions, NewEndpoint, NewMessage, Operate, SqliteStore, State};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use test_servers::Broker;

use super::*;

const KILLS_DEFAULT: u32 = 4;
const KEYS: u32 = 5;
const SEND_PAUSE: Duration = Duration::from_millis(4);
/// After the last kill, for all retries.
const PATIENCE: Duration = Duration::from_secs(120);
/// Names the store of the node that a process of this test program becomes.
const STORE_VARIABLE: &str = "POSTRIDER_TEST_CHAOS_STORE";

/// No test, but the other process: this program runs itself again with only this function.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_process() {
    let Ok(path) = std::env::var(STORE_VARIABLE) else { return };
    let store = Arc::new(SqliteStore::open(SqliteOptions::node(path)).unwrap());
    let options = EngineOptions { environment: open_environment(), ..EngineOptions::default() };
    let _engine = Engine::start(store, options).await.unwrap();
    std::future::pending::<()>().await;
}

/// A node on the store, until it is killed.
struct NodeProcess(Child);

impl NodeProcess {
    fn start(store: &Path) -> Self {
        let this_program = std::env::current_exe().unwrap();
        // `…::chaos::node_process`, however deep this module is.
        let name = format!("{}::node_process", module_path!().split_once("::").unwrap().1);
        let mut command = Command::new(this_program);
        command.args([&name, "--exact", "--nocapture"]).env(STORE_VARIABLE, store);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) async fn node_and_broker_are_killed_at_random_and_nothing_is_lost<B: BrokerUnderTest>() {
    let Some(broker) = tokio::task::spawn_blocking(|| B::KIND.start()).await.unwrap() else { return };
    let number = |variable: &str| std::env::var(variable).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("POSTRIDER_TEST_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000));
    let kills = number("POSTRIDER_TEST_KILLS").map_or(KILLS_DEFAULT, |kills| kills as u32);
    println!("POSTRIDER_TEST_SEED={seed}");

    let target = target();
    let listeners = broker.listeners().clone();
    B::create(&listeners, &target).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = Arc::new(SqliteStore::open(SqliteOptions::tool(path.clone())).unwrap());
    store.configure(vec![("circuit_breaker_threshold".to_owned(), "1000".to_owned())]).await.unwrap();
    let endpoint = NewEndpoint {
        name: "orders".to_owned(),
        protocol: B::PROTOCOL.to_owned(),
        config: object(with(B::config(listeners.plain, &target), json!({"timeout": 3}))),
        retry_policy: Some(json!({"max_attempts": 0, "backoff": "fixed", "base_delay_seconds": 0.1})),
        options: None,
    };
    store.create_endpoint(endpoint).await.unwrap();

    let stop = tokio_util::sync::CancellationToken::new();
    let sending = tokio::spawn(send_until(Arc::clone(&store), stop.clone()));
    let node = kill_at_random(broker, &path, kills, B::survives_a_kill(), StdRng::seed_from_u64(seed)).await;
    stop.cancel();
    let committed = sending.await.unwrap();
    until_all_ended(&store, committed.len()).await;

    let held = B::held(&listeners, &target).await;
    drop(node);
    let ids: BTreeSet<&str> = held.iter().map(|held| held.id.as_str()).collect();
    let lost: Vec<&String> = committed.keys().filter(|id| !ids.contains(id.as_str())).collect();
    assert!(lost.is_empty(), "{} of {} are not at the broker: {lost:?}", lost.len(), committed.len());
    in_order(&held, &committed);
    println!("{}: {} committed, {} held, {kills} kills", B::PROTOCOL, committed.len(), held.len());
}

/// The public ids of what was committed, with their keys.
async fn send_until(
    store: Arc<SqliteStore>,
    stop: tokio_util::sync::CancellationToken,
) -> BTreeMap<String, String> {
    let name = postrider::Store::name(&*store);
    let mut committed = BTreeMap::new();
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        let key = format!("key-{}", number % KEYS);
        let message = NewMessage::new("orders", format!(r#"{{"number":{number}}}"#)).ordering_key(&key);
        let id = store.send(message).await.unwrap().id;
        committed.insert(format!("msg_{name}_{id}"), key);
        tokio::time::sleep(SEND_PAUSE).await;
    }
    committed
}

/// The broker and the node that run in the end.
async fn kill_at_random(
    mut broker: Broker,
    store: &Path,
    kills: u32,
    survives_a_kill: bool,
    mut dice: StdRng,
) -> (Broker, NodeProcess) {
    let mut node = NodeProcess::start(store);
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(dice.random_range(200..900))).await;
        if dice.random_bool(0.5) {
            drop(node);
            node = NodeProcess::start(store);
            continue;
        }
        let away = Duration::from_millis(dice.random_range(0..300));
        broker = tokio::task::spawn_blocking(move || {
            if survives_a_kill {
                broker.kill()
            } else {
                broker.stop()
            }
            std::thread::sleep(away);
            broker.start_again().unwrap();
            broker
        })
        .await
        .unwrap();
    }
    (broker, node)
}

async fn until_all_ended(store: &SqliteStore, committed: usize) {
    let begun = std::time::Instant::now();
    loop {
        let status = store.status().await.unwrap();
        let waiting: u64 = status.endpoints.iter().map(|of| of.pending + of.processing).sum();
        if waiting == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{waiting} of {committed} are not delivered");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let dead = MessageFilter { state: Some(State::Dead), ..MessageFilter::default() };
    let dead = store.messages(dead).await.unwrap();
    assert!(dead.items.is_empty(), "{:?}", dead.items);
}

/// A message of a key never arrives for the first time after a later one.
fn in_order(held: &[BrokerMessage], committed: &BTreeMap<String, String>) {
    let number = |id: &str| id.rsplit('_').next().and_then(|text| text.parse::<i64>().ok()).unwrap();
    let (mut seen, mut last) = (BTreeSet::new(), HashMap::<&str, i64>::new());
    for message in held {
        // What the store does not know was never sent by it.
        let key = &committed[&message.id];
        if seen.insert(&message.id) {
            let last = last.entry(key).or_default();
            assert!(number(&message.id) > *last, "{} of {key} arrived after {last}", message.id);
            *last = number(&message.id);
        }
    }
}
