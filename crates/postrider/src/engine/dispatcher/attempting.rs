//! From a claim to the end of its attempt: started at once, or prefetched and started when a slot is free.

use tokio::task::JoinError;
use tokio::time::Instant;

use super::Dispatcher;
use crate::breaker::{CircuitState, Sign};
use crate::endpoint::EndpointId;
use crate::engine::attempt::{Attempt, FinishedAttempt, PreventedAttempt};
use crate::engine::ended_claim::EndedClaim;
use crate::message::Claim;
use crate::settings::CaptureResponse;
use crate::sink::Capture;

impl Dispatcher {
    /// The claim's slot is reserved. From here on it ends in a settlement.
    pub(super) fn take_up(&mut self, claim: Claim) {
        let (now, is_paused) = (self.parts.store.now(), self.parts.snapshot.paused.is_some());
        match self.endpoints.get_mut(claim.message.endpoint) {
            Some(state) if is_paused || self.stopping || state.refuses(now) => {
                self.release(&claim);
                // It may have been the probe of a circuit.
                self.give_up_probe(claim.message.endpoint);
            }
            // Probes and suspects never wait: they were claimed to start now.
            Some(state) if !state.may_start() && state.may_prefetch() && claim.losses == 0 => {
                state.prefetch.put(claim, now);
            }
            Some(_) | None => self.start(claim),
        }
    }

    fn start_prefetched(&mut self, id: EndpointId) {
        let now = self.parts.store.now();
        if self.endpoints.get_mut(id).is_some_and(|state| state.prefetch.is_stuck(now)) {
            self.release_prefetched(id);
        }
        while let Some(state) = self.endpoints.get_mut(id).filter(|state| state.may_start())
            && let Some(claim) = state.prefetch.take()
        {
            self.start(claim);
        }
    }

    pub(super) fn release_prefetched(&mut self, id: EndpointId) {
        while let Some(claim) = self.endpoints.get_mut(id).and_then(|state| state.prefetch.take()) {
            self.release(&claim);
        }
    }

    pub(super) fn release_all_prefetched(&mut self) {
        self.endpoints.with_prefetched().into_iter().for_each(|id| self.release_prefetched(id));
    }

    /// Back to the store, without counting an attempt.
    fn release(&mut self, claim: &Claim) {
        self.parts.capacity.release(claim.message.endpoint, 1);
        self.unsettled.push(EndedClaim::released(claim, self.parts.store.now()));
    }

    fn start(&mut self, claim: Claim) {
        let id = claim.message.endpoint;
        let (now, capture) = (self.parts.store.now(), self.capture());
        if claim.message.expires_at.is_some_and(|at| at <= now) {
            self.parts.capacity.release(id, 1);
            return self.unsettled.push(EndedClaim::expired(&claim, self.endpoints.get(id), now));
        }
        // A claim made under a lease that this node has lost may belong to another node.
        let is_ours = self.parts.lease.is_valid() && self.parts.lease.node() == claim.fence.node;
        let Some(state) = self.endpoints.get_mut(id).filter(|_| !self.stopping && is_ours) else {
            return self.release(&claim);
        };
        state.running += 1;
        let endpoint = &state.endpoint;
        let longest = self.parts.snapshot.settings.stale_recovery_timeout;
        let mut timeout = endpoint.attempt_timeout(&claim.message.options).min(longest);
        if state.circuit.state != CircuitState::Closed {
            // A probe must end within its lease, whatever timeout its message has.
            timeout = timeout.min(endpoint.timeout());
        }
        let attempt = Attempt {
            sink: state.sink.clone(),
            store: self.parts.store.name(),
            capture,
            timeout,
            started_at: now,
            tracer: self.parts.tracer.clone(),
            epoch: state.circuit.epoch,
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

    pub(super) fn attempt_ended(
        &mut self,
        ended: Result<Result<FinishedAttempt, Box<PreventedAttempt>>, JoinError>,
    ) {
        match ended.expect("an attempt catches the panics of its sink and is never aborted here") {
            Ok(finished) => self.attempt_finished(finished),
            Err(prevented) => self.attempt_prevented(*prevented),
        }
    }

    /// Counts neither as an attempt nor for the circuit.
    fn attempt_prevented(&mut self, PreventedAttempt { claim, shortage, epoch }: PreventedAttempt) {
        let id = claim.message.endpoint;
        self.release(&claim);
        let (now, accepts) = (self.parts.store.now(), self.accepts_direct());
        let Some(state) = self.endpoints.get_mut(id) else { return };
        state.running -= 1;
        state.shortage.began(now);
        state.update_direct_limit(accepts);
        let (counters, kept) = (&self.parts.counters, &self.parts.environment.kept);
        self.shortages.note(&shortage, &state.endpoint.name, counters, kept);
        self.observe_health(id, epoch, Sign::Neutral);
        self.release_prefetched(id);
        self.unsettled.hurry();
    }

    fn attempt_finished(&mut self, finished: FinishedAttempt) {
        let id = finished.claim.message.endpoint;
        self.parts.capacity.release(id, 1);
        let (now, accepts) = (self.parts.store.now(), self.accepts_direct());
        let has_listeners = self.parts.events.has_listeners();
        let Some(state) = self.endpoints.get_mut(id) else {
            return self.unsettled.push(EndedClaim::attempted_for_dropped(finished, now, has_listeners));
        };
        state.running -= 1;
        state.counters.attempted(&finished.outcome, now, finished.duration, finished.claim.message.age(now));
        state.prefetch.observe(finished.load, finished.duration);
        state.capacity.observe(finished.duration);
        state.concurrency.observe(finished.load, finished.started_at, now);
        let was_short = state.shortage.ended(finished.started_at);
        state.update_direct_limit(accepts);
        let is_keyed = finished.claim.message.ordering_key.is_some();
        let (epoch, sign) = (finished.epoch, finished.sign);
        let ended = EndedClaim::attempted(finished, state, &self.parts.snapshot.settings, now, has_listeners);
        let held_until = ended.settlement.hold_endpoint_until;
        state.held_until = state.held_until.max(held_until);
        self.unsettled.push(ended);
        if is_keyed || was_short {
            // The successor of the key is claimed together with this settle; messages that waited for the end of a
            // shortage may be due.
            self.wake(id);
        }
        self.endpoints.reconsider(id);
        self.observe_health(id, epoch, sign);
        if held_until.is_some() {
            self.release_prefetched(id);
        }
        self.start_prefetched(id);
        // While prefetched claims keep the slots busy, settling may wait for more.
        if self.endpoints.get(id).is_some_and(|state| !state.prefetch.is_empty()) {
            self.unsettled.gather(is_keyed, Instant::now());
        } else {
            self.unsettled.hurry();
        }
    }
}
