//! Claims made ahead of free slots. Where attempts are quicker than a claim, a free slot would stay empty until the store
//! answers; a few prefetched claims fill it. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use super::concurrency::ReceiverLoad;
use crate::message::Claim;

/// Slower attempts give the store enough time to refill their slots.
const QUICK: Duration = Duration::from_millis(5);
/// Rounds of attempts that pass while ended claims are gathered and settled and the next claims come back.
const ROUNDS: u32 = 7;
/// Weight of the latest attempt in the mean duration.
const WEIGHT: f64 = 1.0 / 16.0;
/// A prefetched claim that waits longer is behind attempts that hang. It is released when the next attempt ends, or when
/// the dispatcher looks at all endpoints.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Prefetch {
    claims: VecDeque<(Timestamp, Claim)>,
    /// Mean duration of an attempt in seconds; None after a failure.
    mean: Option<f64>,
}

impl Prefetch {
    /// One attempt took this long. Nothing is prefetched for a receiver that fails.
    pub(super) fn observe(&mut self, load: ReceiverLoad, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.mean = (load == ReceiverLoad::Fine)
            .then(|| self.mean.map_or(seconds, |mean| mean + (seconds - mean) * WEIGHT));
    }

    /// How many claims may wait beside `limit` running ones.
    pub(super) fn size(&self, limit: u32) -> u32 {
        if self.mean.is_some_and(|mean| mean < QUICK.as_secs_f64()) { limit * ROUNDS } else { 0 }
    }

    pub(super) fn put(&mut self, claim: Claim, now: Timestamp) {
        self.claims.push_back((now, claim));
    }

    pub(super) fn take(&mut self) -> Option<Claim> {
        self.claims.pop_front().map(|(_, claim)| claim)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The oldest claim waits for attempts that hang. Forgets that attempts were quick before.
    pub(super) fn is_stuck(&mut self, now: Timestamp) -> bool {
        let stuck = self.claims.front().is_some_and(|(since, _)| now > *since + WAIT_MAX);
        if stuck {
            self.mean = None;
        }
        stuck
    }
}
