//! Many messages at once, one JSON document a line: all or nothing.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use postrider::{NewMessage, StoreError};

use super::answers::{Clash, Common, Full, Named, WithBody};
use super::body::{BodyLimit, HeldBody};
use super::problem::Problem;
use super::wanted::BatchLine;
use super::{Api, Reply, aside, body, send_options, to_response, trace};
use crate::view::SentBatch;
use crate::{batch, envelope};

const BODY_MAX: BodyLimit = BodyLimit { bytes: 64 << 20, setting: "the API" };

/// Send many messages, all or none: one JSON document a line (NDJSON). A refusal names the line.
#[utoipa::path(post, path = "/v1/messages:batch", operation_id = "send_batch", tag = "messages",
    request_body(content = BatchLine, content_type = "application/x-ndjson"),
    responses((status = 202, description = "They are queued, or were already; in the order of the lines", body = SentBatch),
        Common, Named, WithBody, Clash, Full))]
pub(super) async fn send(State(api): State<Arc<Api>>, request: Request<Body>) -> Reply {
    let (parts, body) = request.into_parts();
    send_options::refuse_headers(&parts.headers, "the options of its line")?;
    let most = api.limits.max_batch_messages(&*api.operate).await?;
    let HeldBody { bytes: body, share: _share } = body::read(&parts.headers, body, BODY_MAX).await?;
    let bytes = body.len();
    let (numbers, mut messages) = aside::run(bytes, async move { lines(&body, most) }).await?;
    messages.iter_mut().for_each(|message| trace::carry_on(&parts.headers, message));
    let (operate, sending) = (Arc::clone(&api.operate), messages.clone());
    let sent = match aside::run(bytes, async move { operate.send_batch(sending).await }).await {
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
    Ok(to_response(StatusCode::ACCEPTED, &SentBatch { items: sent }))
}

/// Messages with the numbers of their lines. Lines are counted before any is read: a message takes far more memory
/// than its line, and the store would refuse too many of them only then.
fn lines(body: &Bytes, most: u64) -> Result<(Vec<usize>, Vec<NewMessage>), Problem> {
    let count = numbered(body).count();
    match count as u64 {
        0 => return Err(Problem::invalid("messages", "must be at least one line")),
        bytes if bytes > most => {
            let (field, setting) = ("messages", "max_batch_messages");
            return Err(StoreError::TooLarge { field, bytes, limit: most, setting }.into());
        }
        _ => {}
    }
    let mut found = (Vec::with_capacity(count), Vec::with_capacity(count));
    for (number, line) in numbered(body) {
        found.0.push(number);
        let message = envelope::addressed(&body.slice_ref(line));
        found.1.push(message.map_err(|bad| Problem::from(bad).line(number))?);
    }
    Ok(found)
}

/// Empty lines are none, but they count.
fn numbered(body: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let lines = body.split(|byte| *byte == b'\n');
    (1..).zip(lines).filter(|(_, line)| !line.trim_ascii().is_empty())
}
