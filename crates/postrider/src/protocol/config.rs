//! An endpoint's config as its protocol reads it: checked and typed once, when it is first used.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::keys::ConfigKey;
use super::{Protocol, TIMEOUT_DEFAULT};
use crate::endpoint::Endpoint;
use crate::error::Invalid;
use crate::sink::{Environment, Sink, Undelivered};

/// The typed config of one protocol.
pub trait ProtocolConfig: Send + Sync {
    /// The time one attempt has unless its message says otherwise.
    fn timeout(&self) -> Duration;

    /// Is the endpoint to be disabled when its receiver says that it is gone?
    fn auto_disable_on_gone(&self) -> bool {
        false
    }

    /// Other texts that the sink makes of a secret and sends, in which a receiver could repeat it.
    fn texts_made_of(&self, _secret: &str) -> Vec<String> {
        Vec::new()
    }

    /// Sends nothing to the receiver yet.
    fn connect(&self, endpoint: &Endpoint, environment: &Environment) -> Result<Arc<dyn Sink>, Undelivered>;
}

/// A typed config, or what is wrong with the map.
pub type TypedConfig = Result<Arc<dyn ProtocolConfig>, Invalid>;

/// The map as it was given, to be stored and shown, and the typed config made of it. Clones share both.
#[derive(Clone)]
pub struct EndpointConfig(Arc<LazyConfig>);

struct LazyConfig {
    protocol: Protocol,
    map: Map<String, Value>,
    /// SQL checks less closely than Rust, so a stored config may be wrong. Its sink says so when it connects.
    /// Typed on first use: stores read endpoints far more often than a sink connects.
    typed: OnceLock<TypedConfig>,
}

impl EndpointConfig {
    pub fn new(protocol: Protocol, map: Map<String, Value>) -> Self {
        Self(Arc::new(LazyConfig { protocol, map, typed: OnceLock::new() }))
    }

    pub fn typed(&self) -> Result<&dyn ProtocolConfig, Invalid> {
        let LazyConfig { protocol, map, typed } = &*self.0;
        typed.get_or_init(|| protocol.definition().read_config(map)).as_deref().map_err(Invalid::clone)
    }

    pub fn timeout(&self) -> Duration {
        self.typed().map_or(TIMEOUT_DEFAULT, |typed| typed.timeout())
    }

    pub fn auto_disable_on_gone(&self) -> bool {
        self.typed().is_ok_and(|typed| typed.auto_disable_on_gone())
    }

    /// The key and value, as `qos=0`, because of which nobody acknowledges deliveries. A message may have its own value.
    pub fn unconfirmed_by(&self, options: &Map<String, Value>) -> Option<String> {
        self.0.protocol.keys().find_map(|key| {
            let given = options.get(key.name).or_else(|| self.get(key.name))?.to_string();
            (key.unconfirmed? == given).then(|| format!("{}={given}", key.name))
        })
    }

    pub fn into_map(self) -> Map<String, Value> {
        Arc::try_unwrap(self.0).map_or_else(|shared| shared.map.clone(), |given| given.map)
    }
}

impl Deref for EndpointConfig {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Self::Target {
        &self.0.map
    }
}

impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map.fmt(f)
    }
}

impl Serialize for EndpointConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.map.serialize(serializer)
    }
}

/// A checked map as a struct; what is not given gets its default from the table.
pub(super) fn read<T: DeserializeOwned>(keys: &[ConfigKey], map: &Map<String, Value>) -> Result<T, Invalid> {
    let mut whole = map.clone();
    for key in keys {
        if let (Some(default), false) = (key.default, whole.contains_key(key.name)) {
            let default = serde_json::from_str(default).expect("a default in the table is JSON");
            whole.insert(key.name.to_owned(), default);
        }
    }
    serde_json::from_value(Value::Object(whole)).map_err(|error| Invalid::new("config", error.to_string()))
}

/// A number of seconds.
pub(super) fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// What a message says for itself to every protocol, as checked when it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageOptions {
    pub max_attempts: Option<u32>,
    pub timeout: Option<Duration>,
}

impl MessageOptions {
    pub fn of(options: &Map<String, Value>) -> Self {
        let number = options.get("max_attempts").and_then(Value::as_u64);
        let seconds = options.get("timeout").and_then(Value::as_f64);
        Self {
            max_attempts: number.and_then(|number| u32::try_from(number).ok()),
            timeout: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_typed_on_first_use_and_shared_by_its_clones() {
        let protocol = Protocol::from_name("http").unwrap();
        let map = serde_json::json!({ "url": "https://example.com/" }).as_object().unwrap().clone();
        let config = EndpointConfig::new(protocol, map.clone());
        let clone = config.clone();
        assert!(config.0.typed.get().is_none());
        let (typed, again) = (config.typed().unwrap(), clone.typed().unwrap());
        assert!(std::ptr::addr_eq(typed, again));
        assert_eq!(clone.into_map(), map);
    }
}
