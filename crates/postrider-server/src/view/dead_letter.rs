//! A dead letter as JSON: the whole of it, and its line in a list.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::MessageId;
use postrider::store::{AttemptError, DeadLetter, DlqStatus, DlqSummary};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

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
    content_type: String,
    #[schema(required)]
    ordering_key: Option<String>,
    #[schema(required)]
    event_type: Option<String>,
    created_at: Timestamp,
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
            content_type: letter.content_type.clone(),
            ordering_key: letter.ordering_key.clone(),
            event_type: letter.event_type.clone(),
            created_at: letter.created_at,
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
            payload: None,
            content_type: listed.content_type,
            headers: BTreeMap::new(),
            ordering_key: listed.ordering_key,
            event_type: listed.event_type,
            created_at: listed.created_at,
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
    #[schema(required)]
    oldest_failed: Option<Timestamp>,
}

impl From<DlqSummary> for DlqSummaryView {
    fn from(summary: DlqSummary) -> Self {
        Self {
            endpoint: summary.endpoint,
            failed: summary.failed,
            redriven: summary.redriven,
            discarded: summary.discarded,
            oldest_failed: summary.oldest_failed,
        }
    }
}
