//! The store as a whole: its figures, its event log, its nodes, and the pause of everything.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::NoContent;
use postrider::Invalid;
use postrider::message::NodeId;
use postrider::store::{EventRecord, NodeRecord, StoreStatus};
use utoipa::ToSchema;

use super::Api;
use super::answers::{Common, Named, WithBody};
use super::extract::{FromBody, JsonBody, Operator};
use super::page::{Page, Paging};
use super::problem::Problem;
use crate::fields::{self, BadDocument, JsonFields};

const REASON_CHARACTERS_MAX: usize = 1000;

/// What is queued, and how the endpoints are.
#[utoipa::path(get, path = "/v1/status", operation_id = "show_status", tag = "system",
    responses((status = 200, description = "Figures of the whole store", body = StoreStatus), Common))]
pub(super) async fn status(State(api): State<Arc<Api>>) -> Result<Json<StoreStatus>, Problem> {
    Ok(Json(StoreStatus { limits: api.node.limits(), ..api.operate.status().await? }))
}

/// What changed, and which nodes were lost, newest first.
#[utoipa::path(get, path = "/v1/event-log", operation_id = "list_events", tag = "system",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<EventRecord>), Common, Named))]
pub(super) async fn event_log(operate: Operator, paging: Paging<i64>) -> Result<Page<EventRecord>, Problem> {
    let events = operate.events(paging.from, paging.rows()).await?;
    Ok(paging.page(events, |last| last.id))
}

/// The nodes that run and ran on this store, newest first.
#[utoipa::path(get, path = "/v1/nodes", operation_id = "list_nodes", tag = "system",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<NodeRecord>), Common, Named))]
pub(super) async fn nodes(operate: Operator, paging: Paging<i64>) -> Result<Page<NodeRecord>, Problem> {
    let nodes = operate.nodes(paging.from.map(NodeId), paging.rows()).await?;
    Ok(paging.page(nodes, |last| last.id.0))
}

/// Why everything is paused.
#[derive(ToSchema)]
pub(super) struct Pause {
    #[schema(min_length = 1, max_length = 1000)]
    reason: String,
}

impl FromBody for Pause {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let mut body = JsonFields::read(body)?;
        fields::known(body.keys(), &["reason"])?;
        let reason = fields::text(&mut body, "reason")?;
        if !(1..=REASON_CHARACTERS_MAX).contains(&reason.chars().count()) {
            let rule = format!("must have 1 to {REASON_CHARACTERS_MAX} characters");
            return Err(Invalid::new("reason", rule).into());
        }
        Ok(Self { reason })
    }
}

/// Stop all dispatch, on every node, until it is resumed; survives restarts. Sends are accepted.
#[utoipa::path(post, path = "/v1/pause", operation_id = "pause", tag = "system", request_body = Pause,
    responses((status = 204, description = "No node dispatches any more"), Common, WithBody))]
pub(super) async fn pause(operate: Operator, JsonBody(pause): JsonBody<Pause>) -> Result<NoContent, Problem> {
    operate.pause(&pause.reason).await?;
    Ok(NoContent)
}

/// Dispatch again.
#[utoipa::path(post, path = "/v1/resume", operation_id = "resume", tag = "system",
    responses((status = 204, description = "Nodes dispatch again"), Common))]
pub(super) async fn resume(operate: Operator) -> Result<NoContent, Problem> {
    operate.resume().await?;
    Ok(NoContent)
}
