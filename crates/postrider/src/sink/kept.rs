//! What sinks keep open for later: bounded over all of them, and closed when the node is short of open files.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// As many as one endpoint after the other can have idle on a large node.
const CONNECTIONS_MAX_DEFAULT: usize = 10_000;

/// Connections and files that no attempt uses now.
pub struct Kept {
    connections: AtomicUsize,
    connections_max: usize,
    holders: Mutex<Holders>,
}

#[derive(Default)]
struct Holders {
    list: Vec<Weak<dyn Holder>>,
    /// Those that are gone are swept out when the list is this long.
    swept_at: usize,
}

/// A sink, or a part of it, that keeps something open.
pub(super) trait Holder: Send + Sync {
    /// Closes what no attempt uses.
    fn let_go(&self);
}

/// The place of one idle connection.
pub(super) struct Place(Arc<Kept>);

impl Kept {
    pub fn up_to(connections_max: usize) -> Self {
        Self { connections: AtomicUsize::new(0), connections_max, holders: Mutex::default() }
    }

    pub(super) fn add(&self, holder: Weak<dyn Holder>) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.list.len() >= holders.swept_at {
            holders.list.retain(|holder| holder.strong_count() > 0);
            holders.swept_at = (2 * holders.list.len()).max(64);
        }
        holders.list.push(holder);
    }

    /// None when as many are kept as may be.
    pub(super) fn place(self: &Arc<Self>) -> Option<Place> {
        let more = |count: usize| (count < self.connections_max).then_some(count + 1);
        self.connections.fetch_update(Relaxed, Relaxed, more).ok().map(|_| Place(Arc::clone(self)))
    }

    /// Closes all that no attempt uses, to make room for attempts.
    pub(crate) fn let_go(&self) {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner).list.clone();
        holders.iter().filter_map(Weak::upgrade).for_each(|holder| holder.let_go());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self::up_to(CONNECTIONS_MAX_DEFAULT)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} of {})", self.connections.load(Relaxed), self.connections_max)
    }
}
