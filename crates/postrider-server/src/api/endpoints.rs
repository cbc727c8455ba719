//! Endpoints: create, list, show.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{Request, Response, StatusCode};
use http::header::{HeaderValue, LOCATION};
use postrider::{Invalid, NewEndpoint, StoreError};
use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::problem::Problem;
use super::{Api, body, fields, json_response};
use crate::view;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let endpoint = api.operate.create_endpoint(wanted(&body)?).await?;
    let mut response = json_response(StatusCode::CREATED, view::endpoint(&endpoint).to_string());
    if let Ok(location) = HeaderValue::try_from(format!("/v1/endpoints/{}", endpoint.name)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response)
}

fn wanted(body: &[u8]) -> Result<NewEndpoint, Problem> {
    let Fields(body): Fields<Value> =
        serde_json::from_slice(body).map_err(|error| Problem::bad_json(&error))?;
    Ok(from_fields(body).map_err(StoreError::from)?)
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

pub(super) async fn show(
    State(api): State<Arc<Api>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response<Body>, Problem> {
    let endpoint = api.operate.endpoint(&endpoint_name(name)?).await?;
    Ok(json_response(StatusCode::OK, view::endpoint(&endpoint).to_string()))
}

pub(super) async fn list(
    State(api): State<Arc<Api>>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
) -> Result<Response<Body>, Problem> {
    let Query(query) = query.map_err(|error| Problem::invalid("query", error.body_text()))?;
    let page = Page::parse(&query)?;
    // One more than asked for tells whether there is a next page.
    let mut endpoints = api.operate.endpoints(page.after.as_deref(), page.limit + 1).await?;
    let more = endpoints.len() > page.limit;
    endpoints.truncate(page.limit);
    let next = endpoints.last().filter(|_| more).map(|endpoint| endpoint.name.clone());
    let items: Vec<Value> = endpoints.iter().map(view::endpoint).collect();
    Ok(json_response(StatusCode::OK, json!({ "items": items, "next": next }).to_string()))
}

/// A name that is not text cannot exist.
pub(super) fn endpoint_name(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    path.map(|Path(name)| name).map_err(|_| StoreError::unknown_endpoint("(not text)").into())
}

/// Which part of a list is asked for.
pub(super) struct Page {
    pub(super) after: Option<String>,
    pub(super) limit: usize,
}

impl Page {
    pub(super) fn parse(query: &BTreeMap<String, String>) -> Result<Self, Problem> {
        let mut page = Self { after: None, limit: PAGE_DEFAULT };
        for (key, value) in query {
            match key.as_str() {
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE_MAX).contains(limit));
                    page.limit = limit.ok_or_else(|| {
                        Problem::invalid("limit", format!("must be a whole number from 1 to {PAGE_MAX}"))
                    })?;
                }
                "cursor" => page.after = Some(value.clone()),
                _ => return Err(StoreError::from(Invalid::unknown_key("", key, &["limit", "cursor"])).into()),
            }
        }
        Ok(page)
    }
}
