//! Is the process alive, and does it get anything done?

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Response, StatusCode};

use super::problem::Problem;
use super::{Api, json_response};

pub(super) async fn livez() -> Response<Body> {
    json_response(StatusCode::OK, r#"{"status":"alive"}"#)
}

pub(super) async fn readyz(State(api): State<Arc<Api>>) -> Result<Response<Body>, Problem> {
    if (api.is_progressing)() {
        return Ok(json_response(StatusCode::OK, r#"{"status":"ready"}"#));
    }
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", "The engine makes no progress")
        .detail("the dispatcher has not turned, or the lease was not confirmed, within the last seconds"))
}
