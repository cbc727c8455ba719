//! Connecting to the server: its address, TLS, and the settings of each session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use deadpool::managed::{self, Metrics, QueueMode, RecycleError, RecycleResult};
use deadpool_postgres::ClientWrapper;
use scopeguard::ScopeGuard;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::errors::store_error;
use super::tls::{self, Trust};
use crate::error::StoreError;
use crate::store::Result;

/// For each host, from the first packet to the server's welcome.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A server that went silent is noticed after about this long, unless `tcp_user_timeout` says otherwise.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// `search_path`: only schemas that no other role can write to, or a better matching function in `public` would run with our
/// rights. It is also the path of our functions, so that they keep their plans. Our statements are too short for JIT. Only newer
/// servers have `transaction_timeout`.
const SESSION: &str = "SET search_path = postrider, pg_temp; SET standard_conforming_strings = on;
    SET default_transaction_isolation = 'read committed'; SET jit = off;
    SELECT set_config(name, '0', false) FROM pg_settings WHERE name = 'transaction_timeout'";
/// Timeouts that the database or the role has set are meant for applications, not for nodes.
const OWN_PATIENCE: &str = "SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0";
/// An application's transaction may stay open for hours; a caller does not wait that long.
const IMPATIENT: &str = "SET lock_timeout = '5s'";

pub(super) type ServerConnection = Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>;
pub(super) type ServerPool = managed::Pool<Server>;

/// A parsed address: one host, or a primary and its standbys.
#[derive(Clone)]
pub(super) struct Server {
    hosts: Arc<[Host]>,
    tls: MakeRustlsConnect,
    /// The host that took the last connection is tried first.
    ask_first: Arc<AtomicUsize>,
    /// Connections that were made before this moment are to end.
    silent_since: Arc<watch::Sender<Option<Instant>>>,
    /// See [`Server::session`].
    session: &'static [&'static str],
}

struct Host {
    name: String,
    config: Config,
}

impl Server {
    /// A `postgres://` URL as libpq reads it: several hosts, `sslmode` and its files included.
    pub(super) fn parse(url: &str) -> Result<Self> {
        let asked = TlsAsked::split_from(url)?;
        let urls = urls_of_hosts(&asked.url);
        let several = urls.len() > 1;
        let hosts: Result<Vec<Host>> = urls
            .into_iter()
            .map(|(name, url)| Ok(Host { name, config: configure(&url, asked.mode, several)? }))
            .collect();
        let tls = MakeRustlsConnect::new(tls::client_config(asked.trust, &asked.files)?);
        let (ask_first, silent_since) = (Arc::default(), Arc::default());
        Ok(Self { hosts: hosts?.into(), tls, ask_first, silent_since, session: &[] })
    }

    /// For connections of the program itself. Settings of the database or the role do not apply to them: a claim, a cancel or a
    /// redrive must see what other nodes claimed a moment ago.
    pub(super) fn for_ourselves(&self) -> Self {
        Self { session: &[SESSION, OWN_PATIENCE], ..self.clone() }
    }

    /// For senders and tools: waiting for another transaction ends after a while.
    pub(super) fn for_others(&self) -> Self {
        Self { session: &[SESSION, IMPATIENT], ..self.clone() }
    }

    /// The caller drives the connection, and runs [`Server::session`] on it first.
    pub(super) async fn connect(&self) -> Result<(Client, ServerConnection)> {
        let (first, count) = (self.ask_first.load(Relaxed), self.hosts.len());
        let mut failures = Vec::new();
        for place in (first..count).chain(0..first) {
            // Also when the caller drops this future.
            let next_one = scopeguard::guard((), |()| self.ask_another_than(place));
            match self.connect_to(&self.hosts[place].config).await {
                Ok(connected) => {
                    ScopeGuard::into_inner(next_one);
                    self.ask_first.store(place, Relaxed);
                    return Ok(connected);
                }
                Err(error) => failures.push((&*self.hosts[place].name, error)),
            }
        }
        Err(none_of(failures))
    }

    /// Unless another task found a host that answers meanwhile.
    fn ask_another_than(&self, place: usize) {
        let next = (place + 1) % self.hosts.len();
        let _ = self.ask_first.compare_exchange(place, next, Relaxed, Relaxed);
    }

    /// The driver's own timeout ends when the network answers, whether or not the server does.
    async fn connect_to(&self, host: &Config) -> Result<(Client, ServerConnection)> {
        let patience = host.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let connecting = tokio::time::timeout(patience, host.connect(self.tls.clone()));
        let silent = |_| StoreError::Unavailable(format!("the server did not answer within {patience:?}"));
        connecting.await.map_err(silent)?.map_err(store_error)
    }

    /// Driven by a task that ends with the client.
    pub(super) async fn client(&self) -> Result<Client> {
        self.driven().await.map(|(client, _)| client)
    }

    async fn driven(&self) -> Result<(Client, JoinHandle<()>)> {
        let (client, connection) = self.connect().await?;
        let found_silent = self.found_silent();
        let driving = tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to PostgreSQL ended");
                },
                () = found_silent => {}
            }
        });
        client.batch_execute(&self.session()).await.map_err(store_error)?;
        Ok((client, driving))
    }

    /// What to run first on a connection; empty for an application's own.
    pub(super) fn session(&self) -> String {
        if self.session.is_empty() {
            return String::new();
        }
        // The server gives up on a frozen client as soon as we would give up on a silent server: the client may hold locks.
        let silence_max = format!("SET tcp_user_timeout = '{}ms'", self.silence_max().as_millis());
        [&[&*silence_max], self.session].concat().join(";")
    }

    /// How long a quick query may go unanswered.
    pub(super) fn silence_max(&self) -> Duration {
        self.hosts[0].config.get_tcp_user_timeout().copied().unwrap_or(SILENCE_MAX)
    }

    /// Ends every connection that was made before this moment, and the queries that wait on them. Newer connections stay.
    pub(super) fn hang_up(&self, made_before: Instant) {
        self.silent_since.send_replace(Some(made_before));
    }

    /// Resolves when a connection that was made just now has to end.
    pub(super) fn found_silent(&self) -> impl Future<Output = ()> + use<> {
        let (made_at, mut silent_since) = (Instant::now(), self.silent_since.subscribe());
        async move {
            let found =
                silent_since.wait_for(|since| since.is_some_and(|since| made_at < since)).await.is_ok();
            if !found {
                std::future::pending().await
            }
        }
    }

    /// Cancels what may be running on a connection, then closes it.
    pub(super) fn give_up(&self, client: ClientWrapper) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (cancel, tls) = (client.cancel_token(), self.tls.clone());
        runtime.spawn(async move {
            let cancelled = tokio::time::timeout(CONNECT_TIMEOUT, cancel.cancel_query(tls)).await;
            if !matches!(cancelled, Ok(Ok(()))) {
                tracing::debug!("could not cancel a query whose caller left");
            }
            drop(client);
        });
    }

    pub(super) fn pool(&self, connections_max: usize) -> ServerPool {
        // The connection that was used last has the statements prepared.
        let pool = managed::Pool::builder(self.clone())
            .max_size(connections_max)
            .queue_mode(QueueMode::Lifo)
            .build();
        pool.expect("a pool without timeouts of its own needs no runtime")
    }
}

/// A pooled connection, and the server process behind it.
pub(super) struct Pooled {
    pub(super) client: ClientWrapper,
    pub(super) process: i32,
}

impl managed::Manager for Server {
    type Type = Pooled;
    type Error = StoreError;

    async fn create(&self) -> Result<Pooled> {
        let (client, driving) = self.driven().await?;
        let process = client.query_one("SELECT pg_backend_pid()", &[]).await.map_err(store_error)?.get(0);
        Ok(Pooled { client: ClientWrapper::new(client, driving), process })
    }

    /// Without a query: the driver knows when a connection was closed.
    async fn recycle(&self, pooled: &mut Pooled, _: &Metrics) -> RecycleResult<StoreError> {
        if pooled.client.is_closed() { Err(RecycleError::message("it was closed")) } else { Ok(()) }
    }
}

/// One URL per host, with the host's name, so that a silent host costs no more than its own timeout.
fn urls_of_hosts(url: &str) -> Vec<(String, String)> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![(String::new(), url.to_owned())] };
    let (credentials, rest) = rest.split_at(rest.find('@').map_or(0, |at| at + 1));
    let (hosts, database) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let alone = |host: &str| (host.to_owned(), format!("{scheme}://{credentials}{host}{database}"));
    hosts.split(',').map(alone).collect()
}

fn configure(url: &str, mode: SslMode, several_hosts: bool) -> Result<Config> {
    let unreadable = |error: tokio_postgres::Error| {
        let cause = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
        StoreError::Unusable(format!("store: {cause}"))
    };
    let mut config: Config = url.parse().map_err(unreadable)?;
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        return Err(StoreError::Unusable("store: the address names no host".to_owned()));
    }
    config.ssl_mode(mode);
    let silence_max = config.get_tcp_user_timeout().copied().unwrap_or(SILENCE_MAX);
    config.tcp_user_timeout(silence_max).keepalives_idle(silence_max);
    config.keepalives_interval((silence_max / 2).max(Duration::from_secs(1))).keepalives_retries(2);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_application_name().is_none() {
        config.application_name("postrider");
    }
    // Of several hosts all but one are standbys, which take no writes.
    if several_hosts && config.get_target_session_attrs() == TargetSessionAttrs::Any {
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    Ok(config)
}

/// Unusable only when every host is: a standby may become the primary in a moment.
fn none_of(mut failures: Vec<(&str, StoreError)>) -> StoreError {
    if failures.len() == 1 {
        return match failures.remove(0) {
            (host, StoreError::Unavailable(why)) if !host.is_empty() => {
                StoreError::Unavailable(format!("{host}: {why}"))
            }
            (_, error) => error,
        };
    }
    let hopeless = failures.iter().all(|(_, error)| matches!(error, StoreError::Unusable(_)));
    let sentences: Vec<String> = failures.iter().map(|(host, error)| format!("{host}: {error}")).collect();
    let sentence = sentences.join("; ");
    if hopeless { StoreError::Unusable(sentence) } else { StoreError::Unavailable(sentence) }
}

/// The TLS options of a URL; the driver knows only some of them.
struct TlsAsked {
    url: String,
    mode: SslMode,
    trust: Trust,
    files: tls::Files,
}

impl TlsAsked {
    fn split_from(url: &str) -> Result<Self> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut files, mut rest) = (None, tls::Files::default(), Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sslmode", value)) => mode = Some(value),
                Some(("sslrootcert", value)) => files.root = Some(percent_decoded(value)),
                Some(("sslcert", value)) => files.certificate = Some(percent_decoded(value)),
                Some(("sslkey", value)) => files.key = Some(percent_decoded(value)),
                // The driver calls it read-write.
                Some(("target_session_attrs", "primary")) => rest.push("target_session_attrs=read-write"),
                _ => rest.push(pair),
            }
        }
        let (mode, trust) = match (mode, &files.root) {
            (None | Some("prefer"), _) => (SslMode::Prefer, Trust::Anybody),
            (Some("disable"), _) => (SslMode::Disable, Trust::Anybody),
            (Some("require"), None) => (SslMode::Require, Trust::Anybody),
            // As libpq does: a root that is named is used.
            (Some("require"), Some(_)) | (Some("verify-ca"), _) => (SslMode::Require, Trust::AnyName),
            (Some("verify-full"), _) => (SslMode::Require, Trust::Full),
            (Some(other), _) => {
                return Err(StoreError::Unusable(format!(
                    "sslmode: {other:?} is not one of disable, prefer, require, verify-ca, verify-full"
                )));
            }
        };
        let url = if rest.is_empty() { address.to_owned() } else { format!("{address}?{}", rest.join("&")) };
        Ok(Self { url, mode, trust, files })
    }
}

/// Unlike in a form, a plus is a plus.
fn percent_decoded(value: &str) -> String {
    let form = format!("value={}", value.replace('+', "%2B"));
    let mut pairs = url::form_urlencoded::parse(form.as_bytes());
    pairs.next().map_or(String::new(), |(_, value)| value.into_owned())
}
