//! An endpoint: a named destination with its protocol, checked config and policy.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::breaker::Circuit;
use crate::error::Invalid;
use crate::json::check_object;
use crate::protocol::secret::Reference;
use crate::protocol::{Protocol, headers};
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
/// More than any receiver asks for.
const OVERRIDE_HEADERS_MAX: usize = 100;

/// What a person asks for; [`NewEndpoint::check`] makes it trustworthy.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewEndpoint {
    pub name: String,
    pub protocol: String,
    #[serde(default)]
    pub config: Map<String, Value>,
    #[serde(default)]
    pub retry_policy: Option<Value>,
    #[serde(default)]
    pub options: Option<Value>,
}

/// A [`NewEndpoint`] every field of which was checked.
#[derive(Clone, Debug)]
pub struct CheckedEndpoint {
    pub name: String,
    pub protocol: Protocol,
    pub config: Map<String, Value>,
    pub retry: RetryOverrides,
    pub options: EndpointOptions,
}

/// What of an endpoint may be changed; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointChange {
    #[serde(default)]
    pub config: Option<Map<String, Value>>,
    /// Single keys of the config; its other keys stay, secrets too, and null takes one out.
    #[serde(default)]
    pub config_changes: Option<Map<String, Value>>,
    #[serde(default)]
    pub retry_policy: Option<Value>,
    #[serde(default)]
    pub options: Option<Value>,
}

impl EndpointChange {
    pub(crate) fn touches_config(&self) -> bool {
        self.config.is_some() || self.config_changes.is_some()
    }

    pub(crate) fn config_over(&self, current: Map<String, Value>) -> Map<String, Value> {
        let mut config = self.config.clone().unwrap_or(current);
        for (key, value) in self.config_changes.iter().flatten() {
            match value {
                Value::Null => config.remove(key),
                value => config.insert(key.clone(), value.clone()),
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
    /// Checked against the protocol's table of keys. Holds secrets: show it only through
    /// [`Protocol::redacted`].
    pub config: Map<String, Value>,
    pub retry: RetryOverrides,
    pub options: EndpointOptions,
    pub disabled: Option<DisabledBy>,
    pub paused: bool,
    pub circuit: Circuit,
    /// A receiver asked to be left alone until then (`Retry-After`).
    pub held_until: Option<Timestamp>,
    /// Goes up with every change of config, retry policy or options: a sink is connected anew.
    pub revision: i64,
    pub created_at: Timestamp,
}

impl Endpoint {
    pub fn retry_policy(&self, settings: &Settings) -> RetryPolicy {
        self.retry.over(settings)
    }

    pub fn timeout(&self) -> Duration {
        self.protocol.timeout(&self.config)
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

    /// A message may not replace it: `auth` sets it, or the config does and `override_headers` does not list it. Without such a
    /// list what is secret is kept.
    pub(crate) fn keeps_header(&self, name: &str) -> bool {
        let is_it = |other: &str| other.eq_ignore_ascii_case(name);
        if self.config.contains_key("auth") && is_it(headers::OF_AUTH) {
            return true;
        }
        let own = self.config.get("headers").and_then(Value::as_object);
        let set = own.and_then(|own| own.iter().find(|(other, _)| is_it(other)));
        set.is_some_and(|(_, value)| match &self.options.override_headers {
            Some(listed) => !listed.iter().any(|other| is_it(other)),
            None => headers::is_secret(name) || value.as_str().is_some_and(Reference::is_one),
        })
    }

    /// Messages may be handed to its receiver now, as far as people and circuit are concerned.
    pub fn is_open_for_delivery(&self) -> bool {
        self.disabled.is_none() && !self.paused
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DisabledBy {
    /// Sends are refused, what is pending stays.
    Operator,
    /// The receiver answered 410: sends are accepted and kept.
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
    /// Headers of the config that a message may replace; None: all but secret ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_headers: Option<Vec<String>>,
    pub durability: Durability,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// The next message of the key goes on.
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
        protocol.check_config(&self.config)?;
        check_timeout(protocol, &self.config, settings)?;
        let retry = RetryOverrides::check(self.retry_policy.as_ref())?;
        let options = EndpointOptions::check(self.options.as_ref())?;
        options.check_override_headers(protocol, &self.config)?;
        Ok(CheckedEndpoint { name: self.name, protocol, config: self.config, retry, options })
    }
}

/// An attempt has to end before the janitor takes it for stuck.
pub fn check_timeout(
    protocol: Protocol,
    config: &Map<String, Value>,
    settings: &Settings,
) -> Result<(), Invalid> {
    if protocol.timeout(config) >= settings.stale_recovery_timeout {
        return Err(Invalid::new(
            "config.timeout",
            format!(
                "must be below stale_recovery_timeout, which is {} s",
                settings.stale_recovery_timeout.as_secs()
            ),
        ));
    }
    Ok(())
}

pub fn check_name(name: &str) -> Result<(), Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(allowed) {
        return Err(Invalid::new(
            "name",
            format!("must be 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' or '.'"),
        ));
    }
    // In a URL they name the folder itself and the one above.
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
                "durability" => match value.as_str() {
                    Some("durable") => options.durability = Durability::Durable,
                    _ => return Err(Invalid::new(field, "must be \"durable\"")),
                },
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
        if protocol != Protocol::Http {
            return Err(Invalid::new("options.override_headers", "only http endpoints have it"));
        }
        let of_auth = names.iter().position(|name| name.eq_ignore_ascii_case(headers::OF_AUTH));
        match of_auth.filter(|_| config.contains_key("auth")) {
            Some(at) => Err(Invalid::new(
                format!("options.override_headers[{at}]"),
                "is set by config.auth and cannot be replaced",
            )),
            None => Ok(()),
        }
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
        let name = item.as_str().ok_or_else(|| "must be a string".to_owned());
        let name = name.and_then(|name| headers::name(name).map(|_| name.to_owned()));
        name.map_err(|rule| Invalid::new(format!("{field}[{at}]"), rule))
    };
    let names: Vec<String> = items.iter().enumerate().map(name).collect::<Result<_, _>>()?;
    headers::none_twice(field, &names)?;
    Ok(names)
}

fn one_of<T: serde::de::DeserializeOwned>(field: &str, value: &Value, choices: &str) -> Result<T, Invalid> {
    serde_json::from_value(value.clone()).map_err(|_| Invalid::new(field, format!("must be {choices}")))
}
