//! Questions to the store that are under way.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::error::StoreError;

/// A question that is asked when wanted, one at a time, and not more often than every `interval`.
pub(super) struct Errand<T> {
    under_way: Option<BoxFuture<'static, Result<T, StoreError>>>,
    wanted: bool,
    interval: Duration,
    not_before: Instant,
}

impl<T> Errand<T> {
    pub(super) fn wanted_every(interval: Duration) -> Self {
        Self { under_way: None, wanted: true, interval, not_before: Instant::now() }
    }

    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// For once, however recently it was asked.
    pub(super) fn want_now(&mut self) {
        self.wanted = true;
        self.not_before = Instant::now();
    }

    pub(super) fn begin_if_due<F>(&mut self, call: impl FnOnce() -> F)
    where
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let now = Instant::now();
        if self.wanted && self.under_way.is_none() && now >= self.not_before {
            self.wanted = false;
            self.not_before = now + self.interval;
            self.under_way = Some(Box::pin(call()));
        }
    }

    pub(super) async fn answer(&mut self) -> Result<T, StoreError> {
        answer(&mut self.under_way).await
    }

    /// When to look again whether it is due.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        (self.wanted && self.under_way.is_none()).then_some(self.not_before)
    }
}

/// What a call under way comes to; never anything while there is none. May be dropped and asked again.
pub(super) async fn answer<T>(call: &mut Option<BoxFuture<'static, T>>) -> T {
    match call {
        None => std::future::pending().await,
        Some(under_way) => {
            let answer = under_way.await;
            *call = None;
            answer
        }
    }
}
