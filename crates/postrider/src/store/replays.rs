//! Replay: finished messages are sent again, as new ones that refer to the old.
//!
//! A replay of many is a row in the store. Nodes advance it in bounded steps: each makes its messages and moves the
//! replay's position in one transaction, so that a crash neither loses nor doubles any, and any node can take the next step.

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{INVALID_EVENT, Result};
use crate::clock::truncated;
use crate::error::{Invalid, StoreError};
use crate::message::MessageId;
use crate::rate::RateLimit;
use crate::send::check_key;

/// Messages that a preview shows.
pub const SAMPLE_MAX: usize = 10;
/// Replays that are running or stopped. Running ones take turns.
pub const UNFINISHED_MAX: u64 = 100;

#[async_trait]
pub trait Replays: Send + Sync + 'static {
    /// Sends one finished message again, to its own endpoint or to another; the id of the new one.
    async fn replay_message(&self, id: MessageId, to: Option<&str>) -> Result<MessageId>;

    /// What this replay would send if it were started now. Changes nothing.
    async fn preview_replay(&self, replay: NewReplay) -> Result<ReplayPreview>;

    /// Selects messages that are finished now; later ones are not replayed. Nodes do the rest.
    async fn start_replay(&self, replay: NewReplay) -> Result<Replay>;
    async fn replay(&self, id: i64) -> Result<Replay>;
    /// Newest first, older than `before`.
    async fn replays(&self, before: Option<i64>, limit: usize) -> Result<Vec<Replay>>;
    /// When resumed, it continues where it stopped.
    async fn stop_replay(&self, id: i64) -> Result<Replay>;
    async fn resume_replay(&self, id: i64) -> Result<Replay>;
}

/// Which messages are replayed: those that match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ReplaySelection {
    pub endpoint: Option<String>,
    pub event_type: Option<String>,
    pub ordering_key: Option<String>,
    /// None is everything in the archive.
    pub status: Option<ReplayStatus>,
    /// Created from then on.
    pub from: Option<Timestamp>,
    /// Created before.
    pub until: Option<Timestamp>,
}

/// How the replayed message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ReplayStatus {
    Completed,
    Expired,
    Cancelled,
    /// In the DLQ, neither redriven nor discarded. It stays there.
    Failed,
}

impl ReplayStatus {
    pub const ALL: [Self; 4] = [Self::Completed, Self::Expired, Self::Cancelled, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name)
    }
}

/// A replay as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NewReplay {
    #[serde(flatten)]
    pub selection: ReplaySelection,
    /// The endpoint that all of them go to; each to its own unless said.
    pub to: Option<String>,
    /// Of this replay alone; the endpoint's own holds as well. Without a burst it is even: see [`RateLimit::evened`].
    pub rate_limit: Option<RateLimit>,
}

impl NewReplay {
    /// Checks it without the store. Returns it as it is kept: times as exact as stores keep them, and an even rate.
    pub(crate) fn checked(mut self) -> Result<Self, StoreError> {
        let selection = &mut self.selection;
        selection.from = selection.from.map(truncated);
        selection.until = selection.until.map(truncated);
        if *selection == ReplaySelection::default() {
            let rule = "select something: endpoint, event_type, ordering_key, status, from or until";
            return Err(Invalid::new("selection", rule).into());
        }
        for (field, key) in [("event_type", &selection.event_type), ("ordering_key", &selection.ordering_key)]
        {
            key.as_deref().map_or(Ok(()), |key| check_key(field, key))?;
        }
        if let (Some(from), Some(until)) = (selection.from, selection.until)
            && until <= from
        {
            return Err(Invalid::new("until", "must be later than from").into());
        }
        if let Some(limit) = &self.rate_limit {
            let value = serde_json::to_value(limit).expect("numbers become JSON");
            RateLimit::check("rate_limit", &value)?;
        }
        self.rate_limit = self.rate_limit.map(RateLimit::evened);
        Ok(self)
    }
}

/// What a replay would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplayPreview {
    /// How many would be sent.
    pub count: u64,
    /// How many are selected and cannot be, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// The first of those that would be sent, at most 10.
    pub sample: Vec<ReplaySample>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplaySample {
    pub id: MessageId,
    pub endpoint: String,
    pub status: ReplayStatus,
    pub event_type: Option<String>,
    pub ordering_key: Option<String>,
    pub created_at: Timestamp,
}

/// A replay and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replay {
    pub id: i64,
    pub state: ReplayState,
    #[serde(flatten)]
    pub selection: ReplaySelection,
    /// The endpoint that all of them go to; each to its own unless said.
    pub to: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub rate_limit: Option<RateLimit>,
    /// How many are selected; null until they are counted.
    pub total: Option<u64>,
    /// How many were sent.
    pub done: u64,
    /// How many could not be, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// What it waits for, in words.
    pub waiting: Option<String>,
    pub started_at: Timestamp,
    /// When it was stopped or completed.
    pub ended_at: Option<Timestamp>,
}

impl Replay {
    pub fn skipped_count(&self) -> u64 {
        self.skipped.values().sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum ReplayState {
    Running,
    Stopped,
    Completed,
}

impl ReplayState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Completed => "completed",
        }
    }
}

/// Why a selected message was not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// It was erased, or the archive kept its metadata only.
    NoPayload,
    /// Its endpoint was dropped.
    EndpointDropped,
    /// It is an event that could not be fanned out, and has no endpoint.
    InvalidEvent,
    /// Its headers or options are not for the endpoint it would go to.
    Invalid,
    /// A limit was lowered since.
    TooLarge,
}

impl Skip {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoPayload => "no_payload",
            Self::EndpointDropped => "endpoint_dropped",
            Self::InvalidEvent => INVALID_EVENT,
            Self::Invalid => "invalid",
            Self::TooLarge => "too_large",
        }
    }
}

pub(crate) fn too_many_replays() -> String {
    format!(
        "{UNFINISHED_MAX} replays are running or stopped; wait until some are completed, or until the stopped ones \
         are old enough to go"
    )
}

/// How a turn of [`super::Store::advance_replays`] went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayTurn {
    /// There may be more to do at once.
    Worked,
    /// No replay is due before then; None while none runs.
    Idle(Option<Timestamp>),
}
