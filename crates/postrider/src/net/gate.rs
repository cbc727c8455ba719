//! Which addresses a node may connect to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::timeout;
use url::Host;

use super::{Resolve, address, judge, short};
use crate::sink::{Environment, Undelivered};
use crate::verdict::Failure;

/// Where only a proxy has names, asking for one may take as long as a resolver is patient.
const RESOLVE_TIME_MAX: Duration = Duration::from_secs(1);

/// Keeps deliveries away from the node's own networks. It judges addresses, never names, and what it
/// admits is what is connected to: a name cannot mean one thing when checked and another when used.
pub(super) struct AddressGate {
    allow_internal: bool,
    allow_nets: Vec<IpNet>,
    resolver: Arc<dyn Resolve>,
}

impl AddressGate {
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
        self.check(host, &addresses)?;
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }

    /// For a host that a proxy resolves and connects to, so that this node cannot know the address. Refuses what this node
    /// itself finds to be internal; a name that only the proxy can resolve is the proxy's to judge.
    pub(super) async fn admit_behind_proxy(&self, host: &Host) -> Result<(), Undelivered> {
        let addresses = match host {
            _ if self.allow_internal => return Ok(()),
            Host::Ipv4(address) => vec![IpAddr::V4(*address)],
            Host::Ipv6(address) => vec![IpAddr::V6(*address)],
            Host::Domain(name) => match timeout(RESOLVE_TIME_MAX, self.resolve(name)).await {
                Ok(Ok(addresses)) => addresses,
                Ok(Err(Undelivered::Short(shortage))) => return Err(shortage.into()),
                Ok(Err(Undelivered::Failed(_))) | Err(_) => return Ok(()),
            },
        };
        Ok(self.check(host, &addresses)?)
    }

    fn check(&self, host: &Host, addresses: &[IpAddr]) -> Result<(), Failure> {
        match addresses.iter().find(|address| !self.allows(**address)) {
            Some(internal) => Err(refused(host, *internal)),
            None => Ok(()),
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
