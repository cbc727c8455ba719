//! Circuits as the dispatcher moves them, and what their moves let go.

use jiff::Timestamp;

use super::{Dispatcher, PROBE_LEASE_MARGIN};
use crate::breaker::{Circuit, CircuitName, CircuitState};
use crate::endpoint::EndpointId;
use crate::engine::circuits::CircuitMove;
use crate::engine::events::Happening;

impl Dispatcher {
    pub(super) fn move_circuit(&mut self, id: EndpointId, to: Circuit) {
        let Some(lane) = self.lanes.get_mut(id) else { return };
        // A second transition would lose the swap; its attempt began under the old epoch anyway.
        if !lane.circuit_moving {
            lane.circuit_moving = true;
            lane.publish_room(false);
            self.circuits.begin(self.parts.store.clone(), id, lane.circuit, to);
            self.give_back_stock(id);
        }
    }

    /// The cooldown is over: whoever swaps first may try one message.
    pub(super) fn take_probe(&mut self, id: EndpointId, now: Timestamp) {
        let Some(lane) = self.lanes.get(id) else { return };
        let lease_until = now + lane.endpoint.timeout() + PROBE_LEASE_MARGIN;
        let to = lane.circuit.probing(self.parts.lease.node(), lease_until);
        self.move_circuit(id, to);
    }

    /// Nothing was there to probe with. The lane knows from the store when there will be.
    pub(super) fn give_up_probe(&mut self, id: EndpointId) {
        if let Some(lane) = self.lanes.get(id)
            && let CircuitState::HalfOpen { probe: Some(_) } = lane.circuit.state
        {
            self.move_circuit(id, lane.circuit.probe_given_up());
        }
    }

    pub(super) fn circuit_moved(&mut self, change: CircuitMove) {
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
            let endpoint = &*lane.endpoint.name;
            match to {
                CircuitName::Open => {
                    tracing::warn!(endpoint, "The circuit is open: the receiver keeps failing")
                }
                CircuitName::HalfOpen => {
                    tracing::info!(endpoint, "The circuit is half open: one message tries")
                }
                CircuitName::Closed => tracing::info!(endpoint, "The circuit is closed again"),
            }
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
}
