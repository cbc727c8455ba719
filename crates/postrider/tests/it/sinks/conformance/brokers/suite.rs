//! The promises.

use std::collections::BTreeSet;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use postrider::message::Message;
use postrider::sink::SinkConnection;
use test_servers::brokers::{DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, USER};
use test_servers::proxy::Fault;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a delivery waits where no answer will come.
const SHORT: Duration = Duration::from_millis(1500);
/// Tries again until it is delivered; the number of failures, all of which must be retryable.
async fn insist(sink: &dyn Sink, message: &Message) -> u32 {
    let begun = std::time::Instant::now();
    for attempt in 1.. {
        let sent = Delivery { attempt, ..delivery(message.clone()) };
        match deliver(sink, &sent, SHORT).await {
            Ok(_) => return attempt - 1,
            Err(undelivered) => {
                let failure = undelivered.failed();
                assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
                assert!(begun.elapsed() < PATIENCE, "{}", failure.error);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
    unreachable!("attempts are not bounded here");
}

pub(super) async fn payload_headers_and_id_arrive_byte_for_byte<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    let payloads: [(&str, &[u8]); 4] = [
        ("application/json", br#"{"b":1.0,  "a":"\u00e9 \/", "b":1e3}"#),
        ("application/octet-stream", &[0, 255, 10, 13, 254, 0, 34]),
        ("text/plain; charset=latin1", &[0xe9, 0x0a]),
        ("text/csv", b"a,b"),
    ];
    for (number, (content_type, payload)) in (1..).zip(payloads) {
        let mut message = Message {
            content_type: content_type.to_owned(),
            correlation_id: Some("6f1c9a52-8a2e-4a52-9d7a-0c4d54f3a1b0".parse().unwrap()),
            ordering_key: Some("customer 7 é".to_owned()),
            event_type: Some("order.created".to_owned()),
            ..message(number, Bytes::copy_from_slice(payload))
        };
        message.headers.insert("tenant".to_owned(), "blue".to_owned());
        let sent = Delivery { attempt: 3, ..delivery(message) };
        deliver(&*sink, &sent, TIMEOUT).await.unwrap();
    }
    let held = bench.held().await;
    assert_eq!(held.len(), payloads.len(), "{held:?}");
    for (number, (held, (content_type, payload))) in (1..).zip(held.iter().zip(payloads)) {
        assert_eq!(held.id, id(number));
        assert_eq!((held.content_type.as_str(), &held.payload[..]), (content_type, payload));
        let header = |name: &str| held.headers.get(name).map(String::as_str);
        assert_eq!(header("tenant"), Some("blue"), "{held:?}");
        assert_eq!(header("postrider-attempt"), Some("3"));
        assert_eq!(header("postrider-created-at"), Some(NOW));
        assert_eq!(header("postrider-correlation-id"), Some("6f1c9a52-8a2e-4a52-9d7a-0c4d54f3a1b0"));
        assert_eq!(header("postrider-event-type"), Some("order.created"));
        // Where a protocol cannot carry every character, others are percent-encoded.
        let key = header("postrider-ordering-key").unwrap_or_default();
        assert!(["customer 7 é", "customer%207%20%C3%A9"].contains(&key), "{key}");
    }
}

pub(super) async fn small_and_large_payloads_arrive<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    // The largest leaves room for headers below the broker's limit.
    let sizes = [1, 64 << 10, MESSAGE_BYTES_MAX - (16 << 10)];
    let payload = |size: usize| Bytes::from((0..size).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    for (number, size) in (1..).zip(sizes) {
        let message =
            Message { content_type: "application/octet-stream".to_owned(), ..message(number, payload(size)) };
        deliver(&*sink, &delivery(message), TIMEOUT).await.unwrap();
    }
    let held = bench.held().await;
    assert_eq!(held.iter().map(|held| held.payload.len()).collect::<Vec<_>>(), sizes);
    assert!(held.iter().all(|held| held.payload == payload(held.payload.len())));
}

pub(super) async fn nothing_is_delivered_while_acknowledgements_are_lost<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    bench.proxy.set(Fault::SwallowAnswers);
    let lost: Vec<_> = (2..10).map(|number| delivery(message(number, "{}"))).collect();
    for result in join_all(lost.iter().map(|sent| deliver(&*sink, sent, SHORT))).await {
        let failure = result.failed();
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    }
    bench.proxy.set(Fault::None);
    bench.proxy.cut();
    for number in 2..10 {
        insist(&*sink, &message(number, "{}")).await;
    }
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert_eq!(held, (1..10).map(id).collect());
}

pub(super) async fn a_cut_connection_loses_nothing_and_comes_back<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    let (mut acknowledged, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for round in 0..10 {
        let sent: Vec<_> =
            (0..32).map(|number| delivery(message(round * 32 + number, vec![b'1'; 1000]))).collect();
        let deliveries = join_all(sent.iter().map(|sent| deliver(&*sink, sent, TIMEOUT)));
        let cut = async {
            tokio::time::sleep(Duration::from_millis(round as u64)).await;
            bench.proxy.cut();
        };
        let (results, ()) = tokio::join!(deliveries, cut);
        for (sent, result) in sent.iter().zip(results) {
            match result {
                Ok(_) => drop(acknowledged.insert(sent.public_id())),
                Err(undelivered) => {
                    let failure = undelivered.failed();
                    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
                    if !failure.ambiguous {
                        refused.insert(sent.public_id());
                    }
                }
            }
        }
    }
    insist(&*sink, &message(1000, "{}")).await;
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert!(held.contains(&id(1000)));
    assert!(acknowledged.is_subset(&held), "{:?}", acknowledged.difference(&held).collect::<Vec<_>>());
    assert!(refused.is_disjoint(&held), "{:?}", refused.intersection(&held).collect::<Vec<_>>());
}

pub(super) async fn while_the_broker_is_away_deliveries_are_refused_and_the_sink_reconnects_by_itself<
    B: BrokerUnderTest,
>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    assert_eq!(sink.connection(), SinkConnection::Idle);
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    assert_eq!(sink.connection(), SinkConnection::Up);
    bench.proxy.set(Fault::Refuse);
    bench.proxy.cut();
    until("the sink notices", || matches!(sink.connection(), SinkConnection::Down { .. })).await;
    let failure = deliver(&*sink, &delivery(message(2, "{}")), TIMEOUT).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.counts_for_breaker() && !failure.error.starts_with('['), "{}", failure.error);
    bench.proxy.set(Fault::None);
    until("the sink is connected again", || sink.connection() == SinkConnection::Up).await;
    deliver(&*sink, &delivery(message(3, "{}")), TIMEOUT).await.unwrap();
    // What was refused is not sent later.
    assert_eq!(bench.ids().await, [id(1), id(3)]);
}

pub(super) async fn a_connection_closed_while_idle_costs_no_attempt<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    // A connection that was up for a moment only would be taken for one that the broker does not want.
    tokio::time::sleep(SHORT).await;
    let before = bench.proxy.accepted();
    bench.proxy.cut();
    until("a new connection", || bench.proxy.accepted() > before && sink.connection() == SinkConnection::Up)
        .await;
    deliver(&*sink, &delivery(message(2, "{}")), TIMEOUT).await.unwrap();
    assert_eq!(bench.ids().await, [id(1), id(2)]);
}

pub(super) async fn a_frozen_connection_is_replaced<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    let before = bench.proxy.accepted();
    bench.proxy.set(Fault::Freeze);
    let frozen = std::time::Instant::now();
    while bench.proxy.accepted() == before {
        let failure = deliver(&*sink, &delivery(message(2, "{}")), SHORT).await.failed();
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert!(frozen.elapsed() < PATIENCE, "the connection is not replaced");
    }
    bench.proxy.set(Fault::None);
    insist(&*sink, &message(2, "{}")).await;
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert_eq!(held, [id(1), id(2)].into());
}

pub(super) async fn a_slow_broker_is_no_failure<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    bench.proxy.set(Fault::Delay(Duration::from_millis(50)));
    let sink = bench.sink();
    for number in 1..4 {
        deliver(&*sink, &delivery(message(number, "{}")), TIMEOUT).await.unwrap();
    }
    assert_eq!(bench.ids().await, [id(1), id(2), id(3)]);
}

pub(super) async fn a_wrong_password_is_retryable_and_not_shown<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let config = B::config(bench.listeners.password, &bench.target);
    let sink = bench.sink_of(with(config.clone(), B::login(USER, "wr0ng-passw0rd")));
    let failure = deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(failure.counts_for_breaker());
    assert!(!failure.error.contains("wr0ng-passw0rd") && !failure.error.is_empty(), "{}", failure.error);
    let sink = bench.sink_of(with(config, B::login(USER, PASSWORD)));
    deliver(&*sink, &delivery(message(2, "{}")), TIMEOUT).await.unwrap();
    assert_eq!(bench.ids().await, [id(2)]);
}

pub(super) async fn what_the_broker_denies_is_classed<B: BrokerUnderTest>() {
    let Some(class) = B::denied() else { return };
    let Some(bench) = Bench::<B>::shared().await else { return };
    let config = B::config(bench.listeners.password, &bench.target);
    let sink = bench.sink_of(with(config, B::login(DENIED_USER, PASSWORD)));
    let failure = deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.failed();
    assert_eq!(failure.class, class, "{}", failure.error);
    assert_eq!(bench.ids().await, [""; 0]);
}

pub(super) async fn an_oversized_message_is_permanent_and_hurts_no_other<B: BrokerUnderTest>() {
    let Some(class) = B::oversized() else { return };
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    let large = delivery(message(2, vec![b'1'; 3 * MESSAGE_BYTES_MAX]));
    let failure = deliver(&*sink, &large, TIMEOUT).await.failed();
    assert_eq!(failure.class, class, "{}", failure.error);
    assert!(!failure.counts_for_breaker(), "{}", failure.error);
    insist(&*sink, &message(3, "{}")).await;
    assert_eq!(bench.ids().await, [id(1), id(3)]);
}

pub(super) async fn an_unroutable_message_is_never_delivered<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let Some((config, class)) = B::unroutable(bench.proxy.port()) else { return };
    let (lost, found) = (bench.sink_of(config), bench.sink());
    let failure = deliver(&*lost, &delivery(message(1, "{}")), TIMEOUT).await.failed();
    assert_eq!(failure.class, class, "{}", failure.error);
    deliver(&*found, &delivery(message(2, "{}")), TIMEOUT).await.unwrap();
    assert_eq!(bench.ids().await, [id(2)]);
}

pub(super) async fn tls_trusts_a_private_authority_only_when_told<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let config = B::config(bench.listeners.tls, &bench.target);
    let authority = std::fs::read_to_string(bench.listeners.authority()).unwrap();
    let sink = bench.sink_of(with(config.clone(), json!({"tls": {"ca": authority}})));
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert.pem();
    for tls in [json!({}), json!({"ca": other})] {
        let sink = bench.sink_of(with(config.clone(), json!({"tls": tls})));
        let failure = deliver(&*sink, &delivery(message(2, "{}")), TIMEOUT).await.failed();
        assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
        assert_says(&failure, "certificate");
    }
    assert_eq!(bench.ids().await, [id(1)]);
}

/// The listener may belong to another server with other data, so what arrives is not looked at.
pub(super) async fn a_client_certificate_is_shown<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap();
    let listeners = &bench.listeners;
    let config = B::config_elsewhere(listeners.mutual_tls, &bench.target);
    let tls = json!({
        "ca": read(listeners.authority()),
        "client_cert": read(listeners.client_certificate()),
        "client_key": read(listeners.client_key()),
    });
    let sink = bench.sink_of(with(config.clone(), json!({"tls": tls})));
    deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    let sink = bench.sink_of(with(config, json!({"tls": {"ca": read(listeners.authority())}})));
    let failure = deliver(&*sink, &delivery(message(2, "{}")), TIMEOUT).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
}

pub(super) async fn the_gate_refuses_internal_addresses<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = connect(&Bench::<B>::endpoint(bench.config()), &Environment::default()).unwrap();
    let failure = deliver(&*sink, &delivery(message(1, "{}")), TIMEOUT).await.failed();
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_says(&failure, "--allow-internal");
    assert_eq!(bench.proxy.accepted(), 0);
}

pub(super) async fn many_deliveries_share_one_connection<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    deliver(&*sink, &delivery(message(0, "{}")), TIMEOUT).await.unwrap();
    let connections = bench.proxy.accepted();
    let sent: Vec<_> = (1..512).map(|number| delivery(message(number, "{}"))).collect();
    for result in join_all(sent.iter().map(|sent| deliver(&*sink, sent, TIMEOUT))).await {
        result.unwrap();
    }
    assert_eq!(bench.proxy.accepted(), connections);
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert_eq!(held.len(), 512);
}

pub(super) async fn endpoints_of_one_broker_share_a_connection_and_the_last_closes_it<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let first = bench.sink();
    deliver(&*first, &delivery(message(1, "{}")), TIMEOUT).await.unwrap();
    let connections = bench.proxy.accepted();
    // Another endpoint of the same broker, with another policy.
    let second = bench.sink_of(with(bench.config(), B::another_policy()));
    deliver(&*second, &delivery(message(2, "{}")), TIMEOUT).await.unwrap();
    assert_eq!(bench.proxy.accepted(), connections);
    drop(first);
    deliver(&*second, &delivery(message(3, "{}")), TIMEOUT).await.unwrap();
    assert_eq!(bench.proxy.accepted(), connections);
    assert!(bench.proxy.open() > 0);
    drop(second);
    until("the connection is closed", || bench.proxy.open() == 0).await;
    assert_eq!(bench.ids().await, [id(1), id(2), id(3)]);
}

pub(super) async fn a_cancelled_delivery_does_not_break_the_next<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    for round in 0..20 {
        // Polled once and dropped: it may have been sent or not.
        let sent: Vec<_> = (0..8).map(|number| delivery(message(1000 + number, "{}"))).collect();
        drop(sent.iter().map(|sent| sink.deliver(sent).now_or_never()).collect::<Vec<_>>());
        deliver(&*sink, &delivery(message(round, "{}")), TIMEOUT).await.unwrap();
    }
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert!((0..20).all(|round| held.contains(&id(round))));
}

/// As the engine delivers an ordering key: the next one starts when the one before is delivered.
pub(super) async fn one_after_the_other_stays_in_order_through_reconnects<B: BrokerUnderTest>() {
    let Some(bench) = Bench::<B>::shared().await else { return };
    let sink = bench.sink();
    let sending = async {
        for number in 0..60 {
            insist(&*sink, &message(number, "{}")).await;
        }
    };
    let cutting = async {
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            bench.proxy.cut();
        }
    };
    tokio::join!(sending, cutting);
    let held = bench.ids().await;
    let mut first = Vec::new();
    for id in held {
        if !first.contains(&id) {
            first.push(id);
        }
    }
    assert_eq!(first, (0..60).map(id).collect::<Vec<_>>());
}

/// One test, because some brokers take seconds to start.
pub(super) async fn a_broker_that_is_killed_stopped_and_frozen_loses_nothing_acknowledged<
    B: BrokerUnderTest,
>() {
    let Some(mut broker) = tokio::task::spawn_blocking(|| B::KIND.start()).await.unwrap() else { return };
    let bench = Bench::<B>::on(&broker.listeners().clone()).await;
    let sink = bench.sink();
    let mut acknowledged = BTreeSet::new();
    for (round, fault) in ["kill", "stop", "freeze"].into_iter().enumerate() {
        let begin = round as i64 * 1000;
        for number in begin..begin + 20 {
            insist(&*sink, &message(number, "{}")).await;
            acknowledged.insert(id(number));
        }
        let sent: Vec<_> = (begin + 100..begin + 400).map(|number| delivery(message(number, "{}"))).collect();
        let deliveries = join_all(sent.iter().map(|sent| deliver(&*sink, sent, SHORT)));
        let disturbed = tokio::task::spawn_blocking(move || {
            std::thread::sleep(Duration::from_millis(2));
            match fault {
                "kill" => broker.kill(),
                "stop" => broker.stop(),
                _ => broker.freeze(),
            }
            broker
        });
        let (results, disturbed) = tokio::join!(deliveries, disturbed);
        broker = disturbed.unwrap();
        for (sent, result) in sent.iter().zip(results) {
            match result {
                Ok(_) => drop(acknowledged.insert(sent.public_id())),
                Err(undelivered) => {
                    let failure = undelivered.failed();
                    assert_eq!(failure.class, Class::Retryable, "{fault}: {}", failure.error);
                }
            }
        }
        let failure = deliver(&*sink, &delivery(message(begin + 500, "{}")), SHORT).await.failed();
        assert_eq!(failure.class, Class::Retryable, "{fault}: {}", failure.error);
        broker = tokio::task::spawn_blocking(move || {
            match fault {
                "freeze" => broker.thaw(),
                _ => broker.start_again().unwrap(),
            }
            broker
        })
        .await
        .unwrap();
        if fault == "kill" && !B::survives_a_kill() {
            acknowledged.clear();
        }
        insist(&*sink, &message(begin + 600, "{}")).await;
        acknowledged.insert(id(begin + 600));
    }
    let held: BTreeSet<String> = bench.ids().await.into_iter().collect();
    assert!(acknowledged.is_subset(&held), "{:?}", acknowledged.difference(&held).collect::<Vec<_>>());
}
