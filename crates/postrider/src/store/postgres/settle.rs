//! Settle: one statement for many settlements, and what it says about the rows of their claims.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::Timestamp;
use postgres_types::{Json, ToSql};
use tokio_postgres::{Error, Row};

use super::cursors::{Cursors, Position};
use super::errors::store_error;
use super::row::Span;
use super::{Shared, settle_apart};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{MessageId, NodeId, State};
use crate::store::{AttemptRecord, Effect, End, Result, Settled, Settlement};
use crate::verdict::{Class, Verdict};

/// What somebody's open transaction holds, or the server cannot take, is left for later.
pub(super) async fn settle(shared: &Shared, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    let note_returns = || {
        let back = settlements.iter().filter(|settlement| may_come_back(settlement));
        back.for_each(|settlement| shared.cursors.returned(settlement.endpoint));
    };
    // Before a claim that is asked for in the same breath.
    note_returns();
    let all: Vec<&Settlement> = settlements.iter().collect();
    let wary = shared.in_the_way.anybody();
    let mut asked = ask(shared, &all, wary).await;
    if matches!(asked, Err(Refusal::Held)) {
        shared.in_the_way.met();
        if !wary {
            asked = ask(shared, &all, true).await;
        }
    }
    let settled = match asked {
        Ok(settled) => settled,
        // By somebody who has locked a whole table, which not all of them may need.
        Err(Refusal::Held) => settle_apart::by_kind(shared, &all).await?,
        Err(Refusal::Content(_)) => settle_apart::in_halves(shared, &all).await?,
        Err(Refusal::Store(error)) => return Err(error),
    };
    // And for one that was under way and did not see them.
    note_returns();
    Ok(settled)
}

/// Why the server settled nothing of what it was asked to settle together.
pub(super) enum Refusal {
    /// Somebody's transaction is in the way of one of them.
    Held,
    /// It cannot take one of them.
    Content(StoreError),
    /// It is not the question.
    Store(StoreError),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let class = error.code().and_then(|code| code.code().get(..2));
        match class {
            Some("40" | "55") => Self::Held,
            Some("22" | "23" | "54" | "P0" | "XX") => Self::Content(store_error(error)),
            _ => Self::Store(store_error(error)),
        }
    }
}

/// In one transaction; all of them, unless one is wary: then what somebody else holds is left for later, and nobody is waited
/// for.
pub(super) async fn ask(
    shared: &Shared,
    settlements: &[&Settlement],
    wary: bool,
) -> Result<Vec<Settled>, Refusal> {
    let node = settlements.first().map_or(NodeId(0), |first| first.fence.node);
    let closing = shared.batches.settling(node, settlements);
    let mut sorted = Sorted::default();
    settlements.iter().enumerate().for_each(|(n, settlement)| sorted.put(node, n, settlement));
    let asked = async {
        let lines = shared.exchange.lines().await.map_err(Refusal::Store)?;
        let left = closing.left.as_ref().map(Json);
        let with: [&(dyn ToSql + Sync); 6] =
            [&node.0, &sorted.delivered, &sorted.others, &closing.finished, &left, &wary];
        lines.in_turn.client.query(&lines.settle, &with).await.map_err(Refusal::from)
    };
    let rows = asked.await.inspect_err(|_| shared.batches.reopen(settlements))?;
    rows.iter().for_each(|row| note_unblocked(&shared.cursors, row));
    let settled = sorted.understand(settlements, &rows);
    let (mut done, mut left) = (Vec::with_capacity(settlements.len()), Vec::new());
    for (settlement, settled) in settlements.iter().zip(&settled) {
        let list = if settled.effect == Effect::Later { &mut left } else { &mut done };
        list.push(*settlement);
    }
    shared.batches.reopen(&left);
    shared.batches.settled(node, &done, &closing);
    Ok(settled)
}

/// The next one of a key stands in its old place, which is told where many were let go at once.
fn note_unblocked(cursors: &Cursors, row: &Row) {
    let Some(endpoint) = row.get::<_, Option<i64>>(3).map(EndpointId) else { return };
    // One whose due time cannot be read is looked for like one that came back.
    match (row.get(4), row.try_get(5).unwrap_or(None), row.get(6)) {
        (Some(priority), Some(due_at), Some(id)) => {
            cursors.appeared(endpoint, Position { priority, due_at, id });
        }
        _ => cursors.returned(endpoint),
    }
}

/// What was simply delivered, and everything else. Each knows where its settlement stands.
#[derive(Default)]
struct Sorted<'a> {
    delivered: Delivered,
    delivered_at: HashMap<i64, usize>,
    others: Vec<EndedClaim<'a>>,
    others_at: Vec<usize>,
}

impl<'a> Sorted<'a> {
    fn put(&mut self, node: NodeId, n: usize, settlement: &'a Settlement) {
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
    fn understand(&self, settlements: &[&Settlement], answered: &[Row]) -> Vec<Settled> {
        let completed = |settlement: &&Settlement| Settled {
            id: settlement.id,
            endpoint: settlement.endpoint,
            effect: Effect::Applied(State::Completed),
            unblocked: None,
        };
        let mut all: Vec<Settled> = settlements.iter().map(completed).collect();
        let (others, delivered) = answered.split_at(self.others_at.len().min(answered.len()));
        for (row, n) in others.iter().zip(&self.others_at) {
            all[*n] = settled(settlements[*n], row);
        }
        for row in delivered {
            if let Some(n) = self.delivered_at.get(&row.get::<_, i64>(0)) {
                all[*n] = settled(settlements[*n], row);
            }
        }
        all
    }
}

pub(super) fn later(settlement: &Settlement) -> Settled {
    Settled { id: settlement.id, endpoint: settlement.endpoint, effect: Effect::Later, unblocked: None }
}

pub(super) fn is_delivered(settlement: &Settlement) -> bool {
    matches!(settlement.end, End::Attempted { verdict: Verdict::Complete, .. })
}

fn may_come_back(settlement: &Settlement) -> bool {
    !is_delivered(settlement)
}

fn settled(settlement: &Settlement, row: &Row) -> Settled {
    let effect = match (row.get::<_, &str>(1), row.get::<_, Option<&str>>(2)) {
        ("applied" | "recorded", Some(state)) => Effect::Applied(state_named(state)),
        ("noted", _) => Effect::Noted,
        ("later", _) => Effect::Later,
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
struct Delivered {
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
struct EndedClaim<'a> {
    id: i64,
    endpoint_id: i64,
    node_id: i64,
    batch: i64,
    ended: &'static str,
    due_at: Option<Timestamp>,
    reason: Option<&'a str>,
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
            End::Unreadable { error } => (ended.ended, ended.reason) = ("unreadable", Some(error.as_str())),
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
pub(super) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}
