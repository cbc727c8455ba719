//! Keys and config of the mqtt protocol.
#![cfg_attr(not(feature = "mqtt"), allow(dead_code))]

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
use crate::protocol::rules::{ASCII_CONTROL, CONTROL, Must, Ranges, Rule};
use crate::protocol::tls::{CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE, TLS, TlsConfig};
use crate::protocol::{CONNECT_TIMEOUT, ProtocolConfig, ProtocolDefinition, TIMEOUT, config};
use crate::sink::{Environment, Sink, Undelivered};

/// MQTT takes more; a longer one is a mistake.
const TOPIC_BYTES_MAX: usize = 1024;
const CLIENT_ID_BYTES_MAX: usize = 256;
/// The length of a field in MQTT is a number of two bytes.
const WILL_BYTES_MAX: usize = u16::MAX as usize;
const PORT_DEFAULT: u16 = 1883;
const PORT_DEFAULT_TLS: u16 = 8883;

pub(crate) const MQTT: ProtocolDefinition = ProtocolDefinition {
    name: "mqtt",
    keys: KEYS,
    relations: &[TYPE_NEEDS_CLOUDEVENTS, CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE],
    headers: &USER_PROPERTIES,
    endpoint_headers: &[],
    read: |map| Ok(Arc::new(MqttConfig::read(map)?)),
};

const KEYS: &[ConfigKey] = &[
    broker::host("broker"),
    PORT,
    TOPIC.per_message(),
    ConfigKey::new("version", ValueKind::Choice(&["5", "3.1.1"])).default("\"5\""),
    QOS.default("1").unconfirmed("0").per_message(),
    RETAIN.default("false").per_message(),
    ConfigKey::new("client_id", ValueKind::Text { bytes_max: CLIENT_ID_BYTES_MAX, rules: &[MQTT_TEXT] }),
    USERNAME,
    PASSWORD,
    ConfigKey::new("keepalive", ValueKind::Whole { min: 1, max: u16::MAX as u64 }).default("60"),
    ConfigKey::new(
        "will",
        ValueKind::Object(&[
            TOPIC,
            ConfigKey::new("payload", ValueKind::Text { bytes_max: WILL_BYTES_MAX, rules: &[] }),
            QOS,
            RETAIN,
        ]),
    ),
    CLOUDEVENTS,
    CLOUDEVENTS_TYPE,
    TIMEOUT,
    CONNECT_TIMEOUT,
    TLS,
    ConfigKey::new("user_properties", ValueKind::Map(&USER_PROPERTIES)).message_only(),
];

const TOPIC: ConfigKey = ConfigKey::new(
    "topic",
    ValueKind::Text {
        bytes_max: TOPIC_BYTES_MAX,
        rules: &[
            Rule::new(
                Must::NotHave(&[('+', '+'), ('#', '#')]),
                "must not contain + or #, which are for subscribers",
            ),
            MQTT_TEXT,
        ],
    },
)
.required();
const QOS: ConfigKey = ConfigKey::new("qos", ValueKind::Whole { min: 0, max: 2 });
const RETAIN: ConfigKey = ConfigKey::new("retain", ValueKind::Flag);

/// Brokers close the connection on texts with these, which would hurt its other messages: control characters, and code
/// points that Unicode never assigns.
pub(super) const NOT_IN_TEXTS: Ranges = &[
    ASCII_CONTROL,
    CONTROL,
    ('\u{fdd0}', '\u{fdef}'),
    ('\u{fffe}', '\u{ffff}'),
    ('\u{1fffe}', '\u{1ffff}'),
    ('\u{2fffe}', '\u{2ffff}'),
    ('\u{3fffe}', '\u{3ffff}'),
    ('\u{4fffe}', '\u{4ffff}'),
    ('\u{5fffe}', '\u{5ffff}'),
    ('\u{6fffe}', '\u{6ffff}'),
    ('\u{7fffe}', '\u{7ffff}'),
    ('\u{8fffe}', '\u{8ffff}'),
    ('\u{9fffe}', '\u{9ffff}'),
    ('\u{afffe}', '\u{affff}'),
    ('\u{bfffe}', '\u{bffff}'),
    ('\u{cfffe}', '\u{cffff}'),
    ('\u{dfffe}', '\u{dffff}'),
    ('\u{efffe}', '\u{effff}'),
    ('\u{ffffe}', '\u{fffff}'),
    ('\u{10fffe}', '\u{10ffff}'),
];
const MQTT_TEXT: Rule =
    Rule::new(Must::NotHave(NOT_IN_TEXTS), "must not contain control characters or noncharacters");

/// A message's headers and its option `user_properties` become user properties.
const USER_PROPERTIES: MapRules = MapRules {
    names: &[
        Rule::new(Must::NotBe(&[""]), "must not be empty"),
        Rule::new(
            Must::NotBeginWith(&["postrider-"]),
            "cannot be set; user properties beginning with postrider- are Postrider's",
        ),
        MQTT_TEXT,
    ],
    values: &[MQTT_TEXT],
    values_of: &[],
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MqttConfig {
    #[serde(flatten)]
    pub(super) connection: MqttConnectionConfig,
    pub(super) topic: String,
    pub(super) qos: u8,
    pub(super) retain: bool,
    pub(super) cloudevents: Option<CloudEventsMode>,
    pub(super) cloudevents_type: String,
    #[serde(deserialize_with = "config::seconds")]
    timeout: Duration,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) connect_timeout: Duration,
}

/// Endpoints with the same share a connection.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct MqttConnectionConfig {
    broker: String,
    port: Option<u16>,
    pub(super) version: MqttVersion,
    pub(super) client_id: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) keepalive: u16,
    pub(super) will: Option<MqttWill>,
    pub(super) tls: Option<TlsConfig>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) enum MqttVersion {
    #[serde(rename = "3.1.1")]
    V3,
    #[serde(rename = "5")]
    V5,
}

/// What the broker publishes when this node's connection ends without a goodbye.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct MqttWill {
    pub(super) topic: String,
    #[serde(default)]
    pub(super) payload: String,
    #[serde(default)]
    pub(super) qos: u8,
    #[serde(default)]
    pub(super) retain: bool,
}

impl MqttConnectionConfig {
    pub(super) fn address(&self) -> Result<BrokerAddress, Invalid> {
        let default = if self.tls.is_some() { PORT_DEFAULT_TLS } else { PORT_DEFAULT };
        BrokerAddress::new("broker", &self.broker, self.port.unwrap_or(default))
    }
}

impl MqttConfig {
    fn read(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let config: Self = config::read(KEYS, map)?;
        config.connection.address()?;
        config.connection.tls.as_ref().map_or(Ok(()), TlsConfig::check)?;
        if config.connection.version == MqttVersion::V5 {
            return Ok(config);
        }
        if config.cloudevents == Some(CloudEventsMode::Binary) {
            return Err(Invalid::new(
                "config.cloudevents",
                "must be \"structured\" with version 3.1.1, which has no user properties",
            ));
        }
        if config.connection.password.is_some() && config.connection.username.is_none() {
            return Err(Invalid::new("config.password", "needs config.username with version 3.1.1"));
        }
        Ok(config)
    }
}

impl ProtocolConfig for MqttConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    #[cfg(feature = "mqtt")]
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(super::sink::MqttSink::connect(self, endpoint, environment)?))
    }

    #[cfg(not(feature = "mqtt"))]
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Err(crate::sink::not_built("mqtt"))
    }
}
