//! The API's description (OpenAPI 3.1), made from the handlers and from the shapes that they answer with.

use axum::Extension;
use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::{MethodRouter, get};
use bytes::Bytes;
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
    modifiers(&Tokens),
    tags((name = "endpoints"), (name = "messages"), (name = "events"), (name = "dead letters"), (name = "replays"), (name = "system"), (name = "tokens"), (name = "health"))
)]
pub(super) struct Document;

struct Tokens;

impl Modify for Tokens {
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

#[derive(Clone)]
struct Written(Bytes);

/// This description.
#[utoipa::path(get, path = "/v1/openapi.json", operation_id = "show_api", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = Object), Common))]
async fn show(Extension(Written(json)): Extension<Written>) -> Response<Body> {
    json_response(StatusCode::OK, json)
}

/// It never changes, so it is written once.
pub(super) fn route<S: Clone + Send + Sync + 'static>(
    document: &utoipa::openapi::OpenApi,
) -> MethodRouter<S> {
    let json = document.to_pretty_json().expect("a description becomes JSON");
    get(show).layer(Extension(Written(json.into())))
}
