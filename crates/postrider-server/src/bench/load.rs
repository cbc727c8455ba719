//! The bare loop: raw hyper over a number of connections, one request after the other on each. It is
//! the yardstick of delivery, and the client of the measured API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

use crate::failure::CommandError;

/// As many as an endpoint has in flight unless told otherwise.
pub(super) const CONNECTIONS: usize = 64;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct HttpLoad {
    pub(super) authority: String,
    pub(super) path: String,
    pub(super) body: String,
    pub(super) connections: usize,
    pub(super) until: Until,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Until {
    Seconds(f64),
    Requests(u64),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LoadResult {
    pub(super) seconds: f64,
    pub(super) answers: BTreeMap<u16, u64>,
}

impl LoadResult {
    /// Requests a second; an error when any answer was another than `status`.
    pub(super) fn rate(&self, status: u16) -> Result<f64, CommandError> {
        let good = self.answers.get(&status).copied().unwrap_or(0);
        if self.answers.values().sum::<u64>() != good {
            return Err(CommandError::failed(format!(
                "expected only {status} as answer, got {:?}",
                self.answers
            )));
        }
        Ok(good as f64 / self.seconds)
    }
}

/// What is left to do; each connection takes one from it before it sends.
struct Budget {
    left: AtomicI64,
    deadline: Option<Instant>,
}

impl Budget {
    fn take(&self) -> bool {
        match self.deadline {
            Some(deadline) => Instant::now() < deadline,
            None => self.left.fetch_sub(1, Ordering::Relaxed) > 0,
        }
    }
}

pub(super) async fn run(load: &HttpLoad) -> Result<LoadResult, CommandError> {
    let mut senders = Vec::new();
    for _ in 0..load.connections {
        senders.push(connect(&load.authority).await?);
    }
    let began = Instant::now();
    let budget = Arc::new(match load.until {
        Until::Seconds(seconds) => {
            Budget { left: AtomicI64::new(0), deadline: Some(began + Duration::from_secs_f64(seconds)) }
        }
        Until::Requests(requests) => Budget { left: AtomicI64::new(requests as i64), deadline: None },
    });
    let body = Bytes::from(load.body.clone());
    let tasks: Vec<_> = senders
        .into_iter()
        .map(|sender| tokio::spawn(drive(sender, load.clone(), body.clone(), Arc::clone(&budget))))
        .collect();
    let mut answers = BTreeMap::new();
    for task in tasks {
        for (status, count) in task.await.expect("a connection does not panic")? {
            *answers.entry(status).or_default() += count;
        }
    }
    Ok(LoadResult { seconds: began.elapsed().as_secs_f64(), answers })
}

async fn connect(authority: &str) -> Result<http1::SendRequest<Full<Bytes>>, CommandError> {
    let stream = TcpStream::connect(authority)
        .await
        .map_err(|error| CommandError::failed(format!("cannot connect to {authority}: {error}")))?;
    let _ = stream.set_nodelay(true);
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn drive(
    mut sender: http1::SendRequest<Full<Bytes>>,
    load: HttpLoad,
    body: Bytes,
    budget: Arc<Budget>,
) -> Result<BTreeMap<u16, u64>, CommandError> {
    let mut answers = BTreeMap::new();
    while budget.take() {
        let request = Request::post(&load.path)
            .header(HOST, &load.authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body.clone()))
            .map_err(|error| CommandError::failed(format!("not a request: {error}")))?;
        sender.ready().await.map_err(broken)?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status().as_u16();
        response.into_body().collect().await.map_err(broken)?;
        *answers.entry(status).or_default() += 1;
    }
    Ok(answers)
}

fn broken(error: hyper::Error) -> CommandError {
    CommandError::failed(format!("a connection of the load broke: {error}"))
}
