//! The checks of a send, the same on every way in, made before anything is written.

use jiff::Timestamp;
use serde_json::Value;

use crate::clock::truncated;
use crate::endpoint::{DisabledBy, Endpoint};
use crate::error::{Invalid, StoreError};
use crate::json::Json;
use crate::message::{self, NewMessage, PRIORITY_MAX};
use crate::protocol::headers;
use crate::settings::Settings;

pub const CONTENT_TYPE_BYTES_MAX: usize = 256;
/// The first time that is refused: the end of the calendar that nodes use, less the largest time zone offset.
pub(crate) const CALENDAR_END: Timestamp = Timestamp::constant(253_402_128_000, 0);
pub(crate) const OUT_OF_CALENDAR: &str = "must be a time before 9999-12-30";
pub(crate) const EXPIRES_TOO_EARLY: &str = "must be later than scheduled_at";

pub fn check(message: &NewMessage, endpoint: &Endpoint, settings: &Settings) -> Result<(), StoreError> {
    check_payload(message)?;
    check_all_but_payload(message, endpoint, settings)
}

/// A payload with a JSON content type must be JSON. Parsing takes a moment, so it happens outside the store's transaction.
pub(crate) fn check_payload(message: &NewMessage) -> Result<(), Invalid> {
    match message::is_json(&message.content_type) {
        true => Json::check(&message.payload).map_err(|rule| Invalid::new("payload", rule)),
        false => Ok(()),
    }
}

pub(crate) fn check_all_but_payload(
    message: &NewMessage,
    endpoint: &Endpoint,
    settings: &Settings,
) -> Result<(), StoreError> {
    match endpoint.disabled {
        Some(DisabledBy::Operator) => {
            return Err(StoreError::Disabled { endpoint: endpoint.name.to_string() });
        }
        Some(DisabledBy::Gone) | None => {}
    }
    check_for(message, Some(endpoint), settings)
}

/// The checks that do not depend on the endpoint.
pub(crate) fn check_itself(message: &NewMessage, settings: &Settings) -> Result<(), StoreError> {
    check_for(message, None, settings)
}

fn check_for(
    message: &NewMessage,
    endpoint: Option<&Endpoint>,
    settings: &Settings,
) -> Result<(), StoreError> {
    if message.priority > PRIORITY_MAX {
        return Err(Invalid::new("priority", format!("must be from 0 to {PRIORITY_MAX}")).into());
    }
    at_most("payload", message.payload.len(), settings.max_payload_bytes, "max_payload_bytes")?;
    check_content_type(&message.content_type)?;
    check_headers(message, endpoint, settings)?;
    check_keys(message, settings)?;
    if let Some(endpoint) = endpoint.filter(|_| !message.options.is_empty()) {
        endpoint.protocol.check_message_options(&message.options)?;
        let maps = message.options.values().filter_map(Value::as_object).flatten();
        let bytes = maps.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum();
        at_most("options", bytes, settings.max_headers_bytes, "max_headers_bytes")?;
        settings.check_timeout("options.timeout", endpoint.attempt_timeout(&message.options))?;
    }
    for (field, at) in [("scheduled_at", message.scheduled_at), ("expires_at", message.expires_at)] {
        at.map_or(Ok(()), |at| check_time(field, at))?;
    }
    if let (Some(expires_at), Some(scheduled_at)) = (message.expires_at, message.scheduled_at)
        && truncated(expires_at) <= truncated(scheduled_at)
    {
        return Err(Invalid::new("expires_at", EXPIRES_TOO_EARLY).into());
    }
    Ok(())
}

pub(crate) fn check_time(field: &str, at: Timestamp) -> Result<(), StoreError> {
    if at < CALENDAR_END { Ok(()) } else { Err(Invalid::new(field, OUT_OF_CALENDAR).into()) }
}

pub(crate) fn check_content_type(content_type: &str) -> Result<(), StoreError> {
    let printable = content_type.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if content_type.is_empty() || content_type.len() > CONTENT_TYPE_BYTES_MAX || !printable {
        let rule = format!("must be 1 to {CONTENT_TYPE_BYTES_MAX} printable ASCII characters");
        return Err(Invalid::new("content_type", rule).into());
    }
    Ok(())
}

fn check_headers(
    message: &NewMessage,
    endpoint: Option<&Endpoint>,
    settings: &Settings,
) -> Result<(), StoreError> {
    if message.headers.is_empty() {
        return Ok(());
    }
    let bytes = message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    at_most("headers", bytes, settings.max_headers_bytes, "max_headers_bytes")?;
    match endpoint {
        Some(endpoint) => endpoint.check_headers(&message.headers)?,
        None => headers::none_twice("headers", message.headers.keys())?,
    }
    Ok(())
}

fn check_keys(message: &NewMessage, settings: &Settings) -> Result<(), StoreError> {
    let keys = [
        ("ordering_key", &message.ordering_key),
        ("idempotency_key", &message.idempotency_key),
        ("event_type", &message.event_type),
    ];
    for (field, key) in keys {
        let Some(key) = key else { continue };
        at_most(field, key.len(), settings.max_key_bytes, "max_key_bytes")?;
        check_key(field, key)?;
    }
    Ok(())
}

pub(crate) fn check_key(field: &str, key: &str) -> Result<(), StoreError> {
    if key.is_empty() || key.chars().any(char::is_control) {
        return Err(Invalid::new(field, "must not be empty and has no control characters").into());
    }
    Ok(())
}

fn at_most(field: &'static str, bytes: usize, limit: u64, setting: &'static str) -> Result<(), StoreError> {
    let bytes = bytes as u64;
    if bytes > limit {
        return Err(StoreError::TooLarge { field, bytes, limit, setting });
    }
    Ok(())
}
