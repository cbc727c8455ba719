//! CloudEvents 1.0 over HTTP: attributes as headers (binary), or one JSON envelope (structured).

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};
use serde_json::Value;

use super::encoding::header_value;
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::sink::Delivery;
use crate::sink::json::{embeddable, push_field, push_key};

const SPECVERSION: &str = "1.0";
const ENVELOPE: &str = "application/cloudevents+json";
/// `type` is required; neither messages nor endpoints need have one.
const TYPE_DEFAULT: &str = "postrider.message";

const CE_SPECVERSION: HeaderName = HeaderName::from_static("ce-specversion");
const CE_ID: HeaderName = HeaderName::from_static("ce-id");
const CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
const CE_TYPE: HeaderName = HeaderName::from_static("ce-type");
const CE_TIME: HeaderName = HeaderName::from_static("ce-time");

pub(super) struct CloudEvents {
    mode: Mode,
    endpoint: Arc<str>,
    /// For messages without an event type.
    default_type: String,
}

enum Mode {
    Binary,
    Structured,
}

impl CloudEvents {
    pub(super) fn of(endpoint: &Endpoint) -> Option<Self> {
        let text = |key: &str| endpoint.config.get(key).and_then(Value::as_str);
        let mode = match text("cloudevents")? {
            "structured" => Mode::Structured,
            _ => Mode::Binary,
        };
        let default_type = text("cloudevents_type").unwrap_or(TYPE_DEFAULT).to_owned();
        Some(Self { mode, endpoint: Arc::clone(&endpoint.name), default_type })
    }

    /// Adds what the mode needs to the headers and gives the body that is sent.
    pub(super) fn apply(&self, delivery: &Delivery, id: &str, headers: &mut HeaderMap) -> Bytes {
        match self.mode {
            Mode::Binary => {
                self.add_attributes(delivery, id, headers);
                delivery.message.payload.clone()
            }
            Mode::Structured => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(ENVELOPE));
                self.envelope(delivery, id)
            }
        }
    }

    fn add_attributes(&self, delivery: &Delivery, id: &str, headers: &mut HeaderMap) {
        headers.insert(CE_SPECVERSION, HeaderValue::from_static(SPECVERSION));
        headers.insert(CE_ID, header_value(id));
        headers.insert(CE_SOURCE, header_value(&self.source(delivery)));
        headers.insert(CE_TYPE, header_value(self.type_of(&delivery.message)));
        headers.insert(CE_TIME, header_value(&delivery.message.created_at.to_string()));
    }

    fn envelope(&self, delivery: &Delivery, id: &str) -> Bytes {
        let message = &*delivery.message;
        let mut out = Vec::with_capacity(message.payload.len() + 320);
        push_field(&mut out, "specversion", SPECVERSION);
        push_field(&mut out, "id", id);
        push_field(&mut out, "source", &self.source(delivery));
        push_field(&mut out, "type", self.type_of(message));
        push_field(&mut out, "time", &message.created_at.to_string());
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
