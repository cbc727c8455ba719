//! The node's own lease: heartbeats confirm it, and no attempt starts without it. The same task judges the
//! claims of nodes that lost theirs.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::events::{Events, Happening};
use super::journal::{About, Journal, Line};
use super::slots::Slots;
use super::tally::Tally;
use super::{LOST_CLAIMS_MAX, settlement};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{LostClaim, MessageId, NodeId, State};
use crate::protocol::max_attempts_option;
use crate::store::{Arrival, Effect, Hello, Joined, Settlement, Snapshot, Store};
use crate::verdict::{Class, Outcome, Standing, verdict};

const HEARTBEATS_PER_LEASE: u32 = 3;
/// Claims of a node that fell silent are found this soon after its lease.
const JUDGE_INTERVAL: Duration = Duration::from_secs(1);
/// A heartbeat that failed is made again sooner, so that the next ones come before the lease runs out.
const TRIES_PER_LEASE: u32 = 15;

/// Who this node is, and until when it may start attempts.
pub(super) struct Lease {
    node: AtomicI64,
    valid_until: Mutex<(Instant, SystemTime)>,
}

impl Lease {
    pub(super) fn new(joined: Joined, began: Began) -> Self {
        let Joined { node, lease } = joined;
        Self {
            node: AtomicI64::new(node.0),
            valid_until: Mutex::new((began.monotonic + lease, began.wall + lease)),
        }
    }

    pub(super) fn node(&self) -> NodeId {
        NodeId(self.node.load(Relaxed))
    }

    /// By the monotonic clock, which a step of the wall clock cannot stretch, and by the wall clock, which
    /// goes on while the machine sleeps.
    pub(super) fn is_valid(&self) -> bool {
        let (monotonic, wall) = *self.valid_until.lock().expect("nobody panics while holding the lease");
        Instant::now() < monotonic && SystemTime::now() < wall
    }

    fn confirm(&self, joined: Joined, began: Began) {
        let Joined { node, lease } = joined;
        self.node.store(node.0, Relaxed);
        *self.valid_until.lock().expect("nobody panics while holding the lease") =
            (began.monotonic + lease, began.wall + lease);
    }
}

/// Taken before the store is asked: the lease counts from there, not from the answer.
#[derive(Clone, Copy)]
pub(super) struct Began {
    monotonic: Instant,
    wall: SystemTime,
}

impl Began {
    pub(super) fn now() -> Self {
        Self { monotonic: Instant::now(), wall: SystemTime::now() }
    }
}

pub(super) struct LeaseKeeper {
    pub(super) store: Arc<dyn Store>,
    pub(super) lease: Arc<Lease>,
    /// How long the store last granted it for.
    pub(super) granted: Duration,
    pub(super) name: String,
    pub(super) arrivals: mpsc::UnboundedSender<Arrival>,
    pub(super) slots: Arc<Slots>,
    pub(super) events: Events,
    pub(super) tally: Arc<Tally>,
    pub(super) journal: Journal,
    /// Told when messages were put on probation.
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
                    tracing::warn!(%error, "the store did not confirm the lease; trying again");
                    heartbeat_at = began + self.granted / TRIES_PER_LEASE;
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

    /// For how long the store granted the lease: the setting may have changed since anybody looked at it.
    async fn heartbeat(&self) -> Result<Duration, StoreError> {
        let began = Began::now();
        let node = self.lease.node();
        match self.store.heartbeat(node).await {
            Ok(lease) => {
                self.lease.confirm(Joined { node, lease }, began);
                Ok(lease)
            }
            Err(StoreError::Conflict(_)) => {
                tracing::warn!(node = node.0, "this node lost its lease and joins anew");
                let began = Began::now();
                let joined = self.store.join(self.hello()).await?;
                self.lease.confirm(joined, began);
                // Only now: somebody listens to the store all the time.
                self.store.leave(node).await?;
                let _ = self.arrivals.send(Arrival::Reconfigured);
                let _ = self.arrivals.send(Arrival::Outside);
                Ok(joined.lease)
            }
            Err(error) => Err(error),
        }
    }

    fn hello(&self) -> Hello {
        Hello { name: self.name.clone(), arrivals: self.arrivals.clone(), direct: self.slots.clone() }
    }

    /// A lost claim goes through the same decision as a failed attempt. However many there are, the node's own
    /// lease comes first.
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
            // Asking again at once would only be refused again.
            let all_later = settled.iter().all(|settled| settled.effect == Effect::Later);
            for settled in settled {
                if let Effect::Applied(state) = settled.effect {
                    self.tally.lost(settled.endpoint);
                    self.log_lost(settled.id, settled.endpoint, state, &lost);
                    self.events.tell(&self.snapshot, settled.endpoint, || Happening::Lost {
                        message: settled.id,
                        state,
                    });
                }
                let _ = settled.unblocked.map(|endpoint| self.arrivals.send(Arrival::Pending(endpoint)));
            }
            self.suspects.notify_one();
            if !more || all_later || Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// Told as a warning each time, because a node died or hangs; and once more as an outcome when it was the end.
    fn log_lost(&self, message: MessageId, endpoint: EndpointId, state: State, lost: &[LostClaim]) {
        let Some(endpoint) = self.endpoint(endpoint) else { return };
        tracing::warn!(endpoint = &*endpoint.name, message_id = message.0, %state, "A claim was lost with its node");
        if state == State::Pending {
            return;
        }
        self.journal.put(Line {
            message,
            endpoint: endpoint.name.clone(),
            state,
            attempt: lost.iter().find(|claim| claim.id == message).map_or(0, |claim| claim.attempt),
            class: Some(Class::Retryable),
            error: Some(format!("{} {}", Class::Retryable.tag(), settlement::LEASE_EXPIRED)),
            status: None,
            duration: None,
            age: None,
            about: About::default(),
        });
    }

    fn judge(&self, claim: &LostClaim) -> Option<Settlement> {
        let endpoint = self.endpoint(claim.endpoint)?;
        let policy =
            endpoint.retry_policy(&self.snapshot.settings).limited_to(max_attempts_option(&claim.options));
        let outcome = Outcome::Lost { alone: claim.alone };
        let standing = Standing {
            budget_used: claim.attempt.saturating_sub(claim.attempts_before),
            losses: claim.losses,
            expires_at: claim.expires_at,
            auto_disable_on_gone: false,
        };
        let now = self.store.now();
        let verdict = verdict(&outcome, standing, &policy, now, rand::random());
        Some(settlement::of_lost(claim, verdict, now))
    }

    fn endpoint(&self, id: EndpointId) -> Option<&Arc<crate::endpoint::Endpoint>> {
        self.snapshot.endpoints.iter().find(|endpoint| endpoint.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_by_whichever_clock_comes_first() {
        let (began, length) = (Began::now(), Duration::from_secs(15));
        let lease = |began| Lease::new(Joined { node: NodeId(1), lease: length }, began);
        let confirmed = lease(began);
        assert!(confirmed.is_valid());
        let before_the_machine_slept = Began { wall: began.wall - length, ..began };
        assert!(!lease(before_the_machine_slept).is_valid());
        let before_the_wall_clock_was_set_back = Began { wall: began.wall + length, ..began };
        tokio::time::advance(length).await;
        assert!(!lease(before_the_wall_clock_was_set_back).is_valid());
    }
}
