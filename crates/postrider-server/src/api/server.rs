//! The listening side: HTTP/1.1 connections, each with limits, all stopping when asked.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use axum::response::IntoResponse;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::clients::{Client, Clients, Phase};
use super::gate::{ApiGate, is_probe};
use super::wire::Wire;

/// Without free descriptors many accepts fail a second; the log says so once in this time.
const TELL_INTERVAL: Duration = Duration::from_secs(10);

/// At the end of a stop: how long a client has to complete its request, or to read its answer.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Accepts until `stop`, then lets the requests under way finish; after `drained` only those that have arrived completely.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    gate: ApiGate,
    connections_max: usize,
    stop: CancellationToken,
    drained: CancellationToken,
) {
    let gate = Arc::new(gate);
    let connections = TaskTracker::new();
    let clients = Clients::up_to(connections_max);
    let mut told_at = None;
    while let Some((stream, client)) = stop.run_until_cancelled(next(&listener, &clients, &mut told_at)).await
    {
        let ends = (stop.clone(), drained.clone());
        connections.spawn(connection(stream, router.clone(), Arc::clone(&gate), ends, client));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn next(
    listener: &TcpListener,
    clients: &Arc<Clients>,
    told_at: &mut Option<Instant>,
) -> (TcpStream, Client) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, clients.enter().await),
            Err(error) => {
                if told_at.is_none_or(|at| at.elapsed() >= TELL_INTERVAL) {
                    *told_at = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept connections; closing a waiting client for each");
                }
                clients.make_room().await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    router: Router,
    gate: Arc<ApiGate>,
    (stop, drained): (CancellationToken, CancellationToken),
    client: Client,
) {
    // Answers are small and written whole: waiting for more to send only adds latency.
    let _ = stream.set_nodelay(true);
    let client = Arc::new(client);
    let of_requests = Arc::clone(&client);
    let service = service_fn(move |request| {
        respond(router.clone(), Arc::clone(&gate), Arc::clone(&of_requests), request)
    });
    let wire = TokioIo::new(Wire::new(stream, Arc::clone(&client)));
    let connection = http1::Builder::new().header_read_timeout(None).serve_connection(wire, service);
    tokio::pin!(connection);
    // Watchers of a long answer learn by this that the connection has ended.
    let cut = client.cut();
    let _ended = cut.clone().drop_guard();
    let ended = cut.run_until_cancelled(async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = last_words(&drained, &client) => Ok(()),
                }
            }
        }
    });
    if let Some(Err(error)) = ended.await {
        tracing::debug!(%error, "A connection ended early");
    }
}

/// Ends when the stop need not wait for this connection any more.
async fn last_words(drained: &CancellationToken, client: &Client) {
    drained.cancelled().await;
    tokio::time::sleep(LAST_WORDS).await;
    while client.phase() == Phase::Busy {
        tokio::time::sleep(LAST_WORDS).await;
    }
}

/// The gate is called here and not in a layer, which would cost every send a boxed future.
async fn respond(
    mut router: Router,
    gate: Arc<ApiGate>,
    client: Arc<Client>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    // A probe is answered at once, however busy the node is.
    let turn = match is_probe(request.uri()) {
        true => None,
        false => match client.turn().await {
            Ok(turn) => Some(turn),
            Err(problem) => {
                client.is_at(Phase::Idle);
                return Ok(problem.into_response());
            }
        },
    };
    client.is_at(if request.body().is_end_stream() { Phase::Busy } else { Phase::Body });
    let answer = match gate.admit(&mut request, client.cut()).await {
        Ok(()) => {
            let noted = |body| Body::new(WatchedBody { body, client: Arc::clone(&client) });
            router.call(request.map(noted)).await
        }
        Err(problem) => Ok(problem.into_response()),
    };
    // An answer of a known size is written at once, unless the client does not read.
    if answer.as_ref().is_ok_and(|answer| answer.body().size_hint().exact().is_none()) {
        client.is_at(Phase::Busy);
        return answer
            .map(|answer| answer.map(|body| Body::new(LongAnswerBody { body, client, _turn: turn })));
    }
    client.is_at(Phase::Idle);
    answer
}

/// The body of a request. Notes when it has arrived completely.
struct WatchedBody {
    body: Incoming,
    client: Arc<Client>,
}

impl HttpBody for WatchedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(None) => self.client.is_at(Phase::Busy),
            Poll::Ready(Some(_)) => self.client.is_at(Phase::Body),
            Poll::Pending => {}
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

/// The body of a long answer. Its client is busy until it ends.
struct LongAnswerBody {
    body: Body,
    client: Arc<Client>,
    _turn: Option<OwnedSemaphorePermit>,
}

impl HttpBody for LongAnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for LongAnswerBody {
    fn drop(&mut self) {
        self.client.is_at(Phase::Idle);
    }
}
