//! Between columns and values.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::Row;
use rusqlite::types::{FromSqlError, FromSqlResult, Type, ValueRef};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::endpoint::EndpointId;
use crate::message::{Message, MessageId};

pub(super) fn micros_of(at: Timestamp) -> i64 {
    at.as_microsecond()
}

pub(super) fn at(micros: i64) -> Timestamp {
    crate::clock::micros(micros)
}

pub(super) fn optional_at(micros: Option<i64>) -> Option<Timestamp> {
    micros.map(at)
}

/// Many messages for one statement, read with `json_each`: opening the queue's indexes once is what makes a
/// batch cheap.
pub(super) fn id_list(ids: impl Iterator<Item = MessageId>) -> String {
    let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
    format!("[{}]", ids.join(","))
}

/// Most messages have no headers: NULL, and nothing to parse.
pub(super) fn headers_text(headers: &BTreeMap<String, String>) -> Option<String> {
    (!headers.is_empty()).then(|| serde_json::to_string(headers).expect("a map of strings is always JSON"))
}

pub(super) fn options_text(options: &Map<String, Value>) -> Option<String> {
    (!options.is_empty()).then(|| serde_json::to_string(options).expect("a JSON object is always JSON"))
}

pub(super) fn headers(value: ValueRef<'_>) -> FromSqlResult<BTreeMap<String, String>> {
    json(value)
}

pub(super) fn object(value: ValueRef<'_>) -> FromSqlResult<Map<String, Value>> {
    json(value)
}

fn json<T: Default + serde::de::DeserializeOwned>(value: ValueRef<'_>) -> FromSqlResult<T> {
    match value.as_str_or_null()? {
        None => Ok(T::default()),
        Some(text) => serde_json::from_str(text).map_err(|error| FromSqlError::Other(Box::new(error))),
    }
}

/// As the rules of events see it, with all digits of its numbers.
pub(super) fn rule(value: ValueRef<'_>) -> FromSqlResult<Option<crate::json::Json>> {
    let Some(text) = value.as_str_or_null()? else { return Ok(None) };
    crate::json::Json::parse(text.as_bytes()).map(Some).map_err(|error| FromSqlError::Other(error.into()))
}

/// The columns that [`message`] reads, in its order.
pub(super) const MESSAGE_COLUMNS: &str = "id, endpoint_id, priority, expires_at, correlation_id, ordering_key, \
     event_type, created_at, content_type, headers, options, payload";

pub(super) fn message(row: &Row<'_>) -> rusqlite::Result<Arc<Message>> {
    Ok(Arc::new(Message {
        id: MessageId(row.get(0)?),
        endpoint: EndpointId(row.get(1)?),
        priority: row.get(2)?,
        expires_at: optional_at(row.get(3)?),
        correlation_id: correlation(row, 4)?,
        ordering_key: row.get(5)?,
        event_type: row.get(6)?,
        created_at: at(row.get(7)?),
        content_type: row.get(8)?,
        headers: headers(row.get_ref(9)?)?,
        options: object(row.get_ref(10)?)?,
        // An erased message is delivered empty: its record goes on, its content does not.
        payload: payload(row, 11)?.unwrap_or_default(),
    }))
}

pub(super) fn payload(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Bytes>> {
    Ok(row.get_ref(column)?.as_bytes_or_null()?.map(Bytes::copy_from_slice))
}

pub(super) fn correlation(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Uuid>> {
    let Some(text) = row.get_ref(column)?.as_str_or_null()? else { return Ok(None) };
    Uuid::parse_str(text)
        .map(Some)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}
