//! Opens connections: through the gate, over TCP and TLS, up to a spoken version of HTTP.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::Host;

use super::connection::{Connection, Http1, Http2};
use super::origin::Origin;
use super::tls;
use crate::protocol::seconds;
use crate::sink::Undelivered;
use crate::sink::net::{self, Gate};
use crate::verdict::Failure;

const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// An answer with more than this in its headers is not one to a webhook.
const HEADER_BYTES_MAX: usize = 64 * 1024;

/// A shared connection that went dead must be found out, or every later request would wait on it.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Connector {
    gate: Gate,
    connect_timeout: Duration,
    http2: Version2,
    ca: Option<String>,
    tls: OnceLock<Arc<ClientConfig>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version2 {
    /// On TLS, when the receiver offers it.
    Negotiated,
    /// On plain connections too, without asking.
    PriorKnowledge,
    Never,
}

impl Connector {
    pub(super) fn new(config: &Map<String, Value>, gate: Gate) -> Self {
        Self {
            gate,
            connect_timeout: seconds(config, "connect_timeout").unwrap_or(CONNECT_TIMEOUT_DEFAULT),
            http2: match config.get("http2").and_then(Value::as_bool) {
                None => Version2::Negotiated,
                Some(true) => Version2::PriorKnowledge,
                Some(false) => Version2::Never,
            },
            ca: config.get("tls").and_then(|tls| tls.get("ca")).and_then(Value::as_str).map(str::to_owned),
            tls: OnceLock::new(),
        }
    }

    pub(super) fn prepare_tls(&self) -> Result<&Arc<ClientConfig>, Undelivered> {
        if let Some(config) = self.tls.get() {
            return Ok(config);
        }
        let config = tls::client_config(self.ca.as_deref(), self.http2 != Version2::Never)?;
        Ok(self.tls.get_or_init(|| config))
    }

    /// May requests to this origin share one connection? Known for sure only once it is open.
    pub(super) fn may_share(&self, origin: &Origin) -> bool {
        match self.http2 {
            Version2::Negotiated => origin.tls,
            Version2::PriorKnowledge => true,
            Version2::Never => false,
        }
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(super) async fn open(&self, origin: &Origin) -> Result<Connection, Undelivered> {
        let addresses = self.gate.admit(&origin.host, origin.port).await?;
        let stream = net::connect(&addresses).await?;
        // Requests are written in one piece; waiting for more only delays them.
        let _ = stream.set_nodelay(true);
        if !origin.tls {
            return match self.http2 {
                Version2::PriorKnowledge => Ok(speak_http2(stream).await?),
                Version2::Negotiated | Version2::Never => Ok(speak_http1(stream).await?),
            };
        }
        let stream = self.encrypt(stream, &origin.host).await?;
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Ok(speak_http2(stream).await?),
            _ => Ok(speak_http1(stream).await?),
        }
    }

    async fn encrypt(
        &self,
        stream: tokio::net::TcpStream,
        host: &Host,
    ) -> Result<TlsStream<tokio::net::TcpStream>, Undelivered> {
        let connector = TlsConnector::from(Arc::clone(self.prepare_tls()?));
        let name = server_name(host)?;
        connector.connect(name, stream).await.map_err(|error| {
            let why = net::short(&error);
            net::judge(&error, Failure::retryable(format!("the TLS handshake with {host} failed: {why}")))
        })
    }
}

/// Certificates are made out to names without the dot that ends a full one.
fn server_name(host: &Host) -> Result<ServerName<'static>, Failure> {
    match host {
        Host::Ipv4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| Failure::permanent(format!("{name} is not a name that a certificate can have"))),
    }
}

async fn speak_http1(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, Failure> {
    let (sender, connection) = http1::Builder::new()
        .max_header_size(HEADER_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failure::retryable(format!("cannot speak HTTP/1.1: {error}")))?;
    Ok(Connection::Http1(Http1::new(sender, connection)))
}

async fn speak_http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Connection, Failure> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failure::retryable(format!("cannot speak HTTP/2: {error}")))?;
    Ok(Connection::Http2(Http2::new(sender, connection)))
}
