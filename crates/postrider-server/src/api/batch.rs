//! Many messages at once, one JSON document a line: all or nothing.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use postrider::{Endpoint, NewMessage, Operate, StoreError};
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::answers::{self, Clash, Common, Full, Named};
use super::body::Limit;
use super::fields::Fields;
use super::messages::{Sent, payload_and_options};
use super::problem::Problem;
use super::wanted::BatchLine;
use super::{Api, body, fields, send_options, to_response, trace};

const BODY_MAX: Limit = Limit { bytes: 64 << 20, setting: "the API" };

/// What became of a batch, line by line.
#[derive(Serialize, ToSchema)]
struct SentBatch {
    items: Vec<Sent>,
}

/// Send many messages, all or none: one JSON document a line (NDJSON). A refusal names the line.
#[utoipa::path(post, path = "/v1/messages:batch", operation_id = "send_batch", tag = "messages",
    request_body(content = BatchLine, content_type = "application/x-ndjson"),
    responses((status = 202, description = "They are queued, or were already; in the order of the lines", body = SentBatch),
        Common, Named, answers::Body, Clash, Full))]
pub(super) async fn send(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    send_options::refuse_headers(&parts.headers, "the options of its line")?;
    let body = body::read(&parts.headers, body, BODY_MAX).await?;
    let (numbers, mut messages) = lines(&body)?;
    messages.iter_mut().for_each(|message| trace::carry_on(&parts.headers, message));
    let sent = match api.operate.send_batch(messages.clone()).await {
        Ok(sent) => sent,
        Err(error) => {
            let guilty = guilty(&*api.operate, &messages, &error).await;
            let problem = Problem::from(error);
            return Err(match guilty {
                Some(at) => problem.line(numbers[at]),
                None => problem,
            });
        }
    };
    let items = sent.iter().map(|sent| Sent { id: sent.id.0, duplicate: sent.duplicate }).collect();
    Ok(to_response(StatusCode::ACCEPTED, &SentBatch { items }))
}

/// Messages with the numbers of their lines; empty lines are none.
fn lines(body: &Bytes) -> Result<(Vec<usize>, Vec<NewMessage>), Problem> {
    let mut found = (Vec::new(), Vec::new());
    for (line, number) in body.split(|byte| *byte == b'\n').zip(1..) {
        if !line.trim_ascii().is_empty() {
            found.0.push(number);
            found.1.push(message(body, line).map_err(|problem| problem.line(number))?);
        }
    }
    if found.0.is_empty() {
        return Err(Problem::invalid("messages", "must be at least one line"));
    }
    Ok(found)
}

fn message(body: &Bytes, line: &[u8]) -> Result<NewMessage, Problem> {
    let given = Fields::<&RawValue>::read(line)?;
    let endpoint = fields::known(given.keys(), &["endpoint", "payload", "payload_base64", "options"])
        .and_then(|()| fields::required("endpoint", given.get("endpoint")))
        .and_then(|endpoint| {
            fields::string("endpoint", serde_json::from_str(endpoint.get()).unwrap_or_default())
        })
        .map_err(StoreError::from)?;
    let (payload, options) = payload_and_options(body, &given).map_err(StoreError::from)?;
    let mut message = NewMessage::new(endpoint, payload);
    send_options::from_json(&mut message, options)?;
    Ok(message)
}

/// The store refuses a batch as a whole; whoever sent it wants to know which of its messages it was.
async fn guilty(operate: &dyn Operate, messages: &[NewMessage], error: &StoreError) -> Option<usize> {
    match error {
        StoreError::Invalid(_)
        | StoreError::Unknown { .. }
        | StoreError::Disabled { .. }
        | StoreError::TooLarge { .. } => {}
        StoreError::IdempotencyConflict { .. }
        | StoreError::Exists { .. }
        | StoreError::Conflict(_)
        | StoreError::QueueFull { .. }
        | StoreError::Unavailable(_)
        | StoreError::Unusable(_)
        | StoreError::Denied(_)
        | StoreError::Unreachable(_)
        | StoreError::Uncertain(_) => return None,
    }
    let settings = operate.settings().await.ok()?;
    let mut known: HashMap<&str, Option<Endpoint>> = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        if !known.contains_key(message.endpoint.as_str()) {
            known.insert(&message.endpoint, operate.endpoint(&message.endpoint).await.ok());
        }
        let endpoint = known[message.endpoint.as_str()].as_ref();
        if endpoint.is_none_or(|endpoint| postrider::send::check(message, endpoint, &settings).is_err()) {
            return Some(at);
        }
    }
    None
}
