//! Events that applications publish, event types, and subscriptions of endpoints to them.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::error::Invalid;
use crate::json::Json;
use crate::message::NewMessage;
use crate::pubsub;

const NUL: &str = "must not contain the character U+0000";

/// What an application publishes: JSON, and the options of a send. It becomes a message for every matching subscription,
/// with the same bytes unless the subscription has a template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewEvent {
    pub event_type: String,
    pub payload: Bytes,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub options: Map<String, Value>,
    #[serde(default)]
    pub priority: u8,
    #[serde(default)]
    pub scheduled_at: Option<Timestamp>,
    #[serde(default)]
    pub expires_at: Option<Timestamp>,
    /// Applies to each subscription separately: its message has the key [`key_of_subscription`].
    #[serde(default)]
    pub idempotency_key: Option<String>,
    #[serde(default)]
    pub correlation_id: Option<Uuid>,
    #[serde(default)]
    pub ordering_key: Option<String>,
}

impl NewEvent {
    pub fn new(event_type: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            event_type: event_type.into(),
            payload: payload.into(),
            headers: BTreeMap::new(),
            options: Map::new(),
            priority: 0,
            scheduled_at: None,
            expires_at: None,
            idempotency_key: None,
            correlation_id: None,
            ordering_key: None,
        }
    }

    /// Takes the options of a message; its endpoint and content type are ignored.
    pub fn of_message(event_type: impl Into<String>, message: NewMessage) -> Self {
        Self {
            headers: message.headers,
            options: message.options,
            priority: message.priority,
            scheduled_at: message.scheduled_at,
            expires_at: message.expires_at,
            idempotency_key: message.idempotency_key,
            correlation_id: message.correlation_id,
            ordering_key: message.ordering_key,
            ..Self::new(event_type, message.payload)
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

    /// Parses the payload. `within` is the event's position in a batch for the error (`events[3].`), or empty.
    pub(crate) fn read(&self, within: &str) -> Result<Json, Invalid> {
        let field = format!("{within}payload");
        let json = Json::parse(&self.payload).map_err(|rule| Invalid::new(&*field, rule))?;
        if json.has_nul() { Err(Invalid::new(field, NUL)) } else { Ok(json) }
    }

    /// The message for one endpoint, still with the event's payload and idempotency key.
    pub(crate) fn message_to(&self, endpoint: &str) -> NewMessage {
        NewMessage {
            headers: self.headers.clone(),
            options: self.options.clone(),
            priority: self.priority,
            scheduled_at: self.scheduled_at,
            expires_at: self.expires_at,
            idempotency_key: self.idempotency_key.clone(),
            correlation_id: self.correlation_id,
            ordering_key: self.ordering_key.clone(),
            event_type: Some(self.event_type.clone()),
            ..NewMessage::new(endpoint, self.payload.clone())
        }
    }
}

/// The prefix of an event's fields in errors; none for a single event.
pub(crate) fn within(alone: bool, at: usize) -> String {
    if alone { String::new() } else { format!("events[{at}].") }
}

/// Two subscriptions of one endpoint may make different messages of one event, so their keys must differ.
pub fn key_of_subscription(key: &str, subscription: i64) -> String {
    format!("{key}#{subscription}")
}

/// The longest key that [`key_of_subscription`] can make.
pub(crate) fn longest_key(key: &str) -> String {
    key_of_subscription(key, i64::MAX)
}

/// An event type to create.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewEventType {
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    /// JSON Schema that every event of the type must match; keywords that are not enforced are refused.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub schema: Option<Json>,
}

impl NewEventType {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), description: None, schema: None }
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        pubsub::check_event_name("name", &self.name)?;
        if self.description.as_ref().is_some_and(|text| text.contains('\0')) {
            return Err(Invalid::new("description", NUL));
        }
        check_rule("schema", self.schema.as_ref())?;
        self.schema.as_ref().map_or(Ok(()), |schema| pubsub::check_schema("schema", schema))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventType {
    pub name: String,
    pub description: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub schema: Option<Json>,
    pub created_at: Timestamp,
}

/// A subscription to create: which events an endpoint gets, and in which form.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewSubscription {
    /// The name of an event type, `orders.*` for one or more segments after it, or `*` for everything.
    pub pattern: String,
    pub endpoint: String,
    /// Only events that contain this, in the sense of jsonb's `@>`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Value>))]
    pub filter: Option<Json>,
    /// Sent instead of the event. A string that is exactly `{{/json/pointer}}` is replaced by that value of the event.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Value>))]
    pub template: Option<Json>,
}

impl NewSubscription {
    pub fn new(pattern: impl Into<String>, endpoint: impl Into<String>) -> Self {
        Self { pattern: pattern.into(), endpoint: endpoint.into(), filter: None, template: None }
    }

    #[must_use]
    pub fn filter(mut self, filter: impl Into<Json>) -> Self {
        self.filter = Some(filter.into());
        self
    }

    #[must_use]
    pub fn template(mut self, template: impl Into<Json>) -> Self {
        self.template = Some(template.into());
        self
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        pubsub::check_pattern("pattern", &self.pattern)?;
        check_rule("filter", self.filter.as_ref())?;
        check_rule("template", self.template.as_ref())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Subscription {
    pub id: i64,
    pub pattern: String,
    pub endpoint: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Value>))]
    pub filter: Option<Json>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Value>))]
    pub template: Option<Json>,
    pub enabled: bool,
    pub created_at: Timestamp,
}

/// The result of subscribing.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscribed {
    pub subscription: Subscription,
    /// The same subscription existed before.
    pub existed: bool,
}

fn check_rule(field: &str, json: Option<&Json>) -> Result<(), Invalid> {
    let Some(json) = json else { return Ok(()) };
    json.check_levels().map_err(|rule| Invalid::new(field, rule))?;
    if json.has_nul() { Err(Invalid::new(field, NUL)) } else { Ok(()) }
}
