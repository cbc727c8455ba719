//! Endpoints, deliveries and environments for tests.

use std::sync::Arc;

use bytes::Bytes;
use postrider::breaker::Circuit;
use postrider::endpoint::{Endpoint, EndpointId, EndpointOptions};
use postrider::message::{JSON, Message, MessageId};
use postrider::protocol::{EndpointConfig, Protocol};
use postrider::sink::{Capture, Delivery, Environment, Sink, Undelivered, connect};
use postrider::verdict::Failure;
use serde_json::{Map, Value, json};

pub(super) const NOW: &str = "2026-03-04T05:06:07.123456Z";
pub(super) const STORE: &str = "k3x9";

pub(super) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other} is not an object"),
    }
}

pub(super) fn endpoint(protocol: &str, config: Value) -> Endpoint {
    let protocol = Protocol::from_name(protocol).unwrap();
    Endpoint {
        id: EndpointId(1),
        name: "orders".into(),
        protocol,
        config: EndpointConfig::new(protocol, object(config)),
        retry: Default::default(),
        options: EndpointOptions::default(),
        disabled: None,
        paused: false,
        circuit: Circuit::default(),
        held_until: None,
        revision: 1,
        created_at: NOW.parse().unwrap(),
    }
}

pub(super) fn message(id: i64, payload: impl Into<Bytes>) -> Message {
    Message {
        id: MessageId(id),
        endpoint: EndpointId(1),
        payload: payload.into(),
        content_type: JSON.to_owned(),
        headers: Default::default(),
        options: Map::new(),
        priority: 0,
        expires_at: None,
        correlation_id: None,
        ordering_key: None,
        event_type: None,
        created_at: NOW.parse().unwrap(),
    }
}

pub(super) fn delivery(message: Message) -> Delivery {
    Delivery {
        message: Arc::new(message),
        store: STORE.into(),
        attempt: 1,
        capture: Capture { on_success: false, on_failure: false, bytes_max: 0 },
        now: NOW.parse().unwrap(),
    }
}

pub(super) fn capturing(message: Message, bytes_max: usize) -> Delivery {
    let capture = Capture { on_success: true, on_failure: true, bytes_max };
    Delivery { capture, ..delivery(message) }
}

/// Test servers live on loopback.
pub(super) fn open_environment() -> Environment {
    Environment { allow_internal: true, ..Environment::default() }
}

pub(super) fn http_sink(config: Value) -> Arc<dyn Sink> {
    connect(&endpoint("http", config), &open_environment()).unwrap()
}

/// A sink for the URL with nothing else set.
pub(super) fn plain_sink(url: &str) -> Arc<dyn Sink> {
    http_sink(json!({"url": url}))
}

/// What a receiver or a config is to blame for.
pub(super) trait Failed {
    fn failed(self) -> Failure;
}

impl Failed for Undelivered {
    #[track_caller]
    fn failed(self) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Short(shortage) => panic!("{shortage}"),
        }
    }
}

impl<T: std::fmt::Debug> Failed for Result<T, Undelivered> {
    #[track_caller]
    fn failed(self) -> Failure {
        self.unwrap_err().failed()
    }
}

#[track_caller]
pub(super) fn assert_says(failure: &Failure, part: &str) {
    assert!(failure.error.contains(part), "{:?} says nothing of {part:?}", failure.error);
}
