//! Event types: create, list, show, drop.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Request, Response, StatusCode};
use http::header::{HeaderValue, LOCATION};
use postrider::{EventType, Invalid, NewEventType, StoreError};
use serde::Serialize;
use serde_json::value::RawValue;

use super::endpoints::Page;
use super::fields::Fields;
use super::problem::Problem;
use super::{Api, body, fields, json_response};

#[derive(Serialize)]
struct EventTypes {
    items: Vec<EventType>,
    next: Option<String>,
}

pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let Fields(fields): Fields<&RawValue> =
        serde_json::from_slice(&body).map_err(|error| Problem::bad_json(&error))?;
    let made = api.operate.create_event_type(wanted(&fields).map_err(StoreError::from)?).await?;
    let mut response = shown(StatusCode::CREATED, &made);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/event-types/{}", made.name)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
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

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    Ok(shown(StatusCode::OK, &api.operate.event_type(&name(path)?).await?))
}

pub(super) async fn drop(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Problem> {
    api.operate.drop_event_type(&name(path)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::invalid("query", error.body_text()))?;
    let page = Page::parse(&query)?;
    // One more than asked for tells whether there is a next page.
    let mut items = api.operate.event_types(page.after.as_deref(), page.limit + 1).await?;
    let more = items.len() > page.limit;
    items.truncate(page.limit);
    let next = items.last().filter(|_| more).map(|event_type| event_type.name.clone());
    Ok(shown(StatusCode::OK, &EventTypes { items, next }))
}

/// A name that is not text cannot exist.
pub(super) fn name(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    let unknown = || StoreError::Unknown { what: "event type", name: "(not text)".to_owned() };
    path.map(|Path(name)| name).map_err(|_| unknown().into())
}

fn shown(status: StatusCode, answer: &impl Serialize) -> Response<Body> {
    json_response(status, serde_json::to_string(answer).expect("records become JSON"))
}
