//! How answers are judged, captured, and connections used again.

use std::time::Duration;

use futures_util::future::join_all;
use http_body_util::Full;
use postrider::sink::{Capture, Delivery};
use postrider::verdict::Class;

use serde_json::json;

use super::server::{Server, answer, status};
use super::support::*;

#[tokio::test]
async fn the_status_decides() {
    let server = Server::start(|request| status(request.uri().path()[1..].parse().unwrap())).await;
    let cases = [
        (200, None),
        (201, None),
        (202, None),
        (204, None),
        (299, None),
        (300, Some(Class::Retryable)),
        (302, Some(Class::Retryable)),
        (304, Some(Class::Retryable)),
        (307, Some(Class::Retryable)),
        (400, Some(Class::Permanent)),
        (401, Some(Class::Permanent)),
        (404, Some(Class::Permanent)),
        (408, Some(Class::Retryable)),
        (410, Some(Class::Gone)),
        (413, Some(Class::Permanent)),
        (425, Some(Class::Retryable)),
        (429, Some(Class::Retryable)),
        (500, Some(Class::Retryable)),
        (503, Some(Class::Retryable)),
        (599, Some(Class::Retryable)),
    ];
    for (code, class) in cases {
        let result = plain_sink(&server.url(&format!("/{code}"))).deliver(&delivery(message(1, "{}"))).await;
        match result {
            Ok(receipt) => assert_eq!((None, Some(code)), (class, receipt.status)),
            Err(refused) => {
                let failure = refused.failed();
                assert_eq!((Some(failure.class), failure.status), (class, Some(code)));
            }
        }
    }
}

#[tokio::test]
async fn an_endpoint_says_which_answers_are_worth_another_try() {
    let server = Server::start(|request| {
        let mut response = status(request.uri().path()[1..].parse().unwrap());
        response.headers_mut().insert("retry-after", "17".parse().unwrap());
        response
    })
    .await;
    let cases = [
        (json!([404]), 404, Class::Retryable),
        (json!([404]), 405, Class::Permanent),
        (json!([404, "4xx"]), 405, Class::Retryable),
        (json!(["4xx"]), 410, Class::Gone),
        (json!([410]), 410, Class::Retryable),
        (json!(["3xx"]), 404, Class::Permanent),
    ];
    for (listed, code, class) in cases {
        let config = json!({"url": server.url(&format!("/{code}")), "retry_status": listed});
        let failure = http_sink(config).deliver(&delivery(message(1, "{}"))).await.failed();
        assert_eq!((failure.class, failure.status), (class, Some(code)), "{listed}");
        assert_eq!(failure.counts_for_breaker(), class == Class::Retryable, "as any other failure");
        assert_eq!(failure.retry_after, None, "only 429 and 503 say when");
    }
    let config = json!({"url": server.url("/429"), "retry_status": ["4xx"]});
    let failure = http_sink(config).deliver(&delivery(message(1, "{}"))).await.failed();
    assert!(!failure.counts_for_breaker() && failure.retry_after.is_some(), "429 stays what it is");
}

#[tokio::test]
async fn failures_say_what_was_answered() {
    let server = Server::start(|request| status(request.uri().path()[1..].parse().unwrap())).await;
    for (code, text) in
        [(503, "answered 503 Service Unavailable"), (410, "answered 410 Gone"), (599, "answered 599")]
    {
        let sink = plain_sink(&server.url(&format!("/{code}")));
        assert_eq!(sink.deliver(&delivery(message(1, "{}"))).await.failed().error, text);
    }
}

#[tokio::test]
async fn retry_after_is_passed_on() {
    let server = Server::start(|_| {
        let mut response = status(429);
        response.headers_mut().insert("retry-after", "17".parse().unwrap());
        response
    })
    .await;
    let failure = plain_sink(&server.url("/")).deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.retry_after, Some(Duration::from_secs(17)));
}

#[tokio::test]
async fn answers_are_captured_only_when_asked_and_only_so_far() {
    let server =
        Server::start(|request| answer(request.uri().path()[1..].parse().unwrap(), "0123456789")).await;
    let capture = |on_success, on_failure, bytes_max| Capture { on_success, on_failure, bytes_max };
    let cases = [
        (200, capture(true, false, 100), Some("0123456789")),
        (200, capture(true, false, 10), Some("0123456789")),
        (200, capture(true, false, 4), Some("0123")),
        (200, capture(true, false, 0), Some("")),
        (200, capture(false, true, 100), None),
        (500, capture(false, true, 100), Some("0123456789")),
        (500, capture(false, true, 4), Some("0123")),
        (500, capture(true, false, 100), None),
    ];
    for (code, capture, expected) in cases {
        let sink = plain_sink(&server.url(&format!("/{code}")));
        let body = match sink.deliver(&Delivery { capture, ..delivery(message(1, "{}")) }).await {
            Ok(receipt) => receipt.body,
            Err(refused) => refused.failed().body,
        };
        assert_eq!(body.as_deref(), expected.map(str::as_bytes), "{code} {capture:?}");
    }
}

#[tokio::test]
async fn one_connection_serves_one_delivery_after_the_other() {
    let server = Server::start(|_| answer(200, "x".repeat(60_000))).await;
    let sink = plain_sink(&server.url("/"));
    for number in 0..20 {
        let sent = message(number, "{}");
        let sent = if number % 2 == 0 { delivery(sent) } else { capturing(sent, 10) };
        sink.deliver(&sent).await.unwrap();
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn failures_do_not_cost_the_connection() {
    let server = Server::start(|_| answer(500, "sorry")).await;
    let sink = plain_sink(&server.url("/"));
    for number in 0..5 {
        sink.deliver(&delivery(message(number, "{}"))).await.failed();
    }
    assert_eq!(server.connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_many_connections_are_opened_as_deliveries_are_in_flight() {
    let server = Server::ok().await;
    let sink = plain_sink(&server.url("/"));
    for _ in 0..20 {
        let sent: Vec<_> = (0..16).map(|number| delivery(message(number, "{}"))).collect();
        assert!(join_all(sent.iter().map(|sent| sink.deliver(sent))).await.iter().all(Result::is_ok));
    }
    assert_eq!(server.received().len(), 320);
    assert!(server.connections() <= 16, "{} connections", server.connections());
}

#[tokio::test]
async fn a_receiver_that_closes_every_connection_gets_every_message() {
    let server = Server::start(|_| {
        let mut response = answer(200, "bye");
        response.headers_mut().insert("connection", "close".parse().unwrap());
        response
    })
    .await;
    let sink = plain_sink(&server.url("/"));
    for number in 0..5 {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
    assert_eq!((server.received().len(), server.connections()), (5, 5));
}

#[tokio::test]
async fn a_large_body_is_not_read_for_nothing() {
    let server = Server::start(|_| http::Response::new(Full::new(vec![b'x'; 10_000_000].into()))).await;
    let sink = plain_sink(&server.url("/"));
    for number in 0..3 {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
    assert_eq!(server.connections(), 3, "opening another one is cheaper");
}
