//! One line of the log for what became of each message.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

/// What a line has beside what differs from run to run.
fn steady(mut line: Value) -> Value {
    let fields = line.as_object_mut().expect("an object");
    for (name, kind) in [("duration_seconds", "number"), ("age_seconds", "number"), ("created_at", "time")] {
        if fields.contains_key(name) {
            fields.insert(name.to_owned(), kind.into());
        }
    }
    fields.remove("timestamp");
    line
}

fn node_with(status: u16, environment: &[(&str, &str)]) -> (Home, Node) {
    let receiver = Receiver::start(move |_| Some(status));
    let home = Home::new();
    let node = home.start_in(environment, &["--allow-internal"]);
    node.create_endpoint(json!({
        "name": "shop", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "max_attempts": 2, "schedule_seconds": [1] },
    }));
    (home, node)
}

#[test]
fn a_delivered_message_has_one_wide_line() {
    let (_home, node) = node_with(200, &[]);
    let headers = [
        ("postrider-correlation-id", "6f1c8e0e-6a2b-4f0e-9d5c-1b2a3c4d5e6f"),
        ("postrider-event-type", "order.paid"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    let id = node.send("shop", &headers, "{}");
    let line = node.until_logged(id, "A message was delivered");
    assert_eq!(
        steady(line),
        json!({
            "level": "INFO", "target": "postrider::outcome", "message": "A message was delivered",
            "message_id": id, "endpoint": "shop", "state": "completed", "attempt": 1, "response_status": 200,
            "duration_seconds": "number", "age_seconds": "number", "created_at": "time",
            "correlation_id": "6f1c8e0e-6a2b-4f0e-9d5c-1b2a3c4d5e6f", "event_type": "order.paid",
            "trace_id": "0af7651916cd43dd8448eb211c80319c",
        })
    );
}

#[test]
fn a_message_that_dies_has_a_warning_and_its_retries_are_for_debugging() {
    let (_home, node) = node_with(500, &[("POSTRIDER_LOG", "info,postrider::outcome=debug")]);
    let id = node.send("shop", &[], "{}");
    let retry = node.until_logged(id, "An attempt failed; retrying");
    assert_eq!(
        (&retry["level"], &retry["state"], &retry["attempt"]),
        (&json!("DEBUG"), &json!("pending"), &json!(1))
    );
    let dead = node.until_logged(id, "A message is dead; it is in the DLQ");
    assert_eq!(
        steady(dead),
        json!({
            "level": "WARN", "target": "postrider::outcome", "message": "A message is dead; it is in the DLQ",
            "message_id": id, "endpoint": "shop", "state": "dead", "attempt": 2, "class": "retryable",
            "error": "[RETRYABLE] answered 500 Internal Server Error", "response_status": 500,
            "duration_seconds": "number", "age_seconds": "number", "created_at": "time",
        })
    );
}

#[test]
fn a_message_that_expires_has_a_line() {
    let (home, node) = node_with(200, &[]);
    home.json(&["endpoint", "pause", "shop"]);
    let soon = (jiff::Timestamp::now() + Duration::from_secs(1)).to_string();
    let id = node.send("shop", &[("postrider-expires-at", &soon)], "{}");
    let line = node.until_logged(id, "A message expired");
    assert_eq!(
        (&line["endpoint"], &line["state"], &line["attempt"]),
        (&json!("shop"), &json!("expired"), &json!(0))
    );
}

/// Some are met by claims, some by upkeep.
#[test]
fn every_message_that_expires_at_an_overloaded_endpoint_has_its_line() {
    let (home, node) = node_with(200, &[]);
    let url = home.json(&["endpoint", "show", "shop"])["config"]["url"].clone();
    node.create_endpoint(json!({
        "name": "slow", "protocol": "http", "config": { "url": url },
        "options": { "rate_limit": { "limit": 20, "interval": "second" } },
    }));
    let soon = (jiff::Timestamp::now() + Duration::from_secs(3)).to_string();
    let ids: Vec<i64> =
        (0..200).map(|_| node.send("slow", &[("postrider-expires-at", &soon)], "{}")).collect();
    let is_over = |id: &i64| {
        let state = node.get(&format!("/v1/messages/{id}")).expect(200).json()["state"].clone();
        (state != "pending" && state != "processing").then_some(state)
    };
    for id in ids {
        let state = eventually(Duration::from_secs(30), "it ends", || is_over(&id));
        let says = if state == "expired" { "A message expired" } else { "A message was delivered" };
        node.until_logged(id, says);
    }
}

#[test]
fn lines_that_nobody_wants_are_not_written_and_the_last_ones_are() {
    let (_home, mut node) = node_with(200, &[("POSTRIDER_LOG", "info,postrider::outcome=warn")]);
    let id = node.send("shop", &[], "{}");
    node.until(id, "completed");
    node.signal("TERM");
    node.until_exit(Duration::from_secs(20));
    assert!(!node.written().contains("postrider::outcome"), "{}", node.written());

    let (_home, mut node) = node_with(200, &[]);
    let ids: Vec<i64> = (0..50).map(|_| node.send("shop", &[], "{}")).collect();
    ids.iter().for_each(|id| drop(node.until(*id, "completed")));
    node.signal("TERM");
    node.until_exit(Duration::from_secs(20));
    for id in ids {
        node.until_logged(id, "A message was delivered");
    }
}

#[test]
fn text_lines_have_the_same_fields() {
    let receiver = Receiver::start(|_| Some(200));
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", &receiver.url()]);
    home.json(&["send", "shop", "{}"]);
    let log = std::fs::File::create(home.path().join("log")).expect("a file");
    let mut node = home
        .command(&["serve", "--listen", "127.0.0.1:0", "--allow-internal", "--log-format", "text"])
        .stderr(Stdio::from(log))
        .spawn()
        .expect("the binary starts");
    let line = eventually(Duration::from_secs(30), "a line about the message", || {
        let text = std::fs::read_to_string(home.path().join("log")).expect("the log");
        text.lines().find(|line| line.contains("A message was delivered")).map(str::to_owned)
    });
    node.kill().expect("it ran");
    node.wait().expect("it is ours");
    let expected = "INFO postrider::outcome: A message was delivered message_id=1 endpoint=\"shop\" state=\"completed\" \
                    attempt=1 response_status=200 duration_seconds=";
    assert!(line.contains(expected), "{line}");
}
