//! The event log: changes, circuits and nodes, for people.

use rusqlite::{Connection, params};
use serde_json::Value;

use super::query::Query;
use super::row::{at, micros_of};
use super::writer::Write;
use crate::store::{EventRecord, Result};

pub(super) fn log(write: &mut Write<'_>, kind: &str, subject: Option<&str>, detail: &Value) -> Result<()> {
    begin(write, kind, subject, detail).map(|_| ())
}

/// Logs the beginning of something; [`amend`] updates the row.
pub(super) fn begin(write: &mut Write<'_>, kind: &str, subject: Option<&str>, detail: &Value) -> Result<i64> {
    write.conn.insert(
        "INSERT INTO _postrider_event_log (at, kind, subject, detail) VALUES (?1, ?2, ?3, ?4)",
        params![micros_of(write.now), kind, subject, detail.to_string()],
    )
}

pub(super) fn amend(write: &mut Write<'_>, event: i64, detail: &Value) -> Result<()> {
    write
        .conn
        .run("UPDATE _postrider_event_log SET detail = ?2 WHERE id = ?1", params![event, detail.to_string()])
}

pub(super) fn list(conn: &Connection, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>> {
    let sql = "SELECT id, at, kind, subject, detail FROM _postrider_event_log
               WHERE id < ?1 ORDER BY id DESC LIMIT ?2";
    conn.rows(sql, params![before.unwrap_or(i64::MAX), limit as i64], |row| {
        Ok(EventRecord {
            id: row.get(0)?,
            at: at(row.get(1)?),
            kind: row.get(2)?,
            subject: row.get(3)?,
            detail: serde_json::from_str(row.get_ref(4)?.as_str()?).unwrap_or(Value::Null),
        })
    })
}
