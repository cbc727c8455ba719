//! What people see of a store: a message's story, dead letters, the event log, status.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::response_body;
use super::{EndpointHealth, ListedMessage};
use crate::breaker::CircuitName;
use crate::message::{MessageId, NodeId};
use crate::verdict::{Class, DeadReason};

/// A message's whole story, wherever it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MessageRecord))]
pub struct Story {
    #[serde(flatten)]
    pub listed: ListedMessage,
    /// Why it is not delivered yet, or why it died.
    pub reason: Option<String>,
    /// A pending message that only its receiver keeps waiting. Not told: a node adds to the reason whether it is connected.
    #[serde(skip)]
    pub waits_for_receiver: bool,
    /// The attempts that the setting `attempt_log` keeps, first to last.
    pub attempts: Vec<AttemptRecord>,
    /// None once erased, or when the archive keeps metadata only. How it is written as JSON depends on the content type.
    #[serde(skip)]
    pub payload: Option<Bytes>,
    pub headers: BTreeMap<String, String>,
    /// What it overrides of its endpoint.
    pub options: Map<String, Value>,
    /// The message that it was made from by a replay.
    pub replay_of: Option<MessageId>,
    /// The messages that replays made from it, oldest first, at most the last hundred.
    pub replayed_as: Vec<MessageId>,
}

impl Deref for Story {
    type Target = ListedMessage;

    fn deref(&self) -> &ListedMessage {
        &self.listed
    }
}

impl DerefMut for Story {
    fn deref_mut(&mut self) -> &mut ListedMessage {
        &mut self.listed
    }
}

/// One attempt, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Attempt))]
pub struct AttemptRecord {
    pub number: u32,
    pub node: NodeId,
    pub started_at: Timestamp,
    #[serde(rename = "duration_seconds", with = "seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub duration: Duration,
    pub outcome: AttemptOutcome,
    pub class: Option<Class>,
    /// With its class tag in front.
    pub error: Option<String>,
    pub response_status: Option<u16>,
    #[serde(flatten, with = "response_body")]
    #[cfg_attr(feature = "openapi", schema(value_type = response_body::ResponseBody))]
    pub response_body: Option<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum AttemptOutcome {
    Delivered,
    Failed,
    Lost,
}

impl AttemptOutcome {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Lost => "lost",
        }
    }
}

/// How many replays of one message its story tells.
pub const REPLAYED_AS_MAX: usize = 100;

/// Which dead letters are meant: those that all of this is true of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DlqFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<DlqStatus>,
    /// Why it died: one of [`DEAD_REASONS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of its last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Its last error has this text in it, letter by letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Uuid>,
    /// Died from then on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    /// Died before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Only ids above this one: the cursor of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<i64>,
    /// 0 means 100.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: usize,
}

/// Reason of the dead letter that an event becomes which cannot be fanned out.
pub const INVALID_EVENT: &str = "invalid_event";

/// Reason of the dead letter that a message becomes which no node can read, because another program wrote into the store.
pub const UNREADABLE: &str = "unreadable";
/// Under this name headers and options are shown as they are stored when they cannot be read.
pub const UNREADABLE_FIELD: &str = "(unreadable)";

/// Why dead letters died.
pub const DEAD_REASONS: [&str; 5] = [
    DeadReason::AttemptsExhausted.as_str(),
    DeadReason::Permanent.as_str(),
    DeadReason::Gone.as_str(),
    INVALID_EVENT,
    UNREADABLE,
];

fn is_zero(limit: &usize) -> bool {
    *limit == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DlqStatus {
    Failed,
    Redriven,
    Discarded,
}

impl DlqStatus {
    pub const ALL: [Self; 3] = [Self::Failed, Self::Redriven, Self::Discarded];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Redriven => "redriven",
            Self::Discarded => "discarded",
        }
    }
}

/// A dead letter in a list: everything but what it held, and its errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedDeadLetter {
    pub id: i64,
    /// The message that died.
    #[serde(rename = "message_id")]
    pub message: MessageId,
    pub endpoint: String,
    pub status: DlqStatus,
    #[cfg_attr(feature = "openapi", schema(schema_with = dead_reasons))]
    pub reason: String,
    pub died_at: Timestamp,
    pub attempt_count: u32,
    pub last_error: Option<String>,
    pub priority: u8,
    pub content_type: String,
    pub idempotency_key: Option<String>,
    pub correlation_id: Option<Uuid>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    pub created_at: Timestamp,
    pub scheduled_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
}

/// A dead letter with what it held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = DeadLetterRecord))]
pub struct DeadLetter {
    #[serde(flatten)]
    pub listed: ListedDeadLetter,
    /// None once erased. How it is written as JSON depends on the content type.
    #[serde(skip)]
    pub payload: Option<Bytes>,
    pub headers: BTreeMap<String, String>,
    /// What it overrides of its endpoint.
    pub options: Map<String, Value>,
    /// Up to the last 100, oldest first.
    pub errors: Vec<AttemptError>,
}

impl Deref for DeadLetter {
    type Target = ListedDeadLetter;

    fn deref(&self) -> &ListedDeadLetter {
        &self.listed
    }
}

/// As much as a list tells of it.
impl From<ListedDeadLetter> for DeadLetter {
    fn from(listed: ListedDeadLetter) -> Self {
        Self { listed, payload: None, headers: BTreeMap::new(), options: Map::new(), errors: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AttemptError {
    pub attempt: u32,
    pub at: Timestamp,
    pub error: String,
}

/// Which dead letters to put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "there is one for each redrive, not for each letter")]
pub enum Redrive {
    One(i64),
    Endpoint(String),
    All,
    /// What the filter selects and is still `failed`; a limit of 0 is no limit here.
    Matching(DlqFilter),
}

/// How many dead letters an endpoint has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DlqSummary {
    pub endpoint: String,
    pub failed: u64,
    pub redriven: u64,
    pub discarded: u64,
    /// When the first of the failed ones died.
    pub oldest_failed: Option<Timestamp>,
    /// When the last of the failed ones died.
    pub newest_failed: Option<Timestamp>,
    /// How many of the failed ones died for each reason.
    pub reasons: BTreeMap<String, u64>,
}

/// An entry of the event log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LoggedEvent))]
pub struct EventRecord {
    pub id: i64,
    pub at: Timestamp,
    pub kind: String,
    pub subject: Option<String>,
    pub detail: Value,
}

/// Figures of the whole store, cheap at any size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Status))]
pub struct StoreStatus {
    /// Short random name: part of the ids that receivers see.
    pub store: String,
    pub schema_version: i64,
    /// Why everything is paused, if it is.
    pub paused: Option<String>,
    /// Nodes whose lease holds: without one, nothing is delivered.
    pub live_nodes: u64,
    pub pending: u64,
    pub processing: u64,
    pub dead: u64,
    pub oldest_pending: Option<Timestamp>,
    /// Events that applications stored by SQL and that have not become messages yet. On PostgreSQL they become messages at once.
    pub stored_events: u64,
    pub oldest_stored_event: Option<Timestamp>,
    pub endpoints: Vec<EndpointStatus>,
    /// Of the node that answers; null when the store itself is asked.
    pub limits: Option<NodeLimits>,
}

/// What a node may have open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeLimits {
    /// Files and connections of its process; null when there is no limit.
    pub open_files: Option<u64>,
    /// Attempts, over all endpoints.
    pub max_in_flight: u32,
    /// Connections to receivers, and files of file endpoints, that no attempt uses.
    pub idle_connections_max: u64,
    /// Connections to its API.
    pub client_connections_max: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EndpointStatus {
    pub name: String,
    pub protocol: String,
    pub enabled: bool,
    pub paused: bool,
    pub circuit: CircuitName,
    pub pending: u64,
    pub processing: u64,
    pub dead: u64,
    pub oldest_pending: Option<Timestamp>,
    pub health: EndpointHealth,
}

/// A duration as seconds with a fraction.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Ok(Duration::try_from_secs_f64(f64::deserialize(deserializer)?).unwrap_or_default())
    }
}

#[cfg(feature = "openapi")]
fn dead_reasons() -> utoipa::openapi::schema::Schema {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(DEAD_REASONS)).into()
}
