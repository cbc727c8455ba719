//! Takes replays further, in small steps that leave the store to others in between.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::store::{ReplayTurn, Store};

/// How long it may take until a replay that was just started is noticed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The store takes fewer where that takes long.
const STEP_MESSAGES: usize = 250;
const BETWEEN_STEPS: Duration = Duration::from_millis(5);

pub(super) struct Replayer {
    pub(super) store: Arc<dyn Store>,
}

impl Replayer {
    pub(super) async fn run(self, stop: CancellationToken) {
        loop {
            let turn = async {
                let pause = self.turn().await;
                tokio::time::sleep(pause).await;
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = turn => {}
            }
        }
    }

    /// Returns how long to wait for the next.
    async fn turn(&self) -> Duration {
        match self.store.advance_replays(STEP_MESSAGES).await {
            Ok(ReplayTurn::Worked) => BETWEEN_STEPS,
            Ok(ReplayTurn::Idle(next_at)) => until(next_at, self.store.now()),
            Err(error) => {
                tracing::warn!(%error, "a replay could not go on; trying again");
                LOOK_INTERVAL
            }
        }
    }
}

fn until(next_at: Option<Timestamp>, now: Timestamp) -> Duration {
    let wait = next_at.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
    wait.unwrap_or(LOOK_INTERVAL).clamp(BETWEEN_STEPS, LOOK_INTERVAL)
}
