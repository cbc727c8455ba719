//! What happened: logs, metrics and live views read only this.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::breaker::CircuitName;
use crate::endpoint::EndpointId;
use crate::message::{MessageId, State};
use crate::verdict::Class;

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
