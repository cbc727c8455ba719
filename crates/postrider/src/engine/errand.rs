//! Questions to the store that are under way.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::error::StoreError;

type Answer<T> = Result<T, StoreError>;

/// At most one call of a kind is under way; what comes up meanwhile goes with the next one.
pub(super) struct Call<T>(Option<BoxFuture<'static, Answer<T>>>);

impl<T> Call<T> {
    pub(super) fn none() -> Self {
        Self(None)
    }

    pub(super) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn begin(&mut self, call: impl Future<Output = Answer<T>> + Send + 'static) {
        self.0 = Some(Box::pin(call));
    }

    /// Never while none is under way. May be dropped and asked again.
    pub(super) async fn answer(&mut self) -> Answer<T> {
        match &mut self.0 {
            None => std::future::pending().await,
            Some(under_way) => {
                let answer = under_way.await;
                self.0 = None;
                answer
            }
        }
    }
}

/// A question that is asked when wanted, but not more often than every `interval`.
pub(super) struct Errand<T> {
    call: Call<T>,
    wanted: bool,
    interval: Duration,
    not_before: Instant,
}

impl<T> Errand<T> {
    pub(super) fn wanted_every(interval: Duration) -> Self {
        Self { call: Call::none(), wanted: true, interval, not_before: Instant::now() }
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
        F: Future<Output = Answer<T>> + Send + 'static,
    {
        let now = Instant::now();
        if self.wanted && self.call.is_none() && now >= self.not_before {
            self.wanted = false;
            self.not_before = now + self.interval;
            self.call.begin(call());
        }
    }

    pub(super) async fn answer(&mut self) -> Answer<T> {
        self.call.answer().await
    }

    /// When to look again whether it is due.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        (self.wanted && self.call.is_none()).then_some(self.not_before)
    }
}
