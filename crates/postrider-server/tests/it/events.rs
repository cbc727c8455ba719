//! Events over HTTP and on the command line: the same table of cases as every other way in, and every route.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use test_servers::postgres::Postgres;

use crate::cli::told;
use crate::event_cases::cases;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

const PATIENCE: Duration = Duration::from_secs(30);

/// A node with an endpoint `shop`, and what arrives there.
struct Shop {
    node: Node,
    bodies: mpsc::Receiver<String>,
}

impl Shop {
    fn on(node: Node) -> Self {
        let (seen, bodies) = mpsc::channel();
        let receiver = Receiver::start(move |request| {
            let _ = seen.send(String::from_utf8(request.body).expect("text"));
            Some(200)
        });
        let config = json!({ "url": receiver.url() });
        node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": config }));
        Self { node, bodies }
    }

    fn create(&self, name: &str, schema: &str) -> Result<(), String> {
        let body = format!(r#"{{"name":{},"schema":{schema}}}"#, json!(name));
        let answer = self.node.post("/v1/event-types", &[], body.as_bytes());
        if answer.status == 201 { Ok(()) } else { Err(refusal(answer.status, &answer.json())) }
    }

    fn subscribe(&self, pattern: &str, rules: &str) -> Result<i64, String> {
        let body = format!(r#"{{"pattern":{},"endpoint":"shop"{rules}}}"#, json!(pattern));
        let answer = self.node.post("/v1/subscriptions", &[], body.as_bytes());
        let json = answer.json();
        if answer.status == 201 {
            Ok(json["id"].as_i64().expect("an id"))
        } else {
            Err(refusal(answer.status, &json))
        }
    }

    fn unsubscribe(&self, id: i64) {
        self.node.delete(&format!("/v1/subscriptions/{id}")).expect(204);
    }

    /// What arrived of it.
    fn publish(&self, event_type: &str, payload: &str) -> Result<Vec<String>, String> {
        let answer = self.node.post(&format!("/v1/events/{event_type}"), &[], payload.as_bytes());
        let json = answer.json();
        if answer.status != 202 {
            return Err(refusal(answer.status, &json));
        }
        let made = json["messages"].as_u64().expect("a number");
        Ok((0..made).map(|_| self.bodies.recv_timeout(PATIENCE).expect("it arrives")).collect())
    }
}

fn refusal(status: u16, problem: &Value) -> String {
    assert_eq!((status, &problem["sqlstate"]), (422, &json!("22023")), "{problem}");
    let detail = problem["detail"].as_str().expect("a detail").to_owned();
    assert!(detail.starts_with(problem["field"].as_str().expect("a field")), "{problem}");
    detail
}

fn agrees(shop: &Shop) {
    let cases = cases();
    for name in &cases.patterns[0].among {
        shop.create(name, "null").unwrap();
    }
    for case in &cases.patterns {
        let id = shop.subscribe(&case.pattern, "").unwrap();
        let mut fits = Vec::new();
        for name in &case.among {
            fits.extend(shop.publish(name, "1").unwrap().iter().map(|_| name.clone()));
        }
        assert_eq!(fits, case.fits, "{}", case.pattern);
        shop.unsubscribe(id);
    }
    for pattern in &cases.refused_patterns {
        let refused = shop.subscribe(pattern, "").expect_err(pattern);
        assert!(refused.starts_with("pattern: must be the name of an event type"), "{refused}");
    }
    for case in &cases.filters {
        let id = shop.subscribe("orders", &format!(r#","filter":{}"#, case.filter)).unwrap();
        let passes = shop.publish("orders", case.payload.get()).unwrap();
        assert_eq!(passes.len(), usize::from(case.passes), "{} @> {}", case.payload, case.filter);
        assert!(passes.iter().all(|body| body == case.payload.get()), "byte for byte: {passes:?}");
        shop.unsubscribe(id);
    }
    for case in &cases.templates {
        let id = shop.subscribe("orders", &format!(r#","template":{}"#, case.template)).unwrap();
        assert_eq!(
            shop.publish("orders", case.payload.get()).unwrap(),
            [case.sends.get()],
            "{}",
            case.template
        );
        shop.unsubscribe(id);
    }
    shop.subscribe("*", "").unwrap();
    for case in &cases.schemas {
        shop.create("checked", case.schema.get()).unwrap();
        let published = shop.publish("checked", case.payload.get());
        assert_eq!(published.err(), case.says, "{} of {}", case.schema, case.payload);
        shop.node.delete("/v1/event-types/checked").expect(204);
    }
    for case in &cases.refused_schemas {
        assert_eq!(shop.create("refused", case.schema.get()), Err(case.says.clone()), "{}", case.schema);
    }
}

#[test]
fn the_api_on_sqlite_agrees_with_every_other_way_in() {
    let home = Home::new();
    agrees(&Shop::on(home.start()));
}

#[test]
fn the_api_on_postgresql_agrees_with_every_other_way_in() {
    let server = Postgres::start().expect("a server");
    let home = Home::new();
    agrees(&Shop::on(home.start_with(&["--allow-internal", "--migrate", "--store", &server.url()])));
}

#[test]
fn event_types_and_subscriptions_are_created_listed_switched_and_dropped() {
    let home = Home::new();
    let shop = Shop::on(home.start());
    let node = &shop.node;
    let body = br#"{"name": "orders.created", "description": "An order", "schema": {"maximum": 12345678901234567890123}}"#;
    let created = node.post("/v1/event-types", &[], body).expect(201);
    assert_eq!(created.header("location"), Some("/v1/event-types/orders.created"));
    let text = String::from_utf8(created.body.clone()).unwrap();
    assert!(text.contains(r#""schema":{"maximum": 12345678901234567890123},"#), "no digit is lost: {text}");
    assert_eq!(node.get("/v1/event-types/orders.created").expect(200).body, created.body);
    shop.create("users", "null").unwrap();
    let page = node.get("/v1/event-types?limit=1").expect(200).json();
    assert_eq!(page["items"][0]["name"], json!("orders.created"));
    let page = node.get(&next("/v1/event-types", &page)).expect(200).json();
    assert_eq!((&page["items"][0]["name"], &page["next"]), (&json!("users"), &json!(null)));

    let body =
        br#"{"pattern": "orders.*", "endpoint": "shop", "filter": {"country": "SE"}, "template": null}"#;
    let created = node.post("/v1/subscriptions", &[], body).expect(201);
    assert_eq!(created.header("location"), Some("/v1/subscriptions/1"));
    let subscription = created.json();
    assert_eq!(
        (&subscription["filter"], &subscription["template"], &subscription["enabled"]),
        (&json!({"country": "SE"}), &json!(null), &json!(true))
    );
    let again = node.post("/v1/subscriptions", &[], body).expect(200);
    assert_eq!((again.header("location"), again.json()), (Some("/v1/subscriptions/1"), subscription));
    shop.subscribe("*", "").unwrap();
    let page = node.get("/v1/subscriptions?limit=1").expect(200).json();
    assert_eq!(page["items"][0]["id"], 1);
    assert_eq!(node.get(&next("/v1/subscriptions", &page)).expect(200).json()["items"][0]["id"], 2);
    assert_eq!(node.post("/v1/subscriptions/1/disable", &[], b"").expect(200).json()["enabled"], false);
    assert_eq!(node.get("/v1/subscriptions/1").expect(200).json()["enabled"], false);
    assert_eq!(node.post("/v1/subscriptions/1/enable", &[], b"").expect(200).json()["enabled"], true);
    node.delete("/v1/subscriptions/1").expect(204);
    node.delete("/v1/event-types/users").expect(204);
    for gone in ["/v1/subscriptions/1", "/v1/subscriptions/x", "/v1/event-types/users"] {
        assert_eq!(node.get(gone).expect(404).json()["sqlstate"], "42704");
        node.delete(gone).expect(404);
    }
}

/// Where the page after this one is.
fn next(path: &str, page: &Value) -> String {
    format!("{path}?limit=1&cursor={}", page["next"].as_str().expect("a next page"))
}

#[test]
fn an_event_takes_the_options_of_a_send() {
    let home = Home::new();
    let shop = Shop::on(home.start());
    let node = &shop.node;
    home.json(&["endpoint", "pause", "shop"]);
    shop.create("orders", "null").unwrap();
    shop.subscribe("orders", "").unwrap();
    let headers = [
        ("content-type", "application/json; charset=utf-8"),
        ("postrider-priority", "7"),
        ("idempotency-key", "order-1"),
        ("postrider-ordering-key", "customer-1"),
        ("postrider-header-x-trace", "abc"),
        ("postrider-options", r#"{"max_attempts":3}"#),
    ];
    let body = br#"{"total": 1.50}"#;
    assert_eq!(node.post("/v1/events/orders", &headers, body).expect(202).json(), json!({"messages": 1}));
    assert_eq!(node.post("/v1/events/orders", &headers, body).expect(202).json(), json!({"messages": 0}));
    let envelope = br#"{"payload": {"total": 1.50}, "options": {"priority": 7, "idempotency_key": "order-2",
        "ordering_key": "customer-1", "headers": {"x-trace": "abc"}, "options": {"max_attempts": 3}}}"#;
    let headers = [("content-type", "application/vnd.postrider+json")];
    assert_eq!(node.post("/v1/events/orders", &headers, envelope).expect(202).json(), json!({"messages": 1}));
    for (id, key) in [(1, "order-1#1"), (2, "order-2#1")] {
        let story = node.get(&format!("/v1/messages/{id}")).expect(200).json();
        assert_eq!((&story["priority"], &story["idempotency_key"]), (&json!(7), &json!(key)));
        assert_eq!((&story["ordering_key"], &story["event_type"]), (&json!("customer-1"), &json!("orders")));
        assert_eq!(
            (&story["headers"], &story["options"]),
            (&json!({"x-trace": "abc"}), &json!({"max_attempts": 3}))
        );
    }
}

#[test]
fn what_is_refused_is_a_problem_document() {
    let home = Home::new();
    let shop = Shop::on(home.start());
    let node = &shop.node;
    shop.create("orders", "null").unwrap();
    type Request<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8], u16, &'a str);
    let requests: [Request<'_>; 16] = [
        ("/v1/events/nothing", &[], b"1", 404, "there is no event type \"nothing\""),
        ("/v1/events/%ff", &[], b"1", 404, "there is no event type \"(not text)\""),
        ("/v1/events/orders", &[], b"{", 422, "payload: is not JSON: "),
        (
            "/v1/events/orders",
            &[("content-type", "text/plain")],
            b"1",
            422,
            "content-type: must be application/json",
        ),
        ("/v1/events/orders", &[("postrider-event-type", "x")], b"1", 422, "event_type: is in the path"),
        ("/v1/events/orders", &[("postrider-prority", "1")], b"1", 422, "postrider-prority: unknown field"),
        ("/v1/event-types", &[], b"[]", 422, "invalid type: sequence"),
        ("/v1/event-types", &[], b"{}", 422, "name: is required"),
        ("/v1/event-types", &[], br#"{"name": 7}"#, 422, "name: must be a string"),
        (
            "/v1/event-types",
            &[],
            br#"{"name": "a", "shema": {}}"#,
            422,
            "shema: unknown field; expected one of: name, ",
        ),
        ("/v1/event-types", &[], br#"{"name": "orders"}"#, 409, "event type \"orders\" exists already"),
        (
            "/v1/event-types",
            &[],
            br#"{"name": "a", "schema": {"const": 1e200000}}"#,
            422,
            "schema: has a number ",
        ),
        ("/v1/subscriptions", &[], br#"{"pattern": "*"}"#, 422, "endpoint: is required"),
        (
            "/v1/subscriptions",
            &[],
            br#"{"pattern": "*", "endpoint": "x"}"#,
            404,
            "there is no endpoint \"x\"",
        ),
        (
            "/v1/subscriptions",
            &[],
            br#"{"pattern": "a", "endpoint": "shop"}"#,
            404,
            "there is no event type \"a\"",
        ),
        ("/v1/subscriptions/7/enable", &[], b"", 404, "there is no subscription \"7\""),
    ];
    for (path, headers, body, status, says) in requests {
        let answer = node.post(path, headers, body);
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{path}");
        let problem = answer.expect(status).json();
        assert!(problem["detail"].as_str().expect("a detail").starts_with(says), "{path}: {problem}");
    }
    let refused = node.get("/v1/subscriptions?cursor=x").expect(422).json();
    assert_eq!(refused["field"], "cursor");
}

#[test]
fn events_go_through_their_life_on_the_command_line() {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    let commands: [&[&str]; 18] = [
        &["event", "list"],
        &["event", "subscriptions"],
        &[
            "event",
            "create",
            "orders.created",
            "--description",
            "An order",
            "--schema",
            r#"{"type":"object"}"#,
        ],
        &["event", "create", "orders.created"],
        &["event", "create", "a", "--schema", r#"{"format":"x"}"#],
        &["event", "list"],
        &["event", "subscribe", "orders.*", "shop", "--filter", r#"{"country":"SE"}"#],
        &["event", "subscribe", "orders.*", "shop", "--filter", "{oops"],
        &["event", "subscriptions"],
        &["publish", "orders.created", r#"{"country":"SE"}"#, "--priority", "5", "--idempotency-key", "i"],
        &[
            "publish",
            "orders.created",
            r#"{"country":"SE"}"#,
            "--priority",
            "5",
            "--idempotency-key",
            "i",
            "--json",
        ],
        &["publish", "orders.created", "7"],
        &["publish", "orders.creatd", "{}"],
        &["event", "disable", "1"],
        &["publish", "orders.created", r#"{"country":"SE"}"#],
        &["event", "unsubscribe", "1"],
        &["event", "enable", "1"],
        &["event", "drop", "orders.created", "--json"],
    ];
    let text: Vec<String> = commands
        .iter()
        .map(|command| format!("$ postrider {}\n{}", command.join(" "), told(&home.run(command))))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"));
    let shown = home.json(&["event", "create", "orders"]);
    assert_eq!(home.json(&["event", "show", "orders"]), shown);
    assert_eq!(home.json(&["event", "list"])["items"], json!([shown]));
    let subscribe = ["event", "subscribe", "*", "shop", "--template", r#""{{/a}}""#];
    let made = home.json(&subscribe);
    let mut listed = home.json(&["event", "subscriptions"])["items"][0].take();
    for existed in [false, true] {
        listed["existed"] = json!(existed);
        let said = if existed { home.json(&subscribe) } else { made.clone() };
        assert_eq!(said, listed);
    }
}

#[test]
fn events_that_wait_for_room_are_told_of() {
    let home = Home::new();
    let shop = Shop::on(home.start());
    home.json(&["endpoint", "pause", "shop"]);
    shop.create("orders", "null").unwrap();
    for pattern in ["orders", "*"] {
        shop.subscribe(pattern, "").unwrap();
    }
    shop.node.send("shop", &[], "{}");
    home.json(&["config", "set", "max_queue_size=2"]);
    let db = rusqlite::Connection::open(home.store_file()).expect("the file");
    let publish = "INSERT INTO postrider_publish (event_type, payload) VALUES ('orders', '1')";
    db.execute(publish, []).expect("it is stored");
    let told = crate::eventually(PATIENCE, "a warning", || {
        let parsed = |line: &str| serde_json::from_str::<Value>(line).ok();
        let waits = "the queue is full: stored events wait for room";
        shop.node.written().lines().filter_map(parsed).find(|line| line["message"] == waits)
    });
    assert_eq!(told["level"], "WARN");
    let error =
        "the queue is full: 1 messages of 2 (the whole queue); try again later or raise max_queue_size";
    assert_eq!(told["error"], error);
    let status = home.json(&["status"]);
    assert_eq!((&status["stored_events"], status["oldest_stored_event"].is_string()), (&json!(1), true));
    let text = String::from_utf8(home.run(&["status"]).stdout).expect("text");
    assert!(text.contains("\nstored events that wait to become messages: 1; the oldest waits "), "{text}");
    let page = String::from_utf8(shop.node.get("/metrics").body).expect("text");
    assert!(page.contains("\npostrider_stored_events 1"), "{page}");
    home.json(&["config", "set", "max_queue_size=3"]);
    crate::eventually(PATIENCE, "it is fanned out", || {
        (home.json(&["status"])["stored_events"] == 0).then_some(())
    });
}

/// An application stores events by SQL while the node is killed again and again.
#[test]
fn kill_9_loses_and_doubles_no_stored_event() {
    const EVENTS: u32 = 300;
    let home = Home::new();
    let mut shop = Shop::on(home.start());
    home.json(&["endpoint", "pause", "shop"]);
    shop.create("orders", "null").unwrap();
    let whole = r#","template":"{{}}""#;
    let subscriptions = [("orders", ""), ("orders", whole), ("*", ""), ("*", whole)];
    for (pattern, rules) in subscriptions {
        shop.subscribe(pattern, rules).unwrap();
    }
    let file = home.store_file();
    let application = std::thread::spawn(move || {
        let db = rusqlite::Connection::open(file).expect("the file");
        db.busy_timeout(PATIENCE).expect("a timeout");
        for number in 0..EVENTS {
            let publish = "INSERT INTO postrider_publish (event_type, payload) VALUES ('orders', ?1)";
            db.execute(publish, [number.to_string()]).expect("it is stored");
            std::thread::sleep(Duration::from_millis(3));
        }
    });
    while !application.is_finished() {
        std::thread::sleep(Duration::from_millis(rand::random_range(1..150)));
        let Shop { node, bodies } = shop;
        node.kill();
        shop = Shop { node: home.start(), bodies };
    }
    application.join().expect("every event was stored");
    let db = rusqlite::Connection::open(home.store_file()).expect("the file");
    let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, u32>(0)).expect(sql);
    crate::eventually(PATIENCE, "all are fanned out", || {
        (number("SELECT count(*) FROM _postrider_events") == 0).then_some(())
    });
    assert_eq!(number("SELECT count(*) FROM postrider_queue"), EVENTS * subscriptions.len() as u32);
    let different = "SELECT count(*) FROM (SELECT DISTINCT CAST(payload AS TEXT) FROM postrider_queue)";
    assert_eq!(number(different), EVENTS);
    let out_of_order = "SELECT count(*) FROM (SELECT CAST(payload AS TEXT) + 0 AS n,
                          lag(CAST(payload AS TEXT) + 0) OVER (ORDER BY id) AS before FROM postrider_queue)
                        WHERE before > n";
    assert_eq!(number(out_of_order), 0);
}
