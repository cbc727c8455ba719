//! Subscriptions: create, list, show, drop, enable and disable.

use axum::Json;
use axum::http::StatusCode;
use axum::response::NoContent;
use postrider::{NewSubscription, Subscribed, Subscription};

use super::answers::{Common, Named, WithBody};
use super::authority::Viewer;
use super::extract::{FromBody, JsonBody, Operator, SubscriptionNumber};
use super::page::{Page, Paging};
use super::problem::Problem;
use super::{Reply, created};
use crate::fields::{self, BadDocument, JsonFields};

/// Subscribe an endpoint to an event type or a pattern. The same again, with the same filter and template, finds the
/// subscription that exists.
#[utoipa::path(post, path = "/v1/subscriptions", operation_id = "subscribe", tag = "events",
    request_body = NewSubscription,
    responses((status = 201, description = "The subscription", body = Subscription, headers(("location" = String))),
        (status = 200, description = "The subscription that exists, as it is", body = Subscription, headers(("location" = String))),
        Common, Named, WithBody))]
pub(super) async fn create(operate: Operator, JsonBody(new): JsonBody<NewSubscription>) -> Reply {
    let Subscribed { subscription, existed } = operate.subscribe(new).await?;
    let mut response = created(&format!("/v1/subscriptions/{}", subscription.id), &subscription);
    if existed {
        *response.status_mut() = StatusCode::OK;
    }
    Ok(response)
}

impl FromBody for NewSubscription {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let given = JsonFields::raw(body)?;
        fields::known(given.keys(), &["pattern", "endpoint", "filter", "template"])?;
        let field = |name| given.get(name).copied();
        let text = |name| fields::required(name, fields::raw_string(name, field(name))?);
        Ok(Self {
            pattern: text("pattern")?,
            endpoint: text("endpoint")?,
            filter: fields::json("filter", field("filter"))?,
            template: fields::json("template", field("template"))?,
        })
    }
}

/// Show a subscription.
#[utoipa::path(get, path = "/v1/subscriptions/{id}", operation_id = "show_subscription", tag = "events",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The subscription", body = Subscription), Common, Named))]
pub(super) async fn show(
    operate: Operator,
    viewer: Viewer,
    SubscriptionNumber(id): SubscriptionNumber,
) -> Result<Json<Subscription>, Problem> {
    Ok(Json(viewer.subscription(operate.subscription(id).await?)))
}

/// Drop a subscription.
#[utoipa::path(delete, path = "/v1/subscriptions/{id}", operation_id = "unsubscribe", tag = "events",
    params(("id" = i64, Path)), responses((status = 204, description = "It is dropped"), Common, Named))]
pub(super) async fn drop(
    operate: Operator,
    SubscriptionNumber(id): SubscriptionNumber,
) -> Result<NoContent, Problem> {
    operate.unsubscribe(id).await?;
    Ok(NoContent)
}

/// Make messages for it again.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/enable", operation_id = "enable_subscription", tag = "events",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The subscription", body = Subscription), Common, Named))]
pub(super) async fn enable(
    operate: Operator,
    viewer: Viewer,
    id: SubscriptionNumber,
) -> Result<Json<Subscription>, Problem> {
    operate.set_subscription_enabled(id.0, true).await?;
    show(operate, viewer, id).await
}

/// Make no messages for it.
#[utoipa::path(post, path = "/v1/subscriptions/{id}/disable", operation_id = "disable_subscription", tag = "events",
    params(("id" = i64, Path)),
    responses((status = 200, description = "The subscription", body = Subscription), Common, Named))]
pub(super) async fn disable(
    operate: Operator,
    viewer: Viewer,
    id: SubscriptionNumber,
) -> Result<Json<Subscription>, Problem> {
    operate.set_subscription_enabled(id.0, false).await?;
    show(operate, viewer, id).await
}

/// List subscriptions by id.
#[utoipa::path(get, path = "/v1/subscriptions", operation_id = "list_subscriptions", tag = "events",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<Subscription>), Common, Named))]
pub(super) async fn list(
    operate: Operator,
    viewer: Viewer,
    paging: Paging<i64>,
) -> Result<Page<Subscription>, Problem> {
    let found = operate.subscriptions(paging.from, paging.rows()).await?;
    let items = found.into_iter().map(|subscription| viewer.subscription(subscription)).collect();
    Ok(paging.page(items, |last| last.id))
}
