//! What happened: logs, metrics and live views read only this.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::broadcast;

use crate::breaker::CircuitName;
use crate::endpoint::EndpointId;
use crate::message::{MessageId, State};
use crate::store::Snapshot;
use crate::verdict::Class;

/// How many events a slow reader may lag behind before it misses some.
const EVENTS_KEPT: usize = 4096;

#[derive(Clone, Debug)]
pub struct Event {
    pub at: Timestamp,
    pub endpoint: EndpointId,
    pub endpoint_name: Arc<str>,
    pub happening: Happening,
}

#[derive(Clone, Debug)]
pub enum Happening {
    /// An attempt ended and its settlement is in the store.
    Attempted {
        message: MessageId,
        attempt: u32,
        event_type: Option<Arc<str>>,
        /// What the message is now: completed, pending (a retry), dead or expired.
        state: State,
        /// None when it was delivered.
        class: Option<Class>,
        error: Option<String>,
        status: Option<u16>,
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

/// Where the engine tells what happened. Costs nothing while nobody listens.
#[derive(Clone)]
pub(super) struct Events {
    listeners: broadcast::Sender<Event>,
}

impl Events {
    pub(super) fn new() -> Self {
        Self { listeners: broadcast::Sender::new(EVENTS_KEPT) }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.listeners.subscribe()
    }

    pub(super) fn anybody_listens(&self) -> bool {
        self.listeners.receiver_count() > 0
    }

    pub(super) fn tell(
        &self,
        snapshot: &Snapshot,
        endpoint: EndpointId,
        happening: impl FnOnce() -> Happening,
    ) {
        if self.anybody_listens()
            && let Some(found) = snapshot.endpoints.iter().find(|found| found.id == endpoint)
        {
            self.tell_named(endpoint, found.name.clone(), happening());
        }
    }

    pub(super) fn tell_named(&self, endpoint: EndpointId, endpoint_name: Arc<str>, happening: Happening) {
        // Nobody listening is not an error.
        let _ = self.listeners.send(Event { at: Timestamp::now(), endpoint, endpoint_name, happening });
    }
}
