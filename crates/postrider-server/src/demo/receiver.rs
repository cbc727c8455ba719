//! A receiver that misbehaves: it fails, stalls, asks for patience, and goes down for a while.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::ledger::{DemoPayload, Ledger, ReceivedRequest};
use super::tally::DemoTally;
use crate::failure::CommandError;

/// Each holds the whole endpoint back for a second, so a run affords one.
const BUSY_ANSWERS_MAX: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub(super) struct Misbehaviour {
    pub(super) seed: u64,
    pub(super) outage: Outage,
    /// How long it stalls: longer than the sender waits.
    pub(super) stall: Duration,
}

/// When it is gone, counted from the beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outage {
    pub(super) begins: Duration,
    pub(super) lasts: Duration,
}

pub(super) struct Receiver {
    name: &'static str,
    address: SocketAddr,
    begin: Arc<Notify>,
    state: Arc<ReceiverState>,
    task: JoinHandle<()>,
}

struct ReceiverState {
    name: &'static str,
    misbehaviour: Misbehaviour,
    tally: Arc<DemoTally>,
    /// One lock over dice and ledger: the ledger's order is the order of arrival.
    inner: Mutex<Inner>,
}

struct Inner {
    dice: StdRng,
    busy_answers: u32,
    ledger: Ledger,
}

enum ReceiverAnswer {
    Accept,
    Refuse,
    Fail,
    Busy,
    StallThenAccept,
}

impl Receiver {
    pub(super) async fn start(
        name: &'static str,
        misbehaviour: Misbehaviour,
        tally: Arc<DemoTally>,
    ) -> Result<Self, CommandError> {
        let failed = |error| CommandError::failed(format!("cannot start a receiver: {error}"));
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let inner = Inner {
            dice: StdRng::seed_from_u64(misbehaviour.seed ^ name.len() as u64),
            busy_answers: 0,
            ledger: Ledger::default(),
        };
        let state = Arc::new(ReceiverState { name, misbehaviour, tally, inner: Mutex::new(inner) });
        let begin = Arc::new(Notify::new());
        let task = tokio::spawn(live(listener, address, Arc::clone(&begin), Arc::clone(&state)));
        Ok(Self { name, address, begin, state, task })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/{}", self.address, self.name)
    }

    /// From now on the clock of its outage runs.
    pub(super) fn begin(&self) {
        self.begin.notify_one();
    }

    /// What it saw.
    pub(super) fn stop(self) -> Ledger {
        self.task.abort();
        std::mem::take(&mut self.state.lock().ledger)
    }
}

/// Up, down (the port is closed, connections are cut), and up again.
async fn live(listener: TcpListener, address: SocketAddr, begin: Arc<Notify>, state: Arc<ReceiverState>) {
    let outage = state.misbehaviour.outage;
    let outage_begins = async {
        begin.notified().await;
        tokio::time::sleep(outage.begins).await;
    };
    tokio::select! {
        () = accept(&listener, &state) => {}
        () = outage_begins => {}
    }
    drop(listener);
    state.tally.note(format!("{} goes down: its port is closed, its connections are cut", state.name));
    tokio::time::sleep(outage.lasts).await;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    state.tally.note(format!("{} is up again", state.name));
    accept(&listener, &state).await;
}

/// Runs until it is dropped, and its connections with it.
async fn accept(listener: &TcpListener, state: &Arc<ReceiverState>) {
    let mut connections = JoinSet::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            connections.spawn(connection(stream, Arc::clone(state)));
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, state: Arc<ReceiverState>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| receive(request, Arc::clone(&state)));
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn receive(
    request: Request<Incoming>,
    state: Arc<ReceiverState>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let id = header("webhook-id").to_owned();
    let attempt = header("postrider-attempt").parse().unwrap_or(0);
    let Ok(body) = request.into_body().collect().await else {
        return Ok(answer(StatusCode::BAD_REQUEST));
    };
    let Ok(body) = serde_json::from_slice::<DemoPayload>(&body.to_bytes()) else {
        return Ok(answer(StatusCode::BAD_REQUEST));
    };
    Ok(match state.judge(id, attempt, body) {
        ReceiverAnswer::Accept => answer(StatusCode::OK),
        ReceiverAnswer::Refuse => answer(StatusCode::BAD_REQUEST),
        ReceiverAnswer::Fail => answer(StatusCode::INTERNAL_SERVER_ERROR),
        ReceiverAnswer::Busy => {
            let mut response = answer(StatusCode::TOO_MANY_REQUESTS);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            response
        }
        ReceiverAnswer::StallThenAccept => {
            tokio::time::sleep(state.misbehaviour.stall).await;
            answer(StatusCode::OK)
        }
    })
}

fn answer(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

impl ReceiverState {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().expect("nothing panics while it holds the ledger")
    }

    fn judge(&self, id: String, attempt: u32, body: DemoPayload) -> ReceiverAnswer {
        let mut inner = self.lock();
        let draw: f64 = inner.dice.random();
        let answer = match body.kind.as_str() {
            "poison" => ReceiverAnswer::Refuse,
            // A stalled message may expire although it arrived; keep the demo's account clear of that.
            "perishable" => ReceiverAnswer::Accept,
            _ if draw < 0.025 => ReceiverAnswer::Fail,
            _ if draw < 0.028 => ReceiverAnswer::StallThenAccept,
            _ if draw < 0.030 && inner.busy_answers < BUSY_ANSWERS_MAX => {
                inner.busy_answers += 1;
                self.tally.note(format!("{} answers 429 with Retry-After: 1", self.name));
                ReceiverAnswer::Busy
            }
            _ => ReceiverAnswer::Accept,
        };
        let status = match answer {
            ReceiverAnswer::Accept | ReceiverAnswer::StallThenAccept => 200,
            ReceiverAnswer::Refuse => 400,
            ReceiverAnswer::Fail => 500,
            ReceiverAnswer::Busy => 429,
        };
        let stalled = matches!(answer, ReceiverAnswer::StallThenAccept);
        inner.ledger.enter(ReceivedRequest { id, attempt, body, status, stalled, at: Timestamp::now() });
        answer
    }
}
