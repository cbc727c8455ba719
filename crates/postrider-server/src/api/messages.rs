//! Messages: send one, show its story, cancel, reschedule, erase.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use postrider::{MessageId, NewMessage, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::{self, Clash, Common, Full, Named};
use super::authority::Viewer;
use super::body::{self, Held, Limit, Share};
use super::endpoints::endpoint_name;
use super::fields::Fields;
use super::problem::Problem;
use super::trace::SendSpan;
use super::wanted::{Envelope, Reschedule};
use super::{Api, aside, fields, json_response, no_content, send_options, unknown_route, wrong_method};
use crate::view::{self, MessageView};
use crate::{envelope, send_values};

const ENVELOPE: &str = "application/vnd.postrider+json";

/// Room around the payload of an envelope: options, headers, names.
const ENVELOPE_BYTES_EXTRA: u64 = 2 << 20;

/// Send a message. The body is the payload, delivered byte for byte, and options are headers; or both are in one
/// document. 202 means that the message is on disk.
#[utoipa::path(post, path = "/v1/endpoints/{name}/messages", operation_id = "send_message", tag = "messages",
    params(
        ("name" = String, Path),
        ("postrider-priority" = Option<u8>, Header, minimum = 0, maximum = 10),
        ("postrider-scheduled-at" = Option<Timestamp>, Header, description = "No attempt before"),
        ("postrider-expires-at" = Option<Timestamp>, Header, description = "No attempt after"),
        ("idempotency-key" = Option<String>, Header, description = "The same key and payload give the message that is queued already"),
        ("postrider-idempotency-key" = Option<String>, Header, description = "The same as `idempotency-key`"),
        ("postrider-correlation-id" = Option<Uuid>, Header),
        ("postrider-ordering-key" = Option<String>, Header, description = "Messages of one key go one after the other"),
        ("postrider-event-type" = Option<String>, Header),
        ("postrider-options" = Option<String>, Header, description = "Overrides for this message, as JSON"),
    ),
    request_body(content((Value = "application/json"), (Envelope = "application/vnd.postrider+json"), (String = "text/plain"))),
    responses((status = 202, description = "It is queued, or was already", body = Sent), Common, Named, answers::Body, Clash, Full))]
pub(super) async fn send(
    State(api): State<Arc<Api>>,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (mut message, headers, _share) = read(&api, endpoint_name(name)?, request).await?;
    let span = SendSpan::begin(api.tracer.as_ref(), &headers, &mut message);
    let operate = Arc::clone(&api.operate);
    let sent = aside::run(message.payload.len(), async move { operate.send(message).await }).await;
    span.end(&sent);
    let sent = sent?;
    let answer = format!(r#"{{"id":{},"duplicate":{}}}"#, sent.id, sent.duplicate);
    Ok(json_response(StatusCode::ACCEPTED, answer))
}

/// A request's payload and options, as a message to this endpoint; its headers; and the body's share of the memory.
pub(super) async fn read(
    api: &Api,
    endpoint: String,
    request: Request<Body>,
) -> Result<(NewMessage, HeaderMap, Share), Problem> {
    let max_payload_bytes = api.limits.max_payload_bytes(&*api.operate).await?;
    let (parts, body) = request.into_parts();
    let content_type = content_type(&parts.headers)?;
    let is_envelope = content_type.is_some_and(is_envelope);
    // In base64 a payload is longer by a third.
    let room = if is_envelope { max_payload_bytes / 3 + ENVELOPE_BYTES_EXTRA } else { 0 };
    let limit = Limit { bytes: max_payload_bytes, setting: "max_payload_bytes" };
    let Held { bytes: body, share } = body::read_with_room(&parts.headers, body, limit, room).await?;
    let message = if is_envelope {
        send_options::refuse_headers(&parts.headers, "the body's options")?;
        aside::run(body.len(), async move { envelope::message(endpoint, &body) }).await?
    } else {
        from_body(endpoint, &parts.headers, content_type, body)?
    };
    Ok((message, parts.headers, share))
}

/// What became of a send.
#[derive(Serialize, ToSchema)]
pub(super) struct Sent {
    pub(super) id: i64,
    /// The idempotency key was taken by a message with the same payload: this one.
    pub(super) duplicate: bool,
}

/// A message's whole story, wherever it is now.
#[utoipa::path(get, path = "/v1/messages/{id}", operation_id = "show_message", tag = "messages",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The message", body = MessageView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let story = api.operate.story(message_id(&path_text(id))?).await?;
    Ok(json_response(StatusCode::OK, view::story(&viewer.story(story))))
}

/// Cancel a pending message.
#[utoipa::path(delete, path = "/v1/messages/{id}", operation_id = "cancel_message", tag = "messages",
    params(("id" = i64, Path)),
    responses((status = 204, description = "It is cancelled"), Common, Named, Clash))]
pub(super) async fn cancel(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    api.operate.cancel(message_id(&path_text(id))?).await?;
    Ok(no_content())
}

/// `POST /v1/messages/{id}:…`: the router knows whole segments only.
pub(super) async fn act(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let text = path_text(id);
    match text.split_once(':') {
        Some((id, "reschedule")) => reschedule(&api, message_id(id)?, request).await,
        Some((id, "erase")) => erase(&api, message_id(id)?).await,
        Some(_) => Err(unknown_route(request.uri().clone()).await),
        None => Err(wrong_method(request.method().clone(), request.uri().clone()).await),
    }
}

/// Set when a pending message is tried next.
#[utoipa::path(post, path = "/v1/messages/{id}:reschedule", operation_id = "reschedule_message", tag = "messages",
    params(("id" = i64, Path)), request_body = Reschedule,
    responses((status = 204, description = "It is due then"), Common, Named, answers::Body, Clash))]
async fn reschedule(api: &Api, id: MessageId, request: Request<Body>) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let mut body = Fields::read(&body::read(&parts.headers, body, body::SMALL_MAX).await?)?;
    let at = fields::known(body.keys(), &["at"])
        .and_then(|()| fields::string("at", fields::required("at", body.remove("at"))?))
        .and_then(|at| send_values::timestamp("at", &at))
        .map_err(StoreError::from)?;
    api.operate.reschedule(id, at).await?;
    Ok(no_content())
}

/// Remove a message's payload and headers wherever it is; the record stays. A pending one is cancelled as well.
#[utoipa::path(post, path = "/v1/messages/{id}:erase", operation_id = "erase_message", tag = "messages",
    params(("id" = i64, Path)),
    responses((status = 204, description = "Its content is gone"), Common, Named, Clash))]
async fn erase(api: &Api, id: MessageId) -> Result<Response<Body>, Problem> {
    api.operate.erase(id).await?;
    Ok(no_content())
}

/// What is not text names nothing.
pub(super) fn path_text(path: Result<Path<String>, PathRejection>) -> String {
    path.map(|Path(text)| text).unwrap_or_default()
}

fn message_id(text: &str) -> Result<MessageId, StoreError> {
    let unknown = |_| StoreError::Unknown { what: "message", name: text.to_owned() };
    text.parse().map(MessageId).map_err(unknown)
}

/// The body is the payload, byte for byte; options are in headers.
pub(super) fn from_body(
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

pub(super) fn content_type(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
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
