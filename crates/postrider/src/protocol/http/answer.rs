//! Answers: the status decides, the body is read under a cap, the connection goes back if it can.

use std::error::Error as _;
use std::time::{Duration, SystemTime};

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use jiff::Timestamp;
use serde::Deserialize;
use tokio::time::{Instant, timeout_at};

use super::connection::{Http1, HttpConnection};
use crate::net;
use crate::sink::Delivery;
use crate::verdict::{Class, Failure, RETRY_AFTER_MAX, Receipt, ReceiverHealth};

/// Reading this much of an unwanted body is cheaper than opening another connection.
const DISCARD_BYTES_MAX: usize = 64 * 1024;
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

/// The status is known: a slow body must not cost it by running into the attempt's deadline.
const RESERVE: Duration = Duration::from_millis(100);

/// Answers that an endpoint wants tried again (`retry_status`).
#[derive(Clone, Default, Deserialize)]
#[serde(transparent)]
pub(super) struct RetryStatus(Vec<RetriedStatus>);

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum RetriedStatus {
    Code(u16),
    /// `4xx` stands for 400 to 499.
    Class(String),
}

impl RetryStatus {
    fn has_code(&self, code: u16) -> bool {
        self.0.iter().any(|listed| matches!(listed, RetriedStatus::Code(listed) if *listed == code))
    }

    fn has_class_of(&self, code: u16) -> bool {
        let class = format!("{}xx", code / 100);
        self.0.iter().any(|listed| matches!(listed, RetriedStatus::Class(listed) if *listed == class))
    }
}

pub(super) struct HttpAnswer {
    pub(super) response: http::Response<Incoming>,
    /// What it came on, if that is still open; must live until the body is read.
    pub(super) connection: Option<HttpConnection>,
    /// False where a redirect led to another origin: the connection must not be taken for one to ours.
    pub(super) keep_connection: bool,
}

impl HttpAnswer {
    /// What the answer means, and the connection if another request can use it.
    pub(super) async fn judge(
        mut self,
        delivery: &Delivery,
        retry_status: &RetryStatus,
        deadline: Instant,
    ) -> (Result<Receipt, Failure>, Option<Http1>) {
        let status = self.response.status();
        let capture = delivery.capture;
        let wanted = if status.is_success() { capture.on_success } else { capture.on_failure };
        let until = deadline.checked_sub(RESERVE).unwrap_or(deadline);
        let mut body = wanted.then(BytesMut::new);
        let whole = match &mut body {
            Some(kept) => self.read(kept, capture.bytes_max, until).await,
            None => self.discard(until).await,
        };
        let body = body.map(BytesMut::freeze);
        let result = match class(status, retry_status) {
            None => Ok(Receipt { status: Some(status.as_u16()), body }),
            Some(class) => Err(Failure {
                receiver: receiver(status, class),
                status: Some(status.as_u16()),
                retry_after: retry_after(status, self.response.headers(), delivery.now),
                body,
                ..Failure::new(class, format!("answered {}", named(status)))
            }),
        };
        match self.connection {
            Some(HttpConnection::Http1(connection)) if whole && self.keep_connection => {
                (result, Some(connection))
            }
            Some(HttpConnection::Http1(_) | HttpConnection::Http2(_)) | None => (result, None),
        }
    }

    /// An answer that nobody is told of: only its connection is of use.
    pub(super) async fn set_aside(mut self, until: Instant) -> Option<Http1> {
        let whole = self.discard(until).await;
        match self.connection {
            Some(HttpConnection::Http1(connection)) if whole && self.keep_connection => Some(connection),
            Some(HttpConnection::Http1(_) | HttpConnection::Http2(_)) | None => None,
        }
    }

    /// None when the body is longer, or did not come in time.
    pub(super) async fn whole_body(&mut self, bytes_max: usize, until: Instant) -> Option<Bytes> {
        let mut body = BytesMut::new();
        let whole = self.read(&mut body, bytes_max + 1, until).await;
        (whole && body.len() <= bytes_max).then(|| body.freeze())
    }

    async fn discard(&mut self, until: Instant) -> bool {
        if self.response.body().is_end_stream() {
            return true;
        }
        self.read(&mut BytesMut::new(), 0, until.min(Instant::now() + DISCARD_TIME_MAX)).await
    }

    /// Keeps the first bytes of the body, as far as they come in time; true when it was read to its end.
    async fn read(&mut self, kept: &mut BytesMut, bytes_max: usize, until: Instant) -> bool {
        // Most bodies arrive with the status, and then need no timer.
        if let Some(whole) = read_all(self.response.body_mut(), kept, bytes_max).now_or_never() {
            return whole;
        }
        let reading = read_all(self.response.body_mut(), kept, bytes_max);
        Box::pin(timeout_at(until, reading)).await.unwrap_or(false)
    }
}

/// True when the end was reached. May be dropped and begun again at any point.
async fn read_all(body: &mut Incoming, kept: &mut BytesMut, bytes_max: usize) -> bool {
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return false };
        let Ok(data) = frame.into_data() else { continue };
        let room = bytes_max - kept.len();
        kept.extend_from_slice(&data[..room.min(data.len())]);
        seen += data.len();
        if seen > bytes_max.max(DISCARD_BYTES_MAX) {
            return false;
        }
    }
    true
}

/// None is delivered. That a receiver is gone is worth another try only where its code is listed.
fn class(status: StatusCode, retry_status: &RetryStatus) -> Option<Class> {
    match status.as_u16() {
        200..=299 => None,
        code if retry_status.has_code(code) => Some(Class::Retryable),
        410 => Some(Class::Gone),
        code if retry_status.has_class_of(code) => Some(Class::Retryable),
        408 | 425 | 429 => Some(Class::Retryable),
        400..=499 => Some(Class::Permanent),
        _ => Some(Class::Retryable),
    }
}

/// A receiver that says 429 works, and one that refuses a message may work.
pub(super) fn receiver(status: StatusCode, class: Class) -> ReceiverHealth {
    match (class, status.as_u16()) {
        (Class::Permanent | Class::Gone, _) => ReceiverHealth::Unknown,
        (Class::Retryable, 429) => ReceiverHealth::Busy,
        (Class::Retryable, 500..=599) => ReceiverHealth::Overloaded,
        (Class::Retryable, _) => ReceiverHealth::Failing,
    }
}

pub(super) fn named(status: StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("{} {reason}", status.as_u16()),
        None => status.as_u16().to_string(),
    }
}

/// Only these two statuses mean "come back later" when they say when. A moment that is past, perhaps by the clock of the
/// receiver alone, says nothing: to take it at its word would spend all attempts at once.
pub(super) fn retry_after(status: StatusCode, headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    if !matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let asked = match text.bytes().all(|byte| byte.is_ascii_digit()) {
        true if text.is_empty() => return None,
        // Too long a number is a wish for very late.
        true => Duration::from_secs(text.parse().unwrap_or(u64::MAX)),
        false => {
            let at = httpdate::parse_http_date(text).ok()?;
            at.duration_since(SystemTime::from(now)).unwrap_or(Duration::ZERO)
        }
    };
    (!asked.is_zero()).then(|| asked.min(RETRY_AFTER_MAX))
}

/// The connection failed after the request was handed to it, so it may have arrived.
pub(super) fn lost(error: &hyper::Error) -> Failure {
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    Failure::retryable(match io {
        Some(io) => format!("the connection failed before an answer came: {}", net::short(io)),
        None if error.is_parse_too_large() => "the headers of the answer are too large".to_owned(),
        None if error.is_parse() => format!("the answer is not valid HTTP: {error}"),
        None if error.is_incomplete_message() || error.is_canceled() || error.is_closed() => {
            "the connection was closed before an answer came".to_owned()
        }
        None => format!("the request failed: {}", cause(error)),
    })
}

/// hyper's own words are general; the innermost cause says what happened.
fn cause(error: &hyper::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_status_has_the_class_that_the_contract_gives_it() {
        for code in 100..=999 {
            let expected = match code {
                200..=299 => None,
                410 => Some(Class::Gone),
                408 | 425 | 429 => Some(Class::Retryable),
                400..=499 => Some(Class::Permanent),
                _ => Some(Class::Retryable),
            };
            assert_eq!(
                class(StatusCode::from_u16(code).unwrap(), &RetryStatus::default()),
                expected,
                "{code}"
            );
        }
    }

    #[test]
    fn listed_answers_are_tried_again_and_410_only_by_its_code() {
        let class = |listed: serde_json::Value, code: u16| {
            class(StatusCode::from_u16(code).unwrap(), &serde_json::from_value(listed).unwrap())
        };
        let cases = [
            (json!([404]), 404, Some(Class::Retryable)),
            (json!([404]), 405, Some(Class::Permanent)),
            (json!(["4xx"]), 405, Some(Class::Retryable)),
            (json!(["4xx"]), 410, Some(Class::Gone)),
            (json!([404, "4xx"]), 410, Some(Class::Gone)),
            (json!(["4xx", 410]), 410, Some(Class::Retryable)),
            (json!([410]), 411, Some(Class::Permanent)),
            (json!(["3xx", "5xx"]), 404, Some(Class::Permanent)),
            (json!(["3xx", "5xx"]), 503, Some(Class::Retryable)),
            (json!([]), 410, Some(Class::Gone)),
            (json!(["4xx"]), 204, None),
        ];
        for (listed, code, expected) in cases {
            assert_eq!(class(listed.clone(), code), expected, "{listed} {code}");
        }
    }

    #[test]
    fn the_status_tells_whether_the_receiver_is_busy_failing_or_overloaded() {
        let table = [
            (500, Class::Retryable, ReceiverHealth::Overloaded),
            (503, Class::Retryable, ReceiverHealth::Overloaded),
            (408, Class::Retryable, ReceiverHealth::Failing),
            (302, Class::Retryable, ReceiverHealth::Failing),
            (429, Class::Retryable, ReceiverHealth::Busy),
            (400, Class::Permanent, ReceiverHealth::Unknown),
            (410, Class::Gone, ReceiverHealth::Unknown),
        ];
        for (code, class, expected) in table {
            assert_eq!(receiver(StatusCode::from_u16(code).unwrap(), class), expected, "{code}");
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_date_and_only_on_429_and_503() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let cases = [
            (429, "120", Some(120)),
            (503, "0", None),
            (503, "Thu, 01 Jan 2026 00:01:00 GMT", Some(60)),
            (503, "Thursday, 01-Jan-26 00:01:00 GMT", Some(60)),
            (429, "Wed, 31 Dec 2025 23:00:00 GMT", None),
            (429, "99999999999999999999999999", Some(86_400)),
            (429, "86401", Some(86_400)),
            (429, "-5", None),
            (429, "1.5", None),
            (429, "soon", None),
            (429, "", None),
            (500, "120", None),
            (200, "120", None),
            (302, "120", None),
        ];
        for (status, text, seconds) in cases {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            let asked = retry_after(StatusCode::from_u16(status).unwrap(), &headers, now);
            assert_eq!(asked, seconds.map(Duration::from_secs), "{status} {text:?}");
        }
    }
}
