//! Expiry and retention, in small steps with pauses, so that other work gets its turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::counters::NodeCounters;
use crate::error::StoreError;
use crate::message::State;
use crate::outcome_log::{self, OutcomeLine, OutcomeLog};
use crate::settings::Settings;
use crate::store::{Evicted, Expired, Store};

const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);
/// A step of this many rows takes a few milliseconds.
const STEP_ROWS: usize = 250;
const BETWEEN_STEPS: Duration = Duration::from_millis(10);

pub(super) struct Janitor {
    pub(super) store: Arc<dyn Store>,
    pub(super) outcome_log: OutcomeLog,
    pub(super) counters: Arc<NodeCounters>,
    /// As the dispatcher knows them.
    pub(super) settings: watch::Receiver<Arc<Settings>>,
}

impl Janitor {
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EXPIRY_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut cleaned_at: Option<Instant> = None;
        loop {
            let now = tokio::select! {
                () = stop.cancelled() => return,
                now = ticks.tick() => now,
            };
            let turn = async {
                self.upkeep().await?;
                let interval = self.settings.borrow().cleanup_interval;
                if cleaned_at.is_none_or(|at| now >= at + interval) {
                    self.clean_up().await?;
                    cleaned_at = Some(now);
                }
                Ok::<(), StoreError>(())
            };
            tokio::select! {
                () = stop.cancelled() => return,
                result = turn => if let Err(error) = result {
                    tracing::warn!(%error, "upkeep failed; retrying");
                }
            }
            // Not cancelled by a stop: results would be reported twice.
            if let Err(error) = self.counters.report(&*self.store).await {
                tracing::warn!(%error, "could not store attempt results; retrying");
            }
        }
    }

    async fn upkeep(&self) -> Result<(), StoreError> {
        loop {
            let expired = self.store.upkeep(STEP_ROWS).await?;
            if !expired.is_empty() && outcome_log::is_enabled(State::Expired) {
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
            self.outcome_log.put(OutcomeLine::new(expired.id, name, State::Expired, expired.attempts));
        }
        Ok(())
    }

    async fn clean_up(&self) -> Result<(), StoreError> {
        loop {
            let cleaned = self.store.clean_up(STEP_ROWS).await?;
            for Evicted { rule, count, bytes } in &cleaned.evicted {
                tracing::info!(rule, count, bytes, "evicted dead letters");
            }
            if !cleaned.more {
                return Ok(());
            }
            tokio::time::sleep(BETWEEN_STEPS).await;
        }
    }
}
