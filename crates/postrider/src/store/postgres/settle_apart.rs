//! Settlements that the server refused together, by themselves: one that somebody's open transaction is in the way of, or
//! that the server cannot take, is left for later, and the others go on.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tokio_postgres::{Error, Row};

use super::Shared;
use super::errors::store_error;
use super::exchange::SETTLE;
use super::settle::{Sorted, note_unblocked};
use crate::message::Fence;
use crate::store::{Effect, Result, Settled, Settlement};

/// Whoever is in the way was waited for before.
const SESSION: &str = "SET LOCAL lock_timeout = '20ms'; SET LOCAL synchronous_commit = off;
    SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off";
/// Of one claim: the others have the same in their way.
const REFUSALS_MAX: usize = 3;
/// For all of them. A node's lease waits for this, too.
const PATIENCE: Duration = Duration::from_secs(1);

/// Was it this question that the server did not like, and not the moment?
pub(super) fn may_help(refused: &Error) -> bool {
    let class = refused.code().and_then(|code| code.code().get(..2));
    matches!(class, Some("22" | "23" | "40" | "54" | "55" | "P0" | "XX"))
}

pub(super) async fn settle(shared: &Shared, settlements: &[Settlement]) -> Vec<Settled> {
    let mut claims: HashMap<Fence, Vec<usize>> = HashMap::new();
    for (place, settlement) in settlements.iter().enumerate() {
        claims.entry(settlement.fence).or_default().push(place);
    }
    let mut all: Vec<Settled> = settlements.iter().map(later).collect();
    let until = Instant::now() + PATIENCE;
    for places in claims.into_values() {
        for (place, settled) in of_one_claim(shared, settlements, &places, until).await {
            all[place] = settled;
        }
    }
    let (left, done): (Vec<_>, Vec<_>) =
        settlements.iter().cloned().zip(&all).partition(|(_, settled)| settled.effect == Effect::Later);
    let without_effect = |pairs: Vec<(Settlement, &Settled)>| -> Vec<Settlement> {
        pairs.into_iter().map(|(settlement, _)| settlement).collect()
    };
    shared.batches.settled(&without_effect(done));
    shared.batches.reopen(&without_effect(left));
    all
}

fn later(settlement: &Settlement) -> Settled {
    Settled { id: settlement.id, endpoint: settlement.endpoint, effect: Effect::Later, unblocked: None }
}

/// Together, or each alone; those that are settled, with their places.
async fn of_one_claim(
    shared: &Shared,
    settlements: &[Settlement],
    places: &[usize],
    until: Instant,
) -> Vec<(usize, Settled)> {
    if Instant::now() >= until {
        return Vec::new();
    }
    let some: Vec<Settlement> = places.iter().map(|place| settlements[*place].clone()).collect();
    if let Ok(settled) = ask(shared, &some).await {
        return places.iter().copied().zip(settled).collect();
    }
    let (mut done, mut refusals) = (Vec::new(), 0);
    for place in places {
        match ask(shared, std::slice::from_ref(&settlements[*place])).await {
            Ok(settled) => done.extend(settled.into_iter().map(|settled| (*place, settled))),
            Err(error) => {
                let message_id = settlements[*place].id.0;
                tracing::warn!(%error, message_id, "this message cannot be settled now; trying again later");
                refusals += 1;
            }
        }
        if refusals == REFUSALS_MAX || Instant::now() >= until {
            break;
        }
    }
    done
}

async fn ask(shared: &Shared, settlements: &[Settlement]) -> Result<Vec<Settled>> {
    let node = settlements[0].fence.node;
    let mut sorted = Sorted::default();
    settlements.iter().enumerate().for_each(|(n, settlement)| sorted.put(node, n, settlement));
    let (finished, left): (Vec<i64>, Option<Value>) = (Vec::new(), None);
    let rows: Vec<Row> = shared
        .own
        .with(async |client| {
            let transaction = client.transaction().await.map_err(store_error)?;
            transaction.batch_execute(SESSION).await.map_err(store_error)?;
            let settle = transaction.prepare_cached(SETTLE).await.map_err(store_error)?;
            let asked =
                [&node.0 as _, &sorted.delivered as _, &sorted.others as _, &finished as _, &left as _];
            let rows = transaction.query(&settle, &asked).await.map_err(store_error)?;
            transaction.commit().await.map_err(store_error)?;
            Ok(rows)
        })
        .await?;
    rows.iter().for_each(|row| note_unblocked(&shared.cursors, row));
    Ok(sorted.understand(settlements, &rows))
}
