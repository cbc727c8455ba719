//! What only MQTT has.

use std::process::Command;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use postrider::message::Message;
use postrider::protocol::Protocol;
use postrider::sink::SinkConnection;
use postrider::verdict::Failure;
use test_servers::brokers::{MESSAGE_BYTES_MAX, PASSWORD, USER};
use test_servers::proxy::Fault;
use test_servers::{Broker, BrokerKind};

use super::v5::Mqtt5;
use super::*;

type MqttBench = Bench<Mqtt5>;

async fn on_own(settings: &'static str) -> Option<(Broker, MqttBench)> {
    let started = tokio::task::spawn_blocking(move || BrokerKind::Mosquitto.start_with(settings));
    let broker = started.await.unwrap()?;
    let bench = Bench::on(&broker.listeners().clone()).await;
    Some((broker, bench))
}

fn with_options(number: i64, options: Value) -> Delivery {
    delivery(Message { options: object(options), ..message(number, "{}") })
}

async fn seen(bench: &MqttBench) -> Vec<Arrived> {
    arrived(&bench.listeners, &bench.target).await
}

/// A subscriber beside the one of the target.
async fn subscriber(port: u16, filter: &str) -> Subscriber {
    let filter = filter.to_owned();
    tokio::task::spawn_blocking(move || Subscriber::to(port, &filter)).await.unwrap()
}

async fn all(subscriber: Subscriber) -> Vec<Arrived> {
    tokio::task::spawn_blocking(move || subscriber.all()).await.unwrap()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let asked = std::time::Instant::now();
    while !condition() {
        assert!(asked.elapsed() < Duration::from_secs(30), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn failure(sink: &dyn Sink, delivery: &Delivery) -> Failure {
    deliver(sink, delivery, Duration::from_secs(10)).await.failed()
}

#[tokio::test]
async fn every_qos_is_delivered_as_asked_for() {
    for version in ["5", "3.1.1"] {
        let Some(bench) = MqttBench::shared().await else { return };
        for qos in 0..3 {
            let sink = bench.sink_of(with(bench.config(), json!({"qos": qos, "version": version})));
            sink.deliver(&delivery(message(qos, "{}"))).await.unwrap();
        }
        let qos: Vec<u8> = seen(&bench).await.iter().map(|arrived| arrived.qos).collect();
        assert_eq!(qos, [0, 1, 2], "{version}");
    }
}

#[tokio::test]
async fn many_of_every_qos_at_once_all_arrive() {
    for version in ["5", "3.1.1"] {
        let Some(bench) = MqttBench::shared().await else { return };
        let sink = bench.sink_of(with(bench.config(), json!({"version": version})));
        let sent: Vec<_> = (0..600).map(|number| with_options(number, json!({"qos": number % 3}))).collect();
        for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
            result.unwrap();
        }
        assert_eq!((seen(&bench).await.len(), bench.proxy.accepted()), (600, 1), "{version}");
    }
}

#[tokio::test]
async fn qos_0_is_refused_while_the_broker_is_away() {
    let Some(bench) = MqttBench::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"qos": 0})));
    // The cut would lose one of QoS 0 that is still on its way.
    sink.deliver(&with_options(1, json!({"qos": 1}))).await.unwrap();
    bench.proxy.set(Fault::Refuse);
    bench.proxy.cut();
    until("the sink notices", || matches!(sink.connection(), SinkConnection::Down { .. })).await;
    assert_eq!(failure(&*sink, &delivery(message(2, "{}"))).await.class, Class::Retryable);
    bench.proxy.set(Fault::None);
    until("the sink is connected again", || sink.connection() == SinkConnection::Up).await;
    sink.deliver(&delivery(message(3, "{}"))).await.unwrap();
    // QoS 0 is delivered before the broker has it: the same connection says when it has.
    sink.deliver(&with_options(4, json!({"qos": 1}))).await.unwrap();
    assert_eq!(bench.ids().await, [id(1), id(3), id(4)]);
}

#[tokio::test]
async fn a_message_names_its_topic_qos_and_user_properties() {
    let Some(bench) = MqttBench::shared().await else { return };
    let other = format!("{}/other", bench.target);
    let others = subscriber(bench.listeners.plain, &other).await;
    let mut own = Message {
        options: object(
            json!({"topic": other, "qos": 2, "user_properties": {"tenant": "red", "colour": "é"}}),
        ),
        ..message(1, "{}")
    };
    own.headers = [("tenant", "blue"), ("size", "7")].map(|(name, value)| (name.into(), value.into())).into();
    bench.sink().deliver(&delivery(own)).await.unwrap();
    let held = all(others).await;
    let property = |name: &str| {
        let named = held[0].user_properties.iter().filter(|(known, _)| known == name);
        named.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((held.len(), held[0].qos, held[0].retain), (1, 2, false));
    assert_eq!(
        (property("tenant"), property("colour"), property("size")),
        (vec!["red"], vec!["é"], vec!["7"])
    );
    assert_eq!(seen(&bench).await, []);
}

#[tokio::test]
async fn a_retained_message_is_seen_by_later_subscribers() {
    let Some(bench) = MqttBench::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"retain": true})));
    for (number, options) in [(1, json!({})), (2, json!({"retain": false}))] {
        sink.deliver(&with_options(number, options)).await.unwrap();
    }
    let late = all(subscriber(bench.listeners.plain, &bench.target).await).await;
    let ids: Vec<_> = late.iter().flat_map(|arrived| &arrived.user_properties).collect();
    assert_eq!((late.len(), late[0].retain), (1, true));
    assert!(ids.contains(&&("postrider-id".to_owned(), id(1))), "{ids:?}");
    sink.deliver(&delivery(message(3, ""))).await.unwrap();
}

#[tokio::test]
async fn another_client_sees_the_same() {
    let Some(bench) = MqttBench::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"retain": true})));
    let mut own = message(1, r#"{"a": 1}"#);
    own.headers.insert("tenant".to_owned(), "blue".to_owned());
    sink.deliver(&delivery(own)).await.unwrap();
    let mut client = Command::new("mosquitto_sub");
    client.args(["-V", "5", "-p", &bench.listeners.plain.to_string(), "-t", &bench.target]);
    client.args(["-C", "1", "-W", "10", "-F", "%q %r %C %P | %p"]);
    let printed = tokio::task::spawn_blocking(move || client.output().unwrap()).await.unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let expected = format!(
        "0 1 application/json postrider-id:{} postrider-attempt:1 postrider-created-at:{NOW} tenant:blue | {{\"a\": 1}}\n",
        id(1)
    );
    assert_eq!(printed, expected);
}

#[tokio::test]
async fn the_will_is_published_when_the_connection_is_lost_and_not_when_it_is_closed() {
    for version in ["5", "3.1.1"] {
        let Some(bench) = MqttBench::shared().await else { return };
        let topic = format!("{}/will", bench.target);
        let wills = subscriber(bench.listeners.plain, &topic).await;
        let will = json!({"topic": topic, "payload": "gone é", "qos": 1, "retain": true});
        let sink = bench.sink_of(with(bench.config(), json!({"will": will, "version": version})));
        sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
        drop(sink);
        until("the connection is closed", || bench.proxy.open() == 0).await;
        let sink = bench.sink_of(with(bench.config(), json!({"will": will, "version": version})));
        sink.deliver(&delivery(message(2, "{}"))).await.unwrap();
        bench.proxy.cut();
        let published = tokio::task::spawn_blocking(move || {
            wills.until(|arrived| !arrived.is_empty());
            wills.all()
        });
        let published = published.await.unwrap();
        assert_eq!(
            (published.len(), published[0].qos, &published[0].payload[..]),
            (1, 1, "gone é".as_bytes())
        );
    }
}

#[tokio::test]
async fn version_3_carries_the_payload_and_nothing_else() {
    let Some(bench) = MqttBench::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"version": "3.1.1"})));
    let sizes = [1, 64 << 10, MESSAGE_BYTES_MAX - (16 << 10)];
    let payload = |size: usize| Bytes::from((0..size).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    for (number, size) in (1..).zip(sizes) {
        let mut sent = message(number, payload(size));
        sent.headers.insert("tenant".to_owned(), "blue".to_owned());
        sink.deliver(&delivery(sent)).await.unwrap();
    }
    let held = seen(&bench).await;
    let expected = sizes.map(|size| Arrived {
        topic: bench.target.clone(),
        qos: 1,
        payload: payload(size),
        ..Arrived::default()
    });
    assert!(held == expected, "{:?}", held.iter().map(|held| held.payload.len()).collect::<Vec<_>>());
}

#[tokio::test]
async fn cloudevents_are_sent_in_both_modes() {
    let Some(bench) = MqttBench::shared().await else { return };
    let sent = delivery(Message { event_type: Some("order.created".to_owned()), ..message(1, "[1]") });
    for mode in ["binary", "structured"] {
        bench.sink_of(with(bench.config(), json!({"cloudevents": mode}))).deliver(&sent).await.unwrap();
    }
    let held = bench.held().await;
    let (binary, structured) = (&held[0], &held[1]);
    let attributes = [
        ("specversion", "1.0"),
        ("id", "msg_k3x9_1"),
        ("source", "/postrider/k3x9/orders"),
        ("type", "order.created"),
        ("time", NOW),
    ];
    for (name, value) in attributes {
        assert_eq!(binary.headers.get(name).map(String::as_str), Some(value));
        assert!(!structured.headers.contains_key(name));
    }
    assert_eq!((&binary.content_type[..], &binary.payload[..]), ("application/json", &b"[1]"[..]));
    assert_eq!(structured.content_type, "application/cloudevents+json");
    let envelope: Value = serde_json::from_slice(&structured.payload).unwrap();
    assert_eq!((&envelope["id"], &envelope["data"]), (&json!("msg_k3x9_1"), &json!([1])));
}

#[tokio::test]
async fn texts_that_brokers_refuse_do_not_end_the_connection() {
    let Some(bench) = MqttBench::shared().await else { return };
    let odd = Message { ordering_key: Some("a\nb\u{fffe} 5%".to_owned()), ..message(1, "{}") };
    let sink = bench.sink();
    sink.deliver(&delivery(odd)).await.unwrap();
    assert_eq!(bench.held().await[0].headers["postrider-ordering-key"], "a%0Ab%EF%BF%BE 5%25");
    assert_eq!(bench.proxy.accepted(), 1);
}

#[tokio::test]
async fn the_broker_is_never_sent_more_than_it_takes_at_a_time() {
    let Some((_broker, bench)) = on_own("max_inflight_messages 5").await else { return };
    for sink in [1, 2].map(|qos| bench.sink_of(with(bench.config(), json!({"qos": qos})))) {
        let sent: Vec<_> = (0..500).map(|number| delivery(message(number, "{}"))).collect();
        for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
            result.unwrap();
        }
    }
    assert_eq!((bench.held().await.len(), bench.proxy.accepted()), (1000, 1));
}

#[tokio::test]
async fn a_delivery_that_was_given_up_while_it_waited_is_never_sent() {
    let Some((_broker, bench)) = on_own("max_inflight_messages 5").await else { return };
    let sink = bench.sink();
    sink.deliver(&delivery(message(0, "{}"))).await.unwrap();
    bench.proxy.set(Fault::Freeze);
    let sent: Vec<_> = (1..20).map(|number| delivery(message(number, "{}"))).collect();
    // Too short for the silence to be taken for a dead connection.
    let given_up = Duration::from_millis(500);
    for result in join_all(sent.iter().map(|sent| deliver(&*sink, sent, given_up))).await {
        assert_eq!(result.failed().class, Class::Retryable);
    }
    bench.proxy.set(Fault::None);
    sink.deliver(&delivery(message(20, "{}"))).await.unwrap();
    assert_eq!(bench.ids().await, [0, 1, 2, 3, 4, 5, 20].map(id));
    assert_eq!(bench.proxy.accepted(), 1);
}

#[tokio::test]
async fn a_packet_above_the_announced_size_is_not_sent() {
    let Some((_broker, bench)) = on_own("max_packet_size 2000").await else { return };
    let sink = bench.sink();
    let large = delivery(message(1, vec![b'1'; 3000]));
    let waiting = sink.deliver(&large).now_or_never();
    assert!(waiting.is_none(), "it is connected first");
    let failure = failure(&*sink, &large).await;
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_says(&failure, "2000 bytes");
    sink.deliver(&delivery(message(2, "{}"))).await.unwrap();
    assert_eq!((bench.ids().await, bench.proxy.accepted()), (vec![id(2)], 1));
}

/// Version 3.1.1 announces no limit: the broker closes the connection, and what was on it is sent again.
#[tokio::test]
async fn version_3_loses_the_connection_by_a_packet_that_is_too_large() {
    let Some((_broker, bench)) = on_own("max_packet_size 2000").await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"version": "3.1.1"})));
    let failure = failure(&*sink, &delivery(message(1, vec![b'1'; 3000]))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    let begun = std::time::Instant::now();
    while deliver(&*sink, &delivery(message(2, "{}")), Duration::from_secs(5)).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(seen(&bench).await.len(), 1);
}

#[tokio::test]
async fn an_idle_connection_is_kept_by_pings_and_a_dead_one_is_noticed() {
    let Some(bench) = MqttBench::shared().await else { return };
    let sinks = ["5", "3.1.1"]
        .map(|version| bench.sink_of(with(bench.config(), json!({"keepalive": 2, "version": version}))));
    for sink in &sinks {
        sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    }
    // mosquitto closes a connection after one and a half times of `keepalive`.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let are_up = || sinks.iter().all(|sink| sink.connection() == SinkConnection::Up);
    assert!(bench.proxy.accepted() == 2 && are_up());
    bench.proxy.set(Fault::Freeze);
    until("both notice", || sinks.iter().all(|sink| sink.connection() != SinkConnection::Up)).await;
    bench.proxy.set(Fault::None);
}

#[tokio::test]
async fn secrets_are_read_when_connecting() {
    let Some(bench) = MqttBench::shared().await else { return };
    let directory = tempfile::tempdir().unwrap();
    let environment =
        Environment { secrets_dir: Some(directory.path().to_owned()), ..bench.environment.clone() };
    let config = with(bench.config(), json!({"username": USER, "password": "file:mqtt"}));
    let sink = connect(&MqttBench::endpoint(config), &environment).unwrap();
    let missing = failure(&*sink, &delivery(message(1, "{}"))).await;
    assert_eq!(missing.class, Class::Retryable, "{}", missing.error);
    std::fs::write(directory.path().join("mqtt"), format!("{PASSWORD}\n")).unwrap();
    let begun = std::time::Instant::now();
    while sink.deliver(&delivery(message(1, "{}"))).await.is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_server_that_speaks_something_else_is_named() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = server.accept().await {
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, b"\x48\x01\x00").await;
        }
    });
    let sink = connect(&MqttBench::endpoint(config(port, "t")), &open_environment()).unwrap();
    let failure = failure(&*sink, &delivery(message(1, "{}"))).await;
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "does not speak MQTT");
}

#[test]
fn bad_configs_and_options_name_the_field_and_the_rule() {
    let good = json!({"broker": "mqtt", "topic": "orders"});
    let cases = [
        (json!({"broker": "mqtt://mqtt"}), "config.broker"),
        (json!({"topic": "orders/+"}), "config.topic"),
        (json!({"topic": "orders/#"}), "config.topic"),
        (json!({"topic": "a\nb"}), "config.topic"),
        (json!({"topic": ""}), "config.topic"),
        (json!({"topic": "a\u{1ffff}"}), "config.topic"),
        (json!({"version": "4"}), "config.version"),
        (json!({"qos": 3}), "config.qos"),
        (json!({"keepalive": 0}), "config.keepalive"),
        (json!({"will": {"payload": "x"}}), "config.will.topic"),
        (json!({"will": {"topic": "a/#"}}), "config.will.topic"),
        (json!({"will": {"topic": "a", "qos": 7}}), "config.will.qos"),
        (json!({"version": "3.1.1", "cloudevents": "binary"}), "config.cloudevents"),
        (json!({"version": "3.1.1", "password": "x"}), "config.password"),
        (json!({"cloudevents_type": "x"}), "config.cloudevents_type"),
        (json!({"user_properties": {}}), "config.user_properties"),
    ];
    let protocol = Protocol::from_name("mqtt").unwrap();
    let will = json!({"will": {"topic": "a", "payload": "b", "qos": 2, "retain": true}});
    protocol.check_config(&object(with(good.clone(), will))).unwrap();
    for (wrong, field) in cases {
        let error = protocol.check_config(&object(with(good.clone(), wrong))).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
    let options = [
        (json!({"topic": "orders/+"}), "options.topic"),
        (json!({"qos": 3}), "options.qos"),
        (json!({"retain": 1}), "options.retain"),
        (json!({"user_properties": {"postrider-id": "1"}}), "options.user_properties.postrider-id"),
        (json!({"user_properties": {"a": "b\n"}}), "options.user_properties.a"),
    ];
    for (wrong, field) in options {
        assert_eq!(protocol.check_message_options(&object(wrong)).unwrap_err().field, field);
    }
    let good = json!({"topic": "a/b", "qos": 0, "retain": true, "user_properties": {"A b": "é"}});
    protocol.check_message_options(&object(good)).unwrap();
}
