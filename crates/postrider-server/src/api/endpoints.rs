//! Endpoints: create, list, show, change, drop.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::NoContent;
use postrider::NewEndpoint;
use postrider::endpoint::EndpointChange;
use serde_json::Map;

use super::answers::{Clash, Common, Named, WithBody};
use super::authority::Viewer;
use super::extract::{EndpointName, FromBody, JsonBody, Operator};
use super::page::{Page, Paging, Params};
use super::problem::Problem;
use super::{Api, Reply, created};
use crate::fields::{self, BadDocument, JsonFields};
use crate::view::EndpointView;

/// Create an endpoint.
#[utoipa::path(post, path = "/v1/endpoints", operation_id = "create_endpoint", tag = "endpoints",
    request_body = NewEndpoint,
    responses((status = 201, description = "The endpoint", body = EndpointView, headers(("location" = String))), Common, WithBody, Clash))]
pub(super) async fn create(operate: Operator, JsonBody(new): JsonBody<NewEndpoint>) -> Reply {
    let endpoint = operate.create_endpoint(new).await?;
    Ok(created(&format!("/v1/endpoints/{}", endpoint.name), &EndpointView::of(&endpoint)))
}

impl FromBody for NewEndpoint {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let mut body = JsonFields::read(body)?;
        fields::known(body.keys(), &["name", "protocol", "config", "retry_policy", "options"])?;
        let (name, protocol) = (fields::text(&mut body, "name")?, fields::text(&mut body, "protocol")?);
        let config = body.remove("config").map_or(Ok(Map::new()), |value| fields::object("config", value))?;
        // The contents of these two are checked by the store.
        let mut given = |field| body.remove(field).filter(|value| !value.is_null());
        Ok(Self { name, protocol, config, retry_policy: given("retry_policy"), options: given("options") })
    }
}

/// List endpoints by name.
#[utoipa::path(get, path = "/v1/endpoints", operation_id = "list_endpoints", tag = "endpoints",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<EndpointView>), Common, Named))]
pub(super) async fn list(
    operate: Operator,
    viewer: Viewer,
    paging: Paging<String>,
) -> Result<Page<EndpointView>, Problem> {
    let endpoints = operate.endpoints(paging.from.as_deref(), paging.rows()).await?;
    let items = endpoints.iter().map(|endpoint| viewer.endpoint(endpoint)).collect();
    Ok(paging.page(items, |last| last.name.clone()))
}

/// Show an endpoint, without its secrets, and how attempts at it went.
#[utoipa::path(get, path = "/v1/endpoints/{name}", operation_id = "show_endpoint", tag = "endpoints",
    params(("name" = String, Path)),
    responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    operate: Operator,
    viewer: Viewer,
    EndpointName(name): EndpointName,
) -> Result<Json<EndpointView>, Problem> {
    let endpoint = operate.endpoint(&name).await?;
    let health = operate.endpoint_health(&name).await?;
    let connection = api.node.connection(endpoint.id);
    Ok(Json(viewer.endpoint(&endpoint).with_health(health).with_connection(connection)))
}

/// Change an endpoint: what is given is replaced as a whole, the rest stays. `config_changes` replaces single keys of the
/// config.
#[utoipa::path(patch, path = "/v1/endpoints/{name}", operation_id = "change_endpoint", tag = "endpoints",
    params(("name" = String, Path)), request_body = EndpointChange,
    responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named, WithBody))]
pub(super) async fn change(
    operate: Operator,
    EndpointName(name): EndpointName,
    JsonBody(change): JsonBody<EndpointChange>,
) -> Result<Json<EndpointView>, Problem> {
    Ok(Json(EndpointView::of(&operate.alter_endpoint(&name, change).await?)))
}

impl FromBody for EndpointChange {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let mut body = JsonFields::read(body)?;
        fields::known(body.keys(), &["config", "config_changes", "retry_policy", "options"])?;
        let mut given = |field| body.remove(field).filter(|value| !value.is_null());
        let (retry_policy, options) = (given("retry_policy"), given("options"));
        let mut object = |field| given(field).map(|value| fields::object(field, value)).transpose();
        let (config, config_changes) = (object("config")?, object("config_changes")?);
        Ok(Self { config, config_changes, retry_policy, options })
    }
}

/// Drop an endpoint. Refused while it has messages, unless forced: then they are cancelled.
#[utoipa::path(delete, path = "/v1/endpoints/{name}", operation_id = "drop_endpoint", tag = "endpoints",
    params(("name" = String, Path), ("force" = Option<bool>, Query)),
    responses((status = 204, description = "It is dropped"), Common, Named, Clash))]
pub(super) async fn drop(
    operate: Operator,
    EndpointName(name): EndpointName,
    uri: Uri,
) -> Result<NoContent, Problem> {
    let force = Params::parse(&uri, &["force"])?.value("force", "must be true or false")?;
    operate.drop_endpoint(&name, force.unwrap_or(false)).await?;
    Ok(NoContent)
}
