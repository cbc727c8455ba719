//! Applications that commit and roll back in SQL all the while, and the receiver that keeps account of what arrives.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::RngExt;
use serde::Deserialize;
use serde_json::json;
use test_servers::postgres::Postgres;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::node::{Home, Node};
use crate::receiver::{Received, Receiver};
use crate::seed::Seed;

const SENDERS: u32 = 4;
const KEYS: u32 = 8;

#[derive(Clone, Debug, Deserialize)]
struct Payload {
    number: u32,
    key: Option<String>,
    place: i64,
    rolled_back: bool,
}

#[derive(Default)]
struct Seen {
    arrivals: Vec<(String, Payload)>,
    accepted: HashSet<u32>,
    /// Arrivals of what had been accepted before.
    duplicates: usize,
}

/// The schema with a lease of five seconds, and the application's own table.
pub(crate) fn prepare(server: &Postgres, home: &Home, url: &str) {
    let places = "CREATE TABLE places (key text PRIMARY KEY, place bigint NOT NULL DEFAULT 0)";
    server.query(places).expect("a table");
    server
        .query(&format!("INSERT INTO places SELECT 'k' || n FROM generate_series(0, {KEYS}) AS n"))
        .expect("rows");
    home.json(&["migrate", "--store", url]);
    server.query("SELECT postrider.configure('node_lease', '5')").expect("a setting");
}

/// Where everything goes; refuses some of it the first time.
pub(crate) struct Ledger {
    receiver: Receiver,
    seen: Arc<Mutex<Seen>>,
}

impl Ledger {
    pub(crate) fn open(seed: Seed) -> Self {
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let entered = Arc::clone(&seen);
        let receiver = Receiver::start(move |received| Some(receive(seed, &entered, &received)));
        Self { receiver, seen }
    }

    pub(crate) fn create_endpoint(&self, node: &Node) {
        node.create_endpoint(json!({
            "name": "chaos", "protocol": "http", "config": { "url": self.receiver.url() },
            "retry_policy": { "max_attempts": 100, "backoff": "fixed", "base_delay_seconds": 0.05 },
        }));
    }

    pub(crate) fn accepted(&self) -> usize {
        self.seen.lock().expect("nobody panics with it").accepted.len()
    }

    pub(crate) fn duplicates(&self) -> usize {
        self.seen.lock().expect("nobody panics with it").duplicates
    }

    /// Everything committed arrived, nothing that was rolled back did, and every key in order.
    #[track_caller]
    pub(crate) fn check(&self, sent: &Sent) {
        let (Sent { committed, unknown }, seen) = (sent, self.seen.lock().expect("the receiver is done"));
        let lost: Vec<&u32> = committed.iter().filter(|number| !seen.accepted.contains(number)).collect();
        assert!(
            lost.is_empty(),
            "{} of {} committed messages were lost: {lost:?}",
            lost.len(),
            committed.len()
        );
        let ghosts: Vec<&Payload> =
            seen.arrivals.iter().map(|(_, payload)| payload).filter(|p| p.rolled_back).collect();
        assert!(ghosts.is_empty(), "rolled back and delivered: {ghosts:?}");
        let known: HashSet<&u32> = committed.iter().chain(unknown).collect();
        let strangers: Vec<&u32> = seen.accepted.iter().filter(|number| !known.contains(number)).collect();
        assert!(strangers.is_empty(), "never committed and delivered: {strangers:?}");
        let distinct: HashSet<&str> = seen.arrivals.iter().map(|(id, _)| id.as_str()).collect();
        println!(
            "{} committed, {} unknown of which {} arrived, {} arrivals of {} messages, {} after they were accepted",
            committed.len(),
            unknown.len(),
            unknown.iter().filter(|number| seen.accepted.contains(number)).count(),
            seen.arrivals.len(),
            distinct.len(),
            seen.duplicates
        );
        check_order(&seen);
    }
}

fn receive(seed: Seed, seen: &Mutex<Seen>, received: &Received) -> u16 {
    let payload: Payload = serde_json::from_slice(&received.body).expect("what was sent");
    let refuses = seed.says_yes((payload.number, received.header("postrider-attempt")), 0.03);
    let mut seen = seen.lock().expect("nobody panics with it");
    let number = payload.number;
    seen.arrivals.push((received.header("webhook-id").to_owned(), payload));
    seen.duplicates += usize::from(seen.accepted.contains(&number));
    if refuses {
        return 500;
    }
    seen.accepted.insert(number);
    200
}

/// The first arrival of each message of a key comes after those of all earlier ones: positions were taken under a
/// lock that the commit released, so they are in commit order.
fn check_order(seen: &Seen) {
    let mut known = HashSet::new();
    let mut last: HashMap<&str, i64> = HashMap::new();
    for (id, payload) in &seen.arrivals {
        let Some(key) = payload.key.as_deref() else { continue };
        if !known.insert(id) {
            continue;
        }
        let last = last.entry(key).or_default();
        assert!(payload.place > *last, "key {key}: {} came after {last}", payload.place);
        *last = payload.place;
    }
}

/// What became of the senders' transactions.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) committed: Vec<u32>,
    /// The connection broke before the answer: committed or not.
    pub(crate) unknown: Vec<u32>,
}

impl Sent {
    pub(crate) fn add(&mut self, other: Self) {
        self.committed.extend(other.committed);
        self.unknown.extend(other.unknown);
    }
}

/// Applications at work, until they are stopped.
pub(crate) struct Senders {
    runtime: Runtime,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Sent>>,
}

impl Senders {
    /// Their messages are numbered from `first` on.
    pub(crate) fn start(url: &str, seed: Seed, first: u32) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("one");
        let (stop, numbers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(first)));
        let tasks = (0..SENDERS)
            .map(|_| runtime.spawn(send_all(url.to_owned(), seed, Arc::clone(&stop), Arc::clone(&numbers))))
            .collect();
        Self { runtime, stop, tasks }
    }

    pub(crate) fn stop(self) -> Sent {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Sent::default();
        for task in self.tasks {
            all.add(self.runtime.block_on(task).expect("a sender panicked"));
        }
        all
    }
}

async fn send_all(url: String, seed: Seed, stop: Arc<AtomicBool>, numbers: Arc<AtomicU32>) -> Sent {
    let mut sent = Sent::default();
    let mut client = None;
    while !stop.load(Ordering::Relaxed) {
        let Some(open) = client.as_mut() else {
            client = connect(&url).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let committing = AtomicBool::new(false);
        match transaction(open, seed, number, &committing).await {
            Ok(true) => sent.committed.push(number),
            Ok(false) => {}
            Err(_) => {
                if committing.load(Ordering::SeqCst) {
                    sent.unknown.push(number);
                }
                client = None;
            }
        }
    }
    sent
}

async fn connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// One transaction: a row of the application, whose position in its key is taken under a lock of its own, and the
/// message. A third of them are rolled back.
async fn transaction(
    client: &mut Client,
    seed: Seed,
    number: u32,
    committing: &AtomicBool,
) -> Result<bool, tokio_postgres::Error> {
    let mut dice = seed.dice(number);
    let key = number.is_multiple_of(2).then(|| format!("k{}", dice.random_range(0..KEYS)));
    let rolled_back = dice.random_ratio(1, 3);
    let transaction = client.transaction().await?;
    let place: i64 = match &key {
        Some(key) => {
            let next = "UPDATE places SET place = place + 1 WHERE key = $1 RETURNING place";
            transaction.query_one(next, &[key]).await?.get(0)
        }
        None => 0,
    };
    let payload = json!({ "number": number, "key": key, "place": place, "rolled_back": rolled_back });
    let send = "SELECT postrider.send_with_options('chaos', $1::text::jsonb, p_ordering_key => $2)";
    transaction.query_one(send, &[&payload.to_string(), &key]).await?;
    if rolled_back {
        transaction.rollback().await?;
        return Ok(false);
    }
    committing.store(true, Ordering::SeqCst);
    transaction.commit().await?;
    Ok(true)
}

/// Waits until nothing is queued any more.
#[track_caller]
pub(crate) fn until_settled(server: &Postgres) {
    let unsettled = "SELECT q.id, q.place, q.due_at, q.attempts, q.losses, q.ordering_key, c.node_id, now() FROM postrider.queue q
        LEFT JOIN postrider._claims c ON q.id = ANY (c.ids) ORDER BY q.id LIMIT 20";
    let deadline = Instant::now() + Duration::from_secs(120);
    while server.query("SELECT count(*) FROM postrider.queue").expect("a count").trim() != "0" {
        let rest = || server.query(unsettled).expect("what is left");
        assert!(Instant::now() < deadline, "not everything is settled; the first of it:\n{}", rest());
        std::thread::sleep(Duration::from_millis(100));
    }
}
