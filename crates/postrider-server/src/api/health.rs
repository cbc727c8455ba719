//! Is the process alive, and does it get anything done?

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};
use serde_json::json;
use utoipa::ToSchema;

use super::problem::Problem;
use super::{Api, json_response};
use crate::view::ProblemView;

#[derive(ToSchema)]
#[expect(dead_code, reason = "describes an answer")]
struct Health {
    status: String,
    /// Sessions of the database that hold a lock which this node waits for; left out where there are none.
    in_the_way: Option<Vec<String>>,
}

/// Does the process live?
#[utoipa::path(get, path = "/livez", operation_id = "livez", tag = "health", security(),
    responses((status = 200, description = "It does", body = Health)))]
pub(super) async fn livez() -> Response<Body> {
    json_response(StatusCode::OK, r#"{"status":"alive"}"#)
}

/// Does the engine get anything done?
#[utoipa::path(get, path = "/readyz", operation_id = "readyz", tag = "health", security(),
    responses((status = 200, description = "It does", body = Health),
        (status = 503, description = "The dispatcher does not turn, the lease is not confirmed, or the node cannot join the store yet", body = ProblemView, content_type = "application/problem+json")))]
pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    let in_the_way = api.operate.in_the_way();
    if api.node.is_progressing() {
        let ready = match in_the_way.is_empty() {
            true => json!({ "status": "ready" }),
            false => json!({ "status": "ready", "in_the_way": in_the_way }),
        };
        return Ok(json_response(StatusCode::OK, ready.to_string()));
    }
    let mut why = vec![match api.node.waits_for() {
        Some(why) => format!("the node could not join the store yet and tries again: {why}"),
        None => "the dispatcher has not turned, or the lease was not confirmed, within the last seconds"
            .to_owned(),
    }];
    why.extend(in_the_way);
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "The engine makes no progress")
        .detail(why.join("; ")))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use postrider::SqliteStore;
    use postrider::store::sqlite::SqliteOptions;
    use tokio_util::sync::CancellationToken;
    use tower_service::Service;

    use super::*;
    use crate::api::node::tests::Stopped;

    #[tokio::test]
    async fn an_engine_that_makes_no_progress_is_not_ready_but_alive() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = SqliteStore::open(SqliteOptions::tool(folder.path().join("a.db"))).expect("a store");
        let api = Api::new(Arc::new(store), Arc::new(Stopped), None, CancellationToken::new());
        let mut router = crate::api::router(api);
        for (path, status) in [("/readyz", 503), ("/livez", 200)] {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            assert_eq!(router.call(request).await.expect("an answer").status(), status, "{path}");
        }
    }
}
