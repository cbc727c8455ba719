//! The HTTP API under `/v1`: JSON in, JSON out, problem documents for what is refused.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Response, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use postrider::Operate;
use postrider::trace::Tracer;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use document::Document;
use limits::Limits;
use long::LongAnswers;
use problem::{Allow, Problem};

mod answers;
mod aside;
mod authority;
mod batch;
mod body;
mod clients;
mod config;
mod dlq;
mod document;
mod endpoints;
mod event_types;
mod events;
mod extract;
mod figures;
mod gate;
mod health;
mod limits;
mod listing;
mod long;
mod messages;
mod metrics;
mod node;
mod page;
mod problem;
mod replays;
mod send_options;
mod server;
mod subscriptions;
mod sweeps;
mod switches;
mod system;
mod tail;
mod token_cache;
mod tokens;
mod trace;
mod wanted;
mod wire;

pub(crate) use gate::ApiGate;
pub(crate) use metrics::with_metrics;
pub(crate) use node::NodeHandle;
#[cfg(test)]
pub(crate) use node::tests::Stopped;
pub(crate) use page::PAGE_MAX;
pub(crate) use server::serve;

/// What every handler holds. It can send and look; it cannot claim.
pub(crate) struct Api {
    operate: Arc<dyn Operate>,
    node: Arc<dyn NodeHandle>,
    limits: Limits,
    long_answers: LongAnswers,
    tracer: Option<Tracer>,
    /// What takes a while ends then.
    stop: CancellationToken,
}

impl Api {
    pub(crate) fn new(
        operate: Arc<dyn Operate>,
        node: Arc<dyn NodeHandle>,
        tracer: Option<Tracer>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let long_answers = LongAnswers::new(node.limits(), stop.clone());
        Arc::new(Self { operate, node, limits: Limits::default(), long_answers, tracer, stop })
    }
}

pub(crate) fn router(api: Arc<Api>) -> Router {
    let (router, mut document) = documented().split_for_parts();
    document::require_all_fields(&mut document);
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
        .routes(routes!(events::publish))
        .routes(routes!(event_types::create, event_types::list))
        .routes(routes!(event_types::show, event_types::drop))
        .routes(routes!(subscriptions::create, subscriptions::list))
        .routes(routes!(subscriptions::show, subscriptions::drop))
        .routes(routes!(subscriptions::enable))
        .routes(routes!(subscriptions::disable))
        .routes(routes!(listing::list))
        .routes(routes!(messages::show, messages::cancel))
        .route("/v1/messages/{id}", post(messages::act))
        .routes(routes!(dlq::list))
        .routes(routes!(dlq::summary))
        .routes(routes!(dlq::show))
        .route("/v1/dlq/{id}", post(dlq::act))
        .routes(routes!(sweeps::redrive))
        .routes(routes!(sweeps::discard))
        .routes(routes!(dlq::release_key))
        .routes(routes!(replays::start, replays::list))
        .routes(routes!(replays::show))
        .route("/v1/replays/{id}", post(replays::act))
        .routes(routes!(config::show, config::change))
        .routes(routes!(system::status))
        .routes(routes!(figures::list))
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

/// The same server with a route that answers an empty 202: the yardstick of `postrider bench`.
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
    let problem =
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong-method", "This route has no such method")
            .detail(format!("{method} is not for {}", uri.path()));
    // The router takes `{id}:redrive` for an id, and would list the methods of both.
    match uri.path().split('/').skip(1).collect::<Vec<_>>().as_slice() {
        [.., last] if last.contains(':') => problem.allow(Allow::Post),
        ["v1", "messages", _] => problem.allow(Allow::GetAndDelete),
        ["v1", "dlq" | "replays", _] => problem.allow(Allow::Get),
        _ => problem,
    }
}

/// What a handler answers where the status or the headers differ from time to time.
type Reply = Result<Response<Body>, Problem>;

fn to_response(status: StatusCode, answer: &impl Serialize) -> Response<Body> {
    json_response(status, serde_json::to_vec(answer).expect("an answer becomes JSON"))
}

/// 201, and where it is from now on.
fn created(location: &str, answer: &impl Serialize) -> Response<Body> {
    let mut response = to_response(StatusCode::CREATED, answer);
    if let Ok(location) = HeaderValue::try_from(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

fn json_response(status: StatusCode, json: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(json.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use axum::http::Request;
    use http_body_util::BodyExt;
    use postrider::SqliteStore;
    use postrider::store::sqlite::SqliteOptions;
    use serde_json::Value;
    use tower_service::Service;

    use super::node::tests::Stopped;
    use super::*;

    fn described() -> Value {
        serde_json::to_value(documented().into_openapi()).expect("a description is JSON")
    }

    /// What the router itself says that it knows.
    fn paths(router: &Router) -> BTreeSet<String> {
        let known = format!("{router:?}");
        let quoted = known.split('"').skip(1).step_by(2);
        // What the fallback is made of is not among them.
        let is_route = |text: &&str| text.len() > 1 && text.starts_with('/') && !text.contains("fallback");
        quoted.filter(is_route).map(str::to_owned).collect()
    }

    fn router_of_a_new_store(folder: &tempfile::TempDir) -> Router {
        let store = SqliteStore::open(SqliteOptions::tool(folder.path().join("a.db"))).expect("a store");
        router(Api::new(Arc::new(store), Arc::new(Stopped), None, CancellationToken::new()))
    }

    #[test]
    fn every_record_is_described() {
        let described = described();
        let schemas = &described["components"]["schemas"];
        let missing: Vec<&str> =
            document::RECORDS.into_iter().filter(|name| schemas.get(name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[tokio::test]
    async fn every_route_of_the_router_is_described() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let routes = paths(&router_of_a_new_store(&folder));
        let described = described();
        let undescribed: Vec<&String> =
            routes.iter().filter(|path| described["paths"].get(path.as_str()).is_none()).collect();
        assert!(routes.len() > 20, "{routes:?}");
        assert!(undescribed.is_empty(), "{undescribed:?}");
    }

    #[tokio::test]
    async fn every_described_operation_is_a_route_and_answers_as_described() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut router = router_of_a_new_store(&folder);
        let described = described();
        // The page of figures needs an engine, and is added with it.
        let paths =
            described["paths"].as_object().expect("paths").iter().filter(|(path, _)| *path != "/metrics");
        for (path, operations) in paths {
            for (method, operation) in operations.as_object().expect("operations") {
                let uri = path.replace("{name}", "nobody").replace("{id}", "1").replace("{prefix}", "pr_x");
                let request = Request::builder().method(method.to_uppercase().as_str()).uri(&uri);
                let answer =
                    router.call(request.body(Body::empty()).expect("a request")).await.expect("an answer");
                let status = answer.status();
                let body = answer.into_body().collect().await.expect("a body").to_bytes();
                let kind = serde_json::from_slice::<Value>(&body).unwrap_or_default()["type"].to_string();
                assert!(
                    !kind.contains("unknown-route") && !kind.contains("wrong-method"),
                    "{method} {path}: {kind}"
                );
                let described = operation["responses"].get(status.as_str()).is_some();
                assert!(described, "{method} {path}: {status} is not described");
            }
        }
    }
}
