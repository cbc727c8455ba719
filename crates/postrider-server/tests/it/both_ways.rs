//! One list of commands, run on a store and through a node: the same words, the same JSON, the same exit codes.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::Value;
use test_servers::postgres::Postgres;

use crate::cli::told;
use crate::letters::steady;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

/// A store with a node on it; commands work on the one or through the other.
struct Way {
    home: Home,
    node: Node,
    place: [String; 2],
    /// What is kept of answers, to be named in later commands.
    kept: Vec<String>,
}

impl Way {
    fn on_the_store(store: &str) -> Self {
        let (home, node) = started(store);
        Self { home, node, place: ["--store".to_owned(), store.to_owned()], kept: Vec::new() }
    }

    fn through_the_node(store: &str) -> Self {
        let (home, node) = started(store);
        let url = format!("http://{}", node.address);
        Self { home, node, place: ["--url".to_owned(), url], kept: Vec::new() }
    }

    fn run(&self, arguments: &[&str], stdin: &[u8]) -> Output {
        let arguments: Vec<String> = arguments.iter().map(|argument| self.named(argument)).collect();
        let place: Vec<&str> = self.place.iter().map(String::as_str).collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command = self.home.command(&[&place[..], &arguments].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        // One that needs no payload does not read.
        let _ = child.stdin.take().expect("stdin").write_all(stdin);
        child.wait_with_output().expect("it ends")
    }

    /// `$0` is the first thing that was kept.
    fn named(&self, argument: &str) -> String {
        let place = argument.strip_prefix('$').and_then(|place| place.parse::<usize>().ok());
        place.map_or(argument.to_owned(), |place| self.kept[place].clone())
    }
}

fn started(store: &str) -> (Home, Node) {
    let home = Home::new();
    home.json(&["migrate", "--store", store]);
    let node = home.start_with(&["--allow-internal", "--store", store]);
    (home, node)
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Run(&'a [&'a str]),
    /// With this on stdin.
    Fed(&'a [&'a str], &'a [u8]),
    /// The id in the last answer, or of its first item, is kept.
    Keep(&'a [&'a str]),
    /// A message, as it is named in commands, gets there.
    Until(&'a str, &'a str),
}

use Step::{Fed, Keep, Run, Until};

/// What is said on both ways, but for times, secrets and where it was said.
fn compare(ways: &mut [Way; 2], steps: &[Step<'_>], neutral: impl Fn(&str) -> String) {
    for step in steps {
        let said = ways.each_mut().map(|way| said(way, *step));
        let [store, node] = said.clone().map(|said| neutral(&said));
        assert_eq!(store, node, "on the store, then through the node:\n{}\n{}", said[0], said[1]);
    }
}

fn said(way: &mut Way, step: Step<'_>) -> String {
    let (arguments, output) = match step {
        Run(arguments) | Keep(arguments) => (arguments, way.run(arguments, b"")),
        Fed(arguments, stdin) => (arguments, way.run(arguments, stdin)),
        Until(id, state) => {
            let id = way.named(id).parse().expect("an id");
            return way.node.until(id, state)["state"].to_string();
        }
    };
    if let Keep(_) = step {
        let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let id = answer.get("id").unwrap_or(&answer["items"][0]["id"]);
        way.kept.push(id.to_string());
    }
    let said = match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(answer) => format!("{}\n{}", steadied(answer), told(&Output { stdout: Vec::new(), ..output })),
        Err(_) => without_limits(&steady(&told(&output))),
    };
    let said = said.replace(&way.place[1], "PLACE");
    let words = said.split(' ').map(|word| if word.contains("pr_") { "TOKEN" } else { word });
    format!("$ postrider {}\n{}", arguments.join(" "), words.collect::<Vec<_>>().join(" "))
}

/// Only a node tells of its limits.
fn without_limits(said: &str) -> String {
    said.lines().filter(|line| !line.starts_with("this node: ")).collect::<Vec<_>>().join("\n")
}

/// JSON without what is another every time.
fn steadied(mut answer: Value) -> Value {
    match &mut answer {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = steadied(item.take())),
        Value::Object(fields) => {
            for (name, value) in fields {
                *value = match name.as_str() {
                    // Health is told about once a second.
                    "duration_seconds" | "store" | "token" | "prefix" | "health" => "…".into(),
                    // Only a node has any.
                    "limits" => Value::Null,
                    _ => steadied(value.take()),
                };
            }
        }
        Value::String(text) if text.parse::<jiff::Timestamp>().is_ok() => *text = "TIME".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    answer
}

/// Refuses what is `bad`.
fn receiver() -> Receiver {
    Receiver::start(|received| {
        Some(if received.body.windows(3).any(|word| word == b"bad") { 400 } else { 200 })
    })
}

#[test]
fn endpoints_messages_and_settings_are_the_same_on_both_ways() {
    let mut ways = [Way::on_the_store("sqlite:postrider.db"), Way::through_the_node("sqlite:postrider.db")];
    let url = receiver().url();
    let secret =
        r#"{"url":"https://example.org/","signing_secrets":["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}"#;
    let uuid = "1c0a7e5e-3f0b-4a55-9a52-0f4b6f3b9a11";
    let large = vec![b'7'; 1_048_577];
    let larger = vec![b'7'; 5_000_000];
    compare(
        &mut ways,
        &[
            Run(&["status"]),
            Run(&["endpoint", "list"]),
            Run(&["endpoint", "create", "shop", "http", "--url", &url]),
            Run(&["endpoint", "create", "held", "http", "--endpoint-config", secret, "--json"]),
            Run(&["endpoint", "create", "held", "http", "--url", &url]),
            Run(&["endpoint", "create", "a b", "http", "--url", &url, "--json"]),
            Run(&["endpoint", "create", "x", "http"]),
            Run(&["endpoint", "create", "x", "carrier-pigeon"]),
            Run(&["endpoint", "create", "..", "http", "--url", &url, "--options", r#"{"max_queue_size":1}"#]),
            Run(&["endpoint", "show", ".."]),
            Run(&["endpoint", "show", ""]),
            Run(&["endpoint", "show", "a/b?c#ü"]),
            Run(&["endpoint", "pause", "held"]),
            Run(&["endpoint", "pause", ".."]),
            Run(&["endpoint", "pause", "nobody"]),
            Run(&["endpoint", "alter", "held", "--retry-policy", r#"{"max_attempts":2,"backoff":"fixed"}"#]),
            Run(&[
                "endpoint",
                "alter",
                "held",
                "--options",
                r#"{"on_dead":"hold","rate_limit":{"limit":5,"interval":"minute"}}"#,
                "--json",
            ]),
            Run(&["endpoint", "alter", "held", "--options", r#"{"on_dead":"stop"}"#, "--json"]),
            Run(&["endpoint", "alter", "held", "--url", "https://example.org/b", "--json"]),
            Run(&["endpoint", "alter", "nobody", "--url", "https://example.org/b"]),
            Run(&["endpoint", "alter", "held"]),
            Run(&["endpoint", "show", "held"]),
            Run(&["endpoint", "list"]),
            Run(&["endpoint", "list", "--json"]),
            Run(&["endpoint", "reset", "held", "--json"]),
            Run(&["send", "held", r#"{"a": [1,  2.50]}"#]),
            Fed(&["send", "held", "--json"], b"{\"with\":\n\"lines\"}\n"),
            Fed(&["send", "held", "-", "--content-type", "application/octet-stream"], b"\xff\x00\n"),
            Run(&[
                "send",
                "held",
                "null",
                "--priority",
                "7",
                "--ordering-key",
                " ü\tk ",
                "--event-type",
                "paid",
                "--correlation-id",
                uuid,
                "--header",
                "X-Shop= a=b ",
                "--header",
                "y=",
                "--idempotency-key",
                "i",
                "--scheduled-at",
                "2030-01-31T08:00:00.123456789+01:00",
                "--expires-at",
                "2031-01-31T08:00:00Z",
                "--options",
                r#"{"max_attempts":3,"timeout":1.5}"#,
            ]),
            Run(&["send", "held", "null", "--idempotency-key", "i"]),
            Run(&["send", "held", "null", "--idempotency-key", "i", "--json"]),
            Run(&["send", "held", "{}", "--idempotency-key", "i"]),
            Run(&["send", "held", "{}", "--idempotency-key", "i", "--json"]),
            Run(&["send", "held", "{}", "--idempotency-key", ""]),
            Run(&["send", "held", "{}", "--header", "bad name=1", "--json"]),
            Run(&["send", "held", "{}", "--options", r#"{"colour":"red"}"#]),
            Run(&["send", "held", "{}", "--priority", "11"]),
            Run(&["send", "held", "text", "--content-type", "text/plain; charset=utf-8"]),
            Run(&["send", "held", "text", "--content-type", ""]),
            Run(&["send", "..", "{}"]),
            Run(&["send", "..", "{}", "--json"]),
            Run(&["send", "nobody", "{}", "--json"]),
            Run(&["send", "", "{}", "--json"]),
            Fed(&["send", "held", "--json"], &large),
            Fed(&["send", "held"], &larger),
            Run(&["endpoint", "disable", "held"]),
            Run(&["send", "held", "{}"]),
            Run(&["endpoint", "enable", "held"]),
            Run(&["message", "show", "1"]),
            Run(&["message", "show", "2"]),
            Run(&["message", "show", "2", "--json"]),
            Run(&["message", "show", "3"]),
            Run(&["message", "show", "3", "--json"]),
            Run(&["message", "show", "4"]),
            Run(&["message", "show", "4", "--json"]),
            Run(&["message", "show", "99"]),
            Run(&["message", "show", "-1"]),
            Run(&["message", "reschedule", "1", "2030-01-01T00:00:00Z", "--json"]),
            Run(&["message", "cancel", "1"]),
            Run(&["message", "cancel", "1", "--json"]),
            Run(&["message", "erase", "2"]),
            Run(&["message", "show", "2"]),
            Run(&["message", "show", "2", "--json"]),
            Run(&["message", "reschedule", "99", "+1m"]),
            Run(&["send", "shop", r#"{"good":1}"#]),
            Run(&["status", "--json"]),
            Run(&["message", "list", "--endpoint", "held", "--state", "pending"]),
            Run(&["message", "list", "--ordering-key", " ü\tk ", "--json"]),
            Run(&["message", "list", "--correlation-id", uuid, "--event-type", "paid"]),
            Run(&["message", "list", "--created-before", "-1h"]),
            Run(&["message", "list", "--endpoint", "held", "--limit", "2"]),
            Run(&["message", "list", "--endpoint", "held", "--limit", "2", "--json"]),
            Run(&["message", "list", "--before", "3", "--json"]),
            Run(&["endpoint", "drop", "held"]),
            Run(&["endpoint", "drop", "held", "--force", "--json"]),
            Run(&["endpoint", "drop", "held"]),
            Run(&["config", "list"]),
            Run(&["config", "get", "retry_max_delay", "--json"]),
            Run(&["config", "set", "retry_base_delay=5", "archive=metadata"]),
            Run(&["config", "set", "retry_base_delay=7", "node_lease=4", "--json"]),
            Run(&["config", "set", "retry_base_dealy=7"]),
            Run(&["config", "list", "--json"]),
            Run(&["token", "list"]),
            Run(&["token", "revoke", "pr_nobody"]),
            Run(&["token", "revoke", ""]),
            Run(&["token", "create", "", "admin", "--json"]),
            Run(&["token", "create", "operator", "admin"]),
        ],
        str::to_owned,
    );
}

#[test]
fn events_are_the_same_on_both_ways() {
    let mut ways = [Way::on_the_store("sqlite:postrider.db"), Way::through_the_node("sqlite:postrider.db")];
    let schema = r#"{"type":"object","properties":{"total":{"maximum":12345678901234567890.10}}}"#;
    compare(
        &mut ways,
        &[
            Run(&["event", "list"]),
            Run(&["event", "subscriptions"]),
            Run(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]),
            Run(&["endpoint", "pause", "shop"]),
            Run(&["event", "create", "orders.created", "--description", "An order", "--schema", schema]),
            Run(&["event", "create", "orders.created"]),
            Run(&["event", "create", "a b", "--json"]),
            Run(&["event", "create", "a", "--schema", r#"{"format":"x"}"#]),
            Run(&["event", "list"]),
            Run(&["event", "list", "--json"]),
            Run(&["event", "show", "orders.created"]),
            Run(&["event", "show", "nothing"]),
            Run(&["event", "subscribe", "orders.*", "shop", "--filter", r#"{"country":"SE"}"#]),
            Run(&["event", "subscribe", "*", "shop", "--template", r#"{"n":"{{/total}}"}"#, "--json"]),
            Run(&["event", "subscribe", "orders.*", "shop", "--filter", r#"{"country":"SE"}"#]),
            Run(&["event", "subscribe", "*", "nobody"]),
            Run(&["event", "subscribe", "a*", "shop"]),
            Run(&["event", "subscriptions"]),
            Run(&["event", "subscriptions", "--json"]),
            Run(&[
                "publish",
                "orders.created",
                r#"{"country":"SE","total":12.50}"#,
                "--idempotency-key",
                "i",
                "--priority",
                "5",
                "--header",
                "X-Shop=7",
                "--ordering-key",
                "k",
            ]),
            Run(&[
                "publish",
                "orders.created",
                r#"{"country":"SE","total":12.50}"#,
                "--idempotency-key",
                "i",
            ]),
            Run(&["publish", "orders.created", r#"{"country":"SE","total":13}"#, "--idempotency-key", "i"]),
            Fed(&["publish", "orders.created", "--json"], b"{\"country\":\n\"DE\"}\n"),
            Run(&["publish", "orders.created", "7"]),
            Run(&["publish", "orders.created", "{oops", "--json"]),
            Run(&["publish", "nothing", "{}"]),
            Run(&["publish", "", "{}"]),
            Run(&["message", "show", "1", "--json"]),
            Run(&["message", "show", "2"]),
            Run(&["message", "show", "3"]),
            Run(&["event", "disable", "1"]),
            Run(&["event", "enable", "1", "--json"]),
            Run(&["event", "enable", "9"]),
            Run(&["event", "unsubscribe", "1"]),
            Run(&["event", "unsubscribe", "1", "--json"]),
            Run(&["event", "drop", "orders.created"]),
            Run(&["event", "drop", "orders.created"]),
        ],
        str::to_owned,
    );
}

#[test]
fn dead_letters_and_replays_are_the_same_on_both_ways() {
    let mut ways = [Way::on_the_store("sqlite:postrider.db"), Way::through_the_node("sqlite:postrider.db")];
    let url = receiver().url();
    compare(
        &mut ways,
        &[
            Run(&["config", "set", "capture_response=all", "attempt_log=all"]),
            Run(&["endpoint", "create", "shop", "http", "--url", &url]),
            Run(&["endpoint", "create", "held", "http", "--url", &url]),
            Run(&["endpoint", "pause", "held"]),
            Run(&["dlq", "list"]),
            Run(&["dlq", "summary"]),
            Run(&["replay", "list"]),
            Keep(&["send", "shop", r#"{"good":1}"#, "--json"]),
            Until("$0", "completed"),
            Keep(&["send", "shop", r#"{"bad":2}"#, "--json", "--event-type", "paid", "--header", "X-Shop=7"]),
            Until("$1", "dead"),
            Keep(&[
                "send",
                "shop",
                "bad\u{1}",
                "--json",
                "--content-type",
                "text/plain",
                "--ordering-key",
                "k",
            ]),
            Until("$2", "dead"),
            Run(&["message", "show", "1"]),
            Run(&["message", "show", "1", "--json"]),
            Run(&["message", "show", "2", "--json"]),
            Run(&["dlq", "list"]),
            Run(&["dlq", "list", "--json", "--limit", "1"]),
            Run(&["dlq", "list", "--after", "1"]),
            Run(&["dlq", "list", "--error", "answered 400", "--event-type", "paid", "--class", "permanent"]),
            Run(&["dlq", "list", "--status", "redriven", "--from", "-1h"]),
            Run(&["dlq", "list", "--ordering-key", "k", "--reason", "permanent", "--until", "-1h"]),
            Run(&["dlq", "show", "1"]),
            Run(&["dlq", "show", "1", "--json"]),
            Run(&["dlq", "show", "2", "--json"]),
            Run(&["dlq", "show", "9"]),
            Run(&["dlq", "summary"]),
            Run(&["dlq", "summary", "--json"]),
            Run(&["replay", "start", "--endpoint", "shop", "--status", "failed", "--dry-run"]),
            Run(&["replay", "start", "--endpoint", "shop", "--dry-run", "--json"]),
            Run(&["replay", "start", "--endpoint", "nobody", "--dry-run"]),
            Run(&["replay", "start", "--endpoint", "shop", "--to", "nobody"]),
            Run(&["replay", "start", "--endpoint", "shop", "--to", "held", "--rate", "500", "--wait"]),
            Run(&["replay", "show", "1", "--json"]),
            Run(&["replay", "show", "9"]),
            Run(&["replay", "stop", "1"]),
            Run(&["replay", "resume", "1", "--json"]),
            Run(&["replay", "list"]),
            Run(&["replay", "list", "--json"]),
            Run(&["replay", "message", "1", "--to", "held"]),
            Run(&["replay", "message", "1", "--to", "nobody"]),
            Run(&["replay", "message", "99", "--json"]),
            Run(&["message", "show", "1"]),
            Run(&["endpoint", "pause", "shop"]),
            Run(&["dlq", "redrive", "1"]),
            Run(&["dlq", "redrive", "1", "--json"]),
            Run(&["dlq", "redrive", "9"]),
            Run(&["dlq", "redrive", "--error", "no such words"]),
            Run(&["dlq", "redrive"]),
            Run(&["config", "set", "max_queue_size=1"]),
            Run(&["dlq", "redrive", "2"]),
            Run(&["dlq", "redrive", "--all", "--json"]),
            Run(&["dlq", "discard", "--endpoint", "shop", "--from", "-1h"]),
            Run(&["dlq", "discard", "2"]),
            Run(&["dlq", "list", "--json"]),
            Run(&["status"]),
        ],
        str::to_owned,
    );
}

/// Ids are handed out in blocks there, one for each process.
fn without_ids(said: &str) -> String {
    let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
    for line in &mut lines {
        let Ok(mut answer) = serde_json::from_str::<Value>(line) else { continue };
        for field in
            ["/id", "/items/0/id", "/items/0/message_id", "/message_id", "/replay_of", "/next", "/message"]
        {
            answer.pointer_mut(field).filter(|id| id.is_i64()).into_iter().for_each(|id| *id = "ID".into());
        }
        *line = answer.to_string();
    }
    lines.join("\n")
}

#[test]
fn the_essential_is_the_same_on_both_ways_on_postgresql() {
    let servers = [(); 2].map(|()| Postgres::start().expect("a server of its own"));
    let mut ways = [Way::on_the_store(&servers[0].url()), Way::through_the_node(&servers[1].url())];
    let url = receiver().url();
    compare(
        &mut ways,
        &[
            Run(&["endpoint", "create", "shop", "http", "--url", &url, "--json"]),
            Run(&["endpoint", "create", "shop", "http", "--url", &url, "--json"]),
            Run(&[
                "endpoint",
                "alter",
                "shop",
                "--url",
                &url,
                "--options",
                r#"{"max_in_flight":3}"#,
                "--json",
            ]),
            Run(&["endpoint", "list"]),
            Keep(&["send", "shop", "bad", "--content-type", "text/plain", "--ordering-key", "k", "--json"]),
            Until("$0", "dead"),
            Run(&["message", "show", "$0", "--json"]),
            Keep(&["dlq", "list", "--json"]),
            Run(&["dlq", "show", "$1", "--json"]),
            Run(&["endpoint", "pause", "shop", "--json"]),
            Run(&["dlq", "redrive", "$1", "--json"]),
            Run(&["dlq", "redrive", "$1"]),
            Run(&["dlq", "summary"]),
            Run(&["message", "cancel", "$0", "--json"]),
            Run(&["message", "list", "--endpoint", "shop", "--json"]),
            Run(&["replay", "message", "$0", "--json"]),
            Run(&["replay", "start", "--endpoint", "shop", "--status", "cancelled", "--dry-run", "--json"]),
            Run(&["event", "create", "paid", "--schema", r#"{"maximum":1e30}"#, "--json"]),
            Run(&["event", "subscribe", "*", "shop", "--filter", "[1.0]"]),
            Run(&["publish", "paid", "[1]", "--idempotency-key", "i", "--json"]),
            Run(&["publish", "paid", "[1]", "--idempotency-key", "i"]),
            Run(&["publish", "paid", "2e30", "--json"]),
            Run(&["config", "set", "max_queue_size=1", "--json"]),
            Run(&["send", "nobody", "{}"]),
            Run(&["send", "shop", "{}", "--options", r#"{"colour":1}"#, "--json"]),
            Run(&["config", "set", "node_lease=1"]),
            Run(&["status"]),
        ],
        without_ids,
    );
}
