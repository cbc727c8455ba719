//! The dead letter queue: look, and put back in steps.

use std::collections::BTreeMap;

use deadpool_postgres::{ClientWrapper, Transaction};
use jiff::Timestamp;
use postgres_types::{Json, ToSql};
use serde_json::{Value, json};
use tokio_postgres::Row;

use super::SharedState;
use super::errors::store_error;
use super::row::{
    big_count, count, headers, named, object, optional_text, optional_time, payload, text, time,
};
use crate::clock::truncated;
use crate::error::StoreError;
use crate::message::MessageId;
use crate::store::{
    AttemptError, DeadLetter, DlqFilter, DlqStatus, DlqSummary, ListedDeadLetter, Redrive, Result,
};
use crate::verdict::Class;

const LIST_DEFAULT: usize = 100;
/// Letters in one step, unless a single key has more. Few enough that keys are locked one by one (`sql/keys.sql`): locking whole
/// stripes would block senders of other keys.
pub(super) const STEP_LETTERS: usize = 64;
/// Condition for a letter `d` that can be redriven.
pub(super) const REDRIVABLE: &str = "d.status = 'failed' AND d.payload IS NOT NULL
  AND EXISTS (SELECT FROM postrider.endpoints e WHERE e.id = d.endpoint_id AND e.dropped_at IS NULL)";

pub(super) async fn list(shared: &SharedState, filter: &DlqFilter) -> Result<Vec<DeadLetter>> {
    let mut matching = Matching::new(shared, filter).await?;
    let limit = matching.parameter(if filter.limit == 0 { LIST_DEFAULT } else { filter.limit } as i64);
    let list = format!(
        "SELECT d.id, message_id, e.name, status, reason, died_at, attempts, last_error, errors, payload,
           content_type, headers, ordering_key, event_type, d.created_at, priority, d.options, idempotency_key,
           correlation_id, scheduled_at, expires_at
         FROM postrider.dlq d JOIN postrider.endpoints e ON e.id = d.endpoint_id
         WHERE {} ORDER BY d.id LIMIT {limit}",
        matching.conditions
    );
    shared.prompt.query(&list, &matching.parameters()).await?.iter().map(dead_letter).collect()
}

/// A filter as SQL conditions on the letter `d`. Only the fields that are set, so that an index fits.
pub(super) struct Matching {
    pub(super) conditions: String,
    values: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Matching {
    pub(super) async fn new(shared: &SharedState, filter: &DlqFilter) -> Result<Self> {
        let mut matching = Self { conditions: "true".to_owned(), values: Vec::new() };
        if let Some(name) = &filter.endpoint {
            let ids = every_id_of(shared, name).await?;
            let ids: Vec<String> = ids.into_iter().map(|id| matching.parameter(id)).collect();
            matching.conditions.push_str(&format!(" AND d.endpoint_id IN ({})", ids.join(", ")));
        }
        matching.and("d.id > {}", filter.after);
        matching.and("d.id = {}", filter.id);
        matching.and("d.message_id = {}", filter.message.map(|id| id.0));
        matching.and("d.status = {}", filter.status.map(DlqStatus::as_str));
        matching.and("d.reason = {}", filter.reason.clone());
        matching.and("starts_with(d.last_error, {})", filter.class.map(Class::tag));
        matching.and("strpos(d.last_error, {}) > 0", filter.error.clone());
        matching.and("d.event_type = {}", filter.event_type.clone());
        matching.and("d.ordering_key = {}", filter.ordering_key.clone());
        matching.and("d.correlation_id = {}", filter.correlation_id);
        matching.and("d.died_at >= {}", filter.from.map(truncated));
        matching.and("d.died_at < {}", filter.until.map(truncated));
        Ok(matching)
    }

    /// `{}` stands for the value.
    fn and<T: ToSql + Sync + Send + 'static>(&mut self, condition: &str, value: Option<T>) {
        let Some(value) = value else { return };
        let condition = condition.replace("{}", &self.parameter(value));
        self.conditions.push_str(&format!(" AND {condition}"));
    }

    /// Returns the placeholder, `$1`.
    pub(super) fn parameter(&mut self, value: impl ToSql + Sync + Send + 'static) -> String {
        self.values.push(Box::new(value));
        format!("${}", self.values.len())
    }

    pub(super) fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }
}

/// Dead letters outlive their endpoint, and a new endpoint may have the same name.
async fn every_id_of(shared: &SharedState, name: &str) -> Result<Vec<i64>> {
    let ids = shared.prompt.query("SELECT id FROM postrider.endpoints WHERE name = $1", &[&name]).await?;
    if ids.is_empty() {
        return Err(StoreError::unknown_endpoint(name));
    }
    Ok(ids.iter().map(|row| row.get(0)).collect())
}

fn dead_letter(row: &Row) -> Result<DeadLetter> {
    Ok(DeadLetter {
        listed: ListedDeadLetter {
            id: row.get(0),
            message: MessageId(row.get(1)),
            endpoint: row.get(2),
            status: named(row, 3)?,
            reason: row.get(4),
            died_at: time(row, 5),
            attempt_count: count(row, 6),
            last_error: optional_text(row, 7),
            content_type: text(row, 10),
            ordering_key: optional_text(row, 12),
            event_type: optional_text(row, 13),
            created_at: time(row, 14),
            priority: row.get::<_, i16>(15) as u8,
            idempotency_key: optional_text(row, 17),
            correlation_id: row.get(18),
            scheduled_at: optional_time(row, 19),
            expires_at: optional_time(row, 20),
        },
        errors: row.try_get::<_, Json<Vec<AttemptError>>>(8).map(|errors| errors.0).unwrap_or_default(),
        payload: payload(row, 9),
        headers: headers(row, 11),
        options: object(row, 16),
    })
}

pub(super) async fn summary(shared: &SharedState) -> Result<Vec<DlqSummary>> {
    let summary = "SELECT endpoint, failed, redriven, discarded, oldest_failed, newest_failed, reasons
                   FROM postrider.dlq_summary()";
    let rows = shared.prompt.query(summary, &[]).await?;
    let of_endpoint = |row: &Row| DlqSummary {
        endpoint: row.get(0),
        failed: big_count(row, 1),
        redriven: big_count(row, 2),
        discarded: big_count(row, 3),
        oldest_failed: row.get(4),
        newest_failed: row.get(5),
        reasons: row.get::<_, Json<BTreeMap<String, u64>>>(6).0,
    };
    Ok(rows.iter().map(of_endpoint).collect())
}

/// The letters of a redrive, fixed at its start: ids, each with the group of its ordering key.
struct RedriveSelection {
    letters: Vec<(i64, i64)>,
    selection: Value,
    due_at: Timestamp,
}

/// How far a redrive has come. Its one log entry is written with the first step and amended.
#[derive(Default)]
struct RedriveDone {
    looked_at: usize,
    redriven: u64,
    event: Option<i64>,
}

pub(super) async fn redrive(shared: &SharedState, selection: Redrive) -> Result<u64> {
    let plan = RedriveSelection::new(shared, selection).await?;
    let mut progress = RedriveDone::default();
    while progress.looked_at < plan.letters.len() {
        plan.step(shared, &mut progress).await?;
    }
    Ok(progress.redriven)
}

impl RedriveSelection {
    async fn new(shared: &SharedState, selection: Redrive) -> Result<Self> {
        let words = json!(selection);
        let filter = match selection {
            Redrive::One(id) => {
                // For the error that says why this one cannot be redriven.
                shared.pool.call("SELECT postrider._check_redrivable($1)", &[&id]).await?;
                DlqFilter { id: Some(id), ..DlqFilter::default() }
            }
            Redrive::Endpoint(name) => DlqFilter { endpoint: Some(name), ..DlqFilter::default() },
            Redrive::All => DlqFilter::default(),
            Redrive::Matching(filter) => filter,
        };
        let mut matching = Matching::new(shared, &filter).await?;
        let limit = matching.parameter(if filter.limit == 0 { i64::MAX } else { filter.limit as i64 });
        let plan = format!(
            "SELECT l.id, CASE WHEN l.ordering_key IS NULL THEN l.message_id
                            ELSE min(l.message_id) OVER (PARTITION BY l.key_scope, l.ordering_key) END AS key_group
             FROM (SELECT d.id, d.key_scope, d.ordering_key, d.message_id FROM postrider.dlq d
                   WHERE {REDRIVABLE} AND {} ORDER BY d.message_id, d.id LIMIT {limit}) AS l
             ORDER BY key_group, l.message_id, l.id",
            matching.conditions
        );
        let rows = shared.prompt.query(&plan, &matching.parameters()).await?;
        let letters = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let due_at = shared.prompt.query_one("SELECT postrider._now()", &[]).await?.get(0);
        Ok(Self { letters, selection: words, due_at })
    }

    /// Whole keys: if half of a key's letters were put back, messages that were sent later would overtake the other half.
    fn next_step(&self, looked_at: usize) -> Vec<i64> {
        let left = &self.letters[looked_at..];
        let is_end = |at: &usize| *at >= STEP_LETTERS && left[*at].1 != left[at - 1].1;
        let end = (1..left.len()).find(is_end).unwrap_or(left.len());
        left[..end].iter().map(|(id, _)| *id).collect()
    }

    async fn step(&self, shared: &SharedState, progress: &mut RedriveDone) -> Result<()> {
        let ids = self.next_step(progress.looked_at);
        let redrive_them = async |client: &mut ClientWrapper| {
            let transaction = client.transaction().await.map_err(store_error)?;
            if progress.looked_at == 0 {
                let all: Vec<i64> = self.letters.iter().map(|(id, _)| *id).collect();
                let room = "SELECT postrider._redrive_room($1)";
                transaction.query(room, &[&all]).await.map_err(store_error)?;
            }
            let step = "SELECT postrider._take_letters('redrive', $1, $2)";
            let row = transaction.query_one(step, &[&ids, &self.due_at]).await.map_err(store_error)?;
            let redriven = progress.redriven + u64::from(count(&row, 0));
            let event = self.log(&transaction, progress.event, redriven).await?;
            transaction.commit().await.map_err(store_error)?;
            *progress = RedriveDone { looked_at: progress.looked_at + ids.len(), redriven, event };
            Ok(())
        };
        shared.pool.with(redrive_them).await
    }

    async fn log(
        &self,
        transaction: &Transaction<'_>,
        event: Option<i64>,
        redriven: u64,
    ) -> Result<Option<i64>> {
        let detail = Json(json!({ "messages": redriven, "selection": self.selection }));
        let row = match event {
            None if redriven == 0 => return Ok(None),
            None => {
                transaction.query_one("SELECT postrider._log_event('redrive', NULL, $1)", &[&detail]).await
            }
            Some(event) => {
                let amend = "UPDATE postrider.event_log SET detail = $2 WHERE id = $1 RETURNING id";
                transaction.query_one(amend, &[&event, &detail]).await
            }
        };
        row.map(|row| Some(row.get(0))).map_err(store_error)
    }
}
