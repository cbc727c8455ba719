//! What the store counts of itself, as JSON; `/metrics` has it beside the figures of the node.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::Response;

use super::Api;
use super::answers::Common;
use super::page::Page;
use super::problem::Problem;
use crate::view::FigureView;

/// What the store counts of itself, under the names that metrics have. Costs the same at any size.
#[utoipa::path(get, path = "/v1/figures", operation_id = "list_figures", tag = "system",
    responses((status = 200, description = "All of them", body = Page<FigureView>), Common))]
pub(super) async fn list(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    let items = api.operate.figures().await?.into_iter().map(FigureView::from).collect();
    Ok(Page { items, next: None }.into_response())
}
