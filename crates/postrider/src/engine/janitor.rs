//! Expiry and retention, in small steps that leave the store to others in between.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::journal::{self, Journal, Line};
use crate::error::StoreError;
use crate::message::State;
use crate::store::{Expired, Store};

const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// A step of this many rows stays within a few milliseconds.
const STEP_ROWS: usize = 250;
const BETWEEN_STEPS: Duration = Duration::from_millis(10);

pub(super) struct Janitor {
    pub(super) store: Arc<dyn Store>,
    pub(super) journal: Journal,
}

impl Janitor {
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut clean_at = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let turn = async {
                self.expire().await?;
                if Instant::now() >= clean_at {
                    clean_at = Instant::now() + self.clean_up().await?;
                }
                Ok::<(), StoreError>(())
            };
            tokio::select! {
                () = stop.cancelled() => return,
                result = turn => if let Err(error) = result {
                    tracing::warn!(%error, "upkeep failed; trying again");
                }
            }
        }
    }

    async fn expire(&self) -> Result<(), StoreError> {
        loop {
            let expired = self.store.expire(STEP_ROWS).await?;
            if !expired.is_empty() && journal::is_enabled(State::Expired) {
                self.log(&expired).await?;
            }
            if expired.len() < STEP_ROWS {
                return Ok(());
            }
            tokio::time::sleep(BETWEEN_STEPS).await;
        }
    }

    async fn log(&self, expired: &[Expired]) -> Result<(), StoreError> {
        let Some(snapshot) = self.store.snapshot(None).await? else { return Ok(()) };
        for expired in expired {
            let endpoint = snapshot.endpoints.iter().find(|endpoint| endpoint.id == expired.endpoint);
            let name = endpoint.map_or_else(|| "".into(), |endpoint| endpoint.name.clone());
            self.journal.put(Line::expired(*expired, name));
        }
        Ok(())
    }

    /// Returns when to do it again.
    async fn clean_up(&self) -> Result<Duration, StoreError> {
        while self.store.clean_up(STEP_ROWS).await? {
            tokio::time::sleep(BETWEEN_STEPS).await;
        }
        let snapshot = self.store.snapshot(None).await?;
        Ok(snapshot.map_or(Duration::from_secs(3600), |snapshot| snapshot.settings.cleanup_interval))
    }
}
