//! Many messages from a file or from stdin.

use std::io::Write;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use test_servers::postgres::Postgres;

use crate::cli::told;
use crate::eventually;
use crate::node::Home;
use crate::terminal::Terminal;

fn with_endpoint() -> Home {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    home
}

fn line(order: u64) -> String {
    json!({ "endpoint": "shop", "payload": { "order": order } }).to_string()
}

fn lines(orders: impl IntoIterator<Item = u64>) -> String {
    orders.into_iter().map(|order| line(order) + "\n").collect()
}

fn write(home: &Home, text: &str) {
    std::fs::write(home.path().join("orders.ndjson"), text).expect("a file");
}

fn batch(home: &Home, more: &[&str]) -> Output {
    home.run(&[&["send", "--batch", "orders.ndjson"], more].concat())
}

fn pending(home: &Home) -> Value {
    home.json(&["status"])["pending"].clone()
}

fn summary(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(output)))
}

#[test]
fn a_file_is_sent_in_the_order_of_its_lines() {
    let home = with_endpoint();
    let options =
        r#"{"endpoint":"shop","payload": {"a":  1} ,"options":{"priority":3,"event_type":"order.paid"}}"#;
    write(&home, &format!("{}\n\n{options}\n  \n{}", line(1), line(2)));
    let output = batch(&home, &["--json"]);
    assert_eq!(summary(&output), json!({ "lines": 5, "sent": 3, "duplicates": 0 }), "{}", told(&output));
    let story = home.json(&["message", "show", "2"]);
    assert_eq!((&story["priority"], &story["event_type"]), (&json!(3), &json!("order.paid")));
    assert_eq!(
        home.json(&["message", "show", "3"])["payload"],
        json!({ "order": 2 }),
        "without a line break"
    );
    assert_eq!(
        told(&home.run(&["message", "show", "2"])).matches(r#"{"a":  1}"#).count(),
        1,
        "byte for byte"
    );
}

#[test]
fn many_lines_take_several_transactions() {
    let home = with_endpoint();
    home.json(&["config", "set", "max_batch_messages=7"]);
    write(&home, &lines(1..=2500));
    assert_eq!(summary(&batch(&home, &["--json"])), json!({ "lines": 2500, "sent": 2500, "duplicates": 0 }));
    assert_eq!(pending(&home), 2500);
}

#[test]
fn an_empty_file_sends_nothing() {
    let home = with_endpoint();
    for text in ["", "\n", " \r\n\n"] {
        write(&home, text);
        assert_eq!(batch(&home, &["--json"]).status.code(), Some(0));
    }
    assert_eq!(pending(&home), 0);
}

#[test]
fn lines_on_stdin_are_sent_while_more_are_awaited() {
    let home = with_endpoint();
    let mut command = home.command(&["send", "--batch", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("stdin");
    for order in 1..=2 {
        writeln!(stdin, "{}", line(order)).expect("it reads");
        eventually(Duration::from_secs(30), "it is sent", || (pending(&home) == order).then_some(()));
    }
    write!(stdin, "{}", line(3)).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(summary(&output), json!({ "lines": 3, "sent": 3, "duplicates": 0 }));
}

#[test]
fn who_interrupts_it_is_told_what_was_sent() {
    let home = with_endpoint();
    let mut command = home.command(&["send", "--batch", "-", "--json"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("stdin");
    writeln!(stdin, "{}", line(1)).expect("it reads");
    eventually(Duration::from_secs(30), "it is sent", || (pending(&home) == 1).then_some(()));
    assert!(home.shell(&format!("kill -INT {}", child.id())).status.success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(summary(&output)["lines"], 1);
    assert!(told(&output).contains("--skip 1 continues"), "{}", told(&output));
}

/// Refusals of all kinds, each at a line of its own behind a thousand good ones.
fn refusals() -> [(&'static str, &'static str); 7] {
    [
        ("no JSON", "{\"endpoint\": \"shop\", \"payload\"}"),
        ("no endpoint", "{\"payload\": 1}"),
        ("an unknown field", "{\"endpoint\": \"shop\", \"payload\": 1, \"prioriti\": 3}"),
        ("a bad value", "{\"endpoint\": \"shop\", \"payload\": 1, \"options\": {\"priority\": 11}}"),
        ("an unknown endpoint", "{\"endpoint\": \"nobody\", \"payload\": 1}"),
        ("too large", "{\"endpoint\": \"shop\", \"payload\": \"TOO LARGE\"}"),
        (
            "a key of another payload, before something else that is refused",
            "{\"endpoint\": \"shop\", \"payload\": 2, \"options\": {\"idempotency_key\": \"taken\"}}
             {\"endpoint\": \"nobody\", \"payload\": 1}",
        ),
    ]
}

/// The store of `POSTRIDER_STORE` in this folder, or the default one.
fn stops_at_a_bad_line(home: &Home, store: Option<&str>) -> String {
    let run = |arguments: &[&str]| {
        let mut command = home.command(arguments);
        command.envs(store.map(|url| ("POSTRIDER_STORE", url)));
        command.output().expect("it ends")
    };
    run(&["config", "set", "max_payload_bytes=1024"]);
    run(&["send", "shop", "1", "--idempotency-key", "taken"]);
    let mut told_of = Vec::new();
    let mut sent = 1;
    for (what, bad) in refusals() {
        let bad = bad.replace("TOO LARGE", &"x".repeat(2000));
        write(home, &format!("{}{bad}\n{}", lines(1..=1500), lines(1502..=1504)));
        let before = summary(&run(&["status", "--json"]))["pending"].as_u64().expect("a number");
        assert_eq!(before, sent);
        let output = run(&["send", "--batch", "orders.ndjson"]);
        told_of.push(format!("# {what}\n{}", told(&output)));
        sent += 1500;
        write(home, &lines(1..=1504));
        let rest = run(&["send", "--batch", "orders.ndjson", "--skip", "1500", "--json"]);
        assert_eq!(summary(&rest), json!({ "lines": 1504, "sent": 4, "duplicates": 0 }), "{what}");
        sent += 4;
    }
    told_of.join("\n\n")
}

#[test]
fn at_a_bad_line_it_stops_and_says_how_to_go_on() {
    let home = with_endpoint();
    insta::assert_snapshot!("a_bad_line", stops_at_a_bad_line(&home, None));
}

#[test]
fn on_postgresql_it_stops_at_the_same_lines() {
    let server = Postgres::start().expect("a server of its own");
    let home = Home::new();
    let run = |arguments: &[&str]| {
        let output = home.command(arguments).env("POSTRIDER_STORE", server.url()).output().expect("it ends");
        assert!(output.status.success(), "{}", told(&output));
    };
    run(&["migrate"]);
    run(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    insta::assert_snapshot!("a_bad_line", stops_at_a_bad_line(&home, Some(&server.url())));
}

#[test]
fn a_full_queue_stops_it_between_two_transactions() {
    let home = with_endpoint();
    home.json(&["config", "set", "max_queue_size=50", "max_batch_messages=20"]);
    write(&home, &lines(1..=100));
    let output = batch(&home, &["--json"]);
    assert_eq!(output.status.code(), Some(4), "{}", told(&output));
    let lines = summary(&output)["lines"].as_u64().expect("a number");
    assert!((1..=50).contains(&lines), "{}", told(&output));
    assert_eq!(pending(&home), lines, "what is said to be sent is sent, and nothing else");
    let said: Value = serde_json::from_slice(&output.stderr).expect("JSON");
    assert_eq!(said["sqlstate"], "53400");
    assert!(said["hint"].as_str().expect("a hint").contains(&format!("--skip {lines} continues")), "{said}");
    home.json(&["config", "set", "max_queue_size=0"]);
    let rest = batch(&home, &["--json", "--skip", &lines.to_string()]);
    assert_eq!(summary(&rest)["sent"], 100 - lines);
    assert_eq!(pending(&home), 100);
}

#[test]
fn idempotency_keys_make_it_safe_to_send_a_file_again() {
    let home = with_endpoint();
    let keyed = |order: u64| json!({ "endpoint": "shop", "payload": order, "options": { "idempotency_key": order.to_string() } });
    write(&home, &format!("{}\n{}\n", keyed(1), keyed(2)));
    batch(&home, &[]);
    write(&home, &format!("{}\n{}\n{}\n", keyed(1), keyed(2), keyed(3)));
    let output = batch(&home, &[]);
    let said = told(&output);
    assert!(said.contains("1 message is queued; of 2 the idempotency key was there already"), "{said}");
}

#[test]
fn what_makes_no_batch_is_refused() {
    let home = with_endpoint();
    write(&home, &lines(1..=3));
    let cases: [&[&str]; 6] = [
        &["send"],
        &["send", "--batch", "missing.ndjson"],
        &["send", "--batch", "."],
        &["send", "--batch", "orders.ndjson", "--skip", "4"],
        &["send", "shop", "{}", "--skip", "4"],
        &["send", "shop", "--batch", "orders.ndjson", "--priority", "3"],
    ];
    let text: Vec<String> = cases
        .iter()
        .map(|command| format!("$ postrider {}\n{}", command.join(" "), told(&home.run(command))))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"));
    let options = [
        "{}",
        "--content-type=text/plain",
        "--event-type=a",
        "--header=a=b",
        "--priority=3",
        "--scheduled-at=+1h",
        "--expires-at=+1h",
        "--idempotency-key=k",
        "--correlation-id=a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "--ordering-key=k",
        "--options={}",
    ];
    for option in options {
        assert_eq!(batch(&home, &[option]).status.code(), Some(2), "{option} is not ignored");
    }
    assert_eq!(pending(&home), 0);
}

#[test]
fn on_a_terminal_it_shows_how_far_it_is() {
    let home = with_endpoint();
    write(&home, &lines(1..=20_000));
    let mut terminal = Terminal::start(&home, &["send", "--batch", "orders.ndjson"]);
    terminal.until_shown("20000 messages are queued");
    let ended = terminal.end();
    assert!(ended.code == Some(0) && ended.restored, "{}", ended.screen);
    assert!(ended.wrote.contains(" KiB of "), "{}", ended.wrote);
}
