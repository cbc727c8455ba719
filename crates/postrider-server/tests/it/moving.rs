//! From SQLite to PostgreSQL with the real binary: nodes are killed, files are damaged, disks are full.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::store::sqlite::SqliteOptions;
use postrider::{NewMessage, Operate, SqliteStore};
use serde_json::{Value, json};
use test_servers::postgres::Postgres;

use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::{Received, Receiver};

const MESSAGES: usize = 200;
const KEYS: usize = 8;
const MANY: usize = 5000;
const PATIENCE: Duration = Duration::from_secs(60);

fn file(home: &Home) -> String {
    home.path().join("away.jsonl").display().to_string()
}

/// A server with the schema, and its address.
fn server(home: &Home) -> (Postgres, String) {
    let server = Postgres::start().expect("a server of its own");
    let url = server.url().to_owned();
    home.json(&["migrate", "--store", &url]);
    (server, url)
}

/// A store with a paused endpoint and this many messages.
fn filled(messages: usize) -> Home {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    home.json(&["endpoint", "pause", "shop"]);
    (0..messages).for_each(|n| drop(home.json(&["send", "shop", &n.to_string()])));
    home
}

/// The store as a library sees it, beside the program.
fn tool(home: &Home) -> SqliteStore {
    SqliteStore::open(SqliteOptions::tool(home.store_file())).expect("the store")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// One request as it arrived.
struct Arrival {
    id: String,
    attempt: u32,
    number: usize,
    accepted: bool,
}

/// Never answered before the move. Only two: they keep rooms from the others.
fn is_held(number: usize) -> bool {
    number % 100 == 7
}

#[derive(Default)]
struct World {
    arrivals: Mutex<Vec<Arrival>>,
    moved: AtomicBool,
}

impl World {
    /// Before the move a third fails at first, some are never answered, and half are enough; a few are refused for good
    /// at any time.
    fn receive(&self, received: &Received) -> Option<u16> {
        let number: usize = String::from_utf8_lossy(&received.body).parse().expect("a number");
        let attempt: u32 = received.header("postrider-attempt").parse().expect("an attempt");
        let moved = self.moved.load(Ordering::SeqCst);
        let mut arrivals = self.arrivals.lock().expect("nobody panics");
        let enough = arrivals.iter().filter(|arrival| arrival.accepted).count() == MESSAGES / 2;
        let status = match number % 20 {
            13 => 400,
            _ if !moved && is_held(number) => 0,
            // Too early: the receiver is not overloaded, so its rooms stay.
            _ if !moved && (enough || (number.is_multiple_of(3) && attempt == 1)) => 425,
            _ => 200,
        };
        let id = received.header("webhook-id").to_owned();
        arrivals.push(Arrival { id, attempt, number, accepted: status == 200 });
        drop(arrivals);
        if status == 0 {
            // Its node is killed in the meantime.
            eventually(PATIENCE, "the store moves", || self.moved.load(Ordering::SeqCst).then_some(()));
            return None;
        }
        Some(status)
    }

    fn accepted(&self) -> usize {
        self.arrivals.lock().expect("nobody panics").iter().filter(|arrival| arrival.accepted).count()
    }
}

fn send_all(node: &Node) -> Vec<i64> {
    (0..MESSAGES)
        .map(|n| {
            let key = format!("k{}", n % KEYS);
            let keyed = [("postrider-ordering-key", key.as_str())];
            node.send("shop", if n % 2 == 0 { &keyed } else { &[] }, &n.to_string())
        })
        .collect()
}

#[test]
fn every_message_is_accounted_for_when_its_node_is_killed_and_its_store_moves() {
    let world: Arc<World> = Arc::default();
    let seen = Arc::clone(&world);
    let receiver = Receiver::start(move |received| seen.receive(&received));
    let home = Home::new();
    home.json(&["migrate"]);
    // So many failures in a row may come about.
    runtime()
        .block_on(tool(&home).configure(vec![("circuit_breaker_threshold".into(), "1000".into())]))
        .expect("a setting");
    let node = home.start();
    node.create_endpoint(json!({
        "name": "shop", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "max_attempts": 1000, "backoff": "fixed", "base_delay_seconds": 0.2 },
    }));
    let ids = send_all(&node);
    let held = || world.arrivals.lock().expect("nobody panics").iter().filter(|a| is_held(a.number)).count();
    eventually(PATIENCE, "a good part is delivered", || {
        (world.accepted() > MESSAGES / 4 && held() == 2).then_some(())
    });
    node.kill();

    let exported = home.json(&["export", &file(&home)]);
    assert!(exported["rows"]["claims"].as_u64() > Some(0), "some were in flight: {exported}");
    let before = world.accepted();
    assert!(before <= MESSAGES / 2, "there is something left to do");
    let (server, url) = server(&home);
    let imported = home.json(&["import", &file(&home), "--store", &url]);
    assert_eq!((&imported["rows"], &imported["store"]), (&exported["rows"], &exported["store"]));
    world.moved.store(true, Ordering::SeqCst);
    let node = home.start_with(&["--allow-internal", "--store", &url]);
    let queued = || server.query("SELECT count(*) FROM postrider.queue").expect("a count").trim() == "0";
    eventually(PATIENCE, "everything is settled", || queued().then_some(()));

    let new = node.send("shop", &[], "1");
    assert_eq!(new, ids.iter().max().expect("many") + 1, "ids go on where they were");
    for (number, id) in ids.iter().enumerate() {
        let story = node.get(&format!("/v1/messages/{id}")).expect(200).json();
        let expected = if number % 20 == 13 { "dead" } else { "completed" };
        assert_eq!(story["state"], expected, "{story:#}");
    }
    check_arrivals(&world, &ids, exported["store"].as_str().expect("a name"));
}

fn check_arrivals(world: &World, ids: &[i64], store: &str) {
    let arrivals = world.arrivals.lock().expect("nobody panics");
    let mut attempts: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    let (mut delivered, mut last) = (HashSet::new(), HashMap::new());
    for arrival in arrivals.iter() {
        let number = arrival.number;
        if arrival.id != format!("msg_{store}_{}", ids[number]) {
            assert_eq!(arrival.id, format!("msg_{store}_{}", ids.len() + 1), "the one that was sent at last");
            continue;
        }
        attempts.entry(number).or_default().push(arrival.attempt);
        if arrival.accepted {
            delivered.insert(number);
        }
        if number % 2 == 0 {
            let before = last.insert(number % KEYS, number);
            assert!(before.is_none_or(|before| before <= number), "{number} was started after {before:?}");
        }
    }
    for number in 0..ids.len() {
        let attempts = &attempts[&number];
        assert_eq!(delivered.contains(&number), number % 20 != 13, "{number}: {attempts:?}");
        // An attempt may be claimed and never arrive, but none has the number of another.
        assert!(attempts.windows(2).all(|pair| pair[0] < pair[1]), "{number}: {attempts:?}");
        let counted: Vec<u32> = (1..=attempts.len() as u32).collect();
        assert!(!is_held(number) || (attempts.len() > 1 && *attempts == counted), "{number}: {attempts:?}");
    }
}

/// Enough for several batches of rows.
fn send_many(home: &Home) {
    let messages = (0..MANY).map(|n| NewMessage::new("shop", n.to_string())).collect();
    runtime().block_on(tool(home).send_batch(messages)).expect("they are sent");
}

#[test]
fn an_import_that_is_killed_leaves_nothing_behind() {
    let home = filled(0);
    send_many(&home);
    home.json(&["export", &file(&home)]);
    let stream = std::fs::read(file(&home)).expect("the export");
    let (server, url) = server(&home);
    let import = home.command(&["import", "-", "--store", &url]).stdin(Stdio::piped()).spawn();
    let mut import = import.expect("it starts");
    let mut stdin = import.stdin.take().expect("stdin");
    stdin.write_all(&stream[..stream.len() * 3 / 4]).expect("it reads");
    stdin.flush().expect("it reads");
    let copying = "SELECT count(*) FROM pg_stat_progress_copy
                   WHERE relid = 'postrider.queue'::regclass AND tuples_processed > 0";
    let is_copying = || server.query(copying).expect("a count").trim() != "0";
    eventually(PATIENCE, "the import is under way", || is_copying().then_some(()));
    import.kill().expect("it runs");
    import.wait().expect("it is ours");
    eventually(PATIENCE, "the server notices", || (!is_copying()).then_some(()));
    assert_eq!(home.json(&["status", "--store", &url])["endpoints"], json!([]));
    let imported = home.json(&["import", &file(&home), "--store", &url]);
    assert_eq!(imported["rows"]["messages"], MANY);
}

#[test]
fn a_store_goes_through_a_pipe() {
    let home = filled(3);
    let (_server, url) = server(&home);
    let binary = env!("CARGO_BIN_EXE_postrider");
    let pipe = format!("'{binary}' export - | '{binary}' import --json --store {url}");
    let output = home.shell(&pipe);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("3 queued messages"), "the export speaks on stderr: {}", said(&output));
    assert!(!said(&output).contains("Next:"), "what comes next is under way: {}", said(&output));
    let imported: Value = serde_json::from_slice(&output.stdout).expect("nothing but the answer of import");
    assert_eq!(imported["rows"]["messages"], 3);
}

#[test]
fn an_export_that_fails_leaves_the_store_as_it_was() {
    let home = filled(3);
    let output = home.shell(&format!("'{}' export - > /dev/full", env!("CARGO_BIN_EXE_postrider")));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("No space left"), "{}", said(&output));
    home.json(&["send", "shop", "4"]);
    let nowhere = home.run(&["export", "no/such/folder.jsonl"]);
    assert_eq!(nowhere.status.code(), Some(1), "{}", said(&nowhere));
    home.json(&["send", "shop", "5"]);
}

/// Into a pipe that nobody reads, so that it lasts until it is told to stop.
#[test]
fn an_export_that_is_interrupted_leaves_the_store_as_it_was() {
    let home = filled(0);
    send_many(&home);
    let export = home.command(&["export", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut export = export.expect("it starts");
    let is_closed = || home.run(&["send", "shop", "{}"]).status.code() == Some(4);
    eventually(PATIENCE, "the export begins", || is_closed().then_some(()));
    assert!(home.shell(&format!("kill -INT {}", export.id())).status.success());
    let output = eventually(PATIENCE, "it ends", || export.try_wait().expect("it is ours"));
    assert_eq!(output.code(), Some(1));
    home.json(&["send", "shop", "{}"]);
}

#[test]
fn an_export_is_its_owners_and_never_replaces_a_file() {
    let home = filled(1);
    home.json(&["export", &file(&home)]);
    let mode = std::fs::metadata(file(&home)).expect("the export").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it holds secrets");
    let before = std::fs::read(file(&home)).expect("the export");
    let again = home.run(&["export", &file(&home)]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert_eq!(std::fs::read(file(&home)).expect("the export"), before);
    let beside_the_store = || {
        let files =
            std::fs::read_dir(home.path()).expect("the folder").map(|file| file.expect("a file").file_name());
        files.filter(|name| !name.to_string_lossy().starts_with("postrider.db")).count()
    };
    let files = beside_the_store();
    home.run(&["export", "another.jsonl"]);
    assert_eq!(beside_the_store(), files + 1, "and nothing else");
}

#[test]
fn a_running_node_has_to_stop_before_its_store_is_exported() {
    let home = Home::new();
    let node = home.start();
    let output = home.run(&["export", &file(&home)]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("another node is running on postrider.db"), "{}", said(&output));
    assert!(!home.path().join("away.jsonl").exists());
    node.create_endpoint(
        json!({ "name": "shop", "protocol": "http", "config": { "url": "https://example.org/" } }),
    );
}

#[test]
fn each_step_says_what_comes_next() {
    let home = filled(2);
    let (_server, url) = server(&home);
    let steps: [&[&str]; 9] = [
        &["export", "away.jsonl"],
        &["send", "shop", "{}"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["status"],
        &["import", "away.jsonl", "--store", &url],
        &["import", "away.jsonl", "--store", &url, "--json"],
        &["export", "--reopen"],
        &["export", "--reopen"],
        &["export", "trial.jsonl", "--leave-open"],
    ];
    let name = home.json(&["status"])["store"].as_str().expect("a name").to_owned();
    let text: Vec<String> = steps
        .iter()
        .map(|step| format!("$ postrider {}\n{}", step.join(" "), crate::cli::told(&home.run(step))))
        .collect();
    let text = text.join("\n\n").replace(&url, "postgres://…").replace(&name, "NAME");
    insta::assert_snapshot!(text.lines().map(without_age).collect::<Vec<_>>().join("\n"));
}

/// How long something waits is different every time.
fn without_age(line: &str) -> String {
    match line.split_once("; the oldest waits") {
        Some((rest, _)) => rest.to_owned(),
        None if line.starts_with(" shop ") => {
            line.trim_end_matches(|c: char| c.is_ascii_digit() || c == 's').to_owned()
        }
        None => line.to_owned(),
    }
}
