//! Free room, shared by the dispatcher and by senders that claim in the same breath as they insert.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

use crate::endpoint::EndpointId;
use crate::store::DirectClaims;

/// Once half of the room is taken, nobody gets more than this part of the rest.
const FAIR_PART: u32 = 8;

/// The node's room over all endpoints, and each endpoint's own.
pub(super) struct Slots {
    free: AtomicU32,
    total: u32,
    endpoints: RwLock<HashMap<EndpointId, Arc<Slot>>>,
}

/// One endpoint's room: claims that run or wait to run. A limit of 0 keeps senders out: its work goes through
/// the queue.
#[derive(Default)]
pub(super) struct Slot {
    taken: AtomicU32,
    limit: AtomicU32,
}

impl Slots {
    pub(super) fn new(total: u32) -> Self {
        Self { free: AtomicU32::new(total), total, endpoints: RwLock::default() }
    }

    pub(super) fn slot(&self, endpoint: EndpointId) -> Arc<Slot> {
        let mut endpoints = self.endpoints.write().expect("nobody panics while holding the slots");
        endpoints.entry(endpoint).or_default().clone()
    }

    pub(super) fn forget(&self, endpoint: EndpointId) {
        self.endpoints.write().expect("nobody panics while holding the slots").remove(&endpoint);
    }

    pub(super) fn free(&self) -> u32 {
        self.free.load(Relaxed)
    }

    pub(super) fn total(&self) -> u32 {
        self.total
    }

    pub(super) fn taken_in_all(&self) -> u32 {
        self.total.saturating_sub(self.free())
    }

    pub(super) fn taken(&self, endpoint: EndpointId) -> u32 {
        let endpoints = self.endpoints.read().expect("nobody panics while holding the slots");
        endpoints.get(&endpoint).map_or(0, |slot| slot.taken.load(Relaxed))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free() == self.total
    }

    /// Up to `wanted` slots of `slot`, of which `limit` may be taken; how many there were.
    pub(super) fn reserve(&self, slot: &Slot, limit: u32, wanted: u32) -> u32 {
        let limit = limit.min(self.fair_limit(slot));
        let of_node = take(&self.free, wanted);
        let of_endpoint = add(&slot.taken, limit, of_node);
        self.free.fetch_add(of_node - of_endpoint, Relaxed);
        of_endpoint
    }

    /// The less room others leave, the less of it one endpoint gets: however many receivers hang, one that
    /// does not finds a slot.
    fn fair_limit(&self, slot: &Slot) -> u32 {
        let (free, own) = (self.free(), slot.taken.load(Relaxed));
        let is_alone = free + own >= self.total;
        if is_alone || free >= self.total / 2 { u32::MAX } else { (free / FAIR_PART).max(1) }
    }

    /// An endpoint that was dropped meanwhile has no slots of its own any more; the node's room comes back.
    pub(super) fn release(&self, endpoint: EndpointId, count: u32) {
        let endpoints = self.endpoints.read().expect("nobody panics while holding the slots");
        if let Some(slot) = endpoints.get(&endpoint) {
            slot.taken.fetch_sub(count, Relaxed);
        }
        self.free.fetch_add(count, Relaxed);
    }
}

impl Slot {
    pub(super) fn has_room(&self, limit: u32) -> bool {
        self.taken.load(Relaxed) < limit
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Relaxed);
    }
}

impl DirectClaims for Slots {
    fn try_reserve(&self, endpoint: EndpointId) -> bool {
        let endpoints = self.endpoints.read().expect("nobody panics while holding the slots");
        let Some(slot) = endpoints.get(&endpoint) else { return false };
        self.reserve(slot, slot.limit.load(Relaxed), 1) == 1
    }

    fn give_back(&self, endpoint: EndpointId) {
        self.release(endpoint, 1);
    }
}

/// Takes up to `wanted` from what is free.
fn take(free: &AtomicU32, wanted: u32) -> u32 {
    let before = free.fetch_update(Relaxed, Relaxed, |free| Some(free - free.min(wanted)));
    before.map_or(0, |free| free.min(wanted))
}

/// Adds up to `wanted` while staying within `limit`.
fn add(taken: &AtomicU32, limit: u32, wanted: u32) -> u32 {
    let fits = |taken: u32| limit.saturating_sub(taken).min(wanted);
    let before = taken.fetch_update(Relaxed, Relaxed, |taken| Some(taken + fits(taken)));
    before.map_or(0, fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_the_node_nor_an_endpoint_gets_more_than_its_room() {
        let slots = Slots::new(5);
        let (a, b) = (slots.slot(EndpointId(1)), slots.slot(EndpointId(2)));
        assert_eq!(slots.reserve(&a, 3, 10), 3);
        assert_eq!(slots.reserve(&b, 10, 1), 1);
        assert_eq!(slots.reserve(&a, 3, 10), 0);
        assert_eq!(slots.reserve(&b, 2, 10), 0, "the last one is kept for others");
        let c = slots.slot(EndpointId(3));
        assert_eq!(slots.reserve(&c, 10, 10), 1);
        assert_eq!(slots.free(), 0);
        slots.release(EndpointId(3), 1);
        slots.release(EndpointId(1), 3);
        slots.release(EndpointId(2), 1);
        assert!(slots.is_idle());
    }

    #[test]
    fn many_endpoints_that_take_all_they_can_leave_a_slot_for_another() {
        let slots = Slots::new(80);
        for id in 1..=20 {
            let mut got = 0;
            while slots.reserve(&slots.slot(EndpointId(id)), 16, 1) == 1 {
                got += 1;
            }
            assert!(got >= 1, "endpoint {id} has its turn");
        }
        assert_eq!(slots.reserve(&slots.slot(EndpointId(21)), 64, 10), 1);
    }

    #[test]
    fn an_endpoint_that_is_alone_may_have_all_the_room() {
        let slots = Slots::new(8);
        assert_eq!(slots.reserve(&slots.slot(EndpointId(1)), 10, 5), 5);
        assert_eq!(slots.reserve(&slots.slot(EndpointId(1)), 10, 5), 3);
    }

    #[test]
    fn however_many_endpoints_hang_the_next_one_finds_room() {
        let slots = Slots::new(1024);
        for hanging in 1..=80 {
            assert!(slots.reserve(&slots.slot(EndpointId(hanging)), 16, 16) > 0);
        }
        assert!(slots.reserve(&slots.slot(EndpointId(81)), 16, 16) > 0);
    }

    #[test]
    fn a_closed_endpoint_keeps_senders_out() {
        let slots = Slots::new(5);
        assert!(!slots.try_reserve(EndpointId(1)), "an unknown endpoint has no room");
        let slot = slots.slot(EndpointId(1));
        assert!(!slots.try_reserve(EndpointId(1)));
        slot.set_limit(1);
        assert!(slots.try_reserve(EndpointId(1)));
        assert!(!slots.try_reserve(EndpointId(1)));
        slots.give_back(EndpointId(1));
        assert!(slots.try_reserve(EndpointId(1)));
    }
}
