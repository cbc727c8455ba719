//! Reading a request body under a limit: never more than the limit is held.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use bytes::Bytes;
use http::header::{EXPECT, HeaderMap};
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::problem::Problem;

/// For bodies that are not payloads: an endpoint's definition, settings.
pub(super) const SMALL_MAX: Limit = Limit { bytes: 1 << 20, setting: "the API" };

/// For the whole of a body: enough for the largest batch over a slow line.
const READ_TIME_MAX: Duration = Duration::from_secs(120);

/// How much of a body that is too large is read and dropped, and for how long.
const DRAIN_BYTES_MAX: usize = 64 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

#[derive(Clone, Copy)]
pub(super) struct Limit {
    pub(super) bytes: u64,
    pub(super) setting: &'static str,
}

impl Limit {
    fn exceeded(self) -> Problem {
        Problem::too_large(self.bytes, self.setting)
    }
}

pub(super) async fn read(headers: &HeaderMap, body: Body, limit: Limit) -> Result<Bytes, Problem> {
    read_with_room(headers, body, limit, 0).await
}

/// For a body that has more in it than what is limited.
pub(super) async fn read_with_room(
    headers: &HeaderMap,
    mut body: Body,
    limit: Limit,
    room: u64,
) -> Result<Bytes, Problem> {
    let bytes_max = limit.bytes + room;
    if body.size_hint().lower() > bytes_max {
        // Whoever asks first has sent nothing yet, and need not.
        if !headers.contains_key(EXPECT) {
            drain(body).await;
        }
        return Err(limit.exceeded());
    }
    let reading = Limited::new(&mut body, bytes_max as usize).collect();
    let read = match tokio::time::timeout(READ_TIME_MAX, reading).await {
        Ok(read) => read,
        Err(_elapsed) => {
            return Err(Problem::new(
                StatusCode::REQUEST_TIMEOUT,
                "slow-body",
                "The body did not arrive in time",
            )
            .detail(format!("a body has {} seconds", READ_TIME_MAX.as_secs())));
        }
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            drain(body).await;
            Err(limit.exceeded())
        }
        Err(error) => {
            Err(Problem::new(StatusCode::BAD_REQUEST, "broken-body", "The body did not arrive whole")
                .detail(error.to_string()))
        }
    }
}

/// Closing a connection that still has bytes to read resets it, and a client that writes its whole body
/// before it reads would never see the answer.
async fn drain(mut body: Body) {
    let mut left = DRAIN_BYTES_MAX;
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => return,
            }
        }
    };
    // Time is up, or all is read: either way it is answered now.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, reading).await;
}
