//! Keys and config of the kafka protocol.
#![cfg_attr(not(feature = "kafka"), allow(dead_code))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::endpoint::Endpoint;
use crate::error::Invalid;
use crate::protocol::broker::{BrokerAddress, PASSWORD, USERNAME};
use crate::protocol::cloudevents::{CLOUDEVENTS, CLOUDEVENTS_TYPE, CloudEventsMode, TYPE_NEEDS_CLOUDEVENTS};
use crate::protocol::headers::MapRules;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{Must, Rule};
use crate::protocol::tls::{CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE, TLS, TlsConfig};
use crate::protocol::{CONNECT_TIMEOUT, ProtocolConfig, ProtocolDefinition, TIMEOUT_SECONDS_MAX, config};
use crate::sink::{Environment, Sink, Undelivered};

/// Dozens of addresses. Clients need only a few to find the others.
const BROKERS_BYTES_MAX: usize = 2048;
/// Kafka's own limit.
const TOPIC_BYTES_MAX: usize = 249;
/// Kafka takes more; a longer one is a mistake.
const KEY_BYTES_MAX: usize = 1024;

pub(crate) const KAFKA: ProtocolDefinition = ProtocolDefinition {
    name: "kafka",
    keys: KEYS,
    relations: &[TYPE_NEEDS_CLOUDEVENTS, CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE],
    headers: &HEADERS,
    endpoint_headers: &[],
    read: |map| Ok(Arc::new(KafkaConfig::read(map)?)),
};

const KEYS: &[ConfigKey] = &[
    ConfigKey::new("brokers", ValueKind::Text { bytes_max: BROKERS_BYTES_MAX, rules: BROKERS }).required(),
    ConfigKey::new("topic", ValueKind::Text { bytes_max: TOPIC_BYTES_MAX, rules: TOPIC })
        .required()
        .per_message(),
    ConfigKey::new("key", ValueKind::Text { bytes_max: KEY_BYTES_MAX, rules: &[] }).per_message(),
    ConfigKey::new("partition", ValueKind::Whole { min: 0, max: i32::MAX as u64 }).per_message(),
    ConfigKey::new("headers", ValueKind::Map(&HEADERS)),
    // With fewer acknowledgements, a message that counts as delivered could be lost.
    ConfigKey::new("acks", ValueKind::Choice(&["all"])).default("\"all\""),
    ConfigKey::new("idempotence", ValueKind::Flag).default("true"),
    ConfigKey::new("compression", ValueKind::Choice(&["none", "gzip", "snappy", "lz4", "zstd"]))
        .default("\"none\""),
    ConfigKey::new(
        "sasl",
        ValueKind::Object(&[
            ConfigKey::new("mechanism", ValueKind::Choice(&["plain", "scram-sha-256", "scram-sha-512"]))
                .required(),
            USERNAME.required(),
            PASSWORD.required(),
        ]),
    ),
    // No message has its own: the producer gives all records the same time.
    ConfigKey::new("timeout", ValueKind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("10"),
    CONNECT_TIMEOUT,
    TLS,
    CLOUDEVENTS,
    CLOUDEVENTS_TYPE,
];

const NO_BROKERS: &str = "must be addresses of brokers as host:port, separated by commas";
const BROKERS: &[Rule] = &[
    Rule::new(
        Must::OnlyHave(&[
            ('a', 'z'),
            ('A', 'Z'),
            ('0', '9'),
            (',', '.'),
            ('_', '_'),
            (':', ':'),
            ('[', '['),
            (']', ']'),
        ]),
        NO_BROKERS,
    ),
    Rule::new(Must::Contain(":"), NO_BROKERS),
];

const TOPIC: &[Rule] = &[
    Rule::new(
        Must::OnlyHave(&[('a', 'z'), ('A', 'Z'), ('0', '9'), ('-', '.'), ('_', '_')]),
        "must be letters, digits, dots, dashes and underscores",
    ),
    Rule::new(Must::NotBe(&[".", ".."]), "must not be . or .."),
];

/// Record headers can hold anything; these names are ours.
const HEADERS: MapRules = MapRules {
    names: &[
        Rule::new(Must::NotBe(&[""]), "must not be empty"),
        Rule::new(Must::NotBe(&["content-type"]), "cannot be set; it is the content type of the message"),
        Rule::new(
            Must::NotBeginWith(&["postrider-", "ce_"]),
            "cannot be set; headers beginning with postrider-, ce_ are Postrider's",
        ),
    ],
    values: &[],
    values_of: &[],
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct KafkaConfig {
    brokers: String,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) partition: Option<i32>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    #[serde(rename = "acks")]
    _acks: String,
    idempotence: bool,
    compression: KafkaCompression,
    sasl: Option<SaslConfig>,
    #[serde(deserialize_with = "config::seconds")]
    timeout: Duration,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) connect_timeout: Duration,
    tls: Option<TlsConfig>,
    pub(super) cloudevents: Option<CloudEventsMode>,
    /// Of messages without an event type.
    pub(super) cloudevents_type: String,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum KafkaCompression {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SaslConfig {
    pub(super) mechanism: SaslMechanism,
    pub(super) username: String,
    /// Or a reference to it.
    pub(super) password: String,
}

#[derive(Clone, Copy, Deserialize, Serialize)]
pub(super) enum SaslMechanism {
    #[serde(rename = "plain")]
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

/// Endpoints with the same share a producer.
#[derive(Clone, Serialize)]
pub(super) struct ProducerConfig {
    /// As host:port, separated by commas.
    pub(super) brokers: String,
    pub(super) idempotence: bool,
    pub(super) compression: KafkaCompression,
    pub(super) sasl: Option<SaslConfig>,
    pub(super) tls: Option<TlsConfig>,
    /// When the producer drops a record that was not acknowledged.
    pub(super) patience: Duration,
}

impl KafkaConfig {
    fn read(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let config: Self = config::read(KEYS, map)?;
        config.brokers()?;
        config.tls.as_ref().map_or(Ok(()), TlsConfig::check)?;
        Ok(config)
    }

    fn brokers(&self) -> Result<Vec<BrokerAddress>, Invalid> {
        self.brokers.split(',').map(broker).collect()
    }

    pub(super) fn producer(&self) -> Result<ProducerConfig, Invalid> {
        let brokers: Vec<String> = self.brokers()?.iter().map(BrokerAddress::to_string).collect();
        Ok(ProducerConfig {
            brokers: brokers.join(","),
            idempotence: self.idempotence,
            compression: self.compression,
            sasl: self.sasl.clone(),
            tls: self.tls.clone(),
            patience: self.timeout * 2 / 5,
        })
    }

    /// From the beginning of an attempt to the moment when the producer has its record, at the latest. After as long again
    /// the attempt ends, and the producer has given up before: it cannot be told to, and would send the record later.
    pub(super) fn hand_over_within(&self) -> Duration {
        self.timeout / 2
    }
}

fn broker(text: &str) -> Result<BrokerAddress, Invalid> {
    let invalid = || Invalid::new("config.brokers", NO_BROKERS);
    let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
    let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(invalid)?;
    BrokerAddress::new("brokers", host, port).map_err(|_| invalid())
}

impl ProtocolConfig for KafkaConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    #[cfg(feature = "kafka")]
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(super::sink::KafkaSink::connect(self, endpoint, environment)?))
    }

    #[cfg(not(feature = "kafka"))]
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Err(crate::sink::not_built("kafka"))
    }
}
