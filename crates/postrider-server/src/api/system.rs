//! The store as a whole: its figures, its event log, its nodes, and the pause of everything.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::message::NodeId;
use postrider::store::StoreStatus;
use postrider::{Invalid, StoreError};

use super::answers::{self, Common, Named};
use super::fields::Fields;
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::Pause;
use super::{Api, body, fields, no_content, to_response};
use crate::view::{EventView, NodeView, StatusView};

const REASON_CHARACTERS_MAX: usize = 1000;

/// What is queued, and how the endpoints are.
#[utoipa::path(get, path = "/v1/status", operation_id = "show_status", tag = "system",
    responses((status = 200, description = "Figures of the whole store", body = StatusView), Common))]
pub(super) async fn status(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    let status = StoreStatus { limits: api.node.limits(), ..api.operate.status().await? };
    Ok(to_response(StatusCode::OK, &StatusView::from(status)))
}

/// What changed and who was lost, newest first.
#[utoipa::path(get, path = "/v1/event-log", operation_id = "list_events", tag = "system",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<EventView>), Common, Named))]
pub(super) async fn event_log(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response<Body>, Problem> {
    let mut params = Params::parse(&uri, &["limit", "cursor"])?;
    let (limit, before) = (params.limit()?, params.cursor()?);
    let events = api.operate.events(before, limit + 1).await?;
    Ok(Page::of(events, limit, |last| last.id, EventView::from).into_response())
}

/// The nodes that run and ran on this store, newest first.
#[utoipa::path(get, path = "/v1/nodes", operation_id = "list_nodes", tag = "system",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<NodeView>), Common, Named))]
pub(super) async fn nodes(State(api): State<Arc<Api>>, uri: Uri) -> Result<Response<Body>, Problem> {
    let mut params = Params::parse(&uri, &["limit", "cursor"])?;
    let (limit, before) = (params.limit()?, params.cursor()?.map(NodeId));
    let nodes = api.operate.nodes(before, limit + 1).await?;
    Ok(Page::of(nodes, limit, |last| last.id.0, NodeView::from).into_response())
}

/// Stop all dispatch, on every node, until it is resumed; survives restarts. Sends are accepted.
#[utoipa::path(post, path = "/v1/pause", operation_id = "pause", tag = "system", request_body = Pause,
    responses((status = 204, description = "Nothing is dispatched any more"), Common, answers::Body))]
pub(super) async fn pause(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let mut body = Fields::read(&body::read(&parts.headers, body, body::SMALL_MAX).await?)?;
    let reason = fields::known(body.keys(), &["reason"])
        .and_then(|()| fields::string("reason", fields::required("reason", body.remove("reason"))?))
        .and_then(checked_reason)
        .map_err(StoreError::from)?;
    api.operate.pause(&reason).await?;
    Ok(no_content())
}

fn checked_reason(reason: String) -> Result<String, Invalid> {
    if (1..=REASON_CHARACTERS_MAX).contains(&reason.chars().count()) {
        return Ok(reason);
    }
    Err(Invalid::new("reason", format!("must have 1 to {REASON_CHARACTERS_MAX} characters")))
}

/// Dispatch again.
#[utoipa::path(post, path = "/v1/resume", operation_id = "resume", tag = "system",
    responses((status = 204, description = "Everything goes on"), Common))]
pub(super) async fn resume(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    api.operate.resume().await?;
    Ok(no_content())
}
