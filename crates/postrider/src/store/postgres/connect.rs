//! Connections: where the server is, and how it is spoken to.

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::errors::store_error;
use super::tls::{self, Trust};
use crate::error::StoreError;
use crate::store::Result;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that is gone without a word is noticed after about this long.
const SILENCE_MAX: Duration = Duration::from_secs(10);

pub(super) type ServerConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;

/// A server's address, understood.
#[derive(Clone)]
pub(super) struct Server {
    config: Config,
    tls: MakeRustlsConnect,
}

impl Server {
    /// A `postgres://` URL as libpq reads it, `sslmode` and `sslrootcert` included.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let asked = TlsAsked::split_from(url)?;
        let mut config: Config = asked
            .url
            .parse()
            .map_err(|error: tokio_postgres::Error| StoreError::Unusable(format!("store: {error}")))?;
        config.ssl_mode(asked.mode);
        config.tcp_user_timeout(SILENCE_MAX).keepalives_idle(SILENCE_MAX);
        config.keepalives_interval(SILENCE_MAX / 2).keepalives_retries(2);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("postrider");
        }
        let tls = MakeRustlsConnect::new(tls::client_config(asked.trust, asked.root_file.as_deref())?);
        Ok(Self { config, tls })
    }

    /// Whoever asks drives the connection.
    pub(super) async fn connect(&self) -> Result<(Client, ServerConnection)> {
        self.config.connect(self.tls.clone()).await.map_err(store_error)
    }

    /// Driven by a task that ends with the client.
    pub(super) async fn client(&self) -> Result<Client> {
        let (client, connection) = self.connect().await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
            }
        });
        Ok(client)
    }

    pub(super) fn pool(&self, connections_max: usize) -> Pool {
        // Fast: a closed connection is noticed without asking the server.
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(self.config.clone(), self.tls.clone(), recycling);
        let pool = Pool::builder(manager).max_size(connections_max).build();
        pool.expect("a pool without timeouts of its own needs no runtime")
    }
}

/// The part of a URL that says how much TLS is wanted; the driver knows only half of the words.
struct TlsAsked {
    url: String,
    mode: SslMode,
    trust: Trust,
    root_file: Option<String>,
}

impl TlsAsked {
    fn split_from(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut root_file, mut rest) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => root_file = Some(percent_decoded(value)),
                _ => rest.push(pair),
            }
        }
        let (mode, trust) = match (mode, &root_file) {
            (None | Some("prefer"), _) => (SslMode::Prefer, Trust::Anybody),
            (Some("disable"), _) => (SslMode::Disable, Trust::Anybody),
            (Some("require"), None) => (SslMode::Require, Trust::Anybody),
            // As libpq does: whoever names a root wants it to be used.
            (Some("require"), Some(_)) | (Some("verify-ca"), _) => (SslMode::Require, Trust::AnyName),
            (Some("verify-full"), _) => (SslMode::Require, Trust::Full),
            (Some(other), _) => {
                return Err(StoreError::Unusable(format!(
                    "sslmode: {other:?} is not one of disable, prefer, require, verify-ca, verify-full"
                )));
            }
        };
        let url = if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) };
        Ok(Self { url, mode, trust, root_file })
    }
}

/// Unlike in a form, a plus is a plus.
fn percent_decoded(value: &str) -> String {
    let form = format!("value={}", value.replace('+', "%2B"));
    let mut pairs = url::form_urlencoded::parse(form.as_bytes());
    pairs.next().map_or(String::new(), |(_, value)| value.into_owned())
}
