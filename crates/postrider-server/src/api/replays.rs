//! Replays: start, try, look, stop, resume.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Request, Response, StatusCode};
use http::header::{HeaderValue, LOCATION};
use postrider::rate::RateLimit;
use postrider::store::{NewReplay, Replay, ReplaySelection};
use postrider::{Invalid, MessageId, StoreError};
use serde::Serialize;
use serde_json::Value;

use super::fields::{Fields, optional, string, text_of};
use super::problem::Problem;
use super::{Api, body, fields, json_response, unknown_route, wrong_method};
use crate::send_values;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
#[rustfmt::skip]
const FIELDS: [&str; 10] = [
    "endpoint", "event_type", "ordering_key", "status", "from", "until", "to", "rate_limit", "dry_run", "message",
];

/// What is asked for.
enum Wanted {
    One { message: MessageId, to: Option<String> },
    Many { replay: NewReplay, dry_run: bool },
}

/// One message, sent again.
#[derive(Serialize)]
struct Replayed {
    id: MessageId,
    replay_of: MessageId,
}

#[derive(Serialize)]
struct Page {
    items: Vec<Replay>,
    /// The `cursor` of the next page; null on the last one.
    next: Option<String>,
}

pub(super) async fn start(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let Fields(fields): Fields<Value> =
        serde_json::from_slice(&body).map_err(|error| Problem::bad_json(&error))?;
    match wanted(fields).map_err(StoreError::from)? {
        Wanted::One { message, to } => {
            let id = api.operate.replay_message(message, to.as_deref()).await?;
            Ok(answer(StatusCode::CREATED, &Replayed { id, replay_of: message }))
        }
        Wanted::Many { replay, dry_run: true } => {
            Ok(answer(StatusCode::OK, &api.operate.preview_replay(replay).await?))
        }
        Wanted::Many { replay, dry_run: false } => {
            let replay = api.operate.start_replay(replay).await?;
            let mut response = answer(StatusCode::CREATED, &replay);
            if let Ok(location) = HeaderValue::try_from(format!("/v1/replays/{}", replay.id)) {
                response.headers_mut().insert(LOCATION, location);
            }
            Ok(response)
        }
    }
}

fn wanted(mut body: BTreeMap<String, Value>) -> Result<Wanted, Invalid> {
    fields::known(body.keys(), &FIELDS)?;
    let body = &mut body;
    let to = optional(body, "to", string)?;
    if let Some(message) = optional(body, "message", fields::whole)? {
        if let Some(other) = body.keys().next() {
            return Err(Invalid::new(
                other,
                "is for a replay of many; one message needs `message` and `to` only",
            ));
        }
        return Ok(Wanted::One { message: MessageId(message), to });
    }
    let selection = ReplaySelection {
        endpoint: optional(body, "endpoint", string)?,
        event_type: optional(body, "event_type", string)?,
        ordering_key: optional(body, "ordering_key", string)?,
        status: optional(body, "status", text_of(send_values::replay_status))?,
        from: optional(body, "from", text_of(send_values::timestamp))?,
        until: optional(body, "until", text_of(send_values::timestamp))?,
    };
    let rate_limit = optional(body, "rate_limit", |field, value| RateLimit::check(field, &value))?;
    let dry_run = optional(body, "dry_run", fields::flag)?.unwrap_or(false);
    Ok(Wanted::Many { replay: NewReplay { selection, to, rate_limit }, dry_run })
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::invalid("query", error.body_text()))?;
    fields::known(query.keys(), &["limit", "cursor"]).map_err(StoreError::from)?;
    let limit = match query.get("limit") {
        None => PAGE_DEFAULT,
        Some(text) => text.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit)).ok_or_else(|| {
            Problem::invalid("limit", format!("must be a whole number from 1 to {PAGE_MAX}"))
        })?,
    };
    let before = query.get("cursor").map(|text| text.parse::<i64>()).transpose();
    let before = before.map_err(|_| Problem::invalid("cursor", "must be the `next` of the page before"))?;
    // One more than asked for tells whether there is a next page.
    let mut items = api.operate.replays(before, limit + 1).await?;
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(|last| last.id.to_string());
    Ok(answer(StatusCode::OK, &Page { items, next }))
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let replay = api.operate.replay(replay_id(&path_text(id))?).await?;
    Ok(answer(StatusCode::OK, &replay))
}

/// `POST /v1/replays/{id}:…`: the router knows whole segments only.
pub(super) async fn act(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let text = path_text(id);
    let replay = match text.split_once(':') {
        Some((id, "stop")) => api.operate.stop_replay(replay_id(id)?).await?,
        Some((id, "resume")) => api.operate.resume_replay(replay_id(id)?).await?,
        Some(_) => return Err(unknown_route(request.uri().clone()).await),
        None => return Err(wrong_method(request.method().clone(), request.uri().clone()).await),
    };
    Ok(answer(StatusCode::OK, &replay))
}

fn path_text(path: Result<Path<String>, PathRejection>) -> String {
    path.map(|Path(text)| text).unwrap_or_default()
}

fn replay_id(text: &str) -> Result<i64, StoreError> {
    text.parse().map_err(|_| StoreError::Unknown { what: "replay", name: text.to_owned() })
}

fn answer(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    json_response(status, serde_json::to_string(value).expect("records become JSON"))
}
