//! Settlements that the server does not take together. What somebody's open transaction holds is left for later, and what
//! the server cannot take; everything else is settled.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use super::errors::store_error;
use super::settle::{Refusal, ask};
use crate::store::{Effect, Result, Settled, Settlement};

/// For all of them: a node's lease waits for this, too.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who was in the way a moment ago may still be.
const WARY_FOR: Duration = Duration::from_secs(10);

/// When somebody was last in the way of a settlement. For a while nobody is waited for again.
#[derive(Default)]
pub(super) struct InTheWay(Mutex<Option<Instant>>);

impl InTheWay {
    pub(super) fn anybody(&self) -> bool {
        self.lock().is_some_and(|at| at.elapsed() < WARY_FOR)
    }

    fn met(&self) {
        *self.lock() = Some(Instant::now());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("nobody panics while looking at the time")
    }
}

pub(super) async fn settle(shared: &Shared, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let held = in_other_hands(shared, settlements).await?;
    if !held.is_empty() {
        shared.in_the_way.met();
    }
    let mut all: Vec<Settled> = settlements.iter().map(later).collect();
    let mut free: Vec<usize> =
        (0..settlements.len()).filter(|place| !held.contains(&settlements[*place].id.0)).collect();
    // Not always the same ones are asked about at last, when there is no time left.
    let first = rand::random_range(0..=free.len());
    free.rotate_left(first);
    let mut parts = vec![free];
    let until = Instant::now() + PATIENCE;
    while let Some(mut places) = parts.pop().filter(|_| Instant::now() < until) {
        if places.is_empty() {
            continue;
        }
        let some: Vec<&Settlement> = places.iter().map(|place| &settlements[*place]).collect();
        match ask(shared, &some).await {
            Ok(settled) => places.iter().zip(settled).for_each(|(place, settled)| all[*place] = settled),
            // Or in the way of all, as somebody who has locked a table.
            Err(Refusal::Held) => shared.in_the_way.met(),
            Err(Refusal::Content(error)) if places.len() == 1 => {
                let message_id = some[0].id.0;
                tracing::warn!(%error, message_id, "this message cannot be settled now; trying again later");
            }
            Err(Refusal::Content(_)) => {
                let half = places.split_off(places.len() / 2);
                parts.extend([places, half]);
            }
            Err(Refusal::Store(error)) => return Err(error),
        }
    }
    Ok(all)
}

fn later(settlement: &Settlement) -> Settled {
    Settled { id: settlement.id, endpoint: settlement.endpoint, effect: Effect::Later, unblocked: None }
}

/// Messages that somebody's transaction holds, or the claims of which it holds.
async fn in_other_hands(shared: &Shared, settlements: &[Settlement]) -> Result<HashSet<i64>> {
    let ids: Vec<i64> = settlements.iter().map(|settlement| settlement.id.0).collect();
    let nodes: Vec<i64> = settlements.iter().map(|settlement| settlement.fence.node.0).collect();
    let batches: Vec<i64> = settlements.iter().map(|settlement| settlement.fence.batch).collect();
    let lines = shared.exchange.lines().await?;
    // Where the refusal came from: the server tells of it before it lets go of what it had locked.
    let client = &lines.in_turn.client;
    let asked = "SELECT postrider._in_other_hands($1, $2, $3)";
    let row = client.query_one(asked, &[&ids, &nodes, &batches]).await.map_err(store_error)?;
    Ok(row.get::<_, Vec<i64>>(0).into_iter().collect())
}
