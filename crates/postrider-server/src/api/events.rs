//! Events: publish one.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use postrider::message::JSON;
use postrider::{NewEvent, NewMessage};

use super::answers::{Clash, Common, Full, Named, WithBody};
use super::extract::EventTypeName;
use super::problem::Problem;
use super::trace::SendSpan;
use super::wanted::MessageDocument;
use super::{Api, Reply, aside, messages, to_response};
use crate::view::Published;

/// Publish an event: a message to every subscribed endpoint, all in one transaction. The body is the event; options are given as
/// for a message, as headers or in one document. No subscriber is not an error.
#[utoipa::path(post, path = "/v1/events/{type}", operation_id = "publish_event", tag = "events",
    params(
        ("type" = String, Path),
        ("postrider-priority" = Option<u8>, Header, minimum = 0, maximum = 10),
        ("postrider-scheduled-at" = Option<Timestamp>, Header, description = "No attempt before"),
        ("postrider-expires-at" = Option<Timestamp>, Header, description = "No attempt after"),
        ("idempotency-key" = Option<String>, Header, description = "Counts for each subscription by itself"),
        ("postrider-idempotency-key" = Option<String>, Header, description = "The same as `idempotency-key`"),
        ("postrider-correlation-id" = Option<Uuid>, Header),
        ("postrider-ordering-key" = Option<String>, Header, description = "Messages of one key go one after the other"),
        ("postrider-options" = Option<String>, Header, description = "Overrides for these messages, as JSON"),
    ),
    request_body(content((Value = "application/json"), (MessageDocument = "application/vnd.postrider+json"))),
    responses((status = 202, description = "How many messages it made", body = Published), Common, Named, WithBody, Clash, Full))]
pub(super) async fn publish(
    State(api): State<Arc<Api>>,
    EventTypeName(event_type): EventTypeName,
    request: Request<Body>,
) -> Reply {
    let (mut message, headers, _share) = messages::read(&api, String::new(), request).await?;
    let span = SendSpan::of_event(api.tracer.as_ref(), &event_type, &headers, &mut message);
    let event = event(event_type, message)?;
    let operate = Arc::clone(&api.operate);
    let published = aside::run(event.payload.len(), async move { operate.publish(event).await }).await;
    span.end_event(&published);
    let messages = published?;
    Ok(to_response(StatusCode::ACCEPTED, &Published { messages }))
}

fn event(event_type: String, message: NewMessage) -> Result<NewEvent, Problem> {
    if message.event_type.is_some() {
        return Err(Problem::invalid("event_type", "is in the path, and cannot be given as an option"));
    }
    let media = message.content_type.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case(JSON) {
        return Err(Problem::invalid("content-type", format!("must be {JSON}: an event is JSON")));
    }
    Ok(NewEvent::of_message(event_type, message))
}
