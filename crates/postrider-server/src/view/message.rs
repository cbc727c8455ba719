//! A message as JSON: its whole story, and its line in a list.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use postrider::message::NodeId;
use postrider::store::{AttemptOutcome, AttemptRecord, ListedMessage, Story};
use postrider::verdict::Class;
use postrider::{MessageId, State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::content::ResponseBody;
use super::{content, schemas};

/// A message's whole story.
#[derive(Serialize, Deserialize, ToSchema)]
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
    /// Of the last attempt that failed; it stays when a later one delivers the message.
    #[schema(required)]
    last_error: Option<String>,
    /// What the setting `attempt_log` keeps, first to last.
    attempts: Vec<AttemptView>,
    content_type: String,
    /// The payload as JSON, where it is; null once it was erased, or where the archive keeps metadata only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload's bytes, where JSON does not say them all: it is not JSON, has blanks around it, or is `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
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
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Attempt)]
struct AttemptView {
    number: u32,
    node: i64,
    started_at: Timestamp,
    duration_seconds: f64,
    #[schema(schema_with = schemas::outcome)]
    outcome: AttemptOutcome,
    #[schema(required, schema_with = schemas::class)]
    class: Option<Class>,
    #[schema(required)]
    error: Option<String>,
    #[schema(required)]
    response_status: Option<u16>,
    #[serde(flatten)]
    body: ResponseBody,
}

impl MessageView {
    pub(crate) fn of(story: &Story) -> Self {
        let (payload, payload_base64) = content::shown(story.payload.as_ref(), &story.content_type);
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
            payload,
            payload_base64,
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
            outcome: record.outcome,
            class: record.class,
            error: record.error.clone(),
            response_status: record.status,
            body: ResponseBody::of(record.body.as_ref()),
        }
    }
}

impl From<MessageView> for Story {
    fn from(view: MessageView) -> Self {
        Self {
            id: MessageId(view.id),
            endpoint: view.endpoint,
            state: view.state,
            priority: view.priority,
            payload: content::read(view.payload, view.payload_base64.as_deref()),
            content_type: view.content_type,
            headers: view.headers,
            options: view.options,
            idempotency_key: view.idempotency_key,
            correlation_id: view.correlation_id,
            ordering_key: view.ordering_key,
            event_type: view.event_type,
            created_at: view.created_at,
            scheduled_at: view.scheduled_at,
            expires_at: view.expires_at,
            finished_at: view.finished_at,
            due_at: view.due_at,
            attempt_count: view.attempt_count,
            last_error: view.last_error,
            reason: view.reason,
            attempts: view.attempts.into_iter().map(AttemptRecord::from).collect(),
            dlq_id: view.dlq_id,
            replay_of: view.replay_of.map(MessageId),
            replayed_as: view.replayed_as.into_iter().map(MessageId).collect(),
        }
    }
}

impl From<AttemptView> for AttemptRecord {
    fn from(view: AttemptView) -> Self {
        Self {
            number: view.number,
            node: NodeId(view.node),
            started_at: view.started_at,
            duration: Duration::try_from_secs_f64(view.duration_seconds).unwrap_or_default(),
            outcome: view.outcome,
            class: view.class,
            error: view.error,
            status: view.response_status,
            body: view.body.bytes(),
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
    /// Of the last attempt that failed; it stays when a later one delivers the message.
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
