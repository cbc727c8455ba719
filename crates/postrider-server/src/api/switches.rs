//! What people switch at an endpoint, and trying it out.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::Request;
use bytes::Bytes;
use jiff::Timestamp;
use postrider::NewMessage;
use postrider::engine::TestDeliveryReport;
use postrider::message::JSON;
use serde_json::json;

use super::answers::{Common, Named, WithBody};
use super::body::{BodyLimit, HeldBody};
use super::extract::{EndpointName, Operator};
use super::problem::Problem;
use super::{Api, body, messages, node};
use crate::view::EndpointView;

type ShownEndpoint = Result<Json<EndpointView>, Problem>;

/// Accept sends again, and deliver.
#[utoipa::path(post, path = "/v1/endpoints/{name}/enable", operation_id = "enable_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn enable(operate: Operator, EndpointName(name): EndpointName) -> ShownEndpoint {
    operate.set_endpoint_enabled(&name, true).await?;
    shown(&operate, &name).await
}

/// Refuse sends; what is pending stays.
#[utoipa::path(post, path = "/v1/endpoints/{name}/disable", operation_id = "disable_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn disable(operate: Operator, EndpointName(name): EndpointName) -> ShownEndpoint {
    operate.set_endpoint_enabled(&name, false).await?;
    shown(&operate, &name).await
}

/// Accept sends and deliver nothing.
#[utoipa::path(post, path = "/v1/endpoints/{name}/pause", operation_id = "pause_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn pause(operate: Operator, EndpointName(name): EndpointName) -> ShownEndpoint {
    operate.set_endpoint_paused(&name, true).await?;
    shown(&operate, &name).await
}

/// Deliver again.
#[utoipa::path(post, path = "/v1/endpoints/{name}/resume", operation_id = "resume_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn resume(operate: Operator, EndpointName(name): EndpointName) -> ShownEndpoint {
    operate.set_endpoint_paused(&name, false).await?;
    shown(&operate, &name).await
}

/// Close the circuit by hand.
#[utoipa::path(post, path = "/v1/endpoints/{name}/reset", operation_id = "reset_endpoint", tag = "endpoints",
    params(("name" = String, Path)), responses((status = 200, description = "The endpoint", body = EndpointView), Common, Named))]
pub(super) async fn reset(operate: Operator, EndpointName(name): EndpointName) -> ShownEndpoint {
    operate.reset_circuit(&name).await?;
    shown(&operate, &name).await
}

async fn shown(operate: &Operator, name: &str) -> ShownEndpoint {
    Ok(Json(EndpointView::of(&operate.endpoint(name).await?)))
}

/// Send one message outside the queue, whatever the state of the endpoint, and say what the receiver answered. The body
/// is the payload, with the same headers as for a send; without one it says that it is a test.
#[utoipa::path(post, path = "/v1/endpoints/{name}/test", operation_id = "test_endpoint", tag = "endpoints",
    params(("name" = String, Path)),
    request_body(content((serde_json::Value = "application/json"), (String = "text/plain"))),
    responses((status = 200, description = "What came of it", body = TestDeliveryReport), Common, Named, WithBody))]
pub(super) async fn test(
    State(api): State<Arc<Api>>,
    EndpointName(name): EndpointName,
    request: Request<Body>,
) -> Result<Json<TestDeliveryReport>, Problem> {
    let endpoint = api.operate.endpoint(&name).await?;
    let settings = api.operate.settings().await?;
    let (parts, body) = request.into_parts();
    let limit = BodyLimit { bytes: settings.max_payload_bytes, setting: "max_payload_bytes" };
    let HeldBody { bytes: body, share: _share } = body::read(&parts.headers, body, limit).await?;
    let content_type = messages::content_type(&parts.headers)?;
    let mut message = messages::from_body(endpoint.name.to_string(), &parts.headers, content_type, body)?;
    if message.payload.is_empty() {
        (message.payload, message.content_type) = (test_payload(&message), JSON.to_owned());
    }
    let enabled = postrider::Endpoint { disabled: None, ..endpoint.clone() };
    postrider::send::check(&message, &enabled, &settings)?;
    let body_bytes_max = usize::try_from(settings.response_body_max_bytes).unwrap_or(usize::MAX);
    let trial = api.node.test_delivery(endpoint, message, body_bytes_max).ok_or_else(node::stopping)?;
    let report = tokio::select! {
        report = trial.run() => report,
        () = api.stop.cancelled() => return Err(node::stopping().into()),
    };
    Ok(Json(report))
}

fn test_payload(message: &NewMessage) -> Bytes {
    json!({ "type": "postrider.test", "endpoint": message.endpoint, "at": Timestamp::now() })
        .to_string()
        .into()
}
