//! The listening side: HTTP/1.1 connections, each with limits, all stopping when asked.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::gate::Gate;

/// Far above what one machine's senders open, far below what its file descriptors allow.
const CONNECTIONS_MAX: usize = 4096;
/// A connection that does not finish its request's head by then is closed.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait when the machine has no descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long a connection may take to ask or to read, when nothing else keeps the node from ending.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Accepts until `stop`, then lets the requests under way finish. From `drained` on, only those that have come whole.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    gate: Gate,
    stop: CancellationToken,
    drained: CancellationToken,
) {
    let gate = Arc::new(gate);
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Some((stream, place)) = next(&listener, &places, &stop).await {
        let ends = (stop.clone(), drained.clone());
        connections.spawn(connection(stream, router.clone(), Arc::clone(&gate), ends, place));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    stop: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let accepted = async {
        let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return (stream, place),
                Err(error) => {
                    tracing::warn!(%error, "A connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => None,
        accepted = accepted => Some(accepted),
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    gate: Arc<Gate>,
    (stop, drained): (CancellationToken, CancellationToken),
    _place: OwnedSemaphorePermit,
) {
    // Answers are small and written whole: waiting for more to send only adds latency.
    let _ = stream.set_nodelay(true);
    let cut = CancellationToken::new();
    // Whoever watches it is told that it has ended.
    let _ended = cut.clone().drop_guard();
    let of_request = cut.clone();
    let is_asked = Arc::new(AtomicBool::new(false));
    let of_requests = Arc::clone(&is_asked);
    let service = service_fn(move |request| {
        let (router, gate) = (router.clone(), Arc::clone(&gate));
        respond(router, gate, of_request.clone(), Arc::clone(&of_requests), request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = cut.run_until_cancelled(async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = last_words(&drained, &is_asked) => Ok(()),
                }
            }
        }
    });
    if let Some(Err(error)) = ended.await {
        tracing::debug!(%error, "A connection ended early");
    }
}

/// Ends when nobody need wait for the connection any more.
async fn last_words(drained: &CancellationToken, is_asked: &AtomicBool) {
    drained.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
    while is_asked.load(Relaxed) {
        tokio::time::sleep(LAST_WORDS).await;
    }
}

/// The gate stands here and not in a layer: it costs no boxed future on the way of every send.
async fn respond(
    mut router: Router,
    gate: Arc<Gate>,
    connection: CancellationToken,
    is_asked: Arc<AtomicBool>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let answer = match gate.admit(&mut request, connection).await {
        Ok(()) => {
            is_asked.store(request.body().is_end_stream(), Relaxed);
            let tells = |body| Body::new(TellsItsEnd { body, is_asked: Arc::clone(&is_asked) });
            router.call(request.map(tells)).await
        }
        Err(problem) => Ok(problem.into_response()),
    };
    is_asked.store(false, Relaxed);
    answer
}

/// The body of a request. When all of it is here, it is the node's turn.
struct TellsItsEnd {
    body: Incoming,
    is_asked: Arc<AtomicBool>,
}

impl HttpBody for TellsItsEnd {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) {
            self.is_asked.store(true, Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
