//! Deliveries through a proxy.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use http::Version;
use postrider::sink::{Environment, Sink, Undelivered, connect};
use postrider::verdict::{Class, Failure};
use serde_json::{Value, json};

use super::gate::Answers;
use super::http_tls::{named_sink, serve};
use super::raw::RawServer;
use super::server::{Server, Speaks, answer, header, status};
use super::support::*;
use super::tunnels::TunnelProxy;
use crate::authority::Authority;

fn through(proxy: &TunnelProxy, url: &str, more: Value) -> Arc<dyn Sink> {
    let mut config = object(json!({"url": url, "proxy": {"url": proxy.url()}}));
    config.extend(object(more));
    http_sink(Value::Object(config))
}

async fn deliver(sink: &Arc<dyn Sink>) -> Result<(), Undelivered> {
    sink.deliver(&delivery(message(1, "{\"a\":1}"))).await.map(drop)
}

#[track_caller]
fn assert_mendable(failure: &Failure) {
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.counts_for_breaker(), "{}", failure.error);
}

#[tokio::test]
async fn a_receiver_is_reached_through_a_tunnel_that_is_kept() {
    let (proxy, server) = (TunnelProxy::open().await, Server::ok().await);
    let sink = through(&proxy, &server.url("/hook?x=1"), json!({}));
    for _ in 0..3 {
        deliver(&sink).await.unwrap();
    }
    let received = server.received();
    assert_eq!((received.len(), server.connections()), (3, 1));
    assert_eq!(received[0].uri(), "/hook?x=1", "the receiver gets what it gets without a proxy");
    assert_eq!(header(&received[0], "host"), server.address.to_string());
    let asked = proxy.asked();
    assert_eq!(asked.len(), 1);
    let expected = format!("CONNECT {} HTTP/1.1\r\nhost: {}\r\n", server.address, server.address);
    assert!(asked[0].starts_with(&expected), "{}", asked[0]);
    assert!(!asked[0].contains("authorization"), "{}", asked[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_agreed_on_through_the_tunnel_and_shared() {
    let authority = Authority::new();
    let proxy = TunnelProxy::open().await;
    let server = serve(authority.acceptor("receiver.test", &["h2", "http/1.1"])).await;
    let more = json!({"tls": {"ca": authority.pem()}, "proxy": {"url": proxy.url()}});
    let sink = named_sink(&server, "receiver.test", more);
    let sent: Vec<_> = (0..64).map(|number| delivery(message(number, "{}"))).collect();
    for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
        result.unwrap();
    }
    let received = server.received();
    assert_eq!((received.len(), server.connections(), proxy.asked().len()), (64, 1, 1));
    assert!(received.iter().all(|request| request.version() == Version::HTTP_2));
    assert!(proxy.asked()[0].starts_with(&format!("CONNECT receiver.test:{} ", server.address.port())));
}

#[tokio::test]
async fn http2_by_prior_knowledge_works_through_the_tunnel() {
    let proxy = TunnelProxy::open().await;
    let server = Server::start_at("127.0.0.1:0".parse().unwrap(), Speaks::Http2, None, |_| status(200)).await;
    deliver(&through(&proxy, &server.url("/"), json!({"http2": true}))).await.unwrap();
    assert_eq!((server.only().version(), proxy.asked().len()), (Version::HTTP_2, 1));
}

#[tokio::test]
async fn the_way_to_the_proxy_can_be_encrypted_too() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start(Some(authority.acceptor("127.0.0.1", &[])), |_| 200).await;
    let server = serve(authority.acceptor("receiver.test", &["h2"])).await;
    let proxy_url = format!("https://{}/", proxy.address);
    let more = |ca: &str| json!({"tls": {"ca": ca}, "proxy": {"url": proxy_url}});
    deliver(&named_sink(&server, "receiver.test", more(&authority.pem()))).await.unwrap();
    assert_eq!((server.only().version(), proxy.asked().len()), (Version::HTTP_2, 1));
    let failure =
        deliver(&named_sink(&server, "receiver.test", more(&Authority::new().pem()))).await.failed();
    assert_mendable(&failure);
    assert_says(&failure, "cannot reach the proxy: the TLS handshake with 127.0.0.1 failed");
}

#[tokio::test]
async fn the_certificate_of_the_endpoint_is_not_shown_to_the_proxy() {
    let authority = Authority::new();
    let proxy = TunnelProxy::start(Some(authority.demanding_acceptor("127.0.0.1")), |_| 200).await;
    let server = serve(authority.demanding_acceptor("receiver.test")).await;
    let (certificate, key) = authority.issue(&[], "postrider");
    let tls =
        json!({"ca": authority.pem(), "client_cert": certificate.pem(), "client_key": key.serialize_pem()});
    let proxied =
        |url: String| named_sink(&server, "receiver.test", json!({"tls": tls, "proxy": {"url": url}}));
    assert_mendable(&deliver(&proxied(format!("https://{}", proxy.address))).await.failed());
    assert_eq!(proxy.asked().len(), 0);
    let plain = TunnelProxy::open().await;
    deliver(&proxied(plain.url())).await.unwrap();
    assert_eq!(server.received().len(), 1, "the receiver gets it through the tunnel");
}

#[tokio::test]
async fn credentials_go_to_the_proxy_only() {
    // shop:pass word
    let proxy = TunnelProxy::start(None, |head| {
        if head.contains("proxy-authorization: Basic c2hvcDpwYXNzIHdvcmQ=\r\n") { 200 } else { 407 }
    })
    .await;
    let server = Server::ok().await;
    let with = |password: &str| {
        let proxy = json!({"url": proxy.url(), "username": "shop", "password": password});
        http_sink(json!({"url": server.url("/"), "proxy": proxy}))
    };
    deliver(&with("pass word")).await.unwrap();
    let request = server.only();
    assert!(request.headers().keys().all(|name| !name.as_str().starts_with("proxy-")));

    let failure = deliver(&with("wrong one")).await.failed();
    assert_mendable(&failure);
    assert_eq!(
        failure.error,
        format!(
            "the proxy {} answered 407 Proxy Authentication Required to CONNECT {}; it does not accept \
             config.proxy.username and config.proxy.password",
            proxy.address, server.address
        )
    );
    let failure = deliver(&through(&proxy, &server.url("/"), json!({}))).await.failed();
    assert_mendable(&failure);
    assert_says(&failure, "it wants config.proxy.username and config.proxy.password");
    assert_eq!(failure.status, None, "the receiver has not answered");
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn a_password_may_be_a_reference() {
    let proxy = TunnelProxy::start(None, |head| {
        if head.contains("proxy-authorization: Basic c2hvcDpwYXNzIHdvcmQ=\r\n") { 200 } else { 407 }
    })
    .await;
    let server = Server::ok().await;
    let secrets = tempfile::tempdir().unwrap();
    std::fs::write(secrets.path().join("password"), "pass word\n").unwrap();
    let environment = Environment { secrets_dir: Some(secrets.path().to_owned()), ..open_environment() };
    let proxy = json!({"url": proxy.url(), "username": "shop", "password": "file:password"});
    let config = json!({"url": server.url("/"), "proxy": proxy});
    deliver(&connect(&endpoint("http", config), &environment).unwrap()).await.unwrap();
}

#[tokio::test]
async fn what_a_proxy_refuses_can_be_mended() {
    let server = Server::ok().await;
    for (code, says) in
        [(403, "403 Forbidden"), (404, "404 Not Found"), (502, "502 Bad Gateway"), (302, "302 Found")]
    {
        let proxy = TunnelProxy::start(None, move |_| code).await;
        let failure = deliver(&through(&proxy, &server.url("/"), json!({}))).await.failed();
        assert_mendable(&failure);
        let (proxy, server) = (proxy.address, server.address);
        assert_eq!(failure.error, format!("the proxy {proxy} answered {says} to CONNECT {server}"));
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn a_proxy_that_fails_is_named() {
    let scripts = [
        (RawServer::answering(b"SSH-2.0-x\r\n\r\n").await, "opened no tunnel: the answer is not valid HTTP"),
        (
            RawServer::start(|mut peer, _| async move { drop(peer.request().await) }).await,
            "opened no tunnel: the connection was closed before an answer came",
        ),
    ];
    for (proxy, says) in scripts {
        let config = json!({"url": "http://127.0.0.1:9/", "proxy": {"url": proxy.url()}});
        let failure = deliver(&http_sink(config)).await.failed();
        assert_mendable(&failure);
        assert_says(&failure, &format!("the proxy {} {says}", proxy.address));
    }
    let silent = RawServer::start(|mut peer, _| async move { while peer.request().await.is_some() {} }).await;
    let proxy = json!({"url": silent.url()});
    let config = json!({"url": "http://127.0.0.1:9/", "connect_timeout": 0.2, "proxy": proxy});
    let failure = deliver(&http_sink(config)).await.failed();
    assert_mendable(&failure);
    assert_says(&failure, "timed out connecting after 0.2 s");

    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = json!({"url": "http://127.0.0.1:9/", "proxy": {"url": format!("http://{gone}")}});
    let failure = deliver(&http_sink(config)).await.failed();
    assert_mendable(&failure);
    assert_eq!(failure.error, format!("cannot reach the proxy: connection refused by {gone}"));
}

#[tokio::test]
async fn a_lost_tunnel_is_opened_again() {
    let proxy = TunnelProxy::open().await;
    let server = Server::ok().await;
    let address = server.address;
    let sink = through(&proxy, &server.url("/"), json!({}));
    deliver(&sink).await.unwrap();
    server.stop().await;
    assert_mendable(&deliver(&sink).await.failed());
    let server = Server::start_at(address, Speaks::Http1, None, |_| status(200)).await;
    deliver(&sink).await.unwrap();
    assert_eq!(server.received().len(), 1);
}

/// Such that the proxy itself is allowed.
fn proxy_only(answers: &[&[&str]]) -> Environment {
    Environment {
        allow_nets: vec!["127.0.0.1/32".parse().unwrap()],
        resolver: Answers::new(answers),
        ..Environment::default()
    }
}

#[tokio::test]
async fn the_proxy_passes_the_gate() {
    let (proxy, server) = (TunnelProxy::open().await, Server::ok().await);
    let config = |host: &str| {
        let proxy = json!({"url": format!("http://{host}:{}", proxy.address.port())});
        json!({"url": server.url("/"), "proxy": proxy})
    };
    let at = |host: &str, environment: &Environment| {
        connect(&endpoint("http", config(host)), environment).unwrap()
    };
    deliver(&at("127.0.0.1", &proxy_only(&[]))).await.unwrap();
    for (host, answers) in
        [("127.0.0.2", &[][..]), ("[::1]", &[]), ("proxy.example", &[&["192.168.0.1"][..]])]
    {
        let failure = deliver(&at(host, &proxy_only(answers))).await.failed();
        assert_eq!(failure.class, Class::Permanent);
        assert_says(&failure, "cannot reach the proxy: ");
        assert_says(&failure, "is an internal address");
    }
    assert_eq!(proxy.asked().len(), 1);
}

#[tokio::test]
async fn a_receiver_that_this_node_knows_as_internal_is_refused_before_the_proxy_is_asked() {
    let proxy = TunnelProxy::open().await;
    let cases: [(&str, &[&[&str]]); 6] = [
        ("10.0.0.1", &[]),
        ("169.254.169.254", &[]),
        ("0x7f000002", &[]),
        ("[::ffff:10.0.0.1]", &[]),
        ("internal.example", &[&["10.0.0.1"]]),
        ("mixed.example", &[&["93.184.216.34", "10.0.0.1"]]),
    ];
    for (host, answers) in cases {
        let config = json!({"url": format!("http://{host}/"), "proxy": {"url": proxy.url()}});
        let sink = connect(&endpoint("http", config), &proxy_only(answers)).unwrap();
        let failure = deliver(&sink).await.failed();
        assert_eq!(failure.class, Class::Permanent, "{host}: {}", failure.error);
        assert_says(&failure, "is an internal address");
    }
    assert!(proxy.asked().is_empty());
}

#[tokio::test]
async fn a_name_that_only_the_proxy_knows_is_left_to_it() {
    let (proxy, server) = (TunnelProxy::open().await, Server::ok().await);
    for answers in [&[][..], &[&["93.184.216.34"][..]]] {
        let url = format!("http://far.example:{}/", server.address.port());
        let config = json!({"url": url, "proxy": {"url": proxy.url()}});
        deliver(&connect(&endpoint("http", config), &proxy_only(answers)).unwrap()).await.unwrap();
    }
    assert_eq!(server.received().len(), 2);
    assert!(proxy.asked()[0].starts_with("CONNECT far.example:"));
}

#[derive(Debug)]
struct Silent;

#[async_trait::async_trait]
impl postrider::sink::Resolve for Silent {
    async fn resolve(&self, _: &str) -> std::io::Result<Vec<std::net::IpAddr>> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_node_without_a_resolver_leaves_names_to_the_proxy() {
    let (proxy, server) = (TunnelProxy::open().await, Server::ok().await);
    let environment = Environment { resolver: Arc::new(Silent), ..proxy_only(&[]) };
    let url = format!("http://far.example:{}/", server.address.port());
    let config = json!({"url": url, "proxy": {"url": proxy.url()}});
    let sink = connect(&endpoint("http", config), &environment).unwrap();
    tokio::time::timeout(Duration::from_secs(4), deliver(&sink)).await.expect("in time").unwrap();
}

#[tokio::test]
async fn tokens_and_redirects_take_the_same_way() {
    let proxy = TunnelProxy::open().await;
    let tokens = Server::start(|_| answer(200, r#"{"access_token":"token-1"}"#)).await;
    let target = Server::ok().await;
    let location = target.url("/there");
    let server = Server::start(move |_| {
        let mut response = status(307);
        response.headers_mut().insert("location", location.parse().unwrap());
        response
    })
    .await;
    let auth =
        json!({"type": "oauth2", "token_url": tokens.url("/"), "client_id": "i", "client_secret": "s"});
    deliver(&through(&proxy, &server.url("/"), json!({"auth": auth, "max_redirects": 1}))).await.unwrap();
    assert_eq!(target.received().len(), 1);
    let asked: Vec<String> =
        proxy.asked().iter().map(|head| head.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(asked, [tokens.address, server.address, target.address].map(|address| address.to_string()));
}
