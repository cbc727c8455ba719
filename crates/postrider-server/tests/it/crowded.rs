//! A node that may have few files open: receivers that hang and clients that send half a request take nothing from others.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::eventually;
use crate::node::Home;
use crate::receiver::Receiver;
use crate::tailing::tail;

const OPEN_FILES: u32 = 256;
const HANGING_ENDPOINTS: usize = 20;
/// More together than the node may have files open.
const MESSAGES_EACH: usize = 20;
const CLIENTS: usize = 400;
const HEALTHY_MESSAGES: usize = 50;

/// Takes connections and never answers.
fn silent() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let taken: Vec<TcpStream> = listener.incoming().map_while(Result::ok).collect();
        drop(taken);
    });
    address
}

/// A client whose request never becomes whole.
fn half_a_request(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the kernel takes it");
    let _ = stream.write_all(b"POST /v1/endpoints/healthy/messages HTTP/1.1\r\nhost: ");
    stream
}

#[test]
fn few_open_files_cost_a_healthy_endpoint_no_message_and_no_attempt() {
    let healthy = Receiver::start(|_| Some(200));
    let home = Home::new();
    let node = home.start_with_open_files(OPEN_FILES, &["--allow-internal"]);
    let silent = silent();
    let mut batch = String::new();
    for n in 0..HANGING_ENDPOINTS {
        let name = format!("hanging-{n}");
        let config = json!({ "url": format!("http://{silent}/"), "timeout": 60 });
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": config }));
        for _ in 0..MESSAGES_EACH {
            batch += &format!("{}\n", json!({ "endpoint": name, "payload": {} }));
        }
    }
    node.create_endpoint(json!({
        "name": "healthy", "protocol": "http", "config": { "url": healthy.url() },
        "retry_policy": { "max_attempts": 1 },
    }));
    let ndjson = [("content-type", "application/x-ndjson")];
    node.post("/v1/messages:batch", &ndjson, batch.as_bytes()).expect(202);
    eventually(Duration::from_secs(30), "attempts hang", || {
        let status = node.get("/v1/status").expect(200).json();
        (status["processing"].as_u64()? > 40).then_some(())
    });

    let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| half_a_request(node.address)).collect();
    node.get("/livez").expect(200);
    node.get("/readyz").expect(200);
    let sent: Vec<i64> = (0..HEALTHY_MESSAGES).map(|_| node.send("healthy", &[], "{}")).collect();
    for id in sent {
        let story = node.until(id, "completed");
        assert_eq!(story["attempt_count"], 1, "{story:#}");
    }
    drop(clients);

    node.get("/readyz").expect(200);
    let status = node.get("/v1/status").expect(200).json();
    assert_eq!(status["dead"], 0, "{status:#}");
    let hanging = node.get("/v1/messages?endpoint=hanging-0&limit=100").expect(200).json();
    for message in hanging["items"].as_array().expect("a page") {
        let story = node.get(&format!("/v1/messages/{}", message["id"])).expect(200).json();
        assert_eq!(story["last_error"], json!(null), "nothing was charged to the receiver: {story:#}");
    }
}

#[test]
fn a_head_that_is_not_finished_and_a_client_that_says_nothing_are_closed() {
    let home = Home::new();
    let node = home.start();
    let mut silent = TcpStream::connect(node.address).expect("the node listens");
    for client in [&mut half_a_request(node.address), &mut silent] {
        client.set_read_timeout(Some(Duration::from_secs(25))).expect("a timeout");
        assert_eq!(client.read(&mut [0; 100]).expect("it is closed"), 0);
    }
}

#[test]
fn a_client_that_idles_makes_room_for_another() {
    let home = Home::new();
    // Room for twelve clients.
    let node = home.start_with_open_files(64, &[]);
    let mut clients: Vec<_> = (0..40).map(|_| node.client()).collect();
    for client in &mut clients[28..] {
        client.send("GET", "/readyz", &[], b"").expect("an answer").expect(200);
    }
    let mut more: Vec<_> = (0..12).map(|_| node.client()).collect();
    for client in &mut more {
        client.send("GET", "/readyz", &[], b"").expect("an answer").expect(200);
    }
    for client in &mut clients {
        let kind = client.read().expect_err("it idles, and is closed").kind();
        assert!(matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{kind}");
    }
    let limits = &node.get("/v1/status").expect(200).json()["limits"];
    assert_eq!(
        *limits,
        json!({ "open_files": 64, "max_in_flight": 24, "idle_connections_max": 12, "client_connections_max": 12 })
    );
    let url = format!("http://{}", node.address);
    let told = home.run(&["status", "--url", &url]);
    let told = String::from_utf8(told.stdout).expect("text");
    assert!(
        told.contains("64 open files at most; 24 attempts in flight, 12 idle connections, 12 clients"),
        "{told}"
    );
}

#[test]
fn probes_are_answered_while_requests_hold_all_places_and_others_are_told() {
    let (arrived, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(())));
    let held = answers.lock().expect("nobody panics with it");
    let receiver = Receiver::start({
        let (arrived, answers) = (Arc::clone(&arrived), Arc::clone(&answers));
        move |_| {
            arrived.fetch_add(1, Relaxed);
            drop(answers.lock());
            Some(200)
        }
    });
    let home = Home::new();
    // Room for twelve clients, nine of which may have a request under way.
    let node = home.start_with_open_files(64, &["--allow-internal"]);
    let config = json!({ "url": receiver.url(), "timeout": 60 });
    node.create_endpoint(json!({ "name": "slow", "protocol": "http", "config": config }));
    let mut clients: Vec<_> = (0..12).map(|_| node.client()).collect();
    for client in &mut clients {
        let request = "POST /v1/endpoints/slow/test HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
        client.write(request.as_bytes()).expect("it is taken");
    }
    eventually(Duration::from_secs(30), "requests hang", || (arrived.load(Relaxed) >= 9).then_some(()));
    node.get("/readyz").expect(200);
    node.get("/livez").expect(200);
    let refused = node.get("/v1/status").expect(503);
    assert_eq!(refused.json()["type"], "urn:postrider:problem:too-many-requests");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    node.get("/readyz").expect(200);
    assert_eq!(node.written().matches("Requests wait").count(), 1, "{}", node.written());
    drop(held);
    let answered = clients.iter_mut().filter_map(|client| client.read().ok());
    assert_eq!(answered.filter(|answer| answer.status == 200).count(), 9);
    node.get("/v1/status").expect(200);
}

#[test]
fn bodies_that_do_not_come_make_room_for_a_request() {
    let home = Home::new();
    let node = home.start_with_open_files(64, &[]);
    let mut clients: Vec<_> = (0..12).map(|_| node.client()).collect();
    for client in &mut clients {
        let half = "POST /v1/endpoints HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{";
        client.write(half.as_bytes()).expect("it is taken");
    }
    node.get("/v1/status").expect(200);
}

#[test]
fn tails_take_a_quarter_of_the_clients_places_at_most() {
    let home = Home::new();
    let node = home.start_with_open_files(64, &[]);
    let _tails: Vec<_> = (0..3).map(|_| tail(&node, "")).collect();
    let refused = node.get("/v1/tail").expect(429).json();
    assert!(refused["detail"].to_string().contains("places for 3;"), "{refused}");
    node.get("/v1/status").expect(200);
}

#[test]
fn more_file_endpoints_than_open_files_are_written_to() {
    const FILES: usize = 150;
    let home = Home::new();
    std::fs::create_dir(home.path().join("files")).expect("a folder");
    let node = home.start_with_open_files(64, &["--file-root", "files"]);
    let names: Vec<String> = (0..FILES).map(|n| format!("file-{n}")).collect();
    for name in &names {
        let config = json!({ "path": format!("{name}.jsonl") });
        let once = json!({ "max_attempts": 1 });
        node.create_endpoint(
            json!({ "name": name, "protocol": "file", "config": config, "retry_policy": once }),
        );
    }
    for round in 0..2 {
        let sent: Vec<i64> = names.iter().map(|name| node.send(name, &[], &round.to_string())).collect();
        for id in sent {
            let story = node.until(id, "completed");
            assert_eq!(story["attempt_count"], 1, "{story:#}");
        }
    }
    assert_eq!(node.get("/v1/status").expect(200).json()["dead"], 0);
}
