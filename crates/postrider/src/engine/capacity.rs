//! How many claims may be in flight, on this node and for each endpoint. The dispatcher and senders that claim their own
//! message directly share it. Its unit is a slot: one claim that runs or waits to run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::endpoint::EndpointId;
use crate::store::DirectClaims;

/// Once half of the slots are taken, no endpoint may take more than this part of the rest.
const FAIR_PART: u32 = 8;
/// This part of the slots is reserved for prompt endpoints, so that hanging endpoints, however many, do not stop them.
const RESERVE_PART: u32 = 8;
/// An endpoint is prompt while its last attempt took at most this long, whatever its outcome.
const PROMPT_MAX: Duration = Duration::from_secs(1);

pub(super) struct Capacity {
    free: AtomicU32,
    total: u32,
    endpoints: RwLock<HashMap<EndpointId, Arc<EndpointCapacity>>>,
}

#[derive(Default)]
pub(super) struct EndpointCapacity {
    taken: AtomicU32,
    /// For direct claims by senders; 0 sends their messages through the queue.
    direct_limit: AtomicU32,
    is_prompt: AtomicBool,
}

impl Capacity {
    pub(super) fn new(total: u32) -> Self {
        Self { free: AtomicU32::new(total), total, endpoints: RwLock::default() }
    }

    pub(super) fn endpoint(&self, id: EndpointId) -> Arc<EndpointCapacity> {
        self.write().entry(id).or_default().clone()
    }

    pub(super) fn forget(&self, id: EndpointId) {
        self.write().remove(&id);
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

    pub(super) fn taken(&self, id: EndpointId) -> u32 {
        self.read().get(&id).map_or(0, |endpoint| endpoint.taken.load(Relaxed))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free() == self.total
    }

    /// Takes up to `wanted` slots while the endpoint has at most `limit`; returns how many. For probes and suspects, which
    /// may use the reserve.
    pub(super) fn reserve(&self, endpoint: &EndpointCapacity, limit: u32, wanted: u32) -> u32 {
        self.reserve_beyond(0, endpoint, limit, wanted)
    }

    /// The same for due messages, which leave the reserve to prompt endpoints.
    pub(super) fn reserve_due(&self, endpoint: &EndpointCapacity, limit: u32, wanted: u32) -> u32 {
        self.reserve_beyond(self.reserve_against(endpoint), endpoint, limit, wanted)
    }

    /// All free slots are reserved for prompt endpoints, and this endpoint is not prompt.
    pub(super) fn only_reserve_left_for(&self, endpoint: &EndpointCapacity) -> bool {
        self.free() <= self.reserve_against(endpoint)
    }

    fn reserve_against(&self, endpoint: &EndpointCapacity) -> u32 {
        if endpoint.is_prompt.load(Relaxed) { 0 } else { self.total / RESERVE_PART }
    }

    fn reserve_beyond(&self, reserve: u32, endpoint: &EndpointCapacity, limit: u32, wanted: u32) -> u32 {
        let limit = limit.min(self.fair_limit(reserve, endpoint));
        let of_node = take(&self.free, reserve, wanted);
        let of_endpoint = add(&endpoint.taken, limit, of_node);
        self.free.fetch_add(of_node - of_endpoint, Relaxed);
        of_endpoint
    }

    /// The fewer slots are free, the fewer one endpoint gets, so that an endpoint always finds one while others hang.
    fn fair_limit(&self, reserve: u32, endpoint: &EndpointCapacity) -> u32 {
        let (free, own) = (self.free(), endpoint.taken.load(Relaxed));
        let is_alone = free + own >= self.total;
        let left = free.saturating_sub(reserve);
        if is_alone || left >= self.total / 2 { u32::MAX } else { (left / FAIR_PART).max(1) }
    }

    /// Also for an endpoint that was dropped since: the node gets the slots back.
    pub(super) fn release(&self, id: EndpointId, count: u32) {
        if let Some(endpoint) = self.read().get(&id) {
            endpoint.taken.fetch_sub(count, Relaxed);
        }
        self.free.fetch_add(count, Relaxed);
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<EndpointId, Arc<EndpointCapacity>>> {
        self.endpoints.read().expect("no code panics while holding this lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<EndpointId, Arc<EndpointCapacity>>> {
        self.endpoints.write().expect("no code panics while holding this lock")
    }
}

impl EndpointCapacity {
    pub(super) fn has_free(&self, limit: u32) -> bool {
        self.taken.load(Relaxed) < limit
    }

    /// One of its attempts took this long.
    pub(super) fn observe(&self, duration: Duration) {
        self.is_prompt.store(duration <= PROMPT_MAX, Relaxed);
    }

    pub(super) fn set_direct_limit(&self, limit: u32) {
        self.direct_limit.store(limit, Relaxed);
    }
}

impl DirectClaims for Capacity {
    fn try_reserve(&self, id: EndpointId) -> bool {
        let endpoints = self.read();
        let Some(endpoint) = endpoints.get(&id) else { return false };
        self.reserve_due(endpoint, endpoint.direct_limit.load(Relaxed), 1) == 1
    }

    fn give_back(&self, id: EndpointId) {
        self.release(id, 1);
    }
}

/// Takes up to `wanted` of what is free beyond the reserve.
fn take(free: &AtomicU32, reserve: u32, wanted: u32) -> u32 {
    let available = |free: u32| free.saturating_sub(reserve).min(wanted);
    let before = free.fetch_update(Relaxed, Relaxed, |free| Some(free - available(free)));
    before.map_or(0, available)
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
        let capacity = Capacity::new(5);
        let (a, b) = (capacity.endpoint(EndpointId(1)), capacity.endpoint(EndpointId(2)));
        assert_eq!(capacity.reserve(&a, 3, 10), 3);
        assert_eq!(capacity.reserve(&b, 10, 1), 1);
        assert_eq!(capacity.reserve(&a, 3, 10), 0);
        assert_eq!(capacity.reserve(&b, 2, 10), 0, "the last one is kept for others");
        let c = capacity.endpoint(EndpointId(3));
        assert_eq!(capacity.reserve(&c, 10, 10), 1);
        assert_eq!(capacity.free(), 0);
        capacity.release(EndpointId(3), 1);
        capacity.release(EndpointId(1), 3);
        capacity.release(EndpointId(2), 1);
        assert!(capacity.is_idle());
    }

    #[test]
    fn many_endpoints_that_take_all_they_can_leave_a_slot_for_another() {
        let capacity = Capacity::new(80);
        for id in 1..=20 {
            let mut got = 0;
            while capacity.reserve(&capacity.endpoint(EndpointId(id)), 16, 1) == 1 {
                got += 1;
            }
            assert!(got >= 1, "endpoint {id} has its turn");
        }
        assert_eq!(capacity.reserve(&capacity.endpoint(EndpointId(21)), 64, 10), 1);
    }

    #[test]
    fn an_endpoint_that_is_alone_may_have_all_the_room() {
        let capacity = Capacity::new(8);
        assert_eq!(capacity.reserve(&capacity.endpoint(EndpointId(1)), 10, 5), 5);
        assert_eq!(capacity.reserve(&capacity.endpoint(EndpointId(1)), 10, 5), 3);
    }

    #[test]
    fn however_many_endpoints_hang_the_next_one_finds_room() {
        let capacity = Capacity::new(1024);
        for hanging in 1..=80 {
            assert!(capacity.reserve(&capacity.endpoint(EndpointId(hanging)), 16, 16) > 0);
        }
        assert!(capacity.reserve(&capacity.endpoint(EndpointId(81)), 16, 16) > 0);
    }

    #[test]
    fn more_hanging_endpoints_than_slots_leave_room_for_a_prompt_one() {
        let capacity = Capacity::new(80);
        let (hanging, prompt) = (|id| capacity.endpoint(EndpointId(id)), capacity.endpoint(EndpointId(0)));
        prompt.observe(Duration::from_millis(10));
        let taken: u32 = (1..=100).map(|id| capacity.reserve_due(&hanging(id), 16, 1)).sum();
        assert_eq!((taken, capacity.free()), (70, 10));
        assert!(capacity.only_reserve_left_for(&hanging(101)) && !capacity.only_reserve_left_for(&prompt));
        assert_eq!(capacity.reserve_due(&prompt, 16, 16), 1);
        assert_eq!(capacity.reserve(&hanging(101), 16, 1), 1, "a probe takes any room");
        prompt.observe(Duration::from_secs(10));
        assert_eq!(capacity.reserve_due(&prompt, 16, 1), 0, "it hangs itself now");
    }

    #[test]
    fn a_closed_endpoint_keeps_senders_out() {
        let capacity = Capacity::new(5);
        assert!(!capacity.try_reserve(EndpointId(1)), "an unknown endpoint has no room");
        let endpoint = capacity.endpoint(EndpointId(1));
        assert!(!capacity.try_reserve(EndpointId(1)));
        endpoint.set_direct_limit(1);
        assert!(capacity.try_reserve(EndpointId(1)));
        assert!(!capacity.try_reserve(EndpointId(1)));
        capacity.give_back(EndpointId(1));
        assert!(capacity.try_reserve(EndpointId(1)));
    }
}
