//! Tokens: who gets in, what for, and until when.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_servers::postgres::Postgres;

use crate::http::Answer;
use crate::node::{Home, Node};

fn issue(home: &Home, arguments: &[&str]) -> (String, String) {
    let issued = home.json(&[&["token", "create"], arguments].concat());
    (
        issued["token"].as_str().expect("a token").to_owned(),
        issued["prefix"].as_str().expect("its prefix").to_owned(),
    )
}

fn ask(node: &Node, token: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    node.client().send(method, path, &headers, body.as_bytes()).expect("an answer")
}

fn shop() -> String {
    let config = json!({ "url": "http://127.0.0.1:9/hook", "headers": { "x-tenant": "blue" } });
    json!({ "name": "shop", "protocol": "http", "config": config }).to_string()
}

/// A paused endpoint with a message that has a payload and a header, and a token of each scope.
fn guarded_shop() -> (Home, Node, [String; 3]) {
    let home = Home::new();
    home.json(&["migrate"]);
    let tokens = ["admin", "application", "monitor"].map(|scope| issue(&home, &[scope, scope]).0);
    let node = home.start();
    ask(&node, &tokens[0], "POST", "/v1/endpoints", &shop()).expect(201);
    ask(&node, &tokens[0], "POST", "/v1/endpoints/shop/pause", "").expect(200);
    (home, node, tokens)
}

#[test]
fn with_the_first_token_everybody_needs_one() {
    let home = Home::new();
    let node = home.start();
    node.get("/v1/status").expect(200);
    let (token, _) = issue(&home, &["operator", "admin"]);
    crate::eventually(Duration::from_secs(1), "the token is known", || {
        (node.get("/v1/status").status == 401).then_some(())
    });
    let refused = node.get("/v1/status").expect(401);
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    assert_eq!(refused.json()["type"], "urn:postrider:problem:unauthorized");
    ask(&node, &token, "GET", "/v1/status", "").expect(200);
    for wrong in ["", "x", &token[..token.len() - 1], &token.to_uppercase(), &format!("{token}x")] {
        ask(&node, wrong, "GET", "/v1/status", "").expect(401);
    }
    for scheme in ["Basic", "bearerx"] {
        let value = format!("{scheme} {token}");
        let headers = [("authorization", value.as_str())];
        node.client().send("GET", "/v1/status", &headers, b"").expect("an answer").expect(401);
    }
    for open in ["/livez", "/readyz"] {
        node.get(open).expect(200);
    }
}

#[test]
fn each_scope_does_its_work_and_no_more() {
    let (_home, node, [admin, application, monitor]) = guarded_shop();
    let sent =
        ask(&node, &application, "POST", "/v1/endpoints/shop/messages", "{\"n\":1}").expect(202).json();
    let message = format!("/v1/messages/{}", sent["id"]);
    assert_eq!(
        ask(&node, &application, "GET", &message, "").expect(200).json()["payload"],
        json!({ "n": 1 })
    );
    let refused = ask(&node, &application, "GET", "/v1/endpoints/shop", "").expect(403).json();
    assert_eq!(refused["detail"], "its scope is application");
    ask(&node, &application, "POST", "/v1/pause", "{\"reason\":\"x\"}").expect(403);
    ask(&node, &monitor, "POST", "/v1/endpoints/shop/messages", "{}").expect(403);
    ask(&node, &monitor, "GET", "/v1/tokens", "").expect(403);
    ask(&node, &monitor, "GET", "/v1/status", "").expect(200);
    ask(&node, &application, "DELETE", &message, "").expect(204);
    let listed = ask(&node, &admin, "GET", "/v1/tokens", "").expect(200).json();
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(3));
    assert!(!listed.to_string().contains(&admin), "a token is never shown again");
}

#[test]
fn a_monitor_sees_no_payload_header_config_filter_template_or_schema() {
    let (_home, node, [admin, _, monitor]) = guarded_shop();
    let bearer = format!("Bearer {admin}");
    let headers = [("authorization", bearer.as_str()), ("postrider-header-x-secret", "hush")];
    let sent = node.post("/v1/endpoints/shop/messages", &headers, b"{\"card\":4711}").expect(202).json();
    let schema = json!({ "name": "card.used", "schema": { "properties": { "card": { "const": 4711 } } } });
    ask(&node, &admin, "POST", "/v1/event-types", &schema.to_string()).expect(201);
    let subscription = json!({ "pattern": "card.*", "endpoint": "shop", "filter": { "card": 4711 },
        "template": { "key": "hush" } });
    ask(&node, &admin, "POST", "/v1/subscriptions", &subscription.to_string()).expect(201);
    let message = format!("/v1/messages/{}", sent["id"]);
    let paths = [
        "/v1/endpoints",
        "/v1/endpoints/shop",
        &message,
        "/v1/event-types",
        "/v1/event-types/card.used",
        "/v1/subscriptions",
        "/v1/subscriptions/1",
    ];
    for path in paths {
        let whole = String::from_utf8(ask(&node, &admin, "GET", path, "").expect(200).body).expect("text");
        let reduced =
            String::from_utf8(ask(&node, &monitor, "GET", path, "").expect(200).body).expect("text");
        assert!(["4711", "127.0.0.1"].iter().any(|content| whole.contains(content)), "{whole}");
        for content in ["4711", "hush", "127.0.0.1", "blue"] {
            assert!(!reduced.contains(content), "{path}: {reduced}");
        }
    }
}

#[test]
fn a_token_is_made_listed_and_revoked_over_http() {
    let home = Home::new();
    let node = home.start();
    let new = json!({ "name": "operator", "scope": "admin" }).to_string();
    let issued = node.post("/v1/tokens", &[], new.as_bytes()).expect(201).json();
    let token = issued["token"].as_str().expect("a token");
    for (bad, field) in [("{\"name\":\"x\"}", "scope"), ("{\"name\":\"\",\"scope\":\"admin\"}", "name")] {
        let refused = ask(&node, token, "POST", "/v1/tokens", bad).json();
        assert_eq!(refused["field"], field, "{refused}");
    }
    let prefix = issued["prefix"].as_str().expect("a prefix");
    crate::eventually(Duration::from_secs(1), "the token is known", || {
        (node.get("/v1/status").status == 401).then_some(())
    });
    ask(&node, token, "DELETE", "/v1/tokens/pr_nobody", "").expect(404);
    let refused = ask(&node, token, "DELETE", &format!("/v1/tokens/{prefix}"), "").expect(409).json();
    assert_eq!(refused["type"], "urn:postrider:problem:conflict");
    assert_eq!(
        ask(&node, token, "DELETE", &format!("/v1/tokens/{prefix}?last=no"), "").expect(422).json()["field"],
        "last"
    );
    ask(&node, token, "GET", "/v1/status", "").expect(200);
    ask(&node, token, "DELETE", &format!("/v1/tokens/{prefix}?last=true"), "").expect(204);
    crate::eventually(Duration::from_secs(1), "no tokens are left", || {
        (node.get("/v1/status").status == 200).then_some(())
    });
    crate::eventually(Duration::from_secs(5), "it is told", || {
        node.written().contains("The store has no tokens any more").then_some(())
    });
}

#[test]
fn without_tokens_nobody_is_let_in_by_a_proxy() {
    let home = Home::new();
    let node = home.start();
    for proxied in ["forwarded", "x-forwarded-for", "x-real-ip", "via"] {
        let headers = [(proxied, "192.0.2.1")];
        let refused = node.post("/v1/tokens", &headers, b"{\"name\":\"me\",\"scope\":\"admin\"}").expect(403);
        let detail = refused.json()["detail"].as_str().expect("a detail").to_owned();
        assert!(detail.contains(proxied) && detail.contains("postrider token create"), "{detail}");
        node.client().send("GET", "/livez", &headers, b"").expect("an answer").expect(200);
    }
    let (token, _) = issue(&home, &["operator", "admin"]);
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("x-forwarded-for", "192.0.2.1")];
    crate::eventually(Duration::from_secs(1), "the token is known", || {
        let answer = node.client().send("GET", "/v1/status", &headers, b"").expect("an answer");
        (answer.status == 200).then_some(())
    });
}

#[test]
fn a_revoked_token_stops_working_within_a_second_on_every_node() {
    let server = Postgres::start().expect("a server of its own");
    let home = Home::new();
    let store = ["--store", &server.url()];
    home.json(&[&["migrate"], &store[..]].concat());
    let nodes = [home.start_with(&store), home.start_with(&store)];
    let (stays, _) = issue(&home, &[&["stays", "monitor"], &store[..]].concat());
    let (token, prefix) = issue(&home, &[&["goes", "monitor"], &store[..]].concat());
    for node in &nodes {
        crate::eventually(Duration::from_secs(1), "the token is known", || {
            (ask(node, &token, "GET", "/v1/status", "").status == 200).then_some(())
        });
    }
    home.json(&[&["token", "revoke", &prefix], &store[..]].concat());
    let revoked = Instant::now();
    for node in &nodes {
        crate::eventually(Duration::from_secs(1), "the token is refused", || {
            (ask(node, &token, "GET", "/v1/status", "").status == 401).then_some(())
        });
        ask(node, &stays, "GET", "/v1/status", "").expect(200);
    }
    assert!(revoked.elapsed() < Duration::from_secs(1), "{:?}", revoked.elapsed());
}

#[test]
fn a_tail_ends_with_its_token() {
    let (home, node, [_, _, monitor]) = guarded_shop();
    let mut client = node.client();
    let head = format!("GET /v1/tail HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {monitor}\r\n\r\n");
    client.write(head.as_bytes()).expect("it is read");
    assert!(client.read_until("listening"), "the tail begins");
    let prefix: Vec<&str> = monitor.splitn(3, '_').take(2).collect();
    home.json(&["token", "revoke", &prefix.join("_")]);
    let revoked = Instant::now();
    // The last chunk of an answer is empty.
    assert_eq!(client.read_line_with("0").as_deref(), Some(""));
    assert!(revoked.elapsed() < Duration::from_secs(1), "{:?}", revoked.elapsed());
    assert_eq!(client.read_line_with("HTTP"), None);
    assert!(revoked.elapsed() < Duration::from_secs(10), "the connection ends with it");
}

#[test]
fn other_machines_are_listened_to_only_with_tokens() {
    let home = Home::new();
    let listen = ["serve", "--listen", "0.0.0.0:0"];
    let refused = home.run(&listen);
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("postrider token create"));
    assert!(!home.store_file().exists(), "nothing is left behind");
    home.json(&["migrate"]);
    assert_eq!(home.run(&listen).status.code(), Some(2), "a store without tokens");
    let (token, prefix) = issue(&home, &["operator", "admin"]);
    let node = home.start_with(&["--listen", "0.0.0.0:0"]);
    ask(&node, &token, "GET", "/v1/status", "").expect(200);
    // A name that is not loopback is fine for whoever has a token, and a loopback one opens nothing without.
    let headers = [("host", "postrider.example"), ("authorization", &format!("Bearer {token}")[..])];
    node.client().send("GET", "/v1/status", &headers, b"").expect("an answer").expect(200);
    node.get("/v1/status").expect(401);
    home.json(&["token", "revoke", &prefix, "--last"]);
    crate::eventually(Duration::from_secs(1), "nobody gets in", || {
        (ask(&node, &token, "GET", "/v1/status", "").status == 401).then_some(())
    });
    node.get("/v1/status").expect(401);
    node.get("/livez").expect(200);
}

#[test]
fn the_command_line_shows_a_token_once() {
    let home = Home::new();
    home.json(&["migrate"]);
    let made = home.run(&["token", "create", "shop", "application"]);
    let token = String::from_utf8(made.stdout).expect("text").trim().to_owned();
    assert!(token.starts_with("pr_") && !token.contains(char::is_whitespace), "{token}");
    let listed = home.run(&["token", "list"]);
    let text = String::from_utf8(listed.stdout).expect("text");
    assert!(text.contains("shop") && text.contains("application") && !text.contains(&token), "{text}");
    let items: Value = home.json(&["token", "list"])["items"].clone();
    let prefix = items[0]["prefix"].as_str().expect("a prefix");
    assert!(token.starts_with(prefix));
    let refused = home.run(&["token", "revoke", prefix]);
    assert_eq!(refused.status.code(), Some(4), "the last one");
    let why = String::from_utf8(refused.stderr).expect("text");
    assert!(why.contains("is the last one") && why.contains("--last"), "{why}");
    home.json(&["token", "revoke", prefix, "--last"]);
    assert_eq!(home.run(&["token", "revoke", prefix]).status.code(), Some(4));
    assert_eq!(home.json(&["token", "list"])["items"], json!([]));
}

#[test]
fn a_whole_token_given_to_revoke_is_never_shown() {
    let home = Home::new();
    home.json(&["migrate"]);
    let (token, prefix) = issue(&home, &["shop", "application"]);
    let secret = token.rsplit('_').next().expect("a token has parts");
    let (last, unknown) = (["token", "revoke", &token], format!("pr_abcdefgh_{secret}"));
    let said = |arguments: &[&str]| {
        let output = home.run(arguments);
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).concat();
        assert!(!text.contains(secret), "{arguments:?}: {text}");
        (output.status.code(), text)
    };
    let (code, text) = said(&last);
    assert!(code == Some(4) && text.contains(&format!("token {prefix} is the last one")), "{text}");
    let (code, text) = said(&["token", "revoke", &unknown]);
    assert!(code == Some(4) && text.contains("pr_abcdefgh"), "{text}");
    let (code, text) = said(&["token", "revoke", &token, "--last"]);
    assert!(code == Some(0) && text.contains(&prefix), "{text}");
    assert_eq!(home.json(&["token", "list"])["items"], json!([]));
}
