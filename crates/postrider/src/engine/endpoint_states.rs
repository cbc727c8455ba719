//! All endpoints: which have work, in which order they are claimed for, and which wait for a time. Calls no store.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::capacity::Capacity;
use super::counters::NodeCounters;
use super::endpoint_state::{EndpointState, Work};
use crate::endpoint::EndpointId;
use crate::sink::Environment;
use crate::store::{NextDue, Snapshot};

/// Parts of the node in which each endpoint has a share.
pub(super) struct NodeParts<'a> {
    pub(super) environment: &'a Arc<Environment>,
    pub(super) capacity: &'a Capacity,
    pub(super) counters: &'a NodeCounters,
}

#[derive(Default)]
pub(super) struct EndpointStates {
    states: HashMap<EndpointId, EndpointState>,
    /// Endpoints that may have work and a free slot, first come first served.
    line: VecDeque<EndpointId>,
    timers: BTreeSet<(Timestamp, EndpointId)>,
}

impl EndpointStates {
    pub(super) fn get(&self, id: EndpointId) -> Option<&EndpointState> {
        self.states.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut EndpointState> {
        self.states.get_mut(&id)
    }

    /// Adopts a new snapshot. The caller has released what was prefetched for dropped endpoints.
    pub(super) fn reconfigure(&mut self, snapshot: &Snapshot, parts: &NodeParts<'_>, node_accepts: bool) {
        let known: HashSet<EndpointId> = snapshot.endpoints.iter().map(|endpoint| endpoint.id).collect();
        self.states.retain(|id, _| {
            let keep = known.contains(id);
            if !keep {
                parts.capacity.forget(*id);
                parts.counters.forget(*id);
            }
            keep
        });
        let mut endpoints: Vec<_> = snapshot.endpoints.iter().collect();
        // Oldest first: only a limited number of endpoints get counters with their own label.
        endpoints.sort_unstable_by_key(|endpoint| endpoint.id);
        for endpoint in endpoints {
            let state = self
                .states
                .entry(endpoint.id)
                .or_insert_with(|| EndpointState::new(endpoint.clone(), &snapshot.settings, parts));
            state.reconfigure(endpoint.clone(), &snapshot.settings, parts.environment);
            state.update_direct_limit(node_accepts);
        }
    }

    pub(super) fn update_direct_limits(&self, node_accepts: bool) {
        self.states.values().for_each(|state| state.update_direct_limit(node_accepts));
    }

    /// Messages may be due. False for an unknown endpoint.
    #[must_use]
    pub(super) fn wake(&mut self, id: EndpointId) -> bool {
        let Some(state) = self.states.get_mut(&id) else { return false };
        state.work = Work::Now;
        self.line_up(id);
        true
    }

    /// A message becomes due then. False for an unknown endpoint.
    #[must_use]
    pub(super) fn due(&mut self, id: EndpointId, due_at: Timestamp, now: Timestamp) -> bool {
        if due_at <= now {
            return self.wake(id);
        }
        let Some(state) = self.states.get_mut(&id) else { return false };
        state.due_at(due_at);
        self.reconsider(id);
        true
    }

    /// The store said when to claim again. A message that arrived meanwhile overrides that.
    pub(super) fn claim_answered(&mut self, id: EndpointId, next: NextDue) {
        let Some(state) = self.states.get_mut(&id) else { return };
        state.claim_answered(next);
        self.reconsider(id);
    }

    /// Nothing is claimed before then, whatever is due.
    pub(super) fn wait_until(&mut self, id: EndpointId, until: Timestamp) {
        let Some(state) = self.states.get_mut(&id) else { return };
        state.work = Work::At(until);
        self.reconsider(id);
    }

    /// Puts an endpoint with work back into the line, or sets its timer.
    pub(super) fn reconsider(&mut self, id: EndpointId) {
        match self.states.get(&id).map(|state| state.work) {
            Some(Work::Now) => self.line_up(id),
            Some(Work::At(due_at)) => _ = self.timers.insert((due_at, id)),
            Some(Work::Asked | Work::Nothing) | None => {}
        }
    }

    fn line_up(&mut self, id: EndpointId) {
        if let Some(state) = self.states.get_mut(&id)
            && !state.in_line
        {
            state.in_line = true;
            self.line.push_back(id);
        }
    }

    /// It keeps its turn.
    pub(super) fn first_in_line(&mut self, id: EndpointId) {
        if let Some(state) = self.states.get_mut(&id)
            && !state.in_line
        {
            state.in_line = true;
            self.line.push_front(id);
        }
    }

    /// Every endpoint with work: one that found no slot before may find one now.
    pub(super) fn line_up_all(&mut self) {
        for (id, state) in &mut self.states {
            if state.work == Work::Now && !state.in_line {
                state.in_line = true;
                self.line.push_back(*id);
            }
        }
    }

    pub(super) fn in_line(&self) -> usize {
        self.line.len()
    }

    /// The next endpoint that still has work.
    pub(super) fn next_in_line(&mut self) -> Option<EndpointId> {
        while let Some(id) = self.line.pop_front() {
            if let Some(state) = self.states.get_mut(&id) {
                state.in_line = false;
                if state.work == Work::Now {
                    return Some(id);
                }
            }
        }
        None
    }

    /// An endpoint in line has nothing prefetched to start.
    pub(super) fn any_needs_claims(&self) -> bool {
        let needs = |state: &EndpointState| state.work == Work::Now && state.prefetch.is_empty();
        self.line.iter().any(|id| self.states.get(id).is_some_and(needs))
    }

    /// Endpoints whose prefetched claims wait behind attempts that hang.
    pub(super) fn stuck(&mut self, now: Timestamp) -> Vec<EndpointId> {
        let states = self.states.iter_mut();
        states.filter_map(|(id, state)| state.prefetch.is_stuck(now).then_some(*id)).collect()
    }

    pub(super) fn with_prefetched(&self) -> Vec<EndpointId> {
        self.states.iter().filter(|(_, state)| !state.prefetch.is_empty()).map(|(id, _)| *id).collect()
    }

    pub(super) fn fire_timers(&mut self, now: Timestamp) {
        while let Some((due_at, id)) = self.timers.first().copied().filter(|(due_at, _)| *due_at <= now) {
            self.timers.pop_first();
            // A timer whose endpoint has another time by now is void.
            if let Some(state) = self.states.get_mut(&id)
                && state.work == Work::At(due_at)
            {
                state.work = Work::Now;
                self.line_up(id);
            }
        }
    }

    pub(super) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(due_at, _)| *due_at)
    }
}
