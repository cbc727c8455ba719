//! HTTP/2 with receivers that are slow, limit streams, reset them, or end the connection. Nothing is taken for delivered
//! that was not answered, and what failed can be sent again.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use h2::Reason;
use h2::server::{Connection, SendResponse};
use postrider::sink::{Delivery, Sink};
use postrider::verdict::Class;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::gate::Answers;
use super::support::*;
use crate::authority::Authority;
use postrider::sink::{Environment, connect};

const PATIENCE: Duration = Duration::from_secs(20);

/// What it does with each connection, told its number from 0.
type Script = dyn Fn(usize, Peer) -> futures_util::future::BoxFuture<'static, ()> + Send + Sync;

struct Peer {
    connection: Connection<Box<dyn Wire>, Bytes>,
    answered: Arc<Mutex<BTreeSet<String>>>,
}

trait Wire: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Wire for S {}

/// A stream that waits for its answer: the id of its message.
type Waiting = (String, SendResponse<Bytes>);

impl Peer {
    /// The next request, read to its end.
    async fn request(&mut self) -> Option<Waiting> {
        let (request, respond) = self.connection.accept().await?.ok()?;
        let id = request.headers()["webhook-id"].to_str().unwrap().to_owned();
        Some((id, respond))
    }

    fn answer(&self, (id, mut respond): Waiting) {
        self.answered.lock().unwrap().insert(id);
        let response = http::Response::builder().status(200).body(()).unwrap();
        respond.send_response(response, true).unwrap();
    }

    /// Answers all that comes, until the other side is gone.
    async fn serve(mut self) {
        while let Some(waiting) = self.request().await {
            self.answer(waiting);
        }
    }
}

struct H2Server {
    address: SocketAddr,
    connections: Arc<Mutex<usize>>,
    answered: Arc<Mutex<BTreeSet<String>>>,
    _tasks: JoinSet<()>,
}

impl H2Server {
    async fn start<F>(
        tls: Option<TlsAcceptor>,
        streams_max: u32,
        script: impl Fn(usize, Peer) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let script: Arc<Script> = Arc::new(move |number, peer| Box::pin(script(number, peer)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, answered) =
            (Arc::<Mutex<usize>>::default(), Arc::<Mutex<BTreeSet<String>>>::default());
        let (counted, kept) = (Arc::clone(&connections), Arc::clone(&answered));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                *counted.lock().unwrap() += 1;
                let (tls, script, answered) = (tls.clone(), Arc::clone(&script), Arc::clone(&kept));
                open.spawn(async move {
                    let stream = encrypted(stream, tls).await;
                    let mut builder = h2::server::Builder::new();
                    builder.max_concurrent_streams(streams_max);
                    let connection = builder.handshake(stream).await.unwrap();
                    script(number, Peer { connection, answered }).await;
                });
            }
        });
        Self { address, connections, answered, _tasks: tasks }
    }

    fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    fn answered(&self) -> BTreeSet<String> {
        self.answered.lock().unwrap().clone()
    }

    fn sink(&self) -> Arc<dyn Sink> {
        http_sink(json!({"url": format!("http://{}/", self.address), "http2": true}))
    }
}

async fn encrypted(stream: TcpStream, tls: Option<TlsAcceptor>) -> Box<dyn Wire> {
    match tls {
        None => Box::new(stream),
        Some(tls) => {
            let stream = tls.accept(stream).await.unwrap();
            assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
            Box::new(stream)
        }
    }
}

fn deliveries(count: i64) -> Vec<Delivery> {
    (0..count).map(|number| delivery(message(number, "{}"))).collect()
}

#[track_caller]
fn assert_none(failed: &[(Delivery, String)]) {
    let errors: Vec<&str> = failed.iter().map(|(_, error)| error.as_str()).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

/// Until none fails. What failed is tried again, as the engine does it.
async fn deliver_until_done(server: &H2Server, sink: &Arc<dyn Sink>, mut left: Vec<Delivery>) {
    while !left.is_empty() {
        left = deliver_all(server, sink, &left).await.into_iter().map(|(sent, _)| sent).collect();
    }
}

/// Those that failed, and why. The others were answered by the receiver, which is checked.
async fn deliver_all(server: &H2Server, sink: &Arc<dyn Sink>, sent: &[Delivery]) -> Vec<(Delivery, String)> {
    let delivering = join_all(sent.iter().map(|sent| sink.deliver(sent)));
    let results = tokio::time::timeout(PATIENCE, delivering).await.expect("every delivery ends");
    let mut failed = Vec::new();
    for (sent, result) in sent.iter().zip(results) {
        match result {
            Ok(_) => assert!(server.answered().contains(&sent.public_id()), "{}", sent.public_id()),
            Err(undelivered) => {
                let failure = undelivered.failed();
                assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
                failed.push((sent.clone(), failure.error));
            }
        }
    }
    failed
}

/// Answers nothing until so many requests wait.
async fn answer_together(mut peer: Peer, count: usize) {
    let mut waiting = Vec::new();
    while waiting.len() < count {
        waiting.push(peer.request().await.unwrap());
    }
    waiting.into_iter().for_each(|waiting| peer.answer(waiting));
    peer.serve().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_streams_are_open_at_once_on_one_connection() {
    let authority = Authority::new();
    for tls in [None, Some(authority.acceptor("receiver.test", &["h2"]))] {
        let is_encrypted = tls.is_some();
        let server = H2Server::start(tls, 200, |_, peer| answer_together(peer, 100)).await;
        let sink = match is_encrypted {
            false => server.sink(),
            true => {
                let url = format!("https://receiver.test:{}/", server.address.port());
                let config = json!({"url": url, "tls": {"ca": authority.pem()}});
                let resolver = Answers::new(&[&["127.0.0.1"]]);
                connect(&endpoint("http", config), &Environment { resolver, ..open_environment() }).unwrap()
            }
        };
        assert_none(&deliver_all(&server, &sink, &deliveries(100)).await);
        assert_eq!((server.answered().len(), server.connections()), (100, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_beyond_what_the_receiver_takes_at_once_wait_for_their_turn() {
    let server = H2Server::start(None, 4, |_, peer| peer.serve()).await;
    let sink = server.sink();
    assert_none(&deliver_all(&server, &sink, &deliveries(64)).await);
    assert_eq!((server.answered().len(), server.connections()), (64, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_stream_fails_alone_and_can_be_sent_again() {
    for reason in [Reason::REFUSED_STREAM, Reason::INTERNAL_ERROR, Reason::CANCEL, Reason::NO_ERROR] {
        let server = H2Server::start(None, 200, move |_, mut peer| async move {
            let mut number = 0;
            while let Some(mut waiting) = peer.request().await {
                match number % 3 {
                    0 => waiting.1.send_reset(reason),
                    _ => peer.answer(waiting),
                }
                number += 1;
            }
        })
        .await;
        let sink = server.sink();
        let failed = deliver_all(&server, &sink, &deliveries(30)).await;
        assert_eq!(failed.len(), 10, "{reason}");
        deliver_until_done(&server, &sink, failed.into_iter().map(|(sent, _)| sent).collect()).await;
        assert_eq!((server.answered().len(), server.connections()), (30, 1), "{reason}");
    }
}

/// The first connection ends politely after ten requests; tells when it has ended.
async fn ending_politely() -> (H2Server, Arc<Semaphore>) {
    let ended = Arc::new(Semaphore::new(0));
    let tell = Arc::clone(&ended);
    let server = H2Server::start(None, 200, move |number, mut peer| {
        let tell = Arc::clone(&tell);
        async move {
            if number > 0 {
                return peer.serve().await;
            }
            let mut waiting = Vec::new();
            while waiting.len() < 10 {
                waiting.push(peer.request().await.unwrap());
            }
            peer.connection.graceful_shutdown();
            waiting.into_iter().for_each(|waiting| peer.answer(waiting));
            peer.serve().await;
            tell.add_permits(1);
        }
    })
    .await;
    (server, ended)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_goaway_what_was_begun_is_finished_and_the_rest_takes_a_new_connection() {
    // An answer that comes with the end of its connection is handed over by another task: once is not enough.
    for _ in 0..50 {
        let (server, ended) = ending_politely().await;
        let sink = server.sink();
        assert_none(&deliver_all(&server, &sink, &deliveries(10)).await);
        // Some of these may meet the first connection while it ends.
        deliver_until_done(&server, &sink, deliveries(20).split_off(10)).await;
        let _ended = tokio::time::timeout(PATIENCE, ended.acquire()).await.expect("it ends").unwrap();
        assert_none(&deliver_all(&server, &sink, &deliveries(40).split_off(20)).await);
        assert_eq!((server.answered().len(), server.connections()), (40, 2));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_goaway_in_the_middle_fails_what_was_not_answered_and_nothing_is_lost() {
    for reason in [Reason::ENHANCE_YOUR_CALM, Reason::INTERNAL_ERROR, Reason::NO_ERROR] {
        let server = H2Server::start(None, 200, move |number, mut peer| async move {
            if number > 0 {
                return peer.serve().await;
            }
            let mut waiting = Vec::new();
            while waiting.len() < 20 {
                waiting.push(peer.request().await.unwrap());
            }
            waiting.drain(..5).for_each(|waiting| peer.answer(waiting));
            // Answers before it are written out first.
            let _ = tokio::time::timeout(Duration::from_millis(50), peer.connection.accept()).await;
            peer.connection.abrupt_shutdown(reason);
            while peer.connection.accept().await.is_some() {}
        })
        .await;
        let sink = server.sink();
        let failed = deliver_all(&server, &sink, &deliveries(20)).await;
        assert_eq!(failed.len(), 15, "{reason}");
        deliver_until_done(&server, &sink, failed.into_iter().map(|(sent, _)| sent).collect()).await;
        assert_eq!((server.answered().len(), server.connections()), (20, 2), "{reason}");
    }
}
