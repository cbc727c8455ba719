//! When not all can be settled together: because of somebody's open transaction, which is met once and not waited for again,
//! or because the server cannot take one of them.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::Shared;
use super::settle::{Refusal, ask, is_delivered, later};
use crate::store::{Effect, Result, Settled, Settlement};

/// For all parts: a node's lease waits for this, too.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who was in the way a moment ago may still be.
const WARY_FOR: Duration = Duration::from_secs(10);

/// When a settlement last waited in vain for somebody's transaction. For a while nobody is waited for again.
#[derive(Default)]
pub(super) struct InTheWay(Mutex<Option<Instant>>);

impl InTheWay {
    pub(super) fn anybody(&self) -> bool {
        self.lock().is_some_and(|at| at.elapsed() < WARY_FOR)
    }

    pub(super) fn met(&self) {
        *self.lock() = Some(Instant::now());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("nobody panics while looking at the time")
    }
}

/// After all of them together were refused because of one of them.
pub(super) async fn in_halves(shared: &Shared, settlements: &[&Settlement]) -> Result<Vec<Settled>> {
    let mut places: Vec<usize> = (0..settlements.len()).collect();
    // Not always the same ones are asked about at last, when there is no time left.
    places.rotate_left(rand::random_range(0..=settlements.len()));
    let half = places.split_off(places.len() / 2);
    in_parts(shared, settlements, vec![places, half]).await
}

/// After all of them together waited in vain: those that were delivered, and then the others.
pub(super) async fn by_kind(shared: &Shared, settlements: &[&Settlement]) -> Result<Vec<Settled>> {
    let (delivered, others): (Vec<usize>, Vec<usize>) =
        (0..settlements.len()).partition(|place| is_delivered(settlements[*place]));
    if delivered.is_empty() || others.is_empty() {
        return Ok(settlements.iter().map(|settlement| later(settlement)).collect());
    }
    in_parts(shared, settlements, vec![others, delivered]).await
}

/// The last part first, and what the server does not like about one in halves. What it cannot take now is left for later.
async fn in_parts(
    shared: &Shared,
    settlements: &[&Settlement],
    mut parts: Vec<Vec<usize>>,
) -> Result<Vec<Settled>> {
    let mut all: Vec<Settled> = settlements.iter().map(|settlement| later(settlement)).collect();
    let until = Instant::now() + PATIENCE;
    while let Some(mut places) = parts.pop().filter(|_| Instant::now() < until) {
        if places.is_empty() {
            continue;
        }
        let some: Vec<&Settlement> = places.iter().map(|place| settlements[*place]).collect();
        let refusal = match ask(shared, &some, true).await {
            Ok(settled) => {
                places.iter().zip(settled).for_each(|(place, settled)| all[*place] = settled);
                continue;
            }
            Err(refusal) => refusal,
        };
        match refusal {
            Refusal::Held => shared.in_the_way.met(),
            Refusal::Content(error) if places.len() == 1 => {
                let message_id = some[0].id.0;
                tracing::warn!(%error, message_id, "this message cannot be settled now; trying again later");
            }
            Refusal::Content(_) => {
                let half = places.split_off(places.len() / 2);
                parts.extend([places, half]);
            }
            Refusal::Store(error) if all.iter().all(|settled| settled.effect == Effect::Later) => {
                return Err(error);
            }
            // Those that are settled are not asked about again.
            Refusal::Store(error) => {
                tracing::warn!(%error, "could not settle all that ended; trying again later");
                break;
            }
        }
    }
    Ok(all)
}
