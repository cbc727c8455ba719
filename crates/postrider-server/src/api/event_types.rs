//! Event types: create, list, show, drop.

use axum::Json;
use axum::response::NoContent;
use postrider::{EventType, NewEventType};

use super::answers::{Clash, Common, Named, WithBody};
use super::authority::Viewer;
use super::extract::{EventTypeName, FromBody, JsonBody, Operator};
use super::page::{Page, Paging};
use super::problem::Problem;
use super::{Reply, created};
use crate::fields::{self, BadDocument, JsonFields};

/// Create an event type. Only events of types that exist are published; with a schema, each has to keep it.
#[utoipa::path(post, path = "/v1/event-types", operation_id = "create_event_type", tag = "events",
    request_body = NewEventType,
    responses((status = 201, description = "The event type", body = EventType, headers(("location" = String))), Common, WithBody, Clash))]
pub(super) async fn create(operate: Operator, JsonBody(new): JsonBody<NewEventType>) -> Reply {
    let made = operate.create_event_type(new).await?;
    Ok(created(&format!("/v1/event-types/{}", made.name), &made))
}

impl FromBody for NewEventType {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument> {
        let given = JsonFields::raw(body)?;
        fields::known(given.keys(), &["name", "description", "schema"])?;
        let field = |name| given.get(name).copied();
        Ok(Self {
            name: fields::required("name", fields::raw_string("name", field("name"))?)?,
            description: fields::raw_string("description", field("description"))?,
            schema: fields::json("schema", field("schema"))?,
        })
    }
}

/// Show an event type.
#[utoipa::path(get, path = "/v1/event-types/{name}", operation_id = "show_event_type", tag = "events",
    params(("name" = String, Path)),
    responses((status = 200, description = "The event type", body = EventType), Common, Named))]
pub(super) async fn show(
    operate: Operator,
    viewer: Viewer,
    EventTypeName(name): EventTypeName,
) -> Result<Json<EventType>, Problem> {
    Ok(Json(viewer.event_type(operate.event_type(&name).await?)))
}

/// Drop an event type. Its subscriptions stay: a pattern may fit other types, and the type may come back.
#[utoipa::path(delete, path = "/v1/event-types/{name}", operation_id = "drop_event_type", tag = "events",
    params(("name" = String, Path)), responses((status = 204, description = "It is dropped"), Common, Named))]
pub(super) async fn drop(
    operate: Operator,
    EventTypeName(name): EventTypeName,
) -> Result<NoContent, Problem> {
    operate.drop_event_type(&name).await?;
    Ok(NoContent)
}

/// List event types by name.
#[utoipa::path(get, path = "/v1/event-types", operation_id = "list_event_types", tag = "events",
    params(("limit" = Option<u16>, Query, minimum = 1, maximum = 1000), ("cursor" = Option<String>, Query)),
    responses((status = 200, description = "A page", body = Page<EventType>), Common, Named))]
pub(super) async fn list(
    operate: Operator,
    viewer: Viewer,
    paging: Paging<String>,
) -> Result<Page<EventType>, Problem> {
    let found = operate.event_types(paging.from.as_deref(), paging.rows()).await?;
    let items = found.into_iter().map(|event_type| viewer.event_type(event_type)).collect();
    Ok(paging.page(items, |last| last.name.clone()))
}
