//! Keys and config of the redis protocol.
#![cfg_attr(not(feature = "redis"), allow(dead_code))]

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::endpoint::Endpoint;
use crate::error::Invalid;
use crate::protocol::broker::{self, BrokerAddress, PASSWORD, PORT, USERNAME};
use crate::protocol::headers::MapRules;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{Must, Ranges, Rule};
use crate::protocol::tls::{CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE, TLS, TlsConfig};
use crate::protocol::{CONNECT_TIMEOUT, ProtocolConfig, ProtocolDefinition, Relation, TIMEOUT, Then, config};
use crate::sink::{Environment, Sink, Undelivered};

/// Redis takes more; a longer one is a mistake.
const STREAM_KEY_BYTES_MAX: usize = 1024;
const PORT_DEFAULT: u16 = 6379;

pub(crate) const REDIS: ProtocolDefinition = ProtocolDefinition {
    name: "redis",
    keys: KEYS,
    relations: RELATIONS,
    headers: &FIELDS,
    endpoint_headers: &[],
    read: |map| Ok(Arc::new(RedisConfig::read(map)?)),
};

const KEYS: &[ConfigKey] = &[
    broker::host("host"),
    PORT,
    ConfigKey::new("stream_key", ValueKind::Text { bytes_max: STREAM_KEY_BYTES_MAX, rules: &[] })
        .required()
        .per_message(),
    ConfigKey::new("db", ValueKind::Whole { min: 0, max: 1 << 20 }).default("0"),
    USERNAME,
    PASSWORD,
    ConfigKey::new("maxlen", ValueKind::Whole { min: 1, max: 1 << 53 }),
    ConfigKey::new("minid", ValueKind::Text { bytes_max: 41, rules: MINID }),
    ConfigKey::new("nomkstream", ValueKind::Flag).default("false"),
    TIMEOUT,
    CONNECT_TIMEOUT,
    TLS,
    ConfigKey::new("fields", ValueKind::Map(&FIELDS)).message_only(),
];

const RELATIONS: &[Relation] = &[
    Relation { given: "username", is: None, then: Then::Needs("password"), says: "needs config.password" },
    CERTIFICATE_NEEDS_KEY,
    KEY_NEEDS_CERTIFICATE,
];

const DIGITS_AND_DASH: Ranges = &[('0', '9'), ('-', '-')];
const NO_MINID: &str = "must be the id of an entry, such as 1700000000000-0";
const MINID: &[Rule] = &[
    Rule::new(Must::OnlyHave(DIGITS_AND_DASH), NO_MINID),
    Rule::new(Must::NotBeginWith(&["-"]), NO_MINID),
    Rule::new(Must::NotEndWith(&["-"]), NO_MINID),
];

/// A message's headers and its option `fields` become fields of the entry.
const FIELDS: MapRules = MapRules {
    names: &[
        Rule::new(Must::NotBe(&[""]), "must not be empty"),
        Rule::new(
            Must::NotBe(&["id", "payload", "content_type"]),
            "cannot be set; the fields id, payload and content_type are Postrider's",
        ),
        Rule::new(
            Must::NotBeginWith(&["postrider-"]),
            "cannot be set; fields beginning with postrider- are Postrider's",
        ),
    ],
    values: &[],
    values_of: &[],
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RedisConfig {
    #[serde(flatten)]
    pub(super) connection: RedisConnectionConfig,
    pub(super) stream_key: String,
    pub(super) maxlen: Option<u64>,
    pub(super) minid: Option<String>,
    pub(super) nomkstream: bool,
    #[serde(deserialize_with = "config::seconds")]
    timeout: Duration,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) connect_timeout: Duration,
}

/// Endpoints with the same share a connection.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct RedisConnectionConfig {
    host: String,
    port: Option<u16>,
    pub(super) db: i64,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) tls: Option<TlsConfig>,
}

impl RedisConnectionConfig {
    pub(super) fn address(&self) -> Result<BrokerAddress, Invalid> {
        BrokerAddress::new("host", &self.host, self.port.unwrap_or(PORT_DEFAULT))
    }
}

impl RedisConfig {
    fn read(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let config: Self = config::read(KEYS, map)?;
        config.connection.address()?;
        config.connection.tls.as_ref().map_or(Ok(()), TlsConfig::check)?;
        if config.minid.as_deref().is_some_and(|minid| !is_entry_id(minid)) {
            return Err(Invalid::new("config.minid", NO_MINID));
        }
        if config.maxlen.is_some() && config.minid.is_some() {
            return Err(Invalid::new("config.minid", "cannot stand beside config.maxlen"));
        }
        Ok(config)
    }
}

/// Milliseconds and, behind a dash, a number.
fn is_entry_id(text: &str) -> bool {
    let (millis, number) = text.split_once('-').unwrap_or((text, "0"));
    millis.parse::<u64>().is_ok() && number.parse::<u64>().is_ok()
}

impl ProtocolConfig for RedisConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    #[cfg(feature = "redis")]
    fn connect(&self, _endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(super::sink::RedisSink::connect(self, environment)?))
    }

    #[cfg(not(feature = "redis"))]
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Err(crate::sink::not_built("redis"))
    }
}
