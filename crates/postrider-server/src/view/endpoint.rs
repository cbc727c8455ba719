//! An endpoint as JSON.

use std::borrow::Cow;

use jiff::Timestamp;
use postrider::Invalid;
use postrider::breaker::{Circuit, CircuitName, CircuitState, Probe};
use postrider::endpoint::{DisabledBy, Endpoint, EndpointId, EndpointOptions};
use postrider::message::NodeId;
use postrider::protocol::{EndpointConfig, Protocol};
use postrider::retry::RetryOverrides;
use postrider::sink::SinkConnection;
use postrider::store::EndpointHealth;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Endpoint)]
pub(crate) struct EndpointView {
    pub(crate) name: String,
    #[schema(value_type = Protocol)]
    pub(crate) protocol: Cow<'static, str>,
    /// What the protocol needs. Secrets are hidden; references to secrets are shown.
    pub(crate) config: Map<String, Value>,
    /// False when nobody acknowledges deliveries, so that a delivered message may be lost: MQTT with QoS 0, NATS without
    /// JetStream.
    pub(crate) confirmed: bool,
    /// What differs from the store's settings.
    #[schema(value_type = Object)]
    retry_policy: Value,
    #[schema(value_type = Object)]
    options: Value,
    enabled: bool,
    #[schema(required)]
    pub(crate) disabled_by: Option<DisabledBy>,
    pub(crate) paused: bool,
    pub(crate) circuit: CircuitView,
    /// `cold`: every message goes through the queue.
    mode: Cow<'static, str>,
    /// The receiver asked to be left alone until then.
    #[schema(required)]
    held_until: Option<Timestamp>,
    created_at: Timestamp,
    /// How attempts at it went; where one endpoint is shown, not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    health: Option<EndpointHealth>,
    /// Of protocols that keep a connection to their broker: whether the node that answers has it. Where one endpoint is
    /// shown, after its first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connection: Option<SinkConnection>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Circuit)]
pub(crate) struct CircuitView {
    pub(crate) state: CircuitName,
    /// While it is open: when it is tried again.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    /// While it is half open: until when the probe may take, or null when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    probe_until: Option<Option<Timestamp>>,
}

impl EndpointView {
    /// Never shows a secret: the config goes through the protocol's redaction.
    pub(crate) fn of(endpoint: &Endpoint) -> Self {
        Self {
            name: endpoint.name.to_string(),
            protocol: endpoint.protocol.as_str().into(),
            config: endpoint.protocol.redacted(&endpoint.config),
            confirmed: endpoint.config.unconfirmed_by(&Map::new()).is_none(),
            retry_policy: json!(endpoint.retry),
            options: json!(endpoint.options),
            enabled: endpoint.disabled.is_none(),
            disabled_by: endpoint.disabled,
            paused: endpoint.paused,
            circuit: CircuitView::of(&endpoint.circuit.state),
            mode: "cold".into(),
            held_until: endpoint.held_until,
            created_at: endpoint.created_at,
            health: None,
            connection: None,
        }
    }

    pub(crate) fn with_health(self, health: EndpointHealth) -> Self {
        Self { health: Some(health), ..self }
    }

    pub(crate) fn with_connection(self, connection: Option<SinkConnection>) -> Self {
        let connection = connection.filter(|connection| *connection != SinkConnection::NotKept);
        Self { connection, ..self }
    }

    /// None where the node does not tell.
    pub(crate) fn health(self) -> Option<EndpointHealth> {
        self.health
    }

    /// For those who may see states and figures only.
    pub(crate) fn without_config(mut self) -> Self {
        self.config = Map::new();
        self
    }
}

/// What the API does not tell is left at 0: the number of the endpoint, of its revision, and of the probing node.
impl TryFrom<EndpointView> for Endpoint {
    type Error = Invalid;

    fn try_from(view: EndpointView) -> Result<Self, Invalid> {
        let protocol = Protocol::from_name(&view.protocol)?;
        Ok(Self {
            id: EndpointId(0),
            name: view.name.into(),
            protocol,
            config: EndpointConfig::new(protocol, view.config),
            retry: RetryOverrides::check(Some(&view.retry_policy))?,
            options: EndpointOptions::check(Some(&view.options))?,
            disabled: view.disabled_by,
            paused: view.paused,
            circuit: Circuit { epoch: 0, state: view.circuit.state() },
            held_until: view.held_until,
            revision: 0,
            created_at: view.created_at,
        })
    }
}

impl CircuitView {
    fn state(&self) -> CircuitState {
        match self.state {
            CircuitName::Closed => CircuitState::Closed,
            CircuitName::Open => CircuitState::Open { until: self.until.unwrap_or(Timestamp::UNIX_EPOCH) },
            CircuitName::HalfOpen => {
                let probe = |lease_until| Probe { node: NodeId(0), lease_until };
                CircuitState::HalfOpen { probe: self.probe_until.flatten().map(probe) }
            }
        }
    }

    fn of(state: &CircuitState) -> Self {
        let closed = Self { state: state.name(), until: None, probe_until: None };
        match state {
            CircuitState::Closed => closed,
            CircuitState::Open { until } => Self { until: Some(*until), ..closed },
            CircuitState::HalfOpen { probe } => {
                Self { probe_until: Some(probe.map(|probe| probe.lease_until)), ..closed }
            }
        }
    }
}
