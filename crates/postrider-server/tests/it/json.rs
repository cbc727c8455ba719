//! JSON and headers on the ways in that the server has: what is refused there is what the stores' own tests refuse, in their words.

use serde_json::{Value, json};

use crate::cli::told;
use crate::http::Answer;
use crate::node::{Home, Node};

const SHOP: &str = "/v1/endpoints/shop/messages";
const ENVELOPE: (&str, &str) = ("content-type", "application/vnd.postrider+json");
const TOO_DEEP: &str = "is more than 128 levels deep";

fn shop() -> (Home, Node) {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "http://127.0.0.1:9/hook"]);
    home.json(&["endpoint", "pause", "shop"]);
    home.json(&["event", "create", "orders"]);
    let node = home.start();
    (home, node)
}

fn lists(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// 422, which field, and how the rule begins.
#[track_caller]
fn assert_refused(answer: Answer, field: &str, rule: &str) {
    let problem = answer.expect(422).json();
    assert_eq!(problem["field"], field, "{problem}");
    assert_eq!(problem["sqlstate"], "22023", "{problem}");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(detail.contains(rule), "{problem}");
}

#[track_caller]
fn assert_command_refused(home: &Home, command: &[&str], says: &str) {
    let output = home.run(command);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains(says), "{command:?}: {told}");
}

#[test]
fn a_payload_that_says_it_is_json_is() {
    let (home, node) = shop();
    let not_json = "is not JSON";
    for headers in
        [vec![], vec![("content-type", "application/json")], vec![("content-type", "a/b+json; c=d")]]
    {
        for payload in [&b"{oops"[..], b"", b"\"\xff\""] {
            assert_refused(node.post(SHOP, &headers, payload), "payload", not_json);
        }
    }
    // "{oops"
    let encoded = br#"{"payload_base64": "e29vcHM="}"#;
    assert_refused(node.post(SHOP, &[ENVELOPE], encoded), "payload", not_json);
    let lines = "{\"endpoint\": \"shop\", \"payload\": 1}\n{\"endpoint\": \"shop\", \"payload_base64\": \"e29vcHM=\"}\n";
    let answer = node.post("/v1/messages:batch", &[], lines.as_bytes());
    assert_eq!(answer.json()["line"], 2);
    assert_refused(answer, "payload", not_json);
    assert_refused(node.post("/v1/events/orders", &[], b"{oops"), "payload", not_json);
    assert_refused(node.post("/v1/endpoints/shop/test", &[], b"{oops"), "payload", not_json);
    assert_command_refused(&home, &["send", "shop", "{oops"], "payload: is not JSON");
    assert_command_refused(&home, &["publish", "orders", "{oops"], "payload: is not JSON");
    assert_eq!(node.get("/v1/messages").json()["items"], json!([]), "nothing was sent");

    node.send("shop", &[("content-type", "text/plain")], "{oops");
    home.json(&["send", "shop", "{oops", "--content-type", "text/plain"]);
    let text = br#"{"payload_base64": "e29vcHM=", "options": {"content_type": "text/plain"}}"#;
    node.post(SHOP, &[ENVELOPE], text).expect(202);
}

#[test]
fn json_has_at_most_128_levels() {
    let (home, node) = shop();
    let (deep, within) = (lists(129), lists(128));
    assert_refused(node.post(SHOP, &[], deep.as_bytes()), "payload", TOO_DEEP);
    let document =
        |payload: &str, options: &str| format!(r#"{{"payload": {payload}, "options": {options}}}"#);
    let line = |payload: &str| format!("{{\"endpoint\": \"shop\", \"payload\": {payload}}}\n");
    assert_refused(node.post(SHOP, &[ENVELOPE], document(&deep, "{}").as_bytes()), "payload", TOO_DEEP);
    let options = document("1", &format!(r#"{{"options": {deep}}}"#));
    assert_refused(node.post(SHOP, &[ENVELOPE], options.as_bytes()), "options", TOO_DEEP);
    assert_refused(node.post("/v1/messages:batch", &[], line(&deep).as_bytes()), "payload", TOO_DEEP);
    assert_refused(node.post("/v1/events/orders", &[], deep.as_bytes()), "payload", TOO_DEEP);
    let in_a_header = format!(r#"{{"max_attempts": {within}}}"#);
    let answer = node.post(SHOP, &[("postrider-options", &in_a_header)], b"1");
    assert_refused(answer, "postrider-options", TOO_DEEP);
    for field in ["config", "retry_policy", "options"] {
        let endpoint = format!(r#"{{"name": "b", "protocol": "http", "{field}": {{"x": {within}}}}}"#);
        assert_refused(node.post("/v1/endpoints", &[], endpoint.as_bytes()), field, TOO_DEEP);
    }
    let schema = format!(r#"{{"name": "deep", "schema": {{"const": {within}}}}}"#);
    assert_refused(node.post("/v1/event-types", &[], schema.as_bytes()), "schema", TOO_DEEP);
    for field in ["filter", "template"] {
        let subscription = format!(r#"{{"pattern": "*", "endpoint": "shop", "{field}": {deep}}}"#);
        assert_refused(node.post("/v1/subscriptions", &[], subscription.as_bytes()), field, TOO_DEEP);
    }
    let object = format!(r#"{{"x": {within}}}"#);
    let commands: [(&[&str], &str); 7] = [
        (&["send", "shop", &deep], "payload"),
        (&["send", "shop", "1", "--options", &object], "options"),
        (&["publish", "orders", &deep], "payload"),
        (&["endpoint", "create", "b", "http", "--endpoint-config", &object], "config"),
        (&["endpoint", "create", "b", "http", "--url", "http://x/", "--options", &object], "options"),
        (&["event", "create", "deep", "--schema", &deep], "schema"),
        (&["event", "subscribe", "*", "shop", "--filter", &deep], "filter"),
    ];
    for (command, field) in commands {
        assert_command_refused(&home, command, &format!("{field}: {TOO_DEEP}"));
    }
    let said = told(&home.run(&["send", "shop", &deep]));
    assert!(!said.contains("hint"), "quoting it would not help: {said}");

    node.post(SHOP, &[], within.as_bytes()).expect(202);
    node.post(SHOP, &[ENVELOPE], document(&within, "{}").as_bytes()).expect(202);
    node.post("/v1/messages:batch", &[], line(&within).as_bytes()).expect(202);
    node.post("/v1/events/orders", &[], within.as_bytes()).expect(202);
}

#[test]
fn a_message_sets_no_header_twice_and_none_that_its_endpoint_keeps() {
    let (home, node) = shop();
    let kept = json!({
        "name": "kept", "protocol": "http", "options": {"override_headers": ["x-b"]},
        "config": {"url": "http://127.0.0.1:9/", "headers": {"X-A": "1", "X-B": "1"}},
    });
    let created = node.post("/v1/endpoints", &[], kept.to_string().as_bytes()).expect(201).json();
    assert_eq!(created["options"]["override_headers"], json!(["x-b"]));
    let rule = "is set by the endpoint, which does not let messages replace it";
    let answer = node.post("/v1/endpoints/kept/messages", &[("postrider-header-x-a", "2")], b"1");
    assert_refused(answer, "headers.x-a", rule);
    node.post("/v1/endpoints/kept/messages", &[("postrider-header-x-b", "2")], b"1").expect(202);
    let answer = node.post(SHOP, &[("postrider-header-host", "example.com")], b"1");
    assert_refused(answer, "headers.host", "can be set by the endpoint only");
    let twice = br#"{"payload": 1, "options": {"headers": {"A": "1", "a": "2"}}}"#;
    let given_twice = "is given twice; names of headers ignore case";
    assert_refused(node.post(SHOP, &[ENVELOPE], twice), "headers.a", given_twice);
    node.post(SHOP, &[ENVELOPE], br#"{"payload": 1, "options": {"headers": {"a": "1", "a": "2"}}}"#)
        .expect(422);
    node.post(SHOP, &[("postrider-header-a", "1"), ("Postrider-Header-A", "2")], b"1").expect(422);
    let command = ["send", "shop", "1", "--header", "A=1", "--header", "a=2"];
    assert_command_refused(&home, &command, &format!("headers.a: {given_twice}"));

    let changed: Value =
        home.json(&["endpoint", "alter", "kept", "--options", r#"{"override_headers": []}"#]);
    assert_eq!(changed["options"]["override_headers"], json!([]));
    let command = ["send", "kept", "1", "--header", "X-B=2"];
    assert_command_refused(&home, &command, &format!("headers.X-B: {rule}"));
}
