//! Moves circuits in the store, and adopts them once the store has moved them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use jiff::Timestamp;

use super::Dispatcher;
use crate::breaker::{Circuit, CircuitName, CircuitState, Sign};
use crate::endpoint::EndpointId;
use crate::engine::events::EngineEventKind;
use crate::error::StoreError;
use crate::store::Store;

/// A probe's lease outlives its attempt by this much.
const PROBE_LEASE_MARGIN: Duration = Duration::from_secs(5);

/// Moves that the store has not answered, and probes that this node holds.
#[derive(Default)]
pub(super) struct CircuitMoves {
    running: FuturesUnordered<BoxFuture<'static, CircuitMove>>,
    /// Endpoints for whose probe no message is claimed yet.
    probes: VecDeque<EndpointId>,
}

pub(super) struct CircuitMove {
    endpoint: EndpointId,
    from: Circuit,
    to: Circuit,
    /// False when another node was first.
    moved: Result<bool, StoreError>,
}

impl CircuitMoves {
    fn begin(&mut self, store: Arc<dyn Store>, endpoint: EndpointId, from: Circuit, to: Circuit) {
        self.running.push(Box::pin(async move {
            let moved = store.move_circuit(endpoint, from.epoch, to).await;
            CircuitMove { endpoint, from, to, moved }
        }));
    }

    /// Waits for ever if no move is running.
    pub(super) async fn next(&mut self) -> CircuitMove {
        match self.running.next().await {
            Some(moved) => moved,
            None => std::future::pending().await,
        }
    }

    pub(super) fn add_probe(&mut self, endpoint: EndpointId) {
        self.probes.push_back(endpoint);
    }

    pub(super) fn next_probe(&mut self) -> Option<EndpointId> {
        self.probes.pop_front()
    }
}

impl Dispatcher {
    /// An attempt that started under `epoch` showed this sign of the endpoint's health.
    pub(super) fn observe_health(&mut self, id: EndpointId, epoch: i64, sign: Sign) {
        let (now, settings) = (self.parts.store.now(), &self.parts.snapshot.settings);
        let Some(state) = self.endpoints.get_mut(id) else { return };
        let next = state.failures.observe(
            state.circuit,
            epoch,
            sign,
            now,
            settings.circuit_breaker_threshold,
            settings.circuit_breaker_cooldown,
        );
        if let Some(to) = next {
            if to.state == (CircuitState::HalfOpen { probe: None }) {
                // The probe was inconclusive: another message may be the next one.
                self.wake(id);
            }
            self.move_circuit(id, to);
        }
    }

    fn move_circuit(&mut self, id: EndpointId, to: Circuit) {
        let Some(state) = self.endpoints.get_mut(id) else { return };
        // A second move would lose the compare-and-swap; its attempt started under the old epoch anyway.
        if !state.circuit_moving {
            state.circuit_moving = true;
            state.update_direct_limit(false);
            self.circuits.begin(self.parts.store.clone(), id, state.circuit, to);
            self.release_prefetched(id);
        }
    }

    /// The cooldown is over: the first node to swap gets the probe.
    pub(super) fn take_probe(&mut self, id: EndpointId, now: Timestamp) {
        let Some(state) = self.endpoints.get(id) else { return };
        let lease_until = now + state.endpoint.timeout() + PROBE_LEASE_MARGIN;
        let to = state.circuit.probing(self.parts.lease.node(), lease_until);
        self.move_circuit(id, to);
    }

    /// This node claimed no message for its probe.
    pub(super) fn give_up_probe(&mut self, id: EndpointId) {
        if let Some(state) = self.endpoints.get(id)
            && let CircuitState::HalfOpen { probe: Some(_) } = state.circuit.state
        {
            self.move_circuit(id, state.circuit.probe_given_up());
        }
    }

    pub(super) fn circuit_moved(&mut self, change: CircuitMove) {
        let (id, accepts) = (change.endpoint, self.accepts_direct());
        let Some(state) = self.endpoints.get_mut(id) else { return };
        state.circuit_moving = false;
        // A snapshot may have brought a newer circuit already.
        if let Ok(true) = change.moved
            && change.to.epoch > state.circuit.epoch
        {
            state.circuit = change.to;
        }
        state.update_direct_limit(accepts);
        match change.moved {
            Ok(true) => {}
            Ok(false) => {
                // Another node was first; the next snapshot has its circuit.
                self.reload.want();
                return self.endpoints.reconsider(id);
            }
            Err(error) => {
                self.store_failed("move a circuit", &error);
                return self.endpoints.reconsider(id);
            }
        }
        let (from, to) = (change.from.state.name(), change.to.state.name());
        if from != to {
            let name = state.endpoint.name.clone();
            log_circuit(&name, to);
            self.parts.events.send(id, name, EngineEventKind::Circuit { from, to });
        }
        match change.to.state {
            CircuitState::HalfOpen { probe: Some(_) } => self.circuits.add_probe(id),
            CircuitState::Closed => self.wake(id),
            CircuitState::Open { .. } | CircuitState::HalfOpen { probe: None } => {
                self.endpoints.reconsider(id);
            }
        }
    }
}

fn log_circuit(endpoint: &str, to: CircuitName) {
    match to {
        CircuitName::Open => tracing::warn!(endpoint, "The circuit is open: the receiver keeps failing"),
        CircuitName::HalfOpen => tracing::info!(endpoint, "The circuit is half open: one message probes it"),
        CircuitName::Closed => tracing::info!(endpoint, "The circuit is closed again"),
    }
}
