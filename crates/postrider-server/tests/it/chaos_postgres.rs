//! Two nodes on one PostgreSQL: nodes are killed and frozen, the server is stopped in the middle of things, and
//! applications commit and roll back all the while.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::RngExt;
use serde::Deserialize;
use serde_json::json;
use test_servers::postgres::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::node::{Home, Node};
use crate::receiver::{Received, Receiver};

const ROUNDS: u32 = 12;
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
}

fn receive(seen: &Mutex<Seen>, received: &Received) -> u16 {
    let payload: Payload = serde_json::from_slice(&received.body).expect("what was sent");
    let mut seen = seen.lock().expect("nobody panics with it");
    let number = payload.number;
    seen.arrivals.push((received.header("webhook-id").to_owned(), payload));
    if rand::rng().random_bool(0.03) {
        return 500;
    }
    seen.accepted.insert(number);
    200
}

/// What became of the senders' transactions.
#[derive(Default)]
struct Sent {
    committed: Vec<u32>,
    /// The connection broke before the answer: committed or not.
    unknown: Vec<u32>,
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
    number: u32,
    committing: &AtomicBool,
) -> Result<bool, tokio_postgres::Error> {
    let key = number.is_multiple_of(2).then(|| format!("k{}", rand::rng().random_range(0..KEYS)));
    let rolled_back = rand::rng().random_ratio(1, 3);
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

async fn send_all(url: String, stop: Arc<AtomicBool>, numbers: Arc<AtomicU32>) -> Sent {
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
        match transaction(open, number, &committing).await {
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

fn start(home: &Home, url: &str) -> Node {
    home.start_with(&["--allow-internal", "--store", url])
}

#[test]
fn what_was_committed_arrives_in_order_whoever_dies() {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let entered = Arc::clone(&seen);
    let receiver = Receiver::start(move |received| Some(receive(&entered, &received)));
    let mut server = Postgres::start().expect("a server of its own");
    let (home, url) = (Home::new(), server.url().to_owned());
    server
        .query("CREATE TABLE places (key text PRIMARY KEY, place bigint NOT NULL DEFAULT 0)")
        .expect("a table");
    server
        .query(&format!("INSERT INTO places SELECT 'k' || n FROM generate_series(0, {KEYS}) AS n"))
        .expect("rows");
    home.json(&["migrate", "--store", &url]);
    server.query("SELECT postrider.configure('node_lease', '5')").expect("a setting");
    let mut nodes = vec![start(&home, &url), start(&home, &url)];
    nodes[0].create_endpoint(json!({
        "name": "chaos", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "max_attempts": 100, "backoff": "fixed", "base_delay_seconds": 0.05 },
    }));

    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("one");
    let (stop, numbers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| runtime.spawn(send_all(url.clone(), Arc::clone(&stop), Arc::clone(&numbers))))
        .collect();
    for round in 0..ROUNDS {
        std::thread::sleep(Duration::from_millis(rand::rng().random_range(100..700)));
        match round % 4 {
            3 => {
                server.stop_immediately();
                server.start_again().expect("it starts");
            }
            2 => {
                // Longer than its lease: the other one takes over, and its late results are fenced.
                let frozen = &nodes[(round / 4) as usize % 2];
                frozen.signal("STOP");
                std::thread::sleep(Duration::from_secs(6));
                frozen.signal("CONT");
            }
            _ => {
                let killed = nodes.remove(rand::rng().random_range(0..2));
                killed.kill();
                nodes.push(start(&home, &url));
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let sent: Vec<Sent> =
        senders.into_iter().map(|sender| runtime.block_on(sender).expect("a sender panicked")).collect();
    let committed: Vec<u32> = sent.iter().flat_map(|sent| &sent.committed).copied().collect();
    let unknown: HashSet<u32> = sent.iter().flat_map(|sent| &sent.unknown).copied().collect();
    assert!(committed.len() > 300, "only {} were committed: this is no load", committed.len());

    let unsettled = "SELECT q.id, q.place, q.due_at, q.attempts, q.losses, q.ordering_key, c.node_id, now() FROM postrider.queue q
        LEFT JOIN postrider._claims c ON q.id = ANY (c.ids) ORDER BY q.id LIMIT 20";
    let deadline = Instant::now() + Duration::from_secs(120);
    while server.query("SELECT count(*) FROM postrider.queue").expect("a count").trim() != "0" {
        let rest = || server.query(unsettled).expect("what is left");
        assert!(Instant::now() < deadline, "not everything is settled; the first of it:\n{}", rest());
        std::thread::sleep(Duration::from_millis(100));
    }
    let status = home.json(&["status", "--store", &url]);
    assert_eq!(status["dead"], 0, "nothing died: {status:#}");
    let seen = seen.lock().expect("the receiver is done");
    let lost: Vec<&u32> = committed.iter().filter(|number| !seen.accepted.contains(number)).collect();
    assert!(lost.is_empty(), "{} of {} committed messages were lost: {lost:?}", lost.len(), committed.len());
    let ghosts: Vec<&Payload> =
        seen.arrivals.iter().map(|(_, payload)| payload).filter(|p| p.rolled_back).collect();
    assert!(ghosts.is_empty(), "rolled back and delivered: {ghosts:?}");
    let distinct: HashSet<&str> = seen.arrivals.iter().map(|(id, _)| id.as_str()).collect();
    println!(
        "{} committed, {} unknown, {} arrivals of {} messages",
        committed.len(),
        unknown.len(),
        seen.arrivals.len(),
        distinct.len()
    );
    check_order(&seen);
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
