//! A node's beginning and end: what it refuses to start with, and how it stops.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use test_servers::postgres::Postgres;

use crate::node::{Home, NO_NODE_YET};
use crate::receiver::Receiver;

/// Runs `serve`, expects it to end by itself, and gives exit code and stderr.
fn refused(home: &Home, arguments: &[&str]) -> (Option<i32>, String) {
    let mut child = home
        .command(&[&["serve"], arguments].concat())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let status = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        child.try_wait().expect("it is ours")
    });
    child.kill().expect("it is ours");
    let output = child.wait_with_output().expect("it ended");
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    (status.unwrap_or_else(|| panic!("it did not end: {text}")).code(), text)
}

#[test]
fn a_signal_stops_it_cleanly() {
    for signal in ["TERM", "INT"] {
        let home = Home::new();
        let mut node = home.start();
        node.signal(signal);
        assert!(node.until_exit(Duration::from_secs(10)).success());
        let log = node.messages_logged();
        assert!(log.iter().any(|line| line.starts_with("Stopped")), "{log:?}");
    }
}

#[test]
fn a_clean_stop_waits_for_the_attempt_that_runs() {
    let receiver = Receiver::start(|_| {
        std::thread::sleep(Duration::from_millis(700));
        Some(200)
    });
    let home = Home::new();
    let mut node = home.start();
    node.create_endpoint(json!({ "name": "slow", "protocol": "http", "config": { "url": receiver.url() } }));
    let id = node.send("slow", &[], "{}");
    node.until(id, "processing");
    node.signal("TERM");
    assert!(node.until_exit(Duration::from_secs(15)).success());
    assert_eq!(home.start().until(id, "completed")["attempt_count"], 1);
}

#[test]
fn a_clean_stop_waits_for_no_one_who_does_not_finish_asking() {
    let home = Home::new();
    let mut node = home.start_with(&["--drain-timeout", "100s"]);
    let mut head = node.client();
    head.write(b"GET /liv").expect("it is read");
    let mut body = node.client();
    let host = node.address;
    let half = format!("POST /v1/endpoints HTTP/1.1\r\nhost: {host}\r\ncontent-length: 9\r\n\r\n{{");
    body.write(half.as_bytes()).expect("it is read");
    // Whoever asked after them was answered, so they are known.
    node.get("/livez").expect(200);
    node.signal("TERM");
    assert!(node.until_exit(Duration::from_secs(30)).success());
    for unfinished in [&mut head, &mut body] {
        assert!(unfinished.read().is_err(), "nothing was asked");
    }
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let receiver = Receiver::start(|_| {
        std::thread::sleep(Duration::from_secs(8));
        Some(200)
    });
    let home = Home::new();
    let mut node = home.start();
    node.create_endpoint(json!({ "name": "slow", "protocol": "http", "config": { "url": receiver.url() } }));
    let id = node.send("slow", &[], "{}");
    node.until(id, "processing");
    node.signal("TERM");
    let stopping = node.messages_logged();
    assert!(stopping.iter().any(|line| line == "Stopping"), "{stopping:?}");
    node.signal("TERM");
    assert_eq!(node.until_exit(Duration::from_secs(2)).code(), Some(130));
}

#[test]
fn one_file_has_one_node() {
    let home = Home::new();
    let _first = home.start();
    let (code, text) = refused(&home, &["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("another node is running on postrider.db"), "{text}");
}

#[test]
fn tools_work_beside_a_running_node() {
    let home = Home::new();
    let node = home.start();
    home.json(&["endpoint", "create", "shop", "http", "--url", "http://127.0.0.1:9/"]);
    home.json(&["endpoint", "pause", "shop"]);
    let sent = home.json(&["send", "shop", "{}"]);
    assert_eq!(node.get(&format!("/v1/messages/{}", sent["id"])).expect(200).json()["endpoint"], "shop");
    assert_eq!(home.json(&["status"])["pending"], 1);
}

#[test]
fn a_store_of_a_newer_version_is_left_alone() {
    let home = Home::new();
    home.json(&["migrate"]);
    let connection = rusqlite::Connection::open(home.store_file()).expect("the store's file");
    connection
        .execute("UPDATE _postrider_meta SET value = 99 WHERE name = 'schema_version'", [])
        .expect("the version");
    drop(connection);
    for arguments in [["--listen", "127.0.0.1:0"].as_slice(), &["--listen", "127.0.0.1:0", "--migrate"]] {
        let (code, text) = refused(&home, arguments);
        assert_eq!(code, Some(3), "{text}");
        assert!(text.contains("schema version 99, newer than this build's"), "{text}");
    }
}

#[test]
fn a_store_of_an_older_version_waits_for_a_migration() {
    let home = Home::new();
    home.json(&["migrate"]);
    let connection = rusqlite::Connection::open(home.store_file()).expect("the store's file");
    // Older than the first, which is the only one there is so far.
    connection
        .execute("UPDATE _postrider_meta SET value = -1 WHERE name = 'schema_version'", [])
        .expect("the version");
    let says = |text: &str| {
        assert!(text.contains("the store has schema version -1 and this build needs"), "{text}");
        assert!(text.contains("run `postrider migrate`, or start with --migrate"), "{text}");
    };
    let (code, text) = refused(&home, &["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(3), "{text}");
    says(&text);
    let status = home.run(&["status"]);
    assert_eq!(status.status.code(), Some(3));
    says(&String::from_utf8_lossy(&status.stderr));
    let version: i64 = connection
        .query_row("SELECT value FROM _postrider_meta WHERE name = 'schema_version'", [], |row| row.get(0))
        .expect("the version");
    assert_eq!(version, -1, "nothing was changed");
}

#[test]
fn nodes_that_start_at_once_on_a_new_database_make_one_store() {
    let server = Postgres::start().expect("a server of its own");
    let (home, url) = (Home::new(), server.url());
    let start = || home.start_with(&["--migrate", "--store", &url]);
    let nodes = std::thread::scope(|scope| {
        let starting = [scope.spawn(start), scope.spawn(start), scope.spawn(start)];
        starting.map(|node| node.join().expect("a node that is ready"))
    });
    let live = "SELECT count(*) FROM postrider.get_worker_status() WHERE state = 'live'";
    assert_eq!(server.query(live).expect("a count"), "3");
    drop(nodes);
    server.query("UPDATE postrider._store SET schema_version = 99").expect("a later version");
    let (code, why) = refused(&home, &["--store", &url]);
    assert!(
        code == Some(3) && why.contains("schema version 99") && why.contains("newer postrider"),
        "{code:?} {why}"
    );
}

#[test]
fn a_store_keeps_its_id_while_a_node_runs() {
    let home = Home::new();
    let node = home.start();
    let id = home.json(&["status"])["store"].clone();
    let renewed = home.run(&["migrate", "--new-store-id"]);
    let text = String::from_utf8_lossy(&renewed.stderr);
    assert_eq!(renewed.status.code(), Some(3), "{text}");
    assert!(text.contains("another node is running on postrider.db"), "{text}");
    assert_eq!(home.json(&["status"])["store"], id);
    home.json(&["migrate"]);
    node.kill();
    assert_ne!(home.json(&["migrate", "--new-store-id"])["store"], id);
}

#[test]
fn what_it_cannot_start_with_is_said_in_a_sentence() {
    let home = Home::new();
    std::fs::write(home.path().join("bad.toml"), "listen = '127.0.0.1:0'\nlisten_on = 'x'\n")
        .expect("a file");
    let cases: [&[&str]; 9] = [
        &["--listen", "0.0.0.0:7171"],
        &["--listen", "here"],
        &["--listen", ":7197"],
        &["--config", "bad.toml"],
        &["--config", "missing.toml"],
        &["--allow-net", "10.0.0.0/33"],
        &["--file-root", "nowhere"],
        &["--max-in-flight", "0"],
        &["--drain-timeout", "soon"],
    ];
    let mut text = String::new();
    for arguments in cases {
        let (code, said) = refused(&home, arguments);
        text.push_str(&format!("$ postrider serve {}\nexit {code:?}\n{said}\n\n", arguments.join(" ")));
    }
    insta::assert_snapshot!(text);
    assert!(!home.store_file().exists(), "nothing was created");
}

#[test]
fn flags_beat_environment_beats_file() {
    let home = Home::new();
    std::fs::write(home.path().join("p.toml"), "store = 'sqlite:file.db'\nlisten = '0.0.0.0:1'\n")
        .expect("a file");
    let started = |environment: &[(&str, &str)], arguments: &[&str]| {
        let mut command = home.command(&[&["serve", "--config", "p.toml"], arguments].concat());
        command.envs(environment.iter().copied());
        let output = command.output().expect("it ends");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(started(&[], &[]).contains("0.0.0.0:1 can be reached"), "the file is read");
    let text = started(&[("POSTRIDER_LISTEN", "0.0.0.0:2")], &[]);
    assert!(text.contains("0.0.0.0:2 can be reached"), "{text}");
    let text = started(&[("POSTRIDER_LISTEN", "0.0.0.0:2")], &["--listen", "0.0.0.0:3"]);
    assert!(text.contains("0.0.0.0:3 can be reached"), "{text}");
}

#[test]
fn a_variable_that_nothing_knows_is_told_and_no_other() {
    let known =
        [("POSTRIDER_URL", "http://127.0.0.1:1"), ("POSTRIDER_TOKEN", "x"), ("POSTRIDER_SECRET_X", "y")];
    let mistyped = ("POSTRIDER_LISTNE", "127.0.0.1:0");
    let home = Home::new();
    let node = home.start_in(&[&known[..], &[mistyped]].concat(), &[]);
    let written = node.written();
    let told: Vec<&str> = written.lines().filter(|line| line.contains("variable is not known")).collect();
    assert!(told.len() == 1 && told[0].contains("\"variable\":\"POSTRIDER_LISTNE\""), "{told:?}");
}

#[test]
fn a_port_in_use_is_said() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, text) = refused(&Home::new(), &["--listen", &address]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("cannot listen on {address}")), "{text}");
    assert!(text.contains("hint:") && text.contains("--listen"), "{text}");
}

#[test]
fn a_node_whose_database_froze_is_alive_but_not_ready() {
    let server = Postgres::start().expect("a server of its own");
    let home = Home::new();
    let node = home.start_with(&["--store", &server.url(), "--migrate"]);
    crate::eventually(Duration::from_secs(10), "it is ready", || {
        (node.get("/readyz").status == 200).then_some(())
    });
    server.freeze();
    crate::eventually(Duration::from_secs(30), "it is not ready", || {
        (node.get("/readyz").status == 503).then_some(())
    });
    node.get("/livez").expect(200);
    server.thaw();
    crate::eventually(Duration::from_secs(60), "it is ready again", || {
        (node.get("/readyz").status == 200).then_some(())
    });
}

#[test]
fn a_node_waits_for_an_application_that_writes_and_can_be_stopped_meanwhile() {
    let home = Home::new();
    home.json(&["migrate"]);
    let application = rusqlite::Connection::open(home.store_file()).expect("the file");
    application.execute_batch("BEGIN IMMEDIATE; CREATE TABLE orders (id INTEGER)").expect("a transaction");
    let mut stopped = home.start_waiting();
    stopped.until_address(NO_NODE_YET);
    assert!(stopped.written().contains("another program is writing to it"), "{}", stopped.written());
    stopped.signal("TERM");
    assert!(stopped.until_exit(Duration::from_secs(15)).success());

    let mut node = home.start_waiting();
    node.address = node.until_address(NO_NODE_YET);
    node.get("/readyz").expect(503);
    application.execute_batch("COMMIT").expect("the end of it");
    node.until_ready();
    node.get("/readyz").expect(200);
}

#[test]
fn a_node_that_is_stopped_before_it_joined_answers_the_requests_it_has() {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "http://127.0.0.1:9/"]);
    let application = rusqlite::Connection::open(home.store_file()).expect("the file");
    application.execute_batch("BEGIN IMMEDIATE; CREATE TABLE orders (id INTEGER)").expect("a transaction");
    let mut node = home.start_waiting();
    let mut client = TcpStream::connect(node.until_address(NO_NODE_YET)).expect("the node listens");
    let head = "POST /v1/endpoints/shop/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n";
    client.write_all(head.as_bytes()).expect("half of it");
    // Now the request is under way.
    let mut go_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    client.read_exact(&mut go_on).expect("that the rest may come");
    client.write_all(b"{}").expect("the rest");
    node.signal("TERM");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("the answer");
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer:?}");
    assert!(node.until_exit(Duration::from_secs(15)).success());
}

#[test]
fn a_node_waits_for_an_application_before_it_makes_its_store() {
    let home = Home::new();
    let application = rusqlite::Connection::open(home.store_file()).expect("the file");
    application.execute_batch("CREATE TABLE orders (id INTEGER); BEGIN EXCLUSIVE").expect("a transaction");
    let waits = |node: &crate::node::Node| {
        crate::eventually(Duration::from_secs(30), "it waits", || {
            node.written().contains("The store cannot be opened yet; trying again").then_some(())
        });
    };
    let mut stopped = home.start_waiting();
    waits(&stopped);
    stopped.signal("TERM");
    assert!(stopped.until_exit(Duration::from_secs(15)).success());
    let node = home.start_waiting();
    waits(&node);
    application.execute_batch("COMMIT").expect("the end of it");
    node.until_ready();
}

#[test]
fn a_session_that_keeps_a_node_from_its_work_is_named_by_readyz_and_once_in_the_log() {
    let server = Postgres::start().expect("a server of its own");
    let home = Home::new();
    let node = home.start_with(&["--store", &server.url(), "--migrate"]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let stranger = runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    });
    // Nothing can be claimed meanwhile.
    let held =
        runtime.block_on(stranger.query_one("SELECT pg_advisory_lock(1886548338, 4), pg_backend_pid()", &[]));
    let process: i32 = held.expect("the lock").get(1);
    let ready = || serde_json::from_slice::<serde_json::Value>(&node.get("/readyz").body).expect("JSON");
    let named = crate::eventually(Duration::from_secs(20), "it is named", || {
        ready()["in_the_way"][0].as_str().map(str::to_owned)
    });
    assert!(named.contains(&format!("role \"postgres\" (process {process})")), "{named}");
    drop(stranger);
    crate::eventually(Duration::from_secs(20), "it is gone", || {
        (ready() == serde_json::json!({ "status": "ready" })).then_some(())
    });
    let logged = |sentence: &str| node.written().lines().filter(|line| line.contains(sentence)).count();
    assert_eq!(logged("a session holds a lock that nodes or senders wait for"), 1, "{}", node.written());
    assert_eq!(logged("a session released the lock"), 1);
}
