//! Free room, shared by the dispatcher and by senders that claim in the same breath as they insert.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::endpoint::EndpointId;
use crate::store::DirectClaims;

/// Once half of the room is taken, nobody gets more than this part of the rest.
const FAIR_PART: u32 = 8;
/// This part of the room is kept for prompt endpoints: more hanging ones than there are slots do not stop these.
const KEPT_PART: u32 = 8;
/// An endpoint is prompt while its last attempt ended this soon, whatever its outcome.
const PROMPT_MAX: Duration = Duration::from_secs(1);

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
    is_prompt: AtomicBool,
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

    /// Up to `wanted` slots of `slot`, of which `limit` may be taken; how many there were. For the few claims that a
    /// node makes to find something out; see [`Slots::reserve_due`].
    pub(super) fn reserve(&self, slot: &Slot, limit: u32, wanted: u32) -> u32 {
        self.reserve_beyond(0, slot, limit, wanted)
    }

    /// The same for whatever is due, which leaves the kept part to prompt endpoints.
    pub(super) fn reserve_due(&self, slot: &Slot, limit: u32, wanted: u32) -> u32 {
        self.reserve_beyond(self.kept_from(slot), slot, limit, wanted)
    }

    /// What is free is kept for prompt endpoints, and this is none of them.
    pub(super) fn only_kept_room_for(&self, slot: &Slot) -> bool {
        self.free() <= self.kept_from(slot)
    }

    fn kept_from(&self, slot: &Slot) -> u32 {
        if slot.is_prompt.load(Relaxed) { 0 } else { self.total / KEPT_PART }
    }

    fn reserve_beyond(&self, kept: u32, slot: &Slot, limit: u32, wanted: u32) -> u32 {
        let limit = limit.min(self.fair_limit(kept, slot));
        let of_node = take(&self.free, kept, wanted);
        let of_endpoint = add(&slot.taken, limit, of_node);
        self.free.fetch_add(of_node - of_endpoint, Relaxed);
        of_endpoint
    }

    /// The less room others leave, the less of it one endpoint gets: however many receivers hang, one that
    /// does not finds a slot.
    fn fair_limit(&self, kept: u32, slot: &Slot) -> u32 {
        let (free, own) = (self.free(), slot.taken.load(Relaxed));
        let is_alone = free + own >= self.total;
        let left = free.saturating_sub(kept);
        if is_alone || left >= self.total / 2 { u32::MAX } else { (left / FAIR_PART).max(1) }
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

    /// One of its attempts took this long.
    pub(super) fn observe(&self, duration: Duration) {
        self.is_prompt.store(duration <= PROMPT_MAX, Relaxed);
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Relaxed);
    }
}

impl DirectClaims for Slots {
    fn try_reserve(&self, endpoint: EndpointId) -> bool {
        let endpoints = self.endpoints.read().expect("nobody panics while holding the slots");
        let Some(slot) = endpoints.get(&endpoint) else { return false };
        self.reserve_due(slot, slot.limit.load(Relaxed), 1) == 1
    }

    fn give_back(&self, endpoint: EndpointId) {
        self.release(endpoint, 1);
    }
}

/// Takes up to `wanted` from what is free beyond `kept`.
fn take(free: &AtomicU32, kept: u32, wanted: u32) -> u32 {
    let there_are = |free: u32| free.saturating_sub(kept).min(wanted);
    let before = free.fetch_update(Relaxed, Relaxed, |free| Some(free - there_are(free)));
    before.map_or(0, there_are)
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
    fn more_hanging_endpoints_than_slots_leave_room_for_a_prompt_one() {
        let slots = Slots::new(80);
        let (hanging, prompt) = (|id| slots.slot(EndpointId(id)), slots.slot(EndpointId(0)));
        prompt.observe(Duration::from_millis(10));
        let taken: u32 = (1..=100).map(|id| slots.reserve_due(&hanging(id), 16, 1)).sum();
        assert_eq!((taken, slots.free()), (70, 10));
        assert!(slots.only_kept_room_for(&hanging(101)) && !slots.only_kept_room_for(&prompt));
        assert_eq!(slots.reserve_due(&prompt, 16, 16), 1);
        assert_eq!(slots.reserve(&hanging(101), 16, 1), 1, "a probe takes any room");
        prompt.observe(Duration::from_secs(10));
        assert_eq!(slots.reserve_due(&prompt, 16, 1), 0, "it hangs itself now");
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
