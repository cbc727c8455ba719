//! Which messages of this process's own claims are not settled yet. The database keeps one row per claim and rewrites it
//! rarely: a settle deletes the row when the claim is empty, and shortens it when three quarters are settled.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use serde_json::{Map, Value, json};

use crate::message::{Fence, NodeId};
use crate::store::Settlement;

#[derive(Default)]
pub(super) struct Batches(Mutex<OpenBatches>);

#[derive(Default)]
struct OpenBatches {
    batches: HashMap<Fence, OpenBatch>,
    /// Empty batches whose rows still exist.
    over: HashSet<Fence>,
}

struct OpenBatch {
    open: HashSet<i64>,
    /// Being settled now.
    settling: HashSet<i64>,
    /// How many ids the row holds.
    written: usize,
}

/// What a settle does to the rows of one node's claims.
#[derive(Debug, Default)]
pub(super) struct Closing {
    pub(super) finished: Vec<i64>,
    /// `{"batch": [ids]}`.
    pub(super) left: Option<Value>,
}

impl Batches {
    pub(super) fn claimed(&self, fence: Fence, ids: impl Iterator<Item = i64>) {
        let open: HashSet<i64> = ids.collect();
        if !open.is_empty() {
            let batch = OpenBatch { written: open.len(), open, settling: HashSet::new() };
            self.lock().batches.insert(fence, batch);
        }
    }

    /// What becomes of the rows if all of this is settled. Messages that another task is settling may not be.
    pub(super) fn settling(&self, node: NodeId, settlements: &[&Settlement]) -> Closing {
        let mut held = self.lock();
        let OpenBatches { batches, over } = &mut *held;
        let mut touched: HashMap<Fence, usize> = HashMap::new();
        for Settlement { id, fence, .. } in settlements {
            if let Some(batch) = batches.get_mut(fence)
                && batch.open.remove(&id.0)
            {
                batch.settling.insert(id.0);
                *touched.entry(*fence).or_default() += 1;
            }
        }
        let mut finished: Vec<i64> =
            over.iter().filter(|fence| fence.node == node).map(|fence| fence.batch).collect();
        let mut left = Map::new();
        for (fence, count) in touched.into_iter().filter(|(fence, _)| fence.node == node) {
            let Some(batch) = batches.get_mut(&fence) else { continue };
            if batch.settling.len() > count {
                continue;
            }
            if batch.open.is_empty() {
                finished.push(fence.batch);
            } else if batch.open.len() * 4 <= batch.written {
                batch.written = batch.open.len();
                left.insert(fence.batch.to_string(), json!(batch.open));
            }
        }
        Closing { finished, left: (!left.is_empty()).then_some(Value::Object(left)) }
    }

    /// The database answered, and has done `told`.
    pub(super) fn settled(&self, node: NodeId, settlements: &[&Settlement], told: &Closing) {
        let mut held = self.lock();
        let OpenBatches { batches, over } = &mut *held;
        for Settlement { id, fence, .. } in settlements {
            let Some(batch) = batches.get_mut(fence) else { continue };
            batch.settling.remove(&id.0);
            batch.open.remove(&id.0);
            if batch.open.is_empty() && batch.settling.is_empty() {
                batches.remove(fence);
                over.insert(*fence);
            }
        }
        told.finished.iter().for_each(|batch| _ = over.remove(&Fence { node, batch: *batch }));
    }

    /// The settlements failed, or their outcome is unknown: they will be made again.
    pub(super) fn reopen(&self, settlements: &[&Settlement]) {
        let mut held = self.lock();
        for Settlement { id, fence, .. } in settlements {
            if let Some(batch) = held.batches.get_mut(fence)
                && batch.settling.remove(&id.0)
            {
                batch.open.insert(id.0);
                // The row may still have its old length.
                batch.written = usize::MAX;
            }
        }
    }

    /// No task works on these, and they were not settled: heartbeats give them back.
    pub(super) fn give_up(&self, settlements: &[&Settlement]) {
        if let Some(first) = settlements.first() {
            self.settled(first.fence.node, settlements, &Closing::default());
        }
    }

    /// What this process works on, or is settling.
    pub(super) fn held(&self) -> HashSet<(Fence, i64)> {
        let held = self.lock();
        let ids = |(fence, batch): (&Fence, &OpenBatch)| {
            let fence = *fence;
            batch.open.iter().chain(&batch.settling).map(move |id| (fence, *id)).collect::<Vec<_>>()
        };
        held.batches.iter().flat_map(ids).collect()
    }

    pub(super) fn forget(&self, node: NodeId) {
        let mut held = self.lock();
        held.batches.retain(|fence, _| fence.node != node);
        held.over.retain(|fence| fence.node != node);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, OpenBatches> {
        self.0.lock().expect("no panic while holding the batches")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::EndpointId;
    use crate::message::MessageId;
    use crate::store::End;

    const NODE: NodeId = NodeId(1);

    fn released(id: i64) -> Settlement {
        Settlement {
            id: MessageId(id),
            endpoint: EndpointId(1),
            fence: Fence { node: NODE, batch: 7 },
            end: End::Released,
            hold_endpoint_until: None,
        }
    }

    fn claimed(count: i64) -> Batches {
        let batches = Batches::default();
        batches.claimed(Fence { node: NODE, batch: 7 }, 1..=count);
        batches
    }

    #[test]
    fn a_claim_is_over_when_the_last_of_it_is_settled() {
        let (batches, one, two) = (claimed(2), released(1), released(2));
        let first = batches.settling(NODE, &[&one]);
        assert!(first.finished.is_empty());
        batches.settled(NODE, &[&one], &first);
        let last = batches.settling(NODE, &[&two]);
        assert_eq!(last.finished, [7]);
        batches.settled(NODE, &[&two], &last);
        assert!(batches.held().is_empty() && batches.settling(NODE, &[]).finished.is_empty());
    }

    #[test]
    fn what_is_just_being_settled_by_somebody_else_is_not_taken_for_settled() {
        let (batches, one, two) = (claimed(2), released(1), released(2));
        let first = batches.settling(NODE, &[&one]);
        let second = batches.settling(NODE, &[&two]);
        assert!(first.finished.is_empty() && second.finished.is_empty());
        batches.reopen(&[&one]);
        batches.settled(NODE, &[&two], &second);
        assert_eq!(batches.held().len(), 1);
        let again = batches.settling(NODE, &[&one]);
        assert_eq!(again.finished, [7]);
    }

    #[test]
    fn the_database_hears_of_a_claim_that_two_ended_together() {
        let (batches, one, two) = (claimed(2), released(1), released(2));
        let (first, second) = (batches.settling(NODE, &[&one]), batches.settling(NODE, &[&two]));
        batches.settled(NODE, &[&one], &first);
        batches.settled(NODE, &[&two], &second);
        let next = batches.settling(NODE, &[]);
        assert_eq!(next.finished, [7]);
        batches.settled(NODE, &[], &next);
        assert!(batches.settling(NODE, &[]).finished.is_empty());
    }

    #[test]
    fn one_that_two_settle_at_once_stays_open_while_both_are_refused() {
        let (batches, one) = (claimed(1), released(1));
        batches.settling(NODE, &[&one]);
        batches.settling(NODE, &[&one]);
        batches.reopen(&[&one]);
        batches.reopen(&[&one]);
        assert_eq!(batches.held().len(), 1);
    }
}
