//! What people see of a store: a message's story, dead letters, the event log, status.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::AttemptRecord;
use crate::message::{MessageId, State};
use crate::verdict::{Class, DeadReason};

/// A message's whole story, wherever it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    pub id: MessageId,
    pub endpoint: String,
    pub state: State,
    pub priority: u8,
    /// None once erased, or when the archive keeps metadata only.
    pub payload: Option<Bytes>,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
    pub options: Map<String, Value>,
    pub idempotency_key: Option<String>,
    pub correlation_id: Option<Uuid>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    pub created_at: Timestamp,
    pub scheduled_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// When it is next tried; only while pending.
    pub due_at: Option<Timestamp>,
    /// Attempts counted so far, the running one included.
    pub attempt_count: u32,
    pub last_error: Option<String>,
    /// Why it is not delivered yet, in words; only while pending.
    pub reason: Option<String>,
    /// The recorded attempts, first to last.
    pub attempts: Vec<AttemptRecord>,
    pub dlq_id: Option<i64>,
    /// The message that it was made from.
    pub replay_of: Option<MessageId>,
    /// The messages that were made from it, oldest first, at most the last [`REPLAYED_AS_MAX`].
    pub replayed_as: Vec<MessageId>,
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

/// Why dead letters died.
pub const DEAD_REASONS: [&str; 4] = [
    DeadReason::AttemptsExhausted.as_str(),
    DeadReason::Permanent.as_str(),
    DeadReason::Gone.as_str(),
    INVALID_EVENT,
];

fn is_zero(limit: &usize) -> bool {
    *limit == 0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, PartialEq)]
pub struct DeadLetter {
    pub id: i64,
    pub message: MessageId,
    pub endpoint: String,
    pub status: DlqStatus,
    pub reason: String,
    pub died_at: Timestamp,
    pub attempt_count: u32,
    pub last_error: Option<String>,
    /// Up to the last 100, oldest first.
    pub errors: Vec<AttemptError>,
    pub payload: Option<Bytes>,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DlqSummary {
    pub endpoint: String,
    pub failed: u64,
    pub redriven: u64,
    pub discarded: u64,
    pub oldest_failed: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventRecord {
    pub id: i64,
    pub at: Timestamp,
    pub kind: String,
    pub subject: Option<String>,
    pub detail: Value,
}

/// Figures of the whole store, cheap at any size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    pub store: String,
    pub schema_version: i64,
    pub paused: Option<String>,
    /// Nodes whose lease holds: without one, nothing is delivered.
    pub live_nodes: u64,
    pub pending: u64,
    pub processing: u64,
    pub dead: u64,
    pub oldest_pending: Option<Timestamp>,
    /// Events that have not become messages yet. PostgreSQL makes messages of them at once.
    pub stored_events: u64,
    pub oldest_stored_event: Option<Timestamp>,
    pub endpoints: Vec<EndpointStatus>,
    /// Of the node that was asked; a store has none.
    pub limits: Option<NodeLimits>,
}

/// What a node may have open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLimits {
    /// Files and connections of its process; None: there is no limit.
    pub open_files: Option<u64>,
    /// Attempts, over all endpoints.
    pub max_in_flight: u32,
    /// Connections to receivers, and files of file endpoints, that no attempt uses.
    pub idle_connections_max: u64,
    /// Connections to its API.
    pub client_connections_max: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    pub name: String,
    pub protocol: String,
    pub enabled: bool,
    pub paused: bool,
    pub circuit: crate::breaker::CircuitName,
    pub pending: u64,
    pub processing: u64,
    pub dead: u64,
    pub oldest_pending: Option<Timestamp>,
}
