//! A row as people see it. Another program may have written into it: unreadable columns are shown as they are stored.

use std::collections::BTreeMap;

use bytes::Bytes;
use jiff::Timestamp;
use rusqlite::Row;
use rusqlite::types::ValueRef;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::row;
use crate::store::UNREADABLE_FIELD;

#[derive(Clone, Copy)]
pub(super) struct ShownRow<'r, 's>(pub(super) &'r Row<'s>);

impl ShownRow<'_, '_> {
    /// Bytes that are no UTF-8 become U+FFFD.
    pub(super) fn text(self, column: usize) -> Option<String> {
        text(self.value(column))
    }

    /// A time out of range is shown as the earliest or latest valid time.
    pub(super) fn time(self, column: usize) -> Option<Timestamp> {
        match self.value(column) {
            ValueRef::Integer(micros) => Some(row::at(micros)),
            ValueRef::Real(micros) => Some(row::at(micros as i64)),
            ValueRef::Null | ValueRef::Text(_) | ValueRef::Blob(_) => None,
        }
    }

    pub(super) fn whole(self, column: usize) -> i64 {
        self.value(column).as_i64().unwrap_or(0)
    }

    pub(super) fn count(self, column: usize) -> u32 {
        u32::try_from(self.whole(column)).unwrap_or(0)
    }

    pub(super) fn priority(self, column: usize) -> u8 {
        u8::try_from(self.whole(column)).unwrap_or(0)
    }

    pub(super) fn uuid(self, column: usize) -> Option<Uuid> {
        row::correlation(self.value(column)).unwrap_or(None)
    }

    pub(super) fn bytes(self, column: usize) -> Option<Bytes> {
        let value = self.value(column);
        row::bytes(value).unwrap_or_else(|_| text(value).map(Bytes::from))
    }

    pub(super) fn headers(self, column: usize) -> BTreeMap<String, String> {
        let value = self.value(column);
        row::headers(value).unwrap_or_else(|_| {
            BTreeMap::from([(UNREADABLE_FIELD.to_owned(), text(value).unwrap_or_default())])
        })
    }

    pub(super) fn object(self, column: usize) -> Map<String, Value> {
        let value = self.value(column);
        row::object(value).unwrap_or_else(|_| {
            Map::from_iter([(UNREADABLE_FIELD.to_owned(), text(value).unwrap_or_default().into())])
        })
    }

    fn value(&self, column: usize) -> ValueRef<'_> {
        self.0.get_ref_unwrap(column)
    }
}

pub(super) fn text(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}
