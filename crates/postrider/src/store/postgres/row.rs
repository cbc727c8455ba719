//! Between columns and values.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use postgres_types::{FromSql, IsNull, Json, ToSql, Type, accepts, to_sql_checked};
use serde_json::{Map, Value};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;

pub(super) type Anything = Box<dyn std::error::Error + Sync + Send>;

/// A span without days or months.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl ToSql for Span {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Anything> {
        out.put_i64(i64::try_from(self.0.as_micros())?);
        // Days and months.
        out.put_i64(0);
        Ok(IsNull::No)
    }

    accepts!(INTERVAL);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Span {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Anything> {
        let micros = i64::from_be_bytes(raw.get(..8).ok_or("a short interval")?.try_into()?);
        Ok(Self(Duration::from_micros(u64::try_from(micros)?)))
    }

    accepts!(INTERVAL);
}

/// Most messages have none: NULL, and nothing to parse.
pub(super) fn headers<I: RowIndex + std::fmt::Display>(row: &Row, column: I) -> BTreeMap<String, String> {
    row.get::<_, Option<Json<BTreeMap<String, String>>>>(column).map(|json| json.0).unwrap_or_default()
}

pub(super) fn object<I: RowIndex + std::fmt::Display>(row: &Row, column: I) -> Map<String, Value> {
    row.get::<_, Option<Json<Map<String, Value>>>>(column).map(|json| json.0).unwrap_or_default()
}

pub(super) fn payload<I: RowIndex + std::fmt::Display>(row: &Row, column: I) -> Option<Bytes> {
    row.get::<_, Option<&[u8]>>(column).map(Bytes::copy_from_slice)
}

/// Counts are never negative.
pub(super) fn count<I: RowIndex + std::fmt::Display>(row: &Row, column: I) -> u32 {
    u32::try_from(row.get::<_, i32>(column)).unwrap_or_default()
}

pub(super) fn big_count<I: RowIndex + std::fmt::Display>(row: &Row, column: I) -> u64 {
    u64::try_from(row.get::<_, i64>(column)).unwrap_or_default()
}

/// As the rules of events see it, with all digits of its numbers.
pub(super) fn json<I: RowIndex + std::fmt::Display>(row: &Row, column: I) -> Option<crate::json::Json> {
    row.get::<_, Option<Json<crate::json::Json>>>(column).map(|json| json.0)
}
