//! COPY of one section of a stream into its table.

use std::pin::Pin;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use postgres_types::{IsNull, Json, ToSql, Type, to_sql_checked};
use tokio_postgres::Transaction;
use tokio_postgres::binary_copy::BinaryCopyInWriter;

use super::errors::store_error;
use super::row::{BoxError, Span};
use crate::error::{Invalid, StoreError};
use crate::store::Result;
use crate::store::moving::{ColumnKind, MovedValue, Section};

pub(super) struct Copy {
    section: &'static Section,
    writer: Pin<Box<BinaryCopyInWriter>>,
}

impl Copy {
    pub(super) async fn begin(transaction: &Transaction<'_>, section: &'static Section) -> Result<Self> {
        let (table, columns) = (table(section), section.column_list());
        // The server tells the widths of its numbers.
        let select = format!("SELECT {columns} FROM postrider.{table}");
        let statement = transaction.prepare(&select).await.map_err(store_error)?;
        let types: Vec<Type> = statement.columns().iter().map(|column| column.type_().clone()).collect();
        let copy = format!("COPY postrider.{table} ({columns}) FROM STDIN (FORMAT binary)");
        let sink = transaction.copy_in(&copy).await.map_err(store_error)?;
        Ok(Self { section, writer: Box::pin(BinaryCopyInWriter::new(sink, &types)) })
    }

    pub(super) fn is_of(&self, section: &Section) -> bool {
        std::ptr::eq(self.section, section)
    }

    pub(super) async fn write(&mut self, rows: Vec<Vec<MovedValue>>) -> Result<()> {
        for mut row in rows {
            make_keepable(self.section, &mut row)?;
            let written = self.writer.as_mut().write_raw(row).await;
            if let Err(error) = written {
                // The reason comes with the end of the COPY.
                let said = self.writer.as_mut().finish().await.err();
                return Err(refused(self.section, said.unwrap_or(error)));
            }
        }
        Ok(())
    }

    pub(super) async fn finish(mut self) -> Result<()> {
        self.writer.as_mut().finish().await.map(drop).map_err(|error| refused(self.section, error))
    }
}

/// SQLite stores values that PostgreSQL refuses; a retry would not help.
fn refused(section: &Section, error: tokio_postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(said) if matches!(&said.code().code()[..2], "22" | "23") => StoreError::Conflict(format!(
            "PostgreSQL does not take a {}: {} ({})",
            section.name,
            said.message(),
            said.where_().unwrap_or_default()
        )),
        _ => store_error(error),
    }
}

fn table(section: &Section) -> &'static str {
    match section.name {
        "setting" => "settings",
        "endpoint" => "_endpoints",
        "event_type" => "event_types",
        "subscription" => "subscriptions",
        "node" => "nodes",
        "message" => "queue",
        "claim" => "_claim_rows",
        "reservation" => "_reservations",
        "token" => "_tokens",
        "dead_letter" => "dlq",
        "archived" => "archive",
        "attempt" => "attempts",
        "replay" => "replays",
        "replayed" => "_replayed",
        "event" => "event_log",
        other => unreachable!("a section without a table: {other}"),
    }
}

/// PostgreSQL has no text with U+0000 in it. What was sent is never changed; notes for people are.
fn make_keepable(section: &Section, row: &mut [MovedValue]) -> Result<()> {
    for (at, (column, kind)) in section.columns.iter().enumerate() {
        let changed = match &mut row[at] {
            MovedValue::Text(text) => replace_zeros(text),
            MovedValue::Json(json) => replace_zeros_within(json),
            _ => false,
        };
        if changed && !matches!(kind, ColumnKind::Note | ColumnKind::Notes) {
            let field = format!("{} {}: {column}", section.name, first(row));
            let rule = "must not contain U+0000, which PostgreSQL cannot keep; reopen the old store, cancel or \
                        erase the message, and export again";
            return Err(Invalid::new(field, rule).into());
        }
    }
    Ok(())
}

/// The id or name of a row, for an error.
fn first(row: &[MovedValue]) -> String {
    match row.first() {
        Some(MovedValue::Whole(id)) => id.to_string(),
        Some(MovedValue::Text(name)) => name.clone(),
        _ => String::new(),
    }
}

/// Text for people, with U+0000 replaced.
pub(super) fn readable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn replace_zeros(text: &mut String) -> bool {
    let has_zeros = text.contains('\0');
    if has_zeros {
        *text = readable(text);
    }
    has_zeros
}

fn replace_zeros_within(json: &mut serde_json::Value) -> bool {
    match json {
        serde_json::Value::String(text) => replace_zeros(text),
        serde_json::Value::Array(items) => {
            items.iter_mut().fold(false, |changed, item| replace_zeros_within(item) | changed)
        }
        serde_json::Value::Object(fields) => {
            let mut changed = false;
            let kept = std::mem::take(fields).into_iter().map(|(mut name, mut value)| {
                changed |= replace_zeros(&mut name) | replace_zeros_within(&mut value);
                (name, value)
            });
            *fields = kept.collect();
            changed
        }
        serde_json::Value::Null | serde_json::Value::Bool(_) | serde_json::Value::Number(_) => false,
    }
}

impl ToSql for MovedValue {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, BoxError> {
        match (self, kind) {
            (Self::Null, _) => Ok(IsNull::Yes),
            (Self::Whole(number), &Type::INT2) => i16::try_from(*number)?.to_sql(kind, out),
            (Self::Whole(number), &Type::INT4) => i32::try_from(*number)?.to_sql(kind, out),
            (Self::Whole(number), &Type::INTERVAL) => {
                Span(Duration::from_micros(u64::try_from(*number)?)).to_sql(kind, out)
            }
            (Self::Whole(number), _) => number.to_sql_checked(kind, out),
            (Self::Flag(flag), _) => flag.to_sql_checked(kind, out),
            (Self::Text(text), &Type::JSONB) => {
                // The wire format of jsonb: a version byte, then the text.
                out.put_u8(1);
                out.put_slice(text.as_bytes());
                Ok(IsNull::No)
            }
            (Self::Text(text), _) => text.to_sql_checked(kind, out),
            (Self::Json(json), _) => Json(json).to_sql_checked(kind, out),
            (Self::Bytes(bytes), _) => bytes.to_sql_checked(kind, out),
            (Self::Time(at), _) => at.to_sql_checked(kind, out),
            (Self::Uuid(id), _) => id.to_sql_checked(kind, out),
            (Self::Ids(ids), _) => ids.to_sql_checked(kind, out),
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
