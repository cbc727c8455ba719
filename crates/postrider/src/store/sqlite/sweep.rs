//! A step of a sweep: a reader selects the next letters of a filter, then the writer redrives or discards them.

use std::collections::{HashMap, HashSet};

use async_trait::async_trait;
use rusqlite::types::Value;
use rusqlite::{Connection, ToSql, params_from_iter};
use serde_json::json;

use super::job::CommitMode;
use super::keys::OrderingKey;
use super::query::Query;
use super::redrive::{self, REDRIVABLE, Redrivable};
use super::writer::Write;
use super::{SqliteStore, dlq, events};
use crate::endpoint::EndpointId;
use crate::store::{DlqFilter, Result, Sweep, SweepAction, SweepCursor, Sweeps, check_sweep, never_fits};

/// Letters in one step, plus the rest of their keys: about 4 ms.
const STEP_LETTERS: usize = 100;
/// Also erased letters and those of dropped endpoints.
const DISCARDABLE: &str = "d.status = 'failed'";

#[async_trait]
impl Sweeps for SqliteStore {
    async fn sweep(
        &self,
        action: SweepAction,
        filter: DlqFilter,
        from: Option<SweepCursor>,
    ) -> Result<Sweep> {
        step(self, action, filter, from).await
    }
}

#[derive(Clone, Debug)]
struct LetterToSweep {
    dead: Redrivable,
    message: i64,
    key: Option<OrderingKey>,
}

async fn step(
    store: &SqliteStore,
    action: SweepAction,
    filter: DlqFilter,
    from: Option<SweepCursor>,
) -> Result<Sweep> {
    check_sweep(&filter)?;
    let looked = filter.clone();
    let (cursor, letters, position) = store
        .read(move |conn| {
            let select = Select::new(conn, action, &looked)?;
            let cursor = match from {
                Some(cursor) => cursor,
                None => select.begin(conn)?,
            };
            let (letters, position) = select.next(conn, cursor)?;
            Ok((cursor, letters, position))
        })
        .await?;
    if letters.is_empty() {
        return Ok(cursor.after(None, cursor.done, cursor.event));
    }
    store
        .write(CommitMode::Durable, move |write| take(write, action, &filter, cursor, &letters, position))
        .await
}

/// The filter as SQL.
struct Select {
    possible: &'static str,
    conditions: String,
    values: Vec<Value>,
}

impl Select {
    fn new(conn: &Connection, action: SweepAction, filter: &DlqFilter) -> Result<Self> {
        let (conditions, values) = dlq::conditions(conn, filter)?;
        let possible = match action {
            SweepAction::Redrive => REDRIVABLE,
            SweepAction::Discard => DISCARDABLE,
        };
        Ok(Self { possible, conditions, values })
    }

    fn begin(&self, conn: &Connection) -> Result<SweepCursor> {
        let newest = conn
            .value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '_postrider_dlq'", [])?;
        let Self { possible, conditions, values } = self;
        let sql = format!("SELECT count(*) FROM _postrider_dlq d WHERE {possible} AND {conditions}");
        let total = conn.prepare(&sql)?.query_row(params_from_iter(values), |row| row.get(0))?;
        Ok(SweepCursor::begin(newest, total))
    }

    /// The next letters by message id, and up to which message they reach; None at the end.
    fn next(&self, conn: &Connection, from: SweepCursor) -> Result<(Vec<LetterToSweep>, Option<i64>)> {
        let after: [&dyn ToSql; 2] = [&from.newest, &from.position];
        let mut letters =
            self.letters(conn, "d.id <= ? AND d.message_id > ?", &after, STEP_LETTERS as i64)?;
        let position = letters.last().filter(|_| letters.len() == STEP_LETTERS).map(|last| last.message);
        let Some(position) = position else { return Ok((letters, None)) };
        // Whole keys only: see `redrive.rs`.
        let keys: HashSet<OrderingKey> = letters.iter().filter_map(|letter| letter.key.clone()).collect();
        for OrderingKey { scope, key } in keys {
            let of_key = "d.id <= ? AND d.message_id > ? AND d.key_scope = ? AND d.ordering_key = ?";
            let values: [&dyn ToSql; 4] = [&from.newest, &position, &scope, &key];
            letters.extend(self.letters(conn, of_key, &values, i64::MAX)?);
        }
        letters.sort_by_key(|letter| letter.message);
        Ok((letters, Some(position)))
    }

    fn letters(
        &self,
        conn: &Connection,
        also: &str,
        also_values: &[&dyn ToSql],
        limit: i64,
    ) -> Result<Vec<LetterToSweep>> {
        let Self { possible, conditions, values } = self;
        let sql = format!(
            "SELECT d.id, d.message_id, d.endpoint_id, d.key_scope, d.ordering_key, d.reason = 'invalid_event'
             FROM _postrider_dlq d
             WHERE {also} AND {possible} AND {conditions} ORDER BY d.message_id, d.id LIMIT ?"
        );
        let values = values.iter().map(|value| value as &dyn ToSql);
        let values = also_values.iter().copied().chain(values).chain([&limit as &dyn ToSql]);
        conn.rows(&sql, params_from_iter(values), |row| {
            let (id, endpoint) = (row.get(0)?, EndpointId(row.get(2)?));
            Ok(LetterToSweep {
                dead: Redrivable { id, endpoint, is_event: row.get(5)? },
                message: row.get(1)?,
                key: OrderingKey::of(row.get(3)?, row.get(4)?),
            })
        })
    }
}

/// Takes those that are still `failed`: another sweep may have taken some.
fn take(
    write: &mut Write<'_>,
    action: SweepAction,
    filter: &DlqFilter,
    cursor: SweepCursor,
    letters: &[LetterToSweep],
    mut position: Option<i64>,
) -> Result<Sweep> {
    let mut taken = 0;
    match action {
        SweepAction::Redrive => {
            let (dead, cut) = fitting(write, letters)?;
            taken += redrive::put_back(write, &dead, write.now, false)?;
            position = cut.or(position);
        }
        SweepAction::Discard => {
            for letter in letters {
                taken += u64::from(dlq::discard_if_failed(write, letter.dead.id)?);
            }
        }
    }
    // The cursor comes from a client and may hold any number.
    let done = cursor.done.saturating_add(taken);
    let detail = json!({ "messages": done, "selection": { "matching": filter } });
    let event = match logged(write, action, cursor.event)? {
        Some(event) => events::amend(write, event, &detail).map(|()| Some(event))?,
        None if done > 0 => Some(events::begin(write, action.as_str(), None, &detail)?),
        None => None,
    };
    Ok(cursor.after(position, done, event))
}

/// The letters that fit, and up to which message they reach when not all do.
fn fitting(write: &mut Write<'_>, letters: &[LetterToSweep]) -> Result<(Vec<Redrivable>, Option<i64>)> {
    let mut firsts: HashMap<&OrderingKey, i64> = HashMap::new();
    let mut grouped = Vec::with_capacity(letters.len());
    for LetterToSweep { dead, message, key } in letters {
        let group = key.as_ref().map_or(*message, |key| *firsts.entry(key).or_insert(*message));
        grouped.push((*dead, group));
    }
    let room = redrive::room_left(write, letters.iter().map(|letter| letter.dead.endpoint))?;
    let (fitting, cut) = room.fitting(grouped, |(dead, group)| (*group, dead.endpoint));
    redrive::room_for(write, fitting.iter().map(|(dead, _)| dead.endpoint))
        .map_err(|refused| never_fits(refused, fitting.len()))?;
    Ok((fitting.into_iter().map(|(dead, _)| dead).collect(), cut))
}

/// Its row in the event log, if retention has not deleted it.
fn logged(write: &Write<'_>, action: SweepAction, event: Option<i64>) -> Result<Option<i64>> {
    let Some(event) = event else { return Ok(None) };
    write.conn.find(
        "SELECT id FROM _postrider_event_log WHERE id = ?1 AND kind = ?2",
        (event, action.as_str()),
        |row| row.get(0),
    )
}
