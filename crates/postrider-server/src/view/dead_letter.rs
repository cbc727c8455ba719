//! A dead letter as JSON: the whole of it, and its line in a list.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::MessageId;
use postrider::store::{AttemptError, DeadLetter, DlqStatus, DlqSummary};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{content, schemas};

/// A dead letter in a list.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = ListedDeadLetter)]
pub(crate) struct ListedDeadLetterView {
    id: i64,
    /// The message that died.
    message_id: i64,
    endpoint: String,
    #[schema(schema_with = schemas::dlq_status)]
    status: DlqStatus,
    #[schema(schema_with = schemas::dead_reason)]
    reason: String,
    died_at: Timestamp,
    attempt_count: u32,
    #[schema(required)]
    last_error: Option<String>,
    priority: u8,
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
}

/// A dead letter with what it held.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(crate) struct DeadLetterView {
    #[serde(flatten)]
    listed: ListedDeadLetterView,
    /// The payload as JSON, where it is; null once it was erased, or where the archive keeps metadata only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload's bytes, where JSON does not say them all: it is not JSON, has blanks around it, or is `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    headers: BTreeMap<String, String>,
    /// What it overrides of its endpoint.
    #[schema(value_type = Object)]
    options: Map<String, Value>,
    /// Up to the last 100, oldest first.
    errors: Vec<AttemptErrorView>,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = AttemptError)]
struct AttemptErrorView {
    attempt: u32,
    at: Timestamp,
    error: String,
}

impl ListedDeadLetterView {
    pub(crate) fn of(letter: &DeadLetter) -> Self {
        Self {
            id: letter.id,
            message_id: letter.message.0,
            endpoint: letter.endpoint.clone(),
            status: letter.status,
            reason: letter.reason.clone(),
            died_at: letter.died_at,
            attempt_count: letter.attempt_count,
            last_error: letter.last_error.clone(),
            priority: letter.priority,
            content_type: letter.content_type.clone(),
            idempotency_key: letter.idempotency_key.clone(),
            correlation_id: letter.correlation_id,
            ordering_key: letter.ordering_key.clone(),
            event_type: letter.event_type.clone(),
            created_at: letter.created_at,
            scheduled_at: letter.scheduled_at,
            expires_at: letter.expires_at,
        }
    }
}

impl DeadLetterView {
    pub(crate) fn of(letter: &DeadLetter) -> Self {
        let error = |error: &AttemptError| AttemptErrorView {
            attempt: error.attempt,
            at: error.at,
            error: error.error.clone(),
        };
        let (payload, payload_base64) = content::shown(letter.payload.as_ref(), &letter.content_type);
        Self {
            listed: ListedDeadLetterView::of(letter),
            payload,
            payload_base64,
            headers: letter.headers.clone(),
            options: letter.options.clone(),
            errors: letter.errors.iter().map(error).collect(),
        }
    }
}

/// As much as a list tells of it.
impl From<ListedDeadLetterView> for DeadLetter {
    fn from(listed: ListedDeadLetterView) -> Self {
        Self {
            id: listed.id,
            message: MessageId(listed.message_id),
            endpoint: listed.endpoint,
            status: listed.status,
            reason: listed.reason,
            died_at: listed.died_at,
            attempt_count: listed.attempt_count,
            last_error: listed.last_error,
            errors: Vec::new(),
            priority: listed.priority,
            payload: None,
            content_type: listed.content_type,
            headers: BTreeMap::new(),
            options: Map::new(),
            idempotency_key: listed.idempotency_key,
            correlation_id: listed.correlation_id,
            ordering_key: listed.ordering_key,
            event_type: listed.event_type,
            created_at: listed.created_at,
            scheduled_at: listed.scheduled_at,
            expires_at: listed.expires_at,
        }
    }
}

impl From<DeadLetterView> for DeadLetter {
    fn from(view: DeadLetterView) -> Self {
        let error = |error: AttemptErrorView| AttemptError {
            attempt: error.attempt,
            at: error.at,
            error: error.error,
        };
        Self {
            errors: view.errors.into_iter().map(error).collect(),
            payload: content::read(view.payload, view.payload_base64.as_deref()),
            headers: view.headers,
            options: view.options,
            ..view.listed.into()
        }
    }
}

/// How many dead letters an endpoint has.
#[derive(Serialize, ToSchema)]
#[schema(as = DlqSummary)]
pub(crate) struct DlqSummaryView {
    endpoint: String,
    failed: u64,
    redriven: u64,
    discarded: u64,
    /// When the first of the failed ones died.
    #[schema(required)]
    oldest_failed: Option<Timestamp>,
    /// When the last of them died.
    #[schema(required)]
    newest_failed: Option<Timestamp>,
    /// How many of the failed ones died for each reason.
    reasons: BTreeMap<String, u64>,
}

impl From<DlqSummary> for DlqSummaryView {
    fn from(summary: DlqSummary) -> Self {
        Self {
            endpoint: summary.endpoint,
            failed: summary.failed,
            redriven: summary.redriven,
            discarded: summary.discarded,
            oldest_failed: summary.oldest_failed,
            newest_failed: summary.newest_failed,
            reasons: summary.reasons,
        }
    }
}
