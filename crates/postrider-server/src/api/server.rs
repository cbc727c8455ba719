//! The listening side: HTTP/1.1 connections, each with limits, all stopping when asked.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use hyper::body::Incoming;
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

/// Accepts until `stop`, then lets the requests under way finish.
pub(crate) async fn serve(listener: TcpListener, router: Router, gate: Gate, stop: CancellationToken) {
    let gate = Arc::new(gate);
    let connections = TaskTracker::new();
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Some((stream, place)) = next(&listener, &places, &stop).await {
        connections.spawn(connection(stream, router.clone(), Arc::clone(&gate), stop.clone(), place));
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
    stop: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    // Answers are small and written whole: waiting for more to send only adds latency.
    let _ = stream.set_nodelay(true);
    let cut = CancellationToken::new();
    // Whoever watches it is told that it has ended.
    let _ended = cut.clone().drop_guard();
    let of_request = cut.clone();
    let service =
        service_fn(move |request| respond(router.clone(), Arc::clone(&gate), of_request.clone(), request));
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
                connection.await
            }
        }
    });
    if let Some(Err(error)) = ended.await {
        tracing::debug!(%error, "A connection ended early");
    }
}

/// The gate stands here and not in a layer: it costs no boxed future on the way of every send.
async fn respond(
    mut router: Router,
    gate: Arc<Gate>,
    connection: CancellationToken,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    match gate.admit(&mut request, connection).await {
        Ok(()) => router.call(request.map(Body::new)).await,
        Err(problem) => Ok(problem.into_response()),
    }
}
