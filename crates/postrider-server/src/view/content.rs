//! Bytes as JSON: as they are where they are JSON or text, else in base64.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

/// A payload that is JSON keeps its own bytes.
#[derive(Serialize, ToSchema)]
pub(super) struct Payload {
    /// The payload as JSON; null once it was erased, or where the archive keeps metadata only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// A payload that is not JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl Payload {
    pub(super) fn of(payload: Option<&Bytes>, content_type: &str) -> Self {
        let json = match payload {
            None => serde_json::from_str("null").ok(),
            Some(payload) if is_json(content_type) => serde_json::from_slice(payload).ok(),
            Some(_) => None,
        };
        let encoded = payload.filter(|_| json.is_none()).map(|payload| STANDARD.encode(payload));
        Self { payload: json, payload_base64: encoded }
    }
}

/// What a receiver answered, when that was kept.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResponseBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    response_body: Option<String>,
    /// Where it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_body_base64: Option<String>,
}

impl ResponseBody {
    pub(crate) fn of(body: Option<&Bytes>) -> Self {
        let text = body.and_then(|body| std::str::from_utf8(body).ok()).map(str::to_owned);
        let encoded = body.filter(|_| text.is_none()).map(|body| STANDARD.encode(body));
        Self { response_body: text, response_body_base64: encoded }
    }
}

pub(crate) fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media == "application/json" || media.ends_with("+json")
}

/// A payload on one line, as far as it can be read.
pub(crate) fn payload_text(payload: Option<&Bytes>) -> String {
    match payload.map(|payload| std::str::from_utf8(payload)) {
        None => "(not kept)".to_owned(),
        Some(Ok(text)) => text.to_owned(),
        Some(Err(_)) => format!("({} bytes that are not text)", payload.map_or(0, Bytes::len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_its_content_type() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"] {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["text/plain", "application/jsonlines", ""] {
            assert!(!is_json(no), "{no}");
        }
    }
}
