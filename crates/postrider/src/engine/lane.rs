//! What the dispatcher knows of one endpoint.

use std::sync::Arc;

use jiff::Timestamp;

use super::attempt::Connection;
use super::concurrency::Concurrency;
use super::lanes::Rooms;
use super::slots::Slot;
use super::stock::Stock;
use super::supply::Supply;
use super::tally::Line;
use crate::breaker::{Circuit, CircuitState, Failures, Permission};
use crate::endpoint::Endpoint;
use crate::retry::RetryPolicy;
use crate::settings::Settings;
use crate::sink::Environment;
use crate::store::NextDue;

pub(super) struct Lane {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) policy: RetryPolicy,
    pub(super) connection: Arc<Connection>,
    pub(super) circuit: Circuit,
    pub(super) failures: Failures,
    pub(super) concurrency: Concurrency,
    pub(super) slot: Arc<Slot>,
    pub(super) tally: Arc<Line>,
    /// Attempts under way.
    pub(super) running: u32,
    pub(super) stock: Stock,
    pub(super) work: Work,
    /// It stands in the dispatcher's line of endpoints to claim for.
    pub(super) in_line: bool,
    /// The receiver asked to be left alone until then.
    pub(super) held_until: Option<Timestamp>,
    /// Of what this node needs for its attempts.
    pub(super) supply: Supply,
    /// A transition of its circuit is on its way to the store; nothing is claimed meanwhile.
    pub(super) circuit_moving: bool,
}

/// What is known of an endpoint's due messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Some may be due now.
    Now,
    /// The store is being asked. Whatever arrives meanwhile makes it `Now` again, so no wake-up is lost.
    Asked,
    At(Timestamp),
    Nothing,
}

impl Lane {
    pub(super) fn new(endpoint: Arc<Endpoint>, settings: &Settings, rooms: &Rooms<'_>) -> Self {
        Self {
            policy: endpoint.retry_policy(settings),
            connection: Arc::new(Connection::new(endpoint.clone(), rooms.environment.clone())),
            circuit: endpoint.circuit,
            failures: Failures::default(),
            concurrency: Concurrency::up_to(endpoint.max_in_flight()),
            slot: rooms.slots.slot(endpoint.id),
            tally: rooms.tally.line(&endpoint),
            running: 0,
            stock: Stock::default(),
            work: Work::Nothing,
            in_line: false,
            held_until: None,
            supply: Supply::Enough,
            circuit_moving: false,
            endpoint,
        }
    }

    /// Takes over what people changed. A circuit is newer when its epoch is.
    pub(super) fn reconfigure(
        &mut self,
        endpoint: Arc<Endpoint>,
        settings: &Settings,
        environment: &Arc<Environment>,
    ) {
        if endpoint.revision != self.endpoint.revision {
            self.connection = Arc::new(Connection::new(endpoint.clone(), environment.clone()));
        }
        if endpoint.circuit.epoch > self.circuit.epoch {
            self.circuit = endpoint.circuit;
            self.held_until = endpoint.held_until;
        }
        self.policy = endpoint.retry_policy(settings);
        self.concurrency.set_max(endpoint.max_in_flight());
        self.endpoint = endpoint;
    }

    /// What may be done for this endpoint now, as far as people, the receiver, this node and the circuit are concerned.
    pub(super) fn permission(&self, now: Timestamp) -> Option<Permission> {
        if self.circuit_moving || !self.endpoint.is_open_for_delivery() {
            return None;
        }
        match self.held_until.filter(|until| now < *until).max(self.supply.wait_until(now)) {
            Some(until) => Some(Permission::Wait { until }),
            None => Some(self.circuit.permission(now)),
        }
    }

    /// Something happened since its claim was asked for: nothing more may start.
    pub(super) fn refuses(&self, now: Timestamp) -> bool {
        self.circuit_moving
            || !self.endpoint.is_open_for_delivery()
            || matches!(self.circuit.state, CircuitState::Open { .. })
            || self.held_until.is_some_and(|until| now < until)
            || self.supply.refuses(now)
    }

    /// How many claims it may hold: those that run, and a stock where attempts are quick. Its rate limit counts
    /// claims, so that one is not claimed before it may start.
    pub(super) fn claims_max(&self) -> u32 {
        let limit = self.concurrency.limit();
        if self.may_stock() { limit + self.stock.size(limit) } else { limit }
    }

    pub(super) fn may_stock(&self) -> bool {
        self.circuit.state == CircuitState::Closed && self.endpoint.options.rate_limit.is_none()
    }

    pub(super) fn has_room(&self) -> bool {
        self.running < self.concurrency.limit()
    }

    /// Lets senders claim directly, or keeps them out.
    pub(super) fn publish_room(&self, node_accepts: bool) {
        let open = node_accepts
            && !self.circuit_moving
            && self.endpoint.is_open_for_delivery()
            && self.supply == Supply::Enough
            && self.circuit.state == CircuitState::Closed;
        self.slot.set_limit(if open { self.concurrency.limit() } else { 0 });
    }

    pub(super) fn answered(&mut self, next: NextDue) {
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
            // The answer under way was made before this message went back.
            Work::Asked => Work::Now,
            Work::At(earlier) => Work::At(earlier.min(due_at)),
            Work::Nothing => Work::At(due_at),
        };
    }
}
