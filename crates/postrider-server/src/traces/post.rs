//! Takes spans to a collector. A collector that is down is logged once: delivery continues, and what does not fit into the
//! bounded queue before it is dropped.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::runtime::Handle;

use crate::failure::CommandError;
use crate::https;

/// A collector says little; what is longer is not read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Post {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
    /// Spans are exported by a thread without a runtime.
    runtime: Handle,
    is_down: AtomicBool,
}

impl Post {
    pub(super) fn new(timeout: Duration) -> Result<Self, CommandError> {
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(https::connector()?),
            timeout,
            runtime: Handle::current(),
            is_down: AtomicBool::new(false),
        })
    }

    fn note(&self, trouble: Option<String>) {
        match trouble {
            Some(trouble) if !self.is_down.swap(true, Relaxed) => {
                tracing::warn!(
                    trouble,
                    "Traces are not exported; spans are dropped until the collector takes them"
                );
            }
            Some(_) => {}
            None if self.is_down.swap(false, Relaxed) => tracing::info!("Traces are exported again"),
            None => {}
        }
    }
}

#[async_trait]
impl HttpClient for Post {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (asked, timeout) = (ask(self.client.clone(), request), self.timeout);
        // A timer can only be made within the runtime.
        let answer = self.runtime.spawn(async move { tokio::time::timeout(timeout, asked).await }).await;
        let answer = match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err("it did not answer in time".into()),
            Err(_) => Err("the node is stopping".into()),
        };
        self.note(match &answer {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answered {}", answer.status())),
            Err(error) => Some(error.to_string()),
        });
        answer
    }
}

async fn ask(
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let (parts, body) = client.request(request.map(Full::new)).await?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?.to_bytes();
    Ok(Response::from_parts(parts, body))
}
