//! A replay as JSON, and what one would do.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::rate::RateLimit;
use postrider::store::{Replay, ReplayPreview, ReplaySample, ReplayState, ReplayStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::schemas;

/// A replay and how far it has come.
#[derive(Serialize, ToSchema)]
#[schema(as = Replay)]
pub(crate) struct ReplayView {
    id: i64,
    #[schema(schema_with = schemas::replay_state)]
    state: ReplayState,
    #[schema(required)]
    endpoint: Option<String>,
    #[schema(required)]
    event_type: Option<String>,
    #[schema(required)]
    ordering_key: Option<String>,
    #[schema(required, schema_with = schemas::replay_status_or_null)]
    status: Option<ReplayStatus>,
    #[schema(required)]
    from: Option<Timestamp>,
    #[schema(required)]
    until: Option<Timestamp>,
    /// The endpoint that all of them go to; each to its own unless said.
    #[schema(required)]
    to: Option<String>,
    #[schema(required, value_type = Option<Map<String, Value>>)]
    rate_limit: Option<RateLimit>,
    /// How many are selected; null until they are counted.
    #[schema(required)]
    total: Option<u64>,
    /// How many were sent.
    done: u64,
    /// How many could not be, by reason.
    skipped: BTreeMap<String, u64>,
    /// What it waits for, in words.
    #[schema(required)]
    waiting: Option<String>,
    started_at: Timestamp,
    /// When it was stopped or completed.
    #[schema(required)]
    ended_at: Option<Timestamp>,
}

impl From<Replay> for ReplayView {
    fn from(replay: Replay) -> Self {
        let selection = replay.selection;
        Self {
            id: replay.id,
            state: replay.state,
            endpoint: selection.endpoint,
            event_type: selection.event_type,
            ordering_key: selection.ordering_key,
            status: selection.status,
            from: selection.from,
            until: selection.until,
            to: replay.to,
            rate_limit: replay.rate_limit,
            total: replay.total,
            done: replay.done,
            skipped: replay.skipped,
            waiting: replay.waiting,
            started_at: replay.started_at,
            ended_at: replay.ended_at,
        }
    }
}

/// What a replay would do.
#[derive(Serialize, ToSchema)]
#[schema(as = ReplayPreview)]
pub(crate) struct ReplayPreviewView {
    /// How many would be sent.
    count: u64,
    /// How many are selected and cannot be, by reason.
    skipped: BTreeMap<String, u64>,
    /// The first of those that would be sent, at most 10.
    sample: Vec<ReplaySampleView>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ReplaySample)]
struct ReplaySampleView {
    id: i64,
    endpoint: String,
    #[schema(schema_with = schemas::replay_status)]
    status: ReplayStatus,
    #[schema(required)]
    event_type: Option<String>,
    #[schema(required)]
    ordering_key: Option<String>,
    created_at: Timestamp,
}

impl From<ReplayPreview> for ReplayPreviewView {
    fn from(preview: ReplayPreview) -> Self {
        let sample = preview.sample.into_iter().map(ReplaySampleView::from).collect();
        Self { count: preview.count, skipped: preview.skipped, sample }
    }
}

impl From<ReplaySample> for ReplaySampleView {
    fn from(sample: ReplaySample) -> Self {
        let ReplaySample { id, endpoint, status, event_type, ordering_key, created_at } = sample;
        Self { id: id.0, endpoint, status, event_type, ordering_key, created_at }
    }
}
