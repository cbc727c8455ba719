//! Queries that the dispatcher repeats when they may have a new answer.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::error::StoreError;

/// A query that runs when wanted, one at a time, and not more often than every `interval`.
pub(super) struct StorePoll<T> {
    running: Option<BoxFuture<'static, Result<T, StoreError>>>,
    wanted: bool,
    interval: Duration,
    not_before: Instant,
}

impl<T> StorePoll<T> {
    /// Due at once, for the first time.
    pub(super) fn every(interval: Duration) -> Self {
        Self { running: None, wanted: true, interval, not_before: Instant::now() }
    }

    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// Skips the interval this once.
    pub(super) fn want_now(&mut self) {
        self.wanted = true;
        self.not_before = Instant::now();
    }

    /// True when it begins now.
    pub(super) fn begin_if_due<F>(&mut self, query: impl FnOnce() -> F) -> bool
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let now = Instant::now();
        let is_due = self.wanted && self.running.is_none() && now >= self.not_before;
        if is_due {
            self.wanted = false;
            self.not_before = now + self.interval;
            self.running = Some(Box::pin(query()));
        }
        is_due
    }

    pub(super) async fn answer(&mut self) -> Result<T, StoreError> {
        answer(&mut self.running).await
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        (self.wanted && self.running.is_none()).then_some(self.not_before)
    }
}

/// Waits for the call's answer, or for ever if there is no call. Safe to drop and await again.
pub(super) async fn answer<T>(call: &mut Option<BoxFuture<'static, T>>) -> T {
    match call {
        None => std::future::pending().await,
        Some(running) => {
            let answer = running.await;
            *call = None;
            answer
        }
    }
}
