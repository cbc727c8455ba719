//! Reading and writing columns.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use jiff::Timestamp;
use postgres_types::{FromSql, IsNull, Json, ToSql, Type, accepts, to_sql_checked};
use serde::de::value::{Error as UnknownName, StrDeserializer};
use serde::de::{Deserialize, DeserializeOwned};
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

use crate::error::{Invalid, StoreError};
use crate::store::UNREADABLE_FIELD;

pub(super) type BoxError = Box<dyn std::error::Error + Sync + Send>;

/// An interval without days or months.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl ToSql for Span {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        out.put_i64(i64::try_from(self.0.as_micros())?);
        // Days and months.
        out.put_i64(0);
        Ok(IsNull::No)
    }

    accepts!(INTERVAL);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Span {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        let micros = i64::from_be_bytes(raw.get(..8).ok_or("a short interval")?.try_into()?);
        Ok(Self(Duration::from_micros(u64::try_from(micros)?)))
    }

    accepts!(INTERVAL);
}

/// A state, outcome or other name that the program writes, read back. An unknown name is an error: a newer version or another
/// program wrote it.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownName<T>(pub(super) T);

impl<'a, T: Deserialize<'a>> FromSql<'a> for KnownName<T> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        let name = <&str>::from_sql(ty, raw)?;
        let known = T::deserialize(StrDeserializer::<UnknownName>::new(name));
        Ok(Self(known?))
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}

/// For what must be understood: an error says which column could not be read, and why.
pub(super) fn value<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| {
        let name = row.columns().get(column).map_or("column", |column| column.name());
        StoreError::Unusable(format!("the store's answer cannot be read: {name}: {}", cause(&error)))
    })
}

pub(super) fn named<T: DeserializeOwned>(row: &Row, column: usize) -> Result<T, StoreError> {
    value::<KnownName<T>>(row, column).map(|named| named.0)
}

pub(super) fn optional_named<T: DeserializeOwned>(row: &Row, column: usize) -> Result<Option<T>, StoreError> {
    Ok(value::<Option<KnownName<T>>>(row, column)?.map(|named| named.0))
}

fn cause(error: &tokio_postgres::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Reads a whole row, whatever another program wrote into it. A column that cannot be read gets its default, and the first such
/// column is remembered.
pub(super) struct LenientRow<'r> {
    row: &'r Row,
    unreadable: Option<Invalid>,
}

impl<'r> LenientRow<'r> {
    pub(super) fn of(row: &'r Row) -> Self {
        Self { row, unreadable: None }
    }

    pub(super) fn get<T: FromSql<'r> + Default>(&mut self, column: usize) -> T {
        self.row.try_get(column).unwrap_or_else(|error| self.leave_out(column, &error))
    }

    /// A JSON object; NULL, as for most messages, is the default.
    pub(super) fn json<T: DeserializeOwned + Default>(&mut self, column: usize) -> T {
        match self.row.try_get::<_, Option<Json<T>>>(column) {
            Ok(json) => json.map(|json| json.0).unwrap_or_default(),
            Err(error) => self.leave_out(column, &error),
        }
    }

    #[cold]
    fn leave_out<T: Default>(&mut self, column: usize, error: &tokio_postgres::Error) -> T {
        let name = self.row.columns().get(column).map_or("column", |column| column.name());
        let why = cause(error);
        self.unreadable.get_or_insert_with(|| Invalid::new(name, format!("cannot be read: {why}")));
        T::default()
    }

    /// The first column that could not be read, and why.
    pub(super) fn unreadable(self) -> Option<Invalid> {
        self.unreadable
    }
}

/// A time, cut to the range that nodes can represent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment(pub(super) Timestamp);

impl<'a> FromSql<'a> for Moment {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        let since_2000 = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(crate::clock::micros(since_2000.saturating_add(MICROS_TO_2000))))
    }

    accepts!(TIMESTAMPTZ);
}

/// From 1970 on.
const MICROS_TO_2000: i64 = 946_684_800_000_000;

pub(super) fn time<I: RowIndex + Display>(row: &Row, column: I) -> Timestamp {
    row.get::<_, Moment>(column).0
}

pub(super) fn optional_time<I: RowIndex + Display>(row: &Row, column: I) -> Option<Timestamp> {
    row.get::<_, Option<Moment>>(column).map(|moment| moment.0)
}

/// A text for people. Bytes that are not UTF-8 become U+FFFD: the server refuses them, so they are damage.
struct Lossy(String);

impl<'a> FromSql<'a> for Lossy {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        Ok(Self(String::from_utf8_lossy(raw).into_owned()))
    }

    fn accepts(ty: &Type) -> bool {
        <String as FromSql>::accepts(ty)
    }
}

pub(super) fn text<I: RowIndex + Display>(row: &Row, column: I) -> String {
    row.get::<_, Lossy>(column).0
}

pub(super) fn optional_text<I: RowIndex + Display>(row: &Row, column: I) -> Option<String> {
    row.get::<_, Option<Lossy>>(column).map(|text| text.0)
}

/// JSON for people: the value, or its text when it cannot be read.
struct Readable<T>(Result<T, String>);

impl<'a, T: DeserializeOwned> FromSql<'a> for Readable<T> {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        // The wire format of jsonb: a version byte, then the text.
        let text = if *ty == Type::JSONB { raw.get(1..).unwrap_or_default() } else { raw };
        Ok(Self(serde_json::from_slice(text).map_err(|_| String::from_utf8_lossy(text).into_owned())))
    }

    accepts!(JSON, JSONB);
}

fn shown<T: DeserializeOwned + Default, I: RowIndex + Display>(
    row: &Row,
    column: I,
    unreadable: impl FnOnce(String, String) -> T,
) -> T {
    match row.get::<_, Option<Readable<T>>>(column) {
        None => T::default(),
        Some(Readable(Ok(value))) => value,
        Some(Readable(Err(text))) => unreadable(UNREADABLE_FIELD.to_owned(), text),
    }
}

/// NULL, as for most messages, is empty.
pub(super) fn headers<I: RowIndex + Display>(row: &Row, column: I) -> BTreeMap<String, String> {
    shown(row, column, |name, text| BTreeMap::from([(name, text)]))
}

pub(super) fn object<I: RowIndex + Display>(row: &Row, column: I) -> Map<String, Value> {
    shown(row, column, |name, text| Map::from_iter([(name, text.into())]))
}

pub(super) fn payload<I: RowIndex + Display>(row: &Row, column: I) -> Option<Bytes> {
    row.get::<_, Option<&[u8]>>(column).map(Bytes::copy_from_slice)
}

/// Counts are never negative.
pub(super) fn count<I: RowIndex + Display>(row: &Row, column: I) -> u32 {
    u32::try_from(row.get::<_, i32>(column)).unwrap_or_default()
}

pub(super) fn big_count<I: RowIndex + Display>(row: &Row, column: I) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or_default()
}

/// JSON with all digits of its numbers, as event rules need it.
pub(super) fn json<I: RowIndex + Display>(row: &Row, column: I) -> Option<crate::json::Json> {
    row.get::<_, Option<Json<crate::json::Json>>>(column).map(|json| json.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::State;

    #[test]
    fn an_unknown_name_is_an_error() {
        let read = |name: &'static str| KnownName::<State>::from_sql(&Type::TEXT, name.as_bytes());
        assert_eq!(read("dead").unwrap().0, State::Dead);
        let error = read("asleep").unwrap_err().to_string();
        assert!(error.contains("asleep") && error.contains("pending"), "{error}");
    }
}
