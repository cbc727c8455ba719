//! From a claim to what its attempt came to: started at once, or from stock as soon as there is room.

use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::Instant;

use super::{Dispatcher, GATHERING_MAX, KEYED_GATHERING_MAX};
use crate::breaker::{CircuitState, Sign};
use crate::endpoint::EndpointId;
use crate::engine::attempt::{Attempt, Finished, Prevented};
use crate::engine::ended::Ended;
use crate::message::Claim;
use crate::settings::CaptureResponse;
use crate::sink::Capture;

impl Dispatcher {
    /// The slot is reserved; from here on the claim ends in a settlement.
    pub(super) fn take_up(&mut self, claim: Claim) {
        let (now, is_paused) = (self.parts.store.now(), self.parts.snapshot.paused.is_some());
        match self.lanes.get_mut(claim.message.endpoint) {
            Some(lane) if is_paused || self.stopping || lane.refuses(now) => {
                self.give_back(&claim);
                // If it was to probe a circuit, somebody else may.
                self.give_up_probe(claim.message.endpoint);
            }
            // Probes and suspects never wait: their claim was made for them alone.
            Some(lane) if !lane.has_room() && lane.may_stock() && claim.losses == 0 => {
                lane.stock.put(claim, now);
            }
            Some(_) | None => self.start(claim),
        }
    }

    /// What was claimed ahead takes the room that fell free.
    fn start_from_stock(&mut self, id: EndpointId) {
        let now = self.parts.store.now();
        if self.lanes.get_mut(id).is_some_and(|lane| lane.stock.is_stuck(now)) {
            self.give_back_stock(id);
        }
        while let Some(lane) = self.lanes.get_mut(id).filter(|lane| lane.has_room())
            && let Some(claim) = lane.stock.take()
        {
            self.start(claim);
        }
    }

    pub(super) fn give_back_stock(&mut self, id: EndpointId) {
        while let Some(claim) = self.lanes.get_mut(id).and_then(|lane| lane.stock.take()) {
            self.give_back(&claim);
        }
    }

    pub(super) fn give_back_stocks(&mut self) {
        self.lanes.with_stock().into_iter().for_each(|id| self.give_back_stock(id));
    }

    fn give_back(&mut self, claim: &Claim) {
        self.parts.slots.release(claim.message.endpoint, 1);
        self.unsettled.push(Ended::given_back(claim, self.parts.store.now()));
    }

    fn start(&mut self, claim: Claim) {
        let id = claim.message.endpoint;
        let (now, capture) = (self.parts.store.now(), self.capture());
        // A claim made under a lease that was lost since is not ours any more.
        let is_ours = self.parts.lease.is_valid() && self.parts.lease.node() == claim.fence.node;
        let lane = self.lanes.get_mut(id).filter(|_| !self.stopping && is_ours);
        let expired = claim.message.expires_at.is_some_and(|at| at <= now);
        let Some(lane) = lane.filter(|_| !expired) else {
            self.parts.slots.release(id, 1);
            let ended = if expired {
                Ended::expired(&claim, self.lanes.get(id), now)
            } else {
                Ended::given_back(&claim, now)
            };
            self.unsettled.push(ended);
            return;
        };
        lane.running += 1;
        let endpoint = &lane.endpoint;
        let longest = self.parts.snapshot.settings.stale_recovery_timeout;
        let mut timeout =
            endpoint.protocol.attempt_timeout(&endpoint.config, &claim.message.options).min(longest);
        if lane.circuit.state != CircuitState::Closed {
            // A probe ends within its lease, whatever its message asks for.
            timeout = timeout.min(endpoint.timeout());
        }
        let attempt = Attempt {
            connection: lane.connection.clone(),
            store: self.parts.store.name(),
            capture,
            timeout,
            started_at: now,
            tracer: self.parts.tracer.clone(),
            epoch: lane.circuit.epoch,
            cut_off: self.cut_off.0.clone(),
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

    pub(super) fn attempt_ended(&mut self, ended: Result<Result<Finished, Box<Prevented>>, JoinError>) {
        match ended.expect("an attempt catches the panics of its sink and is never aborted here") {
            Ok(finished) => self.attempt_finished(finished),
            Err(prevented) => self.attempt_prevented(*prevented),
        }
    }

    /// It does not count, and neither the receiver nor its circuit hears of it.
    fn attempt_prevented(&mut self, Prevented { claim, shortage, epoch }: Prevented) {
        let id = claim.message.endpoint;
        self.give_back(&claim);
        let (now, accepts) = (self.parts.store.now(), self.accepts());
        let Some(lane) = self.lanes.get_mut(id) else { return };
        lane.running -= 1;
        lane.supply.ran_out(now);
        lane.publish_room(accepts);
        self.shortages.note(&shortage, &lane.endpoint.name, &self.parts.tally, &self.parts.environment.kept);
        let settings = &self.parts.snapshot.settings;
        let next = lane.failures.observe(
            lane.circuit,
            epoch,
            Sign::Neutral,
            now,
            settings.circuit_breaker_threshold,
            settings.circuit_breaker_cooldown,
        );
        if let Some(to) = next {
            self.move_circuit(id, to);
        }
        self.give_back_stock(id);
        self.gather(None);
    }

    fn attempt_finished(&mut self, finished: Finished) {
        let id = finished.claim.message.endpoint;
        self.parts.slots.release(id, 1);
        let (now, accepts) = (self.parts.store.now(), self.accepts());
        let anybody_listens = self.parts.events.anybody_listens();
        let Some(lane) = self.lanes.get_mut(id) else {
            self.unsettled.push(Ended::attempted_in_vain(finished, now, anybody_listens));
            return;
        };
        lane.running -= 1;
        let age = now.duration_since(finished.claim.message.created_at);
        let age = Duration::try_from(age).unwrap_or_default();
        lane.tally.attempted(&finished.outcome, now, finished.duration, age);
        lane.stock.observe(finished.load, finished.duration);
        lane.slot.observe(finished.duration);
        lane.concurrency.observe(finished.load, finished.started_at, now);
        let was_short = lane.supply.sufficed(finished.started_at);
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
        let is_keyed = finished.claim.message.ordering_key.is_some();
        let ended = Ended::attempted(finished, lane, settings, now, anybody_listens);
        let held_until = ended.settlement.hold_endpoint_until;
        lane.held_until = lane.held_until.max(held_until);
        self.unsettled.push(ended);
        if is_keyed || was_short {
            // Its successor may be claimed together with settling it; what waited for a shortage to end may, too.
            self.wake(id);
        }
        self.lanes.has_room_again(id);
        if let Some(to) = next {
            if to.state == (CircuitState::HalfOpen { probe: None }) {
                // The probe told nothing: another message may.
                self.wake(id);
            }
            self.move_circuit(id, to);
        }
        if held_until.is_some() {
            self.give_back_stock(id);
        }
        self.start_from_stock(id);
        let may_wait = self.lanes.get(id).is_some_and(|lane| !lane.stock.is_empty());
        let most = if is_keyed { KEYED_GATHERING_MAX } else { GATHERING_MAX };
        self.gather(may_wait.then_some(most));
    }

    /// What was just unsettled may wait for company for at most so long, or not at all.
    fn gather(&mut self, most: Option<Duration>) {
        let until = most.map(|most| Instant::now() + most);
        // Others may wait less.
        self.gather_until = if self.unsettled.len() == 1 { until } else { until.min(self.gather_until) };
    }
}
