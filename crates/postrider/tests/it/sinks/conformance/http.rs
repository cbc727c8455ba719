//! The receiver is an HTTP server of the test.

use std::net::SocketAddr;

use async_trait::async_trait;
use postrider::endpoint::Endpoint;
use postrider::sink::Environment;
use serde_json::json;

use super::super::server::{Received, Server, Speaks, header, status};
use super::super::support::*;
use super::{Held, Receiver, conforms};

struct HttpReceiver<const HTTP2: bool> {
    address: SocketAddr,
    server: Option<Server>,
}

type Http1Receiver = HttpReceiver<false>;
type Http2Receiver = HttpReceiver<true>;

impl<const HTTP2: bool> HttpReceiver<HTTP2> {
    pub(super) async fn new() -> Option<Self> {
        let server = Self::serve("127.0.0.1:0".parse().unwrap(), 200).await;
        Some(Self { address: server.address, server: Some(server) })
    }

    async fn serve(address: SocketAddr, code: u16) -> Server {
        let speaks = if HTTP2 { Speaks::Http2 } else { Speaks::Http1 };
        Server::start_at(address, speaks, None, move |_| status(code)).await
    }

    fn endpoint_at(&self, path: &str) -> Endpoint {
        endpoint("http", json!({"url": format!("http://{}{path}", self.address), "http2": HTTP2}))
    }
}

#[async_trait]
impl<const HTTP2: bool> Receiver for HttpReceiver<HTTP2> {
    fn endpoint(&self) -> Endpoint {
        self.endpoint_at("/hook")
    }

    fn environment(&self) -> Environment {
        open_environment()
    }

    async fn held(&self) -> Vec<Held> {
        let requests = self.server.as_ref().map(Server::received).unwrap_or_default();
        let held = |request: &Received| Held {
            id: header(request, "webhook-id").to_owned(),
            attempt: header(request, "postrider-attempt").parse().unwrap(),
            content_type: header(request, "content-type").to_owned(),
            payload: request.body().clone(),
        };
        requests.iter().filter(|request| request.uri().path() == "/hook").map(held).collect()
    }

    async fn stop(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    async fn start(&mut self) {
        self.server = Some(Self::serve(self.address, 200).await);
    }

    async fn refusing(&mut self) -> Endpoint {
        self.stop().await;
        self.server = Some(Self::serve(self.address, 400).await);
        self.endpoint_at("/refused")
    }
}

conforms!(http1 = Http1Receiver, http2 = Http2Receiver);
