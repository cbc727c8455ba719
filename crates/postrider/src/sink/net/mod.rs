//! The way out: which addresses a node may connect to, and how it connects to them.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use url::Host;

use super::{Environment, Undelivered};
use crate::verdict::Failure;

pub use shortage::{Resource, Shortage};

mod address;
mod shortage;

/// How long one address of several is tried alone (RFC 8305 advises 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);

/// Names to addresses.
#[async_trait]
pub trait Resolve: std::fmt::Debug + Send + Sync {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let name = name.to_owned();
        let look_up = move || {
            let found = (name.as_str(), 0).to_socket_addrs().map_err(lookup_failed)?;
            Ok(found.map(|address| address.ip()).collect())
        };
        blocking(look_up).await?
    }
}

/// The operating system calls a lookup that could not open a socket a temporary failure.
fn lookup_failed(error: io::Error) -> io::Error {
    match File::open("/dev/null") {
        Err(cause) if Resource::lacking(&cause).is_some() => cause,
        Ok(_) | Err(_) => error,
    }
}

/// Runs `work` on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    begin_blocking(work).map_err(io::Error::other)?.await.map_err(io::Error::other)
}

/// The call itself panics only when the runtime can have no thread.
pub(super) fn begin_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Shortage> {
    let begun = catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_blocking(work)));
    begun.map_err(|_| Shortage { of: Resource::Threads, error: "no thread can be started".to_owned() })
}

/// What `failure` is, given the operating system's error behind it.
pub(crate) fn judge(error: &io::Error, failure: Failure) -> Undelivered {
    match Resource::lacking(error) {
        Some(of) => Undelivered::Short(Shortage { of, error: failure.error }),
        None => Undelivered::Failed(failure),
    }
}

/// Keeps deliveries away from the node's own networks. It judges addresses, never names, and what it
/// admits is what is connected to: a name cannot mean one thing when checked and another when used.
pub(super) struct Gate {
    allow_internal: bool,
    allow_nets: Vec<IpNet>,
    resolver: Arc<dyn Resolve>,
}

impl Gate {
    pub(super) fn new(environment: &Environment) -> Self {
        Self {
            allow_internal: environment.allow_internal,
            allow_nets: environment.allow_nets.clone(),
            resolver: Arc::clone(&environment.resolver),
        }
    }

    /// The addresses of a host, resolved once; refused if any single one is internal.
    pub(super) async fn admit(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, Undelivered> {
        let addresses = match host {
            Host::Ipv4(address) => vec![IpAddr::V4(*address)],
            Host::Ipv6(address) => vec![IpAddr::V6(*address)],
            Host::Domain(name) => self.resolve(name).await?,
        };
        match addresses.iter().find(|address| !self.allows(**address)) {
            Some(internal) => Err(refused(host, *internal).into()),
            None => Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()),
        }
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Undelivered> {
        let failed = |why: &str| Failure::retryable(format!("cannot resolve {name}: {why}"));
        let addresses =
            self.resolver.resolve(name).await.map_err(|error| judge(&error, failed(&short(&error))))?;
        if addresses.is_empty() {
            return Err(failed("it has no address").into());
        }
        Ok(addresses)
    }

    fn allows(&self, address: IpAddr) -> bool {
        let listed = |address: IpAddr| self.allow_nets.iter().any(|net| net.contains(&address));
        self.allow_internal
            || !address::is_internal(address)
            || listed(address)
            || address::embedded(address).is_some_and(|inner| listed(IpAddr::V4(inner)))
    }
}

fn refused(host: &Host, address: IpAddr) -> Failure {
    let target = match host {
        Host::Domain(name) => format!("{name} ({address})"),
        Host::Ipv4(_) | Host::Ipv6(_) => address.to_string(),
    };
    Failure::permanent(format!(
        "{target} is an internal address; --allow-internal or --allow-net {} on the node would allow it",
        IpNet::from(address)
    ))
}

/// Connects to the first address that answers. A slow one does not hold up those after it. If none answers and this
/// node could not try one of them, that is what the caller hears.
pub(super) async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Undelivered> {
    let mut waiting = interleaved(addresses).into_iter();
    let mut trying = FuturesUnordered::new();
    let mut undelivered = None;
    loop {
        if let Some(address) = waiting.next() {
            trying.push(async move { (address, TcpStream::connect(address).await) });
        }
        let finished = match waiting.len() {
            0 => trying.next().await,
            _ => match tokio::time::timeout(HEAD_START, trying.next()).await {
                Ok(finished) => finished,
                Err(_) => continue,
            },
        };
        match finished {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => {
                undelivered = match undelivered {
                    Some(Undelivered::Short(shortage)) => Some(Undelivered::Short(shortage)),
                    Some(Undelivered::Failed(_)) | None => Some(cannot_connect(address, &error)),
                };
            }
            None if waiting.len() == 0 => {
                return Err(undelivered
                    .unwrap_or_else(|| Failure::retryable("there is no address to connect to").into()));
            }
            None => {}
        }
    }
}

/// One family after the other in turn, beginning with the one the resolver put first.
fn interleaved(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut order = Vec::with_capacity(addresses.len());
    while order.len() < addresses.len() {
        order.extend(first.next());
        order.extend(second.next());
    }
    order
}

fn cannot_connect(address: SocketAddr, error: &io::Error) -> Undelivered {
    let failure = Failure::retryable(match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {address}"),
        _ => format!("cannot connect to {address}: {}", short(error)),
    });
    match error.kind() {
        io::ErrorKind::AddrNotAvailable if !is_within_reach(address) => failure.into(),
        _ => judge(error, failure),
    }
}

/// False when this machine has no address to reach it from, as where IPv6 is off. Sends nothing: connecting a UDP
/// socket chooses the own address by the same rules, and takes no port from TCP.
fn is_within_reach(address: SocketAddr) -> bool {
    let unspecified = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let connected = UdpSocket::bind((unspecified, 0)).and_then(|socket| socket.connect(address));
    !connected.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

/// The error as a phrase, without the number that follows it.
pub(super) fn short(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
