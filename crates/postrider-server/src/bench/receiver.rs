//! The other process of `postrider bench`: raw hyper, counting what arrives, and generating load so
//! that the measured server does not have to share its process with its clients.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

use super::load;
use super::partner::{ArrivedCount, Latencies, Ready, ReceiverOrder};
use crate::failure::CommandError;

const SLOW: Duration = Duration::from_secs(5);

#[derive(Default)]
struct Counter {
    count: AtomicU64,
    latencies: Mutex<BTreeMap<u64, i64>>,
}

/// What `bench` sends to `/latency`.
#[derive(Deserialize)]
struct Timed {
    number: u64,
    sent_us: i64,
}

/// Prints its port, then obeys orders until stdin closes.
pub(crate) async fn run() -> Result<(), CommandError> {
    let failed = |error: std::io::Error| CommandError::failed(format!("the receiver process: {error}"));
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let counter = Arc::new(Counter::default());
    tokio::spawn(serve(listener, Arc::clone(&counter)));
    say(&Ready { port });
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await.map_err(failed)? {
        let order = serde_json::from_str(&line)
            .map_err(|error| CommandError::usage(format!("not an order: {line:?}: {error}")))?;
        match order {
            ReceiverOrder::Reset => {
                counter.count.store(0, Ordering::SeqCst);
                counter.lock().clear();
                say(&ArrivedCount { count: 0 });
            }
            ReceiverOrder::Await { count, timeout_seconds } => {
                let timeout = Duration::from_secs_f64(timeout_seconds);
                say(&ArrivedCount { count: counter.until(count, timeout).await });
            }
            ReceiverOrder::Latencies => say(&Latencies { micros: counter.lock().clone() }),
            ReceiverOrder::HttpLoad(order) => say(&load::run(&order).await?),
        }
    }
    Ok(())
}

fn say(answer: &impl serde::Serialize) {
    println!("{}", serde_json::to_string(answer).expect("an answer becomes JSON"));
}

async fn serve(listener: TcpListener, counter: Arc<Counter>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        let counter = Arc::clone(&counter);
        tokio::spawn(async move {
            let service = service_fn(move |request| receive(request, Arc::clone(&counter)));
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn receive(
    request: Request<Incoming>,
    counter: Arc<Counter>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else {
        return Ok(Response::new(Full::default()));
    };
    match parts.uri.path() {
        "/slow" => tokio::time::sleep(SLOW).await,
        "/latency" => counter.time(&body.to_bytes()),
        _ => {
            counter.count.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(Response::new(Full::default()))
}

impl Counter {
    async fn until(&self, count: u64, timeout: Duration) -> u64 {
        let deadline = Instant::now() + timeout;
        loop {
            let counted = self.count.load(Ordering::Relaxed);
            if counted >= count || Instant::now() >= deadline {
                return counted;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Only the first arrival of a message counts.
    fn time(&self, body: &[u8]) {
        let now = Timestamp::now().as_microsecond();
        if let Ok(timed) = serde_json::from_slice::<Timed>(body) {
            self.lock().entry(timed.number).or_insert(now - timed.sent_us);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, i64>> {
        self.latencies.lock().expect("nothing panics while it holds the latencies")
    }
}
