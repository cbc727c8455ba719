//! Open connections, and what becomes of a request that is sent on one.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, select};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioExecutor;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::lost;
use super::origin::{Origin, as_http1, as_http2};
use super::{Request, RequestBody};
use crate::sink::hand_over;
use crate::verdict::Failure;

/// After the end of a connection of HTTP/2, for answers that it brought. Few requests ever wait that long: those that were
/// queued in the instant it ended.
const HANDOVER_TIME_MAX: Duration = Duration::from_secs(1);

/// A connection that requests can be sent on. Dropping it closes it.
pub(super) enum HttpConnection {
    Http1(Http1),
    Http2(Http2),
}

/// What became of a request.
pub(super) enum SendOutcome {
    /// With the connection, if that is still open.
    Answered(http::Response<Incoming>, Option<HttpConnection>),
    /// Not a byte of it was written.
    Returned(Request),
    /// It may have arrived.
    Lost(Failure),
}

impl HttpConnection {
    /// Sends a request that is in the form of HTTP/1.
    pub(super) fn send(self, request: Request, origin: &Origin) -> impl Future<Output = SendOutcome> + use<> {
        hand_over();
        match self {
            Self::Http1(connection) => Either::Left(connection.send(request)),
            Self::Http2(connection) => Either::Right(connection.send(as_http2(request, origin)).boxed()),
        }
    }
}

impl SendOutcome {
    fn new(
        result: Result<http::Response<Incoming>, TrySendError<Request>>,
        on: Option<HttpConnection>,
    ) -> Self {
        match result {
            Ok(response) => Self::Answered(response, on),
            Err(mut error) => match error.take_message() {
                Some(request) => Self::Returned(as_http1(request)),
                None => Self::Lost(lost(&error.into_error())),
            },
        }
    }
}

pub(super) struct Http1 {
    sender: http1::SendRequest<RequestBody>,
    driver: Driver,
}

impl Http1 {
    pub(super) fn new<S>(
        sender: http1::SendRequest<RequestBody>,
        connection: http1::Connection<S, RequestBody>,
    ) -> Self
    where
        S: Read + Write + Unpin + Send + 'static,
    {
        Self { sender, driver: Driver(tokio::spawn(connection.map(drop))) }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.sender.is_ready()
    }

    /// False when it was closed.
    pub(super) async fn ready(&mut self) -> bool {
        self.sender.ready().await.is_ok()
    }

    /// A request can reach the queue of a connection just after the driver looked there for the last time.
    /// It lies there for as long as there is a sender, so the sender must go when the driver has gone.
    fn send(mut self, request: Request) -> impl Future<Output = SendOutcome> {
        let sent = self.sender.try_send_request(request);
        async move {
            let mut sent = pin!(sent);
            let mut connection = Some(self);
            let result = poll_fn(|cx| match sent.as_mut().poll(cx) {
                Poll::Pending if connection.as_mut().is_some_and(|open| open.driver.has_ended(cx)) => {
                    connection = None;
                    sent.as_mut().poll(cx)
                }
                polled => polled,
            });
            let result = result.await;
            SendOutcome::new(result, connection.map(HttpConnection::Http1))
        }
    }
}

/// Shared by all requests to an origin.
#[derive(Clone)]
pub(super) struct Http2 {
    sender: http2::SendRequest<RequestBody>,
    ended: CancellationToken,
    _driver: Arc<Driver>,
}

impl Http2 {
    pub(super) fn new<S>(
        sender: http2::SendRequest<RequestBody>,
        connection: http2::Connection<S, RequestBody, TokioExecutor>,
    ) -> Self
    where
        S: Read + Write + Unpin + Send + 'static,
    {
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        let driver = Driver(tokio::spawn(async move {
            let _ended = guard;
            drop(connection.await);
        }));
        Self { sender, ended, _driver: Arc::new(driver) }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// As with HTTP/1, but other requests hold senders too: a request that the ended driver never read fails. Answers
    /// that it did read are handed over by tasks of their own, which may run a little later.
    async fn send(mut self, request: Request) -> SendOutcome {
        let sent = pin!(self.sender.try_send_request(request));
        let ended = pin!(self.ended.clone().cancelled_owned());
        let result = match select(sent, ended).await {
            Either::Left((result, _)) => Some(result),
            Either::Right(((), sent)) => timeout(HANDOVER_TIME_MAX, sent).await.ok(),
        };
        match result {
            Some(result) => SendOutcome::new(result, Some(HttpConnection::Http2(self))),
            None => {
                SendOutcome::Lost(Failure::retryable("the connection was closed before the request was sent"))
            }
        }
    }
}

/// The task that moves a connection's bytes; it ends with its owner, whatever the receiver does.
struct Driver(JoinHandle<()>);

impl Driver {
    /// Wakes the task when it has. Must not be asked again after that.
    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        self.0.poll_unpin(cx).is_ready()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    use hyper_util::rt::TokioIo;

    use super::*;

    const TRIES_MAX: u32 = 20_000;
    const TIME_MAX: Duration = Duration::from_secs(3);
    const PATIENCE: Duration = Duration::from_secs(5);

    /// Returns in both places at once.
    fn meet(arrived: &AtomicU32) {
        arrived.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0_u32;
        while arrived.load(Ordering::SeqCst) < 2 {
            spins += 1;
            // The other one may need this core to get here.
            if spins.is_multiple_of(1000) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Over a socket the two hardly ever meet. Let go at once, they do in one of some thousand tries.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_request_that_is_queued_in_the_instant_its_connection_ends_does_not_wait_there() {
        let began = Instant::now();
        let mut tries = 0;
        while tries < TRIES_MAX && began.elapsed() < TIME_MAX {
            tries += 1;
            let (ours, _theirs) = tokio::io::duplex(64);
            let (sender, mut connection) =
                http1::handshake::<_, RequestBody>(TokioIo::new(ours)).await.unwrap();
            // It has looked into its queue, and is ready for a request.
            assert!(futures_util::poll!(&mut connection).is_pending());
            let here = Arc::new(AtomicU32::new(0));
            let there = Arc::clone(&here);
            let driver = Driver(tokio::spawn(async move {
                meet(&there);
                (0..tries % 64).for_each(|_| std::hint::spin_loop());
                drop(connection);
            }));
            let open = Http1 { sender, driver };
            meet(&here);
            let sent = open.send(Request::new(RequestBody::default()));
            match tokio::time::timeout(PATIENCE, sent).await {
                Ok(SendOutcome::Returned(_)) => {}
                Ok(SendOutcome::Answered(..) | SendOutcome::Lost(_)) => panic!("nothing of it was written"),
                Err(_) => panic!("it hangs, after {tries} tries"),
            }
        }
    }
}
