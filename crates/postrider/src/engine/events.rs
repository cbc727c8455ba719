//! What happens on this node, for live views (`tail`, the demo's screen).

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::breaker::CircuitName;
use crate::endpoint::EndpointId;
use crate::message::{MessageId, State};
use crate::verdict::Class;

/// A reader that lags further behind misses events.
const EVENTS_KEPT: usize = 4096;

#[derive(Clone, Debug)]
pub struct EngineEvent {
    pub at: Timestamp,
    pub endpoint: EndpointId,
    pub endpoint_name: Arc<str>,
    pub kind: EngineEventKind,
}

#[derive(Clone, Debug)]
pub enum EngineEventKind {
    /// An attempt ended and is settled.
    Attempted {
        message: MessageId,
        attempt: u32,
        event_type: Option<Arc<str>>,
        /// The message's new state: completed, pending (a retry), dead or expired.
        state: State,
        /// None when it was delivered.
        class: Option<Class>,
        error: Option<String>,
        response_status: Option<u16>,
        duration: Duration,
        /// Since the message was created.
        age: Duration,
    },
    /// A claim was lost with its node and went through the retry decision.
    Lost {
        message: MessageId,
        state: State,
    },
    Circuit {
        from: CircuitName,
        to: CircuitName,
    },
}

/// Costs nothing without listeners.
#[derive(Clone)]
pub(super) struct Events {
    listeners: broadcast::Sender<EngineEvent>,
}

impl Events {
    pub(super) fn new() -> Self {
        Self { listeners: broadcast::Sender::new(EVENTS_KEPT) }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<EngineEvent> {
        self.listeners.subscribe()
    }

    pub(super) fn has_listeners(&self) -> bool {
        self.listeners.receiver_count() > 0
    }

    pub(super) fn send(&self, endpoint: EndpointId, endpoint_name: Arc<str>, kind: EngineEventKind) {
        // It fails only when there is no listener.
        let _ = self.listeners.send(EngineEvent { at: Timestamp::now(), endpoint, endpoint_name, kind });
    }
}
