//! A real HTTP receiver on loopback that does as its script says and remembers who came when.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::PATIENCE;

type Script = dyn Fn(&Arrival) -> Answer + Send + Sync;

pub(crate) struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: tokio::task::JoinHandle<()>,
}

/// One request, from its last byte in to its answer.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The endpoint's name: every endpoint of a test has a path of its own.
    pub(crate) path: String,
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) key: Option<String>,
    pub(crate) payload: String,
    pub(crate) at: Instant,
    /// Where beginning and end stand among those of all requests.
    pub(crate) began: usize,
    pub(crate) ended: Option<usize>,
    /// None while it runs, and when the connection was closed instead.
    pub(crate) answered: Option<u16>,
}

/// What the receiver does with a request.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: Option<u16>,
    retry_after: Option<u64>,
    body: &'static str,
    after: Duration,
    held: bool,
}

impl Answer {
    pub(crate) fn status(status: u16) -> Self {
        Self { status: Some(status), retry_after: None, body: "", after: Duration::ZERO, held: false }
    }

    pub(crate) fn ok() -> Self {
        Self::status(200)
    }

    /// Hangs up without a word.
    pub(crate) fn close() -> Self {
        Self { status: None, ..Self::ok() }
    }

    /// Waits for [`Receiver::release`] first.
    pub(crate) fn held(self) -> Self {
        Self { held: true, ..self }
    }

    pub(crate) fn after(self, after: Duration) -> Self {
        Self { after, ..self }
    }

    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    pub(crate) fn body(self, body: &'static str) -> Self {
        Self { body, ..self }
    }
}

struct Shared {
    script: RwLock<Arc<Script>>,
    log: Mutex<Log>,
    /// Moves with every beginning and end.
    moved: watch::Sender<usize>,
    released: watch::Sender<bool>,
}

#[derive(Default)]
struct Log {
    arrivals: Vec<Arrival>,
    steps: usize,
    running: HashMap<String, usize>,
    most_running: HashMap<String, usize>,
    running_in_all: usize,
    most_running_in_all: usize,
}

impl Receiver {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            script: RwLock::new(Arc::new(|_: &Arrival| Answer::ok())),
            log: Mutex::default(),
            moved: watch::Sender::new(0),
            released: watch::Sender::new(false),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// From now on, also for those held.
    pub(crate) fn script(&self, script: impl Fn(&Arrival) -> Answer + Send + Sync + 'static) {
        *self.shared.script.write().unwrap() = Arc::new(script);
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.script(move |_| answer.clone());
    }

    /// Everybody held, now and later, is answered.
    pub(crate) fn release(&self) {
        self.shared.released.send_replace(true);
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.shared.log.lock().unwrap().arrivals.clone()
    }

    pub(crate) fn at(&self, path: &str) -> Vec<Arrival> {
        self.arrivals().into_iter().filter(|arrival| arrival.path == path).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.shared.log.lock().unwrap().arrivals.len()
    }

    pub(crate) fn running(&self, path: &str) -> usize {
        self.shared.log.lock().unwrap().running.get(path).copied().unwrap_or(0)
    }

    pub(crate) fn running_in_all(&self) -> usize {
        self.shared.log.lock().unwrap().running_in_all
    }

    pub(crate) fn most_running(&self, path: &str) -> usize {
        self.shared.log.lock().unwrap().most_running.get(path).copied().unwrap_or(0)
    }

    pub(crate) fn most_running_in_all(&self) -> usize {
        self.shared.log.lock().unwrap().most_running_in_all
    }

    /// Begins a new count of the most that ran at once.
    pub(crate) fn forget_most_running(&self) {
        let mut log = self.shared.log.lock().unwrap();
        log.most_running = log.running.clone();
        log.most_running_in_all = log.running_in_all;
    }

    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let mut moved = self.shared.moved.subscribe();
            let wait = async {
                while !holds(self) {
                    moved.changed().await.expect("the receiver outlives the test");
                }
            };
            if tokio::time::timeout(PATIENCE, wait).await.is_err() {
                panic!("{caller}: the receiver waited in vain for {what}; {} arrived", self.count());
            }
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        connections.spawn(serve(stream, Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let shared = Arc::clone(&shared);
        async move { respond(request, &shared).await }
    });
    // What a client does to a connection is the client's business.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn respond(request: Request<Incoming>, shared: &Shared) -> io::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let mut visit = Visit::begin(shared, parts.uri.path(), &parts.headers, &body);
    let answer = (shared.script.read().unwrap().clone())(&visit.arrival);
    if answer.held {
        shared.released.subscribe().wait_for(|released| *released).await.expect("its sender is shared");
    }
    if !answer.after.is_zero() {
        tokio::time::sleep(answer.after).await;
    }
    let status = answer.status.ok_or_else(|| io::Error::other("hanging up"))?;
    visit.answered = Some(status);
    let mut response = Response::builder().status(status);
    if let Some(seconds) = answer.retry_after {
        response = response.header("retry-after", seconds.to_string());
    }
    Ok(response.body(Full::new(Bytes::from_static(answer.body.as_bytes()))).unwrap())
}

/// Ends when it is answered, and also when the client gave up.
struct Visit<'a> {
    shared: &'a Shared,
    arrival: Arrival,
    answered: Option<u16>,
}

impl<'a> Visit<'a> {
    fn begin(shared: &'a Shared, path: &str, headers: &HeaderMap, body: &Bytes) -> Self {
        let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
        let mut log = shared.log.lock().unwrap();
        let arrival = Arrival {
            path: path.trim_start_matches('/').to_owned(),
            id: text("webhook-id").expect("every message has an id"),
            attempt: text("postrider-attempt").expect("every attempt has a number").parse().unwrap(),
            key: text("postrider-ordering-key"),
            payload: String::from_utf8(body.to_vec()).unwrap(),
            at: Instant::now(),
            began: log.step(),
            ended: None,
            answered: None,
        };
        log.arrivals.push(arrival.clone());
        let running = log.running.entry(arrival.path.clone()).or_default();
        *running += 1;
        let running = *running;
        let most = log.most_running.entry(arrival.path.clone()).or_default();
        *most = running.max(*most);
        log.running_in_all += 1;
        log.most_running_in_all = log.most_running_in_all.max(log.running_in_all);
        drop(log);
        shared.moved.send_modify(|moved| *moved += 1);
        Self { shared, arrival, answered: None }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut log = self.shared.log.lock().unwrap();
        let step = log.step();
        let began = self.arrival.began;
        let arrival = log.arrivals.iter_mut().rev().find(|arrival| arrival.began == began).unwrap();
        (arrival.ended, arrival.answered) = (Some(step), self.answered);
        *log.running.get_mut(&self.arrival.path).unwrap() -= 1;
        log.running_in_all -= 1;
        drop(log);
        self.shared.moved.send_modify(|moved| *moved += 1);
    }
}

impl Log {
    fn step(&mut self) -> usize {
        self.steps += 1;
        self.steps
    }
}
