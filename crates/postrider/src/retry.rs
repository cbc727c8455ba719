//! Retry policies: how long to wait after a failed attempt. Pure: the dice are passed in.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::{one_of, whole_number};
use crate::error::Invalid;
use crate::settings::{DELAY_MAX_SECONDS, MAX_ATTEMPTS_MAX, Settings};

pub const SCHEDULE_ENTRIES_MAX: usize = 1000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backoff {
    #[default]
    Exponential,
    Linear,
    Fixed,
    Quadratic,
}

/// A complete policy: every field has a value.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// 0 means no limit.
    pub max_attempts: u32,
    pub backoff: Backoff,
    pub base_delay: Duration,
    pub max_delay: Duration,
    pub increment: Duration,
    pub multiplier: f64,
    /// 0 to 1: the part of the delay that may be added or subtracted at random.
    pub jitter: f64,
    /// Replaces the formula; its last entry repeats.
    pub schedule: Vec<Duration>,
}

impl RetryPolicy {
    /// The delay before retry `n`, which is 0 for the first. `dice` is uniform over [0, 1).
    pub fn delay(&self, n: u32, dice: f64) -> Duration {
        let cap = self.max_delay.as_secs_f64();
        let exact = self.exact_seconds(n).min(cap);
        let drawn = exact * (1.0 + self.jitter * (2.0 * dice - 1.0));
        Duration::from_secs_f64(drawn.clamp(0.0, cap))
    }

    /// The policy for a message that may have its own limit of attempts.
    #[must_use]
    pub fn limited_to(&self, own: Option<u32>) -> Self {
        Self { max_attempts: own.unwrap_or(self.max_attempts), ..self.clone() }
    }

    /// May another attempt follow `used` attempts?
    pub fn allows_another(&self, used: u32) -> bool {
        self.max_attempts == 0 || used < self.max_attempts
    }

    /// May be infinite for a large `n`; the caller caps it.
    fn exact_seconds(&self, n: u32) -> f64 {
        if let Some(last) = self.schedule.last() {
            return self.schedule.get(n as usize).unwrap_or(last).as_secs_f64();
        }
        let base = self.base_delay.as_secs_f64();
        let n = f64::from(n);
        match self.backoff {
            // Bounded first, because zero times infinity is NaN.
            Backoff::Exponential => base * self.multiplier.powf(n).min(f64::MAX),
            Backoff::Linear => base + n * self.increment.as_secs_f64(),
            Backoff::Fixed => base,
            Backoff::Quadratic => (n + 1.0) * (n + 1.0) * base,
        }
    }
}

/// An endpoint's own policy fields; the settings supply the rest.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RetryOverrides {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Backoff>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_delay_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_delay_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub increment_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiplier: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_seconds: Option<Vec<f64>>,
}

impl RetryOverrides {
    const KEYS: [&str; 9] = [
        "max_attempts",
        "max_retries",
        "backoff",
        "base_delay_seconds",
        "max_delay_seconds",
        "increment_seconds",
        "multiplier",
        "jitter",
        "schedule_seconds",
    ];

    pub fn check(raw: Option<&Value>) -> Result<Self, Invalid> {
        let Some(raw) = raw.filter(|value| !value.is_null()) else {
            return Ok(Self::default());
        };
        let Value::Object(map) = raw else {
            return Err(Invalid::new("retry_policy", "must be an object"));
        };
        if map.contains_key("max_attempts") && map.contains_key("max_retries") {
            return Err(Invalid::new("retry_policy.max_retries", "cannot be given beside max_attempts"));
        }
        let mut policy = Self::default();
        for (key, value) in map {
            let field = format!("retry_policy.{key}");
            match key.as_str() {
                "max_attempts" => {
                    policy.max_attempts = Some(whole(&field, value, u64::from(MAX_ATTEMPTS_MAX))?);
                }
                "max_retries" => {
                    policy.max_attempts = Some(whole(&field, value, u64::from(MAX_ATTEMPTS_MAX) - 1)? + 1);
                }
                "backoff" => {
                    let choices = "\"exponential\", \"linear\", \"fixed\" or \"quadratic\"";
                    policy.backoff = Some(one_of(&field, value, choices)?);
                }
                "base_delay_seconds" => policy.base_delay_seconds = Some(delay(&field, value)?),
                "max_delay_seconds" => policy.max_delay_seconds = Some(delay(&field, value)?),
                "increment_seconds" => policy.increment_seconds = Some(delay(&field, value)?),
                "multiplier" => policy.multiplier = Some(number(&field, value, 1.0, 1000.0)?),
                "jitter" => policy.jitter = Some(number(&field, value, 0.0, 1.0)?),
                "schedule_seconds" => policy.schedule_seconds = Some(schedule(&field, value)?),
                _ => return Err(Invalid::unknown_key("retry_policy", key, &Self::KEYS)),
            }
        }
        Ok(policy)
    }

    pub fn over(&self, settings: &Settings) -> RetryPolicy {
        let seconds = |own: Option<f64>, default: Duration| own.map_or(default, Duration::from_secs_f64);
        RetryPolicy {
            max_attempts: self.max_attempts.unwrap_or(settings.default_max_attempts),
            backoff: self.backoff.unwrap_or_default(),
            base_delay: seconds(self.base_delay_seconds, settings.retry_base_delay),
            max_delay: seconds(self.max_delay_seconds, settings.retry_max_delay),
            increment: seconds(self.increment_seconds, settings.retry_increment),
            multiplier: self.multiplier.unwrap_or(2.0),
            jitter: self.jitter.unwrap_or(0.0),
            schedule: self
                .schedule_seconds
                .iter()
                .flatten()
                .map(|entry| Duration::from_secs_f64(*entry))
                .collect(),
        }
    }
}

fn whole(field: &str, value: &Value, max: u64) -> Result<u32, Invalid> {
    whole_number(field, value, 0, max).map(|number| number as u32)
}

fn number(field: &str, value: &Value, min: f64, max: f64) -> Result<f64, Invalid> {
    value
        .as_f64()
        .filter(|number| (min..=max).contains(number))
        .ok_or_else(|| Invalid::new(field, format!("must be a number from {min} to {max}")))
}

fn delay(field: &str, value: &Value) -> Result<f64, Invalid> {
    number(field, value, 0.0, f64::from(DELAY_MAX_SECONDS))
}

fn schedule(field: &str, value: &Value) -> Result<Vec<f64>, Invalid> {
    let rule =
        || Invalid::new(field, format!("must be a list of 1 to {SCHEDULE_ENTRIES_MAX} delays in seconds"));
    let entries = value.as_array().ok_or_else(rule)?;
    if entries.is_empty() || entries.len() > SCHEDULE_ENTRIES_MAX {
        return Err(rule());
    }
    entries.iter().enumerate().map(|(at, entry)| delay(&format!("{field}[{at}]"), entry)).collect()
}
