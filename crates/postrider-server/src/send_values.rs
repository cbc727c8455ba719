//! Values of a send's options as text: one reading for API headers, envelopes and the command line.

use jiff::Timestamp;
use postrider::Invalid;
use postrider::message::PRIORITY_MAX;
use serde_json::{Map, Value};
use uuid::Uuid;

pub(crate) fn priority(field: &str, text: &str) -> Result<u8, Invalid> {
    text.parse()
        .ok()
        .filter(|priority| *priority <= PRIORITY_MAX)
        .ok_or_else(|| Invalid::new(field, format!("must be a whole number from 0 to {PRIORITY_MAX}")))
}

pub(crate) fn timestamp(field: &str, text: &str) -> Result<Timestamp, Invalid> {
    text.parse().map_err(|_| {
        Invalid::new(field, "must be a time with its offset, such as 2030-01-31T08:00:00Z (RFC 3339)")
    })
}

/// A point in time, or `+5m`: that long from now.
pub(crate) fn timestamp_or_delay(field: &str, text: &str, now: Timestamp) -> Result<Timestamp, Invalid> {
    let Some(delay) = text.strip_prefix('+') else {
        return timestamp(field, text);
    };
    delay
        .parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|delay| now.checked_add(delay).ok())
        .ok_or_else(|| Invalid::new(field, "must be a delay such as +90s, +5m or +2h"))
}

pub(crate) fn correlation_id(field: &str, text: &str) -> Result<Uuid, Invalid> {
    text.parse().map_err(|_| Invalid::new(field, "must be a UUID"))
}

pub(crate) fn options(field: &str, text: &str) -> Result<Map<String, Value>, Invalid> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Invalid::new(field, "must be a JSON object")),
    }
}
