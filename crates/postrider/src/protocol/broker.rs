//! What configs of brokers share: the host, the port, names and passwords.

use std::fmt;
use std::net::IpAddr;

use url::Host;

use super::keys::{ConfigKey, ValueKind};
use super::rules::{Must, NO_CONTROL, Rule};
use crate::error::Invalid;

/// The longest name that DNS has.
const HOST_BYTES_MAX: usize = 253;
const NAME_BYTES_MAX: usize = 256;

const NO_HOST: &str = "must be the name or address of a host, without a port";
const HOST: &[Rule] = &[Rule::new(
    Must::OnlyHave(&[
        ('a', 'z'),
        ('A', 'Z'),
        ('0', '9'),
        ('-', '.'),
        ('_', '_'),
        (':', ':'),
        ('[', '['),
        (']', ']'),
    ]),
    NO_HOST,
)];

pub(super) const fn host(name: &'static str) -> ConfigKey {
    ConfigKey::new(name, ValueKind::Text { bytes_max: HOST_BYTES_MAX, rules: HOST }).required()
}

pub(super) const PORT: ConfigKey = ConfigKey::new("port", ValueKind::Whole { min: 1, max: u16::MAX as u64 });
pub(super) const USERNAME: ConfigKey =
    ConfigKey::new("username", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: &[NO_CONTROL] });
pub(super) const PASSWORD: ConfigKey = ConfigKey::new("password", ValueKind::Secret(&[NO_CONTROL]));

/// Where a broker listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokerAddress {
    pub(super) host: Host,
    pub(super) port: u16,
}

impl BrokerAddress {
    /// `field` names the key that holds the host.
    pub(super) fn new(field: &str, host: &str, port: u16) -> Result<Self, Invalid> {
        let host = match host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) => Host::Ipv4(address),
            Ok(IpAddr::V6(address)) => Host::Ipv6(address),
            Err(_) => Host::parse(host).map_err(|_| Invalid::new(format!("config.{field}"), NO_HOST))?,
        };
        Ok(Self { host, port })
    }
}

impl fmt::Display for BrokerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
