//! Which messages of this process's own claims are not settled yet. The database keeps one row for each claim
//! and touches it as seldom as it can: it is told when nothing is left of one, and what is left when most is gone.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use serde_json::{Map, Value, json};

use crate::message::{Fence, NodeId};
use crate::store::Settlement;

#[derive(Default)]
pub(super) struct Batches(Mutex<Held>);

#[derive(Default)]
struct Held {
    batches: HashMap<Fence, Batch>,
    /// On its way to the database, and whether it was open here: others are of nodes that are gone.
    settling: HashMap<(Fence, i64), bool>,
}

struct Batch {
    open: HashSet<i64>,
    /// How many ids its row holds.
    written: usize,
}

/// What the database is told together with settlements, of batches of one node.
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
            let written = open.len();
            self.lock().batches.insert(fence, Batch { open, written });
        }
    }

    pub(super) fn settling(&self, node: NodeId, settlements: &[Settlement]) -> Closing {
        let mut held = self.lock();
        let Held { batches, settling } = &mut *held;
        let mut touched = Vec::new();
        for Settlement { id, fence, .. } in settlements {
            let was_open = batches.get_mut(fence).is_some_and(|batch| batch.open.remove(&id.0));
            settling.insert((*fence, id.0), was_open);
            if was_open && !touched.contains(fence) {
                touched.push(*fence);
            }
        }
        let (mut finished, mut left) = (Vec::new(), Map::new());
        for fence in touched {
            let Some(batch) = batches.get_mut(&fence) else { continue };
            if batch.open.is_empty() {
                batches.remove(&fence);
                finished.push((fence.node, fence.batch));
            } else if batch.open.len() * 4 <= batch.written && fence.node == node {
                batch.written = batch.open.len();
                left.insert(fence.batch.to_string(), json!(batch.open));
            }
        }
        let of_node = finished.into_iter().filter(|(of, _)| *of == node).map(|(_, batch)| batch);
        Closing { finished: of_node.collect(), left: (!left.is_empty()).then_some(Value::Object(left)) }
    }

    /// The database answered.
    pub(super) fn settled(&self, settlements: &[Settlement]) {
        let mut held = self.lock();
        settlements
            .iter()
            .for_each(|settlement| _ = held.settling.remove(&(settlement.fence, settlement.id.0)));
    }

    /// What somebody works on, or is just settling.
    pub(super) fn held(&self) -> HashSet<(Fence, i64)> {
        let held = self.lock();
        let open = held.batches.iter().flat_map(|(fence, batch)| batch.open.iter().map(|id| (*fence, *id)));
        open.chain(held.settling.keys().copied()).collect()
    }

    /// The settlements did not reach the database, or nobody knows: they will be made again.
    pub(super) fn reopen(&self, settlements: &[Settlement]) {
        let mut held = self.lock();
        for Settlement { id, fence, .. } in settlements {
            if held.settling.remove(&(*fence, id.0)) == Some(true) {
                let new = || Batch { open: HashSet::new(), written: usize::MAX };
                held.batches.entry(*fence).or_insert_with(new).open.insert(id.0);
            }
        }
    }

    /// They will not be made again.
    pub(super) fn give_up(&self, settlements: &[Settlement]) {
        let mut held = self.lock();
        for Settlement { id, fence, .. } in settlements {
            if let Some(batch) = held.batches.get_mut(fence) {
                batch.open.remove(&id.0);
            }
        }
        held.batches.retain(|_, batch| !batch.open.is_empty());
    }

    pub(super) fn forget(&self, node: NodeId) {
        let mut held = self.lock();
        held.batches.retain(|fence, _| fence.node != node);
        held.settling.retain(|(fence, _), _| fence.node != node);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Held> {
        self.0.lock().expect("nobody panics while holding the batches")
    }
}
