//! What people switch at an endpoint, and trying it out.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{Request, Response, StatusCode};
use bytes::Bytes;
use jiff::Timestamp;
use postrider::NewMessage;
use postrider::engine::TrialReport;
use postrider::message::JSON;
use postrider::verdict::Class;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::answers::{self, Common, Named};
use super::body::{Held, Limit};
use super::endpoints::endpoint_name;
use super::problem::Problem;
use super::{Api, body, messages, node, to_response};
use crate::view::{EndpointView, ResponseBody, schemas};

type Name = Result<Path<String>, PathRejection>;

/// Accept sends again, and deliver.
#[utoipa::path(post, path = "/v1/endpoints/{name}/enable", operation_id = "enable_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn enable(State(api): State<Arc<Api>>, name: Name) -> Result<Response<Body>, Problem> {
    let name = endpoint_name(name)?;
    api.operate.set_endpoint_enabled(&name, true).await?;
    shown(&api, &name).await
}

/// Refuse sends; what is pending stays.
#[utoipa::path(post, path = "/v1/endpoints/{name}/disable", operation_id = "disable_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn disable(State(api): State<Arc<Api>>, name: Name) -> Result<Response<Body>, Problem> {
    let name = endpoint_name(name)?;
    api.operate.set_endpoint_enabled(&name, false).await?;
    shown(&api, &name).await
}

/// Accept sends and deliver nothing.
#[utoipa::path(post, path = "/v1/endpoints/{name}/pause", operation_id = "pause_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn pause(State(api): State<Arc<Api>>, name: Name) -> Result<Response<Body>, Problem> {
    let name = endpoint_name(name)?;
    api.operate.set_endpoint_paused(&name, true).await?;
    shown(&api, &name).await
}

/// Deliver again.
#[utoipa::path(post, path = "/v1/endpoints/{name}/resume", operation_id = "resume_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn resume(State(api): State<Arc<Api>>, name: Name) -> Result<Response<Body>, Problem> {
    let name = endpoint_name(name)?;
    api.operate.set_endpoint_paused(&name, false).await?;
    shown(&api, &name).await
}

/// Close the circuit by hand.
#[utoipa::path(post, path = "/v1/endpoints/{name}/reset", operation_id = "reset_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn reset(State(api): State<Arc<Api>>, name: Name) -> Result<Response<Body>, Problem> {
    let name = endpoint_name(name)?;
    api.operate.reset_circuit(&name).await?;
    shown(&api, &name).await
}

async fn shown(api: &Api, name: &str) -> Result<Response<Body>, Problem> {
    let endpoint = api.operate.endpoint(name).await?;
    Ok(to_response(StatusCode::OK, &EndpointView::of(&endpoint)))
}

/// What a receiver said to a test message.
#[derive(Serialize, ToSchema)]
struct Trial {
    delivered: bool,
    #[schema(required)]
    response_status: Option<u16>,
    duration_seconds: f64,
    #[serde(flatten)]
    body: ResponseBody,
    #[schema(required, schema_with = schemas::class)]
    class: Option<Class>,
    #[schema(required)]
    error: Option<String>,
}

impl From<TrialReport> for Trial {
    fn from(report: TrialReport) -> Self {
        Self {
            delivered: report.delivered,
            response_status: report.status,
            duration_seconds: report.duration.as_secs_f64(),
            body: ResponseBody::of(report.body.as_ref()),
            class: report.class,
            error: report.error,
        }
    }
}

/// Send one message outside the queue, whatever the state of the endpoint, and say what the receiver answered. The body
/// is the payload, with the same headers as for a send; without one it says that it is a test.
#[utoipa::path(post, path = "/v1/endpoints/{name}/test", operation_id = "test_endpoint", tag = "endpoints",
    params(("name" = String, Path)),
    request_body(content((serde_json::Value = "application/json"), (String = "text/plain"))),
    responses((status = 200, description = "What came of it", body = Trial), Common, Named, answers::Body))]
pub(super) async fn test(
    State(api): State<Arc<Api>>,
    name: Name,
    request: Request<Body>,
) -> Result<Response<Body>, Problem> {
    let endpoint = api.operate.endpoint(&endpoint_name(name)?).await?;
    let settings = api.operate.settings().await?;
    let (parts, body) = request.into_parts();
    let limit = Limit { bytes: settings.max_payload_bytes, setting: "max_payload_bytes" };
    let Held { bytes: body, share: _share } = body::read(&parts.headers, body, limit).await?;
    let content_type = messages::content_type(&parts.headers)?;
    let mut message = messages::from_body(endpoint.name.to_string(), &parts.headers, content_type, body)?;
    if message.payload.is_empty() {
        (message.payload, message.content_type) = (test_payload(&message), JSON.to_owned());
    }
    let enabled = postrider::Endpoint { disabled: None, ..endpoint.clone() };
    postrider::send::check(&message, &enabled, &settings)?;
    let body_bytes_max = usize::try_from(settings.response_body_max_bytes).unwrap_or(usize::MAX);
    let trial = api.node.trial(endpoint, message, body_bytes_max).ok_or_else(node::stopping)?;
    let report = tokio::select! {
        report = trial.run() => report,
        () = api.stop.cancelled() => return Err(node::stopping().into()),
    };
    Ok(to_response(StatusCode::OK, &Trial::from(report)))
}

fn test_payload(message: &NewMessage) -> Bytes {
    json!({ "type": "postrider.test", "endpoint": message.endpoint, "at": Timestamp::now() })
        .to_string()
        .into()
}
