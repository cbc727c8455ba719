//! Keys and config of the nats protocol.
#![cfg_attr(not(feature = "nats"), allow(dead_code))]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use super::nkey::{NatsCredentials, NatsKey};
use crate::endpoint::Endpoint;
use crate::error::Invalid;
use crate::protocol::broker::{BrokerAddress, PASSWORD, USERNAME};
use crate::protocol::cloudevents::{CLOUDEVENTS, CLOUDEVENTS_TYPE, CloudEventsMode, TYPE_NEEDS_CLOUDEVENTS};
use crate::protocol::headers::MapRules;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{self, ASCII_CONTROL, CONTROL, Must, NO_CONTROL, Rule};
use crate::protocol::secret::Reference;
use crate::protocol::tls::{CERTIFICATE_NEEDS_KEY, KEY_NEEDS_CERTIFICATE, TLS, TlsConfig};
use crate::protocol::{CONNECT_TIMEOUT, ProtocolConfig, ProtocolDefinition, Relation, TIMEOUT, Then, config};
use crate::sink::{Environment, Sink, Undelivered};

const URL_BYTES_MAX: usize = 512;
/// A server reads lines of 4096 bytes unless it is told otherwise, and the subject is only a part of the line.
const SUBJECT_BYTES_MAX: usize = 1024;
const PORT_DEFAULT: u16 = 4222;

pub(crate) const NATS: ProtocolDefinition = ProtocolDefinition {
    name: "nats",
    keys: KEYS,
    relations: RELATIONS,
    headers: &HEADERS,
    endpoint_headers: &[],
    read: |map| Ok(Arc::new(NatsConfig::read(map)?)),
};

const KEYS: &[ConfigKey] = &[
    ConfigKey::new("url", ValueKind::Text { bytes_max: URL_BYTES_MAX, rules: URL }).required(),
    ConfigKey::new("subject", ValueKind::Text { bytes_max: SUBJECT_BYTES_MAX, rules: SUBJECT })
        .required()
        .per_message(),
    ConfigKey::new("jetstream", ValueKind::Flag).default("true").unconfirmed("false"),
    ConfigKey::new("token", ValueKind::Secret(&[NO_CONTROL])),
    USERNAME,
    PASSWORD,
    ConfigKey::new("nkey_seed", ValueKind::Secret(NKEY_SEED)),
    ConfigKey::new("creds", ValueKind::Secret(CREDS)),
    ConfigKey::new("headers", ValueKind::Map(&HEADERS)),
    CLOUDEVENTS,
    CLOUDEVENTS_TYPE,
    TIMEOUT,
    CONNECT_TIMEOUT,
    TLS,
    ConfigKey::new("tls_first", ValueKind::Flag).default("false"),
];

const RELATIONS: &[Relation] = &[
    Relation { given: "username", is: None, then: Then::Needs("password"), says: "needs config.password" },
    Relation { given: "password", is: None, then: Then::Needs("username"), says: "needs config.username" },
    TYPE_NEEDS_CLOUDEVENTS,
    CERTIFICATE_NEEDS_KEY,
    KEY_NEEDS_CERTIFICATE,
];

const NO_URL: &str = "must be nats://HOST:PORT or tls://HOST:PORT";
const URL: &[Rule] = &[
    Rule::new(
        Must::BeUrl(&["nats", "tls"]),
        "must not contain a user name or password; use config.username and config.password",
    ),
    Rule::new(
        Must::OnlyHave(&[
            ('a', 'z'),
            ('A', 'Z'),
            ('0', '9'),
            ('-', '/'),
            ('_', '_'),
            (':', ':'),
            ('[', '['),
            (']', ']'),
        ]),
        NO_URL,
    ),
];

const NO_SUBJECT: &str = "must be words joined by '.'";
const SUBJECT: &[Rule] = &[
    Rule::new(Must::NotHave(&[('*', '*'), ('>', '>')]), "must not contain the wildcards '*' and '>'"),
    Rule::new(
        Must::NotHave(&[ASCII_CONTROL, (' ', ' '), ('"', '"'), ('\\', '\\'), CONTROL]),
        "must not contain spaces, quotes, backslashes or control characters",
    ),
    Rule::new(Must::NotBe(&[""]), NO_SUBJECT),
    Rule::new(Must::NotBeginWith(&["."]), NO_SUBJECT),
    Rule::new(Must::NotEndWith(&["."]), NO_SUBJECT),
    Rule::new(Must::NotContain(&[".."]), NO_SUBJECT),
    // A message must not command the server, nor answer the requests of others.
    Rule::new(
        Must::NotBeginWith(&["$JS.", "$SYS.", "_INBOX."]),
        "must not begin with $JS., $SYS. or _INBOX., which belong to the server",
    ),
];

const NKEY_SEED: &[Rule] =
    &[Rule::new(Must::BeginWith(&["SU"]), "must be the seed of a user, which begins with SU")];
const NO_CREDS: &str = "must be the text of a credentials file, with a JWT and a seed";
const CREDS: &[Rule] = &[
    Rule::new(Must::Contain("-----BEGIN NATS USER JWT-----"), NO_CREDS),
    Rule::new(Must::Contain("-----BEGIN USER NKEY SEED-----"), NO_CREDS),
];

const NO_HEADER_NAME: &str = "must be visible ASCII characters without ':'";
pub(super) const HEADERS: MapRules = MapRules {
    names: &[
        Rule::new(Must::NotBe(&[""]), NO_HEADER_NAME),
        Rule::new(Must::OnlyHave(&[('!', '9'), (';', '~')]), NO_HEADER_NAME),
        Rule::new(
            Must::NotBe(&["nats-msg-id", "content-type"]),
            "cannot be set; nats-msg-id is the message's id, content-type its content type",
        ),
        Rule::new(
            Must::NotBeginWith(&["postrider-", "ce-"]),
            "cannot be set; headers beginning with postrider- and ce- are Postrider's",
        ),
        // The server stores a batch when its last message comes, and acknowledges none before.
        Rule::new(Must::NotBeginWith(&["nats-batch-"]), "cannot be set; every message is stored by itself"),
    ],
    values: &[NO_CONTROL],
    values_of: &[],
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NatsConfig {
    #[serde(flatten)]
    pub(super) connection: NatsConnectionConfig,
    pub(super) subject: String,
    pub(super) jetstream: bool,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) cloudevents: Option<CloudEventsMode>,
    pub(super) cloudevents_type: String,
    #[serde(deserialize_with = "config::seconds")]
    timeout: Duration,
    #[serde(deserialize_with = "config::seconds")]
    pub(super) connect_timeout: Duration,
}

/// Endpoints with the same share a connection.
#[derive(Clone, Deserialize, Serialize)]
pub(super) struct NatsConnectionConfig {
    url: String,
    pub(super) token: Option<String>,
    pub(super) username: Option<String>,
    pub(super) password: Option<String>,
    pub(super) nkey_seed: Option<String>,
    pub(super) creds: Option<String>,
    pub(super) tls: Option<TlsConfig>,
    /// Encrypt before the server says anything.
    pub(super) tls_first: bool,
}

impl NatsConnectionConfig {
    pub(super) fn address(&self) -> Result<BrokerAddress, Invalid> {
        let invalid = || Invalid::new("config.url", NO_URL);
        let url = Url::parse(&self.url).map_err(|_| invalid())?;
        if !["", "/"].contains(&url.path()) {
            return Err(invalid());
        }
        let host = url.host_str().ok_or_else(invalid)?;
        BrokerAddress::new("url", host, url.port().unwrap_or(PORT_DEFAULT)).map_err(|_| invalid())
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.tls_first || self.tls.is_some() || self.url.to_ascii_lowercase().starts_with("tls:")
    }

    fn check_sign_in(&self) -> Result<(), Invalid> {
        let kinds = [
            ("token", &self.token),
            ("username", &self.username),
            ("nkey_seed", &self.nkey_seed),
            ("creds", &self.creds),
        ];
        let mut given = kinds.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name);
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            return Err(Invalid::new(
                format!("config.{second}"),
                format!("cannot stand beside config.{first}"),
            ));
        }
        let literal = |secret: &Option<String>| secret.clone().filter(|text| !Reference::is_one(text));
        let checked = literal(&self.nkey_seed).map_or(Ok(()), |seed| NatsKey::parse(&seed).map(drop));
        checked.map_err(|rule| Invalid::new("config.nkey_seed", rule))?;
        let checked = literal(&self.creds).map_or(Ok(()), |creds| NatsCredentials::parse(&creds).map(drop));
        checked.map_err(|rule| Invalid::new("config.creds", rule))
    }
}

impl NatsConfig {
    fn read(map: &Map<String, Value>) -> Result<Self, Invalid> {
        let config: Self = config::read(KEYS, map)?;
        config.connection.address()?;
        config.connection.check_sign_in()?;
        config.connection.tls.as_ref().map_or(Ok(()), TlsConfig::check)?;
        Ok(config)
    }
}

/// A line break in it would be a command to the server.
pub(super) fn check_subject(subject: &str) -> Result<(), String> {
    rules::check(SUBJECT, subject)
}

impl ProtocolConfig for NatsConfig {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    #[cfg(feature = "nats")]
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(super::sink::NatsSink::connect(self, endpoint, environment)?))
    }

    #[cfg(not(feature = "nats"))]
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Err(crate::sink::not_built("nats"))
    }
}
