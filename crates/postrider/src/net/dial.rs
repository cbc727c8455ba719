//! Opens connections to the receivers of one endpoint.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use url::Host;

use super::gate::AddressGate;
use super::tls::{self, Identity};
use super::{judge, short, tcp};
use crate::protocol::tls::TlsConfig;
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};
use crate::verdict::Failure;

/// After this long without a word the receiver's machine is asked whether the connection still exists. Many routers forget
/// one after five minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// How long to wait for its answer before it is asked again.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Unanswered, they end the connection.
const KEEPALIVE_PROBES: u32 = 4;

/// A connection, plain or encrypted.
pub(crate) type Stream = Either<TcpStream, TlsStream<TcpStream>>;

pub(crate) struct Dialer {
    gate: AddressGate,
    ca: Option<String>,
    identity: Option<Identity>,
    /// Offered to the receiver in this order (ALPN).
    versions: &'static [&'static str],
    client: OnceLock<Arc<ClientConfig>>,
}

impl Dialer {
    /// Reads the client's key from where it is kept.
    pub(crate) fn new(
        config: &TlsConfig,
        versions: &'static [&'static str],
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        Ok(Self {
            gate: AddressGate::new(environment),
            ca: config.ca.clone(),
            identity: Identity::read(config, &Secrets::new(environment))?,
            versions,
            client: OnceLock::new(),
        })
    }

    /// Called when a sink connects, so that a config which cannot be used fails then, and not at the first message.
    pub(crate) fn prepare_tls(&self) -> Result<&Arc<ClientConfig>, Undelivered> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        let client = tls::client_config(self.ca.as_deref(), self.identity.as_ref(), self.versions)?;
        Ok(self.client.get_or_init(|| client))
    }

    /// Whether the gate would let a connection through.
    #[cfg_attr(not(feature = "kafka"), allow(dead_code))]
    pub(crate) async fn check(&self, host: &Host, port: u16) -> Result<(), Undelivered> {
        self.gate.admit(host, port).await.map(drop)
    }

    pub(crate) async fn open(&self, host: &Host, port: u16, encrypted: bool) -> Result<Stream, Undelivered> {
        let stream = self.connect(host, port).await?;
        match encrypted {
            true => Ok(Either::Right(self.encrypt(stream, host).await?)),
            false => Ok(Either::Left(stream)),
        }
    }

    /// See [`AddressGate::admit_behind_proxy`].
    pub(crate) async fn check_behind_proxy(&self, host: &Host) -> Result<(), Undelivered> {
        self.gate.admit_behind_proxy(host).await
    }

    /// For protocols that say something before they encrypt.
    pub(crate) async fn connect(&self, host: &Host, port: u16) -> Result<TcpStream, Undelivered> {
        let addresses = self.gate.admit(host, port).await?;
        let stream = tcp::connect(&addresses).await?;
        // Requests are written in one piece; waiting for more only delays them.
        let _ = stream.set_nodelay(true);
        let _ = keep_alive(&stream);
        Ok(stream)
    }

    pub(crate) async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &Host,
    ) -> Result<TlsStream<S>, Undelivered> {
        let connector = TlsConnector::from(Arc::clone(self.prepare_tls()?));
        let name = server_name(host)?;
        connector.connect(name, stream).await.map_err(|error| {
            let why = short(&error);
            judge(&error, Failure::retryable(format!("the TLS handshake with {host} failed: {why}")))
        })
    }
}

/// Without it a node would never learn that a router on the way forgot an idle connection. There is no limit for data that
/// waits (TCP_USER_TIMEOUT): it would also end connections to receivers that are slow to read.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)
}

/// Certificates name hosts without the dot that ends a full name.
fn server_name(host: &Host) -> Result<ServerName<'static>, Failure> {
    match host {
        Host::Ipv4(address) => Ok(ServerName::from(std::net::IpAddr::V4(*address))),
        Host::Ipv6(address) => Ok(ServerName::from(std::net::IpAddr::V6(*address))),
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| Failure::permanent(format!("{name} is not a name that a certificate can have"))),
    }
}

/// Puts a deadline over connecting.
pub(crate) async fn within<T>(
    connect_timeout: Duration,
    connecting: impl Future<Output = Result<T, Undelivered>>,
) -> Result<T, Undelivered> {
    tokio::time::timeout(connect_timeout, connecting).await.unwrap_or_else(|_| {
        let seconds = connect_timeout.as_secs_f64();
        Err(Failure::retryable(format!("timed out connecting after {seconds} s")).into())
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rustix::net::sockopt::{socket_keepalive, tcp_keepcnt, tcp_keepidle, tcp_keepintvl};

    use super::*;

    #[tokio::test]
    async fn a_receiver_that_vanished_is_noticed_within_two_minutes_of_silence() {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let environment = Environment { allow_internal: true, ..Environment::default() };
        let dialer = Dialer::new(&TlsConfig::default(), &[], &environment).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = dialer.connect(&Host::Ipv4(Ipv4Addr::LOCALHOST), port).await.unwrap();
        assert!(socket_keepalive(&stream).unwrap());
        let probes = tcp_keepintvl(&stream).unwrap() * tcp_keepcnt(&stream).unwrap();
        assert_eq!(tcp_keepidle(&stream).unwrap() + probes, Duration::from_secs(120));
    }
}
