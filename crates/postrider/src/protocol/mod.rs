//! The protocols. Each is one folder: its table of keys, its typed config and its sink. What it may be told is data, checked
//! alike in Rust, in PostgreSQL and in SQLite.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::Invalid;
use crate::json::check_object;
use crate::settings::MAX_ATTEMPTS_MAX;

pub use config::{EndpointConfig, MessageOptions, ProtocolConfig, TypedConfig};
pub use headers::MapRules;
pub use http::signature;
pub use keys::{ConfigKey, SetBy, ValueKind, Variants};
pub use rules::{Must, Ranges, Rule};

mod broker;
pub(crate) mod cloudevents;
mod config;
pub mod headers;
pub(crate) mod keys;
pub(crate) mod rules;
pub mod secret;
pub(crate) mod tls;
mod http;
mod file;
mod mqtt;
mod redis;
mod nats;
mod amqp;
mod kafka;
#[cfg(test)]
pub(crate) mod made_up;

pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The longest that one attempt may ever take.
pub const TIMEOUT_SECONDS_MAX: u32 = 3600;

/// Keys that every protocol with a receiver has.
const TIMEOUT: ConfigKey =
    ConfigKey::new("timeout", ValueKind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("10").per_message();
const CONNECT_TIMEOUT: ConfigKey =
    ConfigKey::new("connect_timeout", ValueKind::Seconds { max: TIMEOUT_SECONDS_MAX }).default("5");

macro_rules! protocols {
    ($($variant:ident => $definition:path),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(rename_all = "lowercase"))]
        pub enum Protocol {
            $($variant),+
        }

        impl Protocol {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub fn definition(self) -> &'static ProtocolDefinition {
                match self {
                    $(Self::$variant => &$definition),+
                }
            }
        }
    };
}

protocols! {
    Http => http::HTTP,
    File => file::FILE,
    Mqtt => mqtt::MQTT,
    Redis => redis::REDIS,
    Nats => nats::NATS,
    Amqp => amqp::AMQP,
    Kafka => kafka::KAFKA,
}

/// All that Postrider knows of a protocol.
pub struct ProtocolDefinition {
    pub name: &'static str,
    /// Every key that an endpoint's config or a message's options may have.
    pub keys: &'static [ConfigKey],
    pub relations: &'static [Relation],
    /// What headers of messages may be.
    pub headers: &'static MapRules,
    /// Headers that a message may not set.
    pub endpoint_headers: &'static [&'static str],
    /// Makes the typed config of a map that the table accepts, and checks what the table cannot say.
    pub read: fn(&Map<String, Value>) -> TypedConfig,
}

/// A rule about two keys of a config. Keys of objects are written as `tls.ca`.
#[derive(Debug)]
pub struct Relation {
    /// Holds where this key is given…
    pub given: &'static str,
    /// …with this value, if there is one.
    pub is: Option<&'static str>,
    pub then: Then,
    pub says: &'static str,
}

#[derive(Debug)]
pub enum Then {
    /// `config.headers` cannot have this header. Without `is` the key itself sets the header, so messages cannot either.
    NoHeader(&'static str),
    /// This key has to be given too.
    Needs(&'static str),
}

/// What a message may say for itself, whatever its endpoint's protocol is.
pub(crate) const EVERY_MESSAGE: &[ConfigKey] =
    &[ConfigKey::new("max_attempts", ValueKind::Whole { min: 0, max: MAX_ATTEMPTS_MAX as u64 })
        .message_only()];

impl Protocol {
    pub fn from_name(name: &str) -> Result<Self, Invalid> {
        Self::ALL.iter().copied().find(|protocol| protocol.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|protocol| protocol.as_str()).collect();
            Invalid::new("protocol", format!("must be one of {}", known.join(", ")))
        })
    }

    pub fn as_str(self) -> &'static str {
        self.definition().name
    }

    /// The table: every key that an endpoint's config or a message's options may have.
    pub fn keys(self) -> impl Iterator<Item = &'static ConfigKey> {
        self.definition().all_keys()
    }

    /// Checks an endpoint's config; errors name the field as `config.<key>`.
    pub fn check_config(self, config: &Map<String, Value>) -> Result<(), Invalid> {
        self.definition().read_config(config).map(drop)
    }

    /// Checks a message's options; errors name the field as `options.<key>`.
    pub fn check_message_options(self, options: &Map<String, Value>) -> Result<(), Invalid> {
        // Every send comes by here, and most messages have none.
        if options.is_empty() {
            return Ok(());
        }
        check_object("options", options)?;
        self.definition().check_message_options(options)
    }

    /// Checks a message's headers; errors name the field as `headers.<name>`.
    pub fn check_headers(self, headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
        headers::none_twice("headers", headers.keys())?;
        headers.iter().try_for_each(|(name, value)| {
            let checked = self.definition().check_header(name, value);
            checked.map_err(|rule| Invalid::new(format!("headers.{name}"), rule))
        })
    }

    /// The config as people may see it: secrets replaced, references to secrets shown.
    pub fn redacted(self, config: &Map<String, Value>) -> Map<String, Value> {
        keys::redacted(&self.definition().config_keys(), config)
    }
}

impl ProtocolDefinition {
    pub(crate) fn all_keys(&self) -> impl Iterator<Item = &'static ConfigKey> {
        self.keys.iter().chain(EVERY_MESSAGE)
    }

    pub(crate) fn config_keys(&self) -> Vec<&'static ConfigKey> {
        self.all_keys().filter(|key| key.set_by != SetBy::Message).collect()
    }

    pub(crate) fn message_keys(&self) -> Vec<&'static ConfigKey> {
        self.all_keys().filter(|key| key.set_by != SetBy::Endpoint).collect()
    }

    pub(crate) fn has_config_headers(&self) -> bool {
        self.keys.iter().any(|key| key.name == "headers" && key.set_by != SetBy::Message)
    }

    /// Keys of a config that set a header themselves, and the header.
    pub(crate) fn set_headers(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.relations.iter().filter_map(|relation| match (&relation.then, relation.is) {
            (Then::NoHeader(header), None) => Some((relation.given, *header)),
            (Then::NoHeader(_), Some(_)) | (Then::Needs(_), _) => None,
        })
    }

    /// The key of this config that sets a header itself.
    pub(crate) fn key_that_sets(&self, config: &Map<String, Value>, header: &str) -> Option<&'static str> {
        let sets =
            |(key, set): &(&str, &str)| set.eq_ignore_ascii_case(header) && value_at(config, key).is_some();
        self.set_headers().find(sets).map(|(key, _)| key)
    }

    fn read_config(&self, config: &Map<String, Value>) -> TypedConfig {
        check_object("config", config)?;
        keys::check("config", &self.config_keys(), config, keys::Source::Config)?;
        self.relations.iter().try_for_each(|relation| relation.check(config))?;
        (self.read)(config)
    }

    /// A message need not repeat what its endpoint requires.
    fn check_message_options(&self, options: &Map<String, Value>) -> Result<(), Invalid> {
        keys::check_known("options", &self.message_keys(), options, keys::Source::Message)
    }

    fn check_header(&self, name: &str, value: &str) -> Result<(), String> {
        self.headers.check_name(name)?;
        if self.endpoint_headers.iter().any(|header| header.eq_ignore_ascii_case(name)) {
            return Err(headers::ENDPOINT_ONLY.to_owned());
        }
        self.headers.check_value(name, value)
    }
}

impl Relation {
    fn check(&self, config: &Map<String, Value>) -> Result<(), Invalid> {
        let given = value_at(config, self.given);
        let holds = given.is_some_and(|given| self.is.is_none_or(|value| given.as_str() == Some(value)));
        let headers = config.get("headers").and_then(Value::as_object);
        let has = |header: &str| {
            headers.is_some_and(|map| map.keys().any(|name| name.eq_ignore_ascii_case(header)))
        };
        let is_broken = match self.then {
            Then::NoHeader(header) => has(header),
            Then::Needs(other) => value_at(config, other).is_none(),
        };
        match holds && is_broken {
            true => Err(Invalid::new(format!("config.{}", self.field()), self.says)),
            false => Ok(()),
        }
    }

    /// Of a config that breaks it.
    pub(crate) fn field(&self) -> String {
        match self.then {
            Then::NoHeader(header) => format!("headers.{header}"),
            Then::Needs(_) => self.given.to_owned(),
        }
    }
}

fn value_at<'c>(config: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    let mut parts = path.split('.');
    let first = config.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}
