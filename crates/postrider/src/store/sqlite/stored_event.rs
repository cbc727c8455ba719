//! An event as an application stored it by SQL.

use std::fmt::Display;

use rusqlite::{Connection, OptionalExtension, Row};

use super::publish::Publication;
use super::row::{correlation, headers, object, optional_at, payload};
use crate::error::Invalid;
use crate::event::NewEvent;
use crate::store::Result;

pub(super) struct StoredEvent {
    pub(super) id: i64,
    pub(super) new: NewEvent,
    /// The first thing in it that no node can read. Such things are left out of the event.
    unreadable: Option<Invalid>,
}

impl StoredEvent {
    pub(super) fn oldest_after(conn: &Connection, id: i64) -> rusqlite::Result<Option<Self>> {
        conn.prepare_cached(
            "SELECT id, event_type, payload, headers, options, priority, scheduled_at, expires_at,
               idempotency_key, correlation_id, ordering_key
             FROM _postrider_events WHERE id > ?1 ORDER BY id LIMIT 1",
        )?
        .query_row([id], Self::of_row)
        .optional()
    }

    /// Columns in the order of [`StoredEvent::oldest_after`]. Whatever they hold, this is an event: one that cannot be read must
    /// not stop those behind it.
    pub(super) fn of_row(row: &Row<'_>) -> rusqlite::Result<Self> {
        let id = row.get(0)?;
        let mut unreadable = Unreadable(None);
        let new = NewEvent {
            event_type: unreadable.unless("event_type", row.get(1)),
            payload: unreadable.unless("payload", payload(row, 2)).unwrap_or_default(),
            headers: unreadable.unless("headers", headers(row.get_ref(3)?)),
            options: unreadable.unless("options", object(row.get_ref(4)?)),
            priority: unreadable.unless("priority", row.get(5)),
            scheduled_at: optional_at(unreadable.unless("scheduled_at", row.get(6))),
            expires_at: optional_at(unreadable.unless("expires_at", row.get(7))),
            idempotency_key: unreadable.unless("idempotency_key", row.get(8)),
            correlation_id: unreadable.unless("correlation_id", correlation(row, 9)),
            ordering_key: unreadable.unless("ordering_key", row.get(10)),
        };
        Ok(Self { id, new, unreadable: unreadable.0 })
    }

    pub(super) fn publication(&self) -> Result<Publication> {
        match &self.unreadable {
            Some(invalid) => Err(invalid.clone().into()),
            None => Publication::of_one(self.new.clone()),
        }
    }
}

struct Unreadable(Option<Invalid>);

impl Unreadable {
    fn unless<T: Default, E: Display>(&mut self, field: &str, read: std::result::Result<T, E>) -> T {
        read.unwrap_or_else(|error| {
            let rule = format!("cannot be read, and is left out here: {error}");
            self.0.get_or_insert_with(|| Invalid::new(field, rule));
            T::default()
        })
    }
}
