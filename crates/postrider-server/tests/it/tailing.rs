//! What happens on a node, as it happens.

use std::io::{BufRead, BufReader};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::told;
use crate::eventually;
use crate::http::Client;
use crate::node::{Home, Node};
use crate::receiver::Receiver;

/// Reads events from now on.
pub(crate) fn tail(node: &Node, query: &str) -> Client {
    let mut client = node.client();
    client
        .write(format!("GET /v1/tail{query} HTTP/1.1\r\nhost: {}\r\n\r\n", node.address).as_bytes())
        .expect("it is read");
    assert!(client.read_until("listening"), "the tail begins");
    client
}

fn next(client: &mut Client) -> (String, Value) {
    let kind = client.read_line_with("event: ").expect("an event");
    let data = client.read_line_with("data: ").expect("its data");
    (kind, serde_json::from_str(&data).expect("JSON"))
}

#[test]
fn a_tail_tells_what_its_filters_let_through() {
    let receiver = Receiver::start(|received| Some(if received.path.ends_with("good") { 200 } else { 400 }));
    let home = Home::new();
    let node = home.start();
    for name in ["good", "bad"] {
        let url = format!("{}/{name}", receiver.url());
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": { "url": url } }));
    }
    let mut all = tail(&node, "");
    let mut dead = tail(&node, "?state=dead");
    let mut paid = tail(&node, "?event_type=order.paid&endpoint=good");
    let first = node.send("good", &[], "{}");
    let (kind, data) = next(&mut all);
    assert_eq!(
        (kind.as_str(), &data["state"], &data["endpoint"]),
        ("attempt", &json!("completed"), &json!("good"))
    );
    assert_eq!((&data["message_id"], &data["response_status"]), (&json!(first), &json!(200)));
    let second = node.send("bad", &[], "{}");
    let (_, data) = next(&mut dead);
    assert_eq!((&data["message_id"], &data["class"]), (&json!(second), &json!("permanent")));
    let third = node.send("good", &[("postrider-event-type", "order.paid")], "{}");
    let (_, data) = next(&mut paid);
    assert_eq!((&data["message_id"], &data["event_type"]), (&json!(third), &json!("order.paid")));
}

#[test]
fn a_tail_of_nobody_is_refused() {
    let home = Home::new();
    let node = home.start();
    node.get("/v1/tail?endpoint=nobody").expect(404);
    assert_eq!(node.get("/v1/tail?state=asleep").expect(422).json()["field"], "state");
    assert_eq!(node.get("/v1/tail?colour=red").expect(422).json()["field"], "colour");
}

#[test]
fn tails_leave_room_for_everybody_else() {
    let home = Home::new();
    let node = home.start();
    let mut tails: Vec<Client> = (0..64).map(|_| tail(&node, "")).collect();
    let refused = node.get("/v1/tail").expect(429);
    assert_eq!(refused.json()["type"], "urn:postrider:problem:too-many-tails");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    node.get("/livez").expect(200);
    tails.pop();
    let mut freed = eventually(Duration::from_secs(30), "a place is free", || {
        let mut client = node.client();
        let head = format!("GET /v1/tail HTTP/1.1\r\nhost: {}\r\n\r\n", node.address);
        client.write(head.as_bytes()).expect("it is read");
        client.read_line_with("HTTP/1.1 ")?.starts_with("200").then_some(client)
    });
    assert!(freed.read_until("listening"), "the tail begins");
}

/// `postrider tail …` in a pipe.
struct TailCommand {
    child: Child,
    told: mpsc::Receiver<String>,
    said: mpsc::Receiver<String>,
}

impl TailCommand {
    fn start(home: &Home, url: &str, token: &str, arguments: &[&str]) -> Self {
        let mut command = home.command(&[&["tail", "--url", url], arguments].concat());
        command.env("POSTRIDER_TOKEN", token).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let told = lines(child.stdout.take().expect("stdout"));
        let said = lines(child.stderr.take().expect("stderr"));
        Self { child, told, said }
    }

    #[track_caller]
    fn until_said(&self, text: &str) {
        let within = Duration::from_secs(30);
        while !self.said.recv_timeout(within).expect("it says so in time").contains(text) {}
    }

    fn next(&self) -> Value {
        let line = self.told.recv_timeout(Duration::from_secs(30)).expect("a line in time");
        serde_json::from_str(&line).expect("JSON")
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(std::process::Command::new("sh").args(["-c", &kill]).status().expect("sh runs").success());
    }

    fn until_exit(&mut self) -> ExitStatus {
        eventually(Duration::from_secs(30), "the tail ends", || self.child.try_wait().expect("it is ours"))
    }
}

impl Drop for TailCommand {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(from: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Endpoints `good` and `bad`, whose receiver answers so.
fn with_receiver(node: &Node) {
    let receiver = Receiver::start(|received| Some(if received.path.ends_with("good") { 200 } else { 400 }));
    for name in ["good", "bad"] {
        let url = format!("{}/{name}", receiver.url());
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": { "url": url } }));
    }
}

#[test]
fn the_command_tells_what_its_filters_let_through_until_it_is_interrupted() {
    let home = Home::new();
    let node = home.start();
    with_receiver(&node);
    let url = format!("http://{}", node.address);
    let mut all = TailCommand::start(&home, &url, "", &[]);
    let filters = ["--state", "completed", "--endpoint", "good", "--event-type", "order.paid"];
    let paid = TailCommand::start(&home, &url, "", &filters);
    all.until_said("listening");
    paid.until_said("listening");
    let bad = node.send("bad", &[], "{}");
    let line = all.next();
    assert_eq!((&line["event"], &line["state"]), (&json!("attempt"), &json!("dead")));
    assert_eq!((&line["message_id"], &line["response_status"]), (&json!(bad), &json!(400)));
    node.send("good", &[], "{}");
    let last = node.send("good", &[("postrider-event-type", "order.paid")], "{}");
    assert_eq!(paid.next()["message_id"], last, "the first that fits");
    all.signal("INT");
    assert_eq!(all.until_exit().code(), Some(0));
}

#[test]
fn the_command_waits_for_a_node_that_restarts() {
    let home = Home::new();
    let node = home.start();
    with_receiver(&node);
    let address = node.address.to_string();
    let tail = TailCommand::start(&home, &format!("http://{address}"), "", &[]);
    tail.until_said("listening");
    node.kill();
    tail.until_said("went away");
    let node = home.start_with(&["--allow-internal", "--listen", &address]);
    tail.until_said("again");
    let id = node.send("good", &[], "{}");
    assert_eq!(tail.next()["message_id"], id);
}

#[test]
fn the_command_tells_programs_of_a_node_that_goes_and_comes_back() {
    let home = Home::new();
    let node = home.start();
    let address = node.address.to_string();
    let tail = TailCommand::start(&home, &format!("http://{address}"), "", &["--json"]);
    let said = || -> String {
        let line = tail.said.recv_timeout(Duration::from_secs(30)).expect("a line in time");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        said["message"].as_str().expect("what it says").replace(&address, "NODE")
    };
    assert_eq!(said(), "listening to http://NODE");
    node.kill();
    assert_eq!(said(), "http://NODE went away; waiting for it");
    let _node = home.start_with(&["--allow-internal", "--listen", &address]);
    assert_eq!(said(), "listening to http://NODE again");
}

#[test]
fn the_command_ends_when_nobody_reads_it() {
    let home = Home::new();
    let node = home.start();
    with_receiver(&node);
    let mut command = home.command(&["tail", "--url", &format!("http://{}", node.address)]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let said = lines(child.stderr.take().expect("stderr"));
    assert!(said.recv_timeout(Duration::from_secs(30)).expect("a line").contains("listening"));
    drop(child.stdout.take());
    node.send("good", &[], "{}");
    let status = eventually(Duration::from_secs(30), "it ends", || child.try_wait().expect("it is ours"));
    assert_eq!(status.code(), Some(0));
}

#[test]
fn the_command_says_what_the_node_refuses() {
    let home = Home::new();
    let node = home.start();
    let url = format!("http://{}", node.address);
    let tail = |arguments: &[&str]| {
        let output = home.run(&[&["tail"], arguments].concat());
        format!("$ postrider tail {}\n{}", arguments.join(" "), told(&output)).replace(&url, "http://NODE")
    };
    let mut text = vec![
        tail(&["--help"]),
        tail(&["--url", &url, "--endpoint", "nobody"]),
        tail(&["--url", &url, "--state", "asleep", "--json"]),
        tail(&["--url", "http://127.0.0.1:1"]),
        tail(&["--url", "http://me:hush@127.0.0.1:1"]),
        tail(&["--url", "127.0.0.1"]),
    ];
    home.json(&["token", "create", "who", "monitor"]);
    eventually(Duration::from_secs(5), "the token counts", || {
        (node.get("/v1/status").status == 401).then_some(())
    });
    text.push(tail(&["--url", &url]));
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn the_command_ends_with_its_token() {
    let home = Home::new();
    let node = home.start();
    let issued = home.json(&["token", "create", "who", "monitor"]);
    home.json(&["token", "create", "other", "monitor"]);
    let token = issued["token"].as_str().expect("a token");
    let mut tail = TailCommand::start(&home, &format!("http://{}", node.address), token, &[]);
    tail.until_said("listening");
    let prefix = token.rsplit_once('_').expect("a prefix").0;
    home.json(&["token", "revoke", prefix]);
    assert_eq!(tail.until_exit().code(), Some(4), "a refusal that waiting does not change");
}
