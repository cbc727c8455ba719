//! A step of a sweep: the next letters of a filter are looked up, then redriven or discarded in one transaction.

use std::collections::BTreeSet;

use async_trait::async_trait;
use deadpool_postgres::{ClientWrapper, Transaction};
use postgres_types::Json;
use serde_json::json;
use tokio_postgres::Row;

use super::dlq::{Matching, REDRIVABLE, STEP_LETTERS};
use super::errors::store_error;
use super::row::{big_count, count};
use super::{PostgresStore, SharedState};
use crate::endpoint::EndpointId;
use crate::store::{
    DlqFilter, Result, Room, Sweep, SweepAction, SweepCursor, Sweeps, check_sweep, never_fits,
};

/// Condition for a letter `d` that can be discarded: erased ones and those of dropped endpoints too.
const DISCARDABLE: &str = "d.status = 'failed'";

struct SelectedLetter {
    id: i64,
    endpoint: EndpointId,
    /// The first message of its ordering key, or the letter's own message.
    group: i64,
}

#[async_trait]
impl Sweeps for PostgresStore {
    async fn sweep(
        &self,
        action: SweepAction,
        filter: DlqFilter,
        from: Option<SweepCursor>,
    ) -> Result<Sweep> {
        let swept = self.shared.refusals.noted(step(&self.shared, action, &filter, from).await);
        self.shared.cursors.all_returned();
        swept
    }
}

async fn step(
    shared: &SharedState,
    action: SweepAction,
    filter: &DlqFilter,
    from: Option<SweepCursor>,
) -> Result<Sweep> {
    check_sweep(filter)?;
    let cursor = match from {
        Some(cursor) => cursor,
        None => begin(shared, action, filter).await?,
    };
    let (letters, position) = next(shared, action, filter, cursor).await?;
    if letters.is_empty() {
        return Ok(cursor.after(None, cursor.done, cursor.event));
    }
    let take_them = async |client: &mut ClientWrapper| {
        let transaction = client.transaction().await.map_err(store_error)?;
        let (letters, cut) = match action {
            SweepAction::Redrive => fitting(&transaction, letters).await?,
            SweepAction::Discard => (letters, None),
        };
        let taken = take(&transaction, action, &letters).await?;
        // A cursor comes from the caller, so its numbers can be anything.
        let done = cursor.done.saturating_add(u64::from(taken));
        let event = log(&transaction, action, filter, cursor.event, done).await?;
        transaction.commit().await.map_err(store_error)?;
        Ok(cursor.after(cut.or(position), done, event))
    };
    shared.pool.with(take_them).await
}

fn possible(action: SweepAction) -> &'static str {
    match action {
        SweepAction::Redrive => REDRIVABLE,
        SweepAction::Discard => DISCARDABLE,
    }
}

async fn begin(shared: &SharedState, action: SweepAction, filter: &DlqFilter) -> Result<SweepCursor> {
    let matching = Matching::new(shared, filter).await?;
    let (possible, conditions) = (possible(action), &matching.conditions);
    let sql = format!(
        "SELECT coalesce((SELECT max(id) FROM postrider.dlq), 0),
           (SELECT count(*) FROM postrider.dlq d WHERE {possible} AND {conditions})"
    );
    let row = shared.prompt.query_one(&sql, &matching.parameters()).await?;
    Ok(SweepCursor::begin(row.get(0), big_count(&row, 1)))
}

/// The next letters in the order of their messages, and the last message of the step; None when there are no more. All letters of
/// a key go together: if half of them were put back, messages that were sent later would overtake the other half.
async fn next(
    shared: &SharedState,
    action: SweepAction,
    filter: &DlqFilter,
    from: SweepCursor,
) -> Result<(Vec<SelectedLetter>, Option<i64>)> {
    let mut matching = Matching::new(shared, filter).await?;
    let newest = matching.parameter(from.newest);
    let position = matching.parameter(from.position);
    let limit = matching.parameter(STEP_LETTERS as i64);
    let (possible, conditions) = (possible(action), &matching.conditions);
    let selected = format!("d.id <= {newest} AND {possible} AND {conditions}");
    let sql = format!(
        "WITH first AS MATERIALIZED (
           SELECT d.id, d.message_id, d.endpoint_id, d.key_scope, d.ordering_key FROM postrider.dlq d
           WHERE d.message_id > {position} AND {selected} ORDER BY d.message_id, d.id LIMIT {limit}
         ), last AS (
           SELECT max(message_id) AS message_id, count(*) = {limit} AS there_is_more FROM first
         ), rest AS (
           SELECT d.id, d.message_id, d.endpoint_id, d.key_scope, d.ordering_key
           FROM (SELECT DISTINCT key_scope, ordering_key FROM first WHERE ordering_key IS NOT NULL) AS k, last,
             LATERAL (SELECT d.* FROM postrider.dlq d WHERE d.key_scope = k.key_scope AND d.ordering_key = k.ordering_key
                        AND d.ordering_key IS NOT NULL AND d.message_id > last.message_id AND {selected}) AS d
         )
         SELECT l.id, l.endpoint_id, CASE WHEN l.ordering_key IS NULL THEN l.message_id
                  ELSE min(l.message_id) OVER (PARTITION BY l.key_scope, l.ordering_key) END,
           CASE WHEN last.there_is_more THEN last.message_id END
         FROM (SELECT * FROM first UNION ALL SELECT * FROM rest) AS l, last
         ORDER BY l.message_id, l.id"
    );
    let rows = shared.prompt.query(&sql, &matching.parameters()).await?;
    let letter =
        |row: &Row| SelectedLetter { id: row.get(0), endpoint: EndpointId(row.get(1)), group: row.get(2) };
    Ok((rows.iter().map(letter).collect(), rows.first().and_then(|row| row.get(3))))
}

/// The letters that the queue has room for, and the last message of the step when that is not all.
async fn fitting(
    transaction: &Transaction<'_>,
    letters: Vec<SelectedLetter>,
) -> Result<(Vec<SelectedLetter>, Option<i64>)> {
    let endpoints: BTreeSet<i64> = letters.iter().map(|letter| letter.endpoint.0).collect();
    let (endpoints, more) = (Vec::from_iter(endpoints), letters.len() as i64);
    let left = "SELECT endpoint_id, room FROM postrider._room_left($1, $2)";
    let left = transaction.query(left, &[&endpoints, &more]).await.map_err(store_error)?;
    let room = |row: &Row| (row.get::<_, Option<i64>>(0).map(EndpointId), big_count(row, 1));
    let room: Room = left.iter().map(room).collect();
    let (letters, cut) = room.fitting(letters, |letter| (letter.group, letter.endpoint));
    let refuse = "SELECT postrider._redrive_room($1)";
    let refused = transaction.query(refuse, &[&ids(&letters)]).await.map_err(store_error);
    refused.map_err(|refused| never_fits(refused, letters.len()))?;
    Ok((letters, cut))
}

fn ids(letters: &[SelectedLetter]) -> Vec<i64> {
    letters.iter().map(|letter| letter.id).collect()
}

/// Takes those that are still `failed`.
async fn take(transaction: &Transaction<'_>, action: SweepAction, letters: &[SelectedLetter]) -> Result<u32> {
    let take = "SELECT postrider._take_letters($1, $2, postrider._now())";
    let row = transaction.query_one(take, &[&action.as_str(), &ids(letters)]).await.map_err(store_error)?;
    Ok(count(&row, 0))
}

/// One entry for all steps. The entry that a cursor names may be deleted, or belong to something else.
async fn log(
    transaction: &Transaction<'_>,
    action: SweepAction,
    filter: &DlqFilter,
    event: Option<i64>,
    done: u64,
) -> Result<Option<i64>> {
    let detail = Json(json!({ "messages": done, "selection": { "matching": filter } }));
    let amend = "UPDATE postrider.event_log SET detail = $3 WHERE id = $1 AND kind = $2 RETURNING id";
    let amended = transaction.query_opt(amend, &[&event, &action.as_str(), &detail]).await;
    if let Some(row) = amended.map_err(store_error)? {
        return Ok(Some(row.get(0)));
    }
    if done == 0 {
        return Ok(None);
    }
    let begin = "SELECT postrider._log_event($1, NULL, $2)";
    let row = transaction.query_one(begin, &[&action.as_str(), &detail]).await.map_err(store_error)?;
    Ok(Some(row.get(0)))
}
