//! A message as one JSON document: `{"payload":…,"options":…}`. Bodies of the API and lines of a batch are read here.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use postrider::{Invalid, NewMessage};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::fields::{self, BadDocument, JsonFields, object, string};
use crate::send_values;

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

/// A message whose endpoint is known already.
pub(crate) fn message(endpoint: String, document: &Bytes) -> Result<NewMessage, BadDocument> {
    let given = JsonFields::raw(document)?;
    fields::known(given.keys(), &["payload", "payload_base64", "options"])?;
    made(endpoint, document, &given)
}

/// A message that names its endpoint.
pub(crate) fn addressed(document: &Bytes) -> Result<NewMessage, BadDocument> {
    let given = JsonFields::raw(document)?;
    fields::known(given.keys(), &["endpoint", "payload", "payload_base64", "options"])?;
    let endpoint = fields::required("endpoint", given.get("endpoint"))?;
    let endpoint = string("endpoint", serde_json::from_str(endpoint.get()).unwrap_or_default())?;
    made(endpoint, document, &given)
}

/// The payload's own bytes are kept.
fn made(
    endpoint: String,
    document: &Bytes,
    given: &BTreeMap<String, &RawValue>,
) -> Result<NewMessage, BadDocument> {
    let json = given.get("payload").map(|json| document.slice_ref(json.get().as_bytes()));
    let payload = match (json, given.get("payload_base64").copied()) {
        (Some(_), Some(_)) => {
            return Err(Invalid::new("payload_base64", "cannot be given beside payload").into());
        }
        (None, Some(encoded)) => decoded("payload_base64", encoded)?,
        (json, None) => fields::required("payload", json)?,
    };
    let options = match given.get("options").map_or("null", |options| options.get()) {
        "null" => Map::new(),
        text => {
            fields::not_too_deep("options", text)?;
            fields::none_twice("options", text.as_bytes())?;
            serde_json::from_str(text).map_err(|_| Invalid::new("options", "must be an object"))?
        }
    };
    let mut message = NewMessage::new(endpoint, payload);
    apply(&mut message, options)?;
    Ok(message)
}

fn decoded(field: &str, encoded: &RawValue) -> Result<Bytes, Invalid> {
    let bytes = fields::raw_string(field, Some(encoded))?.and_then(|text| STANDARD.decode(text).ok());
    bytes.map(Bytes::from).ok_or_else(|| Invalid::new(field, "must be base64"))
}

fn apply(message: &mut NewMessage, options: Map<String, Value>) -> Result<(), Invalid> {
    for (key, value) in options {
        let field = format!("options.{key}");
        if !KNOWN_OPTIONS.contains(&key.as_str()) {
            return Err(Invalid::unknown_key("options", &key, &KNOWN_OPTIONS));
        }
        if value.is_null() {
            continue;
        }
        apply_one(message, &key, &field, value)?;
    }
    Ok(())
}

fn apply_one(message: &mut NewMessage, key: &str, field: &str, value: Value) -> Result<(), Invalid> {
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
