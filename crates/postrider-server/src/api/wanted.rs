//! Bodies whose description differs from the type that they are read into.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::store::ReplayStatus;
use postrider::verdict::Class;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::view::schemas;

/// A message in one document.
#[derive(ToSchema)]
#[schema(as = Envelope)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct MessageDocument {
    /// Delivered byte for byte as it stands here.
    payload: Option<Value>,
    /// Instead of `payload`: any bytes.
    payload_base64: Option<String>,
    options: Option<SendOptions>,
}

/// A line of a batch.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct BatchLine {
    endpoint: String,
    payload: Option<Value>,
    /// Instead of `payload`: any bytes.
    payload_base64: Option<String>,
    options: Option<SendOptions>,
}

/// The options of a message.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a body")]
struct SendOptions {
    /// `application/json` unless said.
    content_type: Option<String>,
    #[schema(minimum = 0, maximum = 10)]
    priority: Option<u8>,
    scheduled_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    idempotency_key: Option<String>,
    correlation_id: Option<Uuid>,
    ordering_key: Option<String>,
    event_type: Option<String>,
    headers: Option<BTreeMap<String, String>>,
    /// `max_attempts`, and what the endpoint's protocol allows.
    options: Option<Map<String, Value>>,
}

/// Finished messages to send again: those that all of this is true of, or one.
#[derive(ToSchema)]
#[schema(as = NewReplay)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct WantedReplay {
    endpoint: Option<String>,
    event_type: Option<String>,
    ordering_key: Option<String>,
    /// `failed` reads the dead letters; without it everything in the archive.
    status: Option<ReplayStatus>,
    /// Created from then on.
    from: Option<Timestamp>,
    /// Created before.
    until: Option<Timestamp>,
    /// The endpoint that all of them go to; each to its own unless said.
    to: Option<String>,
    rate_limit: Option<Map<String, Value>>,
    /// Only say what it would do.
    dry_run: Option<bool>,
    /// One message; then only `to` may be given beside it.
    message: Option<i64>,
}

/// Which dead letters: those that all of this is true of, or all.
#[derive(ToSchema)]
#[schema(as = DeadLetterSelection)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct SweptLetters {
    endpoint: Option<String>,
    #[schema(schema_with = schemas::dead_reason_or_null)]
    reason: Option<String>,
    class: Option<Class>,
    /// Its last error has this text in it.
    error: Option<String>,
    event_type: Option<String>,
    ordering_key: Option<String>,
    correlation_id: Option<Uuid>,
    message_id: Option<i64>,
    /// Died from then on.
    from: Option<Timestamp>,
    /// Died before.
    until: Option<Timestamp>,
    all: Option<bool>,
    /// The `next` of the request before.
    cursor: Option<String>,
}
