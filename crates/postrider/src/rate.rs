//! A rate limit as a virtual schedule: one timestamp says how much of it is used up. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::{one_of, whole_number};
use crate::error::Invalid;

pub const LIMIT_MAX: u64 = 1_000_000;
/// An even rate allows at once what its limit allows in this time.
const EVEN_BURST_MICROS: i64 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    pub limit: u32,
    pub interval: Interval,
    /// How many may start at once after a pause. None: as many as the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interval {
    Second,
    Minute,
    Hour,
}

impl Interval {
    fn micros(self) -> i64 {
        match self {
            Self::Second => 1_000_000,
            Self::Minute => 60_000_000,
            Self::Hour => 3_600_000_000,
        }
    }
}

/// How many may start now, and when the next one may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub granted: u32,
    /// The new position of the virtual schedule, for the next call.
    pub position: Timestamp,
    pub next_at: Timestamp,
}

impl RateLimit {
    const KEYS: [&str; 3] = ["limit", "interval", "burst"];

    pub fn check(field: &str, value: &Value) -> Result<Self, Invalid> {
        let Value::Object(map) = value else {
            return Err(Invalid::new(field, "must be an object like {\"limit\":10,\"interval\":\"second\"}"));
        };
        let (mut limit, mut interval, mut burst) = (None, None, None);
        for (key, value) in map {
            let path = format!("{field}.{key}");
            match key.as_str() {
                "limit" => limit = Some(whole_number(&path, value, 1, LIMIT_MAX)? as u32),
                "burst" => burst = Some(whole_number(&path, value, 1, LIMIT_MAX)? as u32),
                "interval" => {
                    interval = Some(one_of(&path, value, "\"second\", \"minute\" or \"hour\"")?);
                }
                _ => return Err(Invalid::unknown_key(field, key, &Self::KEYS)),
            }
        }
        let missing = |key: &str| Invalid::new(format!("{field}.{key}"), "is required");
        Ok(Self {
            limit: limit.ok_or_else(|| missing("limit"))?,
            interval: interval.ok_or_else(|| missing("interval"))?,
            burst,
        })
    }

    /// The same rate without a large burst at the start or after a pause: at most what it allows in a tenth of a second,
    /// at least one. An explicit burst stays.
    #[must_use]
    pub fn evened(self) -> Self {
        let tenth = EVEN_BURST_MICROS * i64::from(self.limit) / self.interval.micros();
        Self { burst: Some(self.burst.unwrap_or(tenth.max(1) as u32)), ..self }
    }

    /// `position` is that of the last grant; None before the first.
    pub fn grant(&self, position: Option<Timestamp>, now: Timestamp, wanted: u32) -> Grant {
        let now_us = now.as_microsecond();
        let span = self.micros_for(self.burst.unwrap_or(self.limit));
        // A position in the far future dates from before the clock was set back.
        let start = position.map_or(now_us, |at| at.as_microsecond()).clamp(now_us, now_us + span);
        let free = (now_us + span - start) * i64::from(self.limit) / self.interval.micros();
        let granted = free.clamp(0, i64::from(wanted)) as u32;
        let end = start + self.micros_for(granted);
        let at = |micros: i64| Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX);
        Grant { granted, position: at(end), next_at: at((end + self.micros_for(1) - span).max(now_us)) }
    }

    /// How far `count` messages move the schedule. Rounded up, so that the limit is never exceeded.
    fn micros_for(&self, count: u32) -> i64 {
        let (interval, limit) = (self.interval.micros(), i64::from(self.limit));
        (i64::from(count) * interval + limit - 1) / limit
    }
}
