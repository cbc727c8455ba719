//! The API's description (OpenAPI 3.1), made from the handlers and from the shapes that they answer with.

use axum::Extension;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayItems, Schema};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme};
use utoipa::{Modify, OpenApi};

use super::answers::Common;
use super::{dlq, json_response, messages, metrics, replays};
use crate::view::ProblemView;

const ABOUT: &str = "Reliable delivery out of your database. Errors are problem documents (RFC 9457). Lists answer \
`{\"items\": […], \"next\": cursor or null}` and go on with `?cursor=`. Without tokens a node listens on loopback only; \
with tokens every request but `/livez` and `/readyz` needs one.";

/// What no single handler says. The paths here share a route with others, which the router cannot tell apart.
#[derive(OpenApi)]
#[openapi(
    info(title = "Postrider", description = ABOUT),
    paths(messages::reschedule, messages::erase, dlq::redrive, dlq::discard, replays::stop, replays::resume, metrics::show, show),
    components(schemas(ProblemView)),
    modifiers(&TokenSecurity),
    tags((name = "endpoints"), (name = "messages"), (name = "events"), (name = "dead letters"), (name = "replays"), (name = "system"), (name = "tokens"), (name = "health"))
)]
pub(super) struct Document;

struct TokenSecurity;

impl Modify for TokenSecurity {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer);
        let scheme = scheme.description(Some("`postrider token create NAME SCOPE` makes one"));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme.build()));
        // A node without tokens asks for none.
        let optional = SecurityRequirement::default();
        document.security = Some(vec![SecurityRequirement::new::<_, _, &str>("token", []), optional]);
    }
}

/// Records of the library. They are answered with all of their fields: a value that is missing is null.
pub(super) const RECORDS: [&str; 21] = [
    "Attempt",
    "DeadLetterRecord",
    "DlqSummary",
    "EndpointHealth",
    "EndpointStatus",
    "EventType",
    "Figure",
    "ListedDeadLetter",
    "ListedMessage",
    "LoggedEvent",
    "MessageRecord",
    "Node",
    "NodeLimits",
    "Replay",
    "ReplayPreview",
    "ReplaySample",
    "ReplaySelection",
    "Sent",
    "Status",
    "Subscription",
    "TestDeliveryReport",
];

/// Says so in the description.
pub(super) fn require_all_fields(document: &mut utoipa::openapi::OpenApi) {
    let schemas = &mut document.components.get_or_insert_default().schemas;
    for name in RECORDS {
        if let Some(RefOr::T(schema)) = schemas.get_mut(name) {
            require_all(schema);
        }
        // A page has its items inline.
        if let Some(RefOr::T(Schema::Object(page))) = schemas.get_mut(&format!("Page_{name}"))
            && let Some(RefOr::T(Schema::Array(items))) = page.properties.get_mut("items")
            && let ArrayItems::RefOrSchema(item) = &mut items.items
            && let RefOr::T(item) = &mut **item
        {
            require_all(item);
        }
    }
}

fn require_all(schema: &mut Schema) {
    match schema {
        Schema::Object(object) => object.required = object.properties.keys().cloned().collect(),
        Schema::AllOf(parts) => parts.items.iter_mut().for_each(|part| {
            if let RefOr::T(part) = part {
                require_all(part);
            }
        }),
        _ => {}
    }
}

#[derive(Clone)]
struct WrittenDocument(Bytes);

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", operation_id = "show_api", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = Object), Common))]
async fn show(Extension(WrittenDocument(json)): Extension<WrittenDocument>) -> Response<Body> {
    json_response(StatusCode::OK, json)
}

/// It never changes, so it is written once.
pub(super) fn route<S: Clone + Send + Sync + 'static>(
    document: &utoipa::openapi::OpenApi,
) -> MethodRouter<S> {
    let json = document.to_pretty_json().expect("a description becomes JSON");
    get(show).layer(Extension(WrittenDocument(json.into())))
}
