//! HTTP/2: one connection for all, by agreement over TLS or by prior knowledge.

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use http::Version;
use serde_json::json;

use super::http_tls::{named_sink, serve};
use super::server::{Server, Speaks, header, status};
use super::support::*;
use crate::authority::Authority;

async fn plain_http2() -> Server {
    Server::start_at("127.0.0.1:0".parse().unwrap(), Speaks::Http2, None, |_| status(200)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_deliveries_share_one_connection() {
    let authority = Authority::new();
    let server = serve(authority.acceptor("receiver.test", &["h2", "http/1.1"])).await;
    let sink = named_sink(&server, "receiver.test", json!({"tls": {"ca": authority.pem()}}));
    for _ in 0..4 {
        let sent: Vec<_> = (0..64).map(|number| delivery(message(number, "{}"))).collect();
        for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
            result.unwrap();
        }
    }
    let received = server.received();
    assert_eq!((received.len(), server.connections()), (256, 1));
    assert!(received.iter().all(|request| request.version() == Version::HTTP_2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_without_http2_gets_http1_on_connections_that_are_kept() {
    let authority = Authority::new();
    let server = serve(authority.acceptor("receiver.test", &["http/1.1"])).await;
    let sink = named_sink(&server, "receiver.test", json!({"tls": {"ca": authority.pem()}}));
    for _ in 0..10 {
        let sent: Vec<_> = (0..8).map(|number| delivery(message(number, "{}"))).collect();
        assert!(join_all(sent.iter().map(|sent| sink.deliver(sent))).await.iter().all(Result::is_ok));
    }
    assert_eq!(server.received().len(), 80);
    assert!(server.connections() <= 8, "{} connections", server.connections());
}

#[tokio::test]
async fn http2_can_be_switched_off() {
    let authority = Authority::new();
    let server = serve(authority.acceptor("receiver.test", &["h2", "http/1.1"])).await;
    let sink = named_sink(&server, "receiver.test", json!({"tls": {"ca": authority.pem()}, "http2": false}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert_eq!(server.only().version(), Version::HTTP_11);
}

#[tokio::test]
async fn prior_knowledge_needs_no_tls() {
    let server = plain_http2().await;
    let sink = http_sink(json!({"url": server.url("/hook?x=1"), "http2": true}));
    sink.deliver(&delivery(message(1, "{\"a\":1}"))).await.unwrap();
    let request = server.only();
    assert_eq!((request.version(), request.body().as_ref()), (Version::HTTP_2, &b"{\"a\":1}"[..]));
    assert_eq!(request.uri().to_string(), server.url("/hook?x=1"));
    assert_eq!(header(&request, "webhook-id"), "msg_k3x9_1");
}

#[tokio::test]
async fn a_host_header_becomes_the_authority() {
    let server = plain_http2().await;
    let sink =
        http_sink(json!({"url": server.url("/"), "http2": true, "headers": {"Host": "other.example"}}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert_eq!(server.only().uri().authority().unwrap(), "other.example");
}

#[tokio::test]
async fn a_restarted_receiver_gets_a_new_connection() {
    let server = plain_http2().await;
    let address = server.address;
    let sink = http_sink(json!({"url": server.url("/"), "http2": true}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    server.stop().await;
    sink.deliver(&delivery(message(2, "{}"))).await.failed();
    let server = Server::start_at(address, Speaks::Http2, None, |_| status(200)).await;
    for number in 3..6 {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
    assert_eq!((server.received().len(), server.connections()), (3, 1));
}

#[tokio::test]
async fn a_receiver_that_speaks_http1_to_prior_knowledge_is_retryable() {
    let server = Server::ok().await;
    let sink = http_sink(json!({"url": server.url("/"), "http2": true}));
    let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.class, postrider::verdict::Class::Retryable, "{}", failure.error);
}

#[tokio::test]
async fn a_cancelled_delivery_leaves_the_shared_connection_to_the_others() {
    let server = plain_http2().await;
    let sink = http_sink(json!({"url": server.url("/"), "http2": true}));
    sink.deliver(&delivery(message(0, "{}"))).await.unwrap();
    for number in 1..20 {
        let cancelled = delivery(message(100 + number, "{}"));
        assert!(sink.deliver(&cancelled).now_or_never().is_none());
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
    assert_eq!(server.connections(), 1);
}
