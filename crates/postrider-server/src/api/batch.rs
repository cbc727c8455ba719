//! Many messages at once, one JSON document a line: all or nothing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use postrider::NewMessage;
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::{self, Clash, Common, Full, Named};
use super::body::Limit;
use super::messages::Sent;
use super::problem::Problem;
use super::wanted::BatchLine;
use super::{Api, body, send_options, to_response, trace};
use crate::{batch, envelope};

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
            let guilty = batch::guilty(&*api.operate, &messages, &error).await;
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
            found.1.push(
                envelope::addressed(&body.slice_ref(line)).map_err(|bad| Problem::from(bad).line(number))?,
            );
        }
    }
    if found.0.is_empty() {
        return Err(Problem::invalid("messages", "must be at least one line"));
    }
    Ok(found)
}
