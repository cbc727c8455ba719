//! NATS with JetStream, looked at over a plain socket and by the client of the NATS project.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine as _};
use ed25519_dalek::{Signer as _, SigningKey};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use postrider::message::Message;
use postrider::sink::SinkConnection;
use postrider::verdict::Failure;
use serde_json::json;
use test_servers::brokers::{DENIED_USER, PASSWORD, nats};
use test_servers::proxy::Fault;

use super::*;

struct NatsBroker;

#[async_trait]
impl BrokerUnderTest for NatsBroker {
    const PROTOCOL: &'static str = "nats";
    const KIND: BrokerKind = BrokerKind::Nats;

    fn config(port: u16, target: &str) -> Value {
        json!({"url": format!("nats://127.0.0.1:{port}"), "subject": target})
    }

    /// There no stream would acknowledge.
    fn config_elsewhere(port: u16, target: &str) -> Value {
        with(Self::config(port, target), json!({"jetstream": false}))
    }

    fn login(user: &str, password: &str) -> Value {
        json!({"username": user, "password": password})
    }

    async fn create(listeners: &BrokerListeners, target: &str) {
        create(listeners.plain, target, json!({}));
    }

    async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage> {
        stored(listeners.plain, target)
    }

    fn unroutable(port: u16) -> Option<(Value, Class)> {
        Some((Self::config(port, "no.stream.takes.this"), Class::Retryable))
    }
}

broker_conforms!(NatsBroker);

/// A stream of the target's name, for the target and all subjects below it.
fn create(port: u16, target: &str, settings: Value) {
    let stream = with(json!({"name": target, "subjects": [target, format!("{target}.>")]}), settings);
    let answer =
        Client::connect(port).request(&format!("$JS.API.STREAM.CREATE.{target}"), &stream.to_string());
    assert!(answer["error"].is_null(), "{answer}");
}

fn stored(port: u16, stream: &str) -> Vec<BrokerMessage> {
    let mut client = Client::connect(port);
    let info = client.request(&format!("$JS.API.STREAM.INFO.{stream}"), "");
    let bound = |name: &str| info["state"][name].as_u64().unwrap();
    if bound("messages") == 0 {
        return Vec::new();
    }
    (bound("first_seq")..=bound("last_seq"))
        .map(|seq| {
            let question = json!({"seq": seq}).to_string();
            let answer = client.request(&format!("$JS.API.STREAM.MSG.GET.{stream}"), &question);
            let bytes = |name: &str| {
                BASE64_STANDARD.decode(answer["message"][name].as_str().unwrap_or_default()).unwrap()
            };
            seen(&bytes("hdrs"), bytes("data").into())
        })
        .collect()
}

fn seen(headers: &[u8], payload: Bytes) -> BrokerMessage {
    let mut held = BrokerMessage { payload, ..BrokerMessage::default() };
    let text = std::str::from_utf8(headers).unwrap();
    let mut lines = text.strip_suffix("\r\n\r\n").expect("an end of the headers").split("\r\n");
    assert_eq!(lines.next(), Some("NATS/1.0"));
    for line in lines {
        let (name, value) = line.split_once(": ").expect("a header");
        match name {
            "Nats-Msg-Id" => held.id = value.to_owned(),
            "content-type" => held.content_type = value.to_owned(),
            _ => assert_eq!(held.headers.insert(name.to_owned(), value.to_owned()), None, "twice: {name}"),
        }
    }
    held
}

/// The protocol over a plain socket.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16) -> Self {
        let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut client = Self(BufReader::new(connection));
        assert!(client.line().starts_with("INFO"));
        client.send("CONNECT {\"verbose\":false,\"headers\":true}\r\nPING\r\n");
        assert_eq!(client.line(), "PONG");
        client
    }

    /// To whom everything comes that is published to the subject.
    fn subscribed(port: u16, subject: &str) -> Self {
        let mut client = Self::connect(port);
        client.send(&format!("SUB {subject} 1\r\nPING\r\n"));
        assert_eq!(client.line(), "PONG");
        client
    }

    fn request(&mut self, subject: &str, message: &str) -> Value {
        let (inbox, length) = (target(), message.len());
        self.send(&format!("SUB {inbox} 2\r\nUNSUB 2 1\r\nPUB {subject} {inbox} {length}\r\n{message}\r\n"));
        serde_json::from_slice(&self.next().1).unwrap()
    }

    /// The line before a message, and the message.
    fn next(&mut self) -> (String, Vec<u8>) {
        let mut line = self.line();
        while line == "PING" {
            self.send("PONG\r\n");
            line = self.line();
        }
        assert!(line.starts_with("MSG ") || line.starts_with("HMSG "), "{line}");
        let length: usize = line.rsplit(' ').next().and_then(|length| length.parse().ok()).unwrap();
        let mut message = vec![0; length + 2];
        self.0.read_exact(&mut message).unwrap();
        message.truncate(length);
        (line, message)
    }

    fn next_published(&mut self) -> BrokerMessage {
        let (line, message) = self.next();
        let words: Vec<&str> = line.split(' ').collect();
        let (headers, payload) = message.split_at(words[words.len() - 2].parse().unwrap());
        seen(headers, Bytes::copy_from_slice(payload))
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

fn sent(number: i64, headers: &[(&str, &str)], options: Value) -> Delivery {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    delivery(Message { options: object(options), headers, ..message(number, "{}") })
}

async fn failure(bench: &Bench<NatsBroker>, config: Value) -> Failure {
    bench.sink_of(config).deliver(&delivery(message(1, "{}"))).await.failed()
}

fn core(bench: &Bench<NatsBroker>) -> Value {
    with(bench.config(), json!({"jetstream": false}))
}

/// A server with these lines in its configuration.
async fn started(settings: &str) -> Option<test_servers::Broker> {
    let settings = settings.to_owned();
    tokio::task::spawn_blocking(move || BrokerKind::Nats.start_with(&settings)).await.unwrap()
}

#[tokio::test]
async fn a_duplicate_is_acknowledged_and_stored_once() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let sink = bench.sink();
    for attempt in 1..4 {
        let again = Delivery { attempt, ..delivery(message(1, "{}")) };
        sink.deliver(&again).await.unwrap();
    }
    assert_eq!(bench.ids().await, [id(1)]);
}

/// They are many more bytes than the sockets on the way can hold. On one thread all of them wait before the first is written.
#[tokio::test]
async fn what_was_given_up_while_the_server_was_silent_is_not_sent_later() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let sink = bench.sink();
    sink.deliver(&delivery(message(0, "{}"))).await.unwrap();
    bench.proxy.set(Fault::Freeze);
    let sent: Vec<_> = (1..=200).map(|number| delivery(message(number, vec![b'1'; 256 << 10]))).collect();
    let given_up = sent.iter().map(|sent| deliver(&*sink, sent, Duration::from_millis(1500)));
    for result in join_all(given_up).await {
        assert_eq!(result.failed().class, Class::Retryable);
    }
    bench.proxy.set(Fault::None);
    let thawed = std::time::Instant::now();
    while bench.proxy.open() > 1 || sink.deliver(&delivery(message(201, "{}"))).await.is_err() {
        assert!(thawed.elapsed() < Duration::from_secs(30), "no new connection");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let held = bench.ids().await;
    assert!(held.contains(&id(201)), "{held:?}");
    // What the sockets held, and a little more.
    assert!(held.len() < 50, "{} messages", held.len());
}

#[tokio::test]
async fn an_idle_connection_answers_the_pings_of_the_server() {
    let Some(broker) = started("ping_interval: \"500ms\"\nping_max: 1\n").await else { return };
    let bench = Bench::<NatsBroker>::on(broker.listeners()).await;
    let sink = bench.sink();
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    // It is pinged as often, and would not be if it did not answer.
    let mut other = Client::connect(bench.listeners.plain);
    let others = tokio::task::spawn_blocking(move || {
        for _ in 0..6 {
            assert_eq!(other.line(), "PING");
            other.send("PONG\r\n");
        }
    });
    others.await.unwrap();
    assert_eq!((sink.connection(), bench.proxy.accepted()), (SinkConnection::Up, 1));
    sink.deliver(&delivery(message(2, "{}"))).await.unwrap();
    assert_eq!(bench.proxy.accepted(), 1);
}

#[tokio::test]
async fn a_subject_without_a_stream_counts_for_the_circuit_unless_the_message_named_it() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let nowhere = format!("{}-nowhere", bench.target);
    let of_message = bench.sink().deliver(&sent(1, &[], json!({"subject": nowhere}))).await.failed();
    let of_endpoint = failure(&bench, with(bench.config(), json!({"subject": nowhere}))).await;
    for (failure, counts) in [(of_message, false), (of_endpoint, true)] {
        assert_eq!((failure.class, failure.counts_for_breaker()), (Class::Retryable, counts));
        assert_says(&failure, &format!("takes the subject {nowhere}"));
    }
}

#[tokio::test]
async fn a_message_names_its_subject() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let other = format!("{}.other", bench.target);
    let mut subscriber = Client::subscribed(bench.listeners.plain, &other);
    let sink = bench.sink();
    sink.deliver(&sent(1, &[], json!({}))).await.unwrap();
    sink.deliver(&sent(2, &[], json!({"subject": other}))).await.unwrap();
    assert_eq!(bench.ids().await, [id(1), id(2)]);
    assert_eq!(subscriber.next_published().id, id(2));
}

#[tokio::test]
async fn headers_of_a_message_replace_those_of_the_endpoint_unless_they_are_secret() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let headers = json!({"Tenant": "blue", "region": "eu", "Api-Key": "hidden"});
    let sink = bench.sink_of(with(bench.config(), json!({"headers": headers})));
    sink.deliver(&sent(1, &[("tenant", "größer: rot"), ("api-key", "mine")], json!({}))).await.unwrap();
    let held = bench.held().await.remove(0).headers;
    let header = |name: &str| held.get(name).map(String::as_str);
    assert_eq!((header("tenant"), header("Tenant")), (Some("größer: rot"), None));
    assert_eq!((header("Api-Key"), header("api-key"), header("region")), (Some("hidden"), None, Some("eu")));
}

#[tokio::test]
async fn without_jetstream_a_message_reaches_subscribers_with_its_headers() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let subject = format!("core-{}", bench.target);
    let mut subscriber = Client::subscribed(bench.listeners.plain, &subject);
    let sink = bench.sink_of(with(core(&bench), json!({"subject": subject})));
    for number in 1..4 {
        sink.deliver(&sent(number, &[("tenant", "blue")], json!({}))).await.unwrap();
        let seen = subscriber.next_published();
        assert_eq!(
            (seen.id, seen.headers["tenant"].as_str(), &seen.payload[..]),
            (id(number), "blue", &b"{}"[..])
        );
    }
    // Nobody confirms: without a subscriber it counts as delivered, too.
    drop(subscriber);
    sink.deliver(&sent(4, &[], json!({}))).await.unwrap();
}

#[tokio::test]
async fn without_jetstream_what_the_server_denies_is_noticed() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let failure = failure(&bench, with(core(&bench), NatsBroker::login(DENIED_USER, PASSWORD))).await;
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_says(&failure, "Permissions Violation");
}

#[tokio::test]
async fn a_missing_stream_is_retried_until_an_operator_creates_it() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let later = format!("{}-later", bench.target);
    let sink = bench.sink_of(with(bench.config(), json!({"subject": later})));
    let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert_says(&failure, &format!("takes the subject {later}"));
    create(bench.listeners.plain, &later, json!({}));
    assert_eq!(stored(bench.listeners.plain, &later), []);
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert_eq!(stored(bench.listeners.plain, &later).len(), 1);
}

#[tokio::test]
async fn a_full_stream_is_retryable_and_overloaded() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let limits = [
        json!({"max_msgs": 1}),
        json!({"max_bytes": 300}),
        json!({"max_msgs_per_subject": 1, "discard_new_per_subject": true}),
    ];
    for (number, limit) in limits.into_iter().enumerate() {
        let full = format!("{}-full{number}", bench.target);
        create(bench.listeners.plain, &full, with(limit, json!({"discard": "new"})));
        let sink = bench.sink_of(with(bench.config(), json!({"subject": full})));
        sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
        let failure = sink.deliver(&delivery(message(2, "{}"))).await.failed();
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert!(failure.is_overload(), "{}", failure.error);
        assert_says(&failure, "maximum");
        assert_eq!(stored(bench.listeners.plain, &full).len(), 1);
    }
}

#[tokio::test]
async fn what_does_not_fit_a_stream_is_permanent() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let narrow = format!("{}-narrow", bench.target);
    create(bench.listeners.plain, &narrow, json!({"max_msg_size": 1000}));
    let sink = bench.sink_of(with(bench.config(), json!({"subject": narrow})));
    let large = sink.deliver(&delivery(message(1, vec![b'1'; 2000]))).await.failed();
    assert_says(&large, "message size exceeds maximum allowed");
    let unexpected =
        sink.deliver(&sent(2, &[("Nats-Expected-Last-Sequence", "7")], json!({}))).await.failed();
    assert_says(&unexpected, "wrong last sequence");
    for failure in [large, unexpected] {
        assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
        assert!(!failure.counts_for_breaker());
    }
    assert_eq!(stored(bench.listeners.plain, &narrow), []);
}

#[tokio::test]
async fn the_reply_of_a_subscriber_is_no_acknowledgement() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let subject = format!("service-{}", bench.target);
    let mut service = Client::subscribed(bench.listeners.plain, &subject);
    let answering = tokio::task::spawn_blocking(move || {
        let (line, _) = service.next();
        let reply_to = line.split(' ').nth(3).unwrap().to_owned();
        service.send(&format!("PUB {reply_to} 3\r\n+OK\r\n"));
        // The connection stays open until the answer is read.
        service
    });
    let failure = failure(&bench, with(bench.config(), json!({"subject": subject}))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert_says(&failure, "not with the acknowledgement of a stream");
    answering.await.unwrap();
}

#[tokio::test]
async fn events_are_written_as_cloudevents_has_it() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let event = || Message { event_type: Some("größe.neu".to_owned()), ..message(1, r#"{"a": 1}"#) };
    let binary = bench.sink_of(with(bench.config(), json!({"cloudevents": "binary"})));
    binary.deliver(&delivery(event())).await.unwrap();
    let structured = bench.sink_of(with(bench.config(), json!({"cloudevents": "structured"})));
    structured.deliver(&delivery(Message { id: postrider::message::MessageId(2), ..event() })).await.unwrap();
    let held = bench.held().await;
    let header = |name: &str| held[0].headers.get(name).map(String::as_str);
    assert_eq!(
        (held[0].content_type.as_str(), &held[0].payload[..]),
        ("application/json", &br#"{"a": 1}"#[..])
    );
    assert_eq!((header("ce-specversion"), header("ce-id")), (Some("1.0"), Some(id(1).as_str())));
    assert_eq!(header("ce-source"), Some("/postrider/k3x9/orders"));
    assert_eq!((header("ce-type"), header("ce-time")), (Some("gr%C3%B6%C3%9Fe.neu"), Some(NOW)));
    assert_eq!(header("ce-datacontenttype"), Some("application/json"));
    assert_eq!(held[1].content_type, "application/cloudevents+json");
    assert!(!held[1].headers.keys().any(|name| name.starts_with("ce-")), "{:?}", held[1]);
    let envelope: Value = serde_json::from_slice(&held[1].payload).unwrap();
    assert_eq!(
        (&envelope["id"], &envelope["type"], &envelope["data"]),
        (&json!(id(2)), &json!("größe.neu"), &json!({"a": 1}))
    );
}

/// It shares no code with ours.
#[tokio::test]
async fn the_client_of_the_nats_project_reads_what_we_write() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let client = async_nats::connect(format!("127.0.0.1:{}", bench.listeners.plain)).await.unwrap();
    let mut subscriber = client.subscribe(bench.target.clone()).await.unwrap();
    client.flush().await.unwrap();
    for (number, config) in (1..).zip([bench.config(), core(&bench)]) {
        bench.sink_of(config).deliver(&sent(number, &[("tenant", "größer: rot")], json!({}))).await.unwrap();
        let seen = tokio::time::timeout(Duration::from_secs(10), subscriber.next()).await.unwrap().unwrap();
        let headers = seen.headers.unwrap();
        let header = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
        assert_eq!(header("Nats-Msg-Id"), Some(id(number)));
        assert_eq!(header("tenant").as_deref(), Some("größer: rot"));
        assert_eq!(header("content-type").as_deref(), Some("application/json"));
        assert_eq!(seen.payload, "{}");
    }
}

#[tokio::test]
async fn a_url_may_ask_for_tls() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let authority = std::fs::read_to_string(bench.listeners.authority()).unwrap();
    let url = format!("tls://127.0.0.1:{}", bench.listeners.tls);
    let config = with(bench.config(), json!({"url": url, "tls": {"ca": authority}}));
    bench.sink_of(config.clone()).deliver(&delivery(message(1, "{}"))).await.unwrap();
    let untrusted = object(config).into_iter().filter(|(key, _)| key != "tls").collect();
    let failure = failure(&bench, Value::Object(untrusted)).await;
    assert_says(&failure, "certificate");
    assert_eq!(bench.ids().await, [id(1)]);
}

#[tokio::test]
async fn a_server_may_begin_with_the_tls_handshake() {
    let Some(broker) = started(nats::HANDSHAKE_FIRST).await else { return };
    let bench = Bench::<NatsBroker>::on_empty(broker.listeners());
    let authority = std::fs::read_to_string(bench.listeners.authority()).unwrap();
    let config = with(core(&bench), json!({"tls": {"ca": authority}, "connect_timeout": 1}));
    let sink = bench.sink_of(with(config.clone(), json!({"tls_first": true})));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    // Both wait for the other to speak.
    assert_says(&failure(&bench, config).await, "timed out");
}

#[tokio::test]
async fn a_server_may_demand_a_token() {
    let Some(broker) = started(nats::DEMAND_TOKEN).await else { return };
    let bench = Bench::<NatsBroker>::on_empty(broker.listeners());
    let sink = bench.sink_of(with(core(&bench), json!({"token": PASSWORD})));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    for wrong in [json!({}), json!({"token": "wr0ng"})] {
        let failure = failure(&bench, with(core(&bench), wrong)).await;
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert_says(&failure, "refused the sign-in: Authorization Violation");
    }
}

#[tokio::test]
async fn a_user_signs_in_by_a_key() {
    let Some(bench) = Bench::<NatsBroker>::shared().await else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("seed"), format!("{}\n", nats::SEED)).unwrap();
    std::fs::write(directory.path().join("nonsense"), "SUNONSENSE").unwrap();
    let environment =
        Environment { secrets_dir: Some(directory.path().to_owned()), ..bench.environment.clone() };
    let sink = |seed: &str| {
        let config = with(bench.config(), json!({"nkey_seed": seed}));
        connect(&Bench::<NatsBroker>::endpoint(config), &environment).unwrap()
    };
    sink(nats::SEED).deliver(&delivery(message(1, "{}"))).await.unwrap();
    sink("file:seed").deliver(&delivery(message(2, "{}"))).await.unwrap();
    let failure = sink("file:nonsense").deliver(&delivery(message(3, "{}"))).await.failed();
    assert_eq!(failure.error, "the secret file:nonsense is not the seed of a user");
    // A user that the server does not know.
    let failure = sink(&nkey(b'S', b'U', &[7; 32])).deliver(&delivery(message(3, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "refused the sign-in");
    assert_eq!(bench.ids().await, [id(1), id(2)]);
}

#[tokio::test]
async fn a_user_signs_in_by_a_credentials_file() {
    let (operator, account, user) = ([1; 32], [2; 32], [3; 32]);
    let settings = format!(
        "operator: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {} }}\njetstream: disabled\nauthorization: {{}}\nno_auth_user: \"\"\n",
        token(b'O', &operator, &operator, "operator", b'O'),
        public(b'A', &account),
        token(b'A', &account, &operator, "account", b'O'),
    );
    let Some(broker) = started(&settings).await else { return };
    let bench = Bench::<NatsBroker>::on_empty(broker.listeners());
    let creds = |user: &[u8; 32], signed_by: &[u8; 32]| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            token(b'U', user, signed_by, "user", b'A'),
            nkey(b'S', b'U', user)
        )
    };
    let with_creds = |text: String| with(core(&bench), json!({"creds": text}));
    bench.sink_of(with_creds(creds(&user, &account))).deliver(&delivery(message(1, "{}"))).await.unwrap();
    // Of an account that the server does not know.
    let failure = failure(&bench, with_creds(creds(&user, &[9; 32]))).await;
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "refused the sign-in");
}

/// A key as text: five bits are a letter. The first tells what it is, that of a seed also whose.
fn nkey(kind: u8, whose: u8, bytes: &[u8; 32]) -> String {
    let prefix = |letter: u8| (letter - b'A') << 3;
    let mut all = match kind {
        b'S' => vec![prefix(kind) | prefix(whose) >> 5, prefix(whose) << 3],
        _ => vec![prefix(kind)],
    };
    all.extend(bytes);
    let crc = all.iter().fold(0_u16, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    });
    all.extend(crc.to_le_bytes());
    let bits: String = all.iter().map(|byte| format!("{byte:08b}")).collect();
    let letter = |five: &[u8]| {
        let five = format!("{:0<5}", std::str::from_utf8(five).unwrap());
        char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from_str_radix(&five, 2).unwrap()])
    };
    bits.as_bytes().chunks(5).map(letter).collect()
}

fn public(kind: u8, seed: &[u8; 32]) -> String {
    nkey(kind, b'A', &SigningKey::from_bytes(seed).verifying_key().to_bytes())
}

/// What an operator signs for an account, and an account for a user.
fn token(kind: u8, subject: &[u8; 32], issuer: &[u8; 32], name: &str, issuer_kind: u8) -> String {
    let limits = json!({"subs": -1, "data": -1, "payload": -1});
    let account = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "conn": -1, "leaf": -1, "wildcards": true});
    let mut details = json!({"type": name, "version": 2});
    match kind {
        b'A' => details["limits"] = account,
        b'U' => object(limits).into_iter().for_each(|(key, value)| details[key] = value),
        _ => {}
    }
    let claims = json!({
        "jti": "x",
        "iat": 1_700_000_000,
        "iss": public(issuer_kind, issuer),
        "sub": public(kind, subject),
        "name": name,
        "nats": details,
    });
    let header = json!({"typ": "JWT", "alg": "ed25519-nkey"});
    let encoded = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", encoded(header), encoded(claims));
    let signature = SigningKey::from_bytes(issuer).sign(signed.as_bytes()).to_bytes();
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

#[test]
fn bad_configs_name_the_field_and_the_rule() {
    let good = json!({"url": "nats://nats", "subject": "orders.new"});
    let cases = [
        (json!({"url": "http://nats"}), "config.url"),
        (json!({"url": "nats://user:secret@nats"}), "config.url"),
        (json!({"url": "nats://nats/orders"}), "config.url"),
        (json!({"url": "nats://one,nats://two"}), "config.url"),
        (json!({"url": "nats://nats:0"}), "config.url"),
        (json!({"subject": ""}), "config.subject"),
        (json!({"subject": "orders.*"}), "config.subject"),
        (json!({"subject": "orders.>"}), "config.subject"),
        (json!({"subject": "orders new"}), "config.subject"),
        (json!({"subject": "orders\r\nPUB x 0\r\n"}), "config.subject"),
        (json!({"subject": ".orders"}), "config.subject"),
        (json!({"subject": "orders..new"}), "config.subject"),
        (json!({"subject": "$JS.API.STREAM.DELETE.orders"}), "config.subject"),
        (json!({"username": "shop"}), "config.username"),
        (json!({"password": "secret"}), "config.password"),
        (json!({"token": "t", "username": "shop", "password": "secret"}), "config.username"),
        (json!({"token": "t", "creds": "file:creds"}), "config.creds"),
        (json!({"nkey_seed": "secret"}), "config.nkey_seed"),
        (json!({"nkey_seed": "SUAHA33"}), "config.nkey_seed"),
        (json!({"creds": "secret"}), "config.creds"),
        (json!({"headers": {"Nats-Msg-Id": "1"}}), "config.headers.Nats-Msg-Id"),
        (json!({"headers": {"nats-batch-id": "1"}}), "config.headers.nats-batch-id"),
        (json!({"headers": {"a:b": "1"}}), "config.headers.a:b"),
        (json!({"headers": {"größe": "1"}}), "config.headers.größe"),
        (json!({"headers": {"a": "1\r\nb: 2"}}), "config.headers.a"),
        (json!({"stream": "orders"}), "config.stream"),
    ];
    let protocol = postrider::protocol::Protocol::from_name("nats").unwrap();
    protocol.check_config(&object(good.clone())).unwrap();
    for url in ["nats://10.0.0.1:4333", "tls://[2001:db8::1]:4222", "TLS://nats.example/"] {
        protocol.check_config(&object(with(good.clone(), json!({"url": url})))).unwrap();
    }
    for (wrong, field) in cases {
        let error = protocol.check_config(&object(with(good.clone(), wrong))).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    for (subject, fits) in [("orders.new", true), ("orders.*", false), ("_INBOX.x", false)] {
        let checked = protocol.check_message_options(&object(json!({"subject": subject})));
        assert_eq!(checked.is_ok(), fits, "{subject}");
    }
}

#[test]
fn secrets_are_hidden() {
    let secrets = ["token", "password", "nkey_seed", "creds"];
    let config: serde_json::Map<String, Value> =
        secrets.iter().map(|key| ((*key).to_owned(), json!("hush"))).collect();
    let shown = postrider::protocol::Protocol::from_name("nats").unwrap().redacted(&config);
    assert!(secrets.iter().all(|key| shown[*key] == "***"), "{shown:?}");
}
