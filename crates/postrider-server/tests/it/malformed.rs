//! What is not HTTP is refused as everything else is: with a problem document.

use crate::http::{Answer, Client};
use crate::node::{Home, Node};

/// The answer to exactly these bytes, after which the node closes.
#[track_caller]
fn refused(node: &Node, bytes: &[u8]) -> Answer {
    let mut client = node.client();
    // The node may stop reading before the end.
    let _ = client.write(bytes);
    last_refusal(&mut client)
}

#[track_caller]
fn last_refusal(client: &mut Client) -> Answer {
    let answer = client.read().expect("an answer");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    assert_eq!(answer.json()["status"], answer.status);
    assert!(client.read().is_err(), "the connection is closed");
    answer
}

#[track_caller]
fn assert_refused(answer: &Answer, status: u16, kind: &str) {
    let document = answer.json();
    assert_eq!((answer.status, &document["type"]), (status, &format!("urn:postrider:problem:{kind}").into()));
    assert!(document["title"].is_string() && document["detail"].is_string(), "{document:#}");
}

#[test]
fn what_cannot_be_read_as_http_gets_a_problem_document() {
    let home = Home::new();
    let node = home.start();
    let many: String = (0..101).map(|n| format!("x-{n}: 1\r\n")).collect();
    let cases = [
        ("a line that is none", "HELLO\r\n\r\n".to_owned(), 400, "malformed"),
        ("no method", " /livez HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(), 400, "malformed"),
        (
            "a version that is none",
            "GET /livez HTTP/9\r\nhost: localhost\r\n\r\n".to_owned(),
            400,
            "malformed",
        ),
        ("a header without a colon", "GET /livez HTTP/1.1\r\nhost\r\n\r\n".to_owned(), 400, "malformed"),
        (
            "two lengths",
            "POST /v1/pause HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab"
                .to_owned(),
            400,
            "malformed",
        ),
        (
            "a long path",
            format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(70_000)),
            414,
            "uri-too-long",
        ),
        (
            "many headers",
            format!("GET /livez HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
            431,
            "head-too-large",
        ),
        (
            "a large header",
            format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "x".repeat(600_000)),
            431,
            "head-too-large",
        ),
    ];
    for (what, request, status, kind) in cases {
        println!("{what}");
        assert_refused(&refused(&node, request.as_bytes()), status, kind);
    }
}

#[test]
fn a_body_that_is_badly_chunked_gets_a_problem_document() {
    let home = Home::new();
    let node = home.start();
    let chunked =
        "POST /v1/pause HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nnot a length\r\n";
    assert_refused(&refused(&node, chunked.as_bytes()), 400, "broken-body");
}

#[test]
fn what_came_before_on_the_same_connection_is_answered_first() {
    let home = Home::new();
    let node = home.start();
    let good = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut client = node.client();
    client.write(format!("{good}{good}HELLO\r\n\r\n").as_bytes()).expect("it is taken");
    for _ in 0..2 {
        let answer = client.read().expect("an answer").expect(200);
        assert_eq!(answer.json()["status"], "alive");
    }
    assert_refused(&last_refusal(&mut client), 400, "malformed");
}
