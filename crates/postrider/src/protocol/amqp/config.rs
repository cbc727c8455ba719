//! Keys and config of the amqp protocol.
#![cfg_attr(not(feature = "amqp"), allow(dead_code))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::endpoint::Endpoint;
use crate::error::Invalid;
use crate::protocol::broker::{self, BrokerAddress, PASSWORD, PORT, USERNAME};
use crate::protocol::cloudevents::{CLOUDEVENTS, CLOUDEVENTS_TYPE, CloudEventsMode, TYPE_NEEDS_CLOUDEVENTS};
use crate::protocol::headers::MapRules;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{Must, NO_CONTROL, Rule};
use crate::protocol::tls::{CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE, TLS, TlsConfig};
use crate::protocol::{CONNECT_TIMEOUT, ProtocolConfig, ProtocolDefinition, Relation, TIMEOUT, Then, config};
use crate::sink::{Environment, Sink, Undelivered};

/// The length of names is one byte in AMQP.
const NAME_BYTES_MAX: usize = 255;
const PORT_DEFAULT: u16 = 5672;
const TLS_PORT_DEFAULT: u16 = 5671;

pub(crate) const AMQP: ProtocolDefinition = ProtocolDefinition {
    name: "amqp",
    keys: KEYS,
    relations: RELATIONS,
    headers: &HEADERS,
    endpoint_headers: &[],
    read: |map| Ok(Arc::new(AmqpConfig::read(map)?)),
};

const KEYS: &[ConfigKey] = &[
    broker::host("host"),
    PORT,
    // The empty text names the default exchange, which routes to the queue that the routing key names.
    ConfigKey::new("exchange", ValueKind::TextOrEmpty { bytes_max: NAME_BYTES_MAX, rules: &[NO_CONTROL] })
        .required(),
    // Some kinds of exchanges ignore it.
    ConfigKey::new("routing_key", ValueKind::TextOrEmpty { bytes_max: NAME_BYTES_MAX, rules: &[NO_CONTROL] })
        .required()
        .per_message(),
    ConfigKey::new("vhost", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: &[NO_CONTROL] })
        .default("\"/\""),
    USERNAME,
    PASSWORD,
    ConfigKey::new("headers", ValueKind::Map(&HEADERS)),
    ConfigKey::new("persistent", ValueKind::Flag).default("true").per_message(),
    ConfigKey::new("mandatory", ValueKind::Flag).default("true"),
    CLOUDEVENTS,
    CLOUDEVENTS_TYPE,
    ConfigKey::new("heartbeat", ValueKind::Whole { min: 1, max: u16::MAX as u64 }).default("60"),
    TIMEOUT,
    CONNECT_TIMEOUT,
    TLS,
];

const RELATIONS: &[Relation] = &[
    Relation { given: "username", is: None, then: Then::Needs("password"), says: "needs config.password" },
    Relation { given: "password", is: None, then: Then::Needs("username"), says: "needs config.username" },
    TYPE_NEEDS_CLOUDEVENTS,
    CERTIFICATE_NEEDS_KEY,
    KEY_NEEDS_CERTIFICATE,
];

const HEADERS: MapRules = MapRules {
    names: &[
        Rule::new(Must::NotBe(&[""]), "must not be empty"),
        Rule::new(
            Must::NotBeginWith(&["postrider-", "cloudevents:"]),
            "cannot be set; headers beginning with postrider-, cloudEvents: are Postrider's",
        ),
    ],
    values: &[],
    values_of: &[],
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AmqpConfig {
    #[serde(flatten)]
    pub(super) connection: AmqpConnectionConfig,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) persistent: bool,
    pub(super) mandatory: bool,
    pub(super) cloudevents: Option<CloudEventsMode>,
    pub(super) cloudevents_type: String,
    #[serde(deserialize_with = "config::seconds")]
    timeout: Duration,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) connect_timeout: Duration,
}

/// Endpoints with the same share a connection.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct AmqpConnectionConfig {
    host: String,
    port: Option<u16>,
    pub(super) vhost: String,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    /// Seconds.
    pub(super) heartbeat: u16,
    pub(super) tls: Option<TlsConfig>,
}

impl AmqpConnectionConfig {
    pub(super) fn address(&self) -> Result<BrokerAddress, Invalid> {
        let default = if self.tls.is_some() { TLS_PORT_DEFAULT } else { PORT_DEFAULT };
        BrokerAddress::new("host", &self.host, self.port.unwrap_or(default))
    }
}

impl AmqpConfig {
    fn read(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let config: Self = config::read(KEYS, map)?;
        config.connection.address()?;
        config.connection.tls.as_ref().map_or(Ok(()), TlsConfig::check)?;
        Ok(config)
    }
}

impl ProtocolConfig for AmqpConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    #[cfg(feature = "amqp")]
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(super::sink::AmqpSink::connect(self, endpoint, environment)?))
    }

    #[cfg(not(feature = "amqp"))]
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Err(crate::sink::not_built("amqp"))
    }
}
