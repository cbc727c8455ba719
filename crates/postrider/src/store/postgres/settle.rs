//! Settle: one statement for many settlements, and what it says about the rows of their claims.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::Timestamp;
use postgres_types::{Json, ToSql};
use tokio_postgres::Row;

use super::cursors::{Cursors, Position};
use super::errors::store_error;
use super::row::Span;
use super::{Shared, settle_apart};
use crate::endpoint::EndpointId;
use crate::message::{MessageId, NodeId, State};
use crate::store::{AttemptRecord, Effect, End, Result, Settled, Settlement};
use crate::verdict::{Class, Verdict};

pub(super) async fn settle(shared: &Shared, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
    let Some(first) = settlements.first() else { return Ok(Vec::new()) };
    let node = first.fence.node;
    let note_returns = || {
        let back = settlements.iter().filter(|settlement| may_come_back(settlement));
        back.for_each(|settlement| shared.cursors.returned(settlement.endpoint));
    };
    // Before a claim that is asked for in the same breath.
    note_returns();
    let closing = shared.batches.settling(node, &settlements);
    let mut sorted = Sorted::default();
    settlements.iter().enumerate().for_each(|(n, settlement)| sorted.put(node, n, settlement));
    let answer = async {
        let lines = shared.exchange.lines().await?;
        let left = closing.left.as_ref().map(Json);
        let client = &lines.in_turn.client;
        let asked = client
            .query(&lines.settle, &[&node.0, &sorted.delivered, &sorted.others, &closing.finished, &left])
            .await;
        match asked {
            Ok(rows) => Ok(Some(rows)),
            Err(refused) if settle_apart::may_help(&refused) => Ok(None),
            Err(error) => Err(store_error(error)),
        }
    };
    let answered = answer.await.inspect_err(|_| shared.batches.reopen(&settlements))?;
    let settled = match answered {
        Some(rows) => {
            shared.batches.settled(&settlements);
            rows.iter().for_each(|row| note_unblocked(&shared.cursors, row));
            sorted.understand(&settlements, &rows)
        }
        None => settle_apart::settle(shared, &settlements).await,
    };
    // And for one that was under way and did not see them.
    note_returns();
    Ok(settled)
}

/// The next one of a key stands in its old place, which is told where many were let go at once.
pub(super) fn note_unblocked(cursors: &Cursors, row: &Row) {
    let Some(endpoint) = row.get::<_, Option<i64>>(3).map(EndpointId) else { return };
    match (row.get(4), row.get(5), row.get(6)) {
        (Some(priority), Some(due_at), Some(id)) => {
            cursors.appeared(endpoint, Position { priority, due_at, id });
        }
        _ => cursors.returned(endpoint),
    }
}

/// What was simply delivered, and everything else. Each knows where its settlement stands.
#[derive(Default)]
pub(super) struct Sorted<'a> {
    pub(super) delivered: Delivered,
    delivered_at: HashMap<i64, usize>,
    pub(super) others: Vec<EndedClaim<'a>>,
    others_at: Vec<usize>,
}

impl<'a> Sorted<'a> {
    pub(super) fn put(&mut self, node: NodeId, n: usize, settlement: &'a Settlement) {
        match &settlement.end {
            End::Attempted { verdict: Verdict::Complete, record }
                if record.body.is_none()
                    && settlement.hold_endpoint_until.is_none()
                    && settlement.fence.node == node
                    && !self.delivered_at.contains_key(&settlement.id.0) =>
            {
                self.delivered_at.insert(settlement.id.0, n);
                self.delivered.push(settlement, record);
            }
            _ => {
                self.others_at.push(n);
                self.others.push(EndedClaim::of(settlement));
            }
        }
    }

    /// Of what was delivered the answer says only what is worth saying.
    pub(super) fn understand(&self, settlements: &[Settlement], answered: &[Row]) -> Vec<Settled> {
        let completed = |settlement: &Settlement| Settled {
            id: settlement.id,
            endpoint: settlement.endpoint,
            effect: Effect::Applied(State::Completed),
            unblocked: None,
        };
        let mut all: Vec<Settled> = settlements.iter().map(completed).collect();
        let (others, delivered) = answered.split_at(self.others_at.len().min(answered.len()));
        for (row, n) in others.iter().zip(&self.others_at) {
            all[*n] = settled(&settlements[*n], row);
        }
        for row in delivered {
            if let Some(n) = self.delivered_at.get(&row.get::<_, i64>(0)) {
                all[*n] = settled(&settlements[*n], row);
            }
        }
        all
    }
}

fn may_come_back(settlement: &Settlement) -> bool {
    !matches!(settlement.end, End::Attempted { verdict: Verdict::Complete, .. })
}

fn settled(settlement: &Settlement, row: &Row) -> Settled {
    let effect = match (row.get::<_, &str>(1), row.get::<_, Option<&str>>(2)) {
        ("applied", Some(state)) => Effect::Applied(state_named(state)),
        ("noted", _) => Effect::Noted,
        _ => Effect::Fenced,
    };
    Settled {
        id: MessageId(row.get(0)),
        endpoint: settlement.endpoint,
        effect,
        unblocked: row.get::<_, Option<i64>>(3).map(EndpointId),
    }
}

pub(super) fn state_named(name: &str) -> State {
    State::from_name(name).unwrap_or(State::Pending)
}

/// `postrider._delivered`.
#[derive(Debug, Default, ToSql)]
#[postgres(name = "_delivered")]
pub(super) struct Delivered {
    /// Their batches, each once.
    claims: Vec<i64>,
    ids: Vec<i64>,
    batches: Vec<i64>,
    numbers: Vec<i32>,
    started_at: Vec<Timestamp>,
    durations: Vec<Span>,
    statuses: Vec<Option<i32>>,
}

impl Delivered {
    fn push(&mut self, settlement: &Settlement, record: &AttemptRecord) {
        // There are few, and the one looked for is mostly the last.
        if !self.claims.iter().rev().any(|batch| *batch == settlement.fence.batch) {
            self.claims.push(settlement.fence.batch);
        }
        self.ids.push(settlement.id.0);
        self.batches.push(settlement.fence.batch);
        self.numbers.push(record.number as i32);
        self.started_at.push(record.started_at);
        self.durations.push(Span(record.duration));
        self.statuses.push(record.status.map(i32::from));
    }
}

/// `postrider._settlement`.
#[derive(Debug, ToSql)]
#[postgres(name = "_settlement")]
pub(super) struct EndedClaim<'a> {
    id: i64,
    endpoint_id: i64,
    node_id: i64,
    batch: i64,
    ended: &'static str,
    due_at: Option<Timestamp>,
    reason: Option<&'static str>,
    disable_endpoint: bool,
    hold_until: Option<Timestamp>,
    attempt: Option<Attempt<'a>>,
}

/// `postrider._attempt`.
#[derive(Debug, ToSql)]
#[postgres(name = "_attempt")]
struct Attempt<'a> {
    number: i32,
    node_id: i64,
    started_at: Timestamp,
    duration: Span,
    outcome: &'static str,
    class: Option<&'static str>,
    error: Option<Cow<'a, str>>,
    status: Option<i32>,
    body: Option<&'a [u8]>,
}

impl<'a> EndedClaim<'a> {
    fn of(settlement: &'a Settlement) -> Self {
        let mut ended = Self {
            id: settlement.id.0,
            endpoint_id: settlement.endpoint.0,
            node_id: settlement.fence.node.0,
            batch: settlement.fence.batch,
            ended: "released",
            due_at: None,
            reason: None,
            disable_endpoint: false,
            hold_until: settlement.hold_endpoint_until,
            attempt: None,
        };
        match &settlement.end {
            End::Released => {}
            End::ExpiredUnstarted => ended.ended = "expired_unstarted",
            End::Attempted { verdict, record } => {
                ended.attempt = Some(Attempt::of(record));
                ended.decide(verdict);
            }
        }
        ended
    }

    fn decide(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Complete => self.ended = "complete",
            Verdict::Expire => self.ended = "expire",
            Verdict::Retry { due_at } => (self.ended, self.due_at) = ("retry", Some(*due_at)),
            Verdict::Spare { due_at } => (self.ended, self.due_at) = ("spare", Some(*due_at)),
            Verdict::Dead { reason, disable_endpoint } => {
                (self.ended, self.reason) = ("dead", Some(reason.as_str()));
                self.disable_endpoint = *disable_endpoint;
            }
        }
    }
}

impl<'a> Attempt<'a> {
    fn of(record: &'a AttemptRecord) -> Self {
        Self {
            number: record.number as i32,
            node_id: record.node.0,
            started_at: record.started_at,
            duration: Span(record.duration),
            outcome: record.outcome.as_str(),
            class: record.class.map(Class::as_str),
            error: record.error.as_deref().map(without_nul),
            status: record.status.map(i32::from),
            body: record.body.as_deref(),
        }
    }
}

/// PostgreSQL keeps every character but U+0000. What a receiver says must never keep a message from being settled.
fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}
