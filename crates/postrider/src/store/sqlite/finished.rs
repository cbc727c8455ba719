//! Finished messages as a replay selects them: the archive month by month, or the DLQ.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, Row, params_from_iter};

use super::archive::Month;
use super::invalid_events::NO_ENDPOINT;
use super::query::Query;
use super::row::{self, CheckedRow, named};
use super::shown::ShownRow;
use crate::endpoint::EndpointId;
use crate::error::Invalid;
use crate::message::{MessageId, NewMessage};
use crate::store::replaying::FoundMessage;
use crate::store::{ReplaySample, ReplayStatus, Result};

/// A table of finished messages, and the names of its columns.
#[derive(Debug)]
pub(crate) struct FinishedTable {
    name: String,
    id: &'static str,
    finished_at: &'static str,
    /// Which of its rows can be replayed one by one.
    kept: &'static str,
}

/// The selection of a replay, as SQL needs it.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) endpoint: Option<EndpointId>,
    pub(super) event_type: Option<String>,
    pub(super) ordering_key: Option<String>,
    pub(super) status: Option<ReplayStatus>,
    pub(super) from: Option<i64>,
    pub(super) until: Option<i64>,
    /// Messages that finished later are not selected.
    pub(super) finished_by: i64,
}

impl Selected {
    /// The first of the ids after `after`, up to `to`.
    pub(super) fn window(
        &self,
        conn: &Connection,
        after: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<FoundMessage<Arc<FinishedTable>>>> {
        let mut found = Vec::new();
        for table in self.tables(conn)? {
            let FinishedTable { name, id, .. } = &*table;
            let (conditions, mut values) = self.conditions(&table, after, to);
            let sql = format!(
                "SELECT {id}, coalesce(length(payload), 0) FROM {name}
                 WHERE {conditions} ORDER BY {id} LIMIT ?"
            );
            values.push((limit as i64).into());
            found.extend(conn.rows(&sql, params_from_iter(values), |row| {
                Ok(FoundMessage { id: MessageId(row.get(0)?), bytes: row.get(1)?, table: table.clone() })
            })?);
        }
        found.sort_by_key(|found| found.id);
        found.truncate(limit);
        Ok(found)
    }

    pub(super) fn count(&self, conn: &Connection, after: i64, to: i64) -> Result<u64> {
        let mut count = 0;
        for table in self.tables(conn)? {
            let (conditions, values) = self.conditions(&table, after, to);
            let sql = format!("SELECT count(*) FROM {} WHERE {conditions}", table.name);
            count += conn.value::<u64>(&sql, params_from_iter(values))?;
        }
        Ok(count)
    }

    /// Counts all of them in four parts: sendable, without a payload, of a dropped endpoint, and events without an
    /// endpoint.
    pub(super) fn count_all(&self, conn: &Connection, last: i64, to: Option<EndpointId>) -> Result<[u64; 4]> {
        let mut counts = [0; 4];
        let is_event =
            format!("endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE name = '{NO_ENDPOINT}')");
        for table in self.tables(conn)? {
            let (conditions, values) = self.conditions(&table, 0, last);
            let gone = match to {
                Some(_) => "0".to_owned(),
                None => "endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE dropped_at IS NOT NULL)"
                    .to_owned(),
            };
            let sql = format!(
                "SELECT coalesce(sum(NOT {gone} AND payload IS NOT NULL), 0),
                   coalesce(sum(NOT {gone} AND payload IS NULL), 0),
                   coalesce(sum({gone} AND NOT {is_event}), 0), coalesce(sum({gone} AND {is_event}), 0)
                 FROM {} WHERE {conditions}",
                table.name
            );
            let more: [u64; 4] = conn.row(&sql, params_from_iter(values), |row| {
                Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
            })?;
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
        }
        Ok(counts)
    }

    /// The first that can be sent.
    pub(super) fn sample(
        &self,
        conn: &Connection,
        last: i64,
        to: Option<EndpointId>,
        limit: usize,
    ) -> Result<Vec<ReplaySample>> {
        let mut sample = Vec::new();
        for table in self.tables(conn)? {
            let FinishedTable { name, id, .. } = &*table;
            let (conditions, mut values) = self.conditions(&table, 0, last);
            let sql = format!(
                "SELECT {id}, (SELECT name FROM _postrider_endpoints AS e WHERE e.id = endpoint_id), status,
                   event_type, ordering_key, created_at
                 FROM {name} WHERE {conditions} AND payload IS NOT NULL
                   AND (? OR endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE dropped_at IS NULL))
                 ORDER BY {id} LIMIT ?"
            );
            values.extend([Value::from(to.is_some()), (limit as i64).into()]);
            sample.extend(conn.rows(&sql, params_from_iter(values), sampled)?);
        }
        sample.sort_by_key(|message| message.id);
        sample.truncate(limit);
        Ok(sample)
    }

    /// The months that can hold selected messages, or the DLQ.
    fn tables(&self, conn: &Connection) -> Result<Vec<Arc<FinishedTable>>> {
        if self.status == Some(ReplayStatus::Failed) {
            return Ok(vec![Arc::new(FinishedTable { kept: "status = 'failed'", ..FinishedTable::dlq() })]);
        }
        let mut months = Month::existing(conn)?;
        months.reverse();
        let begins: Vec<i64> = months.iter().map(|month| month.begins_at()).collect();
        // Messages created before the first month or after the last one are in the nearest month.
        let meant = |at: usize| {
            let ends_late = begins.get(at + 1).is_none_or(|end| self.from.is_none_or(|from| *end > from));
            ends_late && (at == 0 || self.until.is_none_or(|until| begins[at] < until))
        };
        let meant = months.iter().enumerate().filter(|(at, _)| meant(*at));
        Ok(meant.map(|(_, month)| Arc::new(FinishedTable::month(*month))).collect())
    }

    fn conditions(&self, table: &FinishedTable, after: i64, to: i64) -> (String, Vec<Value>) {
        let FinishedTable { id, finished_at, .. } = table;
        let mut sql = format!("{id} > ? AND {id} <= ? AND {finished_at} <= ?");
        let mut values = vec![after.into(), to.into(), self.finished_by.into()];
        let mut also = |condition: &str, value: Option<Value>| {
            if let Some(value) = value {
                sql.push_str(" AND ");
                sql.push_str(condition);
                values.push(value);
            }
        };
        also("endpoint_id = ?", self.endpoint.map(|endpoint| endpoint.0.into()));
        also("event_type = ?", self.event_type.clone().map(Value::from));
        also("ordering_key = ?", self.ordering_key.clone().map(Value::from));
        also("status = ?", self.status.map(|status| status.as_str().to_owned().into()));
        also("created_at >= ?", self.from.map(Value::from));
        also("created_at < ?", self.until.map(Value::from));
        (sql, values)
    }
}

impl FinishedTable {
    pub(super) fn dlq() -> Self {
        let kept = "status <> 'redriven'";
        Self { name: "_postrider_dlq".to_owned(), id: "message_id", finished_at: "died_at", kept }
    }

    pub(super) fn month(month: Month) -> Self {
        Self { name: month.table(), id: "id", finished_at: "finished_at", kept: "1" }
    }
}

/// A finished message, to be sent again.
pub(super) struct Original {
    pub(super) id: MessageId,
    pub(super) endpoint: EndpointId,
    /// None once it was erased, or when only its metadata was kept.
    pub(super) payload: Option<Bytes>,
    /// Without endpoint and payload, and without what a replay clears.
    pub(super) message: NewMessage,
    /// The first unreadable column; such columns are left out of the message.
    pub(super) unreadable: Option<Invalid>,
}

impl Original {
    /// None when it was deleted, redriven or discarded.
    pub(super) fn load(conn: &Connection, table: &FinishedTable, id: MessageId) -> Result<Option<Self>> {
        let FinishedTable { name, id: id_column, kept, .. } = table;
        let sql = format!(
            "SELECT endpoint_id, payload, content_type, headers, options, priority, correlation_id,
               ordering_key, event_type
             FROM {name} WHERE {id_column} = ?1 AND {kept} ORDER BY {name}.id DESC LIMIT 1"
        );
        let original = |row: &Row<'_>| {
            let mut row = CheckedRow::of(row);
            Ok(Self {
                id,
                endpoint: EndpointId(row.get(0)),
                payload: row.read(1, row::bytes),
                message: NewMessage {
                    content_type: row.get(2),
                    headers: row.read(3, row::headers),
                    options: row.read(4, row::object),
                    priority: row.get(5),
                    correlation_id: row.read(6, row::correlation),
                    ordering_key: row.get(7),
                    event_type: row.get(8),
                    ..NewMessage::new("", Bytes::new())
                },
                unreadable: row.unreadable(),
            })
        };
        conn.find(&sql, [id.0], original)
    }
}

fn sampled(row: &Row<'_>) -> rusqlite::Result<ReplaySample> {
    Ok(ReplaySample {
        id: MessageId(row.get(0)?),
        endpoint: row.get(1)?,
        status: named(row, 2)?,
        event_type: ShownRow(row).text(3),
        ordering_key: ShownRow(row).text(4),
        created_at: ShownRow(row).time(5).unwrap_or_default(),
    })
}
