//! The circuit breaker of one endpoint. No lock, no clock: time is passed in, and asking changes nothing.
//!
//! The circuit is in the store, so that all nodes share it, and moves by compare-and-swap on its epoch. Each node counts
//! failures by itself ([`Failures`]).

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::message::NodeId;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circuit {
    /// Goes up with every transition. An attempt that started under another epoch does not count.
    pub epoch: i64,
    pub state: CircuitState,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CircuitState {
    #[default]
    Closed,
    /// Nothing is tried before `until`.
    Open { until: Timestamp },
    /// One probe at a time across all nodes. Its lease ends if the probing node dies.
    HalfOpen { probe: Option<Probe> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    pub node: NodeId,
    pub lease_until: Timestamp,
}

/// What a node may do with an endpoint now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    Deliver,
    /// Take the probe by compare-and-swap with [`Circuit::probing`], then claim one message.
    Probe,
    Wait {
        until: Timestamp,
    },
}

impl CircuitState {
    pub fn name(&self) -> CircuitName {
        match self {
            Self::Closed => CircuitName::Closed,
            Self::Open { .. } => CircuitName::Open,
            Self::HalfOpen { .. } => CircuitName::HalfOpen,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CircuitName {
    Closed,
    HalfOpen,
    Open,
}

impl CircuitName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

impl Circuit {
    pub fn permission(&self, now: Timestamp) -> Permission {
        match self.state {
            CircuitState::Closed => Permission::Deliver,
            CircuitState::Open { until } if until <= now => Permission::Probe,
            CircuitState::Open { until } => Permission::Wait { until },
            CircuitState::HalfOpen { probe: None } => Permission::Probe,
            CircuitState::HalfOpen { probe: Some(probe) } if probe.lease_until <= now => Permission::Probe,
            CircuitState::HalfOpen { probe: Some(probe) } => Permission::Wait { until: probe.lease_until },
        }
    }

    #[must_use]
    pub fn opened(self, now: Timestamp, cooldown: Duration) -> Self {
        self.moved(CircuitState::Open { until: now + cooldown })
    }

    #[must_use]
    pub fn probing(self, node: NodeId, lease_until: Timestamp) -> Self {
        self.moved(CircuitState::HalfOpen { probe: Some(Probe { node, lease_until }) })
    }

    /// The node found no message to probe with, or released it: any node may take the probe.
    #[must_use]
    pub fn probe_given_up(self) -> Self {
        self.moved(CircuitState::HalfOpen { probe: None })
    }

    #[must_use]
    pub fn closed(self) -> Self {
        self.moved(CircuitState::Closed)
    }

    fn moved(self, state: CircuitState) -> Self {
        Self { epoch: self.epoch + 1, state }
    }
}

/// What one attempt says about the health of its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Healthy,
    Failing,
    /// Says nothing: a busy receiver, a permanent failure, a lost lease.
    Neutral,
}

/// Consecutive failures as seen by one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    consecutive: u32,
    /// The epoch in which they were counted; a new epoch starts at zero.
    epoch: i64,
}

impl Failures {
    /// Where the circuit should go after an attempt begun under `begun_epoch`; None leaves it.
    pub fn observe(
        &mut self,
        circuit: Circuit,
        begun_epoch: i64,
        sign: Sign,
        now: Timestamp,
        threshold: u32,
        cooldown: Duration,
    ) -> Option<Circuit> {
        if begun_epoch != circuit.epoch {
            return None;
        }
        if self.epoch != circuit.epoch {
            *self = Self { consecutive: 0, epoch: circuit.epoch };
        }
        match (circuit.state, sign) {
            (CircuitState::Closed, Sign::Healthy) => {
                self.consecutive = 0;
                None
            }
            (CircuitState::Closed, Sign::Failing) => {
                self.consecutive += 1;
                (self.consecutive >= threshold).then(|| {
                    self.consecutive = 0;
                    circuit.opened(now, cooldown)
                })
            }
            (CircuitState::Closed | CircuitState::Open { .. }, Sign::Neutral) => None,
            (CircuitState::HalfOpen { .. }, Sign::Healthy) => {
                self.consecutive = 0;
                Some(circuit.closed())
            }
            (CircuitState::HalfOpen { .. }, Sign::Failing) => Some(circuit.opened(now, cooldown)),
            (CircuitState::HalfOpen { .. }, Sign::Neutral) => Some(circuit.probe_given_up()),
            (CircuitState::Open { .. }, Sign::Healthy | Sign::Failing) => None,
        }
    }
}
