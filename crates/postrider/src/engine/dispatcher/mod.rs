//! The dispatcher's loop: claim → attempt → settle. One task owns all of this state; others send it values.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::circuits::CircuitMoves;
use self::held_arrivals::HeldArrivals;
use super::Pulse;
use super::attempt::{CutOffAttempt, FinishedAttempt, PreventedAttempt};
use super::capacity::Capacity;
use super::counters::NodeCounters;
use super::ended_claim::EndedClaim;
use super::endpoint_states::EndpointStates;
use super::events::Events;
use super::lease::Lease;
use super::poll::{StorePoll, answer};
use super::probation::Probation;
use super::settle_queue::SettleQueue;
use super::shortage::ShortageLog;
use super::store_backoff::StoreBackoff;
use crate::error::StoreError;
use crate::outcome_log::OutcomeLog;
use crate::settings::Settings;
use crate::sink::Environment;
use crate::store::{Arrival, Claimed, Settled, Snapshot, Store, Suspect, Waiting, Want};
use crate::trace::Tracer;

mod held_arrivals;
mod polling;
mod claiming;
mod attempting;
mod settling;
mod circuits;

const ARRIVALS_AT_ONCE: usize = 1024;
/// The loop turns at least this often, which shows that it is alive.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
/// If a wake-up is missed, due messages are found within this time.
const SAFETY_INTERVAL: Duration = Duration::from_secs(5);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const RELOAD_INTERVAL: Duration = Duration::from_millis(50);
const SUSPECTS_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Parts {
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<Environment>,
    pub(super) capacity: Arc<Capacity>,
    pub(super) lease: Arc<Lease>,
    pub(super) events: Events,
    pub(super) counters: Arc<NodeCounters>,
    pub(super) outcome_log: OutcomeLog,
    pub(super) tracer: Option<Tracer>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) snapshot: Arc<Snapshot>,
    /// Publishes the snapshot's settings to the engine's other tasks.
    pub(super) settings: watch::Sender<Arc<Settings>>,
}

type SettleCall = BoxFuture<'static, (Vec<EndedClaim>, Result<Vec<Settled>, StoreError>)>;
/// Slots for the wants are reserved.
type ClaimCall = BoxFuture<'static, (Vec<Want>, Result<Claimed, StoreError>)>;

pub(super) struct Dispatcher {
    parts: Parts,
    endpoints: EndpointStates,
    circuits: CircuitMoves,
    probation: Probation,
    /// The last claim was for suspects; the next one is for the others.
    suspects_had_their_turn: bool,
    next_batch: i64,
    attempts: JoinSet<Result<FinishedAttempt, Box<PreventedAttempt>>>,
    /// Aborted attempts return their claims here.
    cut_off: (mpsc::UnboundedSender<CutOffAttempt>, mpsc::UnboundedReceiver<CutOffAttempt>),
    shortages: ShortageLog,
    unsettled: SettleQueue,

    settling: Option<SettleCall>,
    claiming: Option<ClaimCall>,
    reload: StorePoll<Option<Arc<Snapshot>>>,
    held_arrivals: HeldArrivals,
    look: StorePoll<Vec<Waiting>>,
    suspects: StorePoll<Vec<Suspect>>,
    backoff: StoreBackoff,
    check_all_at: Instant,
    stopping: bool,
}

impl Dispatcher {
    pub(super) fn new(parts: Parts) -> Self {
        let mut dispatcher = Self {
            endpoints: EndpointStates::default(),
            circuits: CircuitMoves::default(),
            probation: Probation::default(),
            suspects_had_their_turn: false,
            next_batch: 1,
            attempts: JoinSet::new(),
            cut_off: mpsc::unbounded_channel(),
            shortages: ShortageLog::default(),
            unsettled: SettleQueue::default(),
            settling: None,
            claiming: None,
            reload: StorePoll::every(RELOAD_INTERVAL),
            held_arrivals: HeldArrivals::default(),
            look: StorePoll::every(LOOK_INTERVAL),
            suspects: StorePoll::every(SUSPECTS_INTERVAL),
            backoff: StoreBackoff::new(Instant::now()),
            check_all_at: Instant::now(),
            stopping: false,
            parts,
        };
        dispatcher.take_snapshot(dispatcher.parts.snapshot.clone());
        dispatcher
    }

    /// Runs until it is stopped and all attempts are settled, or until `drain_timeout` after the stop.
    pub(super) async fn run(
        mut self,
        mut arrivals: mpsc::UnboundedReceiver<Arrival>,
        suspects: Arc<Notify>,
        stop: CancellationToken,
        drain_timeout: Duration,
    ) {
        let mut inbox = Vec::with_capacity(ARRIVALS_AT_ONCE);
        let mut drained_by: Option<Instant> = None;
        loop {
            self.parts.pulse.beat();
            self.ask_the_store();
            let out_of_time = drained_by.is_some_and(|by| by <= Instant::now());
            if self.stopping && (self.is_drained() || out_of_time) {
                break;
            }
            let wake_at = drained_by.map_or(self.wake_at(), |by| by.min(self.wake_at()));
            tokio::select! {
                biased;
                // Answers in the order in which the calls began.
                (ended, settled) = answer(&mut self.settling) => self.settle_answered(ended, settled),
                (wants, claimed) = answer(&mut self.claiming) => self.claim_answered(wants, claimed),
                Some(finished) = self.attempts.join_next() => {
                    self.attempt_ended(finished);
                    while let Some(finished) = self.attempts.try_join_next() {
                        self.attempt_ended(finished);
                    }
                }
                _ = arrivals.recv_many(&mut inbox, ARRIVALS_AT_ONCE) => {
                    inbox.drain(..).for_each(|arrival| self.arrived(arrival));
                }
                moved = self.circuits.next() => self.circuit_moved(moved),
                snapshot = self.reload.answer() => self.reload_answered(snapshot),
                waiting = self.look.answer() => self.look_answered(waiting),
                found = self.suspects.answer() => self.suspects_answered(found),
                () = suspects.notified() => self.suspects.want(),
                () = stop.cancelled(), if !self.stopping => {
                    self.stopping = true;
                    self.release_all_prefetched();
                    self.update_direct_limits();
                    drained_by = Some(Instant::now() + drain_timeout);
                }
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
        self.finish().await;
    }

    fn ask_the_store(&mut self) {
        let now = Instant::now();
        self.endpoints.fire_timers(self.parts.store.now());
        if self.check_all_at <= now {
            self.check_all_at = now + SAFETY_INTERVAL;
            self.check_all();
        }
        let backs_off = self.backoff.wait_until(now).is_some();
        if backs_off || self.stopping {
            // Arrivals do not wait for a store that is away, nor for a change that a stopping node does not need.
            self.handle_held();
        }
        if backs_off {
            return;
        }
        self.begin_polls();
        self.unsettled.resume_postponed(now);
        let may_wait = self.unsettled.may_wait(now) && !self.endpoints.any_needs_claims();
        if !self.is_exchanging() && !may_wait {
            // Settle and claim together, so that they may share a transaction: the claim then finds the successor of a
            // settled message. One exchange at a time, so that no endpoint is claimed for twice at once.
            self.begin_settle();
            self.begin_claim();
        }
    }

    fn is_exchanging(&self) -> bool {
        self.settling.is_some() || self.claiming.is_some()
    }

    /// Store errors are expected: back off and retry.
    fn store_failed(&mut self, what: &str, error: &StoreError) {
        let delay = self.backoff.failed(Instant::now());
        tracing::warn!(%error, "could not {what}; retrying in {delay:?}");
    }

    /// Senders may claim their own messages directly.
    fn accepts_direct(&self) -> bool {
        !self.stopping && self.parts.snapshot.paused.is_none() && !self.probation.wants_the_node_empty()
    }

    fn update_direct_limits(&self) {
        self.endpoints.update_direct_limits(self.accepts_direct());
    }

    fn wake_at(&self) -> Instant {
        let (now, store_now) = (Instant::now(), self.parts.store.now());
        let from_store =
            |at: Timestamp| now + Duration::try_from(at.duration_since(store_now)).unwrap_or_default();
        let times = [
            self.endpoints.next_timer().map(from_store),
            self.probation.next_due(store_now).map(from_store),
            self.reload.wake_at(),
            self.look.wake_at(),
            self.suspects.wake_at(),
            self.unsettled.wake_at(self.is_exchanging()),
        ];
        let soonest = times.into_iter().flatten().fold(now + TURN_INTERVAL, Instant::min);
        // After a failure the store is asked again as soon as the backoff ends, and not before.
        self.backoff.wait_until(now).unwrap_or(soonest)
    }

    fn is_drained(&self) -> bool {
        self.attempts.is_empty() && !self.is_exchanging() && self.unsettled.is_empty()
    }

    /// Aborts what still runs: it was started, so its attempt counts. Claims not started are released when the node leaves.
    async fn finish(mut self) {
        self.attempts.abort_all();
        while let Some(finished) = self.attempts.join_next().await {
            // Some finished before the abort.
            if finished.is_ok() {
                self.attempt_ended(finished);
            }
        }
        while let Ok(cut) = self.cut_off.1.try_recv() {
            if let Some(state) = self.endpoints.get(cut.claim.message.endpoint) {
                self.unsettled.push(EndedClaim::cut_off(&cut, state, self.parts.store.now()));
            }
        }
        if self.settling.is_some() {
            let (ended, settled) = answer(&mut self.settling).await;
            self.settle_answered(ended, settled);
        }
        if self.claiming.is_some() {
            let (wants, claimed) = answer(&mut self.claiming).await;
            self.claim_answered(wants, claimed);
        }
        self.settle_the_rest().await;
    }
}
