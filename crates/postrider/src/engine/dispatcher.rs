//! The loop: which endpoints have room and work → claim → attempt → settle. It owns its state; everything
//! else sends it values.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::{Attempt, Finished};
use super::events::{Events, Happening};
use super::lane::{Lane, Work};
use super::lease::Lease;
use super::probation::{Trial, next_trial};
use super::slots::Slots;
use super::{Pulse, settlement};
use crate::breaker::{Circuit, CircuitState, Permission};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{Claim, MessageId};
use crate::protocol::max_attempts_option;
use crate::settings::CaptureResponse;
use crate::sink::{Capture, Environment};
use crate::store::{
    Arrival, ClaimRequest, Claimed, Effect, End, NextDue, Pick, Settled, Settlement, Snapshot, Store,
    Suspect, Waiting, Want,
};
use crate::verdict::{Outcome, Standing, Verdict, verdict};

/// One claim asks for at most this many messages, so that its transaction stays short.
const CLAIM_MESSAGES_MAX: u32 = 256;
const CLAIM_ENDPOINTS_MAX: usize = 128;
const SETTLE_MESSAGES_MAX: usize = 256;
const ARRIVALS_AT_ONCE: usize = 1024;
const SUSPECTS_LOOKED_AT: usize = 64;

/// Even when nothing happens the loop turns this often, so that everybody can see that it does.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_EVERYWHERE_INTERVAL: Duration = Duration::from_secs(1);
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(50);
const SUSPECTS_INTERVAL: Duration = Duration::from_secs(1);
const STORE_BACKOFF_MIN: Duration = Duration::from_millis(50);
const STORE_BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A probe's lease outlives its attempt by this much.
const PROBE_LEASE_MARGIN: Duration = Duration::from_secs(5);

/// A call to the store that is under way, if any.
type Call<T> = Option<BoxFuture<'static, Result<T, StoreError>>>;

pub(super) struct Dispatcher {
    store: Arc<dyn Store>,
    environment: Arc<Environment>,
    slots: Arc<Slots>,
    lease: Arc<Lease>,
    events: Events,
    pulse: Arc<Pulse>,
    snapshot: Arc<Snapshot>,

    lanes: HashMap<EndpointId, Lane>,
    /// Endpoints that have work and may have room, first come first served.
    line: VecDeque<EndpointId>,
    timers: BTreeSet<(Timestamp, EndpointId)>,
    attempts: JoinSet<Finished>,
    unsettled: Vec<Ended>,
    next_batch: i64,

    claim: Call<Claimed>,
    claim_reserved: Vec<(EndpointId, u32)>,
    settle: Call<Vec<Settled>>,
    settling: Vec<Ended>,
    reload: Call<Option<Arc<Snapshot>>>,
    reload_wanted: bool,
    reloaded_at: Instant,
    look: Call<Vec<Waiting>>,
    look_wanted: bool,
    looked_at: Instant,
    circuit_moves: FuturesUnordered<BoxFuture<'static, CircuitMove>>,
    /// Endpoints whose half-open circuit this node may probe: it holds the probe.
    probes: VecDeque<EndpointId>,

    suspects: Vec<Suspect>,
    suspects_call: Call<Vec<Suspect>>,
    suspects_wanted: bool,
    suspects_at: Instant,
    trial: Option<Trial>,
    /// Messages of the trial that are in flight.
    trial_running: Vec<MessageId>,

    retry_at: Instant,
    backoff: Duration,
    stopping: bool,
}

/// A claim that ended and what it comes to, until the store has it.
struct Ended {
    settlement: Settlement,
    due_at: Option<Timestamp>,
    report: Option<Report>,
}

struct Report {
    name: Arc<str>,
    attempt: u32,
    outcome: Outcome,
    duration: Duration,
    age: Duration,
}

struct CircuitMove {
    endpoint: EndpointId,
    from: Circuit,
    to: Circuit,
    moved: Result<bool, StoreError>,
}

pub(super) struct Parts {
    pub(super) store: Arc<dyn Store>,
    pub(super) environment: Arc<Environment>,
    pub(super) slots: Arc<Slots>,
    pub(super) lease: Arc<Lease>,
    pub(super) events: Events,
    pub(super) pulse: Arc<Pulse>,
    pub(super) snapshot: Arc<Snapshot>,
}

impl Dispatcher {
    pub(super) fn new(parts: Parts) -> Self {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(60)).unwrap_or_else(Instant::now);
        let mut dispatcher = Self {
            store: parts.store,
            environment: parts.environment,
            slots: parts.slots,
            lease: parts.lease,
            events: parts.events,
            pulse: parts.pulse,
            snapshot: parts.snapshot.clone(),
            lanes: HashMap::new(),
            line: VecDeque::new(),
            timers: BTreeSet::new(),
            attempts: JoinSet::new(),
            unsettled: Vec::new(),
            next_batch: 1,
            claim: None,
            claim_reserved: Vec::new(),
            settle: None,
            settling: Vec::new(),
            reload: None,
            reload_wanted: false,
            reloaded_at: long_ago,
            look: None,
            look_wanted: true,
            looked_at: long_ago,
            circuit_moves: FuturesUnordered::new(),
            probes: VecDeque::new(),
            suspects: Vec::new(),
            suspects_call: None,
            suspects_wanted: true,
            suspects_at: long_ago,
            trial: None,
            trial_running: Vec::new(),
            retry_at: long_ago,
            backoff: STORE_BACKOFF_MIN,
            stopping: false,
        };
        dispatcher.take_snapshot(parts.snapshot);
        dispatcher
    }

    pub(super) async fn run(
        mut self,
        mut arrivals: mpsc::UnboundedReceiver<Arrival>,
        suspects: Arc<Notify>,
        stop: CancellationToken,
        drain_timeout: Duration,
    ) {
        let mut inbox = Vec::with_capacity(ARRIVALS_AT_ONCE);
        let mut drained_by = None;
        loop {
            self.pulse.beat();
            self.ask_the_store();
            if self.stopping && self.is_drained() {
                break;
            }
            let wake_at = self.wake_at().min(drained_by.unwrap_or_else(far_ahead));
            tokio::select! {
                biased;
                settled = answer(&mut self.settle) => self.settle_answered(settled),
                claimed = answer(&mut self.claim) => self.claim_answered(claimed),
                Some(finished) = self.attempts.join_next() => {
                    self.attempt_ended(finished);
                    while let Some(finished) = self.attempts.try_join_next() {
                        self.attempt_ended(finished);
                    }
                }
                count = arrivals.recv_many(&mut inbox, ARRIVALS_AT_ONCE) => {
                    if count == 0 {
                        // The store keeps the other end for as long as this node is joined.
                        self.stopping = true;
                    }
                    inbox.drain(..).for_each(|arrival| self.arrived(arrival));
                }
                Some(moved) = self.circuit_moves.next() => self.circuit_moved(moved),
                snapshot = answer(&mut self.reload) => self.reload_answered(snapshot),
                waiting = answer(&mut self.look) => self.look_answered(waiting),
                found = answer(&mut self.suspects_call) => self.suspects_answered(found),
                () = suspects.notified() => self.suspects_wanted = true,
                () = stop.cancelled(), if !self.stopping => {
                    self.begin_to_stop();
                    drained_by = Some(Instant::now() + drain_timeout);
                }
                () = tokio::time::sleep_until(wake_at) => {
                    if drained_by.is_some_and(|by| by <= Instant::now()) {
                        break;
                    }
                }
            }
        }
        self.finish().await;
    }

    // ---- what the store is asked ----

    fn ask_the_store(&mut self) {
        self.fire_timers();
        if Instant::now() < self.retry_at {
            return;
        }
        if self.settle.is_none() && !self.unsettled.is_empty() {
            self.begin_settle();
        }
        if self.reload.is_none() && self.reload_wanted && self.reloaded_at.elapsed() >= SNAPSHOT_INTERVAL {
            self.reload_wanted = false;
            let (store, known) = (self.store.clone(), self.snapshot.version);
            self.reload = Some(Box::pin(async move { store.snapshot(Some(known)).await }));
        }
        if self.stopping {
            return;
        }
        if self.claim.is_none() {
            self.begin_claim();
        }
        if self.look.is_none() && self.look_wanted && self.looked_at.elapsed() >= LOOK_EVERYWHERE_INTERVAL {
            self.look_wanted = false;
            self.looked_at = Instant::now();
            let store = self.store.clone();
            self.look = Some(Box::pin(async move { store.waiting().await }));
        }
        if self.suspects_call.is_none()
            && self.suspects_wanted
            && self.suspects_at.elapsed() >= SUSPECTS_INTERVAL / 20
        {
            self.suspects_wanted = false;
            self.suspects_at = Instant::now();
            let store = self.store.clone();
            self.suspects_call = Some(Box::pin(async move { store.suspects(SUSPECTS_LOOKED_AT).await }));
        }
    }

    fn begin_settle(&mut self) {
        let count = self.unsettled.len().min(SETTLE_MESSAGES_MAX);
        self.settling = self.unsettled.drain(..count).collect();
        let settlements: Vec<Settlement> =
            self.settling.iter().map(|ended| ended.settlement.clone()).collect();
        let store = self.store.clone();
        self.settle = Some(Box::pin(async move { store.settle(settlements).await }));
    }

    fn begin_claim(&mut self) {
        if !self.lease.is_valid() || self.snapshot.paused.is_some() {
            return;
        }
        let mut request =
            ClaimRequest { node: self.lease.node(), batch: self.next_batch, wants: Vec::new(), alone: false };
        self.want_trial(&mut request);
        if !self.is_isolating() {
            self.want_probes(&mut request);
            self.want_due(&mut request);
        }
        if request.wants.is_empty() {
            return;
        }
        self.next_batch += 1;
        self.claim_reserved = request.wants.iter().map(|want| (want.endpoint, want.room)).collect();
        let store = self.store.clone();
        self.claim = Some(Box::pin(async move { store.claim(request).await }));
    }

    /// Shares the node's free room evenly among the endpoints in line.
    fn want_due(&mut self, request: &mut ClaimRequest) {
        let now = self.store.now();
        let mut left = CLAIM_MESSAGES_MAX.min(self.slots.free());
        let in_turn = self.line.len().min(CLAIM_ENDPOINTS_MAX);
        let share = (left / in_turn.max(1) as u32).max(1);
        for _ in 0..in_turn {
            if left == 0 {
                return;
            }
            let Some(id) = self.line.pop_front() else { return };
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            lane.in_line = false;
            match lane.permission(now) {
                None => {}
                Some(Permission::Wait { until }) => {
                    lane.work = Work::At(until);
                    self.timers.insert((until, id));
                }
                Some(Permission::Probe) => self.take_probe(id, now),
                Some(Permission::Deliver) => {
                    let room = self.slots.reserve(&lane.slot, lane.concurrency.limit(), share.min(left));
                    // Without room it waits for one of its own attempts to end.
                    if room > 0 {
                        lane.work = Work::Asked;
                        left -= room;
                        request.wants.push(Want { endpoint: id, room, pick: Pick::Due });
                    }
                }
            }
        }
    }

    /// Half-open circuits this node may probe: one message each.
    fn want_probes(&mut self, request: &mut ClaimRequest) {
        while let Some(id) = self.probes.pop_front() {
            let Some(lane) = self.lanes.get_mut(&id) else { continue };
            if self.slots.reserve(&lane.slot, u32::MAX, 1) == 0 {
                self.probes.push_front(id);
                return;
            }
            lane.work = Work::Asked;
            request.wants.push(Want { endpoint: id, room: 1, pick: Pick::Probe });
        }
    }

    // ---- what the store answers ----

    fn settle_answered(&mut self, settled: Result<Vec<Settled>, StoreError>) {
        let settling = std::mem::take(&mut self.settling);
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
            if let Some(due_at) = ended.due_at {
                self.due(settled.endpoint, due_at);
            }
            if let Some(unblocked) = settled.unblocked {
                self.wake(unblocked);
            }
            self.trial_ended(settled.id);
            if let Some(report) = ended.report {
                self.tell(report, settled);
            }
        }
    }

    fn claim_answered(&mut self, claimed: Result<Claimed, StoreError>) {
        let reserved = std::mem::take(&mut self.claim_reserved);
        let claimed = match claimed {
            Ok(claimed) => claimed,
            Err(error) => {
                self.store_failed("claim", &error);
                for (id, room) in reserved {
                    self.release(id, room);
                    self.wake(id);
                }
                self.give_up_trial();
                return;
            }
        };
        self.backoff = STORE_BACKOFF_MIN;
        let mut got: HashMap<EndpointId, u32> = HashMap::new();
        for claim in &claimed.claims {
            *got.entry(claim.message.endpoint).or_default() += 1;
        }
        for (id, room) in reserved {
            let used = got.get_mut(&id).map_or(0, |got| {
                let used = room.min(*got);
                *got -= used;
                used
            });
            self.release(id, room - used);
        }
        self.trial_claimed(&claimed);
        for (id, next) in claimed.next {
            self.answered(id, next);
        }
        for claim in claimed.claims {
            self.start(claim);
        }
    }

    fn answered(&mut self, id: EndpointId, next: NextDue) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.answered(next);
        match lane.work {
            Work::Now => self.wake(id),
            Work::At(due_at) => {
                self.timers.insert((due_at, id));
            }
            Work::Asked | Work::Nothing => {}
        }
        self.probe_found_nothing(id);
    }

    fn reload_answered(&mut self, snapshot: Result<Option<Arc<Snapshot>>, StoreError>) {
        self.reloaded_at = Instant::now();
        match snapshot {
            Ok(Some(snapshot)) => self.take_snapshot(snapshot),
            Ok(None) => {}
            Err(error) => {
                self.reload_wanted = true;
                self.store_failed("look at endpoints and settings", &error);
            }
        }
    }

    fn look_answered(&mut self, waiting: Result<Vec<Waiting>, StoreError>) {
        match waiting {
            Ok(waiting) => waiting.into_iter().for_each(|waiting| self.due(waiting.endpoint, waiting.due_at)),
            Err(error) => {
                self.look_wanted = true;
                self.store_failed("look for work", &error);
            }
        }
    }

    fn store_failed(&mut self, what: &str, error: &StoreError) {
        tracing::warn!(%error, "could not {what}; trying again in {:?}", self.backoff);
        self.retry_at = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(STORE_BACKOFF_MAX);
    }

    // ---- attempts ----

    fn start(&mut self, claim: Claim) {
        let id = claim.message.endpoint;
        let now = self.store.now();
        let expired = claim.message.expires_at.is_some_and(|at| at <= now);
        let Some(lane) = self.lanes.get(&id).filter(|_| !self.stopping && self.lease.is_valid() && !expired)
        else {
            let end = if expired { End::ExpiredUnstarted } else { End::Released };
            self.release(id, 1);
            let settlement = settlement::with_end(&claim, end);
            self.unsettled.push(Ended { settlement, due_at: Some(now), report: None });
            return;
        };
        let longest = self.snapshot.settings.stale_recovery_timeout;
        let timeout = lane
            .endpoint
            .protocol
            .attempt_timeout(&lane.endpoint.config, &claim.message.options)
            .min(longest);
        let attempt = Attempt {
            connection: lane.connection.clone(),
            store: self.store.name(),
            capture: self.capture(),
            timeout,
            started_at: now,
            epoch: lane.circuit.epoch,
            claim,
        };
        self.attempts.spawn(attempt.run());
    }

    fn capture(&self) -> Capture {
        let (on_success, on_failure) = match self.snapshot.settings.capture_response {
            CaptureResponse::All => (true, true),
            CaptureResponse::Failures => (false, true),
            CaptureResponse::Off => (false, false),
        };
        let bytes_max = self.snapshot.settings.response_body_max_bytes as usize;
        Capture { on_success, on_failure, bytes_max }
    }

    fn attempt_ended(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let finished = match finished {
            Ok(finished) => finished,
            Err(error) => {
                assert!(!error.is_panic(), "an attempt catches the panics of its sink: {error}");
                return;
            }
        };
        let id = finished.claim.message.endpoint;
        self.release(id, 1);
        let now = self.store.now();
        let accepts = !self.stopping && self.trial_permits_others();
        let Some(lane) = self.lanes.get_mut(&id) else {
            // Its endpoint was dropped meanwhile, and its messages cancelled.
            return;
        };
        lane.concurrency.observe(finished.load, finished.started_at, now);
        let settings = &self.snapshot.settings;
        let next = lane.failures.observe(
            lane.circuit,
            finished.epoch,
            finished.sign,
            now,
            settings.circuit_breaker_threshold,
            settings.circuit_breaker_cooldown,
        );
        lane.publish_room(accepts);
        if lane.work == Work::Now && !lane.in_line {
            lane.in_line = true;
            self.line.push_back(id);
        }
        let ended = self.judge(finished, now);
        self.unsettled.push(ended);
        if let Some(to) = next {
            self.move_circuit(id, to);
        }
    }

    fn judge(&self, finished: Finished, now: Timestamp) -> Ended {
        let lane = &self.lanes[&finished.claim.message.endpoint];
        let standing = Standing {
            budget_used: finished.claim.budget_used(),
            expires_at: finished.claim.message.expires_at,
            auto_disable_on_gone: lane.endpoint.protocol.auto_disable_on_gone(&lane.endpoint.config),
        };
        let retry_max_delay = self.snapshot.settings.retry_max_delay;
        let decide =
            |policy| verdict(&finished.outcome, standing, policy, retry_max_delay, now, rand::random());
        let verdict = match max_attempts_option(&finished.claim.message.options) {
            None => decide(&lane.policy),
            Some(max_attempts) => decide(&crate::retry::RetryPolicy { max_attempts, ..lane.policy.clone() }),
        };
        let due_at = match &verdict {
            Verdict::Retry { due_at, .. } | Verdict::Spare { due_at } => Some(*due_at),
            Verdict::Complete | Verdict::Dead { .. } | Verdict::Expire => None,
        };
        let settlement = settlement::of_attempt(&finished, verdict);
        let report = self.events.anybody_listens().then(|| Report {
            name: lane.endpoint.name.clone(),
            attempt: finished.claim.attempt,
            duration: finished.duration,
            age: Duration::try_from(now.duration_since(finished.claim.message.created_at))
                .unwrap_or_default(),
            outcome: finished.outcome,
        });
        Ended { settlement, due_at, report }
    }

    fn tell(&self, report: Report, settled: Settled) {
        let Effect::Applied(state) = settled.effect else { return };
        let (class, error, status) = match report.outcome {
            Outcome::Delivered(receipt) => (None, None, receipt.status),
            Outcome::Failed(failure) => (Some(failure.class), Some(failure.tagged()), failure.status),
            Outcome::Lost { .. } => (None, None, None),
        };
        let happening = Happening::Attempted {
            message: settled.id,
            attempt: report.attempt,
            state,
            class,
            error,
            status,
            duration: report.duration,
            age: report.age,
        };
        self.events.tell_named(settled.endpoint, report.name, happening);
    }

    fn release(&self, id: EndpointId, count: u32) {
        if let Some(lane) = self.lanes.get(&id) {
            self.slots.release(&lane.slot, count);
        }
    }

    // ---- who has work ----

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Claimed(claim) => self.start(claim),
            Arrival::Pending(id) => self.wake(id),
            Arrival::Outside => self.look_wanted = true,
            Arrival::Reconfigured => self.reload_wanted = true,
        }
    }

    fn wake(&mut self, id: EndpointId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            // An endpoint made a moment ago: look again once it is known.
            self.reload_wanted = true;
            self.look_wanted = true;
            return;
        };
        lane.work = Work::Now;
        if !lane.in_line {
            lane.in_line = true;
            self.line.push_back(id);
        }
    }

    fn due(&mut self, id: EndpointId, due_at: Timestamp) {
        if due_at <= self.store.now() {
            return self.wake(id);
        }
        let Some(lane) = self.lanes.get_mut(&id) else { return self.wake(id) };
        lane.due_at(due_at);
        match lane.work {
            Work::At(at) => _ = self.timers.insert((at, id)),
            Work::Now => self.wake(id),
            Work::Asked | Work::Nothing => {}
        }
    }

    fn fire_timers(&mut self) {
        let now = self.store.now();
        while let Some((due_at, id)) = self.timers.first().copied() {
            if due_at > now {
                return;
            }
            self.timers.pop_first();
            if self.lanes.get(&id).is_some_and(|lane| lane.work == Work::At(due_at)) {
                self.wake(id);
            }
        }
    }

    fn wake_at(&self) -> Instant {
        let now = Instant::now();
        let mut wake_at = now + TURN_INTERVAL;
        let store_now = self.store.now();
        let soonest = self.timers.first().map(|(due_at, _)| *due_at);
        let suspect = self.suspects.iter().map(|suspect| suspect.due_at).filter(|at| *at > store_now).min();
        for due_at in [soonest, suspect].into_iter().flatten() {
            let ahead = Duration::try_from(due_at.duration_since(store_now)).unwrap_or_default();
            wake_at = wake_at.min(now + ahead);
        }
        if self.reload_wanted {
            wake_at = wake_at.min(self.reloaded_at + SNAPSHOT_INTERVAL);
        }
        if self.look_wanted {
            wake_at = wake_at.min(self.looked_at + LOOK_EVERYWHERE_INTERVAL);
        }
        if self.suspects_wanted {
            wake_at = wake_at.min(self.suspects_at + SUSPECTS_INTERVAL / 20);
        }
        if self.retry_at > now {
            wake_at = wake_at.max(self.retry_at);
        }
        wake_at
    }

    fn take_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        let known: std::collections::HashSet<EndpointId> =
            snapshot.endpoints.iter().map(|endpoint| endpoint.id).collect();
        self.lanes.retain(|id, _| {
            known.contains(id) || {
                self.slots.forget(*id);
                false
            }
        });
        let accepts = snapshot.paused.is_none() && !self.stopping && self.trial_permits_others();
        for endpoint in &snapshot.endpoints {
            let lane = self.lanes.entry(endpoint.id).or_insert_with(|| {
                let slot = self.slots.slot(endpoint.id);
                Lane::new(endpoint.clone(), &snapshot.settings, &self.environment, slot)
            });
            lane.reconfigure(endpoint.clone(), &snapshot.settings, &self.environment);
            lane.publish_room(accepts);
        }
        self.snapshot = snapshot;
        // Whatever was resumed, enabled or reset may have work that was passed over.
        self.look_wanted = true;
        self.looked_at = self.looked_at.checked_sub(LOOK_EVERYWHERE_INTERVAL).unwrap_or(self.looked_at);
    }

    // ---- circuits ----

    fn move_circuit(&mut self, id: EndpointId, to: Circuit) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.circuit_moving = true;
        lane.publish_room(false);
        let (store, from) = (self.store.clone(), lane.circuit);
        self.circuit_moves.push(Box::pin(async move {
            let moved = store.move_circuit(id, from.epoch, to).await;
            CircuitMove { endpoint: id, from, to, moved }
        }));
    }

    /// The cooldown is over: whoever swaps first may try one message.
    fn take_probe(&mut self, id: EndpointId, now: Timestamp) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let lease_until = now + lane.endpoint.timeout() + PROBE_LEASE_MARGIN;
        let to = lane.circuit.probing(self.lease.node(), lease_until);
        self.move_circuit(id, to);
    }

    fn circuit_moved(&mut self, change: CircuitMove) {
        let accepts = !self.stopping && self.trial_permits_others();
        let Some(lane) = self.lanes.get_mut(&change.endpoint) else { return };
        lane.circuit_moving = false;
        match change.moved {
            Ok(true) => {
                lane.circuit = change.to;
                let (from, to) = (change.from.state.name(), change.to.state.name());
                if from != to {
                    tracing::info!(endpoint = %lane.endpoint.name, "circuit {}", to.as_str());
                    self.events.tell_named(
                        change.endpoint,
                        lane.endpoint.name.clone(),
                        Happening::Circuit { from, to },
                    );
                }
                if matches!(change.to.state, CircuitState::HalfOpen { probe: Some(_) }) {
                    self.probes.push_back(change.endpoint);
                }
            }
            Ok(false) => self.reload_wanted = true,
            Err(error) => {
                self.reload_wanted = true;
                self.store_failed("move a circuit", &error);
            }
        }
        if let Some(lane) = self.lanes.get(&change.endpoint) {
            lane.publish_room(accepts);
        }
        self.wake(change.endpoint);
    }

    /// A probe that claimed nothing goes back, or nobody could probe until its lease is over.
    fn probe_found_nothing(&mut self, id: EndpointId) {
        let Some(lane) = self.lanes.get(&id) else { return };
        let ours = matches!(lane.circuit.state,
            CircuitState::HalfOpen { probe: Some(probe) } if probe.node == self.lease.node());
        if ours && !lane.circuit_moving && lane.slot.running() == 0 {
            let to = lane.circuit.probe_given_up();
            let work = lane.work;
            self.move_circuit(id, to);
            if let (Work::Nothing, Some(lane)) = (work, self.lanes.get_mut(&id)) {
                lane.work = Work::Nothing;
            }
        }
    }

    // ---- probation ----

    fn suspects_answered(&mut self, found: Result<Vec<Suspect>, StoreError>) {
        match found {
            Ok(found) => self.suspects = found,
            Err(error) => {
                self.suspects_wanted = true;
                self.store_failed("look for suspects", &error);
            }
        }
    }

    /// Picks the next suspects when none is in flight, and waits for an empty node where one must be alone.
    fn want_trial(&mut self, request: &mut ClaimRequest) {
        if self.trial.is_none() && !self.suspects.is_empty() {
            self.trial = self.pick_trial();
            if self.is_isolating() {
                self.close_lanes();
            }
        }
        let Some(trial) = &self.trial else { return };
        if !self.trial_running.is_empty() {
            return;
        }
        if let Trial::Isolated(_) = trial {
            if !self.slots.is_idle() {
                return;
            }
            request.alone = true;
        }
        let mut by_endpoint: HashMap<EndpointId, Vec<MessageId>> = HashMap::new();
        for suspect in trial.suspects() {
            by_endpoint.entry(suspect.endpoint).or_default().push(suspect.id);
        }
        for (endpoint, mut ids) in by_endpoint {
            let Some(lane) = self.lanes.get(&endpoint) else { continue };
            let room = self.slots.reserve(&lane.slot, lane.endpoint.max_in_flight(), ids.len() as u32);
            ids.truncate(room as usize);
            if room > 0 {
                self.trial_running.extend(&ids);
                request.wants.push(Want { endpoint, room, pick: Pick::Suspects(ids) });
            }
        }
        if self.trial_running.is_empty() {
            self.give_up_trial();
        }
    }

    fn pick_trial(&self) -> Option<Trial> {
        let now = self.store.now();
        let may_try = |suspect: &Suspect| {
            let lane = self.lanes.get(&suspect.endpoint);
            lane.is_some_and(|lane| lane.permission(now) == Some(Permission::Deliver))
        };
        let is_last = |suspect: &Suspect| {
            let lane = self.lanes.get(&suspect.endpoint);
            lane.is_some_and(|lane| !lane.policy.allows_another(suspect.budget_used + 1))
        };
        next_trial(&self.suspects, now, may_try, is_last)
    }

    /// Suspects that were not claimed after all are no longer waited for.
    fn trial_claimed(&mut self, claimed: &Claimed) {
        if self.trial.is_none() {
            return;
        }
        let got = |id: &MessageId| claimed.claims.iter().any(|claim| claim.message.id == *id);
        self.trial_running.retain(got);
        if self.trial_running.is_empty() && !(self.is_isolating() && !self.slots.is_idle()) {
            self.give_up_trial();
        }
    }

    fn trial_ended(&mut self, id: MessageId) {
        if self.trial.is_some() {
            let before = self.trial_running.len();
            self.trial_running.retain(|running| *running != id);
            if before > 0 && self.trial_running.is_empty() {
                self.give_up_trial();
            }
        }
    }

    fn give_up_trial(&mut self) {
        let was_isolating = self.is_isolating();
        self.trial = None;
        self.trial_running.clear();
        self.suspects.clear();
        self.suspects_wanted = true;
        if was_isolating {
            let accepts = self.snapshot.paused.is_none() && !self.stopping;
            self.lanes.values().for_each(|lane| lane.publish_room(accepts));
        }
    }

    fn is_isolating(&self) -> bool {
        matches!(self.trial, Some(Trial::Isolated(_)))
    }

    fn trial_permits_others(&self) -> bool {
        !self.is_isolating()
    }

    fn close_lanes(&self) {
        self.lanes.values().for_each(|lane| lane.publish_room(false));
    }

    // ---- the end ----

    fn begin_to_stop(&mut self) {
        self.stopping = true;
        self.close_lanes();
    }

    fn is_drained(&self) -> bool {
        self.attempts.is_empty() && self.claim.is_none() && self.settle.is_none() && self.unsettled.is_empty()
    }

    /// What is still running is cut off: leaving the store gives its claims back.
    async fn finish(mut self) {
        self.close_lanes();
        self.attempts.shutdown().await;
        if let Some(settle) = self.settle.take() {
            let settled = settle.await;
            self.settle_answered(settled);
        }
        if let Some(claim) = self.claim.take() {
            let claimed = claim.await;
            self.claim_answered(claimed);
        }
        let settlements: Vec<Settlement> = self.unsettled.drain(..).map(|ended| ended.settlement).collect();
        if !settlements.is_empty()
            && let Err(error) = self.store.settle(settlements).await
        {
            tracing::warn!(%error, "could not settle the last attempts; they are made again after the restart");
        }
        self.pulse.0.store(0, Relaxed);
    }
}

/// The answer to a call, once there is one; never while none is under way.
async fn answer<T>(call: &mut Call<T>) -> Result<T, StoreError> {
    match call {
        None => std::future::pending().await,
        Some(under_way) => {
            let answer = under_way.await;
            *call = None;
            answer
        }
    }
}

fn far_ahead() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}
