//! Kafka, looked at by requests over a plain socket, and where batches are compressed by Kafka's own consumer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures_util::future::join_all;
use postrider::message::Message;
use postrider::sink::SinkConnection;
use test_servers::brokers::{DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, USER, kafka};
use test_servers::proxy::Fault;

use super::kafka_followers::Followers;
use super::kafka_wire::{Wire, WireRecord};
use super::*;

struct KafkaBroker;

#[async_trait]
impl BrokerUnderTest for KafkaBroker {
    const PROTOCOL: &'static str = "kafka";
    const KIND: BrokerKind = BrokerKind::Kafka;

    fn config(port: u16, target: &str) -> Value {
        // A broker that has just been started answers slowly at first.
        json!({"brokers": format!("127.0.0.1:{port}"), "topic": target, "connect_timeout": 9})
    }

    fn login(user: &str, password: &str) -> Value {
        sasl("scram-sha-256", user, password)
    }

    fn proxy(listeners: &BrokerListeners) -> Proxy {
        Proxy::to_kafka(listeners.plain).unwrap()
    }

    async fn create(listeners: &BrokerListeners, target: &str) {
        Wire::to(listeners.plain).create_topic(target, 1, &[]);
    }

    async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage> {
        let records = Wire::to(listeners.plain).records(target, 0);
        records.into_iter().map(|record| record.message).collect()
    }

    fn unroutable(port: u16) -> Option<(Value, Class)> {
        Some((Self::config(port, "missing"), Class::Retryable))
    }

    /// A producer gives all records the same time.
    fn another_policy() -> Value {
        json!({"key": "7"})
    }
}

broker_conforms!(KafkaBroker);

fn sasl(mechanism: &str, user: &str, password: &str) -> Value {
    json!({"sasl": {"mechanism": mechanism, "username": user, "password": password}})
}

fn sent(number: i64, options: Value) -> Delivery {
    delivery(Message { options: object(options), ..message(number, "{}") })
}

fn keyed(number: i64, key: &str) -> Message {
    Message { ordering_key: Some(key.to_owned()), ..message(number, format!("{{\"number\":{number}}}")) }
}

async fn failure(sink: &dyn Sink, sent: &Delivery) -> Failure {
    deliver(sink, sent, Duration::from_secs(10)).await.failed()
}

impl Bench<KafkaBroker> {
    fn wire(&self) -> Wire {
        Wire::to(self.listeners.plain)
    }

    /// Another topic of this test.
    fn topic(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) -> String {
        let topic = format!("{}-{name}", self.target);
        self.wire().create_topic(&topic, partitions, settings);
        topic
    }

    fn records(&self, topic: &str, partitions: i32) -> Vec<Vec<WireRecord>> {
        (0..partitions).map(|partition| self.wire().records(topic, partition)).collect()
    }
}

#[tokio::test]
async fn a_message_names_its_topic_key_partition_and_headers() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let other = bench.topic("other", 3, &[]);
    let config = json!({"key": "all", "headers": {"tenant": "blue", "colour": "red", "x-token": "endpoint"}});
    let sink = bench.sink_of(with(bench.config(), config));
    let mut message = Message {
        options: object(json!({"topic": other, "key": "seven", "partition": 2})),
        ordering_key: Some("customer".to_owned()),
        ..message(1, "{}")
    };
    for (name, value) in [("tenant", "green"), ("size", "é\n"), ("x-token", "message")] {
        message.headers.insert(name.to_owned(), value.to_owned());
    }
    sink.deliver(&delivery(message)).await.unwrap();
    sink.deliver(&sent(2, json!({}))).await.unwrap();
    let records = bench.records(&other, 3);
    assert_eq!(records.iter().map(Vec::len).collect::<Vec<_>>(), [0, 0, 1]);
    let record = &records[2][0];
    assert_eq!(record.key.as_deref(), Some(b"seven".as_slice()));
    let headers = &record.message.headers;
    let expected = [("tenant", "green"), ("size", "é\n"), ("colour", "red"), ("x-token", "endpoint")];
    assert!(expected.iter().all(|(name, value)| headers[*name] == *value), "{headers:?}");
    assert_eq!(bench.wire().records(&bench.target, 0)[0].key.as_deref(), Some(b"all".as_slice()));
}

#[tokio::test]
async fn the_ordering_key_is_the_key_of_the_record_unless_another_is_given() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let sink = bench.sink();
    sink.deliver(&delivery(keyed(1, "customer 7"))).await.unwrap();
    sink.deliver(&delivery(message(2, "{}"))).await.unwrap();
    let keys = bench.wire().records(&bench.target, 0).into_iter().map(|record| record.key);
    assert_eq!(keys.collect::<Vec<_>>(), [Some("customer 7".into()), None]);
}

/// Kafka's own consumer decompresses. One run of it, because a start of Java takes seconds.
#[tokio::test]
async fn batches_are_compressed_as_the_endpoint_says() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let codecs = ["none", "gzip", "snappy", "lz4", "zstd"];
    let payload = |number: i64| format!("{{\"number\":{number},\"zeros\":\"{}\"}}", "0".repeat(200));
    for (number, codec) in (0..).zip(codecs) {
        let sink = bench.sink_of(with(bench.config(), json!({"compression": codec})));
        sink.deliver(&delivery(message(number, payload(number)))).await.unwrap();
    }
    assert_eq!(bench.wire().codecs(&bench.target, 0), [0, 1, 2, 3, 4]);
    let mut consumer = kafka::tool("org.apache.kafka.tools.consumer.ConsoleConsumer");
    consumer.args(["--bootstrap-server", &format!("127.0.0.1:{}", bench.listeners.plain)]);
    consumer.args(["--topic", &bench.target, "--from-beginning", "--max-messages", "5"]);
    consumer.args(["--timeout-ms", "20000", "--property", "print.headers=true"]);
    let output = tokio::task::spawn_blocking(move || consumer.output().unwrap()).await.unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), codecs.len(), "{printed}");
    for (number, line) in (0..).zip(lines) {
        let (headers, value) = line.split_once('\t').unwrap();
        assert_eq!(value, payload(number));
        assert!(headers.contains(&format!("postrider-id:{}", id(number))), "{headers}");
    }
}

#[tokio::test]
async fn every_mechanism_signs_in_with_and_without_encryption() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let authority = std::fs::read_to_string(bench.listeners.authority()).unwrap();
    let mut number = 0;
    for (port, tls) in [
        (bench.listeners.password, json!({})),
        (bench.listeners.password_tls, json!({"tls": {"ca": authority}})),
    ] {
        for mechanism in ["plain", "scram-sha-256", "scram-sha-512"] {
            let config = with(KafkaBroker::config(port, &bench.target), tls.clone());
            let wrong = bench.sink_of(with(config.clone(), sasl(mechanism, USER, "wr0ng-passw0rd")));
            let failure = failure(&*wrong, &delivery(message(1000, "{}"))).await;
            assert_eq!(failure.class, Class::Retryable, "{mechanism}: {}", failure.error);
            assert_says(&failure, "refused the sign-in");
            assert!(!failure.error.contains("wr0ng"), "{}", failure.error);
            let right = bench.sink_of(with(config, sasl(mechanism, USER, PASSWORD)));
            deliver(&*right, &delivery(message(number, "{}")), Duration::from_secs(10)).await.unwrap();
            number += 1;
        }
    }
    assert_eq!(bench.ids().await, (0..6).map(id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_password_may_be_a_reference() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("kafka"), format!("{PASSWORD}\n")).unwrap();
    let environment =
        Environment { secrets_dir: Some(directory.path().to_owned()), ..bench.environment.clone() };
    let config = KafkaBroker::config(bench.listeners.password, &bench.target);
    let config = with(config, sasl("scram-sha-512", USER, "file:kafka"));
    let sink = connect(&Bench::<KafkaBroker>::endpoint(config), &environment).unwrap();
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
}

#[tokio::test]
async fn an_unknown_topic_is_retryable_and_quick_and_its_message_is_not_sent_later() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let topic = format!("{}-later", bench.target);
    let sink = bench.sink_of(with(bench.config(), json!({"topic": topic})));
    sink.deliver(&sent(0, json!({"topic": bench.target}))).await.unwrap();
    let begun = Instant::now();
    let failure = failure(&*sink, &delivery(message(1, "{}"))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert_says(&failure, &topic);
    assert!(failure.counts_for_breaker(), "{}", failure.error);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    bench.wire().create_topic(&topic, 1, &[]);
    deliver(&*sink, &delivery(message(2, "{}")), Duration::from_secs(10)).await.unwrap();
    let ids = bench.wire().records(&topic, 0).into_iter().map(|record| record.message.id);
    assert_eq!(ids.collect::<Vec<_>>(), [id(2)]);
}

#[tokio::test]
async fn a_partition_that_a_topic_does_not_have_is_retryable() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"partition": 7})));
    let failure = failure(&*sink, &sent(1, json!({}))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.counts_for_breaker(), "{}", failure.error);
    assert_says(&failure, "partition");
}

#[tokio::test]
async fn a_mistake_in_the_options_of_a_message_says_nothing_about_the_cluster() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let sink = bench.sink();
    for options in [json!({"topic": format!("{}-mistyped", bench.target)}), json!({"partition": 7})] {
        let failure = failure(&*sink, &sent(1, options)).await;
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert!(!failure.counts_for_breaker() && !failure.is_overload(), "{}", failure.error);
    }
}

#[tokio::test]
async fn a_topic_that_a_user_may_not_write_to_is_permanent_and_hurts_no_other() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let other = bench.topic("other", 1, &[]);
    bench.wire().let_write(DENIED_USER, &bench.target);
    let config = KafkaBroker::config(bench.listeners.password, &bench.target);
    let sink = bench.sink_of(with(config, sasl("plain", DENIED_USER, PASSWORD)));
    let begun = Instant::now();
    // The broker learns of a right a moment after it was given.
    while sink.deliver(&sent(1, json!({}))).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let failure = failure(&*sink, &sent(2, json!({"topic": other}))).await;
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_says(&failure, "TopicAuthorizationFailed");
    sink.deliver(&sent(3, json!({}))).await.unwrap();
    assert_eq!(bench.ids().await, [id(1), id(3)]);
}

/// A topic's limit is one for batches: records that are refused in a batch may be small enough alone.
#[tokio::test]
async fn a_message_that_is_too_large_dies_at_once_and_takes_none_of_its_batch_along() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let topic = bench.topic("small", 1, &[("max.message.bytes", "1500")]);
    let sink = bench.sink_of(with(bench.config(), json!({"topic": topic})));
    let small: Vec<_> = (0..100).map(|number| delivery(message(number, vec![b'1'; 400]))).collect();
    let large = [20 << 10, MESSAGE_BYTES_MAX / 2].map(|bytes| delivery(message(1000, vec![b'1'; bytes])));
    let results = join_all(small.iter().chain(&large).map(|sent| sink.deliver(sent))).await;
    let (small, large) = results.split_at(small.len());
    for result in small {
        result.as_ref().unwrap();
    }
    for result in large {
        let failure = result.clone().failed();
        assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
        assert!(!failure.counts_for_breaker() && !failure.ambiguous, "{}", failure.error);
    }
    let records = bench.wire().records(&topic, 0);
    let ids: BTreeSet<String> = records.iter().map(|record| record.message.id.clone()).collect();
    assert_eq!((records.len(), ids), (100, (0..100).map(id).collect()));
}

/// While a topic is deleted, the producer keeps its records and tries again. Records of another keep the producer busy.
#[tokio::test]
async fn a_record_whose_attempt_has_failed_is_not_written_later() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let topic = bench.topic("deleted", 1, &[]);
    let sink = bench.sink_of(with(bench.config(), json!({"timeout": 3})));
    sink.deliver(&sent(0, json!({"topic": topic}))).await.unwrap();
    bench.wire().delete_topic(&topic);
    let busy = async {
        loop {
            sink.deliver(&sent(0, json!({}))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let given_up = sent(1, json!({"topic": topic}));
    let failure = tokio::select! {
        result = deliver(&*sink, &given_up, Duration::from_secs(3)) => result.failed(),
        () = busy => unreachable!("it has no end"),
    };
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    bench.wire().create_topic(&topic, 1, &[]);
    let begun = Instant::now();
    while deliver(&*sink, &sent(2, json!({"topic": topic})), Duration::from_secs(3)).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
    // The producer keeps the order in which it was given the records of a partition.
    let ids: BTreeSet<String> =
        bench.wire().records(&topic, 0).into_iter().map(|record| record.message.id).collect();
    assert_eq!(ids, [id(2)].into());
}

#[tokio::test]
async fn a_record_that_would_be_late_is_not_given_to_the_producer() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    // To connect takes several round trips, which together are more than half of the attempt.
    bench.proxy.set(Fault::Delay(Duration::from_millis(250)));
    let sink = bench.sink_of(with(bench.config(), json!({"timeout": 2})));
    let failure = failure(&*sink, &sent(1, json!({}))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(!failure.ambiguous, "{}", failure.error);
    assert_eq!(bench.ids().await, [""; 0]);
}

#[tokio::test]
async fn a_connection_that_freezes_is_replaced_within_one_attempt() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let sink = bench.sink();
    sink.deliver(&sent(0, json!({}))).await.unwrap();
    let before = bench.proxy.accepted();
    bench.proxy.set(Fault::Freeze);
    let failure = failure(&*sink, &sent(1, json!({}))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.ambiguous && !failure.error.contains("timed out after"), "{}", failure.error);
    until("a new connection", || bench.proxy.accepted() > before).await;
    bench.proxy.set(Fault::None);
    until("the sink is connected again", || sink.connection() == SinkConnection::Up).await;
    sink.deliver(&sent(2, json!({}))).await.unwrap();
    assert!(bench.ids().await.contains(&id(2)));
}

/// Brokers close what is idle. The next delivery must not find that out.
#[tokio::test]
async fn a_broker_that_closes_idle_connections_costs_no_attempt() {
    let start = || KafkaBroker::KIND.start_with("connections.max.idle.ms=3000");
    let Some(broker) = tokio::task::spawn_blocking(start).await.unwrap() else { return };
    let bench = Bench::<KafkaBroker>::on(&broker.listeners().clone()).await;
    let sink = bench.sink();
    for number in 0..3 {
        deliver(&*sink, &sent(number, json!({})), Duration::from_secs(10)).await.unwrap();
        let before = bench.proxy.accepted();
        until("the broker closes the connection", || bench.proxy.accepted() > before).await;
        until("the sink is connected again", || sink.connection() == SinkConnection::Up).await;
    }
    assert_eq!(bench.ids().await, (0..3).map(id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_leader_that_changes_costs_no_attempt_and_one_that_is_missing_is_retryable() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let followers = Followers::before(bench.listeners.plain).await;
    let config = KafkaBroker::config(followers.port(), &bench.target);
    let sink = bench.sink_of(with(config, json!({"timeout": 5})));
    sink.deliver(&sent(0, json!({}))).await.unwrap();
    followers.refuse(2);
    sink.deliver(&sent(1, json!({}))).await.unwrap();
    assert_eq!(followers.refusals_left(), 0);
    followers.refuse(usize::MAX);
    let failure = failure(&*sink, &sent(2, json!({}))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.counts_for_breaker() && !failure.ambiguous, "{}", failure.error);
    assert_says(&failure, "no leader");
    followers.refuse(0);
    sink.deliver(&sent(2, json!({}))).await.unwrap();
    assert_eq!(bench.ids().await, (0..3).map(id).collect::<Vec<_>>());
}

/// Also what is sent twice, because its acknowledgement was lost, stands in its place the first time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_one_key_stay_in_order_through_reconnects() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let topic = bench.topic("keys", 4, &[]);
    let sink = bench.sink_of(with(bench.config(), json!({"topic": topic})));
    let send_all = |key: usize| {
        let sink = &sink;
        async move {
            for number in 0..30 {
                let message = keyed(key as i64 * 100 + number, &format!("customer {key}"));
                let begun = Instant::now();
                while deliver(&**sink, &delivery(message.clone()), Duration::from_secs(3)).await.is_err() {
                    assert!(begun.elapsed() < Duration::from_secs(30));
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    };
    let cutting = async {
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            bench.proxy.cut();
        }
    };
    tokio::join!(join_all((0..8).map(send_all)), cutting);
    let mut seen: BTreeMap<String, Bytes> = BTreeMap::new();
    let mut order: BTreeMap<Bytes, Vec<String>> = BTreeMap::new();
    for record in bench.records(&topic, 4).into_iter().flatten() {
        let BrokerMessage { id, payload, .. } = record.message;
        match seen.insert(id.clone(), payload.clone()) {
            None => order.entry(record.key.unwrap()).or_default().push(id),
            Some(before) => assert_eq!(before, payload, "{id} is not the same"),
        }
    }
    assert_eq!(order.len(), 8);
    for (key, ids) in (0..).zip(order.into_values()) {
        assert_eq!(ids, (0..30).map(|number| id(key * 100 + number)).collect::<Vec<_>>());
    }
}

/// A batch that was written may arrive. What still waited in the producer must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_in_the_producer_is_dropped_with_its_connection() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let sink = bench.sink();
    sink.deliver(&delivery(message(0, "{}"))).await.unwrap();
    bench.proxy.set(Fault::Freeze);
    let sent: Vec<_> = (1..300).map(|number| delivery(message(number, vec![b'1'; 10_000]))).collect();
    let timeout = Duration::from_millis(1500);
    for result in join_all(sent.iter().map(|sent| deliver(&*sink, sent, timeout))).await {
        assert_eq!(result.failed().class, Class::Retryable);
    }
    bench.proxy.set(Fault::None);
    let begun = Instant::now();
    while deliver(&*sink, &delivery(message(1000, "{}")), timeout).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Longer than the producer would have kept them.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let ids = bench.ids().await;
    assert!(ids.contains(&id(1000)) && ids.len() < 15, "{} arrived", ids.len());
}

/// A forwarder at an address that is allowed leads to a broker that names one that is not.
#[tokio::test]
async fn the_gate_refuses_a_broker_that_another_one_names() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let listener = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let brokers = listener.local_addr().unwrap().to_string();
    let port = bench.listeners.plain;
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    let environment =
        Environment { allow_nets: vec!["127.0.0.2/32".parse().unwrap()], ..Environment::default() };
    for idempotence in [true, false] {
        let config = json!({"brokers": brokers, "topic": bench.target, "idempotence": idempotence});
        let sink = connect(&Bench::<KafkaBroker>::endpoint(config), &environment).unwrap();
        let failure = failure(&*sink, &delivery(message(1, "{}"))).await;
        assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
        assert_says(&failure, "127.0.0.1 is an internal address");
    }
    assert_eq!(bench.ids().await, [""; 0]);
}

#[tokio::test]
async fn a_producer_need_not_be_idempotent_and_one_broker_of_the_list_is_enough() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    let brokers = format!("127.0.0.1:1,localhost:{}", bench.listeners.plain);
    let config = json!({"brokers": brokers, "idempotence": false, "acks": "all"});
    let sink = bench.sink_of(with(bench.config(), config));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert_eq!(bench.ids().await, [id(1)]);
}

#[tokio::test]
async fn cloud_events_are_headers_or_an_envelope() {
    let Some(bench) = Bench::<KafkaBroker>::shared().await else { return };
    for mode in ["binary", "structured"] {
        let sink = bench.sink_of(with(bench.config(), json!({"cloudevents": mode})));
        let message = Message {
            event_type: Some("order.created".to_owned()),
            content_type: "application/json".to_owned(),
            ..message(1, "{\"a\": 1}")
        };
        sink.deliver(&delivery(message)).await.unwrap();
    }
    let held = bench.held().await;
    let (binary, structured) = (&held[0], &held[1]);
    assert_eq!((binary.content_type.as_str(), &binary.payload[..]), ("application/json", &b"{\"a\": 1}"[..]));
    let expected = [
        ("ce_specversion", "1.0"),
        ("ce_id", &id(1)),
        ("ce_source", &format!("/postrider/{STORE}/orders")),
        ("ce_type", "order.created"),
        ("ce_time", NOW),
    ];
    assert!(expected.iter().all(|(name, value)| binary.headers[*name] == *value), "{binary:?}");
    assert_eq!(structured.content_type, "application/cloudevents+json");
    let envelope: Value = serde_json::from_slice(&structured.payload).unwrap();
    assert_eq!((&envelope["id"], &envelope["data"]), (&json!(id(1)), &json!({"a": 1})));
    assert!(held.iter().all(|held| held.id == id(1)));
}

#[test]
fn bad_configs_name_the_field_and_the_rule() {
    let good = json!({"brokers": "kafka-1:9092,[2001:db8::1]:9092", "topic": "orders"});
    let cases = [
        (json!({"brokers": ""}), "config.brokers"),
        (json!({"brokers": "kafka"}), "config.brokers"),
        (json!({"brokers": "kafka:9092,other"}), "config.brokers"),
        (json!({"brokers": "kafka:0"}), "config.brokers"),
        (json!({"brokers": "kafka://kafka:9092"}), "config.brokers"),
        (json!({"topic": "new orders"}), "config.topic"),
        (json!({"topic": ".."}), "config.topic"),
        (json!({"partition": -1}), "config.partition"),
        (json!({"acks": "1"}), "config.acks"),
        (json!({"compression": "brotli"}), "config.compression"),
        (json!({"headers": {"postrider-id": "x"}}), "config.headers.postrider-id"),
        (json!({"headers": {"Content-Type": "x"}}), "config.headers.Content-Type"),
        (json!({"sasl": {"mechanism": "plain", "username": "shop"}}), "config.sasl.password"),
        (json!({"sasl": {"mechanism": "gssapi", "username": "a", "password": "b"}}), "config.sasl.mechanism"),
        (json!({"cloudevents_type": "shop.order"}), "config.cloudevents_type"),
        (json!({"exchange": "orders"}), "config.exchange"),
    ];
    let protocol = postrider::protocol::Protocol::from_name("kafka").unwrap();
    protocol.check_config(&object(good.clone())).unwrap();
    for (wrong, field) in cases {
        let error = protocol.check_config(&object(with(good.clone(), wrong))).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
}
