//! What people do to endpoints, messages, dead letters and the whole store over HTTP.

use std::time::Duration;

use serde_json::{Value, json};

use crate::http::Answer;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

fn ask(node: &Node, method: &str, path: &str, body: &Value) -> Answer {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    node.client().send(method, path, &[], body.as_bytes()).expect("an answer")
}

fn endpoint(name: &str, url: &str) -> Value {
    json!({ "name": name, "protocol": "http", "config": { "url": url } })
}

/// A node with a paused endpoint `shop`: what is sent stays pending.
fn paused_shop() -> (Home, Node) {
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(endpoint("shop", "http://127.0.0.1:9/hook"));
    node.post("/v1/endpoints/shop/pause", &[], b"").expect(200);
    (home, node)
}

/// A node whose endpoint `shop` gives every message up at once, and a dead letter.
fn dead_letter() -> (Home, Node, i64) {
    let receiver = Receiver::start(|_| Some(400));
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(endpoint("shop", &receiver.url()));
    let id = node.send("shop", &[("postrider-ordering-key", "k")], "{\"n\":1}");
    let letter = node.until(id, "dead")["dlq_id"].as_i64().expect("a dead letter");
    (home, node, letter)
}

fn ids(page: &Value) -> Vec<i64> {
    page["items"].as_array().expect("items").iter().map(|item| item["id"].as_i64().expect("an id")).collect()
}

#[test]
fn a_change_of_an_endpoint_replaces_what_it_names_and_nothing_else() {
    let (_home, node) = paused_shop();
    let change = json!({ "retry_policy": { "max_attempts": 3 } });
    let changed = ask(&node, "PATCH", "/v1/endpoints/shop", &change).expect(200).json();
    assert_eq!(changed["retry_policy"]["max_attempts"], 3);
    assert_eq!(changed["config"]["url"], "http://127.0.0.1:9/hook");
    assert_eq!(changed, node.get("/v1/endpoints").expect(200).json()["items"][0]);
    let refused = ask(&node, "PATCH", "/v1/endpoints/shop", &json!({ "name": "other" })).expect(422).json();
    assert_eq!(refused["field"], "name");
    ask(&node, "PATCH", "/v1/endpoints/nobody", &change).expect(404);
}

#[test]
fn an_endpoint_with_messages_is_dropped_by_force_only() {
    let (_home, node) = paused_shop();
    let id = node.send("shop", &[], "{}");
    ask(&node, "DELETE", "/v1/endpoints/shop", &json!(null)).expect(409);
    let refused = ask(&node, "DELETE", "/v1/endpoints/shop?force=perhaps", &json!(null)).expect(422).json();
    assert_eq!(refused["field"], "force");
    assert_eq!(ask(&node, "DELETE", "/v1/endpoints/shop?force=true", &json!(null)).expect(204).body, b"");
    node.get("/v1/endpoints/shop").expect(404);
    assert_eq!(node.get(&format!("/v1/messages/{id}")).expect(200).json()["state"], "cancelled");
}

#[test]
fn every_switch_of_an_endpoint_answers_with_what_it_is_now() {
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(endpoint("shop", "http://127.0.0.1:9/hook"));
    let table = [
        ("disable", "enabled", json!(false)),
        ("enable", "enabled", json!(true)),
        ("pause", "paused", json!(true)),
        ("resume", "paused", json!(false)),
        ("reset", "circuit", json!({ "state": "closed" })),
    ];
    for (switch, field, expected) in table {
        let answer = node.post(&format!("/v1/endpoints/shop/{switch}"), &[], b"").expect(200).json();
        assert_eq!(answer[field], expected, "{switch}");
        node.post(&format!("/v1/endpoints/nobody/{switch}"), &[], b"").expect(404);
    }
}

#[test]
fn a_test_says_what_the_receiver_said_and_queues_nothing() {
    let receiver = Receiver::start(|received| {
        let says = String::from_utf8(received.body).expect("text");
        Some(if says.contains("postrider.test") { 204 } else { 410 })
    });
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(endpoint("shop", &receiver.url()));
    // Whatever its state is: that is when people want to know.
    node.post("/v1/endpoints/shop/disable", &[], b"").expect(200);
    let said = node.post("/v1/endpoints/shop/test", &[], b"").expect(200).json();
    assert_eq!((&said["delivered"], &said["response_status"]), (&json!(true), &json!(204)), "{said}");
    assert!(said["duration_seconds"].as_f64().expect("a number") > 0.0);
    let said = node.post("/v1/endpoints/shop/test", &[], b"{\"mine\":1}").expect(200).json();
    let failed = (&said["delivered"], &said["response_status"], &said["class"]);
    assert_eq!(failed, (&json!(false), &json!(410), &json!("gone")), "{said}");
    assert!(said["error"].as_str().expect("an error").starts_with("[DISABLE]"), "{said}");
    assert_eq!(node.get("/v1/messages").expect(200).json()["items"], json!([]));
    node.post("/v1/endpoints/nobody/test", &[], b"").expect(404);
    let refused =
        node.post("/v1/endpoints/shop/test", &[("postrider-options", "{\"x\":1}")], b"").expect(422);
    assert_eq!(refused.json()["field"], "options.x");
}

#[test]
fn a_test_takes_no_longer_than_its_message_asks_for() {
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let receiver = Receiver::start(move |_| {
        let _ = held.lock().expect("one at a time").recv();
        Some(200)
    });
    let home = Home::new();
    let node = home.start();
    let config = json!({ "url": receiver.url(), "timeout": 25 });
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": config }));
    let options = [("postrider-options", "{\"timeout\":1}")];
    let said = node.post("/v1/endpoints/shop/test", &options, b"").expect(200).json();
    let error = said["error"].as_str().expect("an error");
    assert!(error.contains("1 s") && !error.contains("25 s"), "{error}");
    drop(release);
}

#[test]
fn a_test_of_nobody_says_why_it_failed() {
    let home = Home::new();
    let node = home.start_with(&[]);
    node.create_endpoint(endpoint("shop", "http://127.0.0.1:9/hook"));
    let said = node.post("/v1/endpoints/shop/test", &[], b"").expect(200).json();
    assert_eq!(
        (&said["delivered"], &said["class"]),
        (&json!(false), &json!("permanent")),
        "internal: {said}"
    );
}

#[test]
fn a_test_masks_the_secrets_that_a_receiver_repeats() {
    let home = Home::new();
    let parrot = Receiver::talking(|received| Some((500, format!("{:?}", received.headers))));
    std::fs::write(home.path().join("key"), "from-a-file\n").expect("a secret");
    let node = home.start_with(&["--allow-internal", "--secrets-dir", "."]);
    let config = json!({ "url": parrot.url(), "auth": { "type": "basic", "username": "u", "password": "pass-word" },
        "headers": { "x-api-key": "file:key", "x-auth-token": "token-itself", "x-tenant": "blue" } });
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": config }));
    let said = node.post("/v1/endpoints/shop/test", &[], b"").expect(200).json();
    let body = said["response_body"].as_str().expect("what it said");
    assert!(body.contains("blue") && body.contains("***"), "{body}");
    // The last one is `u:pass-word`, as it is sent.
    for secret in ["pass-word", "from-a-file", "token-itself", "dTpwYXNzLXdvcmQ="] {
        assert!(!said.to_string().contains(secret), "{secret}: {said}");
    }
}

#[test]
fn any_bytes_go_in_one_document_as_base64() {
    let home = Home::new();
    let node = home.start();
    let config = json!({ "url": "https://example.org/hook" });
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": config }));
    let (path, headers) =
        ("/v1/endpoints/shop/messages", [("content-type", "application/vnd.postrider+json")]);
    let document = br#"{"payload_base64": "/wA=", "options": {"content_type": "image/x-tiny"}}"#;
    let id = node.post(path, &headers, document).expect(202).json()["id"].clone();
    let line =
        br#"{"endpoint": "shop", "payload_base64": "/wA=", "options": {"content_type": "image/x-tiny"}}"#;
    let ids = node.post("/v1/messages:batch", &[], line).expect(202).json();
    for id in [&id, &ids["items"][0]["id"]] {
        let story = node.get(&format!("/v1/messages/{id}")).expect(200).json();
        let shown = (&story["payload_base64"], &story["content_type"], story.get("payload"));
        assert_eq!(shown, (&json!("/wA="), &json!("image/x-tiny"), None));
    }
    let refused: [(&[u8], &str); 4] = [
        (br#"{"payload": 1, "payload_base64": "/wA="}"#, "payload_base64"),
        (br#"{"payload_base64": "/wA"}"#, "payload_base64"),
        (br#"{"payload_base64": null}"#, "payload_base64"),
        (br#"{"payload": 1, "options": {"content_type": 7}}"#, "options.content_type"),
    ];
    for (document, field) in refused {
        assert_eq!(node.post(path, &headers, document).expect(422).json()["field"], field);
    }
}

#[test]
fn a_batch_is_taken_in_the_order_of_its_lines() {
    let (_home, node) = paused_shop();
    let lines = "{\"endpoint\":\"shop\",\"payload\":{\"n\": 1},\"options\":{\"priority\":3}}\n\n\
                 {\"endpoint\":\"shop\",\"payload\":[2,  2]}\r\n{\"endpoint\":\"shop\",\"payload\":null}";
    let sent = node.post("/v1/messages:batch", &[], lines.as_bytes()).expect(202).json();
    assert_eq!(ids(&sent), [1, 2, 3]);
    let second = node.get("/v1/messages/2").expect(200);
    assert!(String::from_utf8_lossy(&second.body).contains("\"payload\":[2,  2]"), "byte for byte");
    assert_eq!(node.get("/v1/messages/1").expect(200).json()["priority"], 3);
}

#[test]
fn a_refused_batch_names_line_and_field_and_queues_nothing() {
    let (_home, node) = paused_shop();
    let good = json!({ "endpoint": "shop", "payload": 1 }).to_string();
    let table = [
        ("{\"endpoint\":\"shop\"}", 422, json!("payload")),
        ("{\"endpoint\":\"shop\",\"payload\":1,\"optoins\":{}}", 422, json!("optoins")),
        ("{\"endpoint\":7,\"payload\":1}", 422, json!("endpoint")),
        ("{\"endpoint\":\"nobody\",\"payload\":1}", 404, json!(null)),
        (
            "{\"endpoint\":\"shop\",\"payload\":1,\"options\":{\"priority\":11}}",
            422,
            json!("options.priority"),
        ),
        (
            "{\"endpoint\":\"shop\",\"payload\":1,\"options\":{\"options\":{\"x\":1}}}",
            422,
            json!("options.x"),
        ),
        (
            "{\"endpoint\":\"shop\",\"payload\":1,\"options\":{\"ordering_key\":\"\"}}",
            422,
            json!("ordering_key"),
        ),
        ("not JSON", 422, json!(null)),
        (
            "{\"endpoint\":\"shop\",\"payload\":2,\"options\":{\"idempotency_key\":\"taken\"}}",
            409,
            json!("idempotency_key"),
        ),
    ];
    let keyed = |payload: u64, key: &str| {
        json!({ "endpoint": "shop", "payload": payload, "options": { "idempotency_key": key } }).to_string()
    };
    node.post("/v1/messages:batch", &[], keyed(1, "taken").as_bytes()).expect(202);
    for (bad, status, field) in table {
        let body = format!("{good}\n\n{bad}\n{good}");
        let refused = node.post("/v1/messages:batch", &[], body.as_bytes()).expect(status).json();
        assert_eq!((&refused["line"], &refused["field"]), (&json!(3), &field), "{bad}: {refused}");
    }
    let both = format!("{good}\n{}\n{}", keyed(1, "both"), keyed(2, "both"));
    let refused = node.post("/v1/messages:batch", &[], both.as_bytes()).expect(409).json();
    assert_eq!((&refused["line"], refused.get("message_id")), (&json!(3), None), "{refused}");
    node.post("/v1/messages:batch", &[], b"\n \n").expect(422);
    let refused = node.post("/v1/messages:batch", &[("idempotency-key", "k")], good.as_bytes()).expect(422);
    assert_eq!(refused.json()["field"], "idempotency-key");
    let queued = node.get("/v1/messages").expect(200).json()["items"].clone();
    let keys: Vec<&Value> =
        queued.as_array().expect("a list").iter().map(|item| &item["idempotency_key"]).collect();
    assert_eq!(keys, ["taken"]);
}

#[test]
fn a_batch_of_too_many_lines_is_refused_before_any_is_read() {
    let (home, node) = paused_shop();
    home.json(&["config", "set", "max_batch_messages=3"]);
    let good = json!({ "endpoint": "shop", "payload": 1 }).to_string();
    let three = format!("\n{good}\r\n \n{good}\n\n{good}\n");
    let five = format!("not JSON\n{three}{good}");
    let refused = crate::eventually(Duration::from_secs(5), "the setting counts", || {
        let answer = node.post("/v1/messages:batch", &[], five.as_bytes());
        (answer.status == 413).then(|| answer.json())
    });
    assert_eq!((&refused["field"], &refused["line"]), (&json!("messages"), &json!(null)), "{refused}");
    assert_eq!(refused["detail"], "messages: 5 is more than max_batch_messages allows, which is 3");
    node.post("/v1/messages:batch", &[], three.as_bytes()).expect(202);
}

#[test]
fn messages_are_listed_by_filter_and_cursor() {
    let (_home, node) = paused_shop();
    node.create_endpoint(endpoint("other", "http://127.0.0.1:9/"));
    node.post("/v1/endpoints/other/pause", &[], b"").expect(200);
    let uuid = "6f1c8e0e-6a2b-4f0e-9d5c-1b2a3c4d5e6f";
    let first = node.send("shop", &[("postrider-event-type", "order.paid")], "{}");
    let second =
        node.send("shop", &[("postrider-ordering-key", "k"), ("postrider-correlation-id", uuid)], "{}");
    let third = node.send("other", &[], "{}");
    ask(&node, "DELETE", &format!("/v1/messages/{first}"), &json!(null)).expect(204);
    let list = |query: &str| ids(&node.get(&format!("/v1/messages{query}")).expect(200).json());
    assert_eq!(list(""), [third, second, first]);
    assert_eq!(list("?endpoint=shop"), [second, first]);
    assert_eq!(list("?state=cancelled"), [first]);
    assert_eq!(list("?event_type=order.paid"), [first]);
    assert_eq!(list("?ordering_key=k&state=pending"), [second]);
    assert_eq!(list(&format!("?correlation_id={uuid}")), [second]);
    assert_eq!(list("?created_before=2020-01-01T00:00:00Z"), [] as [i64; 0]);
    assert_eq!(list("?created_after=2020-01-01T00:00:00Z"), [third, second, first]);
    let page = node.get("/v1/messages?limit=2").expect(200).json();
    assert_eq!(ids(&page), [third, second]);
    assert_eq!(list(&format!("?limit=2&cursor={}", page["next"].as_str().expect("a cursor"))), [first]);
    for (query, field) in [
        ("?state=asleep", "state"),
        ("?correlation_id=7", "correlation_id"),
        ("?created_after=yesterday", "created_after"),
        ("?cursor=!", "cursor"),
        ("?cursor=AA", "cursor"),
        ("?limit=0", "limit"),
        ("?colour=red", "colour"),
        ("?state=dead&state=dead", "state"),
    ] {
        assert_eq!(node.get(&format!("/v1/messages{query}")).expect(422).json()["field"], field, "{query}");
    }
    node.get("/v1/messages?endpoint=nobody").expect(404);
}

#[test]
fn a_pending_message_is_rescheduled_erased_and_cancelled() {
    let (_home, node) = paused_shop();
    let id = node.send("shop", &[], "{\"secret\":1}");
    let path = format!("/v1/messages/{id}");
    let at = json!({ "at": "2999-01-01T00:00:00Z" });
    ask(&node, "POST", &format!("{path}:reschedule"), &at).expect(204);
    assert_eq!(node.get(&path).expect(200).json()["due_at"], "2999-01-01T00:00:00Z");
    for (body, field) in [(json!({}), "at"), (json!({ "at": "soon" }), "at"), (json!({ "when": 1 }), "when")]
    {
        let refused = ask(&node, "POST", &format!("{path}:reschedule"), &body).expect(422).json();
        assert_eq!(refused["field"], field);
    }
    ask(&node, "POST", &format!("{path}:erase"), &json!(null)).expect(204);
    let story = node.get(&path).expect(200).json();
    assert_eq!((&story["state"], &story["payload"]), (&json!("cancelled"), &json!(null)));
    ask(&node, "POST", &format!("{path}:reschedule"), &at).expect(409);
    ask(&node, "DELETE", &path, &json!(null)).expect(409);
    ask(&node, "DELETE", "/v1/messages/999", &json!(null)).expect(404);
    ask(&node, "POST", "/v1/messages/999:erase", &json!(null)).expect(404);
    let unknown = ask(&node, "POST", &format!("{path}:explode"), &json!(null)).expect(404).json();
    assert_eq!(unknown["type"], "urn:postrider:problem:unknown-route");
    let wrong = ask(&node, "POST", &path, &json!(null)).expect(405);
    assert_eq!(wrong.header("allow"), Some("GET,HEAD,DELETE"));
    let wrong = ask(&node, "PUT", &format!("{path}:erase"), &json!(null)).expect(405);
    assert_eq!(wrong.header("allow"), Some("POST"));
}

#[test]
fn a_dead_letter_is_found_shown_and_redriven_once() {
    let (_home, node, letter) = dead_letter();
    let listed = node.get("/v1/dlq?endpoint=shop&status=failed&reason=permanent").expect(200).json();
    assert_eq!((ids(&listed), &listed["next"]), (vec![letter], &json!(null)));
    assert_eq!(listed["items"][0].get("payload"), None, "lists have no payloads");
    assert_eq!(node.get("/v1/dlq?status=discarded").expect(200).json()["items"], json!([]));
    let shown = node.get(&format!("/v1/dlq/{letter}")).expect(200).json();
    assert_eq!((&shown["payload"], &shown["message_id"]), (&json!({ "n": 1 }), &json!(1)));
    assert_eq!(shown["errors"].as_array().map(Vec::len), Some(1));
    let summary = node.get("/v1/dlq/summary").expect(200).json();
    assert_eq!(
        (&summary["items"][0]["endpoint"], &summary["items"][0]["failed"]),
        (&json!("shop"), &json!(1))
    );
    let redriven = ask(&node, "POST", &format!("/v1/dlq/{letter}:redrive"), &json!(null)).expect(200).json();
    assert_eq!(redriven, json!({ "redriven": 1 }));
    ask(&node, "POST", &format!("/v1/dlq/{letter}:redrive"), &json!(null)).expect(409);
    ask(&node, "POST", &format!("/v1/dlq/{letter}:discard"), &json!(null)).expect(409);
    ask(&node, "POST", "/v1/dlq/999:redrive", &json!(null)).expect(404);
    node.get("/v1/dlq/999").expect(404);
    node.get("/v1/dlq/summary/x").expect(404);
    assert_eq!(node.get("/v1/dlq?status=alive").expect(422).json()["field"], "status");
}

#[test]
fn a_key_goes_on_when_its_dead_head_is_released_or_discarded() {
    let (_home, node, letter) = dead_letter();
    let hold = json!({ "options": { "on_dead": "hold" } });
    ask(&node, "PATCH", "/v1/endpoints/shop", &hold).expect(200);
    let key = [("postrider-ordering-key", "k")];
    let head = node.send("shop", &key, "{}");
    node.until(head, "dead");
    node.post("/v1/endpoints/shop/pause", &[], b"").expect(200);
    let waiting = node.send("shop", &key, "{}");
    let reason = |id| node.get(&format!("/v1/messages/{id}")).expect(200).json()["reason"].to_string();
    let release = |body: Value| ask(&node, "POST", "/v1/keys:release", &body);
    assert_eq!(
        release(json!({ "key": "k", "endpoint": "shop" })).expect(200).json(),
        json!({ "released": 1 })
    );
    assert_eq!(release(json!({ "key": "k" })).expect(200).json(), json!({ "released": 0 }));
    assert!(!reason(waiting).contains("behind"), "{}", reason(waiting));
    assert_eq!(release(json!({})).expect(422).json()["field"], "key");
    release(json!({ "key": "k", "endpoint": "nobody" })).expect(404);
    assert_eq!(ask(&node, "POST", &format!("/v1/dlq/{letter}:discard"), &json!(null)).expect(204).body, b"");
    assert_eq!(node.get(&format!("/v1/dlq/{letter}")).expect(200).json()["status"], "discarded");
}

#[test]
fn settings_change_all_or_none() {
    let home = Home::new();
    let node = home.start();
    let before = node.get("/v1/config").expect(200).json();
    assert_eq!((&before["max_payload_bytes"], &before["archive"]), (&json!(1_048_576), &json!("on")));
    let bad = json!({ "archive": "off", "node_lease": 1 });
    assert_eq!(ask(&node, "PUT", "/v1/config", &bad).expect(422).json()["field"], "node_lease");
    assert_eq!(node.get("/v1/config").expect(200).json(), before);
    let good = json!({ "archive": "metadata", "node_lease": "20", "max_payload_bytes": 2048 });
    let after = ask(&node, "PUT", "/v1/config", &good).expect(200).json();
    assert_eq!((&after["archive"], &after["node_lease"]), (&json!("metadata"), &json!(20)));
    assert_eq!(after["retry_base_delay"], before["retry_base_delay"]);
    for (bad, field) in [(json!({ "colour": 1 }), "colour"), (json!({ "archive": null }), "archive")] {
        assert_eq!(ask(&node, "PUT", "/v1/config", &bad).expect(422).json()["field"], field);
    }
}

#[test]
fn a_pause_of_everything_holds_until_it_is_resumed() {
    let receiver = Receiver::start(|_| Some(200));
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(endpoint("shop", &receiver.url()));
    assert_eq!(
        ask(&node, "POST", "/v1/pause", &json!({ "reason": "" })).expect(422).json()["field"],
        "reason"
    );
    ask(&node, "POST", "/v1/pause", &json!({ "reason": "upgrade" })).expect(204);
    let id = node.send("shop", &[], "{}");
    let status = node.get("/v1/status").expect(200).json();
    assert_eq!((&status["paused"], &status["pending"]), (&json!("upgrade"), &json!(1)));
    assert_eq!(status["endpoints"][0]["name"], "shop");
    ask(&node, "POST", "/v1/resume", &json!(null)).expect(204);
    node.until(id, "completed");
    let log = node.get("/v1/event-log?limit=2").expect(200).json();
    let kinds: Vec<&Value> =
        log["items"].as_array().expect("items").iter().map(|event| &event["kind"]).collect();
    assert_eq!(kinds, ["system.resumed", "system.paused"]);
    let cursor = log["next"].as_str().expect("a cursor");
    let older = node.get(&format!("/v1/event-log?cursor={cursor}")).expect(200).json();
    assert_eq!(older["items"][0]["kind"], "endpoint.created");
}

#[test]
fn nodes_are_listed_with_this_one_alive() {
    let home = Home::new();
    home.start().kill();
    let node = home.start();
    let nodes = node.get("/v1/nodes").expect(200).json();
    let states: Vec<&Value> =
        nodes["items"].as_array().expect("items").iter().map(|node| &node["state"]).collect();
    assert_eq!(states, ["live", "lost"]);
}

#[test]
fn a_request_that_never_ends_does_not_keep_the_node_from_stopping() {
    let home = Home::new();
    let mut node = home.start();
    let mut client = node.client();
    client.write(b"GET /v1/tail HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("it is read");
    assert!(client.read_until("listening"), "the tail begins");
    node.signal("TERM");
    assert!(node.until_exit(Duration::from_secs(10)).success());
}
