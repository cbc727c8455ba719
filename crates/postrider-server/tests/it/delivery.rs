//! A message over the whole way: POST, engine, receiver, story.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use test_servers::BrokerKind;

use crate::eventually;
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
fn a_compressed_payload_is_sent_with_a_header_of_the_message_that_says_so() {
    let compressed = |received: &Received| received.header("content-encoding") == "gzip";
    let receiver = Receiver::start(move |received| Some(if compressed(&received) { 200 } else { 400 }));
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } }));
    let messages = "/v1/endpoints/shop/messages";
    let refused = node.post(messages, &[("content-encoding", "gzip")], b"\x1f\x8b").expect(415).json();
    let told = "postrider-header-content-encoding";
    assert!(refused["detail"].as_str().is_some_and(|detail| detail.contains(told)), "{refused:#}");
    let headers = [("content-encoding", "identity"), (told, "gzip"), ("content-type", "text/plain")];
    node.until(node.send("shop", &headers, "as good as compressed"), "completed");
}

#[test]
fn an_error_that_was_overcome_is_told_as_one_of_an_earlier_attempt() {
    let first = |received: &Received| received.header("postrider-attempt") == "1";
    let receiver = Receiver::start(move |received| Some(if first(&received) { 500 } else { 200 }));
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "schedule_seconds": [0.1] } }));
    let id = node.send("shop", &[], "{}");
    let story = node.until(id, "completed");
    assert!(story["last_error"].as_str().is_some_and(|error| error.starts_with("[RETRYABLE]")), "{story:#}");
    let shown = home.run(&["message", "show", &id.to_string()]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    assert!(shown.contains("earlier error") && !shown.contains("last error"), "{shown}");
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

#[test]
fn a_node_tells_whether_it_is_connected_to_a_broker() {
    let Some(mut broker) = BrokerKind::Redis.start() else { return };
    let home = Home::new();
    let node = home.start();
    let config = json!({ "host": "127.0.0.1", "port": broker.listeners().plain, "stream_key": "orders" });
    node.create_endpoint(json!({ "name": "orders", "protocol": "redis", "config": config }));
    let connection = || node.get("/v1/endpoints/orders").expect(200).json()["connection"].clone();
    let metric = || String::from_utf8(node.get("/metrics").expect(200).body).expect("text");
    assert_eq!(connection(), json!(null), "no attempt was made yet");
    let id = node.send("orders", &[], "{}");
    node.until(id, "completed");
    assert_eq!(connection(), json!({ "state": "up" }));
    let shown = home.json(&["endpoint", "show", "orders", "--url", &format!("http://{}", node.address)]);
    assert_eq!(shown["connection"], json!({ "state": "up" }));
    assert!(metric().contains(r#"postrider_endpoint_connected{endpoint="orders"} 1"#), "{}", metric());
    assert!(metric().contains(r#"postrider_endpoint_info{endpoint="orders",protocol="redis"} 1"#));
    broker.kill();
    eventually(Duration::from_secs(20), "the node notices", || {
        let connection = connection();
        (connection["state"] == "down" && connection["error"].to_string().contains("refused")).then_some(())
    });
    // A page is kept for a moment.
    eventually(Duration::from_secs(20), "the page says so", || {
        metric().contains(r#"postrider_endpoint_connected{endpoint="orders"} 0"#).then_some(())
    });
    let url = format!("http://{}", node.address);
    let shown = home.json(&["--url", &url, "endpoint", "show", "orders"]);
    assert_eq!(shown["connection"]["state"], "down", "{shown:#}");
}

#[test]
fn a_message_says_that_its_broker_is_away_until_it_is_back() {
    let Some(mut broker) = BrokerKind::Redis.start() else { return };
    broker.stop();
    let home = Home::new();
    let node = home.start();
    let settings = json!({ "circuit_breaker_threshold": 2, "circuit_breaker_cooldown": 5 }).to_string();
    node.client().send("PUT", "/v1/config", &[], settings.as_bytes()).expect("an answer").expect(200);
    let port = broker.listeners().plain;
    let config = json!({ "host": "127.0.0.1", "port": port, "stream_key": "orders" });
    node.create_endpoint(json!({ "name": "orders", "protocol": "redis", "config": config,
        "retry_policy": { "schedule_seconds": [3] } }));
    let ids = [node.send("orders", &[], "{}"), node.send("orders", &[], "{}")];
    let url = format!("http://{}", node.address);
    let show = |place: &[&str], id: i64| home.json(&[place, &["message", "show", &id.to_string()]].concat());
    let refused = format!("connection refused by 127.0.0.1:{port}");
    let why = |place: &[&str], id| show(place, id)["reason"].as_str().unwrap_or_default().to_owned();
    eventually(Duration::from_secs(20), "it says why", || {
        let why = why(&["--url", &url], ids[0]);
        let says = format!("not connected: {refused}; waiting after attempt ");
        (why.starts_with(&says) && why.contains(", circuit open: next try at ")).then_some(())
    });
    // The store knows no connections, but what became of the last attempt.
    eventually(Duration::from_secs(20), "the store says when", || {
        let told = show(&[], ids[1]);
        let says = |field: &str, text: &str| told[field].as_str().is_some_and(|said| said.contains(text));
        let says_when = says("reason", "circuit open: next try at ") && !says("reason", "not connected");
        (says_when && says("last_error", &refused)).then_some(())
    });
    let scheduled = node.send("orders", &[("postrider-scheduled-at", "2100-01-01T00:00:00Z")], "{}");
    assert_eq!(why(&["--url", &url], scheduled), "scheduled: next try at 2100-01-01T00:00:00Z");
    broker.start_again().expect("it starts again");
    for id in ids {
        node.until(id, "completed");
    }
}
