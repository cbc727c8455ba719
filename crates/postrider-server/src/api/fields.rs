//! Fields of a JSON body, taken one by one so that what is wrong is named.

use postrider::Invalid;
use serde_json::{Map, Value};

pub(super) fn string(field: &str, value: Value) -> Result<String, Invalid> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Invalid::new(field, "must be a string")),
    }
}

pub(super) fn object(field: &str, value: Value) -> Result<Map<String, Value>, Invalid> {
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(Invalid::new(field, "must be an object")),
    }
}

pub(super) fn required<T>(field: &str, value: Option<T>) -> Result<T, Invalid> {
    value.ok_or_else(|| Invalid::new(field, "is required"))
}

/// Unknown fields are named before anything else is looked at.
pub(super) fn known<'a>(mut fields: impl Iterator<Item = &'a String>, known: &[&str]) -> Result<(), Invalid> {
    match fields.find(|field| !known.contains(&field.as_str())) {
        Some(field) => Err(Invalid::unknown_key("", field, known)),
        None => Ok(()),
    }
}
