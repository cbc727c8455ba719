//! What the API needs of the node it is part of.

use postrider::endpoint::{Endpoint, EndpointId};
use postrider::engine::{EngineEvent, TestDelivery};
use postrider::sink::SinkConnection;
use postrider::store::NodeLimits;
use postrider::{NewMessage, StoreError};
use tokio::sync::broadcast::Receiver;

/// A running engine; None before it has started and once it has stopped.
pub(crate) trait NodeHandle: Send + Sync + 'static {
    fn is_progressing(&self) -> bool;
    /// What keeps it from starting.
    fn waits_for(&self) -> Option<String> {
        None
    }
    fn events(&self) -> Option<Receiver<EngineEvent>>;
    fn limits(&self) -> Option<NodeLimits>;
    /// Whether it is connected to an endpoint's receiver.
    fn connection(&self, _: EndpointId) -> Option<SinkConnection> {
        None
    }
    fn test_delivery(
        &self,
        endpoint: Endpoint,
        message: NewMessage,
        body_bytes_max: usize,
    ) -> Option<TestDelivery>;
}

pub(super) fn stopping() -> StoreError {
    StoreError::Unavailable("the node is stopping".to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A node whose engine has stopped.
    pub(crate) struct Stopped;

    impl NodeHandle for Stopped {
        fn is_progressing(&self) -> bool {
            false
        }
        fn events(&self) -> Option<Receiver<EngineEvent>> {
            None
        }
        fn limits(&self) -> Option<NodeLimits> {
            None
        }
        fn test_delivery(&self, _: Endpoint, _: NewMessage, _: usize) -> Option<TestDelivery> {
            None
        }
    }
}
