//! Replays: start, try, look, stop, resume.

use axum::Json;
use axum::response::IntoResponse;
use postrider::rate::RateLimit;
use postrider::store::{NewReplay, Replay, ReplayPreview, ReplaySelection};
use postrider::{Invalid, MessageId};
use serde::Serialize;
use utoipa::ToSchema;

use super::answers::{Clash, Common, Full, Named, WithBody};
use super::extract::{Action, FromBody, JsonBody, Operator, ReplayNumber};
use super::page::{Page, Paging};
use super::problem::Problem;
use super::wanted::WantedReplay;
use super::{Reply, created};
use crate::fields::{self, BadDocument, JsonFields, optional, string, text_of};
use crate::send_values;
use crate::view::Replayed;

#[rustfmt::skip]
const FIELDS: [&str; 10] = [
    "endpoint", "event_type", "ordering_key", "status", "from", "until", "to", "rate_limit", "dry_run", "message",
];

pub(super) enum ReplayRequest {
    One { message: MessageId, to: Option<String> },
    Many { replay: NewReplay, dry_run: bool },
}

/// A replay of many, or of one message.
#[derive(Serialize, ToSchema)]
#[schema(as = Started)]
#[serde(untagged)]
enum StartedReplay {
    Many(Box<Replay>),
    One(Replayed),
}

/// Send finished messages again, as new ones that refer to the old. Nodes do it step by step.
#[utoipa::path(post, path = "/v1/replays", operation_id = "start_replay", tag = "replays", request_body = WantedReplay,
    responses(
        (status = 201, description = "The replay, or the one new message", body = StartedReplay, headers(("location" = String))),
        (status = 200, description = "What it would do (`dry_run`)", body = ReplayPreview),
        Common, Named, WithBody, Clash, Full))]
pub(super) async fn start(operate: Operator, JsonBody(request): JsonBody<ReplayRequest>) -> Reply {
    let (started, location) = match request {
        ReplayRequest::One { message, to } => {
            let id = operate.replay_message(message, to.as_deref()).await?;
            let replayed = Replayed { id: id.0, replay_of: message.0 };
            (StartedReplay::One(replayed), format!("/v1/messages/{id}"))
        }
        ReplayRequest::Many { replay, dry_run: true } => {
            return Ok(Json(operate.preview_replay(replay).await?).into_response());
        }
        ReplayRequest::Many { replay, dry_run: false } => {
            let replay = operate.start_replay(replay).await?;
            let location = format!("/v1/replays/{}", replay.id);
            (StartedReplay::Many(Box::new(replay)), location)
        }
    };
    Ok(created(&location, &started))
}

impl FromBody for ReplayRequest {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let body = &mut JsonFields::read(body)?;
        fields::known(body.keys(), &FIELDS)?;
        let to = optional(body, "to", string)?;
        if let Some(message) = optional(body, "message", fields::whole)? {
            if let Some(other) = body.keys().next() {
                let rule = "is for a replay of many; one message needs `message` and `to` only";
                return Err(Invalid::new(other, rule).into());
            }
            return Ok(Self::One { message: MessageId(message), to });
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
        Ok(Self::Many { replay: NewReplay { selection, to, rate_limit }, dry_run })
    }
}

/// List replays, newest first.
#[utoipa::path(get, path = "/v1/replays", operation_id = "list_replays", tag = "replays",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<Replay>), Common, Named))]
pub(super) async fn list(operate: Operator, paging: Paging<i64>) -> Result<Page<Replay>, Problem> {
    let replays = operate.replays(paging.from, paging.rows()).await?;
    Ok(paging.page(replays, |last| last.id))
}

/// Show a replay and how far it has come.
#[utoipa::path(get, path = "/v1/replays/{id}", operation_id = "show_replay", tag = "replays",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The replay", body = Replay), Common, Named))]
pub(super) async fn show(operate: Operator, ReplayNumber(id): ReplayNumber) -> Result<Json<Replay>, Problem> {
    Ok(Json(operate.replay(id).await?))
}

/// `POST /v1/replays/{id}:…`
pub(super) async fn act(operate: Operator, action: Action) -> Result<Json<Replay>, Problem> {
    match action.name() {
        "stop" => stop(&operate, (&action).try_into()?).await,
        "resume" => resume(&operate, (&action).try_into()?).await,
        _ => Err(action.unknown().await),
    }
}

/// Stop a replay where it is.
#[utoipa::path(post, path = "/v1/replays/{id}:stop", operation_id = "stop_replay", tag = "replays",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The replay", body = Replay), Common, Named, Clash))]
async fn stop(operate: &Operator, ReplayNumber(id): ReplayNumber) -> Result<Json<Replay>, Problem> {
    Ok(Json(operate.stop_replay(id).await?))
}

/// Resume a stopped replay where it stopped.
#[utoipa::path(post, path = "/v1/replays/{id}:resume", operation_id = "resume_replay", tag = "replays",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The replay", body = Replay), Common, Named, Clash, Full))]
async fn resume(operate: &Operator, ReplayNumber(id): ReplayNumber) -> Result<Json<Replay>, Problem> {
    Ok(Json(operate.resume_replay(id).await?))
}
