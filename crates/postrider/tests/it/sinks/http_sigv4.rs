//! `auth` with `aws_sigv4`. The receiver of these tests checks the signature by itself, from what arrived.

use std::sync::Arc;

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::AUTHORIZATION;
use postrider::message::Message;
use postrider::sink::Sink;
use postrider::verdict::Class;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::server::{Received, Server, Speaks, answer, header, status};
use super::support::*;

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const SESSION: &str = "session/token+of+today==";

fn sink_for(url: &str, more: Value) -> Arc<dyn Sink> {
    let mut config = object(json!({
        "url": url,
        "auth": {
            "type": "aws_sigv4", "access_key_id": "AKIDEXAMPLE", "secret_access_key": SECRET,
            "region": "eu-central-1", "service": "execute-api", "session_token": SESSION,
        },
    }));
    config.extend(object(more));
    http_sink(Value::Object(config))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn host_of(request: &Received) -> String {
    match request.uri().authority() {
        Some(authority) => authority.to_string(),
        None => header(request, "host").to_owned(),
    }
}

/// As the receiver computes it. Paths and queries of these tests are plain and in order.
#[track_caller]
fn assert_signed(request: &Received) -> Vec<String> {
    let authorization = header(request, "authorization");
    let (_, credential) = authorization.split_once("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/").unwrap();
    let (scope, rest) = credential.split_once(", SignedHeaders=").unwrap();
    let (names, signature) = rest.split_once(", Signature=").unwrap();
    let values: String = names
        .split(';')
        .map(|name| match name {
            "host" => format!("host:{}\n", host_of(request)),
            name => format!("{name}:{}\n", header(request, name)),
        })
        .collect();
    let body_hash = hex(&Sha256::digest(request.body()));
    assert_eq!(header(request, "x-amz-content-sha256"), body_hash);
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let canonical = format!("{}\n{path}\n{query}\n{values}\n{names}\n{body_hash}", request.method());
    let date = header(request, "x-amz-date");
    let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let key = scope.split('/').fold(format!("AWS4{SECRET}").into_bytes(), |key, part| mac(&key, part));
    assert_eq!(signature, hex(&mac(&key, &text)));
    names.split(';').map(str::to_owned).collect()
}

#[tokio::test]
async fn the_request_is_signed_as_it_arrives() {
    for speaks in [Speaks::Http1, Speaks::Http2] {
        let server = Server::start_at("127.0.0.1:0".parse().unwrap(), speaks, None, |_| status(200)).await;
        let config = json!({
            "http2": matches!(speaks, Speaks::Http2),
            "headers": {"X-Plain": "a  b", "Content-Type": "text/x"},
            "signing_secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
            "cloudevents": "binary",
        });
        let sink = sink_for(&server.url("/stage/hook?a=1"), config);
        let sent = Message {
            headers: [("X-Of-Message".to_owned(), "yes".to_owned())].into(),
            options: object(json!({"method": "PUT", "url_suffix": "/more?b=2"})),
            ..message(1, "{\"a\":1}")
        };
        sink.deliver(&delivery(sent)).await.unwrap();
        let mut request = server.only();
        assert_eq!(request.method(), "PUT");
        assert_eq!(request.uri().path_and_query().unwrap(), "/stage/hook/more?a=1&b=2");
        assert_eq!(header(&request, "x-amz-date"), "20260304T050607Z");
        assert_eq!(header(&request, "x-amz-security-token"), SESSION);
        assert!(
            header(&request, "authorization").contains("/20260304/eu-central-1/execute-api/aws4_request,")
        );
        // Two blanks are signed as one.
        request.headers_mut().insert("x-plain", "a b".parse().unwrap());
        let names = assert_signed(&request);
        for name in
            ["host", "content-type", "x-of-message", "webhook-signature", "ce-id", "x-amz-security-token"]
        {
            assert!(names.iter().any(|signed| signed == name), "{name} is not signed: {names:?}");
        }
    }
}

#[tokio::test]
async fn every_redirect_within_the_origin_is_signed_anew() {
    let server = Server::start(|request| match request.uri().path() {
        "/there" => status(200),
        _ => {
            let mut response = status(307);
            response.headers_mut().insert("location", "/there".parse().unwrap());
            response
        }
    })
    .await;
    let sink = sink_for(&server.url("/hook"), json!({"max_redirects": 2}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    let received = server.received();
    received.iter().for_each(|request| drop(assert_signed(request)));
    assert_ne!(header(&received[0], "authorization"), header(&received[1], "authorization"));
}

#[tokio::test]
async fn another_origin_gets_no_signature_even_if_it_leads_back() {
    let back = Arc::new(std::sync::OnceLock::<String>::new());
    let to = Arc::clone(&back);
    let stranger = Server::start(move |_| {
        let mut response = status(307);
        response.headers_mut().insert("location", to.get().unwrap().parse().unwrap());
        response
    })
    .await;
    let location = stranger.url("/");
    let server = Server::start(move |request| match request.uri().path() {
        "/back" => status(200),
        _ => {
            let mut response = status(307);
            response.headers_mut().insert("location", location.parse().unwrap());
            response
        }
    })
    .await;
    back.set(server.url("/back")).unwrap();
    let sink = sink_for(&server.url("/hook"), json!({"max_redirects": 3}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    let received = server.received();
    assert_signed(&received[0]);
    for request in [&stranger.only(), &received[1]] {
        assert!(!request.headers().contains_key(AUTHORIZATION));
        assert!(!request.headers().contains_key("x-amz-security-token"));
    }
}

#[tokio::test]
async fn a_refused_signature_counts_as_any_other_refusal() {
    let server = Server::start(|_| status(401)).await;
    let failure = sink_for(&server.url("/"), json!({})).deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!((failure.class, failure.status), (Class::Permanent, Some(401)));
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn what_a_receiver_repeats_is_masked_in_the_kept_answer() {
    let server = Server::start(|request| {
        let heard = [header(request, "authorization"), header(request, "x-amz-security-token")];
        answer(200, heard.join(" | "))
    })
    .await;
    let sink = sink_for(&server.url("/"), json!({}));
    let receipt = sink.deliver(&capturing(message(1, "{}"), 10_000)).await.unwrap();
    let body = String::from_utf8(receipt.body.unwrap().to_vec()).unwrap();
    assert!(body.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"), "{body}");
    assert!(body.ends_with(", Signature=*** | ***"), "{body}");
}
