//! What sinks keep open for later: bounded over all of them, and closed when the node is short of open files.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// For a node that does not say.
const MAX_DEFAULT: usize = 10_000;

/// Connections and files that no attempt uses now.
pub struct Kept {
    count: AtomicUsize,
    max: usize,
    holders: Mutex<KeptHolders>,
}

#[derive(Default)]
struct KeptHolders {
    list: Vec<Weak<dyn Holder>>,
    /// Those that are gone are swept out when the list is this long.
    swept_at: usize,
}

/// A sink, or a part of it, that keeps something open.
pub(crate) trait Holder: Send + Sync {
    /// Closes what no attempt uses.
    fn let_go(&self);
}

/// The place of one that is kept.
pub(crate) struct KeptPlace(Arc<Kept>);

impl Kept {
    pub fn up_to(max: usize) -> Self {
        Self { count: AtomicUsize::new(0), max, holders: Mutex::default() }
    }

    pub(crate) fn add(&self, holder: Weak<dyn Holder>) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.list.len() >= holders.swept_at {
            holders.list.retain(|holder| holder.strong_count() > 0);
            holders.swept_at = (2 * holders.list.len()).max(64);
        }
        holders.list.push(holder);
    }

    /// None when as many are kept as may be.
    pub(crate) fn place(self: &Arc<Self>) -> Option<KeptPlace> {
        let more = |count: usize| (count < self.max).then_some(count + 1);
        self.count.fetch_update(Relaxed, Relaxed, more).ok().map(|_| KeptPlace(Arc::clone(self)))
    }

    /// Closes all that no attempt uses, to make room for attempts.
    pub(crate) fn let_go(&self) {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner).list.clone();
        holders.iter().filter_map(Weak::upgrade).for_each(|holder| holder.let_go());
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Relaxed);
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self::up_to(MAX_DEFAULT)
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({} of {})", self.count.load(Relaxed), self.max)
    }
}
