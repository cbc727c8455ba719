//! RFC 9457 problem documents: every error of the API looks like this.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use postrider::{Invalid, StoreError};
use serde::Serialize;
use utoipa::ToSchema;

use crate::envelope::BadEnvelope;

/// A full queue drains in seconds or not at all; asking more often than this helps nobody.
const RETRY_AFTER_FULL_SECONDS: u32 = 5;
const RETRY_AFTER_UNAVAILABLE_SECONDS: u32 = 1;

pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// Why a request was refused (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// `urn:postrider:problem:…`; docs/api.md lists them.
    #[serde(rename = "type", serialize_with = "as_urn")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16)]
    status: StatusCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// The field that broke a rule, as a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// The line of a batch that was refused, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
    /// The code that names the same error in SQL.
    #[serde(skip_serializing_if = "Option::is_none")]
    sqlstate: Option<&'static str>,
    #[serde(skip)]
    #[schema(ignore)]
    retry_after_seconds: Option<u32>,
    #[serde(skip)]
    #[schema(ignore)]
    allow: Option<Allow>,
}

/// The methods of routes that share a path with others, which the router cannot tell apart.
#[derive(Clone, Copy, Debug)]
pub(super) enum Allow {
    Get,
    GetAndDelete,
    Post,
}

impl Allow {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET,HEAD",
            Self::GetAndDelete => "GET,HEAD,DELETE",
            Self::Post => "POST",
        }
    }
}

impl Problem {
    pub(super) fn new(status: StatusCode, kind: &'static str, title: &'static str) -> Self {
        Self {
            kind,
            title,
            status,
            detail: None,
            field: None,
            line: None,
            sqlstate: None,
            retry_after_seconds: None,
            allow: None,
        }
    }

    pub(super) fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        StoreError::Invalid(Invalid::new(field, rule)).into()
    }

    pub(super) fn too_large(limit: u64, setting: &str) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large")
            .detail(format!("the body is larger than {setting} allows, which is {limit} bytes"))
            .sqlstate("54000")
    }

    #[must_use]
    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    #[must_use]
    fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    #[must_use]
    pub(super) fn line(mut self, line: usize) -> Self {
        self.line = u32::try_from(line).ok();
        self
    }

    #[must_use]
    fn sqlstate(mut self, sqlstate: &'static str) -> Self {
        self.sqlstate = Some(sqlstate);
        self
    }

    /// The router says so itself where it knows.
    #[must_use]
    pub(super) fn allow(mut self, methods: Allow) -> Self {
        self.allow = Some(methods);
        self
    }

    #[must_use]
    pub(super) fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-json", "The body is not the JSON that is asked for")
            .detail(error.to_string())
    }
}

impl From<BadEnvelope> for Problem {
    fn from(bad: BadEnvelope) -> Self {
        match bad {
            BadEnvelope::Json(error) => error.into(),
            BadEnvelope::Value(invalid) => StoreError::Invalid(invalid).into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let problem = match &error {
            StoreError::Invalid(invalid) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-value", "A value breaks a rule")
                    .field(invalid.field.clone())
            }
            StoreError::Unknown { .. } => {
                Self::new(StatusCode::NOT_FOUND, "unknown", "What was asked for does not exist")
            }
            StoreError::Disabled { .. } => {
                Self::new(StatusCode::CONFLICT, "endpoint-disabled", "The endpoint is disabled")
            }
            StoreError::IdempotencyConflict { .. } => Self::new(
                StatusCode::CONFLICT,
                "idempotency-conflict",
                "The idempotency key belongs to another payload",
            )
            .field("idempotency_key"),
            StoreError::Exists { .. } => Self::new(StatusCode::CONFLICT, "exists", "The name is taken"),
            StoreError::Conflict(_) => {
                Self::new(StatusCode::CONFLICT, "conflict", "That cannot be done in its present state")
            }
            StoreError::QueueFull { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "queue-full", "The queue is full")
                    .retry_after(RETRY_AFTER_FULL_SECONDS)
            }
            StoreError::TooLarge { field, .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large")
                    .field(*field)
            }
            StoreError::Unavailable(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "The store is not available now",
            )
            .retry_after(RETRY_AFTER_UNAVAILABLE_SECONDS),
            StoreError::Unusable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "store-unusable", "The store needs a person")
            }
        };
        if problem.status.is_server_error() {
            tracing::warn!(%error, "A request could not be served");
        }
        problem.detail(error.to_string()).sqlstate(error.sqlstate())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let document = serde_json::to_vec(&self).expect("a problem becomes JSON");
        let mut response = Response::new(Body::from(document));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(methods) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(methods.as_str()));
        }
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

fn as_urn<S: serde::Serializer>(kind: &&str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("urn:postrider:problem:{kind}"))
}

fn as_number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}
