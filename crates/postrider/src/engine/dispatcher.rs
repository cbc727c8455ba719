//! The loop: which endpoints have room and work → claim → attempt → settle. It owns its state; everything
//! else sends it values.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Pulse;
use super::attempt::{Attempt, Finished};
use super::circuits::{CircuitMove, Circuits};
use super::ended::Ended;
use super::errand::{Call, Errand};
use super::events::{Events, Happening};
use super::lane::Work;
use super::lanes::Lanes;
use super::lease::Lease;
use super::probation::Probation;
use super::slots::Slots;
use crate::breaker::{Circuit, CircuitState, Permission};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{Claim, MessageId};
use crate::settings::CaptureResponse;
use crate::sink::{Capture, Environment};
use crate::store::{
    Arrival, ClaimRequest, Claimed, NextDue, Pick, Settled, Settlement, Snapshot, Store, Suspect, Waiting,
    Want,
};

/// One claim asks for at most this much, so that its transaction stays short.
const CLAIM_MESSAGES_MAX: u32 = 256;
const CLAIM_ENDPOINTS_MAX: usize = 128;
const SETTLE_MESSAGES_MAX: usize = 256;
const ARRIVALS_AT_ONCE: usize = 1024;
/// As many as one crash of the largest node leaves behind: those of a closed endpoint hide nobody else's.
const SUSPECTS_LOOKED_AT: usize = 10_000;

/// Even when nothing happens the loop turns this often, so that everybody can see that it does.
const TURN_INTERVAL: Duration = Duration::from_secs(1);
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
    pub(super) pulse: Arc<Pulse>,
    pub(super) snapshot: Arc<Snapshot>,
}

pub(super) struct Dispatcher {
    parts: Parts,
    lanes: Lanes,
    circuits: Circuits,
    probation: Probation,
    attempts: JoinSet<Finished>,
    next_batch: i64,

    claim: Call<Claimed>,
    /// What the claim under way asks for; its slots are reserved.
    claiming: Vec<Want>,
    settle: Call<Vec<Settled>>,
    settling: Vec<Ended>,
    unsettled: Vec<Ended>,
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
            attempts: JoinSet::new(),
            next_batch: 1,
            claim: Call::none(),
            claiming: Vec::new(),
            settle: Call::none(),
            settling: Vec::new(),
            unsettled: Vec::new(),
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
                settled = self.settle.answer() => self.settle_answered(settled),
                claimed = self.claim.answer() => self.claim_answered(claimed),
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
            self.line_up_at = Instant::now() + TURN_INTERVAL;
            self.lanes.line_up();
        }
        if Instant::now() < self.retry_at {
            return;
        }
        if self.settle.is_none() && !self.unsettled.is_empty() {
            self.begin_settle();
        }
        let store = &self.parts.store;
        let known = self.parts.snapshot.version;
        self.reload.begin_if_due(|| {
            let store = store.clone();
            async move { store.snapshot(Some(known)).await }
        });
        if self.stopping {
            return;
        }
        self.look.begin_if_due(|| {
            let store = store.clone();
            async move { store.waiting().await }
        });
        self.suspects.begin_if_due(|| {
            let store = store.clone();
            async move { store.suspects(SUSPECTS_LOOKED_AT).await }
        });
        if self.claim.is_none() && self.parts.lease.is_valid() && self.parts.snapshot.paused.is_none() {
            self.begin_claim();
        }
    }

    fn begin_settle(&mut self) {
        let count = self.unsettled.len().min(SETTLE_MESSAGES_MAX);
        self.settling = self.unsettled.drain(..count).collect();
        let settlements: Vec<Settlement> =
            self.settling.iter().map(|ended| ended.settlement.clone()).collect();
        let store = self.parts.store.clone();
        self.settle.begin(async move { store.settle(settlements).await });
    }

    fn begin_claim(&mut self) {
        let mut request = ClaimRequest {
            node: self.parts.lease.node(),
            batch: self.next_batch,
            wants: Vec::new(),
            alone: false,
        };
        self.want_suspects(&mut request);
        if !self.probation.wants_the_node_empty() {
            self.want_probes(&mut request);
            self.want_due(&mut request);
        }
        if request.wants.is_empty() {
            return;
        }
        self.next_batch += 1;
        self.claiming = request.wants.clone();
        let store = self.parts.store.clone();
        self.claim.begin(async move { store.claim(request).await });
    }

    /// Shares the node's free room evenly among the endpoints in line.
    fn want_due(&mut self, request: &mut ClaimRequest) {
        let now = self.parts.store.now();
        let mut left = CLAIM_MESSAGES_MAX.min(self.parts.slots.free());
        let in_turn = self.lanes.in_line().min(CLAIM_ENDPOINTS_MAX);
        let share = (left / in_turn.max(1) as u32).max(1);
        for _ in 0..in_turn {
            if left == 0 {
                return;
            }
            let Some(id) = self.lanes.next_in_line() else { return };
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            match lane.permission(now) {
                // What changes that wakes it again.
                None => {}
                Some(Permission::Wait { until }) => self.lanes.wait_until(id, until),
                Some(Permission::Probe) => self.take_probe(id, now),
                Some(Permission::Deliver) => {
                    let limit = lane.concurrency.limit();
                    let room = self.parts.slots.reserve(&lane.slot, limit, share.min(left));
                    if room > 0 {
                        lane.work = Work::Asked;
                        left -= room;
                        request.wants.push(Want { endpoint: id, room, pick: Pick::Due });
                    } else if self.parts.slots.free() == 0 {
                        // Senders took the node's last room meanwhile: it is this one's turn again.
                        self.lanes.first_in_line(id);
                        return;
                    }
                    // Without room of its own it waits for one of its attempts to end.
                }
            }
        }
    }

    /// One message for each half-open circuit whose probe this node holds.
    fn want_probes(&mut self, request: &mut ClaimRequest) {
        while let Some(id) = self.circuits.next_probe() {
            let Some(lane) = self.lanes.get_mut(id) else { continue };
            if self.parts.slots.reserve(&lane.slot, u32::MAX, 1) == 0 {
                self.circuits.may_probe(id);
                return;
            }
            lane.work = Work::Asked;
            request.wants.push(Want { endpoint: id, room: 1, pick: Pick::Probe });
        }
    }

    /// The next suspects, when none is on trial; a claim with one that must be alone asks for nothing else.
    fn want_suspects(&mut self, request: &mut ClaimRequest) {
        if self.parts.slots.free() == 0 {
            return;
        }
        let now = self.parts.store.now();
        for endpoint in self.probation.due_endpoints(now) {
            // Suspects can probe a circuit too, when nothing else is there to do it.
            if self.lanes.get(endpoint).is_some_and(|lane| lane.permission(now) == Some(Permission::Probe)) {
                self.wake(endpoint);
            }
        }
        let lanes = &self.lanes;
        let may_try = |suspect: &Suspect| {
            lanes.get(suspect.endpoint).is_some_and(|lane| {
                lane.permission(now) == Some(Permission::Deliver)
                    && lane.slot.has_room(lane.endpoint.max_in_flight())
            })
        };
        let is_last = |suspect: &Suspect| {
            let lane = lanes.get(suspect.endpoint);
            lane.is_some_and(|lane| {
                !lane.policy.limited_to(suspect.max_attempts).allows_another(suspect.budget_used + 1)
            })
        };
        let was_filling = !self.probation.wants_the_node_empty();
        let trial = self.probation.next_trial(now, self.parts.slots.is_idle(), may_try, is_last);
        if was_filling && self.probation.wants_the_node_empty() {
            self.publish_room();
        }
        let Some(trial) = trial else { return };
        request.alone = trial.isolated;
        let mut by_endpoint: HashMap<EndpointId, Vec<MessageId>> = HashMap::new();
        for suspect in trial.suspects {
            by_endpoint.entry(suspect.endpoint).or_default().push(suspect.id);
        }
        for (endpoint, mut ids) in by_endpoint {
            let Some(lane) = self.lanes.get(endpoint) else { continue };
            let limit = lane.endpoint.max_in_flight();
            let room = self.parts.slots.reserve(&lane.slot, limit, ids.len() as u32);
            ids.truncate(room as usize);
            if room > 0 {
                request.wants.push(Want { endpoint, room, pick: Pick::Suspects(ids) });
            }
        }
        if request.wants.is_empty() && self.probation.claimed(|_| false) {
            self.trial_is_over();
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
            self.settled(settled.id);
            ended.tell(settled, &self.parts.events);
        }
    }

    fn claim_answered(&mut self, claimed: Result<Claimed, StoreError>) {
        let claiming = std::mem::take(&mut self.claiming);
        let claimed = match claimed {
            Ok(claimed) => {
                self.backoff = STORE_BACKOFF_MIN;
                claimed
            }
            Err(error) => {
                self.store_failed("claim", &error);
                Claimed::default()
            }
        };
        let mut got: HashMap<EndpointId, u32> = HashMap::new();
        claimed.claims.iter().for_each(|claim| *got.entry(claim.message.endpoint).or_default() += 1);
        let mut asked_for_suspects = false;
        for (n, want) in claiming.into_iter().enumerate() {
            let of_endpoint = got.entry(want.endpoint).or_default();
            let used = want.room.min(*of_endpoint);
            *of_endpoint -= used;
            self.parts.slots.release(want.endpoint, want.room - used);
            if matches!(want.pick, Pick::Probe) && used == 0 {
                self.give_up_probe(want.endpoint);
            }
            match (want.pick, claimed.next.get(n)) {
                // It says nothing about the endpoint's other messages, for which the same claim may ask.
                (Pick::Suspects(_), next) => {
                    asked_for_suspects = true;
                    if let Some((id, next)) = next.filter(|_| used < want.room) {
                        let until = match next {
                            NextDue::At(until) => *until,
                            NextDue::Now | NextDue::Nothing => self.parts.store.now() + SUSPECTS_REST,
                        };
                        self.probation.rest(*id, until);
                    }
                }
                (Pick::Due | Pick::Probe, Some((id, next))) => self.lanes.answered(*id, *next),
                (Pick::Due | Pick::Probe, None) => self.wake(want.endpoint),
            }
        }
        if asked_for_suspects {
            let got = |id| claimed.claims.iter().any(|claim| claim.message.id == id);
            if self.probation.claimed(got) {
                self.trial_is_over();
            }
        }
        claimed.claims.into_iter().for_each(|claim| self.start(claim));
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
        let accepts = self.accepts();
        self.lanes.reconfigure(&self.parts.snapshot, &self.parts.environment, &self.parts.slots, accepts);
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

    fn settled(&mut self, id: MessageId) {
        if self.probation.settled(id) {
            self.trial_is_over();
        }
    }

    fn trial_is_over(&mut self) {
        self.suspects.want();
        self.publish_room();
    }

    /// A failing store is an expected day: back off and go on.
    fn store_failed(&mut self, what: &str, error: &StoreError) {
        tracing::warn!(%error, "could not {what}; trying again in {:?}", self.backoff);
        self.retry_at = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(STORE_BACKOFF_MAX);
    }

    // ---- attempts ----

    /// The slot is reserved; from here on the claim ends in a settlement.
    fn start(&mut self, claim: Claim) {
        let id = claim.message.endpoint;
        let now = self.parts.store.now();
        let lane = self.lanes.get(id).filter(|_| !self.stopping && self.parts.lease.is_valid());
        let expired = claim.message.expires_at.is_some_and(|at| at <= now);
        let Some(lane) = lane.filter(|_| !expired) else {
            self.parts.slots.release(id, 1);
            let ended = if expired { Ended::expired(&claim) } else { Ended::given_back(&claim, now) };
            self.unsettled.push(ended);
            return;
        };
        let endpoint = &lane.endpoint;
        let longest = self.parts.snapshot.settings.stale_recovery_timeout;
        let timeout =
            endpoint.protocol.attempt_timeout(&endpoint.config, &claim.message.options).min(longest);
        let attempt = Attempt {
            connection: lane.connection.clone(),
            store: self.parts.store.name(),
            capture: self.capture(),
            timeout,
            started_at: now,
            epoch: lane.circuit.epoch,
            claim,
        };
        self.attempts.spawn(attempt.run());
    }

    fn capture(&self) -> Capture {
        let settings = &self.parts.snapshot.settings;
        let (on_success, on_failure) = match settings.capture_response {
            CaptureResponse::All => (true, true),
            CaptureResponse::Failures => (false, true),
            CaptureResponse::Off => (false, false),
        };
        Capture { on_success, on_failure, bytes_max: settings.response_body_max_bytes as usize }
    }

    fn attempt_ended(&mut self, finished: Result<Finished, JoinError>) {
        let finished = finished.expect("an attempt catches the panics of its sink and is never aborted here");
        let id = finished.claim.message.endpoint;
        self.parts.slots.release(id, 1);
        let (now, accepts) = (self.parts.store.now(), self.accepts());
        let Some(lane) = self.lanes.get_mut(id) else {
            // Its endpoint was dropped meanwhile: there is no message left to settle, but maybe a trial to end.
            self.settled(finished.claim.message.id);
            return;
        };
        lane.concurrency.observe(finished.load, finished.started_at, now);
        lane.publish_room(accepts);
        let settings = &self.parts.snapshot.settings;
        let next = lane.failures.observe(
            lane.circuit,
            finished.epoch,
            finished.sign,
            now,
            settings.circuit_breaker_threshold,
            settings.circuit_breaker_cooldown,
        );
        let ended = Ended::attempted(finished, lane, settings, now, self.parts.events.anybody_listens());
        self.unsettled.push(ended);
        self.lanes.has_room_again(id);
        if let Some(to) = next {
            if to.state == (CircuitState::HalfOpen { probe: None }) {
                // The probe told nothing: another message may.
                self.wake(id);
            }
            self.move_circuit(id, to);
        }
    }

    // ---- circuits ----

    fn move_circuit(&mut self, id: EndpointId, to: Circuit) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        // A second transition would lose the swap; its attempt began under the old epoch anyway.
        if !lane.circuit_moving {
            lane.circuit_moving = true;
            lane.publish_room(false);
            self.circuits.begin(self.parts.store.clone(), id, lane.circuit, to);
        }
    }

    /// The cooldown is over: whoever swaps first may try one message.
    fn take_probe(&mut self, id: EndpointId, now: Timestamp) {
        let Some(lane) = self.lanes.get(id) else { return };
        let lease_until = now + lane.endpoint.timeout() + PROBE_LEASE_MARGIN;
        let to = lane.circuit.probing(self.parts.lease.node(), lease_until);
        self.move_circuit(id, to);
    }

    /// Nothing was there to probe with. The lane knows from the store when there will be.
    fn give_up_probe(&mut self, id: EndpointId) {
        if let Some(lane) = self.lanes.get(id)
            && let CircuitState::HalfOpen { probe: Some(_) } = lane.circuit.state
        {
            self.move_circuit(id, lane.circuit.probe_given_up());
        }
    }

    fn circuit_moved(&mut self, change: CircuitMove) {
        let (id, accepts) = (change.endpoint, self.accepts());
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.circuit_moving = false;
        // A snapshot that is newer still may have come first.
        if let Ok(true) = change.moved
            && change.to.epoch > lane.circuit.epoch
        {
            lane.circuit = change.to;
        }
        lane.publish_room(accepts);
        match change.moved {
            Ok(true) => {}
            Ok(false) => {
                // Another node was first: what it made of the circuit comes with the next snapshot.
                self.reload.want();
                return self.lanes.has_room_again(id);
            }
            Err(error) => {
                self.store_failed("move a circuit", &error);
                return self.lanes.has_room_again(id);
            }
        }
        let (from, to) = (change.from.state.name(), change.to.state.name());
        if from != to {
            tracing::info!(endpoint = %lane.endpoint.name, "circuit {}", to.as_str());
            let name = lane.endpoint.name.clone();
            self.parts.events.tell_named(id, name, Happening::Circuit { from, to });
        }
        match change.to.state {
            CircuitState::HalfOpen { probe: Some(_) } => self.circuits.may_probe(id),
            CircuitState::Closed => self.wake(id),
            CircuitState::Open { .. } | CircuitState::HalfOpen { probe: None } => {
                self.lanes.has_room_again(id);
            }
        }
    }

    // ---- who has work ----

    fn arrived(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Claimed(claim) => self.start(claim),
            Arrival::Pending(id) => self.wake(id),
            Arrival::Outside => self.look.want(),
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
        ];
        let soonest = times.into_iter().flatten().fold(now + TURN_INTERVAL, Instant::min);
        soonest.max(self.retry_at)
    }

    // ---- the end ----

    fn is_drained(&self) -> bool {
        self.attempts.is_empty() && self.claim.is_none() && self.settle.is_none() && self.unsettled.is_empty()
    }

    /// What is still running is cut off: leaving the store gives its claims back.
    async fn finish(mut self) {
        self.attempts.abort_all();
        while let Some(finished) = self.attempts.join_next().await {
            // Some ended in time after all, and what they came to is known.
            if finished.is_ok() {
                self.attempt_ended(finished);
            }
        }
        if !self.settle.is_none() {
            let settled = self.settle.answer().await;
            self.settle_answered(settled);
        }
        if !self.claim.is_none() {
            let claimed = self.claim.answer().await;
            self.claim_answered(claimed);
        }
        let settlements: Vec<Settlement> = self.unsettled.drain(..).map(|ended| ended.settlement).collect();
        if !settlements.is_empty()
            && let Err(error) = self.parts.store.settle(settlements).await
        {
            tracing::warn!(%error, "could not settle the last attempts; they are made again after the restart");
        }
    }
}
