//! The loop: which endpoints have room and work → claim → attempt → settle. It owns its state; everything
//! else sends it values.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Pulse;
mod attempting;
mod claiming;
mod switching;

use super::attempt::{CutOff, Finished, Prevented};
use super::circuits::Circuits;
use super::ended::Ended;
use super::errand::{Errand, answer};
use super::events::Events;
use super::journal::Journal;
use super::lane::Lane;
use super::lanes::{Lanes, Rooms};
use super::lease::Lease;
use super::probation::Probation;
use super::shortages::Shortages;
use super::slots::Slots;
use super::tally::Tally;
use crate::breaker::Permission;
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::MessageId;
use crate::settings::Settings;
use crate::sink::Environment;
use crate::store::{Arrival, Claimed, Effect, Settled, Settlement, Snapshot, Store, Suspect, Waiting, Want};
use crate::trace::Tracer;

/// One claim asks for at most this much, so that its transaction stays short.
const CLAIM_MESSAGES_MAX: u32 = 256;
const CLAIM_ENDPOINTS_MAX: usize = 128;
const SETTLE_MESSAGES_MAX: usize = 256;
/// While every room is filled from stock there is no hurry: what ended is gathered, so that fewer and larger
/// transactions carry it, up to this many and this long.
const GATHERED_MAX: usize = 256;
const GATHERING_MAX: Duration = Duration::from_millis(20);
/// What is behind one of these in its key waits for it.
const KEYED_GATHERING_MAX: Duration = Duration::from_millis(2);
/// How long what could not be settled is left alone: at first, and at most.
const SETTLE_LATER_MIN: Duration = Duration::from_millis(250);
const SETTLE_LATER_MAX: Duration = Duration::from_secs(5);
/// A store that can settle nothing is not asked for more; as many as may be in flight can always end at once.
const UNSETTLED_MAX: u32 = 1024;
const ARRIVALS_AT_ONCE: usize = 1024;
/// As many as one crash of the largest node leaves behind: those of a closed endpoint hide nobody else's.
const SUSPECTS_LOOKED_AT: usize = 10_000;

/// Even when nothing happens the loop turns this often, so that everybody can see that it does.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
/// A net under the wake-ups: what is due is found within this time even if nobody told.
const LINE_UP_INTERVAL: Duration = Duration::from_secs(5);
/// Not more often than this, however much other processes change.
const LOOK_EVERYWHERE_INTERVAL: Duration = Duration::from_secs(1);
const RELOAD_INTERVAL: Duration = Duration::from_millis(50);
const SUSPECTS_INTERVAL: Duration = Duration::from_millis(50);
/// How long an endpoint's suspects are left alone when the store does not say why it kept them.
const SUSPECTS_REST: Duration = Duration::from_secs(1);
const STORE_BACKOFF_MIN: Duration = Duration::from_millis(50);
const STORE_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A probe's lease outlives its attempt by this much.
const PROBE_LEASE_MARGIN: Duration = Duration::from_secs(5);

/// What the dispatcher is given.
pub(super) struct Parts {
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<Environment>,
    pub(super) slots: Arc<Slots>,
    pub(super) lease: Arc<Lease>,
    pub(super) events: Events,
    pub(super) tally: Arc<Tally>,
    pub(super) journal: Journal,
    pub(super) tracer: Option<Tracer>,
    pub(super) pulse: Arc<Pulse>,
    pub(super) snapshot: Arc<Snapshot>,
    /// Of the snapshot, for those who follow them.
    pub(super) settings: watch::Sender<Arc<Settings>>,
}

/// What ended went to the store.
type Settling = BoxFuture<'static, (Vec<Ended>, Result<Vec<Settled>, StoreError>)>;
/// What is claimed comes back. The slots of the wants were reserved.
type Claiming = BoxFuture<'static, (Vec<Want>, Result<Claimed, StoreError>)>;

pub(super) struct Dispatcher {
    parts: Parts,
    lanes: Lanes,
    circuits: Circuits,
    probation: Probation,
    suspects_had_their_turn: bool,
    attempts: JoinSet<Result<Finished, Box<Prevented>>>,
    /// Attempts that were aborted come back here.
    cut_off: (mpsc::UnboundedSender<CutOff>, mpsc::UnboundedReceiver<CutOff>),
    shortages: Shortages,
    next_batch: i64,

    settling: Option<Settling>,
    claiming: Option<Claiming>,
    unsettled: Vec<Ended>,
    /// What the store could not settle, and when it is asked again.
    postponed: Vec<(Instant, Ended)>,
    /// What is unsettled may wait for more until then.
    gather_until: Option<Instant>,
    reload: Errand<Option<Arc<Snapshot>>>,
    look: Errand<Vec<Waiting>>,
    suspects: Errand<Vec<Suspect>>,

    line_up_at: Instant,
    /// A failing store is left alone until then.
    retry_at: Instant,
    backoff: Duration,
    stopping: bool,
}

impl Dispatcher {
    pub(super) fn new(parts: Parts) -> Self {
        let mut dispatcher = Self {
            lanes: Lanes::default(),
            circuits: Circuits::default(),
            probation: Probation::default(),
            suspects_had_their_turn: false,
            attempts: JoinSet::new(),
            cut_off: mpsc::unbounded_channel(),
            shortages: Shortages::default(),
            next_batch: 1,
            settling: None,
            claiming: None,
            unsettled: Vec::new(),
            postponed: Vec::new(),
            gather_until: None,
            reload: Errand::wanted_every(RELOAD_INTERVAL),
            look: Errand::wanted_every(LOOK_EVERYWHERE_INTERVAL),
            suspects: Errand::wanted_every(SUSPECTS_INTERVAL),
            line_up_at: Instant::now(),
            retry_at: Instant::now(),
            backoff: STORE_BACKOFF_MIN,
            stopping: false,
            parts,
        };
        dispatcher.take_snapshot(dispatcher.parts.snapshot.clone());
        dispatcher
    }

    /// Turns until it is stopped and drained, or until the time to drain is over.
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
                // In this order, so that the store is asked in this order.
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
                    self.give_back_stocks();
                    self.publish_room();
                    drained_by = Some(Instant::now() + drain_timeout);
                }
                () = tokio::time::sleep_until(wake_at) => {}
            }
        }
        self.finish().await;
    }

    // ---- asking the store ----

    fn ask_the_store(&mut self) {
        self.lanes.fire_timers(self.parts.store.now());
        if self.line_up_at <= Instant::now() {
            self.line_up_at = Instant::now() + LINE_UP_INTERVAL;
            self.lanes.line_up();
            let stuck = self.lanes.stuck(self.parts.store.now());
            stuck.into_iter().for_each(|id| self.give_back_stock(id));
            self.look.want();
            self.suspects.want();
        }
        if Instant::now() < self.retry_at {
            return;
        }
        let store = &self.parts.store;
        let known = self.parts.snapshot.version;
        self.reload.begin_if_due(|| {
            let store = store.clone();
            async move { store.snapshot(Some(known)).await }
        });
        self.look.begin_if_due(|| {
            let store = store.clone();
            async move { store.waiting().await }
        });
        self.suspects.begin_if_due(|| {
            let store = store.clone();
            async move { store.suspects(SUSPECTS_LOOKED_AT).await }
        });
        self.take_up_postponed();
        if !self.is_exchanging() && !self.may_gather() {
            self.begin_exchange();
        }
    }

    /// Nobody waits for the store: every room that falls free is filled from stock.
    fn may_gather(&self) -> bool {
        self.gather_until.is_some_and(|until| Instant::now() < until)
            && self.unsettled.len() < GATHERED_MAX
            && !self.lanes.anybody_hungry()
    }

    /// One round with the store: what ended and what is wanted go there together, so that they may share a transaction:
    /// a settled head's successor is claimed in the same breath. One round at a time: what comes up meanwhile goes with
    /// the next, and no endpoint is asked about twice at once.
    fn begin_exchange(&mut self) {
        let count = self.unsettled.len().min(SETTLE_MESSAGES_MAX);
        let ended: Vec<Ended> = self.unsettled.drain(..count).collect();
        self.gather_until = None;
        if !ended.is_empty() {
            let store = self.parts.store.clone();
            self.settling = Some(Box::pin(async move {
                let settlements = ended.iter().map(|ended| ended.settlement.clone()).collect();
                let settled = store.settle(settlements).await;
                (ended, settled)
            }));
        }
        let may_claim = !self.stopping
            && self.parts.lease.is_valid()
            && self.parts.snapshot.paused.is_none()
            && self.unsettled.len() + self.postponed.len() < self.unsettled_max();
        if may_claim && let Some(request) = self.claim_request() {
            let store = self.parts.store.clone();
            self.claiming = Some(Box::pin(async move {
                let wants = request.wants.clone();
                (wants, store.claim(request).await)
            }));
        }
    }

    fn unsettled_max(&self) -> usize {
        UNSETTLED_MAX.max(self.parts.slots.total()) as usize
    }

    fn is_exchanging(&self) -> bool {
        self.settling.is_some() || self.claiming.is_some()
    }

    // ---- what the store answers ----

    fn settle_answered(&mut self, settling: Vec<Ended>, settled: Result<Vec<Settled>, StoreError>) {
        let settled = match settled {
            Ok(settled) => settled,
            Err(error) => {
                self.store_failed("settle", &error);
                self.unsettled.splice(0..0, settling);
                return;
            }
        };
        self.backoff = STORE_BACKOFF_MIN;
        for (ended, settled) in settling.into_iter().zip(settled) {
            if settled.effect == Effect::Later {
                // The next suspect does not wait for it: it is claimed as long as it is not settled.
                self.trial_ended(settled.id);
                self.postpone(ended);
                continue;
            }
            if let Some(due_at) = ended.due_at {
                self.due(settled.endpoint, due_at);
            }
            if let Some(unblocked) = settled.unblocked {
                self.wake(unblocked);
                // The successor may be on probation.
                self.suspects.want();
            }
            self.trial_ended(settled.id);
            ended.tell(settled, &self.parts.events, &self.parts.journal);
        }
    }

    /// Asked about less and less often, because somebody may take hours to let it go.
    fn postpone(&mut self, mut ended: Ended) {
        let delay = SETTLE_LATER_MIN.saturating_mul(1 << ended.postponed.min(10)).min(SETTLE_LATER_MAX);
        ended.postponed += 1;
        self.postponed.push((Instant::now() + delay, ended));
    }

    fn take_up_postponed(&mut self) {
        let now = Instant::now();
        let due = self.postponed.extract_if(.., |(at, _)| *at <= now).map(|(_, ended)| ended);
        self.unsettled.extend(due);
    }

    fn reload_answered(&mut self, snapshot: Result<Option<Arc<Snapshot>>, StoreError>) {
        match snapshot {
            Ok(Some(snapshot)) => self.take_snapshot(snapshot),
            Ok(None) => {}
            Err(error) => {
                self.reload.want();
                self.store_failed("look at endpoints and settings", &error);
            }
        }
    }

    fn take_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.parts.snapshot = snapshot;
        self.parts.settings.send_replace(self.parts.snapshot.settings.clone());
        for id in self.lanes.with_stock() {
            if !self.parts.snapshot.endpoints.iter().any(|endpoint| endpoint.id == id) {
                self.give_back_stock(id);
            }
        }
        let accepts = self.accepts();
        let rooms = Rooms {
            environment: &self.parts.environment,
            slots: &self.parts.slots,
            tally: &self.parts.tally,
        };
        self.lanes.reconfigure(&self.parts.snapshot, &rooms, accepts);
        let (now, paused) = (self.parts.store.now(), self.parts.snapshot.paused.is_some());
        for id in self.lanes.with_stock() {
            let may_deliver = |lane: &Lane| lane.permission(now) == Some(Permission::Deliver);
            if paused || !self.lanes.get(id).is_some_and(may_deliver) {
                self.give_back_stock(id);
            }
        }
        // What was resumed, enabled or reset may have work that was passed over.
        self.look.want_now();
        self.probation.wake_all();
        self.suspects.want();
    }

    fn look_answered(&mut self, waiting: Result<Vec<Waiting>, StoreError>) {
        match waiting {
            Ok(waiting) => waiting.into_iter().for_each(|waiting| self.due(waiting.endpoint, waiting.due_at)),
            Err(error) => {
                self.look.want();
                self.store_failed("look for work", &error);
            }
        }
    }

    fn suspects_answered(&mut self, found: Result<Vec<Suspect>, StoreError>) {
        match found {
            Ok(found) => self.probation.found(found),
            Err(error) => {
                self.suspects.want();
                self.store_failed("look for suspects", &error);
            }
        }
    }

    /// If it was on trial, the next suspect may be tried.
    fn trial_ended(&mut self, id: MessageId) {
        let was_kept_empty = self.probation.wants_the_node_empty();
        if self.probation.ended(id) {
            self.suspects.want();
            if was_kept_empty {
                self.publish_room();
            }
        }
    }

    /// A failing store is an expected day: back off and go on.
    fn store_failed(&mut self, what: &str, error: &StoreError) {
        tracing::warn!(%error, "could not {what}; trying again in {:?}", self.backoff);
        self.retry_at = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(STORE_BACKOFF_MAX);
    }

    // ---- who has work ----

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Claimed(claim) => self.take_up(claim),
            Arrival::Pending(id) => {
                self.wake(id);
                self.suspects.want();
            }
            Arrival::Outside => {
                self.look.want();
                self.suspects.want();
            }
            Arrival::Reconfigured => self.reload.want(),
        }
    }

    fn wake(&mut self, id: EndpointId) {
        if !self.lanes.wake(id) {
            // Made a moment ago: its work is looked for once it is known.
            self.reload.want();
        }
    }

    fn due(&mut self, id: EndpointId, due_at: Timestamp) {
        if !self.lanes.due(id, due_at, self.parts.store.now()) {
            // Made a moment ago: its work is looked for once it is known.
            self.reload.want();
        }
    }

    /// Senders may claim in the same breath as they insert.
    fn accepts(&self) -> bool {
        !self.stopping && self.parts.snapshot.paused.is_none() && !self.probation.wants_the_node_empty()
    }

    fn publish_room(&self) {
        self.lanes.publish_room(self.accepts());
    }

    fn wake_at(&self) -> Instant {
        let (now, store_now) = (Instant::now(), self.parts.store.now());
        let from_store =
            |at: Timestamp| now + Duration::try_from(at.duration_since(store_now)).unwrap_or_default();
        let times = [
            self.lanes.next_timer().map(from_store),
            self.probation.next_due(store_now).map(from_store),
            self.reload.wake_at(),
            self.look.wake_at(),
            self.suspects.wake_at(),
            // While an exchange is under way, its end is what is waited for.
            self.gather_until.filter(|_| !self.is_exchanging()),
            self.postponed.iter().map(|(at, _)| *at).min(),
            // What was refused is asked again then, though nobody else wants anything.
            Some(self.retry_at).filter(|at| *at > now),
        ];
        let soonest = times.into_iter().flatten().fold(now + TURN_INTERVAL, Instant::min);
        soonest.max(self.retry_at)
    }

    // ---- the end ----

    fn is_drained(&self) -> bool {
        self.attempts.is_empty()
            && !self.is_exchanging()
            && self.unsettled.is_empty()
            && self.postponed.is_empty()
    }

    /// What is still running is cut off. It was started, so its number is used. What was not goes back when the node leaves.
    async fn finish(mut self) {
        self.attempts.abort_all();
        while let Some(finished) = self.attempts.join_next().await {
            // Some ended in time after all, and what they came to is known.
            if finished.is_ok() {
                self.attempt_ended(finished);
            }
        }
        while let Ok(cut) = self.cut_off.1.try_recv() {
            let lane = self.lanes.get(cut.claim.message.endpoint);
            self.unsettled.extend(lane.map(|lane| Ended::cut_off(&cut, lane, self.parts.store.now())));
        }
        if self.settling.is_some() {
            let (ended, settled) = answer(&mut self.settling).await;
            self.settle_answered(ended, settled);
        }
        if self.claiming.is_some() {
            let (wants, claimed) = answer(&mut self.claiming).await;
            self.claim_answered(wants, claimed);
        }
        let unsettled = self.unsettled.drain(..).chain(self.postponed.drain(..).map(|(_, ended)| ended));
        let settlements: Vec<Settlement> = unsettled.map(|ended| ended.settlement).collect();
        if settlements.is_empty() {
            return;
        }
        match self.parts.store.settle(settlements).await {
            Ok(settled) => {
                let messages = settled.iter().filter(|settled| settled.effect == Effect::Later).count();
                if messages > 0 {
                    tracing::warn!(
                        messages,
                        "somebody's transaction is in the way of settling the last attempts; they are made again"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not settle the last attempts; they are made again after the restart");
            }
        }
    }
}
