//! Ended claims that wait to be settled: at once, together with more, or later because the store could not settle them. Pure:
//! the dispatcher passes the time in and calls the store.

use std::time::Duration;

use tokio::time::Instant;

use super::ended_claim::EndedClaim;

/// One settle carries at most this much, so that its transaction stays short.
const BATCH_MAX: usize = 256;
/// While every free slot is filled from prefetched claims, settling is not urgent: ended claims are gathered up to a
/// batch and this long, so that fewer and larger transactions carry them.
const GATHER_MAX: Duration = Duration::from_millis(20);
/// Shorter for a message with an ordering key: its successor waits for the settle.
const KEYED_GATHER_MAX: Duration = Duration::from_millis(2);
/// How long a postponed settlement waits: the first time, and at most.
const POSTPONE_MIN: Duration = Duration::from_millis(250);
const POSTPONE_MAX: Duration = Duration::from_secs(5);
/// With more than this unsettled, nothing more is claimed.
const UNSETTLED_MAX: usize = 1024;

#[derive(Default)]
pub(super) struct SettleQueue {
    ready: Vec<EndedClaim>,
    /// What the store could not settle, and when it is asked again.
    postponed: Vec<(Instant, EndedClaim)>,
    /// `ready` may wait for more until then. None: it is settled at once.
    gather_until: Option<Instant>,
}

impl SettleQueue {
    pub(super) fn push(&mut self, ended: EndedClaim) {
        self.ready.push(ended);
    }

    /// The claim just pushed may wait for others, less long if a successor of its ordering key waits for it.
    pub(super) fn gather(&mut self, is_keyed: bool, now: Instant) {
        let until = now + if is_keyed { KEYED_GATHER_MAX } else { GATHER_MAX };
        // The most urgent one decides for all.
        self.gather_until = match self.ready.len() {
            1 => Some(until),
            _ => self.gather_until.map(|others| others.min(until)),
        };
    }

    pub(super) fn hurry(&mut self) {
        self.gather_until = None;
    }

    pub(super) fn may_wait(&self, now: Instant) -> bool {
        self.gather_until.is_some_and(|until| now < until) && self.ready.len() < BATCH_MAX
    }

    /// The next to settle, in the order they ended; empty when there are none.
    pub(super) fn take_batch(&mut self) -> Vec<EndedClaim> {
        self.gather_until = None;
        let count = self.ready.len().min(BATCH_MAX);
        self.ready.drain(..count).collect()
    }

    /// The store failed: this batch comes first again.
    pub(super) fn put_back(&mut self, batch: Vec<EndedClaim>) {
        self.ready.splice(0..0, batch);
    }

    /// The store answered "later". Each time it waits twice as long: a foreign transaction may stay open for hours.
    pub(super) fn postpone(&mut self, mut ended: EndedClaim, now: Instant) {
        let delay = POSTPONE_MIN.saturating_mul(1 << ended.postponed.min(10)).min(POSTPONE_MAX);
        ended.postponed += 1;
        self.postponed.push((now + delay, ended));
    }

    /// Postponed settlements whose wait is over are ready again.
    pub(super) fn resume_postponed(&mut self, now: Instant) {
        let due = self.postponed.extract_if(.., |(at, _)| *at <= now).map(|(_, ended)| ended);
        self.ready.extend(due);
    }

    /// A store that settles nothing gets no new claims. As many as may be in flight can always end.
    pub(super) fn is_full(&self, in_flight_max: u32) -> bool {
        self.ready.len() + self.postponed.len() >= UNSETTLED_MAX.max(in_flight_max as usize)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.postponed.is_empty()
    }

    /// When to look again. While the store is busy with a call, gathering has no deadline: the next batch waits for the
    /// answer.
    pub(super) fn wake_at(&self, store_is_busy: bool) -> Option<Instant> {
        let gathered = self.gather_until.filter(|_| !store_is_busy);
        self.postponed.iter().map(|(at, _)| *at).chain(gathered).min()
    }

    /// Everything, for the last settle of a node that stops.
    pub(super) fn take_all(&mut self) -> Vec<EndedClaim> {
        let postponed = self.postponed.drain(..).map(|(_, ended)| ended);
        self.ready.drain(..).chain(postponed).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::Map;

    use super::*;
    use crate::endpoint::EndpointId;
    use crate::message::{Claim, Fence, Message, MessageId, NodeId};

    fn ended(id: i64) -> EndedClaim {
        let message = Message {
            id: MessageId(id),
            endpoint: EndpointId(1),
            payload: "1".into(),
            content_type: "application/json".into(),
            headers: BTreeMap::new(),
            options: Map::new(),
            priority: 0,
            expires_at: None,
            correlation_id: None,
            ordering_key: None,
            event_type: None,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let fence = Fence { node: NodeId(1), batch: 1 };
        let claim = Claim { message: Arc::new(message), fence, attempt: 1, attempts_before: 0, losses: 0 };
        EndedClaim::released(&claim, Timestamp::UNIX_EPOCH)
    }

    fn queue(ids: impl IntoIterator<Item = i64>) -> SettleQueue {
        SettleQueue { ready: ids.into_iter().map(ended).collect(), ..SettleQueue::default() }
    }

    fn ids(batch: &[EndedClaim]) -> Vec<i64> {
        batch.iter().map(|ended| ended.settlement.id.0).collect()
    }

    #[test]
    fn a_batch_is_bounded_and_in_the_order_of_the_ends() {
        let mut queue = queue(1..=300);
        assert_eq!(ids(&queue.take_batch()), Vec::from_iter(1..=256));
        assert_eq!(ids(&queue.take_batch()), Vec::from_iter(257..=300));
        assert!(queue.take_batch().is_empty() && queue.is_empty());
    }

    #[test]
    fn a_batch_that_the_store_refused_comes_first_again() {
        let mut queue = queue([1, 2]);
        let batch = queue.take_batch();
        queue.push(ended(3));
        queue.put_back(batch);
        assert_eq!(ids(&queue.take_batch()), [1, 2, 3]);
    }

    #[test]
    fn the_most_urgent_claim_decides_how_long_all_wait() {
        let now = Instant::now();
        let (keyed, unkeyed) = (Some(now + KEYED_GATHER_MAX), Some(now + GATHER_MAX));
        for (ends, until) in [
            (vec![false], unkeyed),
            (vec![true], keyed),
            (vec![true, false], keyed),
            (vec![false, true], keyed),
        ] {
            let mut queue = SettleQueue::default();
            for is_keyed in &ends {
                queue.push(ended(1));
                queue.gather(*is_keyed, now);
            }
            assert_eq!(queue.wake_at(false), until, "{ends:?}");
            assert!(queue.may_wait(now) && !queue.may_wait(now + GATHER_MAX));
        }
    }

    #[test]
    fn one_that_cannot_wait_makes_all_go_at_once() {
        let now = Instant::now();
        let mut queue = queue([1]);
        queue.gather(false, now);
        queue.hurry();
        queue.push(ended(2));
        queue.gather(false, now);
        assert!(!queue.may_wait(now));
        queue.take_batch();
        queue.push(ended(3));
        queue.gather(false, now);
        assert!(queue.may_wait(now), "the next batch gathers again");
    }

    #[test]
    fn a_full_batch_waits_for_no_more() {
        let now = Instant::now();
        let mut queue = queue([1]);
        queue.gather(false, now);
        (2..=256).for_each(|id| queue.push(ended(id)));
        assert!(!queue.may_wait(now));
    }

    #[test]
    fn what_the_store_postpones_waits_twice_as_long_each_time() {
        let (mut queue, mut now) = (queue([1]), Instant::now());
        for millis in [250, 500, 1000, 2000, 4000, 5000, 5000] {
            let ended = queue.take_batch().pop().expect("it is due");
            queue.postpone(ended, now);
            assert!(queue.take_batch().is_empty() && !queue.is_empty());
            assert_eq!(queue.wake_at(true), Some(now + Duration::from_millis(millis)));
            now += Duration::from_millis(millis);
            queue.resume_postponed(now);
        }
    }

    #[test]
    fn a_store_that_settles_nothing_fills_the_queue() {
        let now = Instant::now();
        let mut queue = queue(1..1024);
        assert!(!queue.is_full(16));
        queue.postpone(ended(1024), now);
        assert!(queue.is_full(16) && !queue.is_full(5000), "as many as run may always end");
        assert_eq!(queue.take_all().len(), 1024);
        assert!(queue.is_empty());
    }
}
