//! The protocols and the one table of config keys that every check shares.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::Invalid;

pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    Http,
    File,
}

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

    /// Checks an endpoint's config; errors name the field as `config.<key>`.
    pub fn check_config(self, _config: &Map<String, Value>) -> Result<(), Invalid> {
        Ok(())
    }

    /// Checks a message's options; errors name the field as `options.<key>`.
    pub fn check_message_options(self, _options: &Map<String, Value>) -> Result<(), Invalid> {
        Ok(())
    }

    /// Checks a message's headers; errors name the field as `headers.<name>`.
    pub fn check_headers(self, _headers: &std::collections::BTreeMap<String, String>) -> Result<(), Invalid> {
        Ok(())
    }

    /// The time one attempt has.
    pub fn timeout(self, config: &Map<String, Value>) -> Duration {
        config.get("timeout").and_then(Value::as_f64).map_or(TIMEOUT_DEFAULT, Duration::from_secs_f64)
    }

    /// The config as people may see it: secrets replaced.
    pub fn redacted(self, config: &Map<String, Value>) -> Map<String, Value> {
        config.clone()
    }
}

/// A message's own limit on attempts (`options.max_attempts`), as checked when it was sent.
pub fn max_attempts_option(options: &Map<String, Value>) -> Option<u32> {
    options.get("max_attempts").and_then(Value::as_u64).map(|number| number as u32)
}
