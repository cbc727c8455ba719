//! Redis Streams, looked at by commands over a plain socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use futures_util::future::join_all;
use postrider::sink::SinkConnection;
use serde_json::json;
use test_servers::brokers::{DENIED_USER, PASSWORD, USER, redis};

use super::*;

struct RedisBroker;

#[async_trait]
impl BrokerUnderTest for RedisBroker {
    const PROTOCOL: &'static str = "redis";
    const KIND: BrokerKind = BrokerKind::Redis;

    fn config(port: u16, target: &str) -> Value {
        json!({"host": "127.0.0.1", "port": port, "stream_key": target})
    }

    fn login(user: &str, password: &str) -> Value {
        json!({"username": user, "password": password})
    }

    /// XADD makes the stream.
    async fn create(_: &BrokerListeners, _: &str) {}

    async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage> {
        entries(listeners.plain, target)
    }

    fn unroutable(port: u16) -> Option<(Value, Class)> {
        Some((with(Self::config(port, "missing"), json!({"nomkstream": true})), Class::Retryable))
    }
}

broker_conforms!(RedisBroker);

/// A value of Redis's protocol, version 2.
#[derive(Debug)]
enum Resp {
    Line,
    Bulk(Vec<u8>),
    List(Vec<Resp>),
    Nil,
}

fn ask(port: u16, words: &[&str]) -> Resp {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    connection.write_all(command.as_bytes()).unwrap();
    answer(&mut BufReader::new(connection))
}

fn answer(reader: &mut BufReader<TcpStream>) -> Resp {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let (kind, rest) = line.trim_end().split_at(1);
    let count = || rest.parse::<i64>().unwrap();
    match kind {
        "$" | "*" if count() < 0 => Resp::Nil,
        "$" => {
            let mut text = vec![0; count() as usize + 2];
            reader.read_exact(&mut text).unwrap();
            text.truncate(text.len() - 2);
            Resp::Bulk(text)
        }
        "*" => Resp::List((0..count()).map(|_| answer(reader)).collect()),
        _ => Resp::Line,
    }
}

fn entries(port: u16, stream: &str) -> Vec<BrokerMessage> {
    let Resp::List(entries) = ask(port, &["XRANGE", stream, "-", "+"]) else { panic!("no stream") };
    entries.into_iter().map(entry).collect()
}

fn entry(entry: Resp) -> BrokerMessage {
    let Resp::List(mut parts) = entry else { panic!("{entry:?}") };
    let Some(Resp::List(fields)) = parts.pop() else { panic!("{parts:?}") };
    let mut texts = fields.into_iter().map(|field| match field {
        Resp::Bulk(text) => text,
        other => panic!("{other:?}"),
    });
    let mut held = BrokerMessage::default();
    while let (Some(name), Some(value)) = (texts.next(), texts.next()) {
        let text = || String::from_utf8(value.clone()).unwrap();
        match &name[..] {
            b"id" => held.id = text(),
            b"content_type" => held.content_type = text(),
            b"payload" => held.payload = value.clone().into(),
            _ => drop(held.headers.insert(String::from_utf8(name).unwrap(), text())),
        }
    }
    held
}

fn sent(number: i64, options: Value) -> Delivery {
    delivery(postrider::message::Message { options: object(options), ..message(number, "{}") })
}

async fn failure(bench: &Bench<RedisBroker>, config: Value) -> postrider::verdict::Failure {
    bench.sink_of(config).deliver(&delivery(message(1, "{}"))).await.failed()
}

#[tokio::test]
async fn a_message_names_its_stream_and_adds_fields() {
    let Some(bench) = Bench::<RedisBroker>::shared().await else { return };
    let other = format!("{}-other", bench.target);
    let sink = bench.sink();
    sink.deliver(&sent(1, json!({"stream_key": other, "fields": {"colour": "red"}}))).await.unwrap();
    sink.deliver(&sent(2, json!({}))).await.unwrap();
    let held = entries(bench.listeners.plain, &other);
    assert_eq!((held.len(), held[0].headers["colour"].as_str()), (1, "red"));
    assert_eq!(bench.ids().await, [id(2)]);
}

#[tokio::test]
async fn a_field_of_a_message_replaces_its_header() {
    let Some(bench) = Bench::<RedisBroker>::shared().await else { return };
    let mut message = postrider::message::Message {
        options: object(json!({"fields": {"tenant": "red"}})),
        ..message(1, "{}")
    };
    message.headers.insert("tenant".to_owned(), "blue".to_owned());
    bench.sink().deliver(&delivery(message)).await.unwrap();
    assert_eq!(bench.held().await[0].headers["tenant"], "red");
}

#[tokio::test]
async fn a_stream_is_trimmed_as_the_endpoint_says() {
    let Some(bench) = Bench::<RedisBroker>::shared().await else { return };
    let sink = bench.sink_of(with(bench.config(), json!({"maxlen": 100})));
    let deliveries: Vec<_> = (0..1000).map(|number| delivery(message(number, "{}"))).collect();
    for result in join_all(deliveries.iter().map(|sent| sink.deliver(sent))).await {
        result.unwrap();
    }
    // Redis trims whole blocks of a hundred entries or fewer, and never below `maxlen`.
    let held = bench.held().await.len();
    assert!((100..=200).contains(&held), "{held}");
    let sink = bench.sink_of(with(bench.config(), json!({"minid": "9999999999999-0"})));
    sink.deliver(&delivery(message(1001, "{}"))).await.unwrap();
    let held = bench.held().await.len();
    assert!(held < 100, "{held}");
}

#[tokio::test]
async fn a_key_of_another_type_is_permanent() {
    let Some(bench) = Bench::<RedisBroker>::shared().await else { return };
    ask(bench.listeners.plain, &["SET", &bench.target, "a text"]);
    let failure = failure(&bench, bench.config()).await;
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_says(&failure, "WRONGTYPE");
}

#[tokio::test]
async fn a_database_is_chosen_by_number() {
    let Some(bench) = Bench::<RedisBroker>::shared().await else { return };
    bench.sink_of(with(bench.config(), json!({"db": 3}))).deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert_eq!(bench.ids().await, [""; 0]);
    let failure = failure(&bench, with(bench.config(), json!({"db": 5000}))).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
}

#[tokio::test]
async fn a_full_server_is_retryable_and_overloaded() {
    let started = tokio::task::spawn_blocking(|| BrokerKind::Redis.start_with(redis::FULL)).await.unwrap();
    let Some(broker) = started else { return };
    let bench = Bench::<RedisBroker>::on(broker.listeners()).await;
    let failure = failure(&bench, bench.config()).await;
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.is_overload(), "{}", failure.error);
    assert_says(&failure, "OOM");
}

#[tokio::test]
async fn a_read_only_replica_is_retryable_until_it_takes_writes() {
    let started = tokio::task::spawn_blocking(|| {
        let broker = BrokerKind::Redis.start()?;
        let replica = broker.read_only_replica().unwrap();
        Some((broker, replica))
    });
    let Some((_broker, replica)) = started.await.unwrap() else { return };
    let bench = Bench::<RedisBroker>::on(replica.listeners()).await;
    let sink = bench.sink();
    let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert_says(&failure, "READONLY");
    ask(replica.listeners().plain, &["REPLICAOF", "NO", "ONE"]);
    let promoted = std::time::Instant::now();
    while let Err(undelivered) = sink.deliver(&delivery(message(2, "{}"))).await {
        let failure = undelivered.failed();
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert!(promoted.elapsed() < Duration::from_secs(20), "{}", failure.error);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(bench.ids().await, [id(2)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    // So that it takes about three seconds, in which it answers connections now and then.
    const SLOWLY: &str = "key-load-delay 1000";
    let started = tokio::task::spawn_blocking(|| BrokerKind::Redis.start_with(SLOWLY)).await.unwrap();
    let Some(mut broker) = started else { return };
    let bench = Bench::<RedisBroker>::on(broker.listeners()).await;
    let sink = bench.sink();
    let deliveries: Vec<_> = (0..3000).map(|number| delivery(message(number, "{}"))).collect();
    for result in join_all(deliveries.iter().map(|sent| sink.deliver(sent))).await {
        result.unwrap();
    }
    let restarted = tokio::task::spawn_blocking(move || {
        broker.stop();
        broker.start_again().map(|()| broker)
    });
    let mut failures = Vec::new();
    loop {
        let is_loaded = restarted.is_finished();
        match deliver(&*sink, &delivery(message(3000, "{}")), Duration::from_secs(5)).await {
            Ok(_) if is_loaded => break,
            Ok(_) => {}
            Err(undelivered) => failures.push(undelivered.failed()),
        }
        assert!(failures.len() < 1000, "{:?}", failures.last());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let _broker = restarted.await.unwrap().unwrap();
    assert!(failures.iter().all(|failure| failure.class == Class::Retryable), "{failures:?}");
    let loading: Vec<_> = failures.iter().filter(|failure| failure.error.contains("LOADING")).collect();
    assert!(
        !loading.is_empty() && loading.iter().all(|failure| !failure.counts_for_breaker()),
        "{failures:?}"
    );
}

/// A server that gives these answers, one for each command, on every connection.
fn answering(answers: &'static [&'static str]) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let mut reader = BufReader::new(connection);
            for said in answers {
                if reader.fill_buf().map_or(true, <[u8]>::is_empty) {
                    break;
                }
                answer(&mut reader);
                reader.get_mut().write_all(format!("{said}\r\n").as_bytes()).unwrap();
            }
        }
    });
    port
}

#[tokio::test]
async fn what_the_server_says_to_the_sign_in_is_shown_and_judged() {
    let user = json!({"username": "shop", "password": "hunter2"});
    let password = json!({"password": "hunter2"});
    let cases: [(Value, &'static [&str], &str, bool); 6] = [
        (
            user,
            &["-ERR wrong number of arguments for 'auth' command", "+OK", "+PONG"],
            "refused the sign-in: ERR wrong number of arguments for 'auth' command",
            false,
        ),
        (
            password.clone(),
            &["-ERR max number of clients reached"],
            "refused the sign-in: ERR max number of clients reached",
            true,
        ),
        (password, &["-WRONGPASS invalid"], "refused the sign-in: WRONGPASS invalid", false),
        (json!({}), &["-NOAUTH Authentication required."], "NOAUTH Authentication required.", false),
        (json!({"db": 5}), &["-ERR DB index is out of range"], "ERR DB index is out of range", false),
        (json!({}), &["HTTP/1.1 400 Bad Request"], "does not answer as Redis does", false),
    ];
    for (config, answers, says, is_overload) in cases {
        let port = answering(answers);
        let config = with(RedisBroker::config(port, "orders"), config);
        let sink = connect(&Bench::<RedisBroker>::endpoint(config), &open_environment()).unwrap();
        let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
        assert_eq!((failure.class, failure.is_overload()), (Class::Retryable, is_overload), "{says}");
        assert!(failure.counts_for_breaker(), "{says}");
        assert_says(&failure, says);
        let connection = sink.connection();
        assert!(matches!(connection, SinkConnection::Down { .. }), "{says}: {connection:?}");
    }
}

#[tokio::test]
async fn a_user_needs_no_right_to_ping() {
    let port =
        answering(&["+OK", "-NOPERM this user has no permissions to run the 'ping' command", "$3\r\n1-1"]);
    let config =
        with(RedisBroker::config(port, "orders"), json!({"username": "shop", "password": "hunter2"}));
    let sink = connect(&Bench::<RedisBroker>::endpoint(config), &open_environment()).unwrap();
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
}

/// Waits until the server has seen that those before it are gone.
fn the_only_client(port: u16) -> TcpStream {
    let asked = std::time::Instant::now();
    loop {
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let mut said = [0; 7];
        let answered = client.write_all(b"PING\r\n").and_then(|()| client.read_exact(&mut said));
        if answered.is_ok() && said == *b"+PONG\r\n" {
            return client;
        }
        assert!(asked.elapsed() < Duration::from_secs(20), "no room for a client");
    }
}

#[tokio::test]
async fn a_server_without_room_for_clients_is_overloaded() {
    let started = tokio::task::spawn_blocking(|| BrokerKind::Redis.start()).await.unwrap();
    let Some(broker) = started else { return };
    let bench = Bench::<RedisBroker>::on(broker.listeners()).await;
    ask(broker.listeners().plain, &["CONFIG", "SET", "maxclients", "1"]);
    let _only = the_only_client(broker.listeners().plain);
    for login in [json!({}), RedisBroker::login(USER, PASSWORD)] {
        let failure = failure(&bench, with(bench.config(), login)).await;
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert!(failure.is_overload(), "{}", failure.error);
        assert_says(&failure, "max number of clients");
    }
}

#[tokio::test]
async fn a_server_that_closes_idle_connections_costs_no_attempt() {
    let started = tokio::task::spawn_blocking(|| BrokerKind::Redis.start_with("timeout 1")).await.unwrap();
    let Some(broker) = started else { return };
    let bench = Bench::<RedisBroker>::on(broker.listeners()).await;
    let sink = bench.sink();
    for number in 0..3 {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
        let before = bench.proxy.accepted();
        let asked = std::time::Instant::now();
        while bench.proxy.accepted() == before {
            assert!(asked.elapsed() < Duration::from_secs(20), "the server closes nothing");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    sink.deliver(&delivery(message(3, "{}"))).await.unwrap();
    assert_eq!(bench.ids().await, (0..4).map(id).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_password_may_be_a_reference() {
    let Some(bench) = Bench::<RedisBroker>::shared().await else { return };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("redis"), format!("{PASSWORD}\n")).unwrap();
    let environment =
        Environment { secrets_dir: Some(directory.path().to_owned()), ..bench.environment.clone() };
    for (user, refused) in [(USER, false), (DENIED_USER, true)] {
        let config = with(bench.config(), json!({"username": user, "password": "file:redis"}));
        let sink = connect(&Bench::<RedisBroker>::endpoint(config), &environment).unwrap();
        assert_eq!(sink.deliver(&delivery(message(1, "{}"))).await.is_err(), refused);
    }
}

#[test]
fn bad_configs_name_the_field_and_the_rule() {
    let good = json!({"host": "redis", "stream_key": "orders"});
    let cases = [
        (json!({"host": ""}), "config.host"),
        (json!({"host": "redis:6379/0"}), "config.host"),
        (json!({"port": 0}), "config.port"),
        (json!({"stream_key": ""}), "config.stream_key"),
        (json!({"minid": "yesterday"}), "config.minid"),
        (json!({"minid": "1-1", "maxlen": 5}), "config.minid"),
        (json!({"username": "shop"}), "config.username"),
        (json!({"exchange": "orders"}), "config.exchange"),
    ];
    let protocol = postrider::protocol::Protocol::from_name("redis").unwrap();
    protocol.check_config(&object(good.clone())).unwrap();
    for (wrong, field) in cases {
        let error = protocol.check_config(&object(with(good.clone(), wrong))).unwrap_err();
        assert_eq!(error.field, field, "{error}");
    }
}
