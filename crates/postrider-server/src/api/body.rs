//! Reading a request body under a limit: it is refused as soon as it is known to be too large, and
//! never more than the limit is held.

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::problem::Problem;

/// For bodies that are not payloads: an endpoint's definition.
pub(super) const SMALL_MAX: Limit = Limit { bytes: 1 << 20, setting: "the API" };

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

pub(super) async fn read(body: Body, limit: Limit) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > limit.bytes {
        return Err(limit.exceeded());
    }
    match Limited::new(body, limit.bytes as usize).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(limit.exceeded()),
        Err(error) => {
            Err(Problem::new(StatusCode::BAD_REQUEST, "broken-body", "The body did not arrive whole")
                .detail(error.to_string()))
        }
    }
}
