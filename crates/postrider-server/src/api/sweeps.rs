//! Dead letters by filter: redriven or discarded, as far as one request takes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use postrider::store::{DlqFilter, SweepAction, SweepCursor};
use postrider::{Invalid, MessageId, StoreError};
use serde_json::Value;

use super::answers::{self, Common, Full, Named};
use super::fields::{Fields, optional, string, text_of};
use super::problem::Problem;
use super::wanted::SweptLetters;
use super::{Api, body, fields, to_response};
use crate::view::Swept;
use crate::{cursor, send_values};

/// A request that goes on for longer is answered with a cursor.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
#[rustfmt::skip]
const FIELDS: [&str; 12] = [
    "endpoint", "reason", "class", "error", "event_type", "ordering_key", "correlation_id", "message_id", "from", "until", "all", "cursor",
];

/// Put dead letters back by filter, in the order in which they were sent. What dies meanwhile is not touched.
#[utoipa::path(post, path = "/v1/dlq:redrive", operation_id = "redrive_dead_letters", tag = "dead letters",
    request_body = SweptLetters,
    responses((status = 200, description = "How far it has come", body = Swept), Common, Named, answers::Body, Full))]
pub(super) async fn redrive(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    sweep(&api, SweepAction::Redrive, request).await
}

/// Give dead letters up for good, by filter.
#[utoipa::path(post, path = "/v1/dlq:discard", operation_id = "discard_dead_letters", tag = "dead letters",
    request_body = SweptLetters,
    responses((status = 200, description = "How far it has come", body = Swept), Common, Named, answers::Body, Full))]
pub(super) async fn discard(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    sweep(&api, SweepAction::Discard, request).await
}

async fn sweep(api: &Api, action: SweepAction, request: Request<Body>) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let (filter, cursor) = wanted(Fields::read(&body)?).map_err(StoreError::from)?;
    let began = Instant::now();
    let mut sweep = api.operate.sweep(action, filter.clone(), cursor).await?;
    while let Some(next) = sweep.next.filter(|_| began.elapsed() < REQUEST_TIME_MAX) {
        sweep = match api.operate.sweep(action, filter.clone(), Some(next)).await {
            Ok(further) => further,
            // What was done is told; whoever goes on is told what is in the way.
            Err(StoreError::QueueFull { .. } | StoreError::Conflict(_))
                if sweep.done > cursor.map_or(0, |cursor| cursor.done) =>
            {
                break;
            }
            Err(error) => return Err(error.into()),
        };
    }
    let done = |of: SweepAction| (of == action).then_some(sweep.done);
    let swept = Swept {
        redriven: done(SweepAction::Redrive),
        discarded: done(SweepAction::Discard),
        total: sweep.total,
        next: sweep.next.map(|next| cursor::written_json(&next)),
    };
    Ok(to_response(StatusCode::OK, &swept))
}

fn wanted(mut body: BTreeMap<String, Value>) -> Result<(DlqFilter, Option<SweepCursor>), Invalid> {
    fields::known(body.keys(), &FIELDS)?;
    let body = &mut body;
    let cursor = optional(body, "cursor", text_of(read_cursor))?;
    let all = optional(body, "all", fields::flag)?.unwrap_or(false);
    let filter = DlqFilter {
        endpoint: optional(body, "endpoint", string)?,
        reason: optional(body, "reason", text_of(send_values::dead_reason))?,
        class: optional(body, "class", text_of(send_values::class))?,
        error: optional(body, "error", string)?,
        event_type: optional(body, "event_type", string)?,
        ordering_key: optional(body, "ordering_key", string)?,
        correlation_id: optional(body, "correlation_id", text_of(send_values::correlation_id))?,
        message: optional(body, "message_id", fields::whole)?.map(MessageId),
        from: optional(body, "from", text_of(send_values::timestamp))?,
        until: optional(body, "until", text_of(send_values::timestamp))?,
        ..DlqFilter::default()
    };
    if all != (filter == DlqFilter::default()) {
        let rule = match all {
            true => "leave it out where something is selected",
            false => "select something, or say \"all\": true",
        };
        return Err(Invalid::new("all", rule));
    }
    Ok((filter, cursor))
}

fn read_cursor(field: &str, text: &str) -> Result<SweepCursor, Invalid> {
    cursor::read_json(text).ok_or_else(|| Invalid::new(field, "must be the `next` of the request before"))
}
