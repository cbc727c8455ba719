//! What a receiver of HTTP gets.

use std::collections::BTreeMap;

use postrider::Endpoint;
use postrider::endpoint::EndpointOptions;
use postrider::message::Message;
use postrider::protocol::Protocol;
use postrider::protocol::signature::VerifyingKey;
use postrider::sink::{Delivery, connect};
use postrider::verdict::Class;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use serde_json::{Value, json};

use super::server::{Received, Server, header};
use super::support::*;

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const WHSK: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=";

/// What one delivery looks like to the receiver; the config's URL is the server's.
async fn sent(config: Value, message: Message) -> Received {
    let server = Server::ok().await;
    let mut config = object(config);
    let path =
        config.remove("path").and_then(|path| path.as_str().map(str::to_owned)).unwrap_or("/hook".to_owned());
    config.insert("url".to_owned(), json!(server.url(&path)));
    http_sink(Value::Object(config)).deliver(&delivery(message)).await.unwrap();
    server.only()
}

#[tokio::test]
async fn a_request_tells_all_about_the_message() {
    let server = Server::ok().await;
    let message = Message {
        correlation_id: Some("67e55044-10b1-426f-9247-bb680e5fe0c8".parse().unwrap()),
        ordering_key: Some("customer 7 é".to_owned()),
        event_type: Some("order.created".to_owned()),
        ..message(42, r#"{"a": 1}"#)
    };
    let sink = plain_sink(&server.url("/hook?x=1"));
    sink.deliver(&Delivery { attempt: 3, ..delivery(message) }).await.unwrap();
    let request = server.only();
    assert_eq!((request.method().as_str(), request.uri().to_string().as_str()), ("POST", "/hook?x=1"));
    assert_eq!(request.body(), r#"{"a": 1}"#);
    let headers: BTreeMap<&str, &str> =
        request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    let host = server.address.to_string();
    let expected = BTreeMap::from([
        ("host", host.as_str()),
        ("user-agent", concat!("postrider/", env!("CARGO_PKG_VERSION"))),
        ("content-type", "application/json"),
        ("content-length", "8"),
        ("webhook-id", "msg_k3x9_42"),
        ("webhook-timestamp", "1772600767"),
        ("postrider-attempt", "3"),
        ("postrider-created-at", NOW),
        ("postrider-correlation-id", "67e55044-10b1-426f-9247-bb680e5fe0c8"),
        ("postrider-ordering-key", "customer%207%20%C3%A9"),
        ("postrider-event-type", "order.created"),
    ]);
    assert_eq!(headers, expected);
}

#[tokio::test]
async fn headers_of_the_message_win_over_those_of_the_endpoint() {
    let config =
        json!({"headers": {"X-A": "endpoint", "X-B": "endpoint", "User-Agent": "mine", "Host": "h.example"}});
    let headers =
        BTreeMap::from([("x-a".to_owned(), "message".to_owned()), ("X-C".to_owned(), "message".to_owned())]);
    let request = sent(config, Message { headers, ..message(1, "{}") }).await;
    assert_eq!(header(&request, "x-a"), "message");
    assert_eq!(header(&request, "x-b"), "endpoint");
    assert_eq!(header(&request, "x-c"), "message");
    assert_eq!(header(&request, "user-agent"), "mine");
    assert_eq!(header(&request, "host"), "h.example");
    assert_eq!(request.headers().get_all("x-a").iter().count(), 1);
}

#[tokio::test]
async fn headers_that_an_endpoint_keeps_are_not_replaced() {
    let server = Server::ok().await;
    let mut endpoint = endpoint(
        "http",
        json!({
            "url": server.url("/"), "auth": {"type": "bearer", "token": "endpoint"},
            "headers": {"X-Plain": "endpoint", "X-Api-Key": "endpoint"},
        }),
    );
    let headers = ["authorization", "x-plain", "x-api-key", "x-own"]
        .map(|name| (name.to_owned(), "message".to_owned()));
    let message = Message { headers: headers.into(), ..message(1, "{}") };
    let values = async |endpoint: &Endpoint| {
        connect(endpoint, &open_environment()).unwrap().deliver(&delivery(message.clone())).await.unwrap();
        let request = server.received().pop().expect("a request");
        ["authorization", "x-plain", "x-api-key", "x-own"].map(|name| header(&request, name).to_owned())
    };
    assert_eq!(values(&endpoint).await, ["Bearer endpoint", "message", "endpoint", "message"]);
    endpoint.options = EndpointOptions::check(Some(&json!({"override_headers": ["x-api-key"]}))).unwrap();
    assert_eq!(values(&endpoint).await, ["Bearer endpoint", "endpoint", "message", "message"]);
    endpoint.options = EndpointOptions::check(Some(&json!({"override_headers": []}))).unwrap();
    assert_eq!(values(&endpoint).await, ["Bearer endpoint", "endpoint", "endpoint", "message"]);
}

#[tokio::test]
async fn an_endpoint_may_fix_the_content_type() {
    let request = sent(json!({"headers": {"Content-Type": "text/special"}}), message(1, "{}")).await;
    assert_eq!(header(&request, "content-type"), "text/special");
}

#[tokio::test]
async fn a_header_that_cannot_be_sent_is_permanent_and_named() {
    let server = Server::ok().await;
    for name in ["webhook-id", "content-length", "proxy-authorization", "host", "a b"] {
        let headers = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
        let message = Message { headers, ..message(1, "{}") };
        let failure = plain_sink(&server.url("/")).deliver(&delivery(message)).await.failed();
        assert_eq!(failure.class, Class::Permanent);
        assert_says(&failure, &format!("headers.{name}: "));
    }
    let message = Message { content_type: "a\nb".to_owned(), ..message(1, "{}") };
    let failure = plain_sink(&server.url("/")).deliver(&delivery(message)).await.failed();
    assert_eq!(failure.class, Class::Permanent);
    assert_says(&failure, "content_type: ");
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn credentials_are_sent_as_their_scheme_says() {
    let basic = json!({"auth": {"type": "basic", "username": "Aladdin", "password": "open sesame"}});
    let request = sent(basic, message(1, "{}")).await;
    assert_eq!(header(&request, "authorization"), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    let bearer = json!({"auth": {"type": "bearer", "token": "abc"}});
    assert_eq!(header(&sent(bearer, message(1, "{}")).await, "authorization"), "Bearer abc");
}

#[tokio::test]
async fn secrets_are_read_from_files_when_the_sink_connects() {
    let server = Server::ok().await;
    let directory = tempfile::tempdir().unwrap();
    let environment =
        postrider::sink::Environment { secrets_dir: Some(directory.path().to_owned()), ..open_environment() };
    let config = json!({
        "url": server.url("/"),
        "auth": {"type": "bearer", "token": "file:token"},
        "headers": {"X-Key": "file:key"},
        "signing_secrets": ["file:signing"],
    });
    let endpoint = endpoint("http", config);
    for (missing, text) in [("token", "the-token\n"), ("key", "the-key"), ("signing", WHSEC)] {
        let failure = connect(&endpoint, &environment).map(drop).failed();
        assert_eq!(failure.class, Class::Retryable);
        assert!(failure.error.starts_with("the secret file:"), "{}", failure.error);
        std::fs::write(directory.path().join(missing), text).unwrap();
    }
    connect(&endpoint, &environment).unwrap().deliver(&delivery(message(1, "{}"))).await.unwrap();
    let request = server.only();
    assert_eq!(header(&request, "authorization"), "Bearer the-token");
    assert_eq!(header(&request, "x-key"), "the-key");
    assert!(header(&request, "webhook-signature").starts_with("v1,"));
}

#[tokio::test]
async fn the_signed_bytes_are_the_bytes_sent() {
    for config in [json!({}), json!({"cloudevents": "binary"}), json!({"cloudevents": "structured"})] {
        let mut config = object(config);
        config.insert("signing_secrets".to_owned(), json!([WHSEC, WHSK]));
        let request = sent(Value::Object(config), message(5, "{ \"odd\" : 1.0 }")).await;
        let timestamp = header(&request, "webhook-timestamp").parse().unwrap();
        for key in [WHSEC, WHSK] {
            let verified = VerifyingKey::parse(key).unwrap().verify(
                header(&request, "webhook-id"),
                timestamp,
                request.body(),
                header(&request, "webhook-signature"),
            );
            assert!(verified);
        }
    }
}

#[tokio::test]
async fn a_message_may_add_to_the_url_and_choose_its_method() {
    let cases = [
        ("/hook", "/a/b", "/hook/a/b"),
        ("/hook/", "/a", "/hook/a"),
        ("/", "/a", "/a"),
        ("", "/a?q=1", "/a?q=1"),
        ("/hook?x=1", "/a?y=2", "/hook/a?x=1&y=2"),
        ("/hook?x=1", "/a", "/hook/a?x=1"),
        ("/hook", "?y=2", "/hook?y=2"),
        ("/hook?x=1", "?y=2", "/hook?x=1&y=2"),
    ];
    for (path, suffix, expected) in cases {
        let options = object(json!({"url_suffix": suffix, "method": "PUT"}));
        let request = sent(json!({"path": path}), Message { options, ..message(1, "{}") }).await;
        assert_eq!(request.uri().to_string(), expected, "{path} {suffix}");
        assert_eq!(request.method(), "PUT");
        assert_eq!(request.body(), "{}");
    }
}

#[tokio::test]
async fn a_config_that_was_never_checked_is_refused_when_the_sink_connects() {
    let failure =
        connect(&endpoint("http", json!({"url": "ftp://x/"})), &open_environment()).map(drop).failed();
    // An operator can mend it, so messages wait.
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "config.url: ");
}

#[test]
fn every_suffix_that_is_accepted_can_be_sent_and_stays_below_the_url() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(Server::ok());
    let sink = plain_sink(&server.url("/hook"));
    proptest!(|(suffix in "[/?][ -~é]{0,24}")| {
        let options = object(json!({"url_suffix": suffix}));
        if Protocol::Http.check_message_options(&options).is_ok() {
            let message = Message { options, ..message(1, "{}") };
            runtime.block_on(sink.deliver(&delivery(message))).unwrap();
            let request = server.received().pop().unwrap();
            prop_assert!(request.uri().path().starts_with("/hook"));
            prop_assert_eq!(header(&request, "host"), server.address.to_string());
        }
    });
}
