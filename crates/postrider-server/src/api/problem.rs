//! RFC 9457 problem documents: every error of the API looks like this.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use postrider::{Invalid, StoreError};

use crate::fields::BadDocument;
use crate::view::ProblemView;

/// A full queue drains in seconds or not at all; asking more often does not help.
const RETRY_AFTER_FULL_SECONDS: u32 = 5;
const RETRY_AFTER_UNAVAILABLE_SECONDS: u32 = 1;

pub(super) const MEDIA_TYPE: &str = "application/problem+json";

/// The document for a request that is no HTTP/1.1, or whose head is too large to be read. None for any other status.
pub(super) fn not_http(status: StatusCode) -> Option<Vec<u8>> {
    let (kind, title, detail) = match status {
        StatusCode::BAD_REQUEST => (
            "malformed",
            "The request is not HTTP/1.1",
            "its first line or one of its headers cannot be read",
        ),
        StatusCode::URI_TOO_LONG => {
            ("uri-too-long", "The path of the request is too long", "it may have 65534 bytes")
        }
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            ("head-too-large", "The head of the request is too large", "it may have 100 headers, and 400 KiB")
        }
        _ => return None,
    };
    let problem = Problem::new(status, kind, title).detail(detail);
    Some(serde_json::to_vec(&problem.document).expect("a problem becomes JSON"))
}

/// Why a request was refused, and what its answer's head says.
#[derive(Debug)]
pub(super) struct Problem {
    document: Box<ProblemView>,
    retry_after_seconds: Option<u32>,
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
        ProblemView::new(status, kind, title).into()
    }

    pub(super) fn invalid(field: impl Into<String>, rule: impl Into<String>) -> Self {
        StoreError::Invalid(Invalid::new(field, rule)).into()
    }

    pub(super) fn too_large(limit: u64, setting: &str) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", "The request is too large")
            .detail(format!("the body is larger than {setting} allows, which is {limit} bytes"))
            .limited(limit, setting)
    }

    fn limited(mut self, limit: u64, setting: &str) -> Self {
        self.document.sqlstate = Some("54000".into());
        (self.document.limit, self.document.setting) = (Some(limit), Some(setting.to_owned().into()));
        self
    }

    #[must_use]
    pub(super) fn detail(mut self, detail: impl Into<String>) -> Self {
        self.document.detail = Some(detail.into());
        self
    }

    #[must_use]
    pub(super) fn line(mut self, line: usize) -> Self {
        self.document.line = u32::try_from(line).ok();
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

impl From<ProblemView> for Problem {
    fn from(document: ProblemView) -> Self {
        Self { document: Box::new(document), retry_after_seconds: None, allow: None }
    }
}

impl From<serde_json::Error> for Problem {
    fn from(error: serde_json::Error) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad-json", "The body is not the JSON that is asked for")
            .detail(error.to_string())
    }
}

impl From<BadDocument> for Problem {
    fn from(bad: BadDocument) -> Self {
        match bad {
            BadDocument::Json(error) => error.into(),
            BadDocument::Value(invalid) => StoreError::Invalid(invalid).into(),
        }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let document = ProblemView::from(&error);
        if document.status >= 500 {
            tracing::warn!(%error, "A request could not be served");
        }
        let retry_after_seconds = match error {
            StoreError::QueueFull { .. } => Some(RETRY_AFTER_FULL_SECONDS),
            StoreError::Unavailable(_) => Some(RETRY_AFTER_UNAVAILABLE_SECONDS),
            _ => None,
        };
        Self { retry_after_seconds, ..document.into() }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let document = serde_json::to_vec(&self.document).expect("a problem becomes JSON");
        let mut response = Response::new(Body::from(document));
        let status = StatusCode::from_u16(self.document.status).expect("problems have valid statuses");
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        if status == StatusCode::UNAUTHORIZED {
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
