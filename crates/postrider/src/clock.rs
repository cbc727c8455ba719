//! The clock of a store: the system's, or one that a test moves.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::Timestamp;

pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        truncated(Timestamp::now())
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn at(start: Timestamp) -> Self {
        Self(AtomicI64::new(start.as_microsecond()))
    }

    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as i64, Ordering::SeqCst);
    }

    pub fn set_back(&self, by: Duration) {
        self.0.fetch_sub(by.as_micros() as i64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        micros(self.0.load(Ordering::SeqCst))
    }
}

/// Stores keep whole microseconds.
pub(crate) fn truncated(at: Timestamp) -> Timestamp {
    micros(at.as_microsecond())
}

pub(crate) fn micros(at: i64) -> Timestamp {
    Timestamp::from_microsecond(at).unwrap_or(if at < 0 { Timestamp::MIN } else { Timestamp::MAX })
}
