//! Reads and writes columns.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, Type, ValueRef};
use serde::de::DeserializeOwned;
use serde::de::value::{Error as UnknownName, StrDeserializer};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::endpoint::EndpointId;
use crate::error::Invalid;
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

/// Many messages for one statement, read with `json_each`: SQLite then opens the queue's indexes once.
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

/// A state or other name that the program writes, read back. An unknown name is an error: a newer version or another program
/// wrote it.
pub(super) fn named<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    T::deserialize(StrDeserializer::<UnknownName>::new(text))
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error)))
}

pub(super) fn optional_named<T: DeserializeOwned>(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<Option<T>> {
    if row.get_ref(column)? == ValueRef::Null { Ok(None) } else { named(row, column).map(Some) }
}

fn json<T: Default + DeserializeOwned>(value: ValueRef<'_>) -> FromSqlResult<T> {
    match value.as_str_or_null()? {
        None => Ok(T::default()),
        Some(text) => serde_json::from_str(text).map_err(|error| FromSqlError::Other(Box::new(error))),
    }
}

/// JSON of an event's rules, with all digits of its numbers.
pub(super) fn rule(value: ValueRef<'_>) -> FromSqlResult<Option<crate::json::Json>> {
    let Some(text) = value.as_str_or_null()? else { return Ok(None) };
    crate::json::Json::parse(text.as_bytes()).map(Some).map_err(|error| FromSqlError::Other(error.into()))
}

/// Reads a row into which another program may have written. An unreadable column becomes the default value, and the
/// first such column is remembered.
pub(super) struct CheckedRow<'r, 's> {
    row: &'r Row<'s>,
    unreadable: Option<Invalid>,
}

impl<'r, 's> CheckedRow<'r, 's> {
    pub(super) fn of(row: &'r Row<'s>) -> Self {
        Self { row, unreadable: None }
    }

    pub(super) fn get<T: FromSql + Default>(&mut self, column: usize) -> T {
        self.read(column, T::column_result)
    }

    pub(super) fn read<T: Default>(
        &mut self,
        column: usize,
        read: impl FnOnce(ValueRef<'r>) -> FromSqlResult<T>,
    ) -> T {
        read(self.row.get_ref_unwrap(column)).unwrap_or_else(|error| self.leave_out(column, &error))
    }

    #[cold]
    fn leave_out<T: Default>(&mut self, column: usize, error: &FromSqlError) -> T {
        let name = self.row.as_ref().column_name(column).unwrap_or("column");
        self.unreadable.get_or_insert_with(|| Invalid::new(name, format!("cannot be read: {error}")));
        T::default()
    }

    /// The first column that could not be read, and why.
    pub(super) fn unreadable(self) -> Option<Invalid> {
        self.unreadable
    }
}

pub(super) fn time(value: ValueRef<'_>) -> FromSqlResult<Timestamp> {
    Timestamp::from_microsecond(value.as_i64()?).map_err(|error| FromSqlError::Other(Box::new(error)))
}

pub(super) fn optional_time(value: ValueRef<'_>) -> FromSqlResult<Option<Timestamp>> {
    if value == ValueRef::Null { Ok(None) } else { time(value).map(Some) }
}

pub(super) fn bytes(value: ValueRef<'_>) -> FromSqlResult<Option<Bytes>> {
    Ok(value.as_bytes_or_null()?.map(Bytes::copy_from_slice))
}

pub(super) fn correlation(value: ValueRef<'_>) -> FromSqlResult<Option<Uuid>> {
    let Some(text) = value.as_str_or_null()? else { return Ok(None) };
    Uuid::parse_str(text).map(Some).map_err(|error| FromSqlError::Other(Box::new(error)))
}

/// The columns that [`message`] reads, in its order.
pub(super) const MESSAGE_COLUMNS: &str = "id, endpoint_id, priority, expires_at, correlation_id, ordering_key, \
     event_type, created_at, content_type, headers, options, payload";

pub(super) fn message(row: &mut CheckedRow<'_, '_>) -> Arc<Message> {
    Arc::new(Message {
        id: MessageId(row.get(0)),
        endpoint: EndpointId(row.get(1)),
        priority: row.get(2),
        expires_at: row.read(3, optional_time),
        correlation_id: row.read(4, correlation),
        ordering_key: row.get(5),
        event_type: row.get(6),
        created_at: row.read(7, time),
        content_type: row.get(8),
        headers: row.read(9, headers),
        options: row.read(10, object),
        // An erased message is delivered empty.
        payload: row.read(11, bytes).unwrap_or_default(),
    })
}

/// A text column as it is stored. Keys are compared and never read, so a key may be invalid UTF-8 or a blob.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RawText {
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl From<String> for RawText {
    fn from(text: String) -> Self {
        Self::Text(text.into_bytes())
    }
}

impl FromSql for RawText {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value {
            ValueRef::Text(text) => Ok(Self::Text(text.to_owned())),
            ValueRef::Blob(blob) => Ok(Self::Blob(blob.to_owned())),
            ValueRef::Null | ValueRef::Integer(_) | ValueRef::Real(_) => Err(FromSqlError::InvalidType),
        }
    }
}

impl ToSql for RawText {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Text(text) => ValueRef::Text(text),
            Self::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}
