//! The examples in README.md and docs/ are run as they stand there.
//!
//! A block after `<!-- run -->` is run by sh, in a fresh folder with a running node, whose `--file-root` is `files`. `7171` stands for
//! its port, the usual port of a broker for that of a private one, and on a page with psql the node's store is a PostgreSQL
//! of its own. A block after `<!-- prints -->` is what the last one has to print; `…` stands for anything.

use std::path::{Path, PathBuf};
use std::process::Command;

use test_servers::brokers::{kafka, nats};
use test_servers::postgres::Postgres;
use test_servers::{BrokerKind, node_sqlite};

use crate::node::Home;
use crate::receiver::Receiver;

/// Stands for the address of that PostgreSQL.
const DATABASE: &str = "postgres://shop@localhost/shop";
/// Stands for an empty database beside it.
const NEW_DATABASE: &str = "postgres://shop@localhost/new";

/// Brokers that examples use: the command that shows what arrived, and the usual port of the broker.
const BROKERS: [(BrokerKind, &str, &str); 5] = [
    (BrokerKind::Redis, "redis-cli", "6379"),
    (BrokerKind::Mosquitto, "mosquitto_sub", "1883"),
    (BrokerKind::Nats, "python3", "4222"),
    (BrokerKind::RabbitMq, "amqp-consume", "5672"),
    (BrokerKind::Kafka, "kafka-console-consumer.sh", "9092"),
];

struct Example {
    line: usize,
    script: String,
    prints: Option<String>,
}

#[test]
fn the_examples_in_the_documentation_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md")];
    let folder = std::fs::read_dir(root.join("docs")).expect("the docs");
    files.extend(
        folder
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.extension().is_some_and(|e| e == "md")),
    );
    let mut count = 0;
    for file in files {
        count += run_all(&file);
    }
    assert!(count >= 5, "only {count} examples were found");
}

fn run_all(file: &PathBuf) -> usize {
    let page = std::fs::read_to_string(file).expect("a page");
    let examples = examples(&page);
    if examples.is_empty() {
        return 0;
    }
    let receiver = Receiver::start(|_| Some(200));
    let home = Home::new();
    let server = page_needs_a_server(&page).then(|| Postgres::start().expect("a server of its own"));
    let database = server.as_ref().map_or(String::new(), |server| server.url().to_owned());
    let new_database = server.as_ref().map_or(String::new(), new_database);
    let node = match &server {
        Some(_) => home.start_with(&["--allow-internal", "--migrate", "--store", &database]),
        None => {
            std::fs::create_dir(home.path().join("files")).expect("a folder");
            home.start_with(&["--allow-internal", "--file-root", "files"])
        }
    };
    let (modules, nats_client) = (node_sqlite::modules(), nats::client());
    let tools = home.path().join("kafka-tools");
    write_kafka_tools(&tools);
    let binaries = Path::new(env!("CARGO_BIN_EXE_postrider")).parent().expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{path}", binaries.display(), tools.display());
    let can_run = |example: &&Example| {
        let needs = |text: &str| example.script.contains(text);
        (modules.is_some() || !needs("node <<")) && (nats_client.is_some() || !needs("import asyncio, nats"))
    };
    for example in examples.iter().filter(can_run) {
        let Some(script) = with_broker(&example.script, &path) else { continue };
        let script = script
            .replace("127.0.0.1:7171", &node.address.to_string())
            .replace("http://127.0.0.1:9000/hook", &receiver.url())
            .replace(DATABASE, &database)
            .replace(NEW_DATABASE, &new_database);
        let at = format!("{}:{}\n{script}", file.display(), example.line);
        let output = Command::new("sh")
            .args(["-euc", &script])
            .current_dir(home.path())
            .env("PATH", &path)
            .env("NODE_PATH", modules.as_deref().unwrap_or(Path::new("")))
            .env("PYTHONPATH", nats_client.as_deref().unwrap_or(Path::new("")))
            .output()
            .expect("sh runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{at}\nfailed: {printed}{said}");
        if let Some(expected) = &example.prints {
            assert!(matches(expected, &printed), "{at}\nexpected:\n{expected}\nprinted:\n{printed}{said}");
        }
    }
    examples.len()
}

/// None where its broker or the broker's command is not installed.
fn with_broker(script: &str, path: &str) -> Option<String> {
    let uses = |(_, _, port): &&(BrokerKind, &str, &str)| script.contains(port);
    let Some((kind, command, port)) = BROKERS.iter().find(uses) else { return Some(script.to_owned()) };
    let found = Command::new("sh").args(["-c", &format!("command -v {command}")]).env("PATH", path).output();
    if !found.is_ok_and(|found| found.status.success()) {
        eprintln!("skipped: {command} is not installed");
        return None;
    }
    Some(script.replace(port, &kind.shared()?.plain.to_string()))
}

/// Under the names that they have in Kafka's own archive, which tests do not install.
fn write_kafka_tools(folder: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir(folder).expect("a folder");
    for (name, class) in [
        ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
        ("kafka-console-consumer.sh", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
    ] {
        let tool = kafka::tool(class);
        let arguments: Vec<String> = tool.get_args().map(|text| format!("'{}'", text.display())).collect();
        let script = format!("#!/bin/sh\nexec java {} \"$@\"\n", arguments.join(" "));
        let file = folder.join(name);
        std::fs::write(&file, script).expect("a script");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    }
}

fn new_database(server: &Postgres) -> String {
    server.query("CREATE DATABASE new").expect("a database");
    let url = server.url();
    let (address, _) = url.rsplit_once('/').expect("the name of a database");
    format!("{address}/new")
}

fn page_needs_a_server(page: &str) -> bool {
    page.contains(&format!("psql -qAt {DATABASE}"))
}

fn examples(page: &str) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let (run, prints) = (line.trim() == "<!-- run -->", line.trim() == "<!-- prints -->");
        if !run && !prints {
            continue;
        }
        let fence = lines.next().map(|(_, line)| line).unwrap_or_default();
        assert!(fence.starts_with("```"), "line {number}: a block has to follow");
        let body: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
        let body = body.join("\n");
        if run {
            examples.push(Example { line: number + 1, script: body, prints: None });
        } else {
            examples.last_mut().expect("something was run before").prints = Some(body);
        }
    }
    examples
}

/// White space counts as one blank, `…` as anything.
pub(crate) fn matches(expected: &str, printed: &str) -> bool {
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (expected, printed) = (squeeze(expected), squeeze(printed));
    let mut parts: Vec<&str> = expected.split('…').map(str::trim).collect();
    let last = parts.pop().unwrap_or_default();
    let Some((first, middle)) = parts.split_first() else {
        return printed == last;
    };
    let Some(rest) = printed.strip_prefix(first) else { return false };
    let rest = middle.iter().try_fold(rest, |rest, part| rest.find(part).map(|at| &rest[at + part.len()..]));
    rest.is_some_and(|rest| rest.ends_with(last))
}
