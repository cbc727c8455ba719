//! Lists of messages, settings, signatures and completions, as people meet them on the command line.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use test_servers::postgres::Postgres;

use crate::cli::told;
use crate::node::Home;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn transcript(home: &Home, commands: &[&[&str]]) -> String {
    let text = commands
        .iter()
        .map(|command| format!("$ postrider {}\n{}", command.join(" "), told(&home.run(command))));
    text.collect::<Vec<_>>().join("\n\n")
}

/// Seven messages to two endpoints that are paused.
fn with_messages(store: &[&str]) -> Home {
    let home = Home::new();
    let run = |arguments: &[&str]| home.json(&[arguments, store].concat());
    run(&["migrate"]);
    for name in ["shop", "till"] {
        run(&["endpoint", "create", name, "http", "--url", "https://example.org/hook"]);
        run(&["endpoint", "pause", name]);
    }
    for _ in 0..3 {
        run(&["send", "shop", "{}"]);
    }
    run(&["send", "till", "{}", "--ordering-key", "k", "--event-type", "order.paid"]);
    let id = "1c0a7e5e-3f0b-4a55-9a52-0f4b6f3b9a11";
    run(&["send", "till", "{}", "--correlation-id", id]);
    let cancelled = run(&["send", "till", "{}"])["id"].to_string();
    run(&["message", "cancel", &cancelled]);
    run(&["send", "shop", "{}", "--event-type", "order.paid"]);
    home
}

/// What lists show, as places in the order of sending: ids differ between stores.
fn lists_by_filter(store: &[&str]) {
    let home = with_messages(store);
    let run = |arguments: &[&str]| home.json(&[&["message", "list"], arguments, store].concat());
    let all: Vec<i64> = ids(&run(&[]));
    assert_eq!(all.len(), 7);
    assert!(all.is_sorted_by(|a, b| a > b), "newest first: {all:?}");
    let places = |arguments: &[&str]| -> Vec<usize> {
        let place = |id| 7 - all.iter().position(|known| *known == id).expect("one of them");
        ids(&run(arguments)).into_iter().map(place).collect()
    };
    assert_eq!(places(&["--state", "cancelled"]), [6]);
    assert_eq!(places(&["--endpoint", "till", "--state", "pending"]), [5, 4]);
    assert_eq!(places(&["--ordering-key", "k"]), [4]);
    assert_eq!(places(&["--event-type", "order.paid"]), [7, 4]);
    assert_eq!(places(&["--correlation-id", "1c0a7e5e-3f0b-4a55-9a52-0f4b6f3b9a11"]), [5]);
    assert_eq!(places(&["--created-after", "-1h", "--endpoint", "shop"]), [7, 3, 2, 1]);
    assert_eq!(places(&["--created-before", "-1h"]), [0; 0]);
    let first = run(&["--limit", "5"]);
    assert_eq!(first["next"], all[4], "where to go on");
    let rest = run(&["--before", &first["next"].to_string()]);
    assert_eq!((ids(&rest), &rest["next"]), (all[5..].to_vec(), &Value::Null));
}

fn ids(list: &Value) -> Vec<i64> {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| item["id"].as_i64().expect("an id")).collect()
}

#[test]
fn messages_are_listed_by_filter() {
    lists_by_filter(&[]);
}

#[test]
fn messages_are_listed_by_filter_on_postgresql() {
    let server = Postgres::start().expect("a server of its own");
    lists_by_filter(&["--store", &server.url()]);
}

#[test]
fn a_list_goes_on_past_pages_in_which_nothing_matches() {
    let home = Home::new();
    let node = home.start();
    for name in ["rare", "common"] {
        let config = json!({ "url": "https://example.org/hook" });
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": config }));
        home.json(&["endpoint", "pause", name]);
    }
    let rare = node.send("rare", &[], "{}");
    let line = "{\"endpoint\":\"common\",\"payload\":{}}\n";
    let headers = [("content-type", "application/x-ndjson")];
    for _ in 0..2 {
        node.post("/v1/messages:batch", &headers, line.repeat(8_000).as_bytes()).expect(202);
    }
    let page = node.get("/v1/messages?endpoint=rare").expect(200).json();
    assert_eq!(page["items"], json!([]), "one page does not get there");
    assert_eq!(ids(&home.json(&["message", "list", "--endpoint", "rare"])), [rare]);
    assert_eq!(ids(&home.json(&["message", "list", "--limit", "2500"])).len(), 2_500);
}

#[test]
fn a_list_reads_well_and_says_what_it_cannot_read() {
    let home = with_messages(&[]);
    let commands: [&[&str]; 6] = [
        &["message", "list", "--help"],
        &["message", "list", "--endpoint", "till"],
        &["message", "list", "--limit", "1"],
        &["message", "list", "--endpoint", "nobody"],
        &["message", "list", "--state", "asleep"],
        &["message", "list", "--created-after", "1h", "--json"],
    ];
    let ages = |line: &str| line.replace(" 1s ", " 0s ").replace(" 2s ", " 0s ").replace(" 3s ", " 0s ");
    insta::assert_snapshot!(ages(&transcript(&home, &commands)));
}

#[test]
fn settings_are_shown_and_changed() {
    let home = Home::new();
    home.json(&["migrate"]);
    let commands: [&[&str]; 14] = [
        &["config", "--help"],
        &["config", "list"],
        &["config", "get", "retry_max_delay"],
        &["config", "get", "retry_max_delay", "--json"],
        &["config", "set", "retry_base_delay=5", "archive=metadata"],
        &["config", "set", "retry_base_delay=6", "--json"],
        &["config", "set", "retry_base_delay=7", "node_lease=4"],
        &["config", "get", "retry_base_delay"],
        &["config", "set", "retry_base_dealy=7"],
        &["config", "set", "retry_base_delay=7", "retry_base_delay=8"],
        &["config", "set", "retry_base_delay"],
        &["config", "set"],
        &["config", "get", "colour"],
        &["config", "get", "colour", "--json"],
    ];
    insta::assert_snapshot!(transcript(&home, &commands));
    let listed = home.json(&["config", "list"]);
    let find = |name: &str| {
        let items = listed["items"].as_array().expect("items");
        items.iter().find(|item| item["name"] == name).cloned().expect("a setting")
    };
    assert_eq!(
        find("retry_base_delay"),
        json!({ "name": "retry_base_delay", "value": 6, "default": 10, "unit": "s",
            "meaning": "delay before the first retry", "min": 1, "max": 3600 })
    );
    assert_eq!(find("archive")["choices"], json!(["on", "metadata", "off"]));
    assert_eq!(find("archive")["value"], "metadata");
}

#[test]
fn settings_are_changed_on_postgresql_all_or_none() {
    let server = Postgres::start().expect("a server of its own");
    let home = Home::new();
    let url = server.url();
    let store = ["--store", &url];
    home.json(&[&["migrate"], &store[..]].concat());
    let get = || home.json(&[&["config", "get", "node_lease"], &store[..]].concat());
    home.json(&[&["config", "set", "node_lease=20"], &store[..]].concat());
    let refused = home.run(&[&["config", "set", "node_lease=30", "max_key_bytes=0"], &store[..]].concat());
    assert_eq!(refused.status.code(), Some(4));
    assert_eq!(get(), json!({ "node_lease": 20 }));
}

/// With two secrets in the environment and one in a file.
fn signature(home: &Home, arguments: &[&str], body: &[u8]) -> std::process::Output {
    let mut command = home.command(&[&["signature"], arguments].concat());
    command.env("SHOP_SECRET", SECRET).env("BAD_SECRET", "whsec_hushhush");
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    // One that refuses its arguments does not read.
    let _ = child.stdin.take().expect("stdin").write_all(body);
    child.wait_with_output().expect("it ends")
}

/// The example of the specification.
const SIGN: [&str; 7] = [
    "sign",
    "--id",
    "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "--timestamp",
    "1614265330",
    "--secret-env",
    "SHOP_SECRET",
];
const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
const BODY: &[u8] = br#"{"test": 2432232314}"#;

#[test]
fn what_is_signed_is_what_the_specification_says() {
    let home = Home::new();
    std::fs::write(home.path().join("secret"), format!("{SECRET}\n")).expect("a file");
    let signed = |arguments: &[&str]| {
        let output = signature(&home, &[arguments, &["--json"]].concat(), BODY);
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["webhook-signature"].clone()
    };
    assert_eq!(signed(&SIGN), SIGNATURE);
    assert_eq!(signed(&[&SIGN[..5], &["--secret-file", "secret"]].concat()), SIGNATURE);
    let both = format!("{SIGNATURE} {SIGNATURE}");
    assert_eq!(signed(&[&SIGN[..], &["--secret-file", "secret"]].concat()), both, "every secret signs");
}

#[test]
fn a_signature_that_does_not_fit_is_told_why() {
    let home = Home::new();
    let verify = [&["verify"], &SIGN[1..], &["--signature", SIGNATURE]].concat();
    let with = |place: usize, value: &'static str| {
        let mut changed = verify.clone();
        changed[place] = value;
        changed
    };
    let key = "whsk_TUlJQ1pJTUVPUERFUktFWUZPUkVEMjU1MTlURVNUUyE=";
    std::fs::write(home.path().join("asymmetric"), key).expect("a file");
    let ago = |text: String| {
        let word = |word: &str| match word.parse::<u64>() {
            Ok(seconds) if (100_000_000..1_000_000_000).contains(&seconds) => "N".to_owned(),
            _ => word.to_owned(),
        };
        text.split(' ').map(word).collect::<Vec<_>>().join(" ")
    };
    let cases: [(Vec<&str>, &[u8]); 13] = [
        (SIGN.to_vec(), BODY),
        (verify.clone(), BODY),
        ([&verify[..], &["--tolerance", "5m"]].concat(), BODY),
        ([&verify[..], &["--tolerance", "soon"]].concat(), BODY),
        (verify.clone(), b"{\"test\": 2432232314}\n"),
        (verify.clone(), b"{\"test\":2432232314}"),
        (with(2, "msg_other"), BODY),
        (with(8, "sha256=abcdef"), BODY),
        (with(6, "NO_SECRET"), BODY),
        (with(6, "BAD_SECRET"), BODY),
        ([&verify[..5], &["--secret-file", "asymmetric", "--signature", SIGNATURE]].concat(), BODY),
        (verify[..5].to_vec(), BODY),
        (vec!["sign", "--id", "x", "--secret-file", "missing"], BODY),
    ];
    let text = cases.map(|(arguments, body)| {
        let told = ago(told(&signature(&home, &arguments, body)));
        format!("$ postrider signature {}\n{told}", arguments.join(" "))
    });
    let text = text.join("\n\n");
    assert!(!text.contains("hushhush"), "a secret is never repeated");
    insta::assert_snapshot!(text);
}

#[test]
fn what_an_asymmetric_key_signs_its_own_key_verifies() {
    let home = Home::new();
    let key = "whsk_TUlJQ1pJTUVPUERFUktFWUZPUkVEMjU1MTlURVNUUyE=";
    std::fs::write(home.path().join("key"), key).expect("a file");
    let secret = ["--id", "msg_1", "--secret-file", "key"];
    let signed = signature(&home, &[&["sign", "--json"], &secret[..]].concat(), BODY);
    let signed: Value = serde_json::from_slice(&signed.stdout).expect("JSON");
    let header = |name: &str| signed[name].as_str().expect("a header").to_owned();
    let (timestamp, fits) = (header("webhook-timestamp"), header("webhook-signature"));
    assert!(fits.starts_with("v1a,"), "{fits}");
    let rest = ["--timestamp", &timestamp, "--signature", &fits, "--tolerance", "5m"];
    let verify = [&["verify"], &secret[..], &rest].concat();
    assert_eq!(signature(&home, &verify, BODY).status.code(), Some(0));
    assert_eq!(signature(&home, &verify, b"{}").status.code(), Some(1));
}

/// What the program answers a shell that asks how the last of these words may go on.
fn completed(home: &Home, shell: &str, words: &[&str]) -> Vec<String> {
    let mut asked = home.command(&[&["--", "postrider"], words].concat());
    asked.env("POSTRIDER_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    let output = asked.output().expect("the binary runs");
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).expect("text");
    // Some shells get a description, too.
    lines.lines().filter_map(|line| line.split(['\t', ':']).next()).map(str::to_owned).collect()
}

#[test]
fn every_shell_gets_completions_for_every_command() {
    let home = Home::new();
    let help = String::from_utf8(home.run(&["--help"]).stdout).expect("text");
    let commands = help.split("Commands:").nth(1).expect("commands").split("\n\n").next().expect("a list");
    let names: BTreeSet<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains("tail") && names.contains("config"), "{names:?}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = home.run(&["completions", shell]);
        let script = String::from_utf8(script.stdout).expect("text");
        assert!(script.contains("POSTRIDER_COMPLETE") && script.contains(shell), "{script}");
        let offered = completed(&home, shell, &[""]);
        for name in &names {
            assert!(offered.iter().any(|offer| offer == name), "{shell} knows nothing of {name}: {offered:?}");
        }
        assert!(!offered.iter().any(|offer| offer == "bench-receiver"), "{shell} knows what is not for people");
        assert_eq!(completed(&home, shell, &["message", "list", "--created-a"]), ["--created-after"], "{shell}");
    }
}

#[test]
fn protocols_and_their_keys_are_completed() {
    let home = Home::new();
    let offered = |words: &[&str]| completed(&home, "bash", &[&["endpoint"], words].concat());
    let protocols = offered(&["create", "shop", ""]);
    for protocol in ["http", "file", "mqtt", "redis", "nats", "amqp", "kafka"] {
        assert!(protocols.iter().any(|offer| offer == protocol), "{protocols:?}");
        let keys = offered(&["create", "redis", protocol, "--set", ""]);
        let is_key = |key: &str| keys.iter().any(|offer| offer == key);
        assert!(is_key("timeout="), "{protocol}: {keys:?}");
        assert_eq!(is_key("stream_key="), protocol == "redis", "{protocol}: {keys:?}");
        assert_eq!(is_key("brokers="), protocol == "kafka", "{protocol}: {keys:?}");
        assert!(!is_key("max_attempts="), "messages have it, not endpoints");
    }
    assert_eq!(offered(&["create", "shop", "http", "--set", "auth.t"]), ["auth.type=", "auth.token=", "auth.token_url="]);
    assert_eq!(offered(&["create", "shop", "kafka", "--set", "brokers=", "--set", "head"]), ["headers."]);
    assert_eq!(offered(&["alter", "shop", "--set", "stream"]), ["stream_key="], "whatever its protocol is");
}

#[test]
fn bash_completes_commands_and_keys() {
    let home = Home::new();
    let binaries = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().expect("a folder");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    for (line, completed) in [
        ("postrider conf", "config"),
        ("postrider endpoint create shop kaf", "kafka"),
        ("postrider endpoint create shop kafka --set brokers = b --set to", "topic="),
    ] {
        let last = line.rsplit(' ').next().expect("a word");
        let ask = format!(
            "source <(postrider completions bash); COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _clap_complete_postrider postrider {last} x; echo \"${{COMPREPLY[@]}}\""
        );
        let output = home.program("bash").args(["--norc", "-c", &ask]).env("PATH", &path).output();
        let output = output.expect("bash runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), completed, "{output:?}");
    }
}
