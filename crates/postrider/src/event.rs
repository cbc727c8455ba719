//! An event: what an application publishes, the types of events, and who wants them as messages.

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

/// What an application publishes: JSON, and the options of a send. It becomes a message for every subscription that
/// wants it, with the same bytes unless the subscription has a template.
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
    /// Counts for each subscription by itself: its message holds [`key_of_subscription`].
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

    /// What was read as a message, whatever endpoint and content type it names.
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

    /// The payload as the rules see it. `within` names the event among others: `events[3].`, or nothing.
    pub(crate) fn read(&self, within: &str) -> Result<Json, Invalid> {
        let field = format!("{within}payload");
        let json = Json::parse(&self.payload).map_err(|rule| Invalid::new(&*field, rule))?;
        if json.has_nul() { Err(Invalid::new(field, NUL)) } else { Ok(json) }
    }

    /// A message of it; payload and idempotency key are those of the event.
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

/// How an event is named among several; one alone needs no name.
pub(crate) fn within(alone: bool, at: usize) -> String {
    if alone { String::new() } else { format!("events[{at}].") }
}

/// Two subscriptions may make different messages of one event for one endpoint, so each has a key of its own.
pub fn key_of_subscription(key: &str, subscription: i64) -> String {
    format!("{key}#{subscription}")
}

/// The longest key that can come of it.
pub(crate) fn longest_key(key: &str) -> String {
    key_of_subscription(key, i64::MAX)
}

/// What a person asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewEventType {
    pub name: String,
    #[serde(default)]
    pub description: Option<String>,
    /// JSON Schema that every event of the type has to keep.
    #[serde(default)]
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
pub struct EventType {
    pub name: String,
    pub description: Option<String>,
    pub schema: Option<Json>,
    pub created_at: Timestamp,
}

/// Who wants which events, and as what.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSubscription {
    /// The name of an event type, `orders.*` for one or more segments after it, or `*` for everything.
    pub pattern: String,
    pub endpoint: String,
    /// Only events that contain this, as jsonb's `@>` has it.
    #[serde(default)]
    pub filter: Option<Json>,
    /// What is sent instead of the event: a string that is exactly `{{/json/pointer}}` becomes that value.
    #[serde(default)]
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
pub struct Subscription {
    pub id: i64,
    pub pattern: String,
    pub endpoint: String,
    pub filter: Option<Json>,
    pub template: Option<Json>,
    pub enabled: bool,
    pub created_at: Timestamp,
}

/// The subscription that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Subscribed {
    pub subscription: Subscription,
    /// The same endpoint was subscribed to the same pattern with the same filter and template before.
    pub existed: bool,
}

fn check_rule(field: &str, json: Option<&Json>) -> Result<(), Invalid> {
    let Some(json) = json else { return Ok(()) };
    json.check_levels().map_err(|rule| Invalid::new(field, rule))?;
    if json.has_nul() { Err(Invalid::new(field, NUL)) } else { Ok(()) }
}
