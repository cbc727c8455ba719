//! How often a full queue refused what came through one handle of a store. A refused transaction leaves nothing in
//! the store, so the handle counts it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Figure;
use crate::error::StoreError;

#[derive(Default)]
pub(super) struct Refusals(AtomicU64);

impl Refusals {
    pub(super) fn noted<T>(&self, result: super::Result<T>) -> super::Result<T> {
        if let Err(StoreError::QueueFull { .. }) = result {
            self.0.fetch_add(1, Relaxed);
        }
        result
    }

    pub(super) fn figure(&self) -> Figure {
        let refused = self.0.load(Relaxed) as f64;
        Figure::new("postrider_backpressure_rejections_total", &[], refused)
    }
}
