//! An event as an application stored it by SQL.

use rusqlite::{Connection, Row};

use super::publish::ParsedEvents;
use super::query::Query;
use super::row::{CheckedRow, bytes, correlation, headers, object, optional_time};
use crate::error::Invalid;
use crate::event::NewEvent;
use crate::store::Result;

pub(super) struct StoredEvent {
    pub(super) id: i64,
    pub(super) new: NewEvent,
    /// The first unreadable column; such columns are left out of the event.
    unreadable: Option<Invalid>,
}

impl StoredEvent {
    pub(super) fn oldest_after(conn: &Connection, id: i64) -> Result<Option<Self>> {
        conn.find(
            "SELECT id, event_type, payload, headers, options, priority, scheduled_at, expires_at,
               idempotency_key, correlation_id, ordering_key
             FROM _postrider_events WHERE id > ?1 ORDER BY id LIMIT 1",
            [id],
            Self::of_row,
        )
    }

    /// Columns in the order of [`StoredEvent::oldest_after`]. Never fails: an unreadable event must not
    /// stop the events behind it.
    pub(super) fn of_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let id = row.get(0)?;
        let mut row = CheckedRow::of(row);
        let new = NewEvent {
            event_type: row.get(1),
            payload: row.read(2, bytes).unwrap_or_default(),
            headers: row.read(3, headers),
            options: row.read(4, object),
            priority: row.get(5),
            scheduled_at: row.read(6, optional_time),
            expires_at: row.read(7, optional_time),
            idempotency_key: row.get(8),
            correlation_id: row.read(9, correlation),
            ordering_key: row.get(10),
        };
        Ok(Self { id, new, unreadable: row.unreadable() })
    }

    pub(super) fn publication(&self) -> Result<ParsedEvents> {
        match &self.unreadable {
            Some(Invalid { field, rule }) => {
                Err(Invalid::new(field, format!("{rule}; left out here")).into())
            }
            None => ParsedEvents::of_one(self.new.clone()),
        }
    }
}
