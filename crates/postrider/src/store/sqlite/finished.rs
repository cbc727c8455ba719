//! Finished messages as a replay selects them: the archive month by month, or the DLQ.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params_from_iter};

use super::archive::Month;
use super::invalid_events::NO_ENDPOINT;
use super::row::{self, Reading};
use super::shown::Shown;
use crate::endpoint::EndpointId;
use crate::error::Invalid;
use crate::message::{MessageId, NewMessage};
use crate::store::{ReplaySample, ReplayStatus, STEP_BYTES_MAX};

/// Ids looked through at a time.
const WINDOW: i64 = 10_000;
/// Looking goes on from window to window for this long, when little is found.
const LOOK_BUDGET: Duration = Duration::from_millis(20);

/// Where finished messages are kept, and what its columns are called there.
#[derive(Debug)]
pub(super) struct Table {
    name: String,
    id: &'static str,
    finished_at: &'static str,
    /// What is still to be had there.
    kept: &'static str,
}

/// What a replay is about, as columns have it.
#[derive(Clone, Debug)]
pub(super) struct Selected {
    pub(super) endpoint: Option<EndpointId>,
    pub(super) event_type: Option<String>,
    pub(super) ordering_key: Option<String>,
    pub(super) status: Option<ReplayStatus>,
    pub(super) from: Option<i64>,
    pub(super) until: Option<i64>,
    /// What finished later is not meant.
    pub(super) finished_by: i64,
}

/// A message that was found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) id: MessageId,
    pub(super) table: Arc<Table>,
    bytes: i64,
}

/// What was found, and up to which id everything was looked at.
pub(super) struct Look {
    pub(super) found: Vec<Found>,
    pub(super) reached: i64,
}

impl Selected {
    /// The next of them after `after`, up to `last`: at most so many, and not too large together.
    pub(super) fn next(
        &self,
        conn: &Connection,
        after: i64,
        last: i64,
        limit: usize,
    ) -> rusqlite::Result<Look> {
        let began = Instant::now();
        let tables = self.tables(conn)?;
        let mut look = Look { found: Vec::new(), reached: after };
        while look.reached < last && look.found.len() < limit && began.elapsed() < LOOK_BUDGET {
            let to = last.min(look.reached + WINDOW);
            let left = limit - look.found.len();
            let more = self.window(conn, &tables, look.reached, to, left)?;
            let full = more.len() == left;
            look.found.extend(more);
            look.reached = look.found.last().filter(|_| full).map_or(to, |found| found.id.0);
        }
        look.keep_within(STEP_BYTES_MAX);
        Ok(look)
    }

    fn window(
        &self,
        conn: &Connection,
        tables: &[Arc<Table>],
        after: i64,
        to: i64,
        limit: usize,
    ) -> rusqlite::Result<Vec<Found>> {
        let mut found = Vec::new();
        for table in tables {
            let Table { name, id, .. } = &**table;
            let (conditions, mut values) = self.conditions(table, after, to);
            let sql = format!(
                "SELECT {id}, coalesce(length(payload), 0) FROM {name} WHERE {conditions} ORDER BY {id} LIMIT ?"
            );
            values.push((limit as i64).into());
            let mut statement = conn.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(values), |row| {
                Ok(Found { id: MessageId(row.get(0)?), bytes: row.get(1)?, table: table.clone() })
            })?;
            found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        found.sort_by_key(|found| found.id);
        found.truncate(limit);
        Ok(found)
    }

    /// How many there are after `after`, as far as was looked.
    pub(super) fn count(&self, conn: &Connection, after: i64, last: i64) -> rusqlite::Result<(u64, i64)> {
        let began = Instant::now();
        let tables = self.tables(conn)?;
        let (mut count, mut reached) = (0, after);
        while reached < last && began.elapsed() < LOOK_BUDGET {
            let to = last.min(reached + WINDOW);
            for table in &tables {
                let (conditions, values) = self.conditions(table, reached, to);
                let sql = format!("SELECT count(*) FROM {} WHERE {conditions}", table.name);
                count += conn
                    .prepare_cached(&sql)?
                    .query_row(params_from_iter(values), |row| row.get::<_, u64>(0))?;
            }
            reached = to;
        }
        Ok((count, reached))
    }

    /// All of them, in four parts: those that can be sent, those without a payload, those whose endpoint is gone, and
    /// events that have none.
    pub(super) fn count_all(
        &self,
        conn: &Connection,
        last: i64,
        to: Option<EndpointId>,
    ) -> rusqlite::Result<[u64; 4]> {
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
                "SELECT coalesce(sum(NOT {gone} AND payload IS NOT NULL), 0), coalesce(sum(NOT {gone} AND payload IS NULL), 0),
                   coalesce(sum({gone} AND NOT {is_event}), 0), coalesce(sum({gone} AND {is_event}), 0)
                 FROM {} WHERE {conditions}",
                table.name
            );
            let more: [u64; 4] = conn.prepare_cached(&sql)?.query_row(params_from_iter(values), |row| {
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
    ) -> rusqlite::Result<Vec<ReplaySample>> {
        let mut sample = Vec::new();
        for table in self.tables(conn)? {
            let Table { name, id, .. } = &*table;
            let (conditions, mut values) = self.conditions(&table, 0, last);
            let sql = format!(
                "SELECT {id}, (SELECT name FROM _postrider_endpoints AS e WHERE e.id = endpoint_id), status, event_type,
                   ordering_key, created_at
                 FROM {name} WHERE {conditions} AND payload IS NOT NULL
                   AND (? OR endpoint_id IN (SELECT id FROM _postrider_endpoints WHERE dropped_at IS NULL))
                 ORDER BY {id} LIMIT ?"
            );
            values.extend([Value::from(to.is_some()), (limit as i64).into()]);
            let mut statement = conn.prepare_cached(&sql)?;
            let rows = statement.query_map(params_from_iter(values), sampled)?;
            sample.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        sample.sort_by_key(|message| message.id);
        sample.truncate(limit);
        Ok(sample)
    }

    /// Months that can have some, or the DLQ.
    fn tables(&self, conn: &Connection) -> rusqlite::Result<Vec<Arc<Table>>> {
        if self.status == Some(ReplayStatus::Failed) {
            return Ok(vec![Arc::new(Table { kept: "status = 'failed'", ..Table::dlq() })]);
        }
        let mut months = Month::existing(conn)?;
        months.reverse();
        let begins: Vec<i64> = months.iter().map(|month| month.begins_at()).collect();
        // What was made before the first month or after the last one is in the nearest.
        let meant = |at: usize| {
            let ends_late = begins.get(at + 1).is_none_or(|end| self.from.is_none_or(|from| *end > from));
            ends_late && (at == 0 || self.until.is_none_or(|until| begins[at] < until))
        };
        let meant = months.iter().enumerate().filter(|(at, _)| meant(*at));
        Ok(meant.map(|(_, month)| Arc::new(Table::month(*month))).collect())
    }

    fn conditions(&self, table: &Table, after: i64, to: i64) -> (String, Vec<Value>) {
        let Table { id, finished_at, .. } = table;
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

impl Look {
    /// At least one, however large it is.
    fn keep_within(&mut self, bytes_max: i64) {
        let sums = self.found.iter().scan(0, |bytes, found| {
            *bytes += found.bytes;
            Some(*bytes)
        });
        let kept = sums.take_while(|bytes| *bytes <= bytes_max).count();
        if kept < self.found.len() {
            self.found.truncate(kept.max(1));
            self.reached = self.found.last().map_or(self.reached, |found| found.id.0);
        }
    }
}

impl Table {
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
    /// Without an endpoint and a payload; what a replay clears is not in it.
    pub(super) message: NewMessage,
    /// What of it no node can read, and is left out of the message.
    pub(super) unreadable: Option<Invalid>,
}

impl Original {
    /// None when it is not there any more, or was redriven or discarded.
    pub(super) fn load(conn: &Connection, table: &Table, id: MessageId) -> rusqlite::Result<Option<Self>> {
        let Table { name, id: id_column, kept, .. } = table;
        let sql = format!(
            "SELECT endpoint_id, payload, content_type, headers, options, priority, correlation_id, ordering_key,
               event_type
             FROM {name} WHERE {id_column} = ?1 AND {kept} ORDER BY {name}.id DESC LIMIT 1"
        );
        let original = |row: &Row<'_>| {
            let mut row = Reading::of(row);
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
        conn.prepare_cached(&sql)?.query_row([id.0], original).optional()
    }
}

fn sampled(row: &Row<'_>) -> rusqlite::Result<ReplaySample> {
    Ok(ReplaySample {
        id: MessageId(row.get(0)?),
        endpoint: row.get(1)?,
        status: ReplayStatus::named(row.get_ref(2)?.as_str()?).unwrap_or(ReplayStatus::Failed),
        event_type: Shown(row).text(3),
        ordering_key: Shown(row).text(4),
        created_at: Shown(row).time(5).unwrap_or_default(),
    })
}
