//! Messages: send one, show its story, cancel, reschedule, erase.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest, State};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, NoContent};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap};
use jiff::Timestamp;
use postrider::{MessageId, NewMessage, Sent};
use utoipa::ToSchema;

use super::answers::{Clash, Common, Full, Named, WithBody};
use super::authority::Viewer;
use super::body::{self, BodyLimit, HeldBody, MemoryShare};
use super::extract::{Action, EndpointName, FromBody, JsonBody, MessageNumber, Operator};
use super::problem::Problem;
use super::trace::SendSpan;
use super::wanted::MessageDocument;
use super::{Api, Reply, aside, json_response, send_options};
use crate::fields::{self, BadDocument, JsonFields};
use crate::view::MessageView;
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
    request_body(content((Value = "application/json"), (MessageDocument = "application/vnd.postrider+json"), (String = "text/plain"))),
    responses((status = 202, description = "It is queued, or was already", body = Sent), Common, Named, WithBody, Clash, Full))]
pub(super) async fn send(
    State(api): State<Arc<Api>>,
    EndpointName(name): EndpointName,
    request: Request<Body>,
) -> Reply {
    let (mut message, headers, _share) = read(&api, name, request).await?;
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
) -> Result<(NewMessage, HeaderMap, MemoryShare), Problem> {
    let max_payload_bytes = api.limits.max_payload_bytes(&*api.operate).await?;
    let (parts, body) = request.into_parts();
    let content_type = content_type(&parts.headers)?;
    let is_envelope = content_type.is_some_and(is_envelope);
    // In base64 a payload is longer by a third.
    let room = if is_envelope { max_payload_bytes / 3 + ENVELOPE_BYTES_EXTRA } else { 0 };
    let limit = BodyLimit { bytes: max_payload_bytes, setting: "max_payload_bytes" };
    let HeldBody { bytes: body, share } = body::read_with_room(&parts.headers, body, limit, room).await?;
    let message = if is_envelope {
        send_options::refuse_headers(&parts.headers, "the body's options")?;
        aside::run(body.len(), async move { envelope::message(endpoint, &body) }).await?
    } else {
        from_body(endpoint, &parts.headers, content_type, body)?
    };
    Ok((message, parts.headers, share))
}

/// A message's whole story, wherever it is now.
#[utoipa::path(get, path = "/v1/messages/{id}", operation_id = "show_message", tag = "messages",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The message", body = MessageView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    operate: Operator,
    viewer: Viewer,
    MessageNumber(id): MessageNumber,
) -> Result<Json<MessageView>, Problem> {
    let story = operate.story(MessageId(id)).await?;
    let connection = match story.waits_for_receiver {
        // It may have been dropped meanwhile.
        true => {
            operate.endpoint(&story.endpoint).await.ok().and_then(|endpoint| api.node.connection(endpoint.id))
        }
        false => None,
    };
    Ok(Json(viewer.story(story).with_connection(connection)))
}

/// Cancel a pending message.
#[utoipa::path(delete, path = "/v1/messages/{id}", operation_id = "cancel_message", tag = "messages",
    params(("id" = i64, Path)),
    responses((status = 204, description = "It is cancelled"), Common, Named, Clash))]
pub(super) async fn cancel(
    operate: Operator,
    MessageNumber(id): MessageNumber,
) -> Result<NoContent, Problem> {
    operate.cancel(MessageId(id)).await?;
    Ok(NoContent)
}

/// `POST /v1/messages/{id}:…`
pub(super) async fn act(operate: Operator, action: Action, request: Request<Body>) -> Reply {
    let done = match action.name() {
        "reschedule" => reschedule(&operate, (&action).try_into()?, request).await?,
        "erase" => erase(&operate, (&action).try_into()?).await?,
        _ => return Err(action.unknown().await),
    };
    Ok(done.into_response())
}

/// When a message is due.
#[derive(ToSchema)]
pub(super) struct Reschedule {
    at: Timestamp,
}

impl FromBody for Reschedule {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let mut body = JsonFields::read(body)?;
        fields::known(body.keys(), &["at"])?;
        Ok(Self { at: send_values::timestamp("at", &fields::text(&mut body, "at")?)? })
    }
}

/// Set when a pending message is tried next.
#[utoipa::path(post, path = "/v1/messages/{id}:reschedule", operation_id = "reschedule_message", tag = "messages",
    params(("id" = i64, Path)), request_body = Reschedule,
    responses((status = 204, description = "It is due then"), Common, Named, WithBody, Clash))]
async fn reschedule(
    operate: &Operator,
    MessageNumber(id): MessageNumber,
    request: Request<Body>,
) -> Result<NoContent, Problem> {
    let JsonBody(Reschedule { at }) = JsonBody::from_request(request, &()).await?;
    operate.reschedule(MessageId(id), at).await?;
    Ok(NoContent)
}

/// Remove a message's payload and headers wherever it is; the record stays. A pending one is cancelled as well.
#[utoipa::path(post, path = "/v1/messages/{id}:erase", operation_id = "erase_message", tag = "messages",
    params(("id" = i64, Path)),
    responses((status = 204, description = "Its content is gone"), Common, Named, Clash))]
async fn erase(operate: &Operator, MessageNumber(id): MessageNumber) -> Result<NoContent, Problem> {
    operate.erase(MessageId(id)).await?;
    Ok(NoContent)
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
