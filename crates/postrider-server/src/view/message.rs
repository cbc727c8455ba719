//! A message as JSON: its whole story, and its line in a list.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::State;
use postrider::store::{AttemptRecord, ListedMessage, Story};
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::content::{Payload, ResponseBody};
use super::schemas;

/// A message's whole story.
#[derive(Serialize, ToSchema)]
#[schema(as = Message)]
pub(crate) struct MessageView {
    id: i64,
    endpoint: String,
    #[schema(schema_with = schemas::state)]
    state: State,
    /// Why it is not delivered yet, or why it died.
    #[schema(required)]
    reason: Option<String>,
    priority: u8,
    /// When it is next tried; only while pending.
    #[schema(required)]
    due_at: Option<Timestamp>,
    attempt_count: u32,
    #[schema(required)]
    last_error: Option<String>,
    /// What the setting `attempt_log` keeps, first to last.
    attempts: Vec<AttemptView>,
    content_type: String,
    #[serde(flatten)]
    payload: Payload,
    headers: BTreeMap<String, String>,
    options: Map<String, Value>,
    #[schema(required)]
    idempotency_key: Option<String>,
    #[schema(required)]
    correlation_id: Option<Uuid>,
    #[schema(required)]
    ordering_key: Option<String>,
    #[schema(required)]
    event_type: Option<String>,
    created_at: Timestamp,
    #[schema(required)]
    scheduled_at: Option<Timestamp>,
    #[schema(required)]
    expires_at: Option<Timestamp>,
    #[schema(required)]
    finished_at: Option<Timestamp>,
    /// Its dead letter, while it is dead.
    #[schema(required)]
    dlq_id: Option<i64>,
    /// The message that it was made from by a replay.
    #[schema(required)]
    replay_of: Option<i64>,
    /// Those that were made from it, the last hundred.
    replayed_as: Vec<i64>,
}

/// One attempt.
#[derive(Serialize, ToSchema)]
#[schema(as = Attempt)]
struct AttemptView {
    number: u32,
    node: i64,
    started_at: Timestamp,
    duration_seconds: f64,
    #[schema(schema_with = schemas::outcome)]
    outcome: &'static str,
    #[schema(required, schema_with = schemas::class)]
    class: Option<&'static str>,
    #[schema(required)]
    error: Option<String>,
    #[schema(required)]
    response_status: Option<u16>,
    #[serde(flatten)]
    body: ResponseBody,
}

impl MessageView {
    pub(crate) fn of(story: &Story) -> Self {
        Self {
            id: story.id.0,
            endpoint: story.endpoint.clone(),
            state: story.state,
            reason: story.reason.clone(),
            priority: story.priority,
            due_at: story.due_at,
            attempt_count: story.attempt_count,
            last_error: story.last_error.clone(),
            attempts: story.attempts.iter().map(AttemptView::of).collect(),
            content_type: story.content_type.clone(),
            payload: Payload::of(story.payload.as_ref(), &story.content_type),
            headers: story.headers.clone(),
            options: story.options.clone(),
            idempotency_key: story.idempotency_key.clone(),
            correlation_id: story.correlation_id,
            ordering_key: story.ordering_key.clone(),
            event_type: story.event_type.clone(),
            created_at: story.created_at,
            scheduled_at: story.scheduled_at,
            expires_at: story.expires_at,
            finished_at: story.finished_at,
            dlq_id: story.dlq_id,
            replay_of: story.replay_of.map(|id| id.0),
            replayed_as: story.replayed_as.iter().map(|id| id.0).collect(),
        }
    }
}

impl AttemptView {
    fn of(record: &AttemptRecord) -> Self {
        Self {
            number: record.number,
            node: record.node.0,
            started_at: record.started_at,
            duration_seconds: record.duration.as_secs_f64(),
            outcome: record.outcome.as_str(),
            class: record.class.map(|class| class.as_str()),
            error: record.error.clone(),
            response_status: record.status,
            body: ResponseBody::of(record.body.as_ref()),
        }
    }
}

/// A message in a list: everything but payload, headers, options and attempts.
#[derive(Serialize, ToSchema)]
#[schema(as = ListedMessage)]
pub(crate) struct ListedMessageView {
    id: i64,
    endpoint: String,
    #[schema(schema_with = schemas::state)]
    state: State,
    priority: u8,
    #[schema(required)]
    due_at: Option<Timestamp>,
    attempt_count: u32,
    #[schema(required)]
    last_error: Option<String>,
    content_type: String,
    #[schema(required)]
    idempotency_key: Option<String>,
    #[schema(required)]
    correlation_id: Option<Uuid>,
    #[schema(required)]
    ordering_key: Option<String>,
    #[schema(required)]
    event_type: Option<String>,
    created_at: Timestamp,
    #[schema(required)]
    scheduled_at: Option<Timestamp>,
    #[schema(required)]
    expires_at: Option<Timestamp>,
    #[schema(required)]
    finished_at: Option<Timestamp>,
    #[schema(required)]
    dlq_id: Option<i64>,
}

impl From<ListedMessage> for ListedMessageView {
    fn from(message: ListedMessage) -> Self {
        Self {
            id: message.id.0,
            endpoint: message.endpoint,
            state: message.state,
            priority: message.priority,
            due_at: message.due_at,
            attempt_count: message.attempt_count,
            last_error: message.last_error,
            content_type: message.content_type,
            idempotency_key: message.idempotency_key,
            correlation_id: message.correlation_id,
            ordering_key: message.ordering_key,
            event_type: message.event_type,
            created_at: message.created_at,
            scheduled_at: message.scheduled_at,
            expires_at: message.expires_at,
            finished_at: message.finished_at,
            dlq_id: message.dlq_id,
        }
    }
}
