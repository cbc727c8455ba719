//! A message over the whole way: POST, engine, receiver, story.

use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::node::Home;
use crate::receiver::{Received, Receiver};

#[test]
fn the_receiver_gets_the_payload_byte_for_byte_and_the_id() {
    let seen: Arc<Mutex<Vec<Received>>> = Arc::default();
    let entered = Arc::clone(&seen);
    let receiver = Receiver::start(move |received| {
        entered.lock().expect("the list").push(received);
        Some(200)
    });
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } }));
    let payload = "{\"total\": 1.50,\n  \"n\":1} ";
    let headers = [("content-type", "application/json; charset=utf-8"), ("postrider-header-x-trace", "abc")];
    let id = node.send("shop", &headers, payload);
    let story = node.until(id, "completed");
    assert_eq!(story["attempt_count"], 1);
    let seen = seen.lock().expect("the list");
    assert_eq!(seen.len(), 1);
    assert_eq!(String::from_utf8_lossy(&seen[0].body), payload);
    assert_eq!(seen[0].path, "/hook");
    assert_eq!(seen[0].header("content-type"), "application/json; charset=utf-8");
    assert_eq!(seen[0].header("x-trace"), "abc");
    assert_eq!(seen[0].header("postrider-attempt"), "1");
    assert!(seen[0].header("webhook-id").ends_with(&format!("_{id}")), "{}", seen[0].header("webhook-id"));
}

#[test]
fn what_is_refused_for_good_is_dead_at_once() {
    let receiver = Receiver::start(|_| Some(400));
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } }));
    let story = node.until(node.send("shop", &[], "{}"), "dead");
    assert_eq!(story["attempt_count"], 1);
    assert!(story["last_error"].as_str().is_some_and(|error| error.starts_with("[PERMANENT]")), "{story:#}");
    assert_eq!(home.json(&["status"])["dead"], 1);
}

#[test]
fn internal_addresses_are_refused_unless_allowed() {
    let receiver = Receiver::start(|_| Some(200));
    let home = Home::new();
    let endpoint = json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } });
    let guarded = home.start_with(&[]);
    guarded.create_endpoint(endpoint);
    guarded.until(guarded.send("shop", &[], "{}"), "dead");
    drop(guarded);
    let open = home.start_with(&["--allow-net", "127.0.0.0/8"]);
    open.until(open.send("shop", &[], "{}"), "completed");
}

#[test]
fn a_file_endpoint_writes_below_its_root() {
    let home = Home::new();
    std::fs::create_dir(home.path().join("out")).expect("a folder");
    let node = home.start_with(&["--file-root", "out"]);
    node.create_endpoint(json!({ "name": "log", "protocol": "file", "config": { "path": "orders.jsonl" } }));
    node.until(node.send("log", &[], r#"{"n":1}"#), "completed");
    let written = std::fs::read_to_string(home.path().join("out/orders.jsonl")).expect("the file");
    assert_eq!(written.lines().count(), 1);
}
