//! The node's lease: heartbeats renew it, and no attempt starts without it. The same task settles the claims of nodes
//! that lost their lease.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::capacity::Capacity;
use super::counters::NodeCounters;
use super::events::{EngineEventKind, Events};
use super::settlement;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::message::{LostClaim, MessageId, NodeId, State};
use crate::outcome_log::{OutcomeLine, OutcomeLog};
use crate::store::{Arrival, Effect, Hello, Joined, Settlement, Snapshot, Store};
use crate::verdict::{AttemptContext, Class, Outcome};

/// Lost claims settled in one transaction.
const LOST_CLAIMS_MAX: usize = 250;
const HEARTBEATS_PER_LEASE: u32 = 3;
/// How soon after the end of a lease its claims are found.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);
/// A failed heartbeat is repeated sooner, several times before the lease runs out.
const RETRIES_PER_LEASE: u32 = 15;

/// The node's id, and until when it may start attempts.
pub(super) struct Lease {
    node: AtomicI64,
    valid_until: Mutex<(Instant, SystemTime)>,
}

impl Lease {
    pub(super) fn new(joined: Joined, began: LeaseStart) -> Self {
        let Joined { node, lease } = joined;
        Self {
            node: AtomicI64::new(node.0),
            valid_until: Mutex::new((began.monotonic + lease, began.wall + lease)),
        }
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.node.load(Relaxed))
    }

    /// By two clocks: setting the wall clock back cannot stretch the monotonic one, and the wall clock runs while the
    /// machine sleeps.
    pub(super) fn is_valid(&self) -> bool {
        let (monotonic, wall) = *self.valid_until.lock().expect("no code panics while holding this lock");
        Instant::now() < monotonic && SystemTime::now() < wall
    }

    fn confirm(&self, joined: Joined, began: LeaseStart) {
        let Joined { node, lease } = joined;
        self.node.store(node.0, Relaxed);
        *self.valid_until.lock().expect("no code panics while holding this lock") =
            (began.monotonic + lease, began.wall + lease);
    }
}

/// The time before the store was asked: the lease counts from there, not from the answer.
#[derive(Clone, Copy)]
pub(super) struct LeaseStart {
    monotonic: Instant,
    wall: SystemTime,
}

impl LeaseStart {
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now() }
    }
}

pub(super) struct LeaseKeeper {
    pub(super) store: Arc<dyn Store>,
    pub(super) lease: Arc<Lease>,
    /// How long the last lease is.
    pub(super) granted: Duration,
    pub(super) name: String,
    pub(super) arrivals: mpsc::UnboundedSender<Arrival>,
    pub(super) capacity: Arc<Capacity>,
    pub(super) events: Events,
    pub(super) counters: Arc<NodeCounters>,
    pub(super) outcome_log: OutcomeLog,
    /// Notified when lost claims became suspects.
    pub(super) suspects: Arc<Notify>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl LeaseKeeper {
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut heartbeat_at = Instant::now();
        loop {
            let began = Instant::now();
            let wake_at = match self.turn(&mut heartbeat_at).await {
                Ok(()) => heartbeat_at.min(began + JUDGE_INTERVAL),
                Err(error) => {
                    tracing::warn!(%error, "could not renew the lease or settle lost claims; retrying");
                    heartbeat_at = began + self.granted / RETRIES_PER_LEASE;
                    heartbeat_at
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
    }

    async fn turn(&mut self, heartbeat_at: &mut Instant) -> Result<(), StoreError> {
        let began = Instant::now();
        if *heartbeat_at <= began {
            self.granted = self.heartbeat().await?;
            *heartbeat_at = began + self.granted / HEARTBEATS_PER_LEASE;
        }
        self.judge_lost_claims(*heartbeat_at).await
    }

    /// Returns how long the store granted the lease: the setting may have changed.
    async fn heartbeat(&self) -> Result<Duration, StoreError> {
        let began = LeaseStart::now();
        let node = self.lease.node();
        match self.store.heartbeat(node).await {
            Ok(lease) => {
                self.lease.confirm(Joined { node, lease }, began);
                Ok(lease)
            }
            Err(StoreError::Conflict(_)) => {
                tracing::warn!(node = node.0, "this node lost its lease and joins again");
                let began = LeaseStart::now();
                let joined = self.store.join(self.hello()).await?;
                self.lease.confirm(joined, began);
                // After joining, so that the store always has a node to notify.
                self.store.leave(node).await?;
                let _ = self.arrivals.send(Arrival::Reconfigured);
                let _ = self.arrivals.send(Arrival::Outside);
                Ok(joined.lease)
            }
            Err(error) => Err(error),
        }
    }

    fn hello(&self) -> Hello {
        Hello { name: self.name.clone(), arrivals: self.arrivals.clone(), direct: self.capacity.clone() }
    }

    /// A lost claim goes through the same decision as a failed attempt. Returns at `until` even if there are more: the
    /// node's own heartbeat comes first.
    async fn judge_lost_claims(&mut self, until: Instant) -> Result<(), StoreError> {
        loop {
            let lost = self.store.lost_claims(LOST_CLAIMS_MAX).await?;
            if lost.is_empty() {
                return Ok(());
            }
            if let Some(snapshot) = self.store.snapshot(Some(self.snapshot.version)).await? {
                self.snapshot = snapshot;
            }
            let more = lost.len() == LOST_CLAIMS_MAX;
            let settlements = lost.iter().filter_map(|claim| self.judge(claim)).collect();
            let settled = self.store.settle(settlements).await?;
            // The store would refuse these again at once.
            let all_later = settled.iter().all(|settled| settled.effect == Effect::Later);
            for settled in settled {
                if let Effect::Applied(state) = settled.effect {
                    self.counters.lost(settled.endpoint);
                    self.report_lost(settled.id, settled.endpoint, state, &lost);
                }
                let _ = settled.unblocked.map(|endpoint| self.arrivals.send(Arrival::Pending(endpoint)));
            }
            self.suspects.notify_one();
            if !more || all_later || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// Each lost claim is a warning, because a node died or hangs. If it ended the message, there is an outcome line, too.
    fn report_lost(&self, message: MessageId, endpoint: EndpointId, state: State, lost: &[LostClaim]) {
        let Some(endpoint) = self.endpoint(endpoint) else { return };
        self.events.send(endpoint.id, endpoint.name.clone(), EngineEventKind::Lost { message, state });
        tracing::warn!(endpoint = &*endpoint.name, message_id = message.0, %state, "A claim was lost with its node");
        if state == State::Pending {
            return;
        }
        let attempt = lost.iter().find(|claim| claim.id == message).map_or(0, |claim| claim.attempt);
        self.outcome_log.put(OutcomeLine {
            class: Some(Class::Retryable),
            error: Some(format!("{} {}", Class::Retryable.tag(), settlement::LEASE_EXPIRED)),
            ..OutcomeLine::new(message, endpoint.name.clone(), state, attempt)
        });
    }

    fn judge(&self, claim: &LostClaim) -> Option<Settlement> {
        let endpoint = self.endpoint(claim.endpoint)?;
        let policy = endpoint.retry_policy(&self.snapshot.settings);
        let outcome = Outcome::Lost { alone: claim.alone };
        let context = AttemptContext {
            budget_used: claim.attempt.saturating_sub(claim.attempts_before),
            losses: claim.losses,
            expires_at: claim.expires_at,
            auto_disable_on_gone: false,
        };
        let now = self.store.now();
        let verdict = settlement::decide(&outcome, context, &policy, &claim.options, now);
        Some(settlement::of_lost(claim, verdict, now))
    }

    fn endpoint(&self, id: EndpointId) -> Option<&Arc<Endpoint>> {
        self.snapshot.endpoints.iter().find(|endpoint| endpoint.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_by_whichever_clock_comes_first() {
        let (began, length) = (LeaseStart::now(), Duration::from_secs(15));
        let lease = |began| Lease::new(Joined { node: NodeId(1), lease: length }, began);
        let confirmed = lease(began);
        assert!(confirmed.is_valid());
        let before_the_machine_slept = LeaseStart { wall: began.wall - length, ..began };
        assert!(!lease(before_the_machine_slept).is_valid());
        let before_the_wall_clock_was_set_back = LeaseStart { wall: began.wall + length, ..began };
        tokio::time::advance(length).await;
        assert!(!lease(before_the_wall_clock_was_set_back).is_valid());
    }
}
