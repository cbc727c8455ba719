//! Endpoints: create, list, show, change, drop.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::endpoint::EndpointChange;
use postrider::{Invalid, NewEndpoint, StoreError};
use serde_json::{Map, Value};

use super::answers::{self, Clash, Common, Named};
use super::authority::Viewer;
use super::fields::Fields;
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::{EndpointChanges, WantedEndpoint};
use super::{Api, body, created, fields, no_content, to_response};
use crate::view::EndpointView;

/// Create an endpoint.
#[utoipa::path(post, path = "/v1/endpoints", operation_id = "create_endpoint", tag = "endpoints",
    request_body = WantedEndpoint,
    responses((status = 201, description = "The endpoint", body = EndpointView, headers(("location" = String))), Common, answers::Body, Clash))]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let endpoint = api.operate.create_endpoint(wanted(&body)?).await?;
    Ok(created(&format!("/v1/endpoints/{}", endpoint.name), &EndpointView::of(&endpoint)))
}

fn wanted(body: &[u8]) -> Result<NewEndpoint, Problem> {
    Ok(from_fields(Fields::read(body)?).map_err(StoreError::from)?)
}

fn from_fields(mut body: BTreeMap<String, Value>) -> Result<NewEndpoint, Invalid> {
    fields::known(body.keys(), &["name", "protocol", "config", "retry_policy", "options"])?;
    let mut text = |field| fields::string(field, fields::required(field, body.remove(field))?);
    let (name, protocol) = (text("name")?, text("protocol")?);
    let config = body.remove("config").map_or(Ok(Map::new()), |value| fields::object("config", value))?;
    // What is in these is checked, and named, where it is understood.
    let mut given = |field| body.remove(field).filter(|value| !value.is_null());
    Ok(NewEndpoint { name, protocol, config, retry_policy: given("retry_policy"), options: given("options") })
}

/// List endpoints by name.
#[utoipa::path(get, path = "/v1/endpoints", operation_id = "list_endpoints", tag = "endpoints",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<EndpointView>), Common, Named))]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    uri: Uri,
) -> Result<Response<Body>, Problem> {
    let mut params = Params::parse(&uri, &["limit", "cursor"])?;
    let (limit, after) = (params.limit()?, params.cursor::<String>()?);
    let endpoints = api.operate.endpoints(after.as_deref(), limit + 1).await?;
    let page = Page::of(endpoints, limit, |last| last.name.clone(), |endpoint| viewer.endpoint(&endpoint));
    Ok(page.into_response())
}

/// Show an endpoint, without its secrets, and how attempts at it went.
#[utoipa::path(get, path = "/v1/endpoints/{name}", operation_id = "show_endpoint", tag = "endpoints",
    params(("name" = String, Path)),
    responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let endpoint = api.operate.endpoint(&endpoint_name(name)?).await?;
    let health = api.operate.endpoint_health(&endpoint.name).await?;
    Ok(to_response(StatusCode::OK, &viewer.endpoint(&endpoint).with_health(health)))
}

/// Change an endpoint: what is given is replaced as a whole, the rest stays. `config_changes` replaces single keys of the
/// config.
#[utoipa::path(patch, path = "/v1/endpoints/{name}", operation_id = "change_endpoint", tag = "endpoints",
    params(("name" = String, Path)), request_body = EndpointChanges,
    responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named, answers::Body))]
pub(super) async fn change(
    State(api): State<Arc<Api>>,
    name: Result<Path<String>, PathRejection>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let name = endpoint_name(name)?;
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let change = changes(Fields::read(&body)?).map_err(StoreError::from)?;
    let endpoint = api.operate.alter_endpoint(&name, change).await?;
    Ok(to_response(StatusCode::OK, &EndpointView::of(&endpoint)))
}

fn changes(mut body: BTreeMap<String, Value>) -> Result<EndpointChange, Invalid> {
    fields::known(body.keys(), &["config", "config_changes", "retry_policy", "options"])?;
    let mut given = |field| body.remove(field).filter(|value| !value.is_null());
    let (retry_policy, options) = (given("retry_policy"), given("options"));
    let mut object = |field| given(field).map(|value| fields::object(field, value)).transpose();
    let (config, config_changes) = (object("config")?, object("config_changes")?);
    Ok(EndpointChange { config, config_changes, retry_policy, options })
}

/// Drop an endpoint. Refused while it has messages, unless forced: then they are cancelled.
#[utoipa::path(delete, path = "/v1/endpoints/{name}", operation_id = "drop_endpoint", tag = "endpoints",
    params(("name" = String, Path), ("force" = Option<bool>, Query)),
    responses((status = 204, description = "It is gone"), Common, Named, Clash))]
pub(super) async fn drop(
    State(api): State<Arc<Api>>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response<Body>, Problem> {
    let force = Params::parse(&uri, &["force"])?.value("force", "must be true or false")?;
    api.operate.drop_endpoint(&endpoint_name(name)?, force.unwrap_or(false)).await?;
    Ok(no_content())
}

/// A name that is not text cannot exist.
pub(super) fn endpoint_name(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    path.map(|Path(name)| name).map_err(|_| StoreError::unknown_endpoint("(not text)").into())
}
