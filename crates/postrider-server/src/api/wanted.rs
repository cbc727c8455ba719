//! What bodies hold, for the API's description. They are read field by field, so that what is wrong is named.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::view::schemas;

/// An endpoint to create.
#[derive(ToSchema)]
#[schema(as = NewEndpoint)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct WantedEndpoint {
    #[schema(min_length = 1, max_length = 128, pattern = r"^(\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9._-]*$")]
    name: String,
    #[schema(schema_with = schemas::protocol)]
    protocol: String,
    /// What the protocol needs; unknown keys are refused with the list of known ones.
    config: Map<String, Value>,
    retry_policy: Option<Map<String, Value>>,
    options: Option<Map<String, Value>>,
}

/// What of an endpoint is to change.
#[derive(ToSchema)]
#[schema(as = EndpointChange)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct EndpointChanges {
    config: Option<Map<String, Value>>,
    /// Single keys of the config: the others stay, secrets too, and null takes one out.
    config_changes: Option<Map<String, Value>>,
    retry_policy: Option<Map<String, Value>>,
    options: Option<Map<String, Value>>,
}

/// A message in one document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct Envelope {
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

/// What may be said about a message.
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

/// An event type to create.
#[derive(ToSchema)]
#[schema(as = NewEventType)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct WantedEventType {
    name: String,
    description: Option<String>,
    /// JSON Schema that every event of the type has to keep; keywords that are not enforced are refused.
    schema: Option<Map<String, Value>>,
}

/// Who wants which events.
#[derive(ToSchema)]
#[schema(as = NewSubscription)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct WantedSubscription {
    /// The name of an event type, `orders.*` for one or more segments after it, or `*` for everything.
    pattern: String,
    endpoint: String,
    /// Only events that contain this.
    filter: Option<Value>,
    /// What is sent instead of the event: a string that is exactly `{{/json/pointer}}` becomes that value.
    template: Option<Value>,
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
    #[schema(schema_with = schemas::replay_status_or_null)]
    status: Option<String>,
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
    #[schema(schema_with = schemas::class)]
    class: Option<String>,
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

/// When a message is due.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct Reschedule {
    at: Timestamp,
}

/// Why everything is paused.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct Pause {
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

/// Which ordering key goes on.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct KeyRelease {
    key: String,
    /// Without it the key is released everywhere.
    endpoint: Option<String>,
}

/// A token to create.
#[derive(ToSchema)]
#[schema(as = NewToken)]
#[expect(dead_code, reason = "describes a body")]
pub(super) struct WantedToken {
    #[schema(min_length = 1, max_length = 128)]
    name: String,
    #[schema(schema_with = schemas::scope)]
    scope: String,
}
