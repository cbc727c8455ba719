//! A real HTTP server on a free port of loopback that remembers what it was sent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

pub(super) type Received = Request<Bytes>;
type Respond = dyn Fn(&Received) -> Response<Full<Bytes>> + Send + Sync;

#[derive(Clone, Copy)]
pub(super) enum Speaks {
    Http1,
    Http2,
}

pub(super) struct Server {
    pub(super) address: SocketAddr,
    seen: Arc<Seen>,
    stop: CancellationToken,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<Received>>,
    connections: Mutex<usize>,
}

impl Server {
    pub(super) async fn start(
        respond: impl Fn(&Received) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap(), Speaks::Http1, None, respond).await
    }

    pub(super) async fn ok() -> Self {
        Self::start(|_| status(200)).await
    }

    pub(super) async fn start_at(
        address: SocketAddr,
        speaks: Speaks,
        tls: Option<tokio_rustls::TlsAcceptor>,
        respond: impl Fn(&Received) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(address).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let stop = CancellationToken::new();
        let accepting = accept(stop.clone(), listener, speaks, tls, Arc::new(respond), Arc::clone(&seen));
        let accepting = tokio::spawn(accepting);
        Self { address, seen, stop, accepting }
    }

    /// Returns when its port and every connection are closed.
    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.accepting.await.unwrap();
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn received(&self) -> Vec<Received> {
        self.seen.requests.lock().unwrap().clone()
    }

    /// The only request there was.
    #[track_caller]
    pub(super) fn only(&self) -> Received {
        let mut received = self.received();
        assert_eq!(received.len(), 1, "one request was expected");
        received.remove(0)
    }

    pub(super) fn connections(&self) -> usize {
        *self.seen.connections.lock().unwrap()
    }
}

async fn accept(
    stop: CancellationToken,
    listener: TcpListener,
    speaks: Speaks,
    tls: Option<tokio_rustls::TlsAcceptor>,
    respond: Arc<Respond>,
    seen: Arc<Seen>,
) {
    let mut connections = JoinSet::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, _) = accepted.unwrap();
        *seen.connections.lock().unwrap() += 1;
        let (respond, seen) = (Arc::clone(&respond), Arc::clone(&seen));
        match tls.clone() {
            None => drop(connections.spawn(serve(stream, speaks, respond, seen))),
            Some(tls) => drop(connections.spawn(async move {
                if let Ok(stream) = tls.accept(stream).await {
                    let speaks = match stream.get_ref().1.alpn_protocol() {
                        Some(b"h2") => Speaks::Http2,
                        _ => Speaks::Http1,
                    };
                    serve(stream, speaks, respond, seen).await;
                }
            })),
        }
    }
    connections.shutdown().await;
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    speaks: Speaks,
    respond: Arc<Respond>,
    seen: Arc<Seen>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (respond, seen) = (Arc::clone(&respond), Arc::clone(&seen));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let received = Request::from_parts(parts, body);
            let response = respond(&received);
            seen.requests.lock().unwrap().push(received);
            Ok::<_, hyper::Error>(response)
        }
    });
    let stream = TokioIo::new(stream);
    // What a client does to a connection is the client's business.
    let _ = match speaks {
        Speaks::Http1 => hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await,
        Speaks::Http2 => {
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(stream, service)
                .await
        }
    };
}

pub(super) fn status(code: u16) -> Response<Full<Bytes>> {
    answer(code, "")
}

pub(super) fn answer(code: u16, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::builder().status(code).body(Full::new(body.into())).unwrap()
}

#[track_caller]
pub(super) fn header<'r>(request: &'r Received, name: &str) -> &'r str {
    match request.headers().get(name) {
        Some(value) => value.to_str().unwrap(),
        None => panic!("{name} was not sent"),
    }
}
