//! The options of a send, from `postrider-*` headers or from an envelope's `options`.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use postrider::{Invalid, NewMessage, StoreError};
use serde_json::{Map, Value};

use super::fields::{object, string};
use super::problem::Problem;
use crate::send_values;

const PREFIX: &str = "postrider-";
const MESSAGE_HEADER_PREFIX: &str = "header-";
const IDEMPOTENCY_KEY: &str = "idempotency-key";

const KNOWN_HEADERS: [&str; 9] = [
    "postrider-priority",
    "postrider-scheduled-at",
    "postrider-expires-at",
    "postrider-idempotency-key",
    "postrider-correlation-id",
    "postrider-ordering-key",
    "postrider-event-type",
    "postrider-options",
    "postrider-header-<name>",
];

const KNOWN_OPTIONS: [&str; 10] = [
    "content_type",
    "priority",
    "scheduled_at",
    "expires_at",
    "idempotency_key",
    "correlation_id",
    "ordering_key",
    "event_type",
    "headers",
    "options",
];

/// Does this request header say something about the message?
fn is_option(name: &HeaderName) -> bool {
    name.as_str().starts_with(PREFIX) || name == IDEMPOTENCY_KEY
}

/// Where options are in the body, none is taken from a header and ignored.
pub(super) fn refuse_headers(headers: &HeaderMap, place: &str) -> Result<(), Problem> {
    match headers.keys().find(|name| is_option(name)) {
        Some(name) => {
            Err(Problem::invalid(name.as_str(), format!("cannot be a header here: put it into {place}")))
        }
        None => Ok(()),
    }
}

pub(super) fn from_headers(message: &mut NewMessage, headers: &HeaderMap) -> Result<(), Problem> {
    for name in headers.keys().filter(|name| is_option(name)) {
        let mut values = headers.get_all(name).iter();
        let value = values.next().expect("a name in the map has a value");
        if values.next().is_some() {
            return Err(Problem::invalid(name.as_str(), "is given more than once"));
        }
        apply_header(message, name, text(name, value)?)?;
    }
    Ok(())
}

fn apply_header(message: &mut NewMessage, name: &HeaderName, value: &str) -> Result<(), Problem> {
    let field = name.as_str();
    match field.strip_prefix(PREFIX).unwrap_or(field) {
        "priority" => message.priority = send_values::priority(field, value).map_err(refused)?,
        "scheduled-at" => {
            message.scheduled_at = Some(send_values::timestamp(field, value).map_err(refused)?);
        }
        "expires-at" => message.expires_at = Some(send_values::timestamp(field, value).map_err(refused)?),
        IDEMPOTENCY_KEY => {
            if message.idempotency_key.as_deref().is_some_and(|key| key != value) {
                return Err(Problem::invalid(field, "is given twice with two values"));
            }
            message.idempotency_key = Some(value.to_owned());
        }
        "correlation-id" => {
            message.correlation_id = Some(send_values::correlation_id(field, value).map_err(refused)?);
        }
        "ordering-key" => message.ordering_key = Some(value.to_owned()),
        "event-type" => message.event_type = Some(value.to_owned()),
        "options" => message.options = send_values::options(field, value).map_err(refused)?,
        other => match other.strip_prefix(MESSAGE_HEADER_PREFIX) {
            Some(header) if !header.is_empty() => {
                message.headers.insert(header.to_owned(), value.to_owned());
            }
            _ => return Err(refused(Invalid::unknown_key("", field, &KNOWN_HEADERS))),
        },
    }
    Ok(())
}

pub(super) fn from_json(message: &mut NewMessage, options: Map<String, Value>) -> Result<(), Problem> {
    for (key, value) in options {
        let field = format!("options.{key}");
        if !KNOWN_OPTIONS.contains(&key.as_str()) {
            return Err(refused(Invalid::unknown_key("options", &key, &KNOWN_OPTIONS)));
        }
        if value.is_null() {
            continue;
        }
        apply_json(message, &key, &field, value).map_err(refused)?;
    }
    Ok(())
}

fn apply_json(message: &mut NewMessage, key: &str, field: &str, value: Value) -> Result<(), Invalid> {
    match key {
        "content_type" => message.content_type = string(field, value)?,
        "priority" => message.priority = send_values::priority(field, &value.to_string())?,
        "scheduled_at" => message.scheduled_at = Some(send_values::timestamp(field, &string(field, value)?)?),
        "expires_at" => message.expires_at = Some(send_values::timestamp(field, &string(field, value)?)?),
        "idempotency_key" => message.idempotency_key = Some(string(field, value)?),
        "correlation_id" => {
            message.correlation_id = Some(send_values::correlation_id(field, &string(field, value)?)?);
        }
        "ordering_key" => message.ordering_key = Some(string(field, value)?),
        "event_type" => message.event_type = Some(string(field, value)?),
        "headers" => {
            for (name, value) in object(field, value)? {
                let value = string(&format!("{field}.{name}"), value)?;
                message.headers.insert(name, value);
            }
        }
        "options" => message.options = object(field, value)?,
        other => unreachable!("option {other} is in the list of known ones and is not read"),
    }
    Ok(())
}

fn text<'a>(name: &HeaderName, value: &'a HeaderValue) -> Result<&'a str, Problem> {
    std::str::from_utf8(value.as_bytes()).map_err(|_| Problem::invalid(name.as_str(), "must be UTF-8"))
}

fn refused(invalid: Invalid) -> Problem {
    StoreError::Invalid(invalid).into()
}
