//! kill -9 at random moments under load: nothing accepted is lost, ids and order stay.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use rand::RngExt;
use serde::Deserialize;
use serde_json::json;

use crate::eventually;
use crate::http::Client;
use crate::node::Home;
use crate::receiver::{Received, Receiver};
use crate::seed::Seed;

const KILLS: u32 = 22;
/// Above what the kills and the receiver's failures can use up together.
const ATTEMPTS_MAX: u32 = 80;
const SENDERS: u32 = 4;
const KEYS_PER_SENDER: u32 = 5;

#[derive(Clone, Debug, Deserialize)]
struct Payload {
    number: u32,
    key: Option<String>,
    place: u32,
}

#[derive(Default)]
struct Seen {
    arrivals: Vec<(String, u32, Payload)>,
    accepted: HashSet<u32>,
}

/// Fails now and then, so that retries are under way when the node is killed.
fn receive(seed: Seed, seen: &Mutex<Seen>, received: &Received) -> u16 {
    let payload: Payload = serde_json::from_slice(&received.body).expect("what was sent");
    let attempt: u32 = received.header("postrider-attempt").parse().expect("an attempt number");
    let mut seen = seen.lock().expect("nobody panics with it");
    let number = payload.number;
    seen.arrivals.push((received.header("webhook-id").to_owned(), attempt, payload));
    if seed.says_yes((number, attempt), 0.05) {
        return 500;
    }
    seen.accepted.insert(number);
    200
}

/// Sends until told to stop; gives the numbers the node answered 202 for. A send whose answer was lost
/// is not repeated: it may arrive or not.
fn send_all(
    seed: Seed,
    address: &RwLock<SocketAddr>,
    stop: &AtomicBool,
    numbers: &AtomicU32,
    sender: u32,
) -> Vec<u32> {
    let mut dice = seed.dice(sender);
    let mut accepted = Vec::new();
    let mut places: HashMap<String, u32> = HashMap::new();
    let mut client: Option<Client> = None;
    while !stop.load(Ordering::Relaxed) {
        let number = numbers.fetch_add(1, Ordering::Relaxed);
        let key =
            number.is_multiple_of(2).then(|| format!("k{sender}-{}", dice.random_range(0..KEYS_PER_SENDER)));
        let place = key.as_ref().map_or(0, |key| {
            let place = places.entry(key.clone()).or_default();
            *place += 1;
            *place
        });
        let payload = json!({ "number": number, "key": key, "place": place }).to_string();
        let mut headers = vec![("content-type", "application/json")];
        if let Some(key) = &key {
            headers.push(("postrider-ordering-key", key));
        }
        if client.is_none() {
            client = Client::connect(*address.read().expect("the address")).ok();
        }
        let answer = client
            .as_mut()
            .map(|client| client.send("POST", "/v1/endpoints/chaos/messages", &headers, payload.as_bytes()));
        match answer {
            Some(Ok(answer)) => {
                assert_eq!(answer.status, 202, "{}", String::from_utf8_lossy(&answer.body));
                accepted.push(number);
            }
            Some(Err(_)) => client = None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    accepted
}

#[test]
fn what_was_accepted_arrives_in_order_whenever_the_node_is_killed() {
    Seed::runs().for_each(kill_again_and_again);
}

fn kill_again_and_again(seed: Seed) {
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let entered = Arc::clone(&seen);
    let receiver = Receiver::start(move |received| Some(receive(seed, &entered, &received)));
    let home = Home::new();
    let mut node = home.start();
    node.create_endpoint(json!({
        "name": "chaos", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "max_attempts": ATTEMPTS_MAX, "backoff": "fixed", "base_delay_seconds": 0.05 },
    }));
    let address = Arc::new(RwLock::new(node.address));
    let (stop, numbers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let senders: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let (address, stop, numbers) = (Arc::clone(&address), Arc::clone(&stop), Arc::clone(&numbers));
            std::thread::spawn(move || send_all(seed, &address, &stop, &numbers, sender))
        })
        .collect();

    let mut dice = seed.dice("kills");
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_millis(dice.random_range(20..500)));
        node.kill();
        node = home.start();
        *address.write().expect("the address") = node.address;
    }
    stop.store(true, Ordering::Relaxed);
    let accepted: Vec<u32> =
        senders.into_iter().flat_map(|sender| sender.join().expect("a sender panicked")).collect();
    assert!(accepted.len() > 500, "only {} messages were accepted: this is no load", accepted.len());

    eventually(Duration::from_secs(120), "everything is settled", || {
        let status = home.json(&["status"]);
        (status["pending"] == 0 && status["processing"] == 0).then_some(())
    });
    let status = home.json(&["status"]);
    assert_eq!(status["dead"], 0, "nothing died: {status:#}");
    let seen = seen.lock().expect("the receiver is done");
    let lost: Vec<&u32> = accepted.iter().filter(|number| !seen.accepted.contains(number)).collect();
    assert!(lost.is_empty(), "{} of {} accepted messages were lost: {lost:?}", lost.len(), accepted.len());
    println!("{} accepted, {} arrivals, {} kills", accepted.len(), seen.arrivals.len(), KILLS);
    check_ids_and_attempts(&seen);
    check_order(&seen);
}

fn check_ids_and_attempts(seen: &Seen) {
    let mut ids: HashMap<u32, &str> = HashMap::new();
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    for (id, attempt, payload) in &seen.arrivals {
        assert!((1..=ATTEMPTS_MAX).contains(attempt), "attempt {attempt} of {id}");
        assert_eq!(*ids.entry(payload.number).or_insert(id), id, "one message, two ids");
        assert_eq!(*numbers.entry(id).or_insert(payload.number), payload.number, "one id, two messages");
    }
}

/// The first arrival of each message of a key comes after those of all earlier ones.
fn check_order(seen: &Seen) {
    let mut known = HashSet::new();
    let mut last: HashMap<&str, u32> = HashMap::new();
    for (id, _, payload) in &seen.arrivals {
        let Some(key) = payload.key.as_deref() else { continue };
        if !known.insert(id) {
            continue;
        }
        let last = last.entry(key).or_default();
        assert!(payload.place > *last, "key {key}: {} came after {last}", payload.place);
        *last = payload.place;
    }
}
