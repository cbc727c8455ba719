//! CloudEvents 1.0, for every protocol: its keys, and an event as attributes (binary) or as one JSON envelope (structured).

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use serde::Deserialize;

use super::keys::{ConfigKey, ValueKind};
use super::rules::NO_CONTROL;
use super::{Relation, Then};
use crate::message::Message;
use crate::sink::Delivery;
use crate::sink::json::{embeddable, push_field, push_key};

const SPECVERSION: &str = "1.0";
/// The content type of a structured event.
pub(super) const ENVELOPE: &str = "application/cloudevents+json";
const TYPE_BYTES_MAX: usize = 256;

pub(super) const CLOUDEVENTS: ConfigKey =
    ConfigKey::new("cloudevents", ValueKind::Choice(&["binary", "structured"]));
pub(super) const CLOUDEVENTS_TYPE: ConfigKey =
    ConfigKey::new("cloudevents_type", ValueKind::Text { bytes_max: TYPE_BYTES_MAX, rules: &[NO_CONTROL] })
        .default("\"postrider.message\"");
pub(super) const TYPE_NEEDS_CLOUDEVENTS: Relation = Relation {
    given: "cloudevents_type",
    is: None,
    then: Then::Needs("cloudevents"),
    says: "needs config.cloudevents",
};

/// How CloudEvents are sent.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum CloudEventsMode {
    Binary,
    Structured,
}

pub(super) struct CloudEvents {
    pub(super) mode: CloudEventsMode,
    endpoint: Arc<str>,
    /// For messages without an event type.
    default_type: String,
}

impl CloudEvents {
    pub(super) fn of(mode: Option<CloudEventsMode>, default_type: &str, endpoint: &Arc<str>) -> Option<Self> {
        let default_type = default_type.to_owned();
        mode.map(|mode| Self { mode, endpoint: Arc::clone(endpoint), default_type })
    }

    /// Of the binary mode. The content type of the payload is the attribute `datacontenttype`, which every protocol has
    /// a place of its own for.
    pub(super) fn attributes(&self, delivery: &Delivery, id: &str) -> [(&'static str, String); 5] {
        [
            ("specversion", SPECVERSION.to_owned()),
            ("id", id.to_owned()),
            ("source", self.source(delivery)),
            ("type", self.type_of(&delivery.message).to_owned()),
            ("time", delivery.message.created_at.to_string()),
        ]
    }

    /// Of the structured mode.
    pub(super) fn envelope(&self, delivery: &Delivery, id: &str) -> Bytes {
        let message = &*delivery.message;
        let mut out = Vec::with_capacity(message.payload.len() + 320);
        for (name, value) in self.attributes(delivery, id) {
            push_field(&mut out, name, &value);
        }
        push_field(&mut out, "datacontenttype", &message.content_type);
        match embeddable(&message.content_type, &message.payload) {
            Some(text) => {
                push_key(&mut out, "data");
                out.extend_from_slice(text.as_bytes());
            }
            None => push_field(&mut out, "data_base64", &BASE64_STANDARD.encode(&message.payload)),
        }
        out.push(b'}');
        out.into()
    }

    fn type_of<'a>(&'a self, message: &'a Message) -> &'a str {
        message.event_type.as_deref().unwrap_or(&self.default_type)
    }

    fn source(&self, delivery: &Delivery) -> String {
        format!("/postrider/{}/{}", delivery.store, self.endpoint)
    }
}
