//! Events: publish one.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use postrider::message::JSON;
use postrider::{NewEvent, NewMessage};
use serde::Serialize;

use super::problem::Problem;
use super::{Api, event_types, json_response, messages};

#[derive(Serialize)]
struct Published {
    /// How many it made: one for every subscription that wants it.
    messages: u64,
}

/// The body is the event, byte for byte; options are given as for a message.
pub(super) async fn publish(
    State(api): State<Arc<Api>>,
    event_type: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let event_type = event_types::name(event_type)?;
    let message = messages::read(&api, String::new(), request).await?;
    let messages = api.operate.publish(event(event_type, message)?).await?;
    Ok(json_response(StatusCode::ACCEPTED, serde_json::to_string(&Published { messages }).expect("a number")))
}

fn event(event_type: String, message: NewMessage) -> Result<NewEvent, Problem> {
    if message.event_type.is_some() {
        return Err(Problem::invalid("event_type", "is in the path, and cannot be given as an option"));
    }
    let media = message.content_type.split(';').next().unwrap_or_default().trim();
    if !media.eq_ignore_ascii_case(JSON) {
        return Err(Problem::invalid("content-type", format!("must be {JSON}: an event is JSON")));
    }
    Ok(NewEvent {
        event_type,
        payload: message.payload,
        headers: message.headers,
        options: message.options,
        priority: message.priority,
        scheduled_at: message.scheduled_at,
        expires_at: message.expires_at,
        idempotency_key: message.idempotency_key,
        correlation_id: message.correlation_id,
        ordering_key: message.ordering_key,
    })
}
