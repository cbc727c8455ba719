//! `auth` with `oauth2`: tokens by client credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use http::header::AUTHORIZATION;
use postrider::sink::{Environment, Sink, connect};
use postrider::verdict::{Class, Failure};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::gate::Answers;
use super::raw::RawServer;
use super::server::{Received, Server, Speaks, answer, header, status};
use super::support::*;
use crate::authority::Authority;

const PATIENCE: Duration = Duration::from_secs(20);
const SECRET: &str = "p: +%/ü?";

/// Gives the tokens `token-1`, `token-2` and so on.
async fn token_server(expires_in: Value) -> Server {
    let given = AtomicUsize::new(0);
    Server::start(move |_| {
        let number = given.fetch_add(1, SeqCst) + 1;
        let token = format!("token-{number}");
        answer(
            200,
            json!({"access_token": token, "token_type": "bearer", "expires_in": expires_in}).to_string(),
        )
    })
    .await
}

/// Accepts requests with one of these tokens.
async fn receiver(accepted: &'static [&'static str]) -> Server {
    Server::start(move |request| {
        let token = header(request, "authorization").strip_prefix("Bearer ").unwrap();
        status(if accepted.contains(&token) { 200 } else { 401 })
    })
    .await
}

fn oauth2(token_url: &str) -> Value {
    json!({"type": "oauth2", "token_url": token_url, "client_id": "shop:1", "client_secret": SECRET})
}

fn sink_for(receiver: &Server, token_url: &str) -> Arc<dyn Sink> {
    http_sink(json!({"url": receiver.url("/hook"), "auth": oauth2(token_url)}))
}

fn tokens_of(received: &[Received]) -> Vec<&str> {
    received.iter().map(|request| header(request, "authorization").strip_prefix("Bearer ").unwrap()).collect()
}

async fn deliver(sink: &Arc<dyn Sink>) -> Result<(), postrider::sink::Undelivered> {
    sink.deliver(&delivery(message(1, "{}"))).await.map(drop)
}

#[track_caller]
fn assert_mendable(failure: &Failure) {
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.counts_for_breaker(), "{}", failure.error);
    assert_says(failure, "cannot get an access token: ");
    for secret in [SECRET, "p%3A+%2B%25%2F%C3%BC%3F", "c2hvcCUzQTE6cCUzQSslMkIlMjUlMkYlQzMlQkMlM0Y="] {
        assert!(!failure.error.contains(secret), "{}", failure.error);
    }
}

#[tokio::test]
async fn the_token_endpoint_is_asked_as_the_standard_says() {
    let tokens = token_server(json!(3600)).await;
    let receiver = receiver(&["token-1"]).await;
    let mut auth = oauth2(&tokens.url("/token?tenant=7"));
    auth["scope"] = "read write".into();
    auth["audience"] = "https://api.example/".into();
    let sink = http_sink(json!({"url": receiver.url("/hook"), "auth": auth}));
    deliver(&sink).await.unwrap();
    let request = tokens.only();
    assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("POST", "/token?tenant=7"));
    assert_eq!(header(&request, "content-type"), "application/x-www-form-urlencoded");
    assert_eq!(header(&request, "accept"), "application/json");
    assert_eq!(
        request.body(),
        "grant_type=client_credentials&scope=read+write&audience=https%3A%2F%2Fapi.example%2F"
    );
    let credentials = header(&request, "authorization").strip_prefix("Basic ").unwrap();
    let credentials = String::from_utf8(BASE64_STANDARD.decode(credentials).unwrap()).unwrap();
    assert_eq!(credentials, "shop%3A1:p%3A+%2B%25%2F%C3%BC%3F", "both are encoded as in a form");
    assert_eq!(header(&receiver.only(), "authorization"), "Bearer token-1");
}

#[tokio::test]
async fn credentials_may_go_into_the_body() {
    let tokens = token_server(json!(3600)).await;
    let receiver = receiver(&["token-1"]).await;
    let mut auth = oauth2(&tokens.url("/token"));
    auth["client_auth"] = "body".into();
    deliver(&http_sink(json!({"url": receiver.url("/hook"), "auth": auth}))).await.unwrap();
    let request = tokens.only();
    assert!(!request.headers().contains_key(AUTHORIZATION));
    assert_eq!(
        request.body(),
        "grant_type=client_credentials&client_id=shop%3A1&client_secret=p%3A+%2B%25%2F%C3%BC%3F"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_deliveries_share_one_token() {
    let tokens = token_server(json!(3600)).await;
    let receiver = receiver(&["token-1"]).await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    for _ in 0..2 {
        let sent: Vec<_> = (0..64).map(|number| delivery(message(number, "{}"))).collect();
        for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
            result.unwrap();
        }
    }
    assert_eq!((tokens.received().len(), receiver.received().len()), (1, 128));
}

#[tokio::test]
async fn a_token_is_replaced_before_it_ends() {
    let tokens = token_server(json!(1)).await;
    let receiver = Server::ok().await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    deliver(&sink).await.unwrap();
    let replaced = async {
        while tokens.received().len() < 2 {
            deliver(&sink).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, replaced).await.expect("the token is replaced");
    let received = receiver.received();
    let used = tokens_of(&received);
    assert_eq!((used.first(), used.last()), (Some(&"token-1"), Some(&"token-2")));
}

#[tokio::test]
async fn a_refused_token_is_replaced_once_and_the_request_sent_again() {
    let tokens = token_server(json!(3600)).await;
    let receiver = receiver(&["token-2"]).await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    deliver(&sink).await.unwrap();
    deliver(&sink).await.unwrap();
    assert_eq!(tokens_of(&receiver.received()), ["token-1", "token-2", "token-2"]);
    assert_eq!((tokens.received().len(), receiver.connections()), (2, 1));
    let received = receiver.received();
    assert_eq!(received[0].body(), received[1].body());
    assert_eq!(header(&received[0], "webhook-id"), header(&received[1], "webhook-id"));
}

#[tokio::test]
async fn a_receiver_that_refuses_the_next_token_too_has_refused_the_message() {
    let tokens = token_server(json!(3600)).await;
    let receiver = receiver(&[]).await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    let failure = deliver(&sink).await.failed();
    assert_eq!((failure.class, failure.status), (Class::Permanent, Some(401)));
    assert_eq!((tokens.received().len(), receiver.received().len()), (2, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_that_are_refused_together_get_one_new_token() {
    let tokens = token_server(json!(3600)).await;
    let receiver = receiver(&["token-2"]).await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    let sent: Vec<_> = (0..64).map(|number| delivery(message(number, "{}"))).collect();
    for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
        result.unwrap();
    }
    assert_eq!(tokens.received().len(), 2);
}

/// A token endpoint that answers when it is allowed to, and how often it was asked.
async fn slow_token_server() -> (RawServer, Arc<Semaphore>, Arc<AtomicUsize>) {
    let (allowed, asked) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (may, counted) = (Arc::clone(&allowed), Arc::clone(&asked));
    let server = RawServer::start(move |mut peer, _| {
        let (may, counted) = (Arc::clone(&may), Arc::clone(&counted));
        async move {
            while peer.request().await.is_some() {
                counted.fetch_add(1, SeqCst);
                may.acquire().await.unwrap().forget();
                let body = r#"{"access_token":"token-1","expires_in":3600}"#;
                peer.send(
                    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()).as_bytes(),
                )
                .await;
            }
        }
    })
    .await;
    (server, allowed, asked)
}

async fn until_asked(asked: &AtomicUsize) {
    let waiting = async {
        while asked.load(SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the token endpoint is asked");
}

#[tokio::test]
async fn a_delivery_that_gives_up_leaves_the_fetch_to_the_others() {
    let (tokens, allowed, asked) = slow_token_server().await;
    let receiver = receiver(&["token-1"]).await;
    let sink = sink_for(&receiver, &tokens.url());
    let (first, second) = (delivery(message(1, "{}")), delivery(message(2, "{}")));
    let mut gives_up = sink.deliver(&first);
    assert!((&mut gives_up).now_or_never().is_none());
    let waits = tokio::spawn({
        let sink = Arc::clone(&sink);
        async move { sink.deliver(&second).await }
    });
    until_asked(&asked).await;
    drop(gives_up);
    allowed.add_permits(1);
    tokio::time::timeout(PATIENCE, waits).await.expect("the token arrives").unwrap().unwrap();
    assert_eq!(asked.load(SeqCst), 1);
    assert_eq!(header(&receiver.only(), "webhook-id"), "msg_k3x9_2");
}

#[tokio::test]
async fn a_token_that_comes_too_late_for_one_delivery_serves_the_next() {
    let (tokens, allowed, asked) = slow_token_server().await;
    let receiver = receiver(&["token-1"]).await;
    let sink = sink_for(&receiver, &tokens.url());
    assert!(deliver(&sink).now_or_never().is_none());
    until_asked(&asked).await;
    allowed.add_permits(1);
    deliver(&sink).await.unwrap();
    assert_eq!((asked.load(SeqCst), receiver.received().len()), (1, 1));
}

#[tokio::test]
async fn a_silent_token_endpoint_is_named_before_the_attempt_runs_out_of_time() {
    let (tokens, _allowed, _) = slow_token_server().await;
    let receiver = Server::ok().await;
    let config = json!({"url": receiver.url("/"), "auth": oauth2(&tokens.url()), "timeout": 0.4});
    let failure = deliver(&http_sink(config)).await.failed();
    assert_mendable(&failure);
    assert_says(&failure, &format!("{} did not answer within 0.3", tokens.address));
    assert!(receiver.received().is_empty());
}

#[tokio::test]
async fn what_a_token_endpoint_refuses_can_be_mended_and_is_said_without_secrets() {
    let long = "x".repeat(1000);
    let cases = [
        (401, json!({"error": "invalid_client"}).to_string(), "answered 401 Unauthorized: invalid_client"),
        (
            400,
            json!({"error": "invalid_scope", "error_description": format!("{SECRET} is wrong\r\n")}).to_string(),
            "answered 400 Bad Request: invalid_scope: *** is wrong",
        ),
        (
            400,
            json!({"error": "p%3A+%2B%25%2F%C3%BC%3F", "error_description": "c2hvcCUzQTE6cCUzQSslMkIlMjUlMkYlQzMlQkMlM0Y="})
                .to_string(),
            "answered 400 Bad Request: ***: ***",
        ),
        (403, SECRET.to_owned(), "answered 403 Forbidden"),
        (302, String::new(), "answered 302 Found"),
        (400, json!({"error": long}).to_string(), "answered 400 Bad Request: xxx"),
        (200, "<html>".to_owned(), "answered 200 OK without an access token"),
        (200, json!({"access_token": 7}).to_string(), "answered 200 OK without an access token"),
        (200, json!({"access_token": ""}).to_string(), "with an access token that cannot be sent in a header"),
        (200, json!({"access_token": "a\r\nb: c"}).to_string(), "with an access token that cannot be sent"),
        (
            200,
            json!({"access_token": "t", "token_type": "mac"}).to_string(),
            "with a token of type mac; only bearer tokens can be sent",
        ),
        (200, format!("{{\"access_token\":\"{}\"}}", "x".repeat(65_536)), "too large or incomplete"),
    ];
    let receiver = Server::ok().await;
    for (code, body, says) in cases {
        let tokens = Server::start(move |_| answer(code, body.clone())).await;
        let failure = deliver(&sink_for(&receiver, &tokens.url("/token"))).await.failed();
        assert_mendable(&failure);
        assert_says(&failure, &format!("{} ", tokens.address));
        assert_says(&failure, says);
        assert!(failure.error.len() < 400 && !failure.error.contains(char::is_control), "{}", failure.error);
    }
    assert!(receiver.received().is_empty());
}

#[tokio::test]
async fn a_token_endpoint_that_asks_for_time_gets_it() {
    let tokens = Server::start(|_| {
        let mut response = status(429);
        response.headers_mut().insert("retry-after", "17".parse().unwrap());
        response
    })
    .await;
    let failure = deliver(&sink_for(&Server::ok().await, &tokens.url("/token"))).await.failed();
    assert_eq!(failure.retry_after, Some(Duration::from_secs(17)));
    assert!(!failure.counts_for_breaker());
}

#[tokio::test]
async fn a_token_endpoint_that_is_back_is_used_again() {
    let tokens = Server::ok().await;
    let address = tokens.address;
    let receiver = receiver(&["token-1"]).await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    tokens.stop().await;
    let failure = deliver(&sink).await.failed();
    assert_mendable(&failure);
    assert_says(&failure, &format!("connection refused by {address}"));
    let _tokens =
        Server::start_at(address, Speaks::Http1, None, |_| answer(200, r#"{"access_token":"token-1"}"#))
            .await;
    deliver(&sink).await.unwrap();
}

#[tokio::test]
async fn the_token_url_passes_the_gate() {
    let tokens = token_server(json!(3600)).await;
    let receiver = Server::ok().await;
    let allowing_receiver =
        Environment { allow_nets: vec!["127.0.0.1/32".parse().unwrap()], ..Environment::default() };
    for host in ["127.0.0.2", "[::1]", "tokens.example"] {
        let token_url = format!("http://{host}:{}/token", tokens.address.port());
        let environment =
            Environment { resolver: Answers::new(&[&["10.0.0.1"]]), ..allowing_receiver.clone() };
        let config = json!({"url": receiver.url("/"), "auth": oauth2(&token_url)});
        let failure = deliver(&connect(&endpoint("http", config), &environment).unwrap()).await.failed();
        assert_eq!(failure.class, Class::Permanent);
        assert_says(&failure, "cannot get an access token: ");
        assert_says(&failure, "is an internal address");
    }
    assert!(tokens.received().is_empty() && receiver.received().is_empty());
}

#[tokio::test]
async fn the_token_endpoint_is_trusted_by_the_endpoints_authority() {
    let authority = Authority::new();
    let acceptor = authority.acceptor("127.0.0.1", &["h2", "http/1.1"]);
    let tokens = Server::start_at("127.0.0.1:0".parse().unwrap(), Speaks::Http1, Some(acceptor), |_| {
        answer(200, r#"{"access_token":"token-1"}"#)
    })
    .await;
    let receiver = receiver(&["token-1"]).await;
    let token_url = format!("https://{}/token", tokens.address);
    let config = |ca: &str| json!({"url": receiver.url("/"), "auth": oauth2(&token_url), "tls": {"ca": ca}});
    deliver(&http_sink(config(&authority.pem()))).await.unwrap();
    let failure = deliver(&http_sink(config(&Authority::new().pem()))).await.failed();
    assert_mendable(&failure);
    assert_eq!((tokens.received().len(), receiver.received().len()), (1, 1));
}

#[tokio::test]
async fn http2_by_prior_knowledge_is_about_the_receiver() {
    let tokens = token_server(json!(3600)).await;
    let receiver =
        Server::start_at("127.0.0.1:0".parse().unwrap(), Speaks::Http2, None, |_| status(200)).await;
    let config = json!({"url": receiver.url("/"), "auth": oauth2(&tokens.url("/token")), "http2": true});
    deliver(&http_sink(config)).await.unwrap();
    assert_eq!(receiver.only().version(), http::Version::HTTP_2);
}

#[tokio::test]
async fn a_token_stays_with_the_endpoints_origin() {
    let tokens = token_server(json!(3600)).await;
    let stranger = Server::start(|_| status(401)).await;
    let location = stranger.url("/there");
    let receiver = Server::start(move |request| {
        let mut response = status(307);
        let next = if request.uri().path() == "/hook" { "/next" } else { &location };
        response.headers_mut().insert("location", next.parse().unwrap());
        response
    })
    .await;
    let auth = oauth2(&tokens.url("/token"));
    let sink = http_sink(json!({"url": receiver.url("/hook"), "auth": auth, "max_redirects": 3}));
    let failure = deliver(&sink).await.failed();
    assert_eq!((failure.class, failure.status), (Class::Permanent, Some(401)));
    assert_eq!(tokens_of(&receiver.received()), ["token-1", "token-1"]);
    assert!(!stranger.only().headers().contains_key(AUTHORIZATION));
    assert_eq!(tokens.received().len(), 1, "a stranger's 401 says nothing about the token");
}

#[tokio::test]
async fn a_token_that_a_receiver_repeats_is_masked_in_the_kept_answer() {
    let tokens = token_server(json!(3600)).await;
    let receiver = Server::start(|request| {
        let heard = header(request, "authorization").to_owned();
        answer(if heard.ends_with('2') { 200 } else { 401 }, format!("you said {heard}, and then {heard}"))
    })
    .await;
    let sink = sink_for(&receiver, &tokens.url("/token"));
    let receipt = sink.deliver(&capturing(message(1, "{}"), 1000)).await.unwrap();
    assert_eq!(receipt.body.unwrap(), "you said Bearer ***, and then Bearer ***");
    let receipt = sink.deliver(&capturing(message(1, "{}"), 21)).await.unwrap();
    assert_eq!(receipt.body.unwrap(), "you said Bearer ***", "the beginning of a token that was cut");
}
