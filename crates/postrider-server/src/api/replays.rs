//! Replays: start, try, look, stop, resume.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::rate::RateLimit;
use postrider::store::{NewReplay, ReplaySelection};
use postrider::{Invalid, MessageId, StoreError};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answers::{self, Clash, Common, Full, Named};
use super::fields::{Fields, optional, string, text_of};
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::WantedReplay;
use super::{Api, body, created, fields, messages, to_response, unknown_route, wrong_method};
use crate::send_values;
use crate::view::{ReplayPreviewView, ReplayView, Replayed};

#[rustfmt::skip]
const FIELDS: [&str; 10] = [
    "endpoint", "event_type", "ordering_key", "status", "from", "until", "to", "rate_limit", "dry_run", "message",
];

/// What is asked for.
enum Wanted {
    One { message: MessageId, to: Option<String> },
    Many { replay: NewReplay, dry_run: bool },
}

/// A replay of many, or of one message.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Started {
    Many(Box<ReplayView>),
    One(Replayed),
}

/// Send finished messages again, as new ones that refer to the old. Nodes do it step by step.
#[utoipa::path(post, path = "/v1/replays", operation_id = "start_replay", tag = "replays", request_body = WantedReplay,
    responses(
        (status = 201, description = "The replay, or the one new message", body = Started, headers(("location" = String))),
        (status = 200, description = "What it would do (`dry_run`)", body = ReplayPreviewView),
        Common, Named, answers::Body, Clash, Full))]
pub(super) async fn start(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let (started, location) = match wanted(Fields::read(&body)?).map_err(StoreError::from)? {
        Wanted::One { message, to } => {
            let id = api.operate.replay_message(message, to.as_deref()).await?;
            let replayed = Replayed { id: id.0, replay_of: message.0 };
            (Started::One(replayed), format!("/v1/messages/{id}"))
        }
        Wanted::Many { replay, dry_run: true } => {
            let preview = api.operate.preview_replay(replay).await?;
            return Ok(to_response(StatusCode::OK, &ReplayPreviewView::from(preview)));
        }
        Wanted::Many { replay, dry_run: false } => {
            let replay = api.operate.start_replay(replay).await?;
            let location = format!("/v1/replays/{}", replay.id);
            (Started::Many(Box::new(replay.into())), location)
        }
    };
    Ok(created(&location, &started))
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

/// List replays, newest first.
#[utoipa::path(get, path = "/v1/replays", operation_id = "list_replays", tag = "replays",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<ReplayView>), Common, Named))]
pub(super) async fn list(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response<Body>, Problem> {
    let mut params = Params::parse(&uri, &["limit", "cursor"])?;
    let (limit, before) = (params.limit()?, params.cursor()?);
    let found = api.operate.replays(before, limit + 1).await?;
    Ok(Page::of(found, limit, |last| last.id, ReplayView::from).into_response())
}

/// Show a replay and how far it has come.
#[utoipa::path(get, path = "/v1/replays/{id}", operation_id = "show_replay", tag = "replays",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The replay", body = ReplayView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let replay = api.operate.replay(replay_id(&messages::path_text(id))?).await?;
    Ok(to_response(StatusCode::OK, &ReplayView::from(replay)))
}

/// `POST /v1/replays/{id}:…`: the router knows whole segments only.
pub(super) async fn act(
    State(api): State<Arc<Api>>,
    id: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let text = messages::path_text(id);
    match text.split_once(':') {
        Some((id, "stop")) => stop(&api, id).await,
        Some((id, "resume")) => resume(&api, id).await,
        Some(_) => Err(unknown_route(request.uri().clone()).await),
        None => Err(wrong_method(request.method().clone(), request.uri().clone()).await),
    }
}

/// Stop a replay where it is.
#[utoipa::path(post, path = "/v1/replays/{id}:stop", operation_id = "stop_replay", tag = "replays",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The replay", body = ReplayView), Common, Named, Clash))]
async fn stop(api: &Api, id: &str) -> Result<Response<Body>, Problem> {
    let replay = api.operate.stop_replay(replay_id(id)?).await?;
    Ok(to_response(StatusCode::OK, &ReplayView::from(replay)))
}

/// Let a stopped replay go on where it was.
#[utoipa::path(post, path = "/v1/replays/{id}:resume", operation_id = "resume_replay", tag = "replays",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The replay", body = ReplayView), Common, Named, Clash, Full))]
async fn resume(api: &Api, id: &str) -> Result<Response<Body>, Problem> {
    let replay = api.operate.resume_replay(replay_id(id)?).await?;
    Ok(to_response(StatusCode::OK, &ReplayView::from(replay)))
}

fn replay_id(text: &str) -> Result<i64, StoreError> {
    text.parse().map_err(|_| StoreError::Unknown { what: "replay", name: text.to_owned() })
}
