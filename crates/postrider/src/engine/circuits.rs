//! Transitions of circuits on their way to the store, and the probes this node may make.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::breaker::Circuit;
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::Store;

#[derive(Default)]
pub(super) struct Circuits {
    under_way: FuturesUnordered<BoxFuture<'static, CircuitMove>>,
    /// Endpoints whose probe this node holds and has not claimed yet.
    probes: VecDeque<EndpointId>,
}

pub(super) struct CircuitMove {
    pub(super) endpoint: EndpointId,
    pub(super) from: Circuit,
    pub(super) to: Circuit,
    /// False when another node was first.
    pub(super) moved: Result<bool, StoreError>,
}

impl Circuits {
    pub(super) fn begin(&mut self, store: Arc<dyn Store>, endpoint: EndpointId, from: Circuit, to: Circuit) {
        self.under_way.push(Box::pin(async move {
            let moved = store.move_circuit(endpoint, from.epoch, to).await;
            CircuitMove { endpoint, from, to, moved }
        }));
    }

    /// Never while none is under way.
    pub(super) async fn next(&mut self) -> CircuitMove {
        match self.under_way.next().await {
            Some(moved) => moved,
            None => std::future::pending().await,
        }
    }

    pub(super) fn may_probe(&mut self, endpoint: EndpointId) {
        self.probes.push_back(endpoint);
    }

    pub(super) fn next_probe(&mut self) -> Option<EndpointId> {
        self.probes.pop_front()
    }
}
