//! The store as a whole, its event log, its nodes and its tokens as JSON.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::store::{
    EndpointStatus, EventRecord, Figure, IssuedToken, NodeLimits, NodeRecord, NodeState, Scope, StoreStatus,
    TokenRecord,
};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::schemas;

/// Figures of the whole store.
#[derive(Serialize, ToSchema)]
#[schema(as = Status)]
pub(crate) struct StatusView {
    /// Short random name: part of the ids that receivers see.
    store: String,
    schema_version: i64,
    /// Why everything is paused, if it is.
    #[schema(required)]
    paused: Option<String>,
    /// Nodes that run now.
    live_nodes: u64,
    pending: u64,
    processing: u64,
    dead: u64,
    #[schema(required)]
    oldest_pending: Option<Timestamp>,
    /// Events that applications stored by SQL and that have not become messages yet.
    stored_events: u64,
    #[schema(required)]
    oldest_stored_event: Option<Timestamp>,
    endpoints: Vec<EndpointStatusView>,
    /// Of the node that answers.
    #[schema(required)]
    limits: Option<NodeLimitsView>,
}

/// What a node may have open at once.
#[derive(Serialize, ToSchema)]
#[schema(as = NodeLimits)]
struct NodeLimitsView {
    /// Files and connections of its process; null when there is no limit.
    #[schema(required)]
    open_files: Option<u64>,
    /// Attempts, over all endpoints.
    max_in_flight: u32,
    /// Connections to receivers, and files of file endpoints, that no attempt uses.
    idle_connections_max: u64,
    /// Connections to its API.
    client_connections_max: u64,
}

impl From<NodeLimits> for NodeLimitsView {
    fn from(limits: NodeLimits) -> Self {
        Self {
            open_files: limits.open_files,
            max_in_flight: limits.max_in_flight,
            idle_connections_max: limits.idle_connections_max,
            client_connections_max: limits.client_connections_max,
        }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = EndpointStatus)]
struct EndpointStatusView {
    name: String,
    protocol: String,
    enabled: bool,
    paused: bool,
    #[schema(schema_with = schemas::circuit_state)]
    circuit: &'static str,
    pending: u64,
    processing: u64,
    dead: u64,
    #[schema(required)]
    oldest_pending: Option<Timestamp>,
}

impl From<StoreStatus> for StatusView {
    fn from(status: StoreStatus) -> Self {
        Self {
            store: status.store,
            schema_version: status.schema_version,
            paused: status.paused,
            live_nodes: status.live_nodes,
            pending: status.pending,
            processing: status.processing,
            dead: status.dead,
            oldest_pending: status.oldest_pending,
            stored_events: status.stored_events,
            oldest_stored_event: status.oldest_stored_event,
            endpoints: status.endpoints.into_iter().map(EndpointStatusView::from).collect(),
            limits: status.limits.map(NodeLimitsView::from),
        }
    }
}

impl From<EndpointStatus> for EndpointStatusView {
    fn from(status: EndpointStatus) -> Self {
        Self {
            name: status.name,
            protocol: status.protocol,
            enabled: status.enabled,
            paused: status.paused,
            circuit: status.circuit.as_str(),
            pending: status.pending,
            processing: status.processing,
            dead: status.dead,
            oldest_pending: status.oldest_pending,
        }
    }
}

/// Something that the store counts.
#[derive(Serialize, ToSchema)]
#[schema(as = Figure)]
pub(crate) struct FigureView {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl From<Figure> for FigureView {
    fn from(figure: Figure) -> Self {
        Self { name: figure.name, labels: figure.labels, value: figure.value }
    }
}

/// Something that changed, or somebody that was lost.
#[derive(Serialize, ToSchema)]
#[schema(as = LoggedEvent)]
pub(crate) struct EventView {
    id: i64,
    at: Timestamp,
    kind: String,
    #[schema(required)]
    subject: Option<String>,
    detail: Value,
}

impl From<EventRecord> for EventView {
    fn from(event: EventRecord) -> Self {
        Self { id: event.id, at: event.at, kind: event.kind, subject: event.subject, detail: event.detail }
    }
}

/// One run of one engine process.
#[derive(Serialize, ToSchema)]
#[schema(as = Node)]
pub(crate) struct NodeView {
    id: i64,
    name: String,
    #[schema(schema_with = schemas::node_state)]
    state: NodeState,
    joined_at: Timestamp,
    heartbeat_at: Timestamp,
    lease_until: Timestamp,
}

impl From<NodeRecord> for NodeView {
    fn from(node: NodeRecord) -> Self {
        Self {
            id: node.id.0,
            name: node.name,
            state: node.state,
            joined_at: node.joined_at,
            heartbeat_at: node.heartbeat_at,
            lease_until: node.lease_until,
        }
    }
}

/// What is known of a token once it was given out.
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
pub(crate) struct TokenView {
    /// How it begins; enough to recognise it, not to use it.
    prefix: String,
    name: String,
    #[schema(schema_with = schemas::scope)]
    scope: Scope,
    created_at: Timestamp,
}

impl From<TokenRecord> for TokenView {
    fn from(token: TokenRecord) -> Self {
        Self { prefix: token.prefix, name: token.name, scope: token.scope, created_at: token.created_at }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = IssuedToken)]
pub(crate) struct IssuedTokenView {
    /// Shown once: the store keeps a digest only.
    token: String,
    #[serde(flatten)]
    record: TokenView,
}

impl From<IssuedToken> for IssuedTokenView {
    fn from(issued: IssuedToken) -> Self {
        Self { token: issued.token, record: issued.record.into() }
    }
}
