//! AMQP 0-9-1, looked at by lapin, a client that the sink does not use.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::protocol::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use postrider::message::Message;
use postrider::sink::SinkConnection;
use postrider::verdict::Failure;
use serde_json::json;
use test_servers::Broker;
use test_servers::brokers::{DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, USER};
use test_servers::proxy::Fault;

use super::*;

struct AmqpBroker;

#[async_trait]
impl BrokerUnderTest for AmqpBroker {
    const PROTOCOL: &'static str = "amqp";
    const KIND: BrokerKind = BrokerKind::RabbitMq;

    /// The default exchange brings a message to the queue that its routing key names.
    fn config(port: u16, target: &str) -> Value {
        json!({"host": "127.0.0.1", "port": port, "exchange": "", "routing_key": target})
    }

    fn login(user: &str, password: &str) -> Value {
        json!({"username": user, "password": password})
    }

    /// RabbitMQ 3.10 answers before its log says that the declaration is committed. Where it is killed within the next two
    /// seconds, it may have forgotten the durable queue, with all that it confirmed. Another declaration flushes the log.
    async fn create(listeners: &BrokerListeners, target: &str) {
        let client = Client::connect(listeners.plain).await;
        for queue in [target, &format!("{target}-later")] {
            client.queue(queue, FieldTable::default()).await;
        }
    }

    async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage> {
        Client::connect(listeners.plain).await.held(target).await.into_iter().map(seen).collect()
    }

    fn unroutable(port: u16) -> Option<(Value, Class)> {
        Some((Self::config(port, "missing"), Class::Permanent))
    }
}

broker_conforms!(AmqpBroker);

struct Client {
    connection: Connection,
    channel: Channel,
}

impl Client {
    async fn connect(port: u16) -> Self {
        Self::connect_to(port, "%2f").await
    }

    async fn connect_to(port: u16, vhost: &str) -> Self {
        let url = format!("amqp://{USER}:{PASSWORD}@127.0.0.1:{port}/{vhost}");
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self { connection, channel }
    }

    async fn queue(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare(name.into(), options, arguments).await.unwrap();
    }

    /// Nothing is acknowledged, so the queue keeps its messages.
    async fn held(self, queue: &str) -> Vec<(BasicProperties, Vec<u8>)> {
        let mut held = Vec::new();
        while let Some(got) = self.channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap()
        {
            held.push((got.delivery.properties, got.delivery.data));
        }
        self.connection.close(200, "OK".into()).await.unwrap();
        held
    }
}

fn seen((properties, payload): (BasicProperties, Vec<u8>)) -> BrokerMessage {
    let text = |text: &Option<lapin::types::ShortString>| text.as_ref().unwrap().to_string();
    let headers = properties.headers().as_ref().unwrap().inner().iter();
    BrokerMessage {
        id: text(properties.message_id()),
        headers: headers.map(|(name, value)| (name.to_string(), long(value))).collect(),
        content_type: text(properties.content_type()),
        payload: payload.into(),
    }
}

fn long(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The properties of what is at the bench's target.
async fn properties(bench: &Bench<AmqpBroker>) -> Vec<BasicProperties> {
    let held = Client::connect(bench.listeners.plain).await.held(&bench.target).await;
    held.into_iter().map(|(properties, _)| properties).collect()
}

fn sent(number: i64, options: Value) -> Delivery {
    delivery(Message { options: object(options), ..message(number, "{}") })
}

async fn failure(sink: &dyn Sink, number: i64) -> Failure {
    sink.deliver(&delivery(message(number, "{}"))).await.failed()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let asked = std::time::Instant::now();
    while !condition() {
        assert!(asked.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn start() -> Option<Broker> {
    tokio::task::spawn_blocking(|| BrokerKind::RabbitMq.start()).await.unwrap()
}

/// `rabbitmqctl` takes seconds.
async fn control(broker: Broker, arguments: &'static [&'static str]) -> Broker {
    tokio::task::spawn_blocking(move || {
        broker.rabbitmqctl(arguments).unwrap();
        broker
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_names_its_routing_key_its_headers_and_whether_it_is_persistent() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let headers = json!({"headers": {"Tenant": "blue", "region": "eu"}, "routing_key": "missing"});
    let sink = bench.sink_of(with(bench.config(), headers));
    let mut first = Message {
        options: object(json!({"routing_key": bench.target, "persistent": false})),
        priority: 7,
        ..message(1, "{}")
    };
    first.headers.insert("tenant".to_owned(), "red".to_owned());
    sink.deliver(&delivery(first)).await.unwrap();
    sink.deliver(&sent(2, json!({"routing_key": bench.target}))).await.unwrap();
    let held = bench.held().await;
    let header = |at: usize, name: &str| held[at].headers.get(name).map(String::as_str);
    assert_eq!(
        [header(0, "tenant"), header(0, "Tenant"), header(0, "region")],
        [Some("red"), None, Some("eu")]
    );
    assert_eq!([header(1, "tenant"), header(1, "Tenant")], [None, Some("blue")]);
    let properties = properties(&bench).await;
    assert_eq!((properties[0].delivery_mode(), properties[0].priority()), (&Some(1), &Some(7)));
    assert_eq!((properties[1].delivery_mode(), properties[1].priority()), (&Some(2), &None));
}

/// A client that takes one confirmation for another would show here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unroutable_messages_among_others_are_permanent_and_no_other_is() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let sink = bench.sink();
    let is_lost = |number: i64| number % 4 == 0;
    for round in 0..20 {
        let deliveries: Vec<_> = (round * 100..round * 100 + 100)
            .map(|number| match is_lost(number) {
                true => sent(number, json!({"routing_key": "missing", "persistent": false})),
                false => sent(number, json!({"persistent": false})),
            })
            .collect();
        let results = join_all(deliveries.iter().map(|sent| sink.deliver(sent))).await;
        for (delivery, result) in deliveries.iter().zip(results) {
            let number = delivery.message.id.0;
            assert_eq!(result.is_err(), is_lost(number), "{number}: {result:?}");
            if let Err(undelivered) = result {
                let failure = undelivered.failed();
                assert_eq!((failure.class, failure.status), (Class::Permanent, Some(312)));
                assert_says(&failure, "NO_ROUTE");
                assert!(!failure.counts_for_breaker());
            }
        }
    }
    assert_eq!(bench.ids().await.len(), 1500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_mandatory_an_unroutable_message_counts_as_delivered() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let config = json!({"mandatory": false, "routing_key": "missing"});
    bench.sink_of(with(bench.config(), config)).deliver(&delivery(message(1, "{}"))).await.unwrap();
}

/// Both close the channel of the message that they are about.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_exchange_and_an_oversized_message_disturb_no_neighbour() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let (sink, lost) = (bench.sink(), bench.sink_of(with(bench.config(), json!({"exchange": "missing"}))));
    sink.deliver(&delivery(message(0, "{}"))).await.unwrap();
    let connections = bench.proxy.accepted();
    let good: Vec<_> = (1..=500).map(|number| delivery(message(number, "{}"))).collect();
    let large: Vec<_> =
        (1000..1005).map(|number| delivery(message(number, vec![b'1'; MESSAGE_BYTES_MAX + 1]))).collect();
    let unknown: Vec<_> = (2000..2100).map(|number| delivery(message(number, "{}"))).collect();
    let (good, large, unknown) = tokio::join!(
        join_all(good.iter().map(|sent| sink.deliver(sent))),
        join_all(large.iter().map(|sent| sink.deliver(sent))),
        join_all(unknown.iter().map(|sent| lost.deliver(sent))),
    );
    good.into_iter().for_each(|result| drop(result.unwrap()));
    for result in large {
        let failure = result.failed();
        assert_eq!((failure.class, failure.status), (Class::Permanent, Some(406)), "{}", failure.error);
    }
    for result in unknown {
        let failure = result.failed();
        assert_eq!((failure.class, failure.status), (Class::Retryable, Some(404)), "{}", failure.error);
        assert_says(&failure, "no exchange 'missing'");
    }
    assert_eq!(bench.proxy.accepted(), connections);
    let mut ids = bench.ids().await;
    ids.sort_unstable();
    let mut expected: Vec<_> = (0..=500).map(id).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected, "each of them once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denied_user_is_told_so() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), AmqpBroker::login(DENIED_USER, PASSWORD)));
    let failure = failure(&*sink, 1).await;
    assert_eq!((failure.class, failure.status), (Class::Permanent, Some(403)), "{}", failure.error);
    assert_says(&failure, "ACCESS_REFUSED");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_is_retryable_and_overloaded() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let queue = format!("{}-full", bench.target);
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    Client::connect(bench.listeners.plain).await.queue(&queue, arguments).await;
    let sink = bench.sink_of(with(bench.config(), json!({"routing_key": queue})));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    let failure = failure(&*sink, 2).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.is_overload(), "{}", failure.error);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_virtual_host_is_retryable() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let failure = failure(&*bench.sink_of(with(bench.config(), json!({"vhost": "missing"}))), 1).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert_says(&failure, "530");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloudevents_are_properties_or_one_document() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let event =
        |number| Message { event_type: Some("order.created".to_owned()), ..message(number, r#"{"a":1}"#) };
    for (number, mode) in [(1, "binary"), (2, "structured")] {
        let sink = bench.sink_of(with(bench.config(), json!({"cloudevents": mode})));
        sink.deliver(&delivery(event(number))).await.unwrap();
    }
    let held = bench.held().await;
    let expected: BTreeMap<_, _> = [
        ("cloudEvents:specversion", "1.0"),
        ("cloudEvents:id", "msg_k3x9_1"),
        ("cloudEvents:source", "/postrider/k3x9/orders"),
        ("cloudEvents:type", "order.created"),
        ("cloudEvents:time", NOW),
    ]
    .into();
    let headers = held[0].headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    assert_eq!(
        headers.filter(|(name, _)| name.starts_with("cloudEvents")).collect::<BTreeMap<_, _>>(),
        expected
    );
    assert_eq!(
        (held[0].content_type.as_str(), &held[0].payload[..]),
        ("application/json", &br#"{"a":1}"#[..])
    );
    assert_eq!(
        (held[1].id.as_str(), held[1].content_type.as_str()),
        ("msg_k3x9_2", "application/cloudevents+json")
    );
    let envelope: Value = serde_json::from_slice(&held[1].payload).unwrap();
    assert_eq!((&envelope["id"], &envelope["data"]), (&json!("msg_k3x9_2"), &json!({"a": 1})));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_keep_an_idle_connection_and_find_a_dead_one() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"heartbeat": 1})));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    // A broker closes a connection on which it heard nothing for three times as long.
    tokio::time::sleep(Duration::from_secs(5)).await;
    sink.deliver(&delivery(message(2, "{}"))).await.unwrap();
    assert_eq!(bench.proxy.accepted(), 1);
    bench.proxy.set(Fault::Freeze);
    until("the sink misses heartbeats", || sink.connection() != SinkConnection::Up).await;
    bench.proxy.set(Fault::None);
    until("the sink is connected again", || sink.connection() == SinkConnection::Up).await;
    sink.deliver(&delivery(message(3, "{}"))).await.unwrap();
    assert_eq!(bench.ids().await, [id(1), id(2), id(3)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_the_broker_cannot_take_are_permanent_and_hurt_no_other() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let sink = bench.sink();
    let with_header = |number, name: String, value: String| {
        let mut message = message(number, "{}");
        message.headers.insert(name, value);
        delivery(message)
    };
    let bad = [
        with_header(1, "n".repeat(256), "x".to_owned()),
        with_header(2, "x".to_owned(), "v".repeat(200 << 10)),
        // RabbitMQ reads this one itself, and wants a list.
        with_header(3, "CC".to_owned(), "x".to_owned()),
        delivery(Message { content_type: "t".repeat(256), ..message(4, "{}") }),
    ];
    let good = delivery(message(5, "{}"));
    let (bad, good) = tokio::join!(join_all(bad.iter().map(|sent| sink.deliver(sent))), sink.deliver(&good));
    good.unwrap();
    for result in bad {
        let failure = result.failed();
        assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    }
    assert_eq!((bench.ids().await, bench.proxy.accepted()), (vec![id(5)], 1));
}

/// Publications share a channel once the broker has confirmed others like them. RabbitMQ closes it for this header.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_message_on_the_shared_channel_costs_no_other_its_delivery() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let sink = bench.sink();
    sink.deliver(&delivery(message(0, "{}"))).await.unwrap();
    let is_bad = |number: i64| number % 50 == 25;
    let deliveries: Vec<_> = (1..=500)
        .map(|number| {
            let mut message = message(number, "{}");
            if is_bad(number) {
                message.headers.insert("CC".to_owned(), "x".to_owned());
            }
            delivery(message)
        })
        .collect();
    let results = join_all(deliveries.iter().map(|sent| sink.deliver(sent))).await;
    for (delivery, result) in deliveries.iter().zip(results) {
        match is_bad(delivery.message.id.0) {
            true => assert_eq!(
                (result.clone().failed().class, result.failed().status),
                (Class::Permanent, Some(406))
            ),
            false => drop(result.unwrap()),
        }
    }
    assert_eq!(bench.proxy.accepted(), 1);
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert_eq!(held, (0..=500).filter(|number| !is_bad(*number)).map(id).collect());
}

/// So many that the channel they are on is replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_that_were_given_up_do_not_pile_up() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let sink = bench.sink();
    // The second one is on the shared channel.
    for number in [0, 1000] {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
    bench.proxy.set(Fault::SwallowAnswers);
    let lost: Vec<_> = (1..400).map(|number| delivery(message(number, "{}"))).collect();
    // Too short to take the connection for dead.
    let short = Duration::from_millis(500);
    for result in join_all(lost.iter().map(|sent| deliver(&*sink, sent, short))).await {
        assert_eq!(result.failed().class, Class::Retryable);
    }
    bench.proxy.set(Fault::None);
    for number in 1001..1010 {
        deliver(&*sink, &delivery(message(number, "{}")), Duration::from_secs(10)).await.unwrap();
    }
    assert_eq!(bench.proxy.accepted(), 1);
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert!((1000..1010).all(|number| held.contains(&id(number))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_blocked_broker_is_waited_for_until_the_deadline() {
    let Some(broker) = start().await else { return };
    let bench = Bench::<AmqpBroker>::on(&broker.listeners().clone()).await;
    let sink = bench.sink();
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    let broker = control(broker, &["set_vm_memory_high_watermark", "absolute", "1"]).await;
    // The broker blocks a connection when it publishes.
    let patient = tokio::spawn({
        let sink = Arc::clone(&sink);
        async move { deliver(&*sink, &sent(2, json!({"timeout": 60})), Duration::from_secs(60)).await }
    });
    let is_blocked =
        || matches!(sink.connection(), SinkConnection::Down { error } if error.contains("blocks publishers"));
    until("the broker blocks", is_blocked).await;
    let failure = deliver(&*sink, &sent(3, json!({"timeout": 1})), Duration::from_secs(1)).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.is_overload(), "{}", failure.error);
    assert_says(&failure, "blocks publishers: low on memory");
    assert!(!patient.is_finished());
    let _broker = control(broker, &["set_vm_memory_high_watermark", "0.9"]).await;
    patient.await.unwrap().unwrap();
    until("the broker works again", || sink.connection() == SinkConnection::Up).await;
    sink.deliver(&delivery(message(4, "{}"))).await.unwrap();
    // What was given up is not sent later.
    assert_eq!((bench.ids().await, bench.proxy.accepted()), (vec![id(1), id(2), id(4)], 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn persistent_messages_of_a_virtual_host_survive_a_restart_of_the_broker() {
    let Some(broker) = start().await else { return };
    let bench = Bench::<AmqpBroker>::on(&broker.listeners().clone()).await;
    let broker = control(broker, &["add_vhost", "shop/east"]).await;
    let mut broker = control(broker, &["set_permissions", "-p", "shop/east", USER, ".*", ".*", ".*"]).await;
    let client = || Client::connect_to(bench.listeners.plain, "shop%2feast");
    client().await.queue("orders", FieldTable::default()).await;
    let config =
        json!({"vhost": "shop/east", "username": USER, "password": PASSWORD, "routing_key": "orders"});
    let sink = bench.sink_of(with(bench.config(), config));
    for number in 1..=20 {
        sink.deliver(&sent(number, json!({"persistent": number % 2 == 0}))).await.unwrap();
    }
    let _broker = tokio::task::spawn_blocking(move || {
        broker.stop();
        broker.start_again().unwrap();
        broker
    })
    .await
    .unwrap();
    let held = client().await.held("orders").await;
    let ids: Vec<_> = held.into_iter().map(|held| seen(held).id).collect();
    assert_eq!(ids, (1..=10).map(|half| id(half * 2)).collect::<Vec<_>>());
    assert_eq!(bench.ids().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_may_be_a_reference() {
    let Some(bench) = Bench::<AmqpBroker>::shared().await else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("amqp"), format!("{PASSWORD}\n")).unwrap();
    let environment =
        Environment { secrets_dir: Some(directory.path().to_owned()), ..bench.environment.clone() };
    let config = with(bench.config(), json!({"username": USER, "password": "file:amqp"}));
    let sink = connect(&Bench::<AmqpBroker>::endpoint(config), &environment).unwrap();
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
}

#[test]
fn bad_configs_name_the_field_and_the_rule() {
    let good = json!({"host": "rabbit", "exchange": "", "routing_key": ""});
    let cases = [
        (json!({"host": ""}), "config.host"),
        (json!({"port": 0}), "config.port"),
        (json!({"exchange": "x".repeat(256)}), "config.exchange"),
        (json!({"routing_key": "a\nb"}), "config.routing_key"),
        (json!({"vhost": ""}), "config.vhost"),
        (json!({"heartbeat": 0}), "config.heartbeat"),
        (json!({"username": "shop"}), "config.username"),
        (json!({"password": "shop"}), "config.password"),
        (json!({"headers": {"postrider-x": "1"}}), "config.headers.postrider-x"),
        (json!({"cloudevents_type": "x"}), "config.cloudevents_type"),
        (json!({"topic": "orders"}), "config.topic"),
    ];
    let protocol = postrider::protocol::Protocol::from_name("amqp").unwrap();
    protocol.check_config(&object(good.clone())).unwrap();
    for (wrong, field) in cases {
        let error = protocol.check_config(&object(with(good.clone(), wrong))).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    for key in ["host", "exchange", "routing_key"] {
        let mut config = object(good.clone());
        config.remove(key);
        assert_eq!(protocol.check_config(&config).unwrap_err().field, format!("config.{key}"));
    }
}
