//! Event types: create, list, show, drop.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::{Invalid, NewEventType, StoreError};
use serde_json::value::RawValue;

use super::answers::{self, Clash, Common, Named};
use super::authority::Viewer;
use super::fields::Fields;
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::WantedEventType;
use super::{Api, body, created, fields, no_content, to_response};
use crate::view::EventTypeView;

/// Create an event type. Only events of types that exist are published; with a schema, each has to keep it.
#[utoipa::path(post, path = "/v1/event-types", operation_id = "create_event_type", tag = "events",
    request_body = WantedEventType,
    responses((status = 201, description = "The event type", body = EventTypeView, headers(("location" = String))), Common, answers::Body, Clash))]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let new = wanted(&Fields::raw(&body)?).map_err(StoreError::from)?;
    let made = api.operate.create_event_type(new).await?;
    let location = format!("/v1/event-types/{}", made.name);
    Ok(created(&location, &EventTypeView::from(made)))
}

fn wanted(given: &BTreeMap<String, &RawValue>) -> Result<NewEventType, Invalid> {
    fields::known(given.keys(), &["name", "description", "schema"])?;
    let field = |name| given.get(name).copied();
    Ok(NewEventType {
        name: fields::required("name", fields::raw_string("name", field("name"))?)?,
        description: fields::raw_string("description", field("description"))?,
        schema: fields::json("schema", field("schema"))?,
    })
}

/// Show an event type.
#[utoipa::path(get, path = "/v1/event-types/{name}", operation_id = "show_event_type", tag = "events",
    params(("name" = String, Path)),
    responses((status = 200, description = "The event type", body = EventTypeView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let event_type = api.operate.event_type(&name(path)?).await?;
    Ok(to_response(StatusCode::OK, &viewer.event_type(event_type)))
}

/// Drop an event type. Its subscriptions stay: a pattern may fit other types, and the type may come back.
#[utoipa::path(delete, path = "/v1/event-types/{name}", operation_id = "drop_event_type", tag = "events",
    params(("name" = String, Path)), responses((status = 204, description = "It is gone"), Common, Named))]
pub(super) async fn drop(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    api.operate.drop_event_type(&name(path)?).await?;
    Ok(no_content())
}

/// List event types by name.
#[utoipa::path(get, path = "/v1/event-types", operation_id = "list_event_types", tag = "events",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<EventTypeView>), Common, Named))]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    uri: Uri,
) -> Result<Response<Body>, Problem> {
    let mut params = Params::parse(&uri, &["limit", "cursor"])?;
    let (limit, after) = (params.limit()?, params.cursor::<String>()?);
    let found = api.operate.event_types(after.as_deref(), limit + 1).await?;
    let page = Page::of(found, limit, |last| last.name.clone(), |found| viewer.event_type(found));
    Ok(page.into_response())
}

/// A name that is not text cannot exist.
pub(super) fn name(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let unknown = || StoreError::Unknown { what: "event type", name: "(not text)".to_owned() };
    path.map(|Path(name)| name).map_err(|_| unknown().into())
}
