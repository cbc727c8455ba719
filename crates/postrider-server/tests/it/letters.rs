//! Dead letters, single messages and replays, as people meet them on the command line and over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::told;
use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

/// A node with an endpoint `shop`, and a receiver that refuses what is `bad` until it is fixed.
struct Shop {
    home: Home,
    node: Node,
    fixed: Arc<AtomicBool>,
    receiver: Receiver,
}

impl Shop {
    fn open() -> Self {
        let fixed = Arc::new(AtomicBool::new(false));
        let is_fixed = fixed.clone();
        let receiver = Receiver::start(move |received| {
            let bad = received.body.windows(3).any(|word| word == b"bad");
            Some(if bad && !is_fixed.load(SeqCst) { 400 } else { 200 })
        });
        let home = Home::new();
        let node = home.start();
        let shop = Self { home, node, fixed, receiver };
        shop.endpoint("shop");
        shop
    }

    fn endpoint(&self, name: &str) {
        let config = json!({ "url": self.receiver.url() });
        self.node.create_endpoint(json!({ "name": name, "protocol": "http", "config": config }));
    }

    /// Two that were delivered and two that died.
    fn with_letters() -> Self {
        let shop = Self::open();
        for (payload, state) in [
            (r#"{"order":1}"#, "completed"),
            (r#"{"bad":2}"#, "dead"),
            (r#"{"bad":3}"#, "dead"),
            (r#"{"order":4}"#, "completed"),
        ] {
            let headers = [("postrider-event-type", "paid"), ("postrider-header-x-shop", "7")];
            let id = shop.node.send("shop", if state == "dead" { &headers } else { &[] }, payload);
            shop.node.until(id, state);
        }
        shop
    }

    fn post(&self, path: &str, body: Value, status: u16) -> Value {
        self.node.post(path, &[], body.to_string().as_bytes()).expect(status).json()
    }

    fn until_replayed(&self, id: &Value) -> Value {
        eventually(Duration::from_secs(30), "the replay is completed", || {
            let replay = self.node.get(&format!("/v1/replays/{id}")).expect(200).json();
            (replay["state"] == "completed").then_some(replay)
        })
    }

    fn transcript(&self, commands: &[&[&str]]) -> String {
        let text = commands.iter().map(|command| {
            format!("$ postrider {}\n{}", command.join(" "), steady(&told(&self.home.run(command))))
        });
        text.collect::<Vec<_>>().join("\n\n")
    }
}

/// Times and ages are another every day; columns are as wide as they are.
pub(crate) fn steady(text: &str) -> String {
    let is_time = |word: &str| word.len() > 18 && word.parse::<jiff::Timestamp>().is_ok();
    let is_age = |word: &str| {
        word.strip_suffix('s')
            .is_some_and(|age| !age.is_empty() && age.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let word = |word: &str| {
        let bare = word.trim_matches(|c| matches!(c, '"' | ',' | ':' | '}'));
        match () {
            () if is_time(bare) => word.replace(bare, "TIME"),
            () if is_age(bare) => word.replace(bare, "AGE"),
            () => word.to_owned(),
        }
    };
    let line = |line: &str| {
        let indent = line.len() - line.trim_start().len();
        let words: Vec<String> = line.split_whitespace().map(word).collect();
        let text = words.join(" ");
        let took = words.iter().position(|word| word == "ms").map(|at| format!("{} ms", words[at - 1]));
        let text = took.map_or(text.clone(), |took| text.replace(&took, "N ms"));
        format!("{}{text}", " ".repeat(indent))
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn help_has_examples() {
    let home = Home::new();
    let commands: [&[&str]; 8] = [
        &["dlq", "--help"],
        &["dlq", "list", "--help"],
        &["dlq", "redrive", "--help"],
        &["replay", "--help"],
        &["replay", "start", "--help"],
        &["replay", "resume", "--help"],
        &["message", "--help"],
        &["message", "reschedule", "--help"],
    ];
    let text: Vec<String> = commands
        .iter()
        .map(|command| format!("$ postrider {}\n{}", command.join(" "), told(&home.run(command))))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn dead_letters_are_found_shown_and_dealt_with() {
    let shop = Shop::with_letters();
    let mut text = vec![shop.transcript(&[
        &["dlq", "summary"],
        &["dlq", "list"],
        &["dlq", "list", "--error", "answered 400", "--limit", "1"],
        &["dlq", "list", "--class", "retryable"],
        &["dlq", "list", "--from", "-1h", "--until", "-30m"],
        &["dlq", "show", "1"],
        &["dlq", "redrive"],
        &["dlq", "redrive", "99"],
        &["dlq", "redrive", "1", "--endpoint", "shop"],
        &["dlq", "list", "--class", "strange"],
        &["dlq", "list", "--from", "yesterday"],
        &["dlq", "show", "99"],
        &["dlq", "discard", "2"],
        &["dlq", "discard", "2"],
    ])];
    shop.fixed.store(true, SeqCst);
    text.push(shop.transcript(&[
        &["dlq", "redrive", "--event-type", "paid", "--error", "400"],
        &["dlq", "redrive", "--all", "--json"],
    ]));
    shop.node.until(2, "completed");
    text.push(shop.transcript(&[&["dlq", "summary"], &["dlq", "list", "--status", "redriven"]]));
    insta::assert_snapshot!(text.join("\n\n"));
    let listed = shop.home.json(&["dlq", "list", "--limit", "1"]);
    assert_eq!((&listed["items"][0]["message_id"], &listed["next"]), (&json!(2), &json!(1)));
    assert_eq!(shop.home.json(&["dlq", "show", "1"])["payload"], json!({ "bad": 2 }));
}

#[test]
fn letters_of_a_dropped_endpoint_can_only_be_discarded() {
    let shop = Shop::with_letters();
    shop.home.json(&["endpoint", "drop", "shop"]);
    let of_shop = |command: &[&str]| told(&shop.home.run(&[command, &["--endpoint", "shop"]].concat()));
    assert!(of_shop(&["dlq", "list"]).contains("answered 400"));
    let said = of_shop(&["dlq", "redrive"]);
    assert!(said.contains("those of dropped endpoints can only be discarded"), "{said}");
    let said = of_shop(&["dlq", "discard"]);
    assert!(said.contains("2 dead letters discarded"), "{said}");
}

#[test]
fn letters_that_were_dealt_with_before_an_error_are_told() {
    let shop = Shop::with_letters();
    let said = told(&shop.home.run(&["dlq", "discard", "1", "99", "2"]));
    assert!(said.contains("1 of 3 were discarded; then: there is no dead letter \"99\""), "{said}");
    assert_eq!(shop.home.json(&["dlq", "show", "2"])["status"], "failed");
}

#[test]
fn messages_are_replayed_by_command() {
    let shop = Shop::with_letters();
    shop.fixed.store(true, SeqCst);
    let text = shop.transcript(&[
        &["replay", "list"],
        &["replay", "start", "--endpoint", "shop", "--dry-run"],
        &["replay", "start", "--endpoint", "shop", "--status", "failed", "--rate", "1000", "--wait"],
        &["replay", "list"],
        &["replay", "show", "1"],
        &["replay", "stop", "1"],
        &["replay", "show", "9"],
        &["replay", "message", "1"],
        &["replay", "message", "99"],
        &["replay", "start"],
        &["replay", "start", "--endpoint", "nowhere"],
        &["replay", "start", "--endpoint", "shop", "--rate", "fast"],
        &["replay", "start", "--endpoint", "shop", "--status", "pending"],
    ]);
    shop.node.until(7, "completed");
    let story = shop.transcript(&[&["message", "show", "1"], &["message", "show", "7"]]);
    insta::assert_snapshot!([text, story].join("\n\n"));
    assert_eq!(shop.home.json(&["replay", "show", "1"])["done"], 2);
}

/// What somebody sees who types it, on a terminal of a hundred columns.
fn typed(home: &Home, command: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_postrider");
    let output = home.shell(&format!("script -qec 'stty cols 100; {binary} {command}' /dev/null"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn on_a_terminal_there_are_tables_and_it_is_shown_how_far_a_replay_is() {
    let shop = Shop::with_letters();
    assert!(typed(&shop.home, "dlq list").contains("│ 1  ┆ 2       ┆ shop"));
    let watched = typed(&shop.home, "replay start --endpoint shop --to shop --rate 1");
    assert!(watched.contains("1 of 2,") && watched.contains('█'), "{watched}");
    assert!(watched.contains("replay 1 is completed: 2 of 2 sent"), "{watched}");
    let left = typed(&shop.home, "replay start --endpoint shop --rate 1/hour --no-wait");
    assert!(left.contains("replay 2 is running") && !left.contains('█'), "{left}");
    let swept = typed(&shop.home, "dlq discard --all");
    assert!(swept.contains("2 dead letters discarded"), "{swept}");
}

#[test]
fn one_message_is_looked_at_and_changed() {
    let shop = Shop::open();
    shop.home.json(&["endpoint", "pause", "shop"]);
    shop.home.json(&["send", "shop", r#"{"order":1}"#, "--ordering-key", "k", "--header", "x-a=b"]);
    let text = shop.transcript(&[
        &["message", "show", "1"],
        &["message", "reschedule", "1", "+10m"],
        &["message", "reschedule", "1", "soon"],
        &["message", "cancel", "1"],
        &["message", "cancel", "1"],
        &["message", "erase", "1"],
        &["message", "show", "1"],
        &["message", "show", "99"],
        &["message", "show", "99", "--json"],
    ]);
    insta::assert_snapshot!(text);
}

#[test]
fn letters_are_swept_by_filter_over_http() {
    let shop = Shop::with_letters();
    let refused = [
        json!({}),
        json!({ "all": true, "endpoint": "shop" }),
        json!({ "class": "strange" }),
        json!({ "from": "yesterday" }),
        json!({ "endpoint": 7 }),
        json!({ "endpoints": "shop" }),
        json!({ "all": true, "cursor": "x" }),
    ];
    let problems: Vec<Value> =
        refused.into_iter().map(|body| shop.post("/v1/dlq:redrive", body, 422)["detail"].take()).collect();
    insta::assert_snapshot!(format!("{:#}", json!(problems)));
    shop.post("/v1/dlq:discard", json!({ "endpoint": "nowhere" }), 404);
    let discarded = shop.post("/v1/dlq:discard", json!({ "message_id": 3 }), 200);
    assert_eq!(discarded, json!({ "discarded": 1, "total": 1, "next": null }));
    shop.fixed.store(true, SeqCst);
    let filter =
        json!({ "endpoint": "shop", "error": "answered 400", "event_type": "paid", "class": "permanent" });
    let redriven = shop.post("/v1/dlq:redrive", filter.clone(), 200);
    assert_eq!(redriven, json!({ "redriven": 1, "total": 1, "next": null }));
    shop.node.until(2, "completed");
    assert_eq!(shop.post("/v1/dlq:redrive", filter, 200)["redriven"], 0);
    assert_eq!(shop.node.get("/v1/messages/3").expect(200).json()["state"], "dead");
}

#[test]
fn the_letter_of_an_event_is_found_by_what_is_shown_of_it() {
    let shop = Shop::open();
    shop.post("/v1/event-types", json!({ "name": "paid", "schema": { "required": ["sum"] } }), 201);
    let db = rusqlite::Connection::open(shop.home.store_file()).expect("the file");
    db.busy_timeout(Duration::from_secs(30)).expect("a timeout");
    db.execute("INSERT INTO postrider_publish (event_type, payload) VALUES ('paid', '{}')", [])
        .expect("it is stored");
    let summary = eventually(Duration::from_secs(30), "it is a dead letter", || {
        shop.node.get("/v1/dlq/summary").expect(200).json()["items"].get(0).cloned()
    });
    let endpoint = summary["endpoint"].as_str().expect("a name");
    let found = shop.node.get(&format!("/v1/dlq?endpoint={endpoint}")).expect(200).json()["items"].clone();
    assert_eq!(
        (&found[0]["endpoint"], found[0]["reason"].as_str()),
        (&json!(endpoint), Some("invalid_event"))
    );
    let by_reason = shop.node.get("/v1/dlq?reason=invalid_event").expect(200).json()["items"].clone();
    assert_eq!(by_reason, found);
    assert_eq!(shop.home.json(&["dlq", "list", "--endpoint", endpoint])["items"], found);
    let mistyped = shop.node.get("/v1/dlq?reason=invalid_events").expect(422).json();
    assert!(mistyped["detail"].as_str().is_some_and(|why| why.contains("invalid_event")), "{mistyped}");
    shop.node.delete("/v1/event-types/paid").expect(204);
    shop.post("/v1/event-types", json!({ "name": "paid" }), 201);
    let redriven = shop.post("/v1/dlq:redrive", json!({ "endpoint": endpoint }), 200);
    assert_eq!((&redriven["redriven"], &redriven["total"]), (&json!(1), &json!(1)), "{redriven}");
}

#[test]
fn replays_are_started_watched_and_stopped_over_http() {
    let shop = Shop::with_letters();
    shop.endpoint("copy");
    let preview = shop.post("/v1/replays", json!({ "endpoint": "shop", "dry_run": true }), 200);
    assert_eq!((&preview["count"], &preview["sample"][1]["id"]), (&json!(2), &json!(4)));
    let limit = json!({ "limit": 1, "interval": "hour" });
    let body = json!({ "endpoint": "shop", "to": "copy", "rate_limit": limit });
    let started = shop.node.post("/v1/replays", &[], body.to_string().as_bytes()).expect(201);
    assert_eq!(started.header("location"), Some("/v1/replays/1"));
    eventually(Duration::from_secs(30), "one is sent", || {
        (shop.node.get("/v1/replays/1").expect(200).json()["done"] == 1).then_some(())
    });
    let stopped = shop.post("/v1/replays/1:stop", json!({}), 200);
    assert_eq!((&stopped["state"], &stopped["total"]), (&json!("stopped"), &json!(2)));
    assert_eq!(shop.post("/v1/replays/1:resume", json!({}), 200)["state"], "running");
    shop.post("/v1/replays/1:stop", json!({}), 200);

    let second =
        shop.post("/v1/replays", json!({ "status": "completed", "until": "2999-01-01T00:00:00Z" }), 201);
    let done = shop.until_replayed(&second["id"]);
    assert_eq!((&done["done"], &done["skipped"], &done["total"]), (&json!(3), &json!({}), &json!(3)));
    let one = shop.post("/v1/replays", json!({ "message": 1, "to": "copy" }), 201);
    let story = shop.node.until(one["id"].as_i64().expect("an id"), "completed");
    assert_eq!((&story["replay_of"], &story["endpoint"]), (&json!(1), &json!("copy")));
    let original = shop.node.get("/v1/messages/1").expect(200).json();
    assert_eq!(original["replayed_as"].as_array().map(Vec::len), Some(3), "{original}");

    let page = shop.node.get("/v1/replays?limit=1").expect(200).json();
    assert_eq!(page["items"][0]["id"], 2);
    let next = page["next"].as_str().expect("a next page");
    let page = shop.node.get(&format!("/v1/replays?limit=1&cursor={next}")).expect(200).json();
    assert_eq!((&page["items"][0]["id"], &page["next"]), (&json!(1), &Value::Null));

    let refused = [
        json!({}),
        json!({ "endpoint": "shop", "status": "pending" }),
        json!({ "endpoint": "shop", "rate_limit": { "limit": 0, "interval": "second" } }),
        json!({ "endpoint": "shop", "dry_run": "yes" }),
        json!({ "from": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z" }),
        json!({ "message": 1, "endpoint": "shop" }),
        json!({ "messages": [1] }),
    ];
    let problems: Vec<Value> =
        refused.into_iter().map(|body| shop.post("/v1/replays", body, 422)["detail"].take()).collect();
    insta::assert_snapshot!(format!("{:#}", json!(problems)));
    for (path, status) in [("/v1/replays/9", 404), ("/v1/replays/x", 404), ("/v1/replays?limit=0", 422)] {
        shop.node.get(path).expect(status);
    }
    for (path, status) in [
        ("/v1/replays/2:stop", 409),
        ("/v1/replays/9:resume", 404),
        ("/v1/replays/2:forget", 404),
        ("/v1/replays/2", 405),
    ] {
        shop.post(path, json!({}), status);
    }
}

#[test]
fn a_replay_survives_the_sudden_death_of_its_node() {
    let Shop { home, node, .. } = Shop::open();
    for _ in 0..40 {
        let id = node.send("shop", &[], "{}");
        node.until(id, "completed");
    }
    let limit = json!({ "limit": 40, "interval": "second", "burst": 5 });
    let body = json!({ "endpoint": "shop", "rate_limit": limit }).to_string();
    node.post("/v1/replays", &[], body.as_bytes()).expect(201);
    let mut node = node;
    for enough in [5, 15, 25] {
        eventually(Duration::from_secs(30), "some are sent", || {
            (node.get("/v1/replays/1").expect(200).json()["done"].as_i64() >= Some(enough)).then_some(())
        });
        node.kill();
        node = home.start();
    }
    let done = eventually(Duration::from_secs(30), "the replay is completed", || {
        let replay = node.get("/v1/replays/1").expect(200).json();
        (replay["state"] == "completed").then_some(replay)
    });
    assert_eq!((&done["done"], &done["total"]), (&json!(40), &json!(40)));
    for id in 1..=40 {
        let story = node.get(&format!("/v1/messages/{id}")).expect(200).json();
        let made = story["replayed_as"].as_array().expect("ids");
        assert_eq!(made.len(), 1, "{story}");
        node.until(made[0].as_i64().expect("an id"), "completed");
    }
}

#[test]
fn a_dead_letter_shows_every_field_of_its_message_and_is_found_by_its_correlation_id() {
    let shop = Shop::open();
    let uuid = "6f1c8e0e-6a2b-4f0e-9d5c-1b2a3c4d5e6f";
    let headers = [
        ("postrider-correlation-id", uuid),
        ("postrider-priority", "7"),
        ("idempotency-key", "order-1"),
        ("postrider-scheduled-at", "2020-01-01T00:00:00Z"),
        ("postrider-expires-at", "2040-01-01T00:00:00Z"),
        ("postrider-options", r#"{"timeout":5}"#),
    ];
    let id = shop.node.send("shop", &headers, r#"{"bad":1}"#);
    shop.node.until(id, "dead");
    let other = shop.node.send("shop", &[], r#"{"bad":2}"#);
    shop.node.until(other, "dead");
    let letter = shop.node.get("/v1/dlq/1").expect(200).json();
    assert_eq!(shop.home.json(&["dlq", "show", "1"]), letter);
    let expected = [
        ("correlation_id", json!(uuid)),
        ("priority", json!(7)),
        ("idempotency_key", json!("order-1")),
        ("scheduled_at", json!("2020-01-01T00:00:00Z")),
        ("expires_at", json!("2040-01-01T00:00:00Z")),
        ("options", json!({ "timeout": 5 })),
    ];
    for (field, value) in &expected {
        assert_eq!(letter[field], *value, "{field}");
    }
    let text = told(&shop.home.run(&["dlq", "show", "1"]));
    for words in [uuid, "priority        7", "order-1", "2020-01-01", "2040-01-01", r#"{"timeout":5}"#] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let found = shop.node.get(&format!("/v1/dlq?correlation_id={uuid}")).expect(200).json();
    assert_eq!(
        (found["items"][0]["message_id"].as_i64(), found["items"].as_array().map(Vec::len)),
        (Some(id), Some(1))
    );
    let found = shop.home.json(&["dlq", "list", "--correlation-id", uuid]);
    assert_eq!(found["items"].as_array().map(Vec::len), Some(1));
    let problem = shop.node.get("/v1/dlq?correlation_id=7").expect(422).json();
    assert_eq!(problem["field"], "correlation_id");
    let summary = shop.node.get("/v1/dlq/summary").expect(200).json();
    assert_eq!(summary["items"][0]["reasons"], json!({ "permanent": 2 }));
    assert!(summary["items"][0]["newest_failed"].as_str() >= summary["items"][0]["oldest_failed"].as_str());
    assert_eq!(shop.post("/v1/dlq:discard", json!({ "correlation_id": uuid }), 200)["discarded"], 1);
}

#[test]
fn an_endpoint_shows_how_its_attempts_went() {
    let shop = Shop::with_letters();
    let health = eventually(Duration::from_secs(30), "the node told of all four", || {
        let health = shop.node.get("/v1/endpoints/shop").expect(200).json()["health"].clone();
        (health["delivered"] == 2 && health["failed"] == 2).then_some(health)
    });
    assert_eq!(health["consecutive_failures"], 0);
    assert!(health["last_error"].as_str().is_some_and(|error| error.starts_with("[PERMANENT] answered 400")));
    assert!(health["last_success_at"].as_str() > health["last_failure_at"].as_str(), "{health}");
    assert_eq!(shop.home.json(&["endpoint", "show", "shop"])["health"], health);
    assert_eq!(shop.node.get("/v1/status").expect(200).json()["endpoints"][0]["health"], health);
    let listed = shop.node.get("/v1/endpoints").expect(200).json();
    assert_eq!(listed["items"][0].get("health"), None, "where one is shown");
}
