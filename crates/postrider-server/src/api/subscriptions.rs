//! Subscriptions: create, list, show, drop, enable and disable.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Request, Response, StatusCode};
use http::header::{HeaderValue, LOCATION};
use postrider::{Invalid, NewSubscription, StoreError, Subscription};
use serde::Serialize;
use serde_json::value::RawValue;

use super::endpoints::Page;
use super::fields::Fields;
use super::problem::Problem;
use super::{Api, body, fields, json_response};

#[derive(Serialize)]
struct Subscriptions {
    items: Vec<Subscription>,
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
    let made = api.operate.subscribe(wanted(&fields).map_err(StoreError::from)?).await?;
    let mut response = shown(StatusCode::CREATED, &made);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/subscriptions/{}", made.id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

fn wanted(given: &BTreeMap<String, &RawValue>) -> Result<NewSubscription, Invalid> {
    fields::known(given.keys(), &["pattern", "endpoint", "filter", "template"])?;
    let field = |name| given.get(name).copied();
    let text = |name| fields::required(name, fields::raw_string(name, field(name))?);
    Ok(NewSubscription {
        pattern: text("pattern")?,
        endpoint: text("endpoint")?,
        filter: fields::json("filter", field("filter"))?,
        template: fields::json("template", field("template"))?,
    })
}

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    Ok(shown(StatusCode::OK, &api.operate.subscription(id(path)?).await?))
}

pub(super) async fn drop(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, Problem> {
    api.operate.unsubscribe(id(path)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn enable(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    set_enabled(&api, id(path)?, true).await
}

pub(super) async fn disable(
    State(api): State<Arc<Api>>,
    path: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    set_enabled(&api, id(path)?, false).await
}

async fn set_enabled(api: &Api, id: i64, enabled: bool) -> Result<Response<Body>, Problem> {
    api.operate.set_subscription_enabled(id, enabled).await?;
    Ok(shown(StatusCode::OK, &api.operate.subscription(id).await?))
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::invalid("query", error.body_text()))?;
    let page = Page::parse(&query)?;
    let cursor = |text: String| {
        text.parse().map_err(|_| Problem::invalid("cursor", "must be the `next` of the page before"))
    };
    // One more than asked for tells whether there is a next page.
    let after = page.after.map(cursor).transpose()?;
    let mut items = api.operate.subscriptions(after, page.limit + 1).await?;
    let more = items.len() > page.limit;
    items.truncate(page.limit);
    let next = items.last().filter(|_| more).map(|subscription| subscription.id.to_string());
    Ok(shown(StatusCode::OK, &Subscriptions { items, next }))
}

fn id(path: Result<Path<String>, PathRejection>) -> Result<i64, Problem> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    text.parse().map_err(|_| StoreError::Unknown { what: "subscription", name: text }.into())
}

fn shown(status: StatusCode, answer: &impl Serialize) -> Response<Body> {
    json_response(status, serde_json::to_string(answer).expect("records become JSON"))
}
