//! What a node runs with. [`RawConfig`] is what was typed (flags and environment, or the file);
//! [`Config`] is what is true. Flags beat environment beat file beat defaults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use postrider::EngineOptions;
use postrider::engine::{DRAIN_TIMEOUT_DEFAULT, IN_FLIGHT_DEFAULT};
use postrider::sink::Environment;
use serde::Deserialize;

use crate::failure::CommandError;
use crate::store_url::StoreUrl;

pub(crate) const LISTEN_DEFAULT: &str = "127.0.0.1:7171";
const IN_FLIGHT_MAX: u32 = 10_000;
const DRAIN_TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// One list of keys for flags, environment and file.
#[derive(Clone, Debug, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawConfig {
    /// `--store` belongs to every command, so it is not a flag of this group.
    #[arg(skip)]
    pub(crate) store: Option<String>,

    /// Address of the HTTP API; only loopback unless the store has tokens [default: 127.0.0.1:7171]
    #[arg(long, env = "POSTRIDER_LISTEN", hide_env_values = true, value_name = "ADDR")]
    listen: Option<String>,

    /// Bring an older store up to date instead of stopping with a message
    #[arg(long, env = "POSTRIDER_MIGRATE", hide_env_values = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    migrate: Option<bool>,

    /// Deliver to loopback, private and other internal addresses too
    #[arg(long, env = "POSTRIDER_ALLOW_INTERNAL", hide_env_values = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL", value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true)]
    allow_internal: Option<bool>,

    /// Deliver to this internal network although it is internal; may be given several times
    #[arg(
        long,
        env = "POSTRIDER_ALLOW_NET",
        hide_env_values = true,
        value_delimiter = ',',
        value_name = "CIDR"
    )]
    allow_net: Option<Vec<String>>,

    /// Folder that `file:NAME` secrets are read from; without it they are refused
    #[arg(long, env = "POSTRIDER_SECRETS_DIR", hide_env_values = true, value_name = "DIR")]
    secrets_dir: Option<PathBuf>,

    /// Folder below which file endpoints write; without it they are refused
    #[arg(long, env = "POSTRIDER_FILE_ROOT", hide_env_values = true, value_name = "DIR")]
    file_root: Option<PathBuf>,

    /// Attempts running at once, over all endpoints; fewer where the limit of open files is low [default: 1024]
    #[arg(long, env = "POSTRIDER_MAX_IN_FLIGHT", hide_env_values = true, value_name = "N")]
    max_in_flight: Option<u32>,

    /// How long a clean stop waits for running attempts, as 20 or 20s [default: 20s]
    #[arg(long, env = "POSTRIDER_DRAIN_TIMEOUT", hide_env_values = true, value_name = "SECONDS")]
    drain_timeout: Option<Seconds>,

    /// How logs are written to stderr [default: text]
    #[arg(long, env = "POSTRIDER_LOG_FORMAT", hide_env_values = true, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) store: StoreUrl,
    pub(crate) listen: SocketAddr,
    pub(crate) migrate: bool,
    pub(crate) log_format: LogFormat,
    pub(crate) engine: EngineOptions,
}

impl RawConfig {
    pub(crate) fn from_file(path: &Path) -> Result<Self, CommandError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            CommandError::usage(format!("cannot read the config {}: {error}", path.display()))
        })?;
        // Without the line itself, which may hold a password.
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            let (path, why) = (path.display(), error.message());
            CommandError::usage(format!("the config {path} is not right: line {line}: {why}"))
        })
    }

    /// What was given here wins over `under`.
    pub(crate) fn over(self, under: Self) -> Self {
        Self {
            store: self.store.or(under.store),
            listen: self.listen.or(under.listen),
            migrate: self.migrate.or(under.migrate),
            allow_internal: self.allow_internal.or(under.allow_internal),
            allow_net: self.allow_net.or(under.allow_net),
            secrets_dir: self.secrets_dir.or(under.secrets_dir),
            file_root: self.file_root.or(under.file_root),
            max_in_flight: self.max_in_flight.or(under.max_in_flight),
            drain_timeout: self.drain_timeout.or(under.drain_timeout),
            log_format: self.log_format.or(under.log_format),
        }
    }

    pub(crate) fn check(self) -> Result<Config, CommandError> {
        let max_in_flight = self.max_in_flight.unwrap_or(IN_FLIGHT_DEFAULT);
        if !(1..=IN_FLIGHT_MAX).contains(&max_in_flight) {
            return Err(bad("max_in_flight", format!("must be from 1 to {IN_FLIGHT_MAX}")));
        }
        Ok(Config {
            store: StoreUrl::or_default(self.store.as_deref())?,
            listen: listen_address(self.listen.as_deref().unwrap_or(LISTEN_DEFAULT))?,
            migrate: self.migrate.unwrap_or(false),
            log_format: self.log_format.unwrap_or_default(),
            engine: EngineOptions {
                node_name: node_name(),
                max_in_flight,
                drain_timeout: self.drain_timeout.map_or(DRAIN_TIMEOUT_DEFAULT, |seconds| seconds.0),
                environment: Environment {
                    allow_internal: self.allow_internal.unwrap_or(false),
                    allow_nets: self
                        .allow_net
                        .unwrap_or_default()
                        .iter()
                        .map(|text| network(text))
                        .collect::<Result<_, _>>()?,
                    secrets_dir: self.secrets_dir.map(|dir| folder("secrets_dir", dir)).transpose()?,
                    file_root: self.file_root.map(|dir| folder("file_root", dir)).transpose()?,
                    ..Environment::default()
                },
                // The environment says, when the node starts.
                tracer: None,
            },
        })
    }
}

/// Seconds as people write them: 20, 0.5, "20s", "1m 30s".
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Seconds(pub(crate) Duration);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.trim().parse::<f64>() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
            Err(_) => {
                text.parse::<jiff::SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok())
            }
        };
        parsed
            .filter(|duration| *duration <= DRAIN_TIMEOUT_MAX)
            .map(Self)
            .ok_or_else(|| "must be seconds from 0 to 3600, as 20, 0.5 or 20s".to_owned())
    }
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Whole(u32),
            Number(f64),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Whole(seconds) => seconds.to_string(),
            Written::Number(seconds) => seconds.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn bad(key: &str, rule: impl Into<String>) -> CommandError {
    CommandError::usage(format!("{key}: {}", rule.into()))
}

fn listen_address(text: &str) -> Result<SocketAddr, CommandError> {
    let address = match text.strip_prefix("localhost:") {
        Some(port) => port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
        None => text.parse().ok(),
    };
    address.ok_or_else(|| {
        let failure = bad("listen", format!("{text:?} is not an address like {LISTEN_DEFAULT}"));
        match text.strip_prefix(':') {
            Some(port) => {
                failure.hint(format!("127.0.0.1:{port} is for this machine, 0.0.0.0:{port} for all"))
            }
            None => failure,
        }
    })
}

fn network(text: &str) -> Result<IpNet, CommandError> {
    text.parse::<IpNet>()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| bad("allow_net", format!("{text:?} is not a network like 10.0.0.0/8 or fd00::/8")))
}

fn folder(key: &str, dir: PathBuf) -> Result<PathBuf, CommandError> {
    if dir.is_dir() { Ok(dir) } else { Err(bad(key, format!("{} is not a folder", dir.display()))) }
}

fn node_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    format!("{}:{}", if host.is_empty() { "node" } else { host }, std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_first_wins_field_by_field() {
        let flags: RawConfig = toml::from_str("listen = '127.0.0.1:1'").expect("toml");
        let file: RawConfig =
            toml::from_str("listen = '127.0.0.1:2'\nmax_in_flight = 7\ndrain_timeout = '1m 30s'")
                .expect("toml");
        let config = flags.over(file).check().expect("right");
        assert_eq!(config.listen.port(), 1);
        assert_eq!(config.engine.max_in_flight, 7);
        assert_eq!(config.engine.drain_timeout, Duration::from_secs(90));
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_known_ones() {
        let error = toml::from_str::<RawConfig>("lisen = 'x'").expect_err("refused").to_string();
        assert!(error.contains("unknown field `lisen`"), "{error}");
        assert!(error.contains("`listen`") && error.contains("`file_root`"), "{error}");
    }

    #[test]
    fn an_address_is_a_number_with_a_port() {
        for good in ["127.0.0.1:0", "[::1]:80", "localhost:7171", "0.0.0.0:7171"] {
            assert!(listen_address(good).is_ok(), "{good}");
        }
        for bad in ["7171", "example.org:80", "0.0.0.0", ""] {
            assert!(listen_address(bad).is_err(), "{bad}");
        }
    }
}
