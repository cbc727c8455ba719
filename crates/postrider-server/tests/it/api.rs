//! The HTTP API: what is accepted, what is shown, and every way of being refused.

use std::time::Duration;

use serde_json::{Value, json};

use crate::http::Answer;
use crate::node::{Home, Node};

fn shop() -> Value {
    json!({ "name": "shop", "protocol": "http", "config": { "url": "http://127.0.0.1:9/hook" } })
}

/// A node with a paused endpoint `shop`: what is sent stays pending.
/// Another shop, with more fields.
fn shop_with(fields: Value) -> Vec<u8> {
    let mut shop = shop();
    shop["name"] = "other".into();
    for (name, value) in fields.as_object().expect("an object") {
        shop[name] = value.clone();
    }
    shop.to_string().into_bytes()
}

fn paused_shop() -> (Home, Node) {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "http://127.0.0.1:9/hook"]);
    home.json(&["endpoint", "pause", "shop"]);
    let node = home.start();
    (home, node)
}

#[test]
fn an_endpoint_is_created_shown_and_listed() {
    let home = Home::new();
    let node = home.start();
    let created = node.post("/v1/endpoints", &[], shop().to_string().as_bytes()).expect(201);
    assert_eq!(created.header("location"), Some("/v1/endpoints/shop"));
    assert_eq!(created.header("content-type"), Some("application/json"));
    let mut shown = node.get("/v1/endpoints/shop").expect(200).json();
    let health = shown.as_object_mut().and_then(|shown| shown.remove("health"));
    assert_eq!(health.expect("health")["delivered"], 0);
    assert_eq!(created.json(), shown);
    insta::assert_snapshot!(pretty(shown));
    let listed = node.get("/v1/endpoints").expect(200).json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(listed["next"], Value::Null);
}

#[test]
fn a_list_goes_on_where_its_cursor_says() {
    let home = Home::new();
    let node = home.start();
    for name in ["a", "b", "c", "d", "e"] {
        node.create_endpoint(
            json!({ "name": name, "protocol": "http", "config": { "url": "http://127.0.0.1:9/" } }),
        );
    }
    let mut seen = Vec::new();
    let mut path = "/v1/endpoints?limit=2".to_owned();
    loop {
        let page = node.get(&path).expect(200).json();
        let items = page["items"].as_array().expect("items").clone();
        assert!(items.len() <= 2);
        seen.extend(items.iter().map(|item| item["name"].as_str().expect("a name").to_owned()));
        match page["next"].as_str() {
            Some(cursor) => path = format!("/v1/endpoints?limit=2&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
}

#[test]
fn a_send_with_every_option_shows_them_all_in_its_story() {
    let (_home, node) = paused_shop();
    let headers = [
        ("content-type", "application/json"),
        ("postrider-priority", "7"),
        ("postrider-scheduled-at", "2999-01-01T00:00:00Z"),
        ("postrider-expires-at", "2999-01-02T00:00:00Z"),
        ("idempotency-key", "order-1"),
        ("postrider-idempotency-key", "order-1"),
        ("postrider-correlation-id", "6f1c8e0e-6a2b-4f0e-9d5c-1b2a3c4d5e6f"),
        ("postrider-ordering-key", "customer-1"),
        ("postrider-event-type", "order.paid"),
        ("postrider-options", r#"{"max_attempts":3}"#),
        ("postrider-header-x-trace", "abc"),
    ];
    let id = node.send("shop", &headers, r#"{"total": 1.50,  "n":1}"#);
    let answer = node.get(&format!("/v1/messages/{id}")).expect(200);
    let text = String::from_utf8(answer.body.clone()).expect("text");
    assert!(text.contains(r#""payload":{"total": 1.50,  "n":1}}"#), "payload bytes are kept: {text}");
    insta::assert_snapshot!(pretty(answer.json()));
}

#[test]
fn an_envelope_is_the_same_send_in_one_document() {
    let (_home, node) = paused_shop();
    let envelope = br#"{"payload": {"total": 1.50,  "n":1}, "options": {"priority": 7, "ordering_key": "k",
        "headers": {"x-trace": "abc"}, "options": {"max_attempts": 3}, "event_type": null}}"#;
    let headers = [("content-type", "application/vnd.postrider+json")];
    let sent = node.post("/v1/endpoints/shop/messages", &headers, envelope).expect(202).json();
    let answer = node.get(&format!("/v1/messages/{}", sent["id"])).expect(200);
    let story = answer.json();
    assert!(String::from_utf8_lossy(&answer.body).contains(r#""payload":{"total": 1.50,  "n":1}}"#));
    assert_eq!(story["content_type"], "application/json");
    assert_eq!(
        (
            &story["priority"],
            &story["ordering_key"],
            &story["headers"]["x-trace"],
            &story["options"]["max_attempts"]
        ),
        (&json!(7), &json!("k"), &json!("abc"), &json!(3))
    );
}

#[test]
fn a_field_given_twice_is_refused() {
    let (_home, node) = paused_shop();
    let headers = [("content-type", "application/vnd.postrider+json")];
    let twice = br#"{"payload": 1, "payload": 2}"#;
    let refused = node.post("/v1/endpoints/shop/messages", &headers, twice).expect(422).json();
    assert!(refused["detail"].as_str().unwrap().contains("payload"), "{refused}");
    let twice =
        br#"{"name": "a", "name": "b", "protocol": "http", "config": {"url": "https://example.com"}}"#;
    node.post("/v1/endpoints", &[("content-type", "application/json")], twice).expect(422);
}

#[test]
fn what_is_not_json_is_shown_in_base64() {
    let (_home, node) = paused_shop();
    let id = node.send("shop", &[("content-type", "text/plain")], "hello");
    let story = node.get(&format!("/v1/messages/{id}")).expect(200).json();
    assert_eq!((&story["payload_base64"], story.get("payload")), (&json!("aGVsbG8="), None));
    assert_eq!(story["content_type"], "text/plain");
}

#[test]
fn the_same_idempotency_key_and_payload_is_the_same_message() {
    let (_home, node) = paused_shop();
    let send =
        || node.post("/v1/endpoints/shop/messages", &[("idempotency-key", "k")], b"{}").expect(202).json();
    let (first, second) = (send(), send());
    assert_eq!((&first["duplicate"], &second["duplicate"]), (&json!(false), &json!(true)));
    assert_eq!(first["id"], second["id"]);
}

#[test]
fn alive_and_ready_say_so() {
    let home = Home::new();
    let node = home.start();
    assert_eq!(node.get("/livez").expect(200).json(), json!({ "status": "alive" }));
    assert_eq!(node.get("/readyz").expect(200).json(), json!({ "status": "ready" }));
}

#[test]
fn everything_refused_is_a_problem_document() {
    let (home, node) = paused_shop();
    let tiny = json!({ "name": "tiny", "protocol": "http", "config": { "url": "http://127.0.0.1:9/" },
        "options": { "max_queue_size": 1 } });
    node.create_endpoint(tiny);
    home.json(&["endpoint", "pause", "tiny"]);
    node.send("tiny", &[], "{}");
    node.create_endpoint(
        json!({ "name": "off", "protocol": "http", "config": { "url": "http://127.0.0.1:9/" } }),
    );
    home.json(&["endpoint", "disable", "off"]);
    node.send("shop", &[("idempotency-key", "taken")], r#"{"a":1}"#);
    let taken = shop().to_string();
    let large = vec![b'x'; 2_000_000];
    let messages = "/v1/endpoints/shop/messages";
    let envelope = ("content-type", "application/vnd.postrider+json");
    let id = "urn:uuid:1c0a7e5e-3f0b-4a55-9a52-0f4b6f3b9a11";
    let cases: Vec<(&str, Answer)> = vec![
        ("unknown route", node.get("/v1/nope")),
        ("wrong method", node.client().send("DELETE", "/v1/endpoints", &[], b"").expect("an answer")),
        ("unknown endpoint", node.get("/v1/endpoints/nope")),
        ("send to an unknown endpoint", node.post("/v1/endpoints/nope/messages", &[], b"{}")),
        ("unknown message", node.get("/v1/messages/999999")),
        ("a message id that is none", node.get("/v1/messages/abc")),
        ("endpoint exists", node.post("/v1/endpoints", &[], taken.as_bytes())),
        ("not JSON", node.post("/v1/endpoints", &[], b"{name:")),
        ("not an object", node.post("/v1/endpoints", &[], b"[]")),
        ("no name", node.post("/v1/endpoints", &[], br#"{"protocol":"http"}"#)),
        ("name of a wrong type", node.post("/v1/endpoints", &[], br#"{"name":5,"protocol":"http"}"#)),
        ("protocol of a wrong type", node.post("/v1/endpoints", &[], br#"{"name":"x","protocol":null}"#)),
        (
            "config of a wrong type",
            node.post("/v1/endpoints", &[], br#"{"name":"x","protocol":"http","config":[]}"#),
        ),
        (
            "retry policy of a wrong type",
            node.post("/v1/endpoints", &[], &shop_with(json!({ "retry_policy": 3 }))),
        ),
        ("options of a wrong type", node.post("/v1/endpoints", &[], &shop_with(json!({ "options": "x" })))),
        (
            "an option of a wrong type",
            node.post("/v1/endpoints", &[], &shop_with(json!({ "options": { "max_in_flight": "many" } }))),
        ),
        (
            "deep inside an option",
            node.post(
                "/v1/endpoints",
                &[],
                &shop_with(json!({ "options": { "rate_limit": { "limit": "many" } } })),
            ),
        ),
        ("unknown field", node.post("/v1/endpoints", &[], br#"{"name":"x","protocol":"http","nme":1}"#)),
        ("bad name", node.post("/v1/endpoints", &[], br#"{"name":"a b","protocol":"http"}"#)),
        (
            "a name that no path reaches",
            node.post("/v1/endpoints", &[], br#"{"name":"..","protocol":"http"}"#),
        ),
        (
            "config key twice",
            node.post(
                "/v1/endpoints",
                &[],
                br#"{"name":"x","protocol":"http","config":{"url":"a","url":"b"}}"#,
            ),
        ),
        (
            "deep in the config a key twice",
            node.client()
                .send("PATCH", "/v1/endpoints/shop", &[], br#"{"config":{"tls":[{"ca":1,"c\u0061":2}]}}"#)
                .expect("an answer"),
        ),
        ("bad protocol", node.post("/v1/endpoints", &[], br#"{"name":"x","protocol":"pigeon"}"#)),
        ("no url", node.post("/v1/endpoints", &[], br#"{"name":"x","protocol":"http"}"#)),
        ("bad limit", node.get("/v1/endpoints?limit=0")),
        ("unknown parameter", node.get("/v1/endpoints?page=2")),
        ("unknown option header", node.post(messages, &[("postrider-prio", "1")], b"{}")),
        ("bad priority", node.post(messages, &[("postrider-priority", "11")], b"{}")),
        ("bad time", node.post(messages, &[("postrider-scheduled-at", "tomorrow")], b"{}")),
        ("bad uuid", node.post(messages, &[("postrider-correlation-id", id)], b"{}")),
        ("bad options", node.post(messages, &[("postrider-options", "[]")], b"{}")),
        (
            "option key twice",
            node.post(messages, &[("postrider-options", r#"{"max_attempts":1,"max_attempts":2}"#)], b"{}"),
        ),
        ("unknown message option", node.post(messages, &[("postrider-options", r#"{"colour":1}"#)], b"{}")),
        (
            "two keys",
            node.post(messages, &[("idempotency-key", "a"), ("postrider-idempotency-key", "b")], b"{}"),
        ),
        (
            "option twice",
            node.post(messages, &[("postrider-priority", "1"), ("postrider-priority", "2")], b"{}"),
        ),
        ("envelope without payload", node.post(messages, &[envelope], b"{}")),
        (
            "envelope with an unknown field",
            node.post(messages, &[envelope], br#"{"payload":1,"optoins":{}}"#),
        ),
        (
            "envelope with options of a wrong type",
            node.post(messages, &[envelope], br#"{"payload":1,"options":[]}"#),
        ),
        (
            "envelope with an unknown option",
            node.post(messages, &[envelope], br#"{"payload":1,"options":{"x":1}}"#),
        ),
        (
            "envelope with an option twice",
            node.post(messages, &[envelope], br#"{"payload":1,"options":{"priority":1,"priority":2}}"#),
        ),
        (
            "envelope with a header twice",
            node.post(messages, &[envelope], br#"{"payload":1,"options":{"headers":{"a":"1","a":"2"}}}"#),
        ),
        (
            "envelope and headers",
            node.post(messages, &[envelope, ("postrider-priority", "1")], br#"{"payload":1}"#),
        ),
        ("idempotency conflict", node.post(messages, &[("idempotency-key", "taken")], b"{}")),
        ("disabled endpoint", node.post("/v1/endpoints/off/messages", &[], b"{}")),
        ("payload too large", node.post(messages, &[], &large)),
        ("compressed payload", node.post(messages, &[("content-encoding", "gzip")], b"\x1f\x8b")),
        ("compressed definition", node.post("/v1/endpoints", &[("content-encoding", "br")], b"{}")),
        ("queue full", node.post("/v1/endpoints/tiny/messages", &[], b"{}")),
        (
            "foreign host",
            node.client().send("GET", "/livez", &[("host", "evil.example")], b"").expect("an answer"),
        ),
        (
            "foreign origin",
            node.client()
                .send("GET", "/livez", &[("origin", "https://evil.example")], b"")
                .expect("an answer"),
        ),
    ];
    let mut text = String::new();
    for (name, answer) in cases {
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{name}");
        let document = answer.json();
        assert_eq!(document["status"], answer.status, "{name}");
        let after =
            answer.header("retry-after").map_or(String::new(), |value| format!(" (retry-after: {value})"));
        text.push_str(&format!("## {name}{after}\n{}\n\n", pretty(document)));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_body_without_a_length_is_cut_off_at_the_limit() {
    let (_home, node) = paused_shop();
    let mut body = Vec::new();
    for _ in 0..200 {
        body.extend_from_slice(b"4000\r\n");
        body.extend_from_slice(&[b'x'; 0x4000]);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"0\r\n\r\n");
    let headers = [("transfer-encoding", "chunked"), ("content-type", "text/plain")];
    let answer = node.post("/v1/endpoints/shop/messages", &headers, &body).expect(413).json();
    assert_eq!(answer["sqlstate"], "54000");
}

#[test]
fn a_client_that_writes_a_large_body_before_it_reads_is_answered() {
    let (_home, node) = paused_shop();
    // More than the buffers of both ends hold.
    const LARGE: usize = 12_000_000;
    let head = |path: &str, more: &str| {
        format!("POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: text/plain\r\n{more}\r\n", node.address)
    };
    let mut chunked = format!("{LARGE:x}\r\n").into_bytes();
    chunked.extend_from_slice(&[b'x'; LARGE]);
    chunked.extend_from_slice(b"\r\n0\r\n\r\n");
    let whole = vec![b'x'; LARGE];
    let cases = [
        (head("/v1/endpoints/shop/messages", &format!("content-length: {LARGE}\r\n")), &whole),
        (head("/v1/endpoints/shop/messages", "transfer-encoding: chunked\r\n"), &chunked),
        (head("/v1/endpoints", &format!("content-length: {LARGE}\r\n")), &whole),
    ];
    for (head, body) in cases {
        let mut client = node.client();
        client.write(head.as_bytes()).expect("the head is read");
        client.write(body).unwrap_or_else(|error| panic!("{error}: nobody reads the body of {head}"));
        client.read().expect("an answer").expect(413);
        client.send("GET", "/livez", &[], b"").expect("the connection goes on").expect(200);
    }
}

#[test]
fn a_client_that_asks_before_it_sends_a_large_body_need_not_send_it() {
    let (_home, node) = paused_shop();
    let mut client = node.client();
    let head = format!(
        "POST /v1/endpoints/shop/messages HTTP/1.1\r\nhost: {}\r\ncontent-length: 12000000\r\nexpect: 100-continue\r\n\r\n",
        node.address
    );
    client.write(head.as_bytes()).expect("the head is read");
    client.read().expect("an answer").expect(413);
}

#[test]
fn a_store_that_stays_locked_is_a_503_and_changes_nothing() {
    let (home, node) = paused_shop();
    let connection = rusqlite::Connection::open(home.store_file()).expect("the store's file");
    connection.execute_batch("BEGIN IMMEDIATE").expect("the write lock");
    let answer = node.post("/v1/endpoints/shop/messages", &[], b"{}").expect(503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert_eq!(answer.json()["type"], "urn:postrider:problem:store-unavailable");
    connection.execute_batch("ROLLBACK").expect("the write lock goes");
    crate::eventually(Duration::from_secs(10), "sends work again", || {
        let answer = node.post("/v1/endpoints/shop/messages", &[], b"{}");
        (answer.status == 202).then(|| assert_eq!(answer.json()["id"], 1))
    });
}

/// Times differ from run to run; everything else is part of the promise.
fn pretty(mut document: Value) -> String {
    for field in ["created_at", "due_at"] {
        if document.get(field).is_some_and(Value::is_string)
            && !document[field].as_str().unwrap_or("").starts_with("2999")
        {
            document[field] = "[time]".into();
        }
    }
    serde_json::to_string_pretty(&document).expect("JSON")
}
