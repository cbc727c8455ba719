//! Settle: one statement for many settlements, which also deletes or shortens the rows of their claims.

use std::borrow::Cow;
use std::collections::HashMap;

use jiff::Timestamp;
use postgres_types::{FromSql, Json, ToSql};
use serde::Deserialize;
use tokio_postgres::{Error, Row};

use super::cursors::{Cursors, Position};
use super::errors::store_error;
use super::row::{KnownName, Moment, Span, value};
use super::{SharedState, settle_apart};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{NodeId, State};
use crate::store::{AttemptRecord, Effect, End, Result, Settled, Settlement};
use crate::verdict::{Class, Verdict};

/// What another transaction has locked, or the server refuses, is left for later.
pub(super) async fn settle(shared: &SharedState, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
    if settlements.is_empty() {
        return Ok(Vec::new());
    }
    let note_returns = || {
        let back = settlements.iter().filter(|settlement| !is_delivered(settlement));
        back.for_each(|settlement| shared.cursors.returned(settlement.endpoint));
    };
    // For a claim that is pipelined behind this settle.
    note_returns();
    let all: Vec<&Settlement> = settlements.iter().collect();
    let wary = shared.last_blocked.is_recent();
    let mut asked = ask(shared, &all, wary).await;
    if matches!(asked, Err(SettleRefusal::Held)) {
        shared.last_blocked.note();
        if !wary {
            asked = ask(shared, &all, true).await;
        }
    }
    let settled = match asked {
        Ok(settled) => settled,
        // A whole table may be locked, which not all settlements need.
        Err(SettleRefusal::Held) => settle_apart::by_kind(shared, &all).await?,
        Err(SettleRefusal::Content(_)) => settle_apart::in_halves(shared, &all).await?,
        Err(SettleRefusal::Store(error)) => return Err(error),
    };
    // And for a claim that ran beside it and did not see them.
    note_returns();
    Ok(settled)
}

/// Why the server settled none of a batch.
pub(super) enum SettleRefusal {
    /// Another transaction has locked something that one of them needs.
    Held,
    /// The server refuses one of them.
    Content(StoreError),
    /// The error is not about the settlements.
    Store(StoreError),
}

impl From<Error> for SettleRefusal {
    fn from(error: Error) -> Self {
        let class = error.code().and_then(|code| code.code().get(..2));
        match class {
            Some("40" | "55") => Self::Held,
            Some("22" | "23" | "54" | "P0" | "XX") => Self::Content(store_error(error)),
            _ => Self::Store(store_error(error)),
        }
    }
}

/// Settles in one transaction. All of them, unless `wary`: then nothing is waited for, and what another transaction has locked is
/// left for later.
pub(super) async fn ask(
    shared: &SharedState,
    settlements: &[&Settlement],
    wary: bool,
) -> Result<Vec<Settled>, SettleRefusal> {
    let node = settlements.first().map_or(NodeId(0), |first| first.fence.node);
    let closing = shared.batches.settling(node, settlements);
    let mut sorted = SortedSettlements::default();
    settlements.iter().enumerate().for_each(|(n, settlement)| sorted.put(node, n, settlement));
    let asked = async {
        let connections = shared.exchange.connections().await.map_err(SettleRefusal::Store)?;
        let left = closing.left.as_ref().map(Json);
        let with: [&(dyn ToSql + Sync); 6] =
            [&node.0, &sorted.delivered, &sorted.others, &closing.finished, &left, &wary];
        let row = connections
            .in_turn
            .client
            .query_one(&connections.settle, &with)
            .await
            .map_err(SettleRefusal::from)?;
        SettleAnswer::of(&row).map_err(SettleRefusal::Store)
    };
    let answer = asked.await.inspect_err(|_| shared.batches.reopen(settlements))?;
    answer.note_unblocked(&shared.cursors);
    let settled = sorted.understand(settlements, &answer);
    let (mut done, mut left) = (Vec::with_capacity(settlements.len()), Vec::new());
    for (settlement, settled) in settlements.iter().zip(&settled) {
        let list = if settled.effect == Effect::Later { &mut left } else { &mut done };
        list.push(*settlement);
    }
    shared.batches.reopen(&left);
    shared.batches.settled(node, &done, &closing);
    Ok(settled)
}

/// What `postrider._settle` returns.
struct SettleAnswer {
    /// Those that were simply delivered and are completed now. The bulk, so nothing but their ids is sent.
    completed: Vec<i64>,
    /// One for each of the others, in their order, then one for each delivered message that is not in `completed`.
    settled: Vec<SqlSettled>,
    /// For each endpoint the first message that completed ones made ready.
    unblocked: Vec<SqlUnblocked>,
}

impl SettleAnswer {
    fn of(row: &Row) -> Result<Self> {
        Ok(Self { completed: value(row, 0)?, settled: value(row, 1)?, unblocked: value(row, 2)? })
    }

    /// Unblocked messages keep their place in the queue, which may be before a cursor.
    fn note_unblocked(&self, cursors: &Cursors) {
        for first in &self.unblocked {
            let SqlUnblocked { endpoint_id, priority, due_at: Moment(due_at), id, .. } = *first;
            cursors.appeared(EndpointId(endpoint_id), Position { priority, due_at, id });
        }
        let unblocked = self.settled.iter().filter_map(|settled| settled.unblocked);
        unblocked.for_each(|endpoint| cursors.returned(EndpointId(endpoint)));
    }
}

/// `postrider._settled`. The driver refuses a type with other fields, so it may change only with the schema version.
#[derive(Debug, FromSql)]
#[postgres(name = "_settled")]
struct SqlSettled {
    id: i64,
    effect: KnownName<EffectName>,
    state: Option<KnownName<State>>,
    unblocked: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EffectName {
    Applied,
    /// The message had left the queue before.
    Recorded,
    Noted,
    Fenced,
    Later,
}

/// `postrider._unblocked`. Like [`SqlSettled`], frozen per schema version.
#[derive(Clone, Copy, Debug, FromSql)]
#[postgres(name = "_unblocked")]
struct SqlUnblocked {
    completed_id: i64,
    endpoint_id: i64,
    priority: i16,
    due_at: Moment,
    id: i64,
}

/// Simple deliveries and all others, each with the index of its settlement.
#[derive(Default)]
struct SortedSettlements<'a> {
    delivered: SqlDelivered,
    delivered_at: HashMap<i64, usize>,
    others: Vec<SqlSettlement<'a>>,
    others_at: Vec<usize>,
}

impl<'a> SortedSettlements<'a> {
    fn put(&mut self, node: NodeId, n: usize, settlement: &'a Settlement) {
        match &settlement.end {
            End::Attempted { verdict: Verdict::Complete, record }
                if record.response_body.is_none()
                    && settlement.hold_endpoint_until.is_none()
                    && settlement.fence.node == node
                    && !self.delivered_at.contains_key(&settlement.id.0) =>
            {
                self.delivered_at.insert(settlement.id.0, n);
                self.delivered.push(settlement, record);
            }
            _ => {
                self.others_at.push(n);
                self.others.push(SqlSettlement::of(settlement));
            }
        }
    }

    /// A settlement that the answer does not name is made again.
    fn understand(&self, settlements: &[&Settlement], answer: &SettleAnswer) -> Vec<Settled> {
        let mut all: Vec<Settled> = settlements.iter().map(|settlement| later(settlement)).collect();
        for n in answer.completed.iter().filter_map(|id| self.delivered_at.get(id)) {
            all[*n].effect = Effect::Applied(State::Completed);
        }
        for first in &answer.unblocked {
            if let Some(n) = self.delivered_at.get(&first.completed_id) {
                all[*n].unblocked = Some(EndpointId(first.endpoint_id));
            }
        }
        let (others, delivered) = answer.settled.split_at(self.others_at.len().min(answer.settled.len()));
        let others = others.iter().zip(&self.others_at);
        let delivered =
            delivered.iter().filter_map(|settled| Some((settled, self.delivered_at.get(&settled.id)?)));
        for (settled, n) in others.chain(delivered) {
            all[*n].effect = settled.effect();
            all[*n].unblocked = settled.unblocked.map(EndpointId);
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

impl SqlSettled {
    fn effect(&self) -> Effect {
        match (self.effect.0, &self.state) {
            (EffectName::Applied | EffectName::Recorded, Some(KnownName(state))) => Effect::Applied(*state),
            (EffectName::Noted, _) => Effect::Noted,
            (EffectName::Fenced, _) => Effect::Fenced,
            (EffectName::Applied | EffectName::Recorded, None) | (EffectName::Later, _) => Effect::Later,
        }
    }
}

/// `postrider._delivered`.
#[derive(Debug, Default, ToSql)]
#[postgres(name = "_delivered")]
struct SqlDelivered {
    /// Their batches, each once.
    claims: Vec<i64>,
    ids: Vec<i64>,
    batches: Vec<i64>,
    numbers: Vec<i32>,
    started_at: Vec<Timestamp>,
    durations: Vec<Span>,
    response_statuses: Vec<Option<i32>>,
}

impl SqlDelivered {
    fn push(&mut self, settlement: &Settlement, record: &AttemptRecord) {
        // There are few batches, and the one looked for is mostly the last.
        if !self.claims.iter().rev().any(|batch| *batch == settlement.fence.batch) {
            self.claims.push(settlement.fence.batch);
        }
        self.ids.push(settlement.id.0);
        self.batches.push(settlement.fence.batch);
        self.numbers.push(record.number as i32);
        self.started_at.push(record.started_at);
        self.durations.push(Span(record.duration));
        self.response_statuses.push(record.response_status.map(i32::from));
    }
}

/// `postrider._settlement`.
#[derive(Debug, ToSql)]
#[postgres(name = "_settlement")]
struct SqlSettlement<'a> {
    id: i64,
    endpoint_id: i64,
    node_id: i64,
    batch: i64,
    ended: &'static str,
    due_at: Option<Timestamp>,
    reason: Option<&'a str>,
    disable_endpoint: bool,
    hold_until: Option<Timestamp>,
    attempt: Option<SqlAttempt<'a>>,
}

/// `postrider._attempt`.
#[derive(Debug, ToSql)]
#[postgres(name = "_attempt")]
struct SqlAttempt<'a> {
    number: i32,
    node_id: i64,
    started_at: Timestamp,
    duration: Span,
    outcome: &'static str,
    class: Option<&'static str>,
    error: Option<Cow<'a, str>>,
    response_status: Option<i32>,
    response_body: Option<&'a [u8]>,
}

impl<'a> SqlSettlement<'a> {
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
                ended.attempt = Some(SqlAttempt::of(record));
                ended.decide(verdict);
            }
        }
        ended
    }

    fn decide(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Complete => self.ended = "complete",
            Verdict::Expire => self.ended = "expire",
            Verdict::Retry { due_at, .. } => (self.ended, self.due_at) = ("retry", Some(*due_at)),
            Verdict::Spare { due_at } => (self.ended, self.due_at) = ("spare", Some(*due_at)),
            Verdict::Dead { reason, disable_endpoint } => {
                (self.ended, self.reason) = ("dead", Some(reason.as_str()));
                self.disable_endpoint = *disable_endpoint;
            }
        }
    }
}

impl<'a> SqlAttempt<'a> {
    fn of(record: &'a AttemptRecord) -> Self {
        Self {
            number: record.number as i32,
            node_id: record.node.0,
            started_at: record.started_at,
            duration: Span(record.duration),
            outcome: record.outcome.as_str(),
            class: record.class.map(Class::as_str),
            error: record.error.as_deref().map(without_nul),
            response_status: record.response_status.map(i32::from),
            response_body: record.response_body.as_deref(),
        }
    }
}

/// PostgreSQL stores every character but U+0000. A receiver's answer must never keep a message from being settled.
pub(super) fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::message::{Fence, MessageId};
    use crate::store::AttemptOutcome;

    fn delivered(id: i64) -> Settlement {
        let record = AttemptRecord {
            number: 1,
            node: NodeId(1),
            started_at: Timestamp::UNIX_EPOCH,
            duration: Duration::ZERO,
            outcome: AttemptOutcome::Delivered,
            class: None,
            error: None,
            response_status: None,
            response_body: None,
        };
        Settlement {
            id: MessageId(id),
            endpoint: EndpointId(1),
            fence: Fence { node: NodeId(1), batch: 1 },
            end: End::Attempted { verdict: Verdict::Complete, record },
            hold_endpoint_until: None,
        }
    }

    #[test]
    fn a_settlement_that_the_answer_does_not_name_is_made_again() {
        let settlements = [delivered(1), delivered(2)];
        let all: Vec<&Settlement> = settlements.iter().collect();
        let mut sorted = SortedSettlements::default();
        all.iter().enumerate().for_each(|(n, settlement)| sorted.put(NodeId(1), n, settlement));
        let answer = SettleAnswer { completed: vec![2], settled: Vec::new(), unblocked: Vec::new() };
        let effects = sorted.understand(&all, &answer).into_iter().map(|settled| settled.effect);
        assert_eq!(effects.collect::<Vec<_>>(), [Effect::Later, Effect::Applied(State::Completed)]);
    }
}
