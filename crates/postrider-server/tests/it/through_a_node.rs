//! Commands through a node: who may, what is sent, and what happens when there is no node, or no answer.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;

use crate::cli::told;
use crate::eventually;
use crate::http::{length, read_headers, read_line};
use crate::node::{Home, Node};
use crate::receiver::Receiver;

fn with_token(home: &Home, node: &Node, name: &str, token: &str, arguments: &[&str]) -> Output {
    let url = format!("http://{}", node.address);
    let mut command = home.command(&[&["--url", &url], arguments].concat());
    command.env(name, token).output().expect("the binary runs")
}

#[test]
fn each_scope_gets_what_it_may_and_is_told_what_not() {
    let home = Home::new();
    home.json(&["migrate"]);
    home.json(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    home.json(&["endpoint", "pause", "shop"]);
    let token =
        |scope: &str| home.json(&["token", "create", scope, scope])["token"].as_str().map(str::to_owned);
    let tokens = ["admin", "application", "monitor"].map(|scope| token(scope).expect("a token"));
    let node = home.start();
    // What it is, and whether admin, application and monitor may.
    let table: [(&[&str], [bool; 3]); 8] = [
        (&["send", "shop", r#"{"card":4711}"#], [true, true, false]),
        (&["message", "show", "1"], [true, true, true]),
        (&["message", "list"], [true, false, true]),
        (&["endpoint", "list"], [true, false, true]),
        (&["endpoint", "resume", "shop"], [true, false, false]),
        (&["config", "set", "node_lease=20"], [true, false, false]),
        (&["status"], [true, false, true]),
        (&["token", "list"], [true, false, false]),
    ];
    for (arguments, may) in table {
        for (token, may) in tokens.iter().zip(may) {
            let output = with_token(&home, &node, "POSTRIDER_TOKEN", token, arguments);
            assert_eq!(output.status.code(), Some(if may { 0 } else { 4 }), "{arguments:?}: {output:?}");
            let other =
                with_token(&home, &node, "OTHER", token, &[arguments, &["--token-env", "OTHER"]].concat());
            assert_eq!(other.status.code(), output.status.code(), "in a variable of another name");
        }
    }
    let seen = with_token(&home, &node, "POSTRIDER_TOKEN", &tokens[2], &["message", "show", "1"]);
    assert!(!told(&seen).contains("4711"), "a monitor sees no payload");
    assert!(told(&seen).contains("(not kept, or not shown to this token)"), "{seen:?}");
    let text = [
        with_token(&home, &node, "POSTRIDER_TOKEN", &tokens[1], &["status"]),
        with_token(&home, &node, "POSTRIDER_TOKEN", &tokens[1], &["status", "--json"]),
        with_token(&home, &node, "POSTRIDER_TOKEN", "", &["status"]),
        with_token(&home, &node, "POSTRIDER_TOKEN", &tokens[0], &["status", "--token-env", "NOPE"]),
        with_token(&home, &node, "POSTRIDER_TOKEN", "pr_no_such", &["status"]),
        with_token(&home, &node, "POSTRIDER_TOKEN", "a\nb", &["status"]),
    ];
    let text = text.map(|output| told(&output).replace(&node.address.to_string(), "NODE"));
    insta::assert_snapshot!(text.join("\n\n"));
}

#[test]
fn a_store_and_a_node_are_not_mixed_up() {
    let home = Home::new();
    home.json(&["migrate"]);
    let run = |environment: &[(&str, &str)], arguments: &[&str]| {
        let output = home.command(arguments).envs(environment.iter().copied()).output().expect("it runs");
        let set: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        format!("$ {}postrider {}\n{}", set.concat(), arguments.join(" "), told(&output))
    };
    let url = ("POSTRIDER_URL", "http://127.0.0.1:1");
    let store = ("POSTRIDER_STORE", "sqlite:postrider.db");
    let nowhere = ["--url", "http://127.0.0.1:1"];
    let both = [&["status", "--store", "sqlite:postrider.db"], &nowhere[..]].concat();
    let mut text = vec![
        run(&[], &both),
        run(&[url, store], &["config", "get", "archive"]),
        run(&[url], &["config", "get", "archive", "--store", "sqlite:postrider.db"]),
        run(&[store], &[&["config", "get", "archive"], &nowhere[..]].concat()),
        run(&[url], &["config", "get", "archive"]),
        run(&[url], &["config", "get", "archive", "--json"]),
        run(
            &[],
            &[
                "--url",
                "http://127.0.0.1:1",
                "endpoint",
                "create",
                "a",
                "http",
                "--url",
                "https://example.org/",
            ],
        ),
        run(&[], &["endpoint", "--url", "http://127.0.0.1:1", "alter", "a", "--url", "https://example.org/"]),
        run(&[], &["config", "get", "archive", "--url", "http://me:hush@127.0.0.1:1"]),
        run(&[], &["tail", "--store", "sqlite:postrider.db"]),
        run(&[], &["--store", "sqlite:postrider.db", "top"]),
        run(&[store], &[&["tail"], &nowhere[..]].concat()),
    ];
    let local: [&[&str]; 8] = [
        &["serve"],
        &["migrate"],
        &["demo"],
        &["bench"],
        &["export", "x"],
        &["import", "x"],
        &["signature", "sign", "x", "--id", "y", "--secret-env", "z"],
        &["completions", "bash"],
    ];
    text.extend(local.map(|command| run(&[], &[command, &nowhere].concat())));
    assert!(
        run(&[url], &["migrate", "--json"]).contains("\"created\":false"),
        "the environment is for others"
    );
    insta::assert_snapshot!(text.join("\n\n"));
}

/// Says this to whoever asks, and counts them.
fn oracle(answer: String) -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            count.fetch_add(1, SeqCst);
            let mut stream = BufReader::new(stream);
            let _ = read_request(&mut stream);
            let _ = stream.get_mut().write_all(answer.as_bytes());
        }
    });
    (url, asked)
}

fn read_request(stream: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let line = read_line(stream)?;
    let headers = read_headers(stream)?;
    let mut body = vec![0; length(&headers)];
    stream.read_exact(&mut body)?;
    let mut request = format!("{line}\r\n");
    headers.iter().for_each(|(name, value)| request += &format!("{name}: {value}\r\n"));
    Ok([format!("{request}\r\n").into_bytes(), body].concat())
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}", body.len())
}

#[test]
fn what_is_not_a_node_is_told_so() {
    let home = Home::new();
    let (elsewhere, followed) = oracle(answer("200 OK", "", "{}"));
    let problem = r#"{"type":"https://example.org/out-of-tea","title":"Tea","status":418}"#;
    let answers = [
        answer("200 OK", "", "<html>hello</html>"),
        answer("404 Not Found", "", "<html>no</html>"),
        answer("418 Teapot", "content-type: application/problem+json\r\n", problem),
        answer("307 Temporary Redirect", &format!("location: {elsewhere}/v1/status\r\n"), ""),
        answer("502 Bad Gateway", "", "<html>gone</html>"),
        "nonsense\r\n\r\n".to_owned(),
        String::new(),
    ];
    let mut text = Vec::new();
    for answer in answers {
        let (url, asked) = oracle(answer);
        for arguments in [&["status"][..], &["send", "shop", "{}"], &["message", "cancel", "1"]] {
            let mut command = home.command(&[arguments, &["--url", &url]].concat());
            let output = command.env("POSTRIDER_TOKEN", "hush").output().expect("it runs");
            text.push(format!(
                "$ postrider {}\n{}",
                arguments.join(" "),
                told(&output).replace(&url, "http://X")
            ));
        }
        assert_eq!(asked.load(SeqCst), 3, "each asks once");
    }
    assert_eq!(followed.load(SeqCst), 0, "a token is not carried elsewhere");
    insta::assert_snapshot!(text.join("\n\n"));
}

/// Passes requests on to a node, and keeps the answers of the first so many to itself.
fn lossy(node: SocketAddr, losses: u32) -> (String, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let is_lost = count.fetch_add(1, SeqCst) < losses;
            let mut stream = BufReader::new(stream);
            let Ok(request) = read_request(&mut stream) else { continue };
            let mut to = TcpStream::connect(node).expect("the node listens");
            to.write_all(&request).expect("it is read");
            let mut to = BufReader::new(to);
            let answer = read_request(&mut to).expect("an answer");
            if !is_lost {
                let _ = stream.get_mut().write_all(&answer);
            }
        }
    });
    (url, asked)
}

#[test]
fn a_send_without_an_answer_is_not_repeated_unless_it_has_a_key() {
    let home = Home::new();
    let node = home.start();
    home.json(&["endpoint", "create", "shop", "http", "--url", "https://example.org/hook"]);
    home.json(&["endpoint", "pause", "shop"]);
    let queued = || node.get("/v1/status").expect(200).json()["pending"].as_u64().expect("a number");
    let (url, asked) = lossy(node.address, 1);
    let run = |arguments: &[&str], url: &str| home.run(&[arguments, &["--url", url]].concat());

    let lost = run(&["send", "shop", "{}"], &url);
    assert_eq!((lost.status.code(), asked.load(SeqCst)), (Some(1), 1), "{lost:?}");
    let said = String::from_utf8_lossy(&lost.stderr).into_owned();
    assert!(said.contains("whether it was done is not known"), "{said}");
    assert_eq!(queued(), 1, "it was done");

    let (url, asked) = lossy(node.address, 1);
    let lost = run(&["publish", "nothing", "{}", "--json"], &url);
    assert_eq!((lost.status.code(), asked.load(SeqCst)), (Some(1), 1), "{lost:?}");
    assert!(String::from_utf8_lossy(&lost.stderr).contains("08007"), "{lost:?}");

    let (url, asked) = lossy(node.address, 2);
    let sent = run(&["send", "shop", "{}", "--idempotency-key", "k", "--json"], &url);
    assert_eq!((sent.status.code(), asked.load(SeqCst)), (Some(0), 3), "{sent:?}");
    assert_eq!(
        serde_json::from_slice::<serde_json::Value>(&sent.stdout).expect("JSON"),
        json!({ "id": 2, "duplicate": true })
    );
    assert_eq!(queued(), 2, "one more, however often it was asked for");

    let (url, asked) = lossy(node.address, 100);
    let lost = run(&["send", "shop", "{}", "--idempotency-key", "other"], &url);
    assert_eq!((lost.status.code(), asked.load(SeqCst)), (Some(1), 3), "in the end it is said: {lost:?}");

    let (url, asked) = lossy(node.address, 1);
    let lost = run(&["status"], &url);
    assert_eq!((lost.status.code(), asked.load(SeqCst)), (Some(3), 1), "looking changes nothing: {lost:?}");
}

#[test]
fn a_payload_arrives_byte_for_byte_with_all_that_is_said_of_it() {
    let (seen, arrived) = mpsc::channel();
    let receiver = Receiver::start(move |received| {
        let said = ["content-type", "x-shop", "postrider-ordering-key", "postrider-event-type"];
        let said: Vec<String> = said.iter().map(|name| received.header(name).to_owned()).collect();
        seen.send((received.body, said)).map_or(Some(500), |()| Some(200))
    });
    let home = Home::new();
    let node = home.start();
    let url = format!("http://{}", node.address);
    home.json(&["--url", &url, "endpoint", "create", "shop", "http", "--url", &receiver.url()]);
    let all_bytes: Vec<u8> = (0..=255).cycle().take(700_000).collect();
    let payloads: [(&[u8], &str); 6] = [
        (&all_bytes, "application/octet-stream"),
        (b"{\"a\":  1.50}", "application/json"),
        (b"\n {\"a\":1}\r\n\n", "application/json"),
        (b"null", "application/json"),
        ("\u{fffd}é\u{0}".as_bytes(), "text/plain; charset=utf-8"),
        (b"{}", "application/cloudevents+json"),
    ];
    for (payload, content_type) in payloads {
        let said = [
            "--content-type",
            content_type,
            "--header",
            "X-Shop=7",
            "--ordering-key",
            "k",
            "--event-type",
            "paid",
        ];
        let mut command = home.command(&[&["--url", &url, "send", "shop"], &said[..]].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        child.stdin.take().expect("stdin").write_all(payload).expect("it reads");
        assert!(child.wait().expect("it ends").success(), "{content_type}");
        let (body, said) = arrived.recv_timeout(Duration::from_secs(30)).expect("it arrives");
        assert!(body == payload, "{content_type}: {:?}", String::from_utf8_lossy(&body));
        assert_eq!(said, [content_type, "7", "k", "paid"]);
    }
}

#[test]
fn an_endpoint_keeps_its_secrets_when_a_node_changes_its_address() {
    let (seen, arrived) = mpsc::channel();
    let receiver = Receiver::start(move |received| {
        let said = (received.path.clone(), received.header("authorization").to_owned());
        seen.send(said).map_or(Some(500), |()| Some(200))
    });
    let home = Home::new();
    let node = home.start();
    let url = format!("http://{}", node.address);
    let config =
        json!({ "url": receiver.url(), "auth": { "type": "bearer", "token": "hushhush" }, "timeout": 3 });
    let run = |arguments: &[&str]| home.json(&[&["--url", &url], arguments].concat());
    let made = run(&["endpoint", "create", "shop", "http", "--endpoint-config", &config.to_string()]);
    assert!(!made.to_string().contains("hushhush"), "{made}");
    let changed = run(&["endpoint", "alter", "shop", "--url", &format!("{}/b", receiver.url())]);
    assert_eq!(changed["config"]["timeout"], 3);
    eventually(Duration::from_secs(30), "it goes to the new address", || {
        run(&["send", "shop", "{}"]);
        let (path, authorization) = arrived.recv_timeout(Duration::from_secs(30)).expect("it arrives");
        assert_eq!(authorization, "Bearer hushhush", "the secret stays");
        (path == "/hook/b").then_some(())
    });
    let removed = json!({ "config_changes": { "timeout": null, "connect_timeout": 2 } }).to_string();
    let patched =
        node.client().send("PATCH", "/v1/endpoints/shop", &[], removed.as_bytes()).expect("an answer");
    let config = patched.expect(200).json()["config"].clone();
    assert_eq!((config.get("timeout"), &config["connect_timeout"]), (None, &json!(2)));
}

#[test]
fn a_long_list_takes_as_many_pages_as_it_needs() {
    let receiver = Receiver::start(|_| Some(400));
    let home = Home::new();
    let node = home.start();
    let url = format!("http://{}", node.address);
    let config = json!({ "url": receiver.url() });
    node.create_endpoint(json!({ "name": "shop", "protocol": "http", "config": config }));
    let lines = "{\"endpoint\":\"shop\",\"payload\":{}}\n".repeat(1002);
    node.post("/v1/messages:batch", &[], lines.as_bytes()).expect(202);
    eventually(Duration::from_secs(60), "all are dead", || {
        (node.get("/v1/status").expect(200).json()["dead"] == 1002).then_some(())
    });
    let list = |place: &[&str]| home.json(&[&["dlq", "list", "--limit", "1000"], place].concat());
    let through = list(&["--url", &url]);
    assert_eq!(through["items"].as_array().map(Vec::len), Some(1000));
    assert!(through["next"].is_i64(), "there are more");
    assert_eq!(through, list(&[]));
    let redriven = home.json(&["dlq", "discard", "--endpoint", "shop", "--url", &url]);
    assert_eq!(redriven, json!({ "discarded": 1002, "total": 1002 }));
}

#[test]
fn the_address_that_serve_prints_is_taken() {
    let home = Home::new();
    let node = home.start();
    for path in ["/v1", "/v1/"] {
        let url = format!("http://{}{path}", node.address);
        assert!(home.json(&["status", "--url", &url]).is_object(), "{path}");
    }
}

#[test]
fn a_node_below_a_path_of_a_proxy_is_reached() {
    let home = Home::new();
    let (sender, receiver) = mpsc::channel();
    let proxy = Receiver::start(move |received| sender.send(received.path).map_or(Some(500), |()| Some(204)));
    let url = format!("http://{}/postrider/", proxy.address());
    let output = home.run(&["message", "cancel", "7", "--url", &url]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(receiver.recv_timeout(Duration::from_secs(30)).as_deref(), Ok("/postrider/v1/messages/7"));
}

#[test]
fn an_endpoint_is_tested_and_its_receiver_decides_the_exit_code() {
    let takes = Receiver::start(|received| (received.body == b"{\"order\": 1}").then_some(200).or(Some(201)));
    let refuses = Receiver::start(|_| Some(503));
    let home = Home::new();
    let node = home.start();
    let url = format!("http://{}", node.address);
    for (name, receiver) in [("takes", &takes), ("refuses", &refuses)] {
        let config = json!({ "url": receiver.url() });
        node.create_endpoint(json!({ "name": name, "protocol": "http", "config": config }));
    }
    let test = |arguments: &[&str]| home.run(&[&["--url", &url, "endpoint", "test"], arguments].concat());
    let said = |arguments: &[&str], code: i32| {
        let output = test(arguments);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        told(&output)
    };
    assert!(said(&["takes"], 0).contains("endpoint takes took the test message (HTTP 201, "));
    assert!(said(&["takes", "{\"order\": 1}"], 0).contains("(HTTP 200, "));
    assert!(said(&["refuses"], 1).contains("endpoint refuses did not take the test message (HTTP 503, "));
    let report = test(&["refuses", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).expect("a report");
    assert_eq!((&report["delivered"], &report["response_status"]), (&json!(false), &json!(503)), "{report}");
    assert!(said(&["nowhere"], 4).contains("nowhere"));
    assert_eq!(node.get("/v1/messages").expect(200).json()["items"], json!([]), "nothing was queued");
}
