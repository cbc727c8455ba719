//! The HTTP API under `/v1`: JSON in, JSON out, problem documents for what is refused.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use postrider::Operate;
use postrider::trace::Tracer;

use limits::Limits;
use problem::Problem;

mod body;
mod endpoints;
mod fields;
mod gate;
mod health;
mod limits;
mod messages;
mod metrics;
mod problem;
mod send_options;
mod server;
mod trace;

pub(crate) use metrics::with_metrics;
pub(crate) use server::serve;

/// What every handler holds. It can send and look; it cannot claim.
pub(crate) struct Api {
    operate: Arc<dyn Operate>,
    limits: Limits,
    is_progressing: Box<dyn Fn() -> bool + Send + Sync>,
    tracer: Option<Tracer>,
}

impl Api {
    pub(crate) fn new(
        operate: Arc<dyn Operate>,
        is_progressing: impl Fn() -> bool + Send + Sync + 'static,
        tracer: Option<Tracer>,
    ) -> Arc<Self> {
        let is_progressing = Box::new(is_progressing);
        Arc::new(Self { operate, limits: Limits::default(), is_progressing, tracer })
    }
}

pub(crate) fn router(api: Arc<Api>) -> Router {
    Router::new()
        .route("/v1/endpoints", post(endpoints::create).get(endpoints::list))
        .route("/v1/endpoints/{name}", get(endpoints::show))
        .route("/v1/endpoints/{name}/messages", post(messages::send))
        .route("/v1/messages/{id}", get(messages::show))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(api)
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

fn json_response(status: StatusCode, json: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(json.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
