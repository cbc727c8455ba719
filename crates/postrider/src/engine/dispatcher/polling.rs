//! What the dispatcher learns from the store: arrivals, and the answers to its polls.

use std::sync::Arc;

use jiff::Timestamp;

use super::Dispatcher;
use crate::breaker::Permission;
use crate::endpoint::EndpointId;
use crate::engine::endpoint_states::NodeParts;
use crate::error::StoreError;
use crate::store::{Arrival, Snapshot, Suspect, Waiting};

/// As many as one crash of the largest node leaves behind, so that those of a closed endpoint do not hide the others.
const SUSPECTS_MAX: usize = 10_000;

impl Dispatcher {
    pub(super) fn arrived(&mut self, arrival: Arrival) {
        if let Some(arrival) = self.held_arrivals.pass(arrival) {
            self.handle(arrival);
        }
        if self.held_arrivals.is_full() {
            self.handle_held();
        }
    }

    fn handle(&mut self, arrival: Arrival) {
        match arrival {
            Arrival::Reconfigured | Arrival::CircuitMoved => self.reload.want(),
            Arrival::Claimed(claim) => self.take_up(claim),
            Arrival::Pending(id) => {
                self.wake(id);
                self.suspects.want();
            }
            Arrival::Outside => {
                self.look.want();
                self.suspects.want();
            }
        }
    }

    pub(super) fn handle_held(&mut self) {
        self.held_arrivals.take_all().into_iter().for_each(|arrival| self.handle(arrival));
    }

    pub(super) fn wake(&mut self, id: EndpointId) {
        if !self.endpoints.wake(id) {
            // A new endpoint: its messages are found after the reload.
            self.reload.want();
        }
    }

    pub(super) fn due(&mut self, id: EndpointId, due_at: Timestamp) {
        if !self.endpoints.due(id, due_at, self.parts.store.now()) {
            // A new endpoint: its messages are found after the reload.
            self.reload.want();
        }
    }

    /// Finds what a missed wake-up left behind.
    pub(super) fn check_all(&mut self) {
        self.endpoints.line_up_all();
        let stuck = self.endpoints.stuck(self.parts.store.now());
        stuck.into_iter().for_each(|id| self.release_prefetched(id));
        self.look.want();
        self.suspects.want();
    }

    pub(super) fn begin_polls(&mut self) {
        let store = &self.parts.store;
        let known = self.parts.snapshot.version;
        let begun = self.reload.begin_if_due(|| {
            let store = store.clone();
            async move { store.snapshot(Some(known)).await }
        });
        if begun {
            self.held_arrivals.reload_began();
        }
        self.look.begin_if_due(|| {
            let store = store.clone();
            async move { store.waiting().await }
        });
        self.suspects.begin_if_due(|| {
            let store = store.clone();
            async move { store.suspects(SUSPECTS_MAX).await }
        });
    }

    pub(super) fn reload_answered(&mut self, snapshot: Result<Option<Arc<Snapshot>>, StoreError>) {
        match snapshot {
            Ok(Some(snapshot)) => self.take_snapshot(snapshot),
            Ok(None) => {}
            Err(error) => {
                self.reload.want();
                self.store_failed("load endpoints and settings", &error);
                return self.handle_held();
            }
        }
        self.held_arrivals.reload_ended().into_iter().for_each(|arrival| self.handle(arrival));
    }

    pub(super) fn take_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        self.parts.snapshot = snapshot;
        self.parts.settings.send_replace(self.parts.snapshot.settings.clone());
        for id in self.endpoints.with_prefetched() {
            if !self.parts.snapshot.endpoints.iter().any(|endpoint| endpoint.id == id) {
                self.release_prefetched(id);
            }
        }
        let accepts = self.accepts_direct();
        let parts = NodeParts {
            environment: &self.parts.environment,
            capacity: &self.parts.capacity,
            counters: &self.parts.counters,
        };
        self.endpoints.reconfigure(&self.parts.snapshot, &parts, accepts);
        let (now, paused) = (self.parts.store.now(), self.parts.snapshot.paused.is_some());
        for id in self.endpoints.with_prefetched() {
            let permission = self.endpoints.get(id).and_then(|state| state.permission(now));
            if paused || permission != Some(Permission::Deliver) {
                self.release_prefetched(id);
            }
        }
        // An endpoint that was resumed, enabled or reset may have due messages.
        self.look.want_now();
        self.probation.wake_all();
        self.suspects.want();
    }

    pub(super) fn look_answered(&mut self, waiting: Result<Vec<Waiting>, StoreError>) {
        match waiting {
            Ok(waiting) => waiting.into_iter().for_each(|waiting| self.due(waiting.endpoint, waiting.due_at)),
            Err(error) => {
                self.look.want();
                self.store_failed("look for due messages", &error);
            }
        }
    }

    pub(super) fn suspects_answered(&mut self, found: Result<Vec<Suspect>, StoreError>) {
        match found {
            Ok(found) => self.probation.found(found),
            Err(error) => {
                self.suspects.want();
                self.store_failed("look for messages whose claim was lost", &error);
            }
        }
    }
}
