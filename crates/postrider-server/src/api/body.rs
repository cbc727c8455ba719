//! Reads a request body. Limits the memory of one body, and of all bodies together.

use std::ops::Deref;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, EXPECT, HeaderMap};
use http_body_util::BodyExt;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::problem::Problem;

/// For bodies that are not payloads: an endpoint's definition, settings.
pub(super) const SMALL_MAX: BodyLimit = BodyLimit { bytes: 1 << 20, setting: "the API" };

/// Time for a whole body: enough for the largest batch over a slow line.
const READ_TIME_MAX: Duration = Duration::from_secs(120);

/// How much of a body that is too large is read and dropped, and for how long.
const DRAIN_BYTES_MAX: usize = 64 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// All bodies together, until their requests are answered: almost twice the largest possible body.
const TOGETHER_BYTES_MAX: usize = 256 << 20;
static TOGETHER: Semaphore = Semaphore::const_new(TOGETHER_BYTES_MAX);
/// This much of each body is not counted. Most bodies are smaller; on all connections together it is 64 MiB at most.
const UNCOUNTED_BYTES: usize = 16 << 10;
/// How long a body waits for the memory of others.
const SHARE_WAIT_MAX: Duration = Duration::from_secs(10);
const RETRY_AFTER_CROWDED_SECONDS: u32 = 1;

#[derive(Clone, Copy)]
pub(super) struct BodyLimit {
    pub(super) bytes: u64,
    pub(super) setting: &'static str,
}

impl BodyLimit {
    fn exceeded(self) -> Problem {
        Problem::too_large(self.bytes, self.setting)
    }
}

/// A body, and its share of the memory for all bodies. Keep both until the request is answered.
pub(super) struct HeldBody {
    pub(super) bytes: Bytes,
    pub(super) share: MemoryShare,
}

impl Deref for HeldBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

#[derive(Default)]
pub(super) struct MemoryShare(Option<SemaphorePermit<'static>>);

/// Why a body is refused.
enum RefusedBody {
    Encoded,
    TooLarge,
    Crowded,
    Broken(axum::Error),
}

pub(super) async fn read(headers: &HeaderMap, body: Body, limit: BodyLimit) -> Result<HeldBody, Problem> {
    read_with_room(headers, body, limit, 0).await
}

/// `room` is for the parts of the body that the limit is not about.
pub(super) async fn read_with_room(
    headers: &HeaderMap,
    mut body: Body,
    limit: BodyLimit,
    room: u64,
) -> Result<HeldBody, Problem> {
    let bytes_max = limit.bytes + room;
    // A client that sends `Expect` and a length waits for the answer first: when it is refused, no body follows.
    let nothing_comes = headers.contains_key(EXPECT) && body.size_hint().lower() > 0;
    let reading = async {
        match is_encoded(headers) {
            true => Err(RefusedBody::Encoded),
            false => whole(&mut body, bytes_max as usize).await,
        }
    };
    let Ok(read) = tokio::time::timeout(READ_TIME_MAX, reading).await else {
        let title = "The body did not arrive in time";
        return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "slow-body", title)
            .detail(format!("a body has {} seconds", READ_TIME_MAX.as_secs())));
    };
    let problem = match read {
        Ok(held) => return Ok(held),
        Err(RefusedBody::Encoded) => encoded(),
        Err(RefusedBody::TooLarge) => limit.exceeded(),
        Err(RefusedBody::Crowded) => crowded(),
        Err(RefusedBody::Broken(error)) => {
            return Err(Problem::new(
                StatusCode::BAD_REQUEST,
                "broken-body",
                "The body did not arrive whole",
            )
            .detail(error.to_string()));
        }
    };
    if !nothing_comes {
        drain(body).await;
    }
    Err(problem)
}

/// A payload is delivered byte for byte, and its receiver would not learn that it is compressed.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn encoded() -> Problem {
    let title = "The body has a content encoding";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "encoded-body", title).detail(
        "bodies are taken as they are, so `content-encoding` can only be identity; for a payload that is compressed, \
         say so to its receiver by the header `postrider-header-content-encoding`",
    )
}

async fn whole(body: &mut Body, bytes_max: usize) -> Result<HeldBody, RefusedBody> {
    let expected = body.size_hint().lower();
    if expected > bytes_max as u64 {
        return Err(RefusedBody::TooLarge);
    }
    // Take the whole share before reading: bodies that grow side by side would wait for each other.
    let mut share = MemoryShare::default();
    share.grow_to(expected as usize).await?;
    let (mut chunks, mut length) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(chunk) = frame.map_err(RefusedBody::Broken)?.into_data() else { continue };
        length += chunk.len();
        if length > bytes_max {
            return Err(RefusedBody::TooLarge);
        }
        share.grow_to(length).await?;
        chunks.push(chunk);
    }
    let bytes = if chunks.len() == 1 { chunks.remove(0) } else { chunks.concat().into() };
    Ok(HeldBody { bytes, share })
}

impl MemoryShare {
    async fn grow_to(&mut self, bytes: usize) -> Result<(), RefusedBody> {
        let counted = self.0.as_ref().map_or(0, SemaphorePermit::num_permits);
        let more = bytes.saturating_sub(UNCOUNTED_BYTES).saturating_sub(counted);
        if more == 0 {
            return Ok(());
        }
        let more = TOGETHER.acquire_many(u32::try_from(more).unwrap_or(u32::MAX));
        let more =
            tokio::time::timeout(SHARE_WAIT_MAX, more).await.map_err(|_elapsed| RefusedBody::Crowded)?;
        let more = more.expect("the semaphore is never closed");
        match &mut self.0 {
            Some(share) => share.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

fn crowded() -> Problem {
    let (mebibytes, seconds) = (TOGETHER_BYTES_MAX >> 20, SHARE_WAIT_MAX.as_secs());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-bodies", "Too much is being sent at once")
        .detail(format!(
            "the bodies of all requests together take at most {mebibytes} MiB; there was no room for {seconds} s"
        ))
        .retry_after(RETRY_AFTER_CROWDED_SECONDS)
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
    // Answer now, whether the time is over or everything is read.
    let _ = tokio::time::timeout(DRAIN_TIME_MAX, reading).await;
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::response::IntoResponse;
    use futures_util::FutureExt;
    use hyper::body::{Frame, SizeHint};

    use super::*;

    const LARGE: u64 = 60 << 20;
    const LARGE_MAX: BodyLimit = BodyLimit { bytes: 64 << 20, setting: "the API" };

    /// Announces this many bytes and never sends them.
    struct Announced(u64);

    impl HttpBody for Announced {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_that_are_too_much_together_are_refused_until_others_are_done() {
        let headers = HeaderMap::new();
        let announced = || read(&headers, Body::new(Announced(LARGE)), LARGE_MAX);
        let refused = async || {
            let answer = announced().await.err().expect("it never comes").into_response();
            (answer.status(), answer.headers().contains_key("retry-after"))
        };
        let mut others: Vec<_> = (0..4).map(|_| Box::pin(announced())).collect();
        assert!(others.iter_mut().all(|other| other.now_or_never().is_none()));
        assert_eq!(refused().await, (StatusCode::SERVICE_UNAVAILABLE, true));
        assert!(read(&headers, Body::from("small"), SMALL_MAX).await.is_ok(), "what is small always fits");

        others.pop();
        let whole =
            read(&headers, Body::from(vec![0; LARGE as usize]), LARGE_MAX).await.expect("room for one");
        assert_eq!(
            refused().await,
            (StatusCode::SERVICE_UNAVAILABLE, true),
            "it is held until it is answered"
        );
        drop(whole);
        assert!(announced().now_or_never().is_none(), "and read again");
        let (status, _) = refused().await;
        assert_eq!(status, StatusCode::REQUEST_TIMEOUT, "there is room for it, but it never comes");
    }
}
