//! The HTTP API under `/v1`: JSON in, JSON out, problem documents for what is refused.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use postrider::Operate;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use document::Document;
use limits::Limits;
use problem::Problem;

mod answers;
mod authority;
mod batch;
mod body;
mod config;
mod dlq;
mod document;
mod endpoints;
mod fields;
mod gate;
mod health;
mod keys;
mod limits;
mod listing;
mod messages;
mod node;
mod page;
mod problem;
mod send_options;
mod server;
mod switches;
mod system;
mod tail;
mod tokens;
mod wanted;

pub(crate) use gate::Gate;
pub(crate) use node::Node;
pub(crate) use server::serve;

/// What every handler holds. It can send and look; it cannot claim.
pub(crate) struct Api {
    operate: Arc<dyn Operate>,
    node: Arc<dyn Node>,
    limits: Limits,
    /// Answers that go on for long end then.
    stop: CancellationToken,
}

impl Api {
    pub(crate) fn new(operate: Arc<dyn Operate>, node: Arc<dyn Node>, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self { operate, node, limits: Limits::default(), stop })
    }
}

pub(crate) fn router(api: Arc<Api>) -> Router {
    let (router, document) = documented().split_for_parts();
    router
        .route("/v1/openapi.json", document::route(&document))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(api)
}

/// Every route with its description: what is added here is described, or does not compile.
fn documented() -> OpenApiRouter<Arc<Api>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(endpoints::create, endpoints::list))
        .routes(routes!(endpoints::show, endpoints::change, endpoints::drop))
        .routes(routes!(switches::enable))
        .routes(routes!(switches::disable))
        .routes(routes!(switches::pause))
        .routes(routes!(switches::resume))
        .routes(routes!(switches::reset))
        .routes(routes!(switches::test))
        .routes(routes!(messages::send))
        .routes(routes!(batch::send))
        .routes(routes!(listing::list))
        .routes(routes!(messages::show, messages::cancel))
        .route("/v1/messages/{id}", post(messages::act))
        .routes(routes!(dlq::list))
        .routes(routes!(dlq::summary))
        .routes(routes!(dlq::show))
        .route("/v1/dlq/{id}", post(dlq::act))
        .routes(routes!(dlq::release_key))
        .routes(routes!(config::show, config::change))
        .routes(routes!(system::status))
        .routes(routes!(system::event_log))
        .routes(routes!(system::nodes))
        .routes(routes!(system::pause))
        .routes(routes!(system::resume))
        .routes(routes!(tail::tail))
        .routes(routes!(tokens::create, tokens::list))
        .routes(routes!(tokens::revoke))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
}

/// The same server answering an empty 202: the yardstick of `postrider bench`.
pub(crate) fn with_empty_route(router: Router) -> Router {
    router.route(
        "/bench/empty",
        post(async |headers: HeaderMap, body: Body| {
            match body::read(&headers, body, body::SMALL_MAX).await {
                Ok(_) => StatusCode::ACCEPTED.into_response(),
                Err(problem) => problem.into_response(),
            }
        }),
    )
}

async fn unknown_route(uri: Uri) -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "unknown-route", "There is no such route")
        .detail(format!("{} is not a route; docs/api.md lists them", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", "This route has no such method")
        .detail(format!("{method} is not for {}", uri.path()))
}

fn to_response(status: StatusCode, answer: &impl Serialize) -> Response<Body> {
    json_response(status, serde_json::to_vec(answer).expect("an answer becomes JSON"))
}

fn no_content() -> Response<Body> {
    StatusCode::NO_CONTENT.into_response()
}

fn json_response(status: StatusCode, json: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(json.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
