//! Dead letters by filter: redriven or discarded, as far as one request takes it.

use std::time::{Duration, Instant};

use axum::Json;
use postrider::store::{DlqFilter, SweepAction, SweepCursor};
use postrider::{Invalid, MessageId, StoreError};

use super::answers::{Common, Full, Named, WithBody};
use super::extract::{FromBody, JsonBody, Operator};
use super::problem::Problem;
use super::wanted::SweptLetters;
use crate::fields::{self, BadDocument, JsonFields, optional, string, text_of};
use crate::view::Swept;
use crate::{cursor, send_values};

/// After this time a request is answered with a cursor.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
#[rustfmt::skip]
const FIELDS: [&str; 12] = [
    "endpoint", "reason", "class", "error", "event_type", "ordering_key", "correlation_id", "message_id", "from", "until", "all", "cursor",
];

/// Put dead letters back by filter, in the order in which they were sent. What dies meanwhile is not touched.
#[utoipa::path(post, path = "/v1/dlq:redrive", operation_id = "redrive_dead_letters", tag = "dead letters",
    request_body = SweptLetters,
    responses((status = 200, description = "How far it has come", body = Swept), Common, Named, WithBody, Full))]
pub(super) async fn redrive(
    operate: Operator,
    JsonBody(request): JsonBody<SweepRequest>,
) -> Result<Json<Swept>, Problem> {
    sweep(&operate, SweepAction::Redrive, request).await
}

/// Give dead letters up for good, by filter.
#[utoipa::path(post, path = "/v1/dlq:discard", operation_id = "discard_dead_letters", tag = "dead letters",
    request_body = SweptLetters,
    responses((status = 200, description = "How far it has come", body = Swept), Common, Named, WithBody, Full))]
pub(super) async fn discard(
    operate: Operator,
    JsonBody(request): JsonBody<SweepRequest>,
) -> Result<Json<Swept>, Problem> {
    sweep(&operate, SweepAction::Discard, request).await
}

async fn sweep(
    operate: &Operator,
    action: SweepAction,
    SweepRequest { filter, cursor }: SweepRequest,
) -> Result<Json<Swept>, Problem> {
    let began = Instant::now();
    let mut sweep = operate.sweep(action, filter.clone(), cursor).await?;
    while let Some(next) = sweep.next.filter(|_| began.elapsed() < REQUEST_TIME_MAX) {
        sweep = match operate.sweep(action, filter.clone(), Some(next)).await {
            Ok(further) => further,
            // Report what was done; the next request gets the error.
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
    Ok(Json(swept))
}

pub(super) struct SweepRequest {
    filter: DlqFilter,
    cursor: Option<SweepCursor>,
}

impl FromBody for SweepRequest {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let body = &mut JsonFields::read(body)?;
        fields::known(body.keys(), &FIELDS)?;
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
            return Err(Invalid::new("all", rule).into());
        }
        Ok(Self { filter, cursor })
    }
}

fn read_cursor(field: &str, text: &str) -> Result<SweepCursor, Invalid> {
    cursor::read_json(text).ok_or_else(|| Invalid::new(field, "must be the `next` of the request before"))
}
