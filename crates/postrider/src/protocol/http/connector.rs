//! Opens connections that speak a version of HTTP.

use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

use super::config::HttpConfig;
use super::connection::{Http1, Http2, HttpConnection};
use super::origin::Origin;
use super::proxy::HttpProxy;
use crate::net::{Dialer, Stream};
use crate::protocol::tls::TlsConfig;
use crate::sink::{Environment, Undelivered};
use crate::verdict::Failure;

/// An answer with more than this in its headers is not one to a webhook.
pub(super) const HEADER_BYTES_MAX: usize = 64 * 1024;

/// Finds out that a shared connection is dead. Otherwise every later request would wait on it.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Connector {
    dialer: Dialer,
    proxy: Option<Arc<HttpProxy>>,
    connect_timeout: Duration,
    http2: Version2,
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
    pub(super) fn new(
        config: &HttpConfig,
        tls: &TlsConfig,
        proxy: Option<&Arc<HttpProxy>>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let http2 = match config.http2 {
            None => Version2::Negotiated,
            Some(true) => Version2::PriorKnowledge,
            Some(false) => Version2::Never,
        };
        Self::speaking(http2, config, tls, proxy, environment)
    }

    /// For servers beside the receiver: what `http2` says is about the receiver.
    pub(super) fn beside(
        config: &HttpConfig,
        proxy: Option<&Arc<HttpProxy>>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let tls = config.tls.without_identity();
        Self::speaking(Version2::Negotiated, config, &tls, proxy, environment)
    }

    fn speaking(
        http2: Version2,
        config: &HttpConfig,
        tls: &TlsConfig,
        proxy: Option<&Arc<HttpProxy>>,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let versions: &[&str] = match http2 {
            Version2::Negotiated | Version2::PriorKnowledge => &["h2", "http/1.1"],
            Version2::Never => &["http/1.1"],
        };
        Ok(Self {
            dialer: Dialer::new(tls, versions, environment)?,
            proxy: proxy.cloned(),
            connect_timeout: config.connect_timeout,
            http2,
        })
    }

    pub(super) fn prepare_tls(&self) -> Result<(), Undelivered> {
        self.dialer.prepare_tls().map(drop)
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

    pub(super) async fn open(&self, origin: &Origin) -> Result<HttpConnection, Undelivered> {
        let Some(proxy) = &self.proxy else {
            return match self.dialer.open(&origin.host, origin.port, origin.tls).await? {
                Stream::Left(plain) => self.speak_plainly(plain).await,
                Stream::Right(encrypted) => speak_as_agreed(encrypted).await,
            };
        };
        self.dialer.check_behind_proxy(&origin.host).await?;
        let tunnel = proxy.tunnel(origin).await?;
        match origin.tls {
            true => speak_as_agreed(self.dialer.encrypt(tunnel, &origin.host).await?).await,
            false => self.speak_plainly(tunnel).await,
        }
    }

    async fn speak_plainly(&self, stream: impl HttpTransport) -> Result<HttpConnection, Undelivered> {
        match self.http2 {
            Version2::PriorKnowledge => Ok(speak_http2(stream).await?),
            Version2::Negotiated | Version2::Never => Ok(speak_http1(stream).await?),
        }
    }
}

/// What bytes are read from and written to.
trait HttpTransport: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> HttpTransport for S {}

async fn speak_as_agreed(stream: TlsStream<impl HttpTransport>) -> Result<HttpConnection, Undelivered> {
    match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Ok(speak_http2(stream).await?),
        Some(_) | None => Ok(speak_http1(stream).await?),
    }
}

async fn speak_http1(stream: impl HttpTransport) -> Result<HttpConnection, Failure> {
    let (sender, connection) = http1::Builder::new()
        .max_header_size(HEADER_BYTES_MAX)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failure::retryable(format!("cannot speak HTTP/1.1: {error}")))?;
    Ok(HttpConnection::Http1(Http1::new(sender, connection)))
}

async fn speak_http2(stream: impl HttpTransport) -> Result<HttpConnection, Failure> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Failure::retryable(format!("cannot speak HTTP/2: {error}")))?;
    Ok(HttpConnection::Http2(Http2::new(sender, connection)))
}
