//! The way out: which addresses a node may connect to, and how it connects to them.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use ipnet::IpNet;
use tokio::net::TcpStream;
use url::Host;

use super::Environment;
use crate::verdict::Failure;

mod address;

/// How long one address of several is tried alone (RFC 8305 advises 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);

/// Names to addresses.
#[async_trait]
pub trait Resolve: Send + Sync {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((name, 0)).await?.map(|address| address.ip()).collect())
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
    pub(super) fn new(environment: &Environment, resolver: Arc<dyn Resolve>) -> Self {
        Self {
            allow_internal: environment.allow_internal,
            allow_nets: environment.allow_nets.clone(),
            resolver,
        }
    }

    /// The addresses of a host, resolved once; refused if any single one is internal.
    pub(super) async fn admit(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, Failure> {
        let addresses = match host {
            Host::Ipv4(address) => vec![IpAddr::V4(*address)],
            Host::Ipv6(address) => vec![IpAddr::V6(*address)],
            Host::Domain(name) => self.resolve(name).await?,
        };
        match addresses.iter().find(|address| !self.allows(**address)) {
            Some(internal) => Err(refused(host, *internal)),
            None => Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()),
        }
    }

    async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, Failure> {
        let failed = |why: &str| Failure::retryable(format!("cannot resolve {name}: {why}"));
        let addresses = self.resolver.resolve(name).await.map_err(|error| failed(&short(&error)))?;
        if addresses.is_empty() {
            return Err(failed("it has no address"));
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

/// Connects to the first address that answers. A slow one does not hold up those after it.
pub(super) async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Failure> {
    let mut waiting = interleaved(addresses).into_iter();
    let mut trying = FuturesUnordered::new();
    let mut failure = None;
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
            Some((address, Err(error))) => failure = Some(cannot_connect(address, &error)),
            None if waiting.len() == 0 => {
                return Err(
                    failure.unwrap_or_else(|| Failure::retryable("there is no address to connect to"))
                );
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

fn cannot_connect(address: SocketAddr, error: &io::Error) -> Failure {
    Failure::retryable(match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {address}"),
        _ => format!("cannot connect to {address}: {}", short(error)),
    })
}

/// The error as a phrase, without the number that follows it.
pub(super) fn short(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
