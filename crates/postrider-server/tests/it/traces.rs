//! Traces, as a collector gets them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;

use crate::eventually;
use crate::node::{Home, Node};
use crate::receiver::{Received, Receiver};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// `traceparent` and `tracestate` of each request.
type Told = Arc<Mutex<Vec<(String, String)>>>;

/// Takes what is exported to it over OTLP, or refuses it.
struct Collector {
    receiver: Receiver,
    requests: Arc<Mutex<Vec<(Received, ExportTraceServiceRequest)>>>,
    status: Arc<AtomicU16>,
    asked: Arc<AtomicUsize>,
}

impl Collector {
    fn start() -> Self {
        let requests: Arc<Mutex<Vec<_>>> = Arc::default();
        let (status, asked) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicUsize::new(0)));
        let (kept, says, counted) = (requests.clone(), status.clone(), asked.clone());
        let receiver = Receiver::start(move |received| {
            counted.fetch_add(1, SeqCst);
            let status = says.load(SeqCst);
            if status == 200 {
                let decoded = ExportTraceServiceRequest::decode(&received.body[..]).expect("protobuf");
                kept.lock().expect("nobody panics here").push((received, decoded));
            }
            Some(status)
        });
        Self { receiver, requests, status, asked }
    }

    fn url(&self) -> String {
        format!("http://{}", self.receiver.address())
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.requests.lock().expect("nobody panics here");
        let of = |(_, request): &(Received, ExportTraceServiceRequest)| request.resource_spans.clone();
        requests
            .iter()
            .flat_map(of)
            .flat_map(|resource| resource.scope_spans)
            .flat_map(|scope| scope.spans)
            .collect()
    }

    fn until_spans(&self, count: usize) -> Vec<Span> {
        let enough = || Some(self.spans()).filter(|spans| spans.len() >= count);
        eventually(Duration::from_secs(30), &format!("{count} spans"), enough)
    }
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Any::StringValue(text)) => text.clone(),
        Some(Any::IntValue(number)) => number.to_string(),
        Some(Any::BoolValue(flag)) => flag.to_string(),
        other => format!("{other:?}"),
    };
    pairs.iter().map(|pair| (pair.key.clone(), text(pair))).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A node that exports soon, with an endpoint `shop`, and what its receiver was told of the trace.
fn node(environment: &[(&str, &str)], answers: &'static [u16]) -> (Home, Node, Told) {
    let (told, count) = (Arc::new(Mutex::new(Vec::new())), AtomicUsize::new(0));
    let kept = told.clone();
    let receiver = Receiver::start(move |received| {
        let carried = (received.header("traceparent").to_owned(), received.header("tracestate").to_owned());
        kept.lock().expect("nobody panics here").push(carried);
        Some(answers[count.fetch_add(1, SeqCst).min(answers.len() - 1)])
    });
    let home = Home::new();
    let soon = [("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let node = home.start_in(&[&soon, environment].concat(), &["--allow-internal"]);
    node.create_endpoint(json!({
        "name": "shop", "protocol": "http", "config": { "url": receiver.url() },
        "retry_policy": { "schedule_seconds": [1] },
    }));
    (home, node, told)
}

#[test]
fn a_message_is_part_of_its_senders_trace_up_to_the_receiver() {
    let collector = Collector::start();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=k1"),
        ("OTEL_SERVICE_NAME", "shop-post"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
    ];
    let (_home, node, told) = node(&environment, &[503, 200]);
    let id = node.send("shop", &[("traceparent", PARENT), ("tracestate", "vendor=x")], "{}");
    node.until(id, "completed");
    let spans = collector.until_spans(5);
    assert!(
        spans.iter().all(|span| hex(&span.trace_id) == TRACE && span.trace_state == "vendor=x"),
        "{spans:#?}"
    );
    let named = |name: &str| spans.iter().filter(|span| span.name == name).cloned().collect::<Vec<_>>();
    let (sends, mut attempts, settles) =
        (named("postrider.send"), named("postrider.attempt"), named("postrider.settle"));
    assert_eq!((sends.len(), attempts.len(), settles.len()), (1, 2, 2));

    assert_eq!(hex(&sends[0].parent_span_id), "b7ad6b7169203331");
    let sent = attributes(&sends[0].attributes);
    assert_eq!((&*sent["postrider.endpoint"], &*sent["postrider.message"]), ("shop", &*id.to_string()));
    attempts.sort_by_key(|span| span.start_time_unix_nano);
    let expected = [
        [("outcome", "failed"), ("class", "retryable"), ("response_status", "503"), ("attempt", "1")],
        [("outcome", "delivered"), ("class", ""), ("response_status", "200"), ("attempt", "2")],
    ];
    for (span, expected) in attempts.iter().zip(expected) {
        assert_eq!(span.parent_span_id, sends[0].span_id);
        let has = attributes(&span.attributes);
        let value = |name: &str| has.get(&format!("postrider.{name}")).map_or("", String::as_str);
        expected.iter().for_each(|(name, wanted)| assert_eq!(value(name), *wanted, "{name} of {has:?}"));
        assert_eq!((value("endpoint"), value("message")), ("shop", &*id.to_string()));
        let settle = settles.iter().find(|settle| settle.parent_span_id == span.span_id).expect("its settle");
        assert!(settle.start_time_unix_nano >= span.end_time_unix_nano);
    }
    let mut effects: Vec<String> =
        settles.iter().map(|span| attributes(&span.attributes)["postrider.effect"].clone()).collect();
    effects.sort();
    assert_eq!(effects, ["completed", "pending"]);

    let carried: Vec<(String, String)> = attempts
        .iter()
        .map(|span| (format!("00-{TRACE}-{}-01", hex(&span.span_id)), "vendor=x".to_owned()))
        .collect();
    assert_eq!(*told.lock().expect("nobody panics here"), carried, "each attempt is its receiver's parent");
    let requests = collector.requests.lock().expect("nobody panics here");
    let (received, request) = &requests[0];
    assert_eq!((received.path.as_str(), received.header("x-collector-key")), ("/v1/traces", "k1"));
    let resource = request.resource_spans[0].resource.as_ref().expect("a resource");
    let resource = attributes(&resource.attributes);
    assert_eq!((&*resource["service.name"], &*resource["deployment.environment"]), ("shop-post", "test"));
}

#[test]
fn a_message_that_names_no_trace_begins_one() {
    let collector = Collector::start();
    let (home, node, told) = node(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url())], &[200]);
    let id = home.json(&["send", "shop", "{}"])["id"].as_i64().expect("an id");
    node.until(id, "completed");
    let spans = collector.until_spans(2);
    let attempt = spans.iter().find(|span| span.name == "postrider.attempt").expect("an attempt");
    assert!(attempt.parent_span_id.is_empty(), "sent by another process, which told nothing of a trace");
    let told = told.lock().expect("nobody panics here");
    assert_eq!(told[0].0, format!("00-{}-{}-01", hex(&attempt.trace_id), hex(&attempt.span_id)));
}

#[test]
fn without_traces_the_senders_own_is_passed_on() {
    let collector = Collector::start();
    let disabled = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url()), ("OTEL_SDK_DISABLED", "true")];
    for environment in [&disabled[..], &[]] {
        let (_home, node, told) = node(environment, &[200]);
        let own = node.send("shop", &[("traceparent", PARENT), ("tracestate", "vendor=x")], "{}");
        node.until(own, "completed");
        let bad = node.send("shop", &[("traceparent", "not a trace"), ("tracestate", "vendor=x")], "{}");
        node.until(bad, "completed");
        let said =
            node.send("shop", &[("traceparent", "00-bad"), ("postrider-header-traceparent", PARENT)], "{}");
        node.until(said, "completed");
        let passed_on = [(PARENT, "vendor=x"), ("", ""), (PARENT, "")]
            .map(|(parent, state)| (parent.to_owned(), state.to_owned()));
        assert_eq!(*told.lock().expect("nobody panics here"), passed_on);
    }
    assert_eq!(collector.asked.load(SeqCst), 0);
}

#[test]
fn batches_and_events_are_part_of_their_senders_trace() {
    let collector = Collector::start();
    let (_home, node, told) = node(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url())], &[200]);
    let traced = [("traceparent", PARENT), ("tracestate", "vendor=x")];
    let json = [("content-type", "application/json")];
    node.post("/v1/event-types", &json, br#"{"name":"paid"}"#).expect(201);
    node.post("/v1/subscriptions", &json, br#"{"pattern":"paid","endpoint":"shop"}"#).expect(201);
    node.post("/v1/messages:batch", &traced, br#"{"endpoint":"shop","payload":1}"#).expect(202);
    node.post("/v1/events/paid", &[&traced[..], &json].concat(), b"{}").expect(202);
    let spans = collector.until_spans(5);
    let mut names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    names.sort_unstable();
    let attempts = ["postrider.attempt", "postrider.attempt"];
    assert_eq!(
        names,
        [&attempts[..], &["postrider.publish", "postrider.settle", "postrider.settle"]].concat()
    );
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "{spans:#?}");
    let published = spans.iter().find(|span| span.name == "postrider.publish").expect("a publish");
    let attributes = attributes(&published.attributes);
    assert_eq!((&*attributes["postrider.event_type"], &*attributes["postrider.messages"]), ("paid", "1"));
    assert!(told.lock().expect("nobody panics here").iter().all(|(parent, _)| parent.contains(TRACE)));
}

#[test]
fn the_sampler_decides_and_the_receiver_is_told() {
    let collector = Collector::start();
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url()),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
    ];
    let (_home, node, told) = node(&environment, &[200]);
    let dropped = node.send("shop", &[], "{}");
    node.until(dropped, "completed");
    let kept = node.send("shop", &[("traceparent", PARENT)], "{}");
    node.until(kept, "completed");
    let spans = collector.until_spans(3);
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE), "only what its sender samples");
    let told = told.lock().expect("nobody panics here");
    assert!(told[0].0.ends_with("-00") && told[1].0.ends_with("-01"), "{told:?}");
}

#[test]
fn a_collector_that_fails_holds_up_nothing_and_is_said_once() {
    let collector = Collector::start();
    collector.status.store(503, SeqCst);
    let environment = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url()),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
    ];
    let (_home, node, _told) = node(&environment, &[200]);
    let deliver = |count: usize| {
        let ids: Vec<i64> = (0..count).map(|_| node.send("shop", &[], "{}")).collect();
        ids.iter().for_each(|id| drop(node.until(*id, "completed")));
    };
    deliver(100);
    eventually(Duration::from_secs(30), "three exports that fail", || {
        deliver(1);
        (collector.asked.load(SeqCst) >= 3).then_some(())
    });
    let warnings = || node.written().matches("Traces are not exported").count();
    assert_eq!(warnings(), 1, "{}", node.written());
    collector.status.store(200, SeqCst);
    eventually(Duration::from_secs(30), "an export that works", || {
        deliver(1);
        node.written().contains("Traces are exported again").then_some(())
    });
    assert!(!collector.spans().is_empty());
    assert_eq!(warnings(), 1);
}

#[test]
fn a_collector_that_is_not_there_holds_up_nothing() {
    // Nothing listens on the port of a listener that is gone.
    let gone =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("an address");
    let (_home, mut node, _told) =
        node(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &*format!("http://{gone}"))], &[200]);
    let id = node.send("shop", &[], "{}");
    node.until(id, "completed");
    eventually(Duration::from_secs(30), "a warning", || {
        node.written().contains("Traces are not exported").then_some(())
    });
    node.signal("TERM");
    assert!(node.until_exit(Duration::from_secs(20)).success());
}

#[test]
fn what_traces_cannot_be_exported_with_is_refused_at_the_start() {
    let home = Home::new();
    let output = home
        .command(&["serve", "--listen", "127.0.0.1:0"])
        .envs([
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4317"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ])
        .output()
        .expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"), "{said}");
}
