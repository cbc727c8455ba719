//! Subscriptions: create, list, show, drop, enable and disable.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode, Uri};
use postrider::{Invalid, NewSubscription, StoreError, Subscribed};
use serde_json::value::RawValue;

use super::answers::{self, Common, Named};
use super::authority::Viewer;
use super::fields::Fields;
use super::page::{Page, Params};
use super::problem::Problem;
use super::wanted::WantedSubscription;
use super::{Api, body, created, fields, no_content, to_response};
use crate::view::SubscriptionView;

type Id = Result<Path<String>, PathRejection>;

/// Subscribe an endpoint to an event type or a pattern. The same again, with the same filter and template, finds the
/// subscription that exists.
#[utoipa::path(post, path = "/v1/subscriptions", operation_id = "subscribe", tag = "events",
    request_body = WantedSubscription,
    responses((status = 201, description = "The subscription", body = SubscriptionView, headers(("location" = String))),
        (status = 200, description = "The subscription that exists, as it is", body = SubscriptionView, headers(("location" = String))),
        Common, Named, answers::Body))]
pub(super) async fn create(
    State(api): State<Arc<Api>>,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let (parts, body) = request.into_parts();
    let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
    let new = wanted(&Fields::raw(&body)?).map_err(StoreError::from)?;
    let Subscribed { subscription, existed } = api.operate.subscribe(new).await?;
    let location = format!("/v1/subscriptions/{}", subscription.id);
    let mut response = created(&location, &SubscriptionView::from(subscription));
    if existed {
        *response.status_mut() = StatusCode::OK;
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

/// Show a subscription.
#[utoipa::path(get, path = "/v1/subscriptions/{id}", operation_id = "show_subscription", tag = "events",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The subscription", body = SubscriptionView), Common, Named))]
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    id: Id,
) -> Result<Response<Body>, Problem> {
    shown(&api, viewer, number(id)?).await
}

/// Drop a subscription.
#[utoipa::path(delete, path = "/v1/subscriptions/{id}", operation_id = "unsubscribe", tag = "events",
    params(("id" = i64, Path)), responses((status = 204, description = "It is gone"), Common, Named))]
pub(super) async fn drop(State(api): State<Arc<Api>>, id: Id) -> Result<Response<Body>, Problem> {
    api.operate.unsubscribe(number(id)?).await?;
    Ok(no_content())
}

/// Make messages for it again.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/enable", operation_id = "enable_subscription", tag = "events",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The subscription", body = SubscriptionView), Common, Named))]
pub(super) async fn enable(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    id: Id,
) -> Result<Response<Body>, Problem> {
    let id = number(id)?;
    api.operate.set_subscription_enabled(id, true).await?;
    shown(&api, viewer, id).await
}

/// Make no messages for it.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/disable", operation_id = "disable_subscription", tag = "events",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The subscription", body = SubscriptionView), Common, Named))]
pub(super) async fn disable(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    id: Id,
) -> Result<Response<Body>, Problem> {
    let id = number(id)?;
    api.operate.set_subscription_enabled(id, false).await?;
    shown(&api, viewer, id).await
}

async fn shown(api: &Api, viewer: Viewer, id: i64) -> Result<Response<Body>, Problem> {
    let subscription = api.operate.subscription(id).await?;
    Ok(to_response(StatusCode::OK, &viewer.subscription(subscription)))
}

/// List subscriptions by id.
#[utoipa::path(get, path = "/v1/subscriptions", operation_id = "list_subscriptions", tag = "events",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<SubscriptionView>), Common, Named))]
pub(super) async fn list(
    State(api): State<Arc<Api>>,
    viewer: Viewer,
    uri: Uri,
) -> Result<Response<Body>, Problem> {
    let mut params = Params::parse(&uri, &["limit", "cursor"])?;
    let (limit, after) = (params.limit()?, params.cursor()?);
    let found = api.operate.subscriptions(after, limit + 1).await?;
    let page = Page::of(found, limit, |last| last.id, |found| viewer.subscription(found));
    Ok(page.into_response())
}

fn number(path: Id) -> Result<i64, Problem> {
    let text = path.map(|Path(text)| text).unwrap_or_default();
    text.parse().map_err(|_| StoreError::Unknown { what: "subscription", name: text }.into())
}
