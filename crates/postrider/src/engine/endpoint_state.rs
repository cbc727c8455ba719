//! One endpoint's state on this node.

use std::sync::Arc;

use jiff::Timestamp;

use super::attempt::EndpointSink;
use super::capacity::EndpointCapacity;
use super::concurrency::Concurrency;
use super::counters::EndpointCounters;
use super::endpoint_states::NodeParts;
use super::prefetch::Prefetch;
use super::shortage::ShortageWait;
use crate::breaker::{Circuit, CircuitState, Failures, Permission};
use crate::endpoint::Endpoint;
use crate::retry::RetryPolicy;
use crate::settings::Settings;
use crate::sink::Environment;
use crate::store::NextDue;

pub(super) struct EndpointState {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) policy: RetryPolicy,
    pub(super) sink: Arc<EndpointSink>,
    pub(super) circuit: Circuit,
    pub(super) failures: Failures,
    pub(super) concurrency: Concurrency,
    pub(super) capacity: Arc<EndpointCapacity>,
    pub(super) counters: Arc<EndpointCounters>,
    /// Running attempts.
    pub(super) running: u32,
    pub(super) prefetch: Prefetch,
    pub(super) work: Work,
    /// The endpoint stands in the dispatcher's line of endpoints to claim for.
    pub(super) in_line: bool,
    /// The receiver asked for a pause until then (`Retry-After`).
    pub(super) held_until: Option<Timestamp>,
    pub(super) shortage: ShortageWait,
    /// The store is being asked to move the circuit; nothing is claimed until it answers.
    pub(super) circuit_moving: bool,
}

/// What this node knows about due messages of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Some may be due now.
    Now,
    /// A claim is under way. A message that arrives meanwhile makes it `Now` again, so that no wake-up is lost.
    Asked,
    At(Timestamp),
    Nothing,
}

impl EndpointState {
    pub(super) fn new(endpoint: Arc<Endpoint>, settings: &Settings, parts: &NodeParts<'_>) -> Self {
        let sink = Arc::new(EndpointSink::new(endpoint.clone(), parts.environment.clone()));
        let counters = parts.counters.endpoint(&endpoint);
        counters.watch(&sink);
        Self {
            policy: endpoint.retry_policy(settings),
            sink,
            circuit: endpoint.circuit,
            failures: Failures::default(),
            concurrency: Concurrency::up_to(endpoint.max_in_flight()),
            capacity: parts.capacity.endpoint(endpoint.id),
            counters,
            running: 0,
            prefetch: Prefetch::default(),
            work: Work::Nothing,
            in_line: false,
            held_until: None,
            shortage: ShortageWait::Enough,
            circuit_moving: false,
            endpoint,
        }
    }

    /// Adopts the endpoint as a new snapshot has it. Its circuit counts only if its epoch is newer.
    pub(super) fn reconfigure(
        &mut self,
        endpoint: Arc<Endpoint>,
        settings: &Settings,
        environment: &Arc<Environment>,
    ) {
        if endpoint.revision != self.endpoint.revision {
            self.sink = Arc::new(EndpointSink::new(endpoint.clone(), environment.clone()));
            self.counters.watch(&self.sink);
        }
        if endpoint.circuit.epoch > self.circuit.epoch {
            self.circuit = endpoint.circuit;
            self.held_until = endpoint.held_until;
        }
        self.policy = endpoint.retry_policy(settings);
        self.concurrency.set_max(endpoint.max_in_flight());
        self.endpoint = endpoint;
    }

    /// What may be done for this endpoint now. None: nothing until it is reconfigured or its circuit has moved.
    pub(super) fn permission(&self, now: Timestamp) -> Option<Permission> {
        if self.circuit_moving || !self.endpoint.is_open_for_delivery() {
            return None;
        }
        match self.held_until.filter(|until| now < *until).max(self.shortage.until(now)) {
            Some(until) => Some(Permission::Wait { until }),
            None => Some(self.circuit.permission(now)),
        }
    }

    /// A claim that was asked for earlier may not start any more.
    pub(super) fn refuses(&self, now: Timestamp) -> bool {
        self.circuit_moving
            || !self.endpoint.is_open_for_delivery()
            || matches!(self.circuit.state, CircuitState::Open { .. })
            || self.held_until.is_some_and(|until| now < until)
            || self.shortage.refuses(now)
    }

    /// How many claims the endpoint may have: those that run, and prefetched ones where attempts are quick.
    pub(super) fn claims_max(&self) -> u32 {
        let limit = self.concurrency.limit();
        if self.may_prefetch() { limit + self.prefetch.size(limit) } else { limit }
    }

    /// A rate limit counts claims, so nothing is claimed before it may start.
    pub(super) fn may_prefetch(&self) -> bool {
        self.circuit.state == CircuitState::Closed && self.endpoint.options.rate_limit.is_none()
    }

    pub(super) fn may_start(&self) -> bool {
        self.running < self.concurrency.limit()
    }

    /// Allows or stops direct claims by senders.
    pub(super) fn update_direct_limit(&self, node_accepts: bool) {
        let accepts = node_accepts
            && !self.circuit_moving
            && self.endpoint.is_open_for_delivery()
            && self.shortage == ShortageWait::Enough
            && self.circuit.state == CircuitState::Closed;
        self.capacity.set_direct_limit(if accepts { self.concurrency.limit() } else { 0 });
    }

    pub(super) fn claim_answered(&mut self, next: NextDue) {
        if self.work == Work::Asked {
            self.work = match next {
                NextDue::Now => Work::Now,
                NextDue::At(due_at) => Work::At(due_at),
                NextDue::Nothing => Work::Nothing,
            };
        }
    }

    /// A message of this endpoint becomes due then.
    pub(super) fn due_at(&mut self, due_at: Timestamp) {
        self.work = match self.work {
            Work::Now => Work::Now,
            // The claim under way does not see this message.
            Work::Asked => Work::Now,
            Work::At(earlier) => Work::At(earlier.min(due_at)),
            Work::Nothing => Work::At(due_at),
        };
    }
}
