//! An endpoint: a named destination with its protocol, checked config and policy.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::breaker::Circuit;
use crate::error::Invalid;
use crate::json::check_object;
use crate::protocol::secret::Reference;
use crate::protocol::{EndpointConfig, MessageOptions, Protocol, headers};
use crate::rate::RateLimit;
use crate::retry::{RetryOverrides, RetryPolicy};
use crate::settings::Settings;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EndpointId(pub i64);

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

pub const NAME_BYTES_MAX: usize = 128;
pub const IN_FLIGHT_DEFAULT: u32 = 64;
pub const IN_FLIGHT_MAX: u32 = 10_000;
/// More than any receiver needs.
const OVERRIDE_HEADERS_MAX: usize = 100;

/// An endpoint to create, as a person writes it. [`NewEndpoint::check`] checks it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NewEndpoint {
    #[cfg_attr(
        feature = "openapi",
        schema(min_length = 1, max_length = 128, pattern = r"^(\.{0,2}[A-Za-z0-9_-]|\.{3})[A-Za-z0-9._-]*$")
    )]
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Protocol))]
    pub protocol: String,
    /// What the protocol needs; unknown keys are refused with the list of known ones.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required))]
    pub config: Map<String, Value>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub retry_policy: Option<Value>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub options: Option<Value>,
}

/// A [`NewEndpoint`] with all fields checked.
#[derive(Clone, Debug)]
pub struct CheckedEndpoint {
    pub name: String,
    pub protocol: Protocol,
    pub config: Map<String, Value>,
    pub retry: RetryOverrides,
    pub options: EndpointOptions,
}

/// A change of an endpoint. Absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EndpointChange {
    #[serde(default)]
    pub config: Option<Map<String, Value>>,
    /// Single keys of the config: other keys stay, secrets too; null removes a key. `tls.ca` is the key `ca` of the object
    /// `tls`, whose other keys stay.
    #[serde(default)]
    pub config_changes: Option<Map<String, Value>>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub retry_policy: Option<Value>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Map<String, Value>>))]
    pub options: Option<Value>,
}

impl EndpointChange {
    pub(crate) fn touches_config(&self) -> bool {
        self.config.is_some() || self.config_changes.is_some()
    }

    pub(crate) fn config_over(&self, current: Map<String, Value>) -> Map<String, Value> {
        let mut config = self.config.clone().unwrap_or(current);
        for (path, value) in self.config_changes.iter().flatten() {
            let (map, key) = match path.split_once('.') {
                Some((object, inner)) => match config.entry(object).or_insert_with(|| json!({})) {
                    Value::Object(map) => (map, inner),
                    // The check of the whole config names it.
                    other => {
                        *other = json!({ inner: value });
                        continue;
                    }
                },
                None => (&mut config, path.as_str()),
            };
            match value {
                Value::Null => map.remove(key),
                value => map.insert(key.to_owned(), value.clone()),
            };
        }
        config
    }
}

#[derive(Clone, Debug)]
pub struct Endpoint {
    pub id: EndpointId,
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// Holds secrets: show it only through [`Protocol::redacted`].
    pub config: EndpointConfig,
    pub retry: RetryOverrides,
    pub options: EndpointOptions,
    pub disabled: Option<DisabledBy>,
    pub paused: bool,
    pub circuit: Circuit,
    /// The receiver asked for a pause until then (`Retry-After`).
    pub held_until: Option<Timestamp>,
    /// Goes up with every change of config, retry policy or options; nodes then connect the sink again.
    pub revision: i64,
    pub created_at: Timestamp,
}

impl Endpoint {
    pub fn retry_policy(&self, settings: &Settings) -> RetryPolicy {
        self.retry.over(settings)
    }

    pub fn timeout(&self) -> Duration {
        self.config.timeout()
    }

    /// The time one attempt of one message has.
    pub fn attempt_timeout(&self, options: &Map<String, Value>) -> Duration {
        MessageOptions::of(options).timeout.unwrap_or_else(|| self.timeout())
    }

    pub fn max_in_flight(&self) -> u32 {
        self.options.max_in_flight.unwrap_or(IN_FLIGHT_DEFAULT)
    }

    /// Checks a message's headers; errors name the field as `headers.<name>`.
    pub fn check_headers(&self, headers: &BTreeMap<String, String>) -> Result<(), Invalid> {
        self.protocol.check_headers(headers)?;
        match headers.keys().find(|name| self.keeps_header(name)) {
            Some(name) => Err(Invalid::new(format!("headers.{name}"), headers::KEPT)),
            None => Ok(()),
        }
    }

    /// A message may not replace this header: `auth` sets it, or the config sets it and `override_headers` does not list it.
    /// Without `override_headers`, only secret headers are kept.
    pub(crate) fn keeps_header(&self, name: &str) -> bool {
        let is_it = |other: &str| other.eq_ignore_ascii_case(name);
        if self.protocol.definition().key_that_sets(&self.config, name).is_some() {
            return true;
        }
        let own = self.config.get("headers").and_then(Value::as_object);
        let set = own.and_then(|own| own.iter().find(|(other, _)| is_it(other)));
        set.is_some_and(|(_, value)| match &self.options.override_headers {
            Some(listed) => !listed.iter().any(|other| is_it(other)),
            None => headers::is_secret(name) || value.as_str().is_some_and(Reference::is_one),
        })
    }

    /// Neither disabled nor paused. Says nothing about its circuit.
    pub fn is_open_for_delivery(&self) -> bool {
        self.disabled.is_none() && !self.paused
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DisabledBy {
    /// Sends are refused; pending messages stay.
    Operator,
    /// The receiver said that it is gone: sends are accepted and kept.
    Gone,
}

/// Policy beyond retries. Parsed from JSON by [`EndpointOptions::check`].
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EndpointOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    pub on_dead: OnDead,
    pub key_scope: KeyScope,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_queue_size: Option<u64>,
    /// Headers of the config that a message may replace. None: all but secret ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_headers: Option<Vec<String>>,
    pub durability: Durability,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// The next message of the key is delivered.
    #[default]
    Continue,
    /// The key waits until its dead head is redriven, discarded or released.
    Hold,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    #[default]
    Endpoint,
    Global,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    #[default]
    Durable,
}

impl NewEndpoint {
    pub fn check(self, settings: &Settings) -> Result<CheckedEndpoint, Invalid> {
        check_name(&self.name)?;
        let protocol = Protocol::from_name(&self.protocol)?;
        for (field, given) in [("retry_policy", &self.retry_policy), ("options", &self.options)] {
            given.as_ref().and_then(Value::as_object).map_or(Ok(()), |given| check_object(field, given))?;
        }
        let config = EndpointConfig::new(protocol, self.config);
        config.typed()?;
        settings.check_timeout("config.timeout", config.timeout())?;
        let retry = RetryOverrides::check(self.retry_policy.as_ref())?;
        let options = EndpointOptions::check(self.options.as_ref())?;
        options.check_override_headers(protocol, &config)?;
        Ok(CheckedEndpoint { name: self.name, protocol, config: config.into_map(), retry, options })
    }
}

pub fn check_name(name: &str) -> Result<(), Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(Invalid::new(
            "name",
            format!("must be 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"),
        ));
    }
    // In a URL path these mean the folder itself and its parent.
    if matches!(name, "." | "..") {
        return Err(Invalid::new("name", "must not be '.' or '..', which no path of the API can name"));
    }
    Ok(())
}

impl EndpointOptions {
    const KEYS: [&str; 7] = [
        "durability",
        "max_in_flight",
        "rate_limit",
        "on_dead",
        "key_scope",
        "max_queue_size",
        "override_headers",
    ];

    pub fn check(raw: Option<&Value>) -> Result<Self, Invalid> {
        let Some(raw) = raw.filter(|value| !value.is_null()) else {
            return Ok(Self::default());
        };
        let Value::Object(map) = raw else {
            return Err(Invalid::new("options", "must be an object"));
        };
        let mut options = Self::default();
        for (key, value) in map {
            let field = format!("options.{key}");
            match key.as_str() {
                "durability" => options.durability = one_of(&field, value, "\"durable\"")?,
                "max_in_flight" => {
                    options.max_in_flight =
                        Some(whole_number(&field, value, 1, u64::from(IN_FLIGHT_MAX))? as u32);
                }
                "rate_limit" => options.rate_limit = Some(RateLimit::check(&field, value)?),
                "on_dead" => options.on_dead = one_of(&field, value, "\"continue\" or \"hold\"")?,
                "key_scope" => options.key_scope = one_of(&field, value, "\"endpoint\" or \"global\"")?,
                "max_queue_size" => {
                    options.max_queue_size = Some(whole_number(&field, value, 0, i64::MAX as u64)?);
                }
                "override_headers" => options.override_headers = Some(header_names(&field, value)?),
                _ => return Err(Invalid::unknown_key("options", key, &Self::KEYS)),
            }
        }
        Ok(options)
    }

    fn check_override_headers(&self, protocol: Protocol, config: &Map<String, Value>) -> Result<(), Invalid> {
        let Some(names) = &self.override_headers else { return Ok(()) };
        let definition = protocol.definition();
        if !definition.has_config_headers() {
            let rule = format!("{} endpoints have no headers in their config", protocol.as_str());
            return Err(Invalid::new("options.override_headers", rule));
        }
        for (at, name) in names.iter().enumerate() {
            let at = |rule: String| Invalid::new(format!("options.override_headers[{at}]"), rule);
            definition.headers.check_name(name).map_err(at)?;
            if let Some(key) = definition.key_that_sets(config, name) {
                return Err(at(format!("is set by config.{key} and cannot be replaced")));
            }
        }
        headers::none_twice("options.override_headers", names)
    }
}

pub(crate) fn whole_number(field: &str, value: &Value, min: u64, max: u64) -> Result<u64, Invalid> {
    value
        .as_u64()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| Invalid::new(field, format!("must be a whole number from {min} to {max}")))
}

fn header_names(field: &str, value: &Value) -> Result<Vec<String>, Invalid> {
    let items = value.as_array().filter(|items| items.len() <= OVERRIDE_HEADERS_MAX).ok_or_else(|| {
        Invalid::new(field, format!("must be a list of at most {OVERRIDE_HEADERS_MAX} names of headers"))
    })?;
    let name = |(at, item): (usize, &Value)| {
        let name = item.as_str().map(str::to_owned);
        name.ok_or_else(|| Invalid::new(format!("{field}[{at}]"), "must be a string"))
    };
    items.iter().enumerate().map(name).collect()
}

/// An enum of names. Serde alone would also take `{"name": null}`.
pub(crate) fn one_of<T: DeserializeOwned>(field: &str, value: &Value, choices: &str) -> Result<T, Invalid> {
    let choice = value.as_str().and_then(|_| serde_json::from_value(value.clone()).ok());
    choice.ok_or_else(|| Invalid::new(field, format!("must be {choices}")))
}
