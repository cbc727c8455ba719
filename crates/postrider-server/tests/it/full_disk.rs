//! A disk that is full: sends are refused, the node lives on, and what was accepted is kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use crate::http::Client;
use crate::node::Home;
use crate::receiver::Receiver;

/// In units of the shell, which are 512 or 1024 bytes: a few MiB for each of the store's files.
const FILE_BLOCKS: u32 = 6000;
const SENDERS: usize = 4;
/// How many refusals each sender takes before it gives up.
const REFUSALS: usize = 10;

/// Sends numbered messages until the disk is full, and a while longer; the numbers that were accepted.
fn fill(mut client: Client, sender: usize) -> Vec<String> {
    let (mut accepted, mut refused) = (Vec::new(), 0);
    for n in 0..5000 {
        let number = format!("{sender}-{n}");
        // Small ones may still fit where large ones do not.
        let padding = if n % 4 == 0 { 10 } else { 60_000 };
        let payload = format!("{number} {}", "x".repeat(padding));
        let headers = [("content-type", "text/plain")];
        let answer = client
            .send("POST", "/v1/endpoints/shop/messages", &headers, payload.as_bytes())
            .expect("the node answers");
        match answer.status {
            202 => accepted.push(number),
            503 => {
                assert_eq!(answer.json()["type"], "urn:postrider:problem:store-unavailable");
                assert_eq!(answer.header("retry-after"), Some("1"));
                refused += 1;
                if refused == REFUSALS {
                    return accepted;
                }
            }
            other => panic!("{other}: {}", String::from_utf8_lossy(&answer.body)),
        }
    }
    panic!("the disk is never full");
}

#[test]
fn a_full_disk_refuses_sends_and_loses_nothing_that_was_accepted() {
    let delivered: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let counted = Arc::clone(&delivered);
    let receiver = Receiver::start(move |received| {
        let text = String::from_utf8(received.body).expect("text");
        let number = text.split(' ').next().expect("a number").to_owned();
        *counted.lock().expect("the count").entry(number).or_default() += 1;
        Some(200)
    });
    let home = Home::new();
    let node = home.start_with_file_blocks(FILE_BLOCKS);
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } }));
    home.json(&["endpoint", "pause", "shop"]);
    let accepted: Vec<String> = std::thread::scope(|scope| {
        let fill = |sender| {
            let client = node.client();
            scope.spawn(move || fill(client, sender))
        };
        let senders: Vec<_> = (0..SENDERS).map(fill).collect();
        senders.into_iter().flat_map(|sender| sender.join().expect("a sender")).collect()
    });
    assert!(accepted.len() > 20, "{} were accepted: this proves nothing", accepted.len());
    node.get("/livez").expect(200);
    node.get("/v1/messages/1").expect(200);
    assert_eq!(home.json(&["status"])["pending"], accepted.len(), "what was refused is not there");
    node.kill();

    // Somebody made room.
    let node = home.start();
    home.json(&["endpoint", "resume", "shop"]);
    crate::eventually(Duration::from_secs(60), "everything is settled", || {
        let status = home.json(&["status"]);
        (status["pending"] == 0 && status["processing"] == 0).then_some(())
    });
    let expected: BTreeMap<String, usize> = accepted.into_iter().map(|number| (number, 1)).collect();
    assert_eq!(*delivered.lock().expect("the count"), expected);
    node.send("shop", &[], "\"after\"");
}

/// As many as a few pages have, and less than the WAL that is there.
const TOO_FEW_BLOCKS: u32 = 200;

#[test]
fn a_node_starts_on_a_full_disk_says_so_and_delivers_once_there_is_room() {
    let receiver = Receiver::start(|_| Some(200));
    let home = Home::new();
    let node = home.start();
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": { "url": receiver.url() } }));
    home.json(&["endpoint", "pause", "shop"]);
    let payload = format!("\"{}\"", "x".repeat(20_000));
    let ids: Vec<i64> = (0..50).map(|_| node.send("shop", &[], &payload)).collect();
    node.kill();

    let node = home.start_without_room(TOO_FEW_BLOCKS);
    node.get("/livez").expect(200);
    let not_ready = node.get("/readyz").expect(503).json();
    let detail = not_ready["detail"].as_str().expect("a detail");
    assert!(detail.starts_with("the node could not join the store yet and tries again: "), "{detail}");
    node.get(&format!("/v1/messages/{}", ids[0])).expect(200);
    node.get("/metrics").expect(200);
    node.post("/v1/endpoints/shop/messages", &[], b"1").expect(503);
    home.json(&["endpoint", "resume", "shop"]);

    // Somebody makes room.
    let room = format!("prlimit --pid {} --fsize=unlimited", node.pid());
    assert!(home.shell(&room).status.success());
    node.until_ready();
    for id in ids {
        node.until(id, "completed");
    }
    crate::eventually(Duration::from_secs(10), "it is ready", || {
        (node.get("/readyz").status == 200).then_some(())
    });
}
