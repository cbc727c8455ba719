//! The command line: help that reads well, answers for people and programs, exit codes.

use std::io::Write;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use crate::node::Home;
use crate::terminal::Terminal;

pub(crate) fn told(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let code = output.status.code().map_or("signal".to_owned(), |code| code.to_string());
    format!("exit {code}\n--- stdout\n{}\n--- stderr\n{}", text(&output.stdout), text(&output.stderr))
}

fn with_endpoint() -> Home {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    home
}

#[test]
fn help_reads_well() {
    let home = Home::new();
    let commands: [&[&str]; 11] = [
        &["--help"],
        &["serve", "--help"],
        &["send", "--help"],
        &["publish", "--help"],
        &["event", "--help"],
        &["endpoint", "--help"],
        &["endpoint", "create", "--help"],
        &["demo", "--help"],
        &["bench", "--help"],
        &["export", "--help"],
        &["import", "--help"],
    ];
    let text: Vec<String> = commands
        .iter()
        .map(|command| format!("$ postrider {}\n{}", command.join(" "), told(&home.run(command))))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn errors_say_what_to_do_and_exit_codes_say_which_kind() {
    let empty = Home::new();
    let home = with_endpoint();
    let cases: [(&Home, &[&str]); 25] = [
        (&home, &["frobnicate"]),
        (&home, &["send", "shop", "{}", "--json", "--nope"]),
        (&empty, &["status"]),
        (&empty, &["status", "--json"]),
        (&home, &["send", "nowhere", "{}"]),
        (&home, &["send", "nowhere", "{}", "--json"]),
        (&home, &["send", "shop", "{oops"]),
        (&home, &["send", "shop", "{}", "--priority", "11"]),
        (&home, &["send", "shop", "{}", "--scheduled-at", "5m"]),
        (&home, &["send", "shop", "{}", "--header", "x=1", "--header", "x=2"]),
        (&home, &["send", "shop", "@missing.json"]),
        (&home, &["endpoint", "create", "shop", "http", "--url", "https://example.org/"]),
        (&home, &["endpoint", "create", "till", "http"]),
        (&home, &["endpoint", "alter", "shop"]),
        (&home, &["send", "shop", "1\n2\n3"]),
        (&home, &["send", "shop", ""]),
        (&home, &["message", "show", "abc"]),
        (&home, &["endpoint", "drop", "nowhere"]),
        (&home, &["status", "--store", "postgres://localhost:1/x"]),
        (&empty, &["export", "away.jsonl"]),
        (&home, &["export", "away.jsonl", "--store", "postgres://localhost:1/x"]),
        (&home, &["export", "away.jsonl", "--reopen"]),
        (&home, &["import", "away.jsonl", "--store", "postgres://localhost:1/x"]),
        (&home, &["import", "Cargo.toml"]),
        (&home, &["import"]),
    ];
    let text: Vec<String> = cases
        .iter()
        .map(|(home, command)| format!("$ postrider {}\n{}", command.join(" "), told(&home.run(command))))
        .collect();
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn a_mistyped_store_is_not_created() {
    let home = Home::new();
    assert_eq!(home.run(&["status"]).status.code(), Some(3));
    assert!(!home.store_file().exists());
}

#[test]
fn a_store_that_cannot_be_says_why() {
    let home = Home::new();
    let said = |store: &str| told(&home.run(&["migrate", "--store", store]));
    for nothing in ["postgres://", "postgresql://", "postgres:///shop", "postgres://shop@"] {
        let said = said(nothing);
        assert!(said.contains("exit 2") && said.contains("names no host"), "{nothing}: {said}");
    }
    let elsewhere = "sqlite:no/such/folder/shop.db";
    for missing in [said(elsewhere), told(&home.run(&["status", "--store", elsewhere]))] {
        assert!(missing.contains("exit 3") && missing.contains("no/such/folder does not exist"), "{missing}");
        assert!(!missing.contains("create one"), "{missing}");
    }
    let folder = said("sqlite:.");
    assert!(folder.contains("exit 3") && folder.contains("is a folder"), "{folder}");
    std::fs::write(home.store_file().with_file_name("file"), "").expect("a file");
    let below_file = said("sqlite:file/shop.db");
    assert!(below_file.contains("exit 3") && below_file.contains("file is not a folder"), "{below_file}");
}

#[test]
fn what_still_keeps_an_endpoint_from_delivering_is_said() {
    let home = with_endpoint();
    home.json(&["endpoint", "pause", "shop"]);
    home.json(&["endpoint", "disable", "shop"]);
    let said = told(&home.run(&["endpoint", "resume", "shop"]));
    assert!(said.contains("is resumed; it is still disabled: `postrider endpoint enable shop`"), "{said}");
    home.json(&["endpoint", "pause", "shop"]);
    let said = told(&home.run(&["endpoint", "enable", "shop"]));
    assert!(said.contains("is enabled; it is still paused: `postrider endpoint resume shop`"), "{said}");
    let delivers = home.json(&["endpoint", "resume", "shop"]);
    assert_eq!((&delivers["disabled_by"], &delivers["paused"]), (&Value::Null, &json!(false)));
}

#[test]
fn an_endpoint_goes_through_its_life() {
    let home = with_endpoint();
    let show = || home.json(&["endpoint", "show", "shop"]);
    home.json(&["endpoint", "pause", "shop"]);
    assert_eq!(show()["paused"], true);
    home.json(&["endpoint", "resume", "shop"]);
    home.json(&["endpoint", "disable", "shop"]);
    assert_eq!((&show()["enabled"], &show()["disabled_by"]), (&json!(false), &json!("operator")));
    home.json(&["endpoint", "enable", "shop"]);
    home.json(&["endpoint", "reset", "shop"]);
    home.json(&[
        "endpoint",
        "alter",
        "shop",
        "--endpoint-config",
        r#"{"url":"https://example.org/b","timeout":3}"#,
    ]);
    home.json(&[
        "endpoint",
        "alter",
        "shop",
        "--url",
        "https://example.org/c",
        "--retry-policy",
        r#"{"max_attempts":2}"#,
    ]);
    let altered = show();
    assert_eq!(
        altered["config"],
        json!({ "url": "https://example.org/c", "timeout": 3 }),
        "the timeout stays"
    );
    assert_eq!(altered["retry_policy"], json!({ "max_attempts": 2 }));
    home.json(&["send", "shop", "{}"]);
    assert_eq!(home.run(&["endpoint", "drop", "shop"]).status.code(), Some(4), "it has a message");
    home.json(&["endpoint", "drop", "shop", "--force"]);
    assert_eq!(home.json(&["endpoint", "list"])["items"], json!([]));
}

#[test]
fn an_endpoint_without_acknowledgements_says_so() {
    let home = Home::new();
    home.json(&["migrate"]);
    let node = home.start();
    let url = format!("http://{}", node.address);
    let nats = ["nats", "--set", "url=nats://127.0.0.1", "--set", "subject=a"];
    let seed = "nkey_seed=SUAHA33TORZGSZDFOIQHIZLTORZSA33ONR4SYIDON52CA43FMNZGK5HCCI";
    let core = ["--set", "jetstream=false", "--set", seed];
    let mqtt = ["mqtt", "--set", "broker=127.0.0.1", "--set", "topic=a"];
    let cases = [
        ("core", &nats[..], &core[..], Some("jetstream=false")),
        ("stream", &nats[..], &[][..], None),
        ("qos0", &mqtt[..], &["--set", "qos=0"][..], Some("qos=0")),
        ("qos1", &mqtt[..], &[][..], None),
    ];
    for (name, config, more, because) in cases {
        let said = told(&home.run(&[&["--url", &url, "endpoint", "create", name], config, more].concat()));
        let line = because.map(|because| format!("deliveries are unconfirmed: with {because} "));
        assert_eq!(said.contains("unconfirmed"), line.is_some(), "{said}");
        assert!(said.contains(&line.unwrap_or_default()), "{said}");
    }
    // Its config is hidden from a monitor, but not this.
    let monitor = home.json(&["token", "create", "monitor", "monitor"])["token"].clone();
    let ask = |arguments: &[&str]| {
        let mut command = home.command(&[arguments, &["--url", &url]].concat());
        told(&command.env("POSTRIDER_TOKEN", monitor.as_str().expect("a token")).output().expect("it runs"))
    };
    let (listed, own) = (ask(&["endpoint", "list"]), told(&home.run(&["endpoint", "list"])));
    for (name, _, _, because) in cases {
        let confirmed = format!("\"confirmed\": {}", because.is_none());
        assert!(ask(&["endpoint", "show", name]).contains(&confirmed), "{name}");
        assert_eq!(home.json(&["endpoint", "show", name])["confirmed"], because.is_none(), "{name}");
        for table in [&listed, &own] {
            let row = table.lines().find(|line| line.contains(name)).expect("a row");
            assert_eq!(row.contains(" (unconfirmed)"), because.is_some(), "{row}");
        }
    }
}

#[test]
fn a_payload_comes_from_the_line_a_file_or_stdin() {
    let home = with_endpoint();
    std::fs::write(home.path().join("order.json"), r#"{"from":"file"}"#).expect("a file");
    assert_eq!(home.json(&["send", "shop", r#"{"from":"line"}"#])["id"], 1);
    assert_eq!(home.json(&["send", "shop", "@order.json"])["id"], 2);
    for (id, arguments) in [(3, ["send", "shop", "-", "--json"].as_slice()), (4, &["send", "shop", "--json"])]
    {
        let mut child =
            home.command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        child.stdin.take().expect("stdin").write_all(br#"{"from":"stdin"}"#).expect("it reads");
        let answer: Value =
            serde_json::from_slice(&child.wait_with_output().expect("it ends").stdout).expect("JSON");
        assert_eq!(answer["id"], id);
    }
}

#[test]
fn who_sends_too_much_is_told_which_setting_says_so() {
    let home = with_endpoint();
    home.json(&["config", "set", "max_payload_bytes=1024"]);
    let said = told(&home.run(&["send", "shop", &format!("\"{}\"", "x".repeat(1023))]));
    assert!(said.contains("bytes; `postrider config set max_payload_bytes=N`"), "{said}");
}

#[test]
fn a_narrow_terminal_breaks_lines_between_words() {
    let home = with_endpoint();
    home.json(&["config", "set", "retry_max_delay=600"]);
    let binary = env!("CARGO_BIN_EXE_postrider");
    let shell = format!("stty cols 80; {binary} status; {binary} config list");
    let ended = Terminal::shell(&home, &shell, &[]).end();
    let wrote = console::strip_ansi_codes(&ended.wrote).into_owned();
    for whole in
        ["┆ processing ┆", "│ circuit_breaker_threshold ┆ 10 ", "┆ 1000000000000 ┆", "600 s (default"]
    {
        assert!(wrote.contains(whole), "{whole}\n{wrote}");
    }
    assert!(wrote.lines().all(|line| line.trim_end().chars().count() <= 80), "{wrote}");
}

#[test]
fn text_in_a_pipe_is_plain() {
    let home = with_endpoint();
    let mut text =
        vec![told(&home.run(&["send", "shop", "{}", "--scheduled-at", "+1h", "--idempotency-key", "k"]))];
    text.push(told(&home.run(&["send", "shop", "{}", "--idempotency-key", "k"])));
    text.push(told(&home.run(&["endpoint", "list"])));
    text.push(told(&home.run(&["endpoint", "pause", "shop"])));
    text.push(told(&home.run(&["status"])).replace(['0', '1', '2', '3', '4'], "#"));
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn the_time_when_a_message_is_due_is_told_while_it_lies_ahead() {
    let home = with_endpoint();
    for (id, flags, ahead) in [("1", ["--priority", "1"], false), ("2", ["--scheduled-at", "+1h"], true)] {
        home.json(&[&["send", "shop", "{}"][..], &flags].concat());
        assert_eq!(told(&home.run(&["message", "show", id])).contains("due at"), ahead, "{id}");
    }
}

#[test]
fn a_new_store_id_is_given_when_asked() {
    let home = Home::new();
    let first = home.json(&["migrate"]);
    let again = home.json(&["migrate"]);
    let renewed = home.json(&["migrate", "--new-store-id"]);
    assert_eq!((&first["created"], &again["created"]), (&json!(true), &json!(false)));
    assert_eq!(first["store"], again["store"]);
    assert_ne!(first["store"], renewed["store"]);
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure_and_a_token_nobody_saw_is_none() {
    let home = Home::new();
    home.json(&["migrate"]);
    let says = |arguments: &[&str]| {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a full disk");
        let output = home.command(arguments).stdout(full).stderr(Stdio::piped()).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    for answer in ["status", "--help", "--version"] {
        assert!(says(&[answer]).contains("cannot write the answer"), "{answer}");
    }
    let failure: Value = serde_json::from_str(&says(&["status", "--json"])).expect("JSON");
    assert_eq!(failure["exit_code"], 1);
    let said = says(&["token", "create", "a", "admin"]);
    assert!(said.contains("was revoked") && !said.contains("keep it"), "{said}");
    assert_eq!(home.json(&["token", "list"])["items"], json!([]));
    let mut unread = home.command(&["status"]).stdout(Stdio::piped()).spawn().expect("it starts");
    drop(unread.stdout.take());
    assert_eq!(unread.wait().expect("it ends").code(), Some(0), "a reader that went away");
}

#[test]
fn a_command_that_looks_leaves_a_file_without_a_store_as_it_is() {
    let home = Home::new();
    let file = home.store_file();
    rusqlite::Connection::open(&file).unwrap().execute_batch("CREATE TABLE orders (id INTEGER)").unwrap();
    let before = std::fs::read(&file).unwrap();
    for command in [&["status"][..], &["send", "shop", "{}"], &["export", "-"]] {
        let said = told(&home.run(command));
        assert!(said.contains("exit 3") && said.contains("has no store of Postrider"), "{command:?}: {said}");
        assert!(std::fs::read(&file).unwrap() == before, "{command:?}");
    }
    home.json(&["migrate"]);
    home.json(&["status"]);
}
