//! Claim: one statement for many endpoints.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postgres_types::Json;
use tokio_postgres::Row;

use super::cursors::{Position, Start};
use super::errors::store_error;
use super::row::{count, headers, object, payload};
use super::{Shared, settle};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{Claim, Fence, Message, MessageId};
use crate::store::{ClaimRequest, Claimed, End, NextDue, Pick, Result, Settlement, Suspect, Waiting, Want};

const UNANSWERED_MAX: Duration = Duration::from_secs(60);

pub(super) async fn claim(shared: &Shared, request: ClaimRequest) -> Result<Claimed> {
    let fence = Fence { node: request.node, batch: request.batch };
    let asked = Asked::new(shared, request);
    // It may be made and its answer lost: until it is known, it is one to give back.
    shared.unanswered.set(fence, Asking::UnderWay);
    let answered = asked.send(shared, fence).await;
    match &answered {
        Err(StoreError::Unavailable(_)) => shared.unanswered.set(fence, Asking::Broken(Instant::now())),
        Ok(_) | Err(_) => shared.unanswered.remove(fence),
    }
    let claimed = asked.understand(shared, fence, &answered?);
    shared.claimed_lately.fetch_or(!claimed.claims.is_empty(), Relaxed);
    shared.batches.claimed(fence, claimed.claims.iter().map(|claim| claim.message.id.0));
    Ok(claimed)
}

/// Claims that were asked for and never answered, because the connection ended. Nobody works on them, so they
/// are given back as soon as the database answers again.
#[derive(Default)]
pub(super) struct Unanswered(Mutex<HashMap<Fence, Asking>>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    UnderWay,
    /// The server may still be at it for a while after the connection ended.
    Broken(Instant),
}

impl Unanswered {
    fn set(&self, fence: Fence, asking: Asking) {
        self.lock().insert(fence, asking);
    }

    fn remove(&self, fence: Fence) {
        self.lock().remove(&fence);
    }

    fn broken(&self) -> Vec<Fence> {
        let is_recent = |asking: &Asking| match asking {
            Asking::UnderWay => true,
            Asking::Broken(since) => since.elapsed() < UNANSWERED_MAX,
        };
        let mut claims = self.lock();
        claims.retain(|_, asking| is_recent(asking));
        claims.iter().filter(|(_, asking)| **asking != Asking::UnderWay).map(|(fence, _)| *fence).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Fence, Asking>> {
        self.0.lock().expect("nobody panics while holding the list")
    }
}

pub(super) async fn give_back_unanswered(shared: &Shared) -> Result<()> {
    for fence in shared.unanswered.broken() {
        let held =
            "SELECT q.id, q.endpoint_id FROM postrider._claims c JOIN postrider.queue q ON q.id = ANY (c.ids)
                    WHERE c.node_id = $1 AND c.batch = $2";
        let rows = shared.query(held, &[&fence.node.0, &fence.batch]).await?;
        let released = |row: &Row| Settlement {
            id: MessageId(row.get(0)),
            endpoint: EndpointId(row.get(1)),
            fence,
            end: End::Released,
            hold_endpoint_until: None,
        };
        let settlements: Vec<Settlement> = rows.iter().map(released).collect();
        shared.batches.claimed(fence, settlements.iter().map(|settlement| settlement.id.0));
        settle::settle(shared, settlements).await?;
    }
    Ok(())
}

/// The wants of a request by endpoint: two nodes that want the same wait for each other, never in a circle.
struct Asked {
    alone: bool,
    /// With its place in the request.
    wants: Vec<(usize, Want, Start)>,
}

impl Asked {
    fn new(shared: &Shared, request: ClaimRequest) -> Self {
        let mut wants: Vec<_> = request
            .wants
            .into_iter()
            .enumerate()
            .map(|(place, want)| {
                let start = shared.cursors.start(want.endpoint);
                (place, want, start)
            })
            .collect();
        wants.sort_by_key(|(_, want, _)| want.endpoint);
        Self { alone: request.alone, wants }
    }

    async fn send(&self, shared: &Shared, fence: Fence) -> Result<Vec<Row>> {
        let endpoints: Vec<i64> = self.wants.iter().map(|(_, want, _)| want.endpoint.0).collect();
        let rooms: Vec<i32> = self.wants.iter().map(|(_, want, _)| want.room as i32).collect();
        let picks: Vec<&str> = self.wants.iter().map(|(_, want, _)| pick_name(&want.pick)).collect();
        let suspects: Vec<&[MessageId]> =
            self.wants.iter().map(|(_, want, _)| suspects_of(&want.pick)).collect();
        let after = |(_, want, start): &(usize, Want, Start)| match want.pick {
            Pick::Due => start.after,
            Pick::Probe | Pick::Suspects(_) => None,
        };
        let priorities: Vec<Option<i16>> =
            self.wants.iter().map(|want| after(want).map(|at| at.priority)).collect();
        let dues: Vec<Option<Timestamp>> =
            self.wants.iter().map(|want| after(want).map(|at| at.due_at)).collect();
        let ids: Vec<Option<i64>> = self.wants.iter().map(|want| after(want).map(|at| at.id)).collect();
        let line = shared.exchange.line().await?;
        let (node, batch, suspects) = (fence.node.0, fence.batch, Json(suspects));
        line.client
            .query(
                &line.claim,
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

    fn understand(&self, shared: &Shared, fence: Fence, rows: &[Row]) -> Claimed {
        let mut claims = Vec::with_capacity(rows.len().saturating_sub(self.wants.len()));
        let mut next = vec![None; self.wants.len()];
        let mut ends: HashMap<usize, Position> = HashMap::new();
        for row in rows {
            let want = row.get::<_, i32>(0) as usize - 1;
            let (place, asked, start) = &self.wants[want];
            if row.get::<_, Option<i64>>(1).is_some() {
                ends.insert(want, position(row));
                claims.push(claimed(row, fence));
                continue;
            }
            let when = next_due(row);
            if matches!(asked.pick, Pick::Due) {
                let end =
                    ends.get(&want).copied().filter(|_| when == NextDue::Now && !has_key(&claims, asked));
                shared.cursors.ended(asked.endpoint, *start, end);
            }
            next[*place] = Some((asked.endpoint, when));
        }
        Claimed { claims, next: next.into_iter().flatten().collect() }
    }
}

/// The next one of a key comes to stand in its old place when the one before it is settled, so cursors do not
/// go together with keys.
fn has_key(claims: &[Claim], asked: &Want) -> bool {
    let of_it = claims.iter().rev().take_while(|claim| claim.message.endpoint == asked.endpoint);
    of_it.into_iter().any(|claim| claim.message.ordering_key.is_some())
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

fn next_due(row: &Row) -> NextDue {
    match row.get::<_, &str>(17) {
        "now" => NextDue::Now,
        "at" => row.get::<_, Option<Timestamp>>(18).map_or(NextDue::Nothing, NextDue::At),
        _ => NextDue::Nothing,
    }
}

fn position(row: &Row) -> Position {
    Position { priority: row.get(6), due_at: row.get(7), id: row.get(1) }
}

fn claimed(row: &Row, fence: Fence) -> Claim {
    Claim {
        message: Arc::new(message(row)),
        fence,
        attempt: count(row, 2),
        attempts_before: count(row, 3),
        losses: count(row, 4),
    }
}

fn message(row: &Row) -> Message {
    Message {
        id: MessageId(row.get(1)),
        endpoint: EndpointId(row.get(5)),
        priority: row.get::<_, i16>(6) as u8,
        created_at: row.get(8),
        expires_at: row.get(9),
        correlation_id: row.get(10),
        content_type: row.get(11),
        ordering_key: row.get(12),
        event_type: row.get(13),
        headers: headers(row, 14),
        options: object(row, 15),
        // An erased message is delivered empty: its record goes on, its content does not.
        payload: payload(row, 16).unwrap_or_default(),
    }
}

pub(super) async fn waiting(shared: &Shared) -> Result<Vec<Waiting>> {
    let rows = shared.query("SELECT endpoint_id, due_at FROM postrider._waiting()", &[]).await?;
    Ok(rows.iter().map(|row| Waiting { endpoint: EndpointId(row.get(0)), due_at: row.get(1) }).collect())
}

pub(super) async fn suspects(shared: &Shared, limit: usize) -> Result<Vec<Suspect>> {
    let found = "SELECT id, endpoint_id, losses, due_at, budget_used, options FROM postrider._suspects($1)";
    let rows = shared.query(found, &[&(limit as i32)]).await?;
    let suspect = |row: &Row| Suspect {
        id: MessageId(row.get(0)),
        endpoint: EndpointId(row.get(1)),
        losses: count(row, 2),
        due_at: row.get(3),
        budget_used: count(row, 4),
        max_attempts: crate::protocol::max_attempts_option(&object(row, 5)),
    };
    Ok(rows.iter().map(suspect).collect())
}
