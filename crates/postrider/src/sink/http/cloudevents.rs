//! CloudEvents 1.0 over HTTP: attributes as headers (binary), or one JSON envelope (structured).

use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue};

use super::encoding::header_value;
use crate::sink::Delivery;
use crate::sink::json::{embeddable, push_field, push_key};

const SPECVERSION: &str = "1.0";
const ENVELOPE: &str = "application/cloudevents+json";
/// `type` is required; messages need not have one.
const TYPE_DEFAULT: &str = "postrider.message";

const CE_SPECVERSION: HeaderName = HeaderName::from_static("ce-specversion");
const CE_ID: HeaderName = HeaderName::from_static("ce-id");
const CE_SOURCE: HeaderName = HeaderName::from_static("ce-source");
const CE_TYPE: HeaderName = HeaderName::from_static("ce-type");
const CE_TIME: HeaderName = HeaderName::from_static("ce-time");

pub(super) enum Mode {
    Binary { endpoint: Arc<str> },
    Structured { endpoint: Arc<str> },
}

impl Mode {
    pub(super) fn new(mode: &str, endpoint: &Arc<str>) -> Self {
        let endpoint = Arc::clone(endpoint);
        match mode {
            "structured" => Self::Structured { endpoint },
            _ => Self::Binary { endpoint },
        }
    }

    /// Adds what the mode needs to the headers and gives the body that is sent.
    pub(super) fn apply(&self, delivery: &Delivery, id: &str, headers: &mut HeaderMap) -> Bytes {
        match self {
            Self::Binary { endpoint } => {
                add_attributes(delivery, id, endpoint, headers);
                delivery.message.payload.clone()
            }
            Self::Structured { endpoint } => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(ENVELOPE));
                envelope(delivery, id, endpoint)
            }
        }
    }
}

fn add_attributes(delivery: &Delivery, id: &str, endpoint: &str, headers: &mut HeaderMap) {
    let message = &*delivery.message;
    headers.insert(CE_SPECVERSION, HeaderValue::from_static(SPECVERSION));
    headers.insert(CE_ID, header_value(id));
    headers.insert(CE_SOURCE, header_value(&source(delivery, endpoint)));
    headers.insert(CE_TYPE, header_value(message.event_type.as_deref().unwrap_or(TYPE_DEFAULT)));
    headers.insert(CE_TIME, header_value(&message.created_at.to_string()));
}

fn envelope(delivery: &Delivery, id: &str, endpoint: &str) -> Bytes {
    let message = &*delivery.message;
    let mut out = Vec::with_capacity(message.payload.len() + 320);
    push_field(&mut out, "specversion", SPECVERSION);
    push_field(&mut out, "id", id);
    push_field(&mut out, "source", &source(delivery, endpoint));
    push_field(&mut out, "type", message.event_type.as_deref().unwrap_or(TYPE_DEFAULT));
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

fn source(delivery: &Delivery, endpoint: &str) -> String {
    format!("/postrider/{}/{endpoint}", delivery.store)
}
