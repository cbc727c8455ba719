//! Advances replays, in small steps with pauses, so that other work gets its turn.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::store::{ReplayTurn, Store};

/// How soon a new replay is noticed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The store may take fewer if they take long.
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

    /// Returns how long to wait before the next turn.
    async fn turn(&self) -> Duration {
        match self.store.advance_replays(STEP_MESSAGES).await {
            Ok(ReplayTurn::Worked) => BETWEEN_STEPS,
            Ok(ReplayTurn::Idle(next_at)) => until(next_at, self.store.now()),
            Err(error) => {
                tracing::warn!(%error, "could not advance a replay; retrying");
                LOOK_INTERVAL
            }
        }
    }
}

fn until(next_at: Option<Timestamp>, now: Timestamp) -> Duration {
    let wait = next_at.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
    wait.unwrap_or(LOOK_INTERVAL).clamp(BETWEEN_STEPS, LOOK_INTERVAL)
}
