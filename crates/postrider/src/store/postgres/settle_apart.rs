//! Settling in parts, when the server refuses to settle all together: another transaction holds a lock that is not waited for
//! again, or one settlement is refused.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::SharedState;
use super::settle::{SettleRefusal, ask, is_delivered, later};
use crate::store::{Effect, Result, Settled, Settlement};

/// For all parts together: a node's heartbeat settles too, and its lease depends on it.
const PATIENCE: Duration = Duration::from_secs(1);
/// A lock that was held a moment ago may still be held.
const WARY_FOR: Duration = Duration::from_secs(10);

/// When a settlement last timed out on a lock. For a while settlements wait for no lock.
#[derive(Default)]
pub(super) struct LastBlocked(Mutex<Option<Instant>>);

impl LastBlocked {
    pub(super) fn is_recent(&self) -> bool {
        self.lock().is_some_and(|at| at.elapsed() < WARY_FOR)
    }

    pub(super) fn note(&self) {
        *self.lock() = Some(Instant::now());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0.lock().expect("no panic while looking at the time")
    }
}

/// After all of them together were refused because of one.
pub(super) async fn in_halves(shared: &SharedState, settlements: &[&Settlement]) -> Result<Vec<Settled>> {
    let mut places: Vec<usize> = (0..settlements.len()).collect();
    // Start at random: the last ones get no turn when time runs out, and should not always be the same.
    places.rotate_left(rand::random_range(0..=settlements.len()));
    let half = places.split_off(places.len() / 2);
    in_parts(shared, settlements, vec![places, half]).await
}

/// After all of them together timed out on a lock: delivered ones first, then the others.
pub(super) async fn by_kind(shared: &SharedState, settlements: &[&Settlement]) -> Result<Vec<Settled>> {
    let (delivered, others): (Vec<usize>, Vec<usize>) =
        (0..settlements.len()).partition(|place| is_delivered(settlements[*place]));
    if delivered.is_empty() || others.is_empty() {
        return Ok(settlements.iter().map(|settlement| later(settlement)).collect());
    }
    in_parts(shared, settlements, vec![others, delivered]).await
}

/// Settles the last part first, and halves a part that is refused. The rest is left for later.
async fn in_parts(
    shared: &SharedState,
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
            SettleRefusal::Held => shared.last_blocked.note(),
            SettleRefusal::Content(error) if places.len() == 1 => {
                let message_id = some[0].id.0;
                tracing::warn!(%error, message_id, "could not settle this message; retrying");
            }
            SettleRefusal::Content(_) => {
                let half = places.split_off(places.len() / 2);
                parts.extend([places, half]);
            }
            SettleRefusal::Store(error) if all.iter().all(|settled| settled.effect == Effect::Later) => {
                return Err(error);
            }
            // Some are settled, and their answers must not be lost.
            SettleRefusal::Store(error) => {
                tracing::warn!(%error, "could not settle everything; retrying");
                break;
            }
        }
    }
    Ok(all)
}
