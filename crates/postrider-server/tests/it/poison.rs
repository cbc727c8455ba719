//! A message that crashes the node each time ends in the DLQ; its neighbours do not.

use std::collections::HashMap;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::node::Home;
use crate::receiver::Receiver;

const ATTEMPTS_MAX: u32 = 5;
const BEFORE: usize = 600;
const AFTER: usize = 200;
/// No more crashes than attempts, and a few spared ones until it was alone.
const CRASHES_MAX: u32 = ATTEMPTS_MAX + 3;

#[test]
fn poison_dies_alone() {
    let pid = Arc::new(AtomicU32::new(0));
    let delivered: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let (victim, counted) = (Arc::clone(&pid), Arc::clone(&delivered));
    let (running, beside) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
    let beside_poison = Arc::clone(&beside);
    let receiver = Receiver::start(move |received| {
        if received.body == b"\"poison\"" {
            beside.fetch_max(running.load(Ordering::SeqCst), Ordering::SeqCst);
            let kill = format!("kill -KILL {}", victim.load(Ordering::SeqCst));
            let _ = Command::new("sh").args(["-c", &kill]).status();
            return None;
        }
        // Slow enough that hundreds are in flight when the poison comes.
        running.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        running.fetch_sub(1, Ordering::SeqCst);
        *counted.lock().expect("the count").entry(received.header("webhook-id").to_owned()).or_default() += 1;
        Some(200)
    });
    let home = Home::new();
    let mut node = home.start();
    pid.store(node.pid(), Ordering::SeqCst);
    node.create_endpoint(json!({
        "name": "crash", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "max_attempts": ATTEMPTS_MAX, "backoff": "fixed", "base_delay_seconds": 0.05 },
        "options": { "max_in_flight": 256 },
    }));
    home.json(&["endpoint", "pause", "crash"]);
    for _ in 0..BEFORE {
        node.send("crash", &[], "\"neighbour\"");
    }
    let poison = node.send("crash", &[], "\"poison\"");
    for _ in 0..AFTER {
        node.send("crash", &[], "\"neighbour\"");
    }
    home.json(&["endpoint", "resume", "crash"]);

    let deadline = Instant::now() + Duration::from_secs(180);
    let mut crashes = 0;
    loop {
        assert!(Instant::now() < deadline, "after {crashes} crashes: {:#}", home.json(&["status"]));
        if node.has_ended() {
            crashes += 1;
            assert!(crashes <= CRASHES_MAX, "the poison is tried for ever");
            node = home.start();
            pid.store(node.pid(), Ordering::SeqCst);
        }
        let status = home.json(&["status"]);
        if status["pending"] == 0 && status["processing"] == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{} were in flight beside the poison; {crashes} crashes", beside_poison.load(Ordering::SeqCst));
    assert!(beside_poison.load(Ordering::SeqCst) > 20, "the poison had too few neighbours");
    assert_eq!(home.json(&["status"])["dead"], 1, "only the poison is dead");
    let story = node.until(poison, "dead");
    assert!(story["attempt_count"].as_u64() <= Some(u64::from(CRASHES_MAX)), "{story:#}");
    assert_eq!(delivered.lock().expect("the count").len(), BEFORE + AFTER);
    assert!(crashes >= 2, "it crashed the node {crashes} times only: this proves nothing");
}
