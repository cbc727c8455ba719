//! A message: as an application sends it, as it is queued, and as a node claims it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::endpoint::EndpointId;

/// Unique within a store and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct MessageId(pub i64);

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One run of one engine process. A restart is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct NodeId(pub i64);

pub const PRIORITY_MAX: u8 = 10;
pub const JSON: &str = "application/json";

/// Must a payload of this content type be JSON?
pub fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    let suffix = media.len().checked_sub("+json".len()).and_then(|at| media.get(at..));
    media.eq_ignore_ascii_case(JSON) || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"))
}

/// What an application sends. The send checks it against the endpoint and the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct NewMessage {
    pub endpoint: String,
    pub payload: Bytes,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
    /// Per-message overrides: `max_attempts`, and what the endpoint's protocol allows.
    pub options: Map<String, Value>,
    /// 0 to [`PRIORITY_MAX`], higher first.
    pub priority: u8,
    pub scheduled_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub idempotency_key: Option<String>,
    pub correlation_id: Option<Uuid>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
}

impl NewMessage {
    /// A JSON message with no options. The bytes are delivered exactly as given.
    pub fn new(endpoint: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            endpoint: endpoint.into(),
            payload: payload.into(),
            content_type: JSON.to_owned(),
            headers: BTreeMap::new(),
            options: Map::new(),
            priority: 0,
            scheduled_at: None,
            expires_at: None,
            idempotency_key: None,
            correlation_id: None,
            ordering_key: None,
            event_type: None,
        }
    }

    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        self.ordering_key = Some(key.into());
        self
    }

    #[must_use]
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }
}

/// The result of a send: a new message, or the existing one with the same idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Sent {
    pub id: MessageId,
    /// The idempotency key was taken by a message with the same payload: this one.
    pub duplicate: bool,
}

/// A queued message as a sink sees it. It never changes while it is queued.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub payload: Bytes,
    pub content_type: String,
    pub headers: BTreeMap<String, String>,
    pub options: Map<String, Value>,
    pub priority: u8,
    pub expires_at: Option<Timestamp>,
    pub correlation_id: Option<Uuid>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    pub created_at: Timestamp,
}

impl Message {
    pub(crate) fn age(&self, now: Timestamp) -> Duration {
        Duration::try_from(now.duration_since(self.created_at)).unwrap_or_default()
    }
}

/// The state of a message; `docs/lifecycle.md` draws the transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum State {
    Pending,
    Processing,
    Completed,
    Expired,
    Cancelled,
    Dead,
}

impl State {
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Processing, Self::Completed, Self::Expired, Self::Cancelled, Self::Dead];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Dead => "dead",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == name)
    }

    /// The allowed transitions; the store refuses all others.
    pub fn next(self) -> &'static [State] {
        match self {
            Self::Pending => &[Self::Processing, Self::Completed, Self::Dead, Self::Expired, Self::Cancelled],
            Self::Processing => &[Self::Completed, Self::Pending, Self::Dead, Self::Expired],
            Self::Dead => &[Self::Pending],
            Self::Cancelled => &[Self::Completed],
            Self::Completed | Self::Expired => &[],
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identifies one claim: a node never uses a batch number twice for one message, and node ids are never reused. A
/// settlement carries the fence of its claim, so a late one cannot touch a newer claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    pub node: NodeId,
    pub batch: i64,
}

/// A message in the hands of one node. Only a store makes one; settling consumes it.
#[derive(Debug)]
#[must_use = "a claim must be settled, or its message waits for the lease to run out"]
pub struct Claim {
    pub message: Arc<Message>,
    pub fence: Fence,
    /// Number of this attempt, from 1. A started attempt's number is never reused, neither after a redrive nor after
    /// spared attempts.
    pub attempt: u32,
    /// Attempts outside the current budget: those before a redrive, and spared ones (`Verdict::Spare`).
    pub attempts_before: u32,
    /// How many claims of this message were lost with their node.
    pub losses: u32,
}

impl Claim {
    /// Attempts of the current budget, this one included.
    pub fn budget_used(&self) -> u32 {
        self.attempt.saturating_sub(self.attempts_before)
    }
}

/// A claim whose node lost its lease, or that was not settled within `stale_recovery_timeout`.
#[derive(Debug)]
#[must_use = "a lost claim goes through the same retry-or-dead decision as a failed attempt"]
pub struct LostClaim {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub fence: Fence,
    pub attempt: u32,
    pub attempts_before: u32,
    pub losses: u32,
    /// Nothing else was in flight on its node.
    pub alone: bool,
    pub started_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub options: Map<String, Value>,
}
