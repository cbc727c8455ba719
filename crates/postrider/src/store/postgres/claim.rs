//! Claim: one statement for many endpoints.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use jiff::Timestamp;
use postgres_types::Json;
use serde::Deserialize;
use tokio_postgres::Row;

use super::cursors::{Position, Start};
use super::errors::store_error;
use super::row::{LenientRow, count, object, optional_named, optional_time, time};
use super::{SharedState, settle};
use crate::endpoint::EndpointId;
use crate::message::{Claim, Fence, Message, MessageId, NodeId, State};
use crate::store::{
    Arrival, ClaimRequest, Claimed, Effect, End, Expired, NextDue, Pick, Result, Settlement, Suspect,
    Unreadable, Waiting, Want,
};

pub(super) async fn claim(shared: &SharedState, request: ClaimRequest) -> Result<Claimed> {
    let fence = Fence { node: request.node, batch: request.batch };
    let asked = SortedWants::new(shared, request);
    // Until the answer is here, `give_back_forgotten` must not take these messages for forgotten.
    let _under_way = shared.under_way.begin(fence);
    let answered = asked.send(shared, fence).await?;
    let mut claimed = asked.understand(shared, fence, &answered)?;
    shared.claimed_lately.fetch_add(claimed.claims.len(), Relaxed);
    let unreadable = claimed.unreadable.iter().map(|unreadable| unreadable.id.0);
    shared.batches.claimed(fence, claimed.claims.iter().map(|claim| claim.message.id.0).chain(unreadable));
    if !claimed.unreadable.is_empty() {
        claimed.unreadable = set_aside(shared, fence, claimed.unreadable).await;
    }
    Ok(claimed)
}

/// Moves claimed messages that no node can read to the DLQ, and returns those that were moved. The rest goes back to the queue, and
/// the next claim meets them again.
async fn set_aside(shared: &SharedState, fence: Fence, unreadable: Vec<Unreadable>) -> Vec<Unreadable> {
    let settlement = |unreadable: &Unreadable| Settlement {
        id: unreadable.id,
        endpoint: unreadable.endpoint,
        fence,
        end: End::Unreadable { error: unreadable.error.clone() },
        hold_endpoint_until: None,
    };
    let settlements: Vec<Settlement> = unreadable.iter().map(settlement).collect();
    let settled = settle::settle(shared, settlements.clone()).await.unwrap_or_else(|error| {
        tracing::warn!(%error, "could not move unreadable messages to the DLQ; retrying");
        settlements.iter().map(settle::later).collect()
    });
    let (mut aside, mut left) = (Vec::new(), Vec::new());
    for ((unreadable, settlement), settled) in unreadable.into_iter().zip(&settlements).zip(settled) {
        if let Some(endpoint) = settled.unblocked {
            shared.listeners.tell(|| Arrival::Pending(endpoint));
        }
        match settled.effect {
            Effect::Applied(State::Dead) => aside.push(unreadable),
            Effect::Later => left.push(settlement),
            Effect::Applied(_) | Effect::Fenced | Effect::Noted => {}
        }
    }
    shared.batches.give_up(&left);
    aside
}

/// Claims whose answer is not here yet.
#[derive(Default)]
pub(super) struct UnderWay(Mutex<HashSet<Fence>>);

struct Asking<'a> {
    under_way: &'a UnderWay,
    fence: Fence,
}

impl UnderWay {
    fn begin(&self, fence: Fence) -> Asking<'_> {
        self.lock().insert(fence);
        Asking { under_way: self, fence }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<Fence>> {
        self.0.lock().expect("no panic while holding the list")
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.under_way.lock().remove(&self.fence);
    }
}

/// Releases claims of this node that no task works on: the answer was lost with its connection, or a crash of the database lost
/// the settlement, which commits asynchronously.
pub(super) async fn give_back_forgotten(shared: &SharedState, node: NodeId) -> Result<()> {
    let held = "SELECT c.batch, q.id, q.endpoint_id
                FROM postrider._current_claims() c JOIN postrider.queue q ON q.id = ANY (c.ids) WHERE c.node_id = $1";
    // The answer may still have what is settled while the query runs, so what was held before it counts too.
    let before = LocalClaims::of(shared);
    let rows = shared.own.query(held, &[&node.0]).await?;
    let forgotten: Vec<Settlement> = {
        let now = LocalClaims::of(shared);
        let released = |row: &Row| Settlement {
            id: MessageId(row.get(1)),
            endpoint: EndpointId(row.get(2)),
            fence: Fence { node, batch: row.get(0) },
            end: End::Released,
            hold_endpoint_until: None,
        };
        let is_forgotten = |settlement: &Settlement| !before.has(settlement) && !now.has(settlement);
        rows.iter().map(released).filter(is_forgotten).collect()
    };
    if forgotten.is_empty() {
        return Ok(());
    }
    tracing::warn!(
        messages = forgotten.len(),
        "releasing claims that no task of this node works on; the database lost the answer or the settlement"
    );
    let endpoints: HashSet<EndpointId> = forgotten.iter().map(|settlement| settlement.endpoint).collect();
    settle::settle(shared, forgotten).await?;
    endpoints.into_iter().for_each(|endpoint| shared.listeners.tell(|| Arrival::Pending(endpoint)));
    Ok(())
}

/// What this process is claiming, works on or is settling at some moment.
struct LocalClaims {
    asked: HashSet<Fence>,
    held: HashSet<(Fence, i64)>,
}

impl LocalClaims {
    fn of(shared: &SharedState) -> Self {
        // In this order: a claim is held before it stops being asked for.
        let asked = shared.under_way.lock().clone();
        Self { asked, held: shared.batches.held() }
    }

    fn has(&self, settlement: &Settlement) -> bool {
        self.asked.contains(&settlement.fence) || self.held.contains(&(settlement.fence, settlement.id.0))
    }
}

/// The wants of a request, sorted by endpoint: two nodes that lock the same endpoints cannot deadlock.
struct SortedWants {
    alone: bool,
    /// Each with its index in the request.
    wants: Vec<(usize, Want, Start)>,
}

impl SortedWants {
    fn new(shared: &SharedState, request: ClaimRequest) -> Self {
        let mut wants: Vec<_> = request
            .wants
            .into_iter()
            .enumerate()
            .map(|(place, want)| {
                let start = match want.pick {
                    Pick::Due => shared.cursors.start(want.endpoint),
                    Pick::Probe | Pick::Suspects(_) => Start::default(),
                };
                (place, want, start)
            })
            .collect();
        wants.sort_by_key(|(_, want, _)| want.endpoint);
        Self { alone: request.alone, wants }
    }

    async fn send(&self, shared: &SharedState, fence: Fence) -> Result<Vec<Row>> {
        let endpoints: Vec<i64> = self.wants.iter().map(|(_, want, _)| want.endpoint.0).collect();
        let rooms: Vec<i32> = self.wants.iter().map(|(_, want, _)| want.room as i32).collect();
        let picks: Vec<&str> = self.wants.iter().map(|(_, want, _)| pick_name(&want.pick)).collect();
        let suspects: Vec<&[MessageId]> =
            self.wants.iter().map(|(_, want, _)| suspects_of(&want.pick)).collect();
        let after = || self.wants.iter().map(|(_, _, start)| start.after);
        let priorities: Vec<Option<i16>> = after().map(|at| at.map(|at| at.priority)).collect();
        let dues: Vec<Option<Timestamp>> = after().map(|at| at.map(|at| at.due_at)).collect();
        let ids: Vec<Option<i64>> = after().map(|at| at.map(|at| at.id)).collect();
        // With a backlog at every endpoint there is no need to wait for running settlements.
        let is_independent = self.wants.iter().all(|(_, _, start)| start.has_more);
        let connections = shared.exchange.connections().await?;
        let connection = if is_independent { &connections.aside } else { &connections.in_turn };
        let (node, batch, suspects) = (fence.node.0, fence.batch, Json(suspects));
        connection
            .client
            .query(
                &connection.claim,
                &[
                    &node,
                    &batch,
                    &self.alone,
                    &endpoints,
                    &rooms,
                    &picks,
                    &suspects,
                    &priorities,
                    &dues,
                    &ids,
                ],
            )
            .await
            .map_err(store_error)
    }

    fn understand(&self, shared: &SharedState, fence: Fence, rows: &[Row]) -> Result<Claimed> {
        let mut claims = Vec::with_capacity(rows.len().saturating_sub(self.wants.len()));
        let (mut expired, mut unreadable) = (Vec::new(), Vec::new());
        let mut next = vec![None; self.wants.len()];
        let mut ends: HashMap<usize, Position> = HashMap::new();
        for row in rows {
            let want = row.get::<_, i32>(0) as usize - 1;
            let (place, asked, start) = &self.wants[want];
            let when = match optional_named(row, 17)? {
                None => {
                    if let Some(position) = position(row) {
                        ends.insert(want, position);
                    }
                    match claimed(row, fence) {
                        Ok(claim) => claims.push(claim),
                        Err(broken) => unreadable.push(broken),
                    }
                    continue;
                }
                Some(AnswerName::Expired) => {
                    let (id, endpoint) = (MessageId(row.get(1)), asked.endpoint);
                    expired.push(Expired { id, endpoint, attempts: count(row, 2) });
                    continue;
                }
                Some(AnswerName::Now) => NextDue::Now,
                Some(AnswerName::At) => optional_time(row, 18).map_or(NextDue::Nothing, NextDue::At),
                Some(AnswerName::Nothing) => NextDue::Nothing,
            };
            if matches!(asked.pick, Pick::Due) {
                let end = ends.get(&want).copied().filter(|_| when == NextDue::Now);
                shared.cursors.ended(asked.endpoint, *start, end);
            }
            next[*place] = Some((asked.endpoint, when));
        }
        Ok(Claimed { claims, expired, unreadable, next: next.into_iter().flatten().collect() })
    }
}

fn pick_name(pick: &Pick) -> &'static str {
    match pick {
        Pick::Due => "due",
        Pick::Probe => "probe",
        Pick::Suspects(_) => "suspects",
    }
}

fn suspects_of(pick: &Pick) -> &[MessageId] {
    match pick {
        Pick::Suspects(ids) => ids,
        Pick::Due | Pick::Probe => &[],
    }
}

/// `next` of `postrider._claim_answer`; a claimed message has none.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum AnswerName {
    Now,
    At,
    Nothing,
    /// A message that was past its expiry and is archived now.
    Expired,
}

/// None when its due time cannot be read.
fn position(row: &Row) -> Option<Position> {
    Some(Position { priority: row.get(6), due_at: row.try_get(7).ok()?, id: row.get(1) })
}

fn claimed(row: &Row, fence: Fence) -> Result<Claim, Unreadable> {
    let mut reading = LenientRow::of(row);
    let message = message(&mut reading);
    if let Some(what) = reading.unreadable() {
        let attempts = count(row, 2).saturating_sub(1);
        return Err(Unreadable::new(message.id, message.endpoint, attempts, &what));
    }
    Ok(Claim {
        message: Arc::new(message),
        fence,
        attempt: count(row, 2),
        attempts_before: count(row, 3),
        losses: count(row, 4),
    })
}

fn message(row: &mut LenientRow<'_>) -> Message {
    Message {
        id: MessageId(row.get(1)),
        endpoint: EndpointId(row.get(5)),
        priority: row.get::<i16>(6) as u8,
        created_at: row.get(8),
        expires_at: row.get(9),
        correlation_id: row.get(10),
        content_type: row.get(11),
        ordering_key: row.get(12),
        event_type: row.get(13),
        headers: row.json(14),
        options: row.json(15),
        // An erased message is delivered empty.
        payload: row.get::<Option<&[u8]>>(16).map(Bytes::copy_from_slice).unwrap_or_default(),
    }
}

pub(super) async fn waiting(shared: &SharedState) -> Result<Vec<Waiting>> {
    let rows = shared.own.query("SELECT endpoint_id, due_at FROM postrider._waiting()", &[]).await?;
    Ok(rows.iter().map(|row| Waiting { endpoint: EndpointId(row.get(0)), due_at: time(row, 1) }).collect())
}

pub(super) async fn suspects(shared: &SharedState, limit: usize) -> Result<Vec<Suspect>> {
    let found = "SELECT id, endpoint_id, losses, due_at, budget_used, options FROM postrider._suspects($1)";
    let rows = shared.own.query(found, &[&(limit as i32)]).await?;
    let suspect = |row: &Row| Suspect {
        id: MessageId(row.get(0)),
        endpoint: EndpointId(row.get(1)),
        losses: count(row, 2),
        due_at: time(row, 3),
        budget_used: count(row, 4),
        max_attempts: crate::protocol::MessageOptions::of(&object(row, 5)).max_attempts,
    };
    Ok(rows.iter().map(suspect).collect())
}
