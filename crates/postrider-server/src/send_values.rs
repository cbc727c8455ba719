//! Values as text: one reading for API headers, envelopes, filters and the command line.

use jiff::Timestamp;
use jiff::fmt::temporal::Pieces;
use postrider::message::PRIORITY_MAX;
use postrider::rate::RateLimit;
use postrider::store::{DEAD_REASONS, DlqStatus, ReplayStatus};
use postrider::verdict::Class;
use postrider::{Invalid, State};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::fields;

pub(crate) fn priority(field: &str, text: &str) -> Result<u8, Invalid> {
    text.parse()
        .ok()
        .filter(|priority| *priority <= PRIORITY_MAX)
        .ok_or_else(|| Invalid::new(field, format!("must be a whole number from 0 to {PRIORITY_MAX}")))
}

pub(crate) fn timestamp(field: &str, text: &str) -> Result<Timestamp, Invalid> {
    timestamp_or(field, text, "")
}

/// `other` is what may be written instead.
fn timestamp_or(field: &str, text: &str, other: &str) -> Result<Timestamp, Invalid> {
    let rule = "must be a time with its offset, such as 2030-01-31T08:00:00Z (RFC 3339)";
    text.parse().map_err(|_| match is_past_the_calendar(text) {
        true => Invalid::new(field, TOO_LATE),
        false => Invalid::new(field, format!("{rule}{other}")),
    })
}

/// Where the calendar of nodes ends, less what offsets may add. SQL says the same.
const TOO_LATE: &str = "must be a time before 9999-12-30";

fn is_past_the_calendar(text: &str) -> bool {
    let is_late = |pieces: Pieces<'_>| {
        pieces.date().year() == 9999 && pieces.time().is_some() && pieces.offset().is_some()
    };
    Pieces::parse(text).is_ok_and(is_late)
}

/// A point in time, or `+5m`: that long from now.
pub(crate) fn timestamp_or_delay(field: &str, text: &str, now: Timestamp) -> Result<Timestamp, Invalid> {
    let Some(delay) = text.strip_prefix('+') else {
        return timestamp_or(field, text, ", or +5m for five minutes from now");
    };
    delay
        .parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|delay| now.checked_add(delay).ok())
        .ok_or_else(|| Invalid::new(field, "must be a delay such as +90s, +5m or +2h"))
}

/// A point in time, or `-2h`: that long ago.
pub(crate) fn timestamp_or_ago(field: &str, text: &str, now: Timestamp) -> Result<Timestamp, Invalid> {
    let Some(ago) = text.strip_prefix('-') else {
        return timestamp_or(field, text, ", or -2h for two hours ago");
    };
    ago.parse::<jiff::SignedDuration>()
        .ok()
        .and_then(|ago| now.checked_sub(ago).ok())
        .ok_or_else(|| Invalid::new(field, "must be how long ago, such as -90s, -5m or -2h"))
}

/// `100`, `100/second`, `6000/minute` or `10/hour`.
pub(crate) fn rate_limit(field: &str, text: &str) -> Result<RateLimit, Invalid> {
    let (limit, interval) = text.split_once('/').unwrap_or((text, "second"));
    let limit: u32 = limit
        .parse()
        .map_err(|_| Invalid::new(field, "must be written as 100, 100/second, 6000/minute or 10/hour"))?;
    RateLimit::check(field, &json!({ "limit": limit, "interval": interval }))
}

pub(crate) fn replay_status(field: &str, text: &str) -> Result<ReplayStatus, Invalid> {
    let names = ReplayStatus::ALL.map(ReplayStatus::as_str).join(", ");
    ReplayStatus::named(text).ok_or_else(|| Invalid::new(field, format!("must be one of {names}")))
}

pub(crate) fn dead_reason(field: &str, text: &str) -> Result<String, Invalid> {
    match DEAD_REASONS.contains(&text) {
        true => Ok(text.to_owned()),
        false => Err(Invalid::new(field, format!("must be one of {}", DEAD_REASONS.join(", ")))),
    }
}

pub(crate) fn dlq_status(field: &str, text: &str) -> Result<DlqStatus, Invalid> {
    let names = DlqStatus::ALL.map(DlqStatus::as_str).join(", ");
    DlqStatus::named(text).ok_or_else(|| Invalid::new(field, format!("must be one of {names}")))
}

pub(crate) fn state(field: &str, text: &str) -> Result<State, Invalid> {
    let names = State::ALL.map(State::as_str).join(", ");
    State::from_name(text).ok_or_else(|| Invalid::new(field, format!("must be one of {names}")))
}

pub(crate) fn class(field: &str, text: &str) -> Result<Class, Invalid> {
    let classes = [Class::Retryable, Class::Permanent, Class::Gone];
    let found = classes.into_iter().find(|class| class.as_str() == text);
    found.ok_or_else(|| Invalid::new(field, "must be one of retryable, permanent, gone"))
}

/// As PostgreSQL reads it: with hyphens, without them, or in braces.
pub(crate) fn correlation_id(field: &str, text: &str) -> Result<Uuid, Invalid> {
    let read = Uuid::try_parse(text).ok().filter(|_| !text.starts_with("urn:"));
    read.ok_or_else(|| Invalid::new(field, "must be a UUID"))
}

pub(crate) fn options(field: &str, text: &str) -> Result<Map<String, Value>, Invalid> {
    fields::not_too_deep(field, text)?;
    let Ok(Value::Object(map)) = serde_json::from_str(text) else {
        return Err(Invalid::new(field, "must be a JSON object"));
    };
    fields::none_twice("", text.as_bytes()).map_err(|twice| Invalid::new(field, twice.to_string()))?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_point_or_that_long_ago() {
        let now: Timestamp = "2026-01-15T12:00:00Z".parse().expect("a time");
        let read = |text| timestamp_or_ago("from", text, now).map(|at| at.to_string());
        assert_eq!(read("-2h").as_deref(), Ok("2026-01-15T10:00:00Z"));
        assert_eq!(read("2030-01-31T08:00:00+01:00").as_deref(), Ok("2030-01-31T07:00:00Z"));
        for bad in ["", "-", "-soon", "2h", "+2h", "yesterday", "-999999999h"] {
            assert_eq!(read(bad).map_err(|invalid| invalid.field), Err("from".to_owned()), "{bad}");
        }
    }

    #[test]
    fn a_time_that_no_node_can_read_is_refused_for_that() {
        let refused = |text| timestamp("at", text).expect_err("no time").to_string();
        for late in ["9999-12-31T23:59:59Z", "9999-12-30T23:00:00-01:00"] {
            assert_eq!(refused(late), "at: must be a time before 9999-12-30");
        }
        for other in ["9999-12-31", "9999-12-31T23:59:59", "-009999-01-01T00:00:00Z"] {
            assert!(refused(other).contains("RFC 3339"), "{other}");
        }
    }

    #[test]
    fn a_rate_is_so_many_a_second_unless_said() {
        let read = |text| rate_limit("rate", text).map(|limit| json!(limit).to_string());
        assert_eq!(read("50").as_deref(), Ok(r#"{"limit":50,"interval":"second"}"#));
        assert_eq!(read("3000/minute").as_deref(), Ok(r#"{"limit":3000,"interval":"minute"}"#));
        for (bad, field) in [("", "rate"), ("fast", "rate"), ("0", "rate.limit"), ("5/day", "rate.interval")]
        {
            assert_eq!(read(bad).map_err(|invalid| invalid.field), Err(field.to_owned()), "{bad}");
        }
    }
}
