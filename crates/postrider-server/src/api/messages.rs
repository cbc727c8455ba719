//! Messages: send one, show its story.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use postrider::{Invalid, MessageId, NewMessage, StoreError};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::body::{self, Limit};
use super::endpoints::endpoint_name;
use super::fields::Fields;
use super::problem::Problem;
use super::trace::SendSpan;
use super::{Api, fields, json_response, send_options};
use crate::view;

const ENVELOPE: &str = "application/vnd.postrider+json";

/// Room around the payload of an envelope: options, headers, names.
const ENVELOPE_BYTES_EXTRA: u64 = 2 << 20;

pub(super) async fn send(
    State(api): State<Arc<Api>>,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let endpoint = endpoint_name(name)?;
    let max_payload_bytes = api.limits.max_payload_bytes(&*api.operate).await?;
    let (parts, body) = request.into_parts();
    let content_type = content_type(&parts.headers)?;
    let is_envelope = content_type.is_some_and(is_envelope);
    let extra = if is_envelope { ENVELOPE_BYTES_EXTRA } else { 0 };
    let limit = Limit { bytes: max_payload_bytes + extra, setting: "max_payload_bytes" };
    let body = body::read(&parts.headers, body, limit).await?;
    let mut message = if is_envelope {
        from_envelope(endpoint, &parts.headers, &body)?
    } else {
        from_body(endpoint, &parts.headers, content_type, body)?
    };
    let span = SendSpan::begin(api.tracer.as_ref(), &parts.headers, &mut message);
    let sent = api.operate.send(message).await;
    span.end(&sent);
    let sent = sent?;
    let answer = format!(r#"{{"id":{},"duplicate":{}}}"#, sent.id, sent.duplicate);
    Ok(json_response(StatusCode::ACCEPTED, answer))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let text = id.map(|Path(text)| text).unwrap_or_default();
    let id = text.parse().map(MessageId).map_err(|_| StoreError::Unknown { what: "message", name: text })?;
    let story = api.operate.story(id).await?;
    Ok(json_response(StatusCode::OK, view::story(&story)))
}

/// The body is the payload, byte for byte; options are in headers.
fn from_body(
    endpoint: String,
    headers: &HeaderMap,
    content_type: Option<&str>,
    body: Bytes,
) -> Result<NewMessage, Problem> {
    let mut message = NewMessage::new(endpoint, body);
    if let Some(content_type) = content_type {
        message.content_type = content_type.to_owned();
    }
    send_options::from_headers(&mut message, headers)?;
    Ok(message)
}

/// Payload and options in one JSON document; the payload's own bytes are kept.
fn from_envelope(endpoint: String, headers: &HeaderMap, body: &Bytes) -> Result<NewMessage, Problem> {
    if let Some(name) = headers.keys().find(|name| send_options::is_option(name)) {
        return Err(Problem::invalid(
            name.as_str(),
            format!("cannot be given beside {ENVELOPE}: put it into the body's options"),
        ));
    }
    let Fields(envelope): Fields<&RawValue> =
        serde_json::from_slice(body).map_err(|error| Problem::bad_json(&error))?;
    let (payload, options) = payload_and_options(&envelope).map_err(StoreError::from)?;
    let mut message = NewMessage::new(endpoint, body.slice_ref(payload.get().as_bytes()));
    send_options::from_json(&mut message, options)?;
    Ok(message)
}

fn payload_and_options<'a>(
    envelope: &BTreeMap<String, &'a RawValue>,
) -> Result<(&'a RawValue, Map<String, Value>), Invalid> {
    fields::known(envelope.keys(), &["payload", "options"])?;
    let payload = fields::required("payload", envelope.get("payload").copied())?;
    let options = match envelope.get("options").map_or("null", |options| options.get()) {
        "null" => Map::new(),
        text => serde_json::from_str(text).map_err(|_| Invalid::new("options", "must be an object"))?,
    };
    Ok((payload, options))
}

fn content_type(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    headers
        .get(CONTENT_TYPE)
        .map(|value| value.to_str())
        .transpose()
        .map_err(|_| Problem::invalid("content-type", "must be plain text"))
}

fn is_envelope(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    media.eq_ignore_ascii_case(ENVELOPE)
}
