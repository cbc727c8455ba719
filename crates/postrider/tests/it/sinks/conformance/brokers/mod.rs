//! What every sink to a broker must do, run against each real broker. Network faults come from a proxy before the broker
//! that all tests share; a test that stops or kills a broker has its own.

mod chaos;
mod mqtt;
mod nats;
mod amqp;
mod kafka;
mod kafka_followers;
mod kafka_wire;
mod redis;
mod suite;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use postrider::endpoint::Endpoint;
use postrider::sink::{Delivery, Environment, Sink, Undelivered, connect};
use postrider::verdict::{Class, Failure, Receipt};
use serde_json::{Value, json};
use test_servers::{BrokerKind, BrokerListeners, Proxy};

use super::super::support::*;

/// What an independent client of the broker sees of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BrokerMessage {
    pub(super) id: String,
    /// Of headers, properties or fields: all others, those that begin with `postrider-` included.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) content_type: String,
    pub(super) payload: Bytes,
}

/// A kind of broker, and how tests look into it. Cells that mean nothing for a protocol are None, with the reason in the
/// protocol's own file.
#[async_trait]
pub(super) trait BrokerUnderTest: Send + Sync + 'static {
    const PROTOCOL: &'static str;
    const KIND: BrokerKind;

    /// The config of an endpoint that delivers to `target` through this port of loopback.
    fn config(port: u16, target: &str) -> Value;

    /// The same for another server, on which the target was not created.
    fn config_elsewhere(port: u16, target: &str) -> Value {
        Self::config(port, target)
    }

    /// The keys of a config that sign in.
    fn login(user: &str, password: &str) -> Value;

    /// Between the sink and the plain listener.
    fn proxy(listeners: &BrokerListeners) -> Proxy {
        Proxy::to(listeners.plain).unwrap()
    }

    /// Makes the target (a topic, stream or queue) where the broker does not make it itself.
    async fn create(listeners: &BrokerListeners, target: &str);

    /// What is at the target, in the broker's order, read by an independent client. A target that was subscribed to
    /// before may be read only once.
    async fn held(listeners: &BrokerListeners, target: &str) -> Vec<BrokerMessage>;

    /// The config of an endpoint whose messages the broker can bring nowhere, and the class of that failure.
    fn unroutable(port: u16) -> Option<(Value, Class)>;

    /// What an endpoint's failure says and is where the broker refuses by its rights (ACL).
    fn denied() -> Option<Class> {
        Some(Class::Permanent)
    }

    /// What endpoints that share a connection may have different.
    fn another_policy() -> Value {
        json!({"timeout": 3})
    }

    /// Does the broker still have what it acknowledged when it was killed? Otherwise the reason is in the protocol's file.
    fn survives_a_kill() -> bool {
        true
    }

    /// Is a message above the broker's limit refused by it? Otherwise the reason is in the protocol's file.
    fn oversized() -> Option<Class> {
        Some(Class::Permanent)
    }
}

/// A broker, a proxy before it and a target on it.
pub(super) struct Bench<B: BrokerUnderTest> {
    pub(super) listeners: BrokerListeners,
    pub(super) proxy: Proxy,
    pub(super) target: String,
    pub(super) environment: Environment,
    kind: std::marker::PhantomData<B>,
}

impl<B: BrokerUnderTest> Bench<B> {
    /// On the broker that the run shares. None where it is not installed.
    pub(super) async fn shared() -> Option<Self> {
        let listeners = tokio::task::spawn_blocking(|| B::KIND.shared()).await.unwrap()?;
        Some(Self::on(listeners).await)
    }

    pub(super) async fn on(listeners: &BrokerListeners) -> Self {
        let bench = Self::on_empty(listeners);
        B::create(listeners, &bench.target).await;
        bench
    }

    /// Without a target.
    pub(super) fn on_empty(listeners: &BrokerListeners) -> Self {
        let (target, proxy) = (target(), B::proxy(listeners));
        let environment = open_environment();
        Self { listeners: listeners.clone(), proxy, target, environment, kind: std::marker::PhantomData }
    }

    /// Through the proxy.
    pub(super) fn config(&self) -> Value {
        B::config(self.proxy.port(), &self.target)
    }

    pub(super) fn sink(&self) -> Arc<dyn Sink> {
        self.sink_of(self.config())
    }

    pub(super) fn sink_of(&self, config: Value) -> Arc<dyn Sink> {
        connect(&Self::endpoint(config), &self.environment).unwrap()
    }

    pub(super) fn endpoint(config: Value) -> Endpoint {
        let endpoint = endpoint(B::PROTOCOL, config);
        endpoint.config.typed().map(drop).unwrap();
        endpoint
    }

    pub(super) async fn held(&self) -> Vec<BrokerMessage> {
        B::held(&self.listeners, &self.target).await
    }

    pub(super) async fn ids(&self) -> Vec<String> {
        self.held().await.into_iter().map(|held| held.id).collect()
    }
}

/// Not used by any other test, nor by an earlier run on the same broker.
fn target() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("t{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn id(number: i64) -> String {
    format!("msg_{STORE}_{number}")
}

/// As the engine calls it: with a deadline.
pub(super) async fn deliver(
    sink: &dyn Sink,
    delivery: &Delivery,
    timeout: Duration,
) -> Result<Receipt, Undelivered> {
    tokio::time::timeout(timeout, sink.deliver(delivery))
        .await
        .unwrap_or_else(|_| Err(Failure { ambiguous: true, ..Failure::timed_out(timeout) }.into()))
}

/// For an outcome that must come by itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let asked = std::time::Instant::now();
    while !condition() {
        assert!(asked.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Both maps as one config.
pub(super) fn with(mut config: Value, more: Value) -> Value {
    object(more).into_iter().for_each(|(key, value)| config[key] = value);
    config
}

/// Runs the suite. Each protocol's file calls it with its own type.
macro_rules! broker_conforms {
    ($broker:ty) => {
        broker_conforms!($broker:
            payload_headers_and_id_arrive_byte_for_byte,
            small_and_large_payloads_arrive,
            nothing_is_delivered_while_acknowledgements_are_lost,
            a_cut_connection_loses_nothing_and_comes_back,
            while_the_broker_is_away_deliveries_are_refused_and_the_sink_reconnects_by_itself,
            a_connection_closed_while_idle_costs_no_attempt,
            a_frozen_connection_is_replaced,
            a_slow_broker_is_no_failure,
            a_wrong_password_is_retryable_and_not_shown,
            what_the_broker_denies_is_classed,
            an_oversized_message_is_permanent_and_hurts_no_other,
            an_unroutable_message_is_never_delivered,
            tls_trusts_a_private_authority_only_when_told,
            a_client_certificate_is_shown,
            the_gate_refuses_internal_addresses,
            many_deliveries_share_one_connection,
            endpoints_of_one_broker_share_a_connection_and_the_last_closes_it,
            a_cancelled_delivery_does_not_break_the_next,
            one_after_the_other_stays_in_order_through_reconnects,
            a_broker_that_is_killed_stopped_and_frozen_loses_nothing_acknowledged,
        );
    };
    ($broker:ty: $($promise:ident),+ $(,)?) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $promise() {
            super::suite::$promise::<$broker>().await;
        })+

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn node_and_broker_are_killed_at_random_and_nothing_is_lost() {
            super::chaos::node_and_broker_are_killed_at_random_and_nothing_is_lost::<$broker>().await;
        }
    };
}
use broker_conforms;
