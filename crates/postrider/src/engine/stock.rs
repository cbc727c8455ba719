//! What is claimed ahead of free room. Where attempts are quicker than a claim, room would stand empty from one
//! claim to the next; a small stock fills it. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;

use super::concurrency::Load;
use crate::message::Claim;

/// Attempts that take longer leave the store time enough to fill their room.
const QUICK: Duration = Duration::from_millis(5);
/// As many rounds of attempts as pass while what ended is gathered, goes to the store, and new claims come back.
const ROUNDS: u32 = 7;
/// How much the latest attempt tells of the next ones.
const WEIGHT: f64 = 1.0 / 16.0;
/// What waits longer than this stands behind attempts that hang: it goes back to the queue, when the next one
/// ends or when the dispatcher looks at all lanes.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Stock {
    waiting: VecDeque<(Timestamp, Claim)>,
    /// Mean seconds of an attempt, as long as they succeed.
    pace: Option<f64>,
}

impl Stock {
    /// One attempt took this long. Nothing is claimed ahead for a receiver that fails.
    pub(super) fn observe(&mut self, load: Load, duration: Duration) {
        let seconds = duration.as_secs_f64();
        self.pace =
            (load == Load::Fine).then(|| self.pace.map_or(seconds, |pace| pace + (seconds - pace) * WEIGHT));
    }

    /// How many may wait beside `limit` running ones.
    pub(super) fn size(&self, limit: u32) -> u32 {
        if self.pace.is_some_and(|pace| pace < QUICK.as_secs_f64()) { limit * ROUNDS } else { 0 }
    }

    pub(super) fn put(&mut self, claim: Claim, now: Timestamp) {
        self.waiting.push_back((now, claim));
    }

    pub(super) fn take(&mut self) -> Option<Claim> {
        self.waiting.pop_front().map(|(_, claim)| claim)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// It waits for attempts that hang. They are not quick any more, whatever they were before.
    pub(super) fn is_stuck(&mut self, now: Timestamp) -> bool {
        let stuck = self.waiting.front().is_some_and(|(since, _)| now > *since + WAIT_MAX);
        if stuck {
            self.pace = None;
        }
        stuck
    }
}
