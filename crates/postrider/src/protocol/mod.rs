//! The protocols and the one table of config keys that every check shares.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::Invalid;
use crate::json::check_object;
use crate::settings::MAX_ATTEMPTS_MAX;

pub use keys::{Key, Kind, Rule, Scope, Variants};

mod keys;
mod http;
mod file;
pub mod headers;
pub mod secret;
pub mod signature;

pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The longest that one attempt may ever take.
pub const TIMEOUT_SECONDS_MAX: u32 = 3600;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http,
    File,
}

/// What a message may say for itself whatever its endpoint's protocol is.
const EVERY_MESSAGE: &[Key] =
    &[Key::new("max_attempts", Kind::Whole { min: 0, max: MAX_ATTEMPTS_MAX as u64 }).message_only()];

impl Protocol {
    pub const ALL: [Self; 2] = [Self::Http, Self::File];

    pub fn from_name(name: &str) -> Result<Self, Invalid> {
        Self::ALL.into_iter().find(|protocol| protocol.as_str() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|protocol| protocol.as_str()).collect();
            Invalid::new("protocol", format!("must be one of {}", known.join(", ")))
        })
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::File => "file",
        }
    }

    /// The table: every key that an endpoint's config or a message's options may have.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        let own = match self {
            Self::Http => http::KEYS,
            Self::File => file::KEYS,
        };
        own.iter().chain(EVERY_MESSAGE)
    }

    /// Checks an endpoint's config; errors name the field as `config.<key>`.
    pub fn check_config(self, config: &Map<String, Value>) -> Result<(), Invalid> {
        check_object("config", config)?;
        keys::check("config", self.config_keys(), config)?;
        match self {
            Self::Http => http::check_together(config),
            Self::File => Ok(()),
        }
    }

    /// Checks a message's options; errors name the field as `options.<key>`.
    pub fn check_message_options(self, options: &Map<String, Value>) -> Result<(), Invalid> {
        // Most messages have none, and every send comes by here.
        if options.is_empty() {
            return Ok(());
        }
        check_object("options", options)?;
        let keys: Vec<&Key> = self.keys().filter(|key| key.scope != Scope::Endpoint).collect();
        // What an endpoint requires, a message need not repeat.
        keys::check_known("options", &keys, options)
    }

    /// Checks a message's headers; errors name the field as `headers.<name>`.
    pub fn check_headers(self, headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
        headers::none_twice("headers", headers.keys())?;
        match self {
            Self::Http => headers::check_of_message(headers),
            // Written as JSON strings, which can hold anything.
            Self::File => Ok(()),
        }
    }

    /// The time one attempt has unless the message says otherwise.
    pub fn timeout(self, config: &Map<String, Value>) -> Duration {
        seconds(config, "timeout").unwrap_or(TIMEOUT_DEFAULT)
    }

    /// The time one attempt of one message has.
    pub fn attempt_timeout(self, config: &Map<String, Value>, options: &Map<String, Value>) -> Duration {
        seconds(options, "timeout").unwrap_or_else(|| self.timeout(config))
    }

    /// Is the endpoint to be disabled when its receiver says that it is gone?
    pub fn auto_disable_on_gone(self, config: &Map<String, Value>) -> bool {
        config.get("auto_disable_on_gone").and_then(Value::as_bool).unwrap_or(false)
    }

    /// The config as people may see it: secrets replaced, references to secrets shown.
    pub fn redacted(self, config: &Map<String, Value>) -> Map<String, Value> {
        keys::redacted(&self.config_keys(), config)
    }

    fn config_keys(self) -> Vec<&'static Key> {
        self.keys().filter(|key| key.scope != Scope::Message).collect()
    }
}

/// A message's own limit on attempts (`options.max_attempts`), as checked when it was sent.
pub fn max_attempts_option(options: &Map<String, Value>) -> Option<u32> {
    options.get("max_attempts").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok())
}

pub(crate) fn seconds(map: &Map<String, Value>, key: &str) -> Option<Duration> {
    map.get(key).and_then(Value::as_f64).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}
