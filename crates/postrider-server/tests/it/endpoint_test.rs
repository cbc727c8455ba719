//! `postrider endpoint test` for every protocol, with a receiver that takes the message and with one that does not.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use test_servers::BrokerKind;
use test_servers::brokers::{DENIED_USER, PASSWORD, kafka};

use crate::cli::told;
use crate::node::Home;
use crate::receiver::Receiver;

const TAKES: &str = "took the test message (";
const UNCONFIRMED: &str = "was sent the test message, unconfirmed (";
const REFUSES: &str = "did not take the test message (";

/// Protocol, config, and what is said before the duration.
type Trial = (&'static str, Value, String);

fn with(config: &Value, more: Value) -> Value {
    let mut config = config.clone();
    config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    config
}

fn trials(receiver: &Receiver) -> Vec<Trial> {
    let denied = json!({ "username": DENIED_USER, "password": PASSWORD });
    let trial = |protocol, config: Value, said: &str| (protocol, config, said.to_owned());
    let mut trials = vec![
        trial("http", json!({ "url": receiver.url() }), &format!("{TAKES}HTTP 200, ")),
        trial("http", json!({ "url": receiver.url() + "?refuse" }), &format!("{REFUSES}HTTP 503, ")),
        trial("file", json!({ "path": "orders.jsonl" }), TAKES),
        trial("file", json!({ "path": "folder" }), REFUSES),
    ];
    if let Some(broker) = BrokerKind::Mosquitto.shared() {
        let mqtt = json!({ "broker": "127.0.0.1", "port": broker.plain, "topic": "orders" });
        trials.push(trial("mqtt", mqtt.clone(), TAKES));
        trials.push(trial("mqtt", with(&mqtt, json!({ "qos": 0 })), UNCONFIRMED));
        trials.push(trial("mqtt", with(&mqtt, denied.clone()), REFUSES));
    }
    if let Some(broker) = BrokerKind::Redis.shared() {
        let redis = json!({ "host": "127.0.0.1", "port": broker.plain, "stream_key": "tested" });
        trials.push(trial("redis", redis.clone(), TAKES));
        trials.push(trial("redis", with(&redis, denied), REFUSES));
    }
    if let Some(broker) = BrokerKind::Nats.shared() {
        create_stream(broker.plain);
        let nats = json!({ "url": format!("nats://127.0.0.1:{}", broker.plain), "subject": "tested" });
        let other = json!({ "headers": { "Nats-Expected-Stream": "other" } });
        trials.push(trial("nats", nats.clone(), TAKES));
        trials.push(trial("nats", with(&nats, json!({ "jetstream": false })), UNCONFIRMED));
        trials.push(trial("nats", with(&nats, other), &format!("{REFUSES}status 400, ")));
    }
    if let Some(broker) = BrokerKind::RabbitMq.shared() {
        let amqp =
            json!({ "host": "127.0.0.1", "port": broker.plain, "exchange": "amq.fanout", "routing_key": "" });
        trials.push(trial("amqp", with(&amqp, json!({ "mandatory": false })), TAKES));
        trials.push(trial("amqp", amqp, &format!("{REFUSES}status 312, ")));
    }
    if let Some(broker) = BrokerKind::Kafka.shared() {
        let brokers = format!("127.0.0.1:{}", broker.plain);
        let mut tool = kafka::tool("org.apache.kafka.tools.TopicCommand");
        tool.args(["--bootstrap-server", &brokers, "--create", "--if-not-exists", "--topic", "tested"]);
        assert!(tool.output().expect("java runs").status.success());
        trials.push(trial("kafka", json!({ "brokers": brokers, "topic": "tested" }), TAKES));
        trials.push(trial("kafka", json!({ "brokers": brokers, "topic": "missing" }), REFUSES));
    }
    trials
}

fn create_stream(port: u16) {
    let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens");
    connection.set_read_timeout(Some(Duration::from_secs(10))).expect("a limit");
    let stream = json!({ "name": "tested", "subjects": ["tested"] }).to_string();
    let create = format!("PUB $JS.API.STREAM.CREATE.tested made {}\r\n{stream}\r\n", stream.len());
    write!(&connection, "CONNECT {{\"verbose\":false}}\r\nSUB made 1\r\n{create}").expect("the server reads");
    let mut lines = BufReader::new(connection).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.starts_with("MSG made ")), "the server answers");
}

#[test]
fn every_protocol_says_what_its_receiver_answered() {
    let receiver =
        Receiver::start(|received| Some(if received.path.ends_with("?refuse") { 503 } else { 200 }));
    let home = Home::new();
    std::fs::create_dir_all(home.path().join("files/folder")).expect("folders");
    let node = home.start_with(&["--allow-internal", "--file-root", "files"]);
    let url = format!("http://{}", node.address);
    for (number, (protocol, config, expected)) in trials(&receiver).into_iter().enumerate() {
        let name = format!("{protocol}-{number}");
        node.create_endpoint(json!({ "name": name, "protocol": protocol, "config": config }));
        let output = home.run(&["endpoint", "test", &name, "--url", &url]);
        let said = told(&output);
        let code = i32::from(expected.starts_with(REFUSES));
        assert_eq!(output.status.code(), Some(code), "{said}");
        let (before, _) = said.split_once(" ms)").expect("a duration");
        let before = before.trim_end_matches(|c: char| c.is_ascii_digit());
        assert!(before.ends_with(&format!("endpoint {name} {expected}")), "{said}");
    }
}
