//! Redirects are followed only as far as asked, only where the payload survives, and only to allowed places.

use postrider::message::Message;
use postrider::sink::{Environment, Sink, connect};
use postrider::verdict::{Class, Failure};
use serde_json::{Value, json};
use std::sync::Arc;

use super::server::{Received, Server, header, status};
use super::support::*;

/// Answers `/go` with a redirect, all else with 200.
async fn redirecting(code: u16, location: impl Into<String>) -> Server {
    let location = location.into();
    Server::start(move |request: &Received| match request.uri().path() {
        "/go" => {
            let mut response = status(code);
            response.headers_mut().insert("location", location.parse().unwrap());
            response
        }
        _ => status(200),
    })
    .await
}

fn following(server: &Server, more: Value) -> Arc<dyn Sink> {
    let mut config = object(json!({"url": server.url("/go"), "max_redirects": 3}));
    config.extend(object(more));
    http_sink(Value::Object(config))
}

async fn failure_of(sink: &Arc<dyn Sink>) -> Failure {
    sink.deliver(&delivery(message(1, "{}"))).await.failed()
}

#[tokio::test]
async fn redirects_are_not_followed_unless_asked() {
    let server = redirecting(307, "/there").await;
    let failure = failure_of(&plain_sink(&server.url("/go"))).await;
    assert_eq!((failure.class, failure.status), (Class::Retryable, Some(307)));
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn what_keeps_method_and_payload_is_followed() {
    for code in [307, 308] {
        let target = Server::ok().await;
        let server = redirecting(code, target.url("/there?x=1")).await;
        following(&server, json!({"method": "PUT"}))
            .deliver(&delivery(message(1, "{\"a\":1}")))
            .await
            .unwrap();
        let request = target.only();
        assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("PUT", "/there?x=1"));
        assert_eq!(request.body(), "{\"a\":1}");
        assert_eq!(header(&request, "webhook-id"), "msg_k3x9_1");
        assert_eq!(header(&request, "host"), target.address.to_string());
    }
}

#[tokio::test]
async fn the_next_delivery_begins_at_the_endpoint_again() {
    let target = Server::ok().await;
    let server = redirecting(307, target.url("/there")).await;
    let sink = following(&server, json!({}));
    for number in 1..=3 {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
        assert_eq!((server.received().len() as i64, target.received().len() as i64), (number, number));
    }
}

#[tokio::test]
async fn what_would_drop_the_payload_is_not_followed() {
    for code in [301, 302, 303] {
        let server = redirecting(code, "/there").await;
        let failure = failure_of(&following(&server, json!({}))).await;
        assert_eq!((failure.class, failure.status), (Class::Retryable, Some(code)));
        assert_says(&failure, "only 307 and 308 are followed");
        assert_eq!(server.received().len(), 1);
    }
}

#[tokio::test]
async fn a_get_has_no_payload_to_drop() {
    for code in [301, 302, 303] {
        let server = redirecting(code, "/there").await;
        following(&server, json!({"method": "GET"})).deliver(&delivery(message(1, "{}"))).await.unwrap();
        assert_eq!(server.received()[1].uri().path(), "/there");
    }
}

#[tokio::test]
async fn credentials_stay_with_their_origin() {
    let config =
        json!({"auth": {"type": "bearer", "token": "t"}, "headers": {"X-Api-Key": "k", "X-Plain": "p"}});
    let headers = [("Cookie".to_owned(), "c".to_owned())].into();
    let sent = delivery(Message { headers, ..message(1, "{}") });

    let target = Server::ok().await;
    let server = redirecting(307, target.url("/there")).await;
    following(&server, config.clone()).deliver(&sent).await.unwrap();
    let request = target.only();
    for name in ["authorization", "x-api-key", "cookie"] {
        assert!(!request.headers().contains_key(name), "{name}");
    }
    assert_eq!(header(&request, "x-plain"), "p");

    let server = redirecting(307, "there").await;
    following(&server, config).deliver(&sent).await.unwrap();
    let request = &server.received()[1];
    assert_eq!(header(request, "authorization"), "Bearer t");
    assert_eq!(header(request, "x-api-key"), "k");
}

#[tokio::test]
async fn a_loop_ends_at_the_limit() {
    let server = redirecting(307, "/go").await;
    let failure = failure_of(&following(&server, json!({"max_redirects": 4}))).await;
    assert_eq!((failure.class, failure.status), (Class::Retryable, Some(307)));
    assert_says(&failure, "after 4 redirects");
    assert_eq!(server.received().len(), 5);
}

#[tokio::test]
async fn a_redirect_without_a_valid_location_is_retryable() {
    for location in ["http://", "http://x:99999/"] {
        let server = redirecting(307, location).await;
        assert_says(&failure_of(&following(&server, json!({}))).await, "without a valid location");
    }
    let server = Server::start(|_| status(308)).await;
    assert_says(&failure_of(&following(&server, json!({}))).await, "without a valid location");
}

#[tokio::test]
async fn a_redirect_passes_the_gate_like_any_other_url() {
    let inside = Server::ok().await;
    let port = inside.address.port();
    let open_door =
        Environment { allow_nets: vec!["127.0.0.1/32".parse().unwrap()], ..Environment::default() };
    let hosts = [
        "127.0.0.2",
        "0x7f000002",
        "[::1]",
        "[::ffff:127.0.0.2]",
        "localhost.localdomain",
        "10.0.0.1",
        "169.254.169.254",
    ];
    for host in hosts {
        let server = redirecting(307, format!("http://{host}:{port}/")).await;
        let endpoint = endpoint("http", json!({"url": server.url("/go"), "max_redirects": 3}));
        let failure = failure_of(&connect(&endpoint, &open_door).unwrap()).await;
        // A name that this machine does not know fails before the gate, which is as good.
        let refused = failure.class == Class::Permanent && failure.error.contains("--allow-internal");
        assert!(refused || failure.error.contains("cannot resolve"), "{host}: {}", failure.error);
    }
    assert!(inside.received().is_empty());
}

#[tokio::test]
async fn a_redirect_that_is_not_plain_http_is_refused() {
    for (location, text) in
        [("ftp://x/", "not http"), ("file:///etc/passwd", "not http"), ("http://u:p@127.0.0.1/", "password")]
    {
        let server = redirecting(307, location).await;
        let failure = failure_of(&following(&server, json!({}))).await;
        assert_eq!(failure.class, Class::Permanent, "{location}");
        assert_says(&failure, text);
    }
}
