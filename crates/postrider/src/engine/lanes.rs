//! All endpoints: who has work, who is next in line, who waits for which time. Asks nobody.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use jiff::Timestamp;

use super::lane::{Lane, Work};
use super::slots::Slots;
use super::tally::Tally;
use crate::endpoint::EndpointId;
use crate::sink::Environment;
use crate::store::{NextDue, Snapshot};

/// What a lane shares with others.
pub(super) struct Rooms<'a> {
    pub(super) environment: &'a Arc<Environment>,
    pub(super) slots: &'a Slots,
    pub(super) tally: &'a Tally,
}

#[derive(Default)]
pub(super) struct Lanes {
    lanes: HashMap<EndpointId, Lane>,
    /// Endpoints that may have work and room, first come first served.
    line: VecDeque<EndpointId>,
    timers: BTreeSet<(Timestamp, EndpointId)>,
}

impl Lanes {
    pub(super) fn get(&self, id: EndpointId) -> Option<&Lane> {
        self.lanes.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: EndpointId) -> Option<&mut Lane> {
        self.lanes.get_mut(&id)
    }

    /// Takes over what people changed; lanes that go have no stock any more. `accepts`: senders may claim directly.
    pub(super) fn reconfigure(&mut self, snapshot: &Snapshot, rooms: &Rooms<'_>, accepts: bool) {
        let known: HashSet<EndpointId> = snapshot.endpoints.iter().map(|endpoint| endpoint.id).collect();
        self.lanes.retain(|id, _| {
            let keep = known.contains(id);
            if !keep {
                rooms.slots.forget(*id);
                rooms.tally.forget(*id);
            }
            keep
        });
        let mut endpoints: Vec<_> = snapshot.endpoints.iter().collect();
        // The oldest come first into the tally, where only so many have figures of their own.
        endpoints.sort_unstable_by_key(|endpoint| endpoint.id);
        for endpoint in endpoints {
            let lane = self
                .lanes
                .entry(endpoint.id)
                .or_insert_with(|| Lane::new(endpoint.clone(), &snapshot.settings, rooms));
            lane.reconfigure(endpoint.clone(), &snapshot.settings, rooms.environment);
            lane.publish_room(accepts);
        }
    }

    pub(super) fn publish_room(&self, accepts: bool) {
        self.lanes.values().for_each(|lane| lane.publish_room(accepts));
    }

    /// It may have something due. False when the endpoint is not known.
    #[must_use]
    pub(super) fn wake(&mut self, id: EndpointId) -> bool {
        let Some(lane) = self.lanes.get_mut(&id) else { return false };
        lane.work = Work::Now;
        self.stand_in_line(id);
        true
    }

    /// It has something due then. False when the endpoint is not known.
    #[must_use]
    pub(super) fn due(&mut self, id: EndpointId, due_at: Timestamp, now: Timestamp) -> bool {
        if due_at <= now {
            return self.wake(id);
        }
        let Some(lane) = self.lanes.get_mut(&id) else { return false };
        lane.due_at(due_at);
        self.follow(id);
        true
    }

    /// The store said when to ask again; what arrived meanwhile says it better.
    pub(super) fn answered(&mut self, id: EndpointId, next: NextDue) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.answered(next);
        self.follow(id);
    }

    /// It waits until then, whatever is due before.
    pub(super) fn wait_until(&mut self, id: EndpointId, until: Timestamp) {
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        lane.work = Work::At(until);
        self.follow(id);
    }

    /// One of its attempts ended: if it was short of room, it is in line again.
    pub(super) fn has_room_again(&mut self, id: EndpointId) {
        self.follow(id);
    }

    /// It was this one's turn, and still is.
    pub(super) fn first_in_line(&mut self, id: EndpointId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.in_line
        {
            lane.in_line = true;
            self.line.push_front(id);
        }
    }

    /// Whoever has work and found no room may find some now: others, or senders that changed their mind, gave
    /// it back.
    pub(super) fn line_up(&mut self) {
        for (id, lane) in &mut self.lanes {
            if lane.work == Work::Now && !lane.in_line {
                lane.in_line = true;
                self.line.push_back(*id);
            }
        }
    }

    /// Somebody in line has nothing left to start.
    pub(super) fn anybody_hungry(&self) -> bool {
        let is_hungry = |lane: &Lane| lane.work == Work::Now && lane.stock.is_empty();
        self.line.iter().any(|id| self.lanes.get(id).is_some_and(is_hungry))
    }

    /// Whose stock waits behind attempts that hang.
    pub(super) fn stuck(&mut self, now: Timestamp) -> Vec<EndpointId> {
        let stuck = self.lanes.iter_mut().filter_map(|(id, lane)| lane.stock.is_stuck(now).then_some(*id));
        stuck.collect()
    }

    pub(super) fn with_stock(&self) -> Vec<EndpointId> {
        self.lanes.iter().filter(|(_, lane)| !lane.stock.is_empty()).map(|(id, _)| *id).collect()
    }

    pub(super) fn in_line(&self) -> usize {
        self.line.len()
    }

    /// The next endpoint that still has work.
    pub(super) fn next_in_line(&mut self) -> Option<EndpointId> {
        while let Some(id) = self.line.pop_front() {
            if let Some(lane) = self.lanes.get_mut(&id) {
                lane.in_line = false;
                if lane.work == Work::Now {
                    return Some(id);
                }
            }
        }
        None
    }

    pub(super) fn fire_timers(&mut self, now: Timestamp) {
        while let Some((due_at, id)) = self.timers.first().copied().filter(|(due_at, _)| *due_at <= now) {
            self.timers.pop_first();
            // Another time may have taken its place meanwhile.
            if let Some(lane) = self.lanes.get_mut(&id)
                && lane.work == Work::At(due_at)
            {
                lane.work = Work::Now;
                self.stand_in_line(id);
            }
        }
    }

    pub(super) fn next_timer(&self) -> Option<Timestamp> {
        self.timers.first().map(|(due_at, _)| *due_at)
    }

    fn follow(&mut self, id: EndpointId) {
        match self.lanes.get(&id).map(|lane| lane.work) {
            Some(Work::Now) => self.stand_in_line(id),
            Some(Work::At(due_at)) => _ = self.timers.insert((due_at, id)),
            Some(Work::Asked | Work::Nothing) | None => {}
        }
    }

    fn stand_in_line(&mut self, id: EndpointId) {
        if let Some(lane) = self.lanes.get_mut(&id)
            && !lane.in_line
        {
            lane.in_line = true;
            self.line.push_back(id);
        }
    }
}
