//! This node lacks something that attempts need (descriptors, ports, memory, threads). For each endpoint: while it lasts,
//! one message a second finds out whether it still does. For the node: it is counted, logged, and idle connections are closed.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::counters::NodeCounters;
use crate::sink::{Kept, Resource, Shortage};

/// Long enough for attempts to end and free what is short.
const TRY_INTERVAL: Duration = Duration::from_secs(1);
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Closing idle connections walks over all sinks: not for every prevented attempt.
const CLOSE_IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// One endpoint's state. Pure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ShortageWait {
    #[default]
    Enough,
    /// Nothing starts before `until`.
    Short { since: Timestamp, until: Timestamp },
    /// One message was claimed to find out; no other is claimed before `until`.
    Trying { since: Timestamp, until: Timestamp },
}

impl ShortageWait {
    /// An attempt could not be started.
    pub(super) fn began(&mut self, now: Timestamp) {
        *self = Self::Short { since: now, until: now + TRY_INTERVAL };
    }

    /// An attempt that started at `started_at` was made. True when that ends a shortage.
    pub(super) fn ended(&mut self, started_at: Timestamp) -> bool {
        match *self {
            Self::Short { since, .. } | Self::Trying { since, .. } if since <= started_at => {
                *self = Self::Enough;
                true
            }
            Self::Enough | Self::Short { .. } | Self::Trying { .. } => false,
        }
    }

    /// Messages are claimed now.
    pub(super) fn claimed(&mut self, now: Timestamp) {
        if let Self::Short { since, .. } | Self::Trying { since, .. } = *self {
            // The clock may have been set back since.
            *self = Self::Trying { since: since.min(now), until: now + TRY_INTERVAL };
        }
    }

    /// Nothing may be claimed before this time.
    pub(super) fn until(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Enough => None,
            Self::Short { until, .. } | Self::Trying { until, .. } => {
                Some(until).filter(|until| is_ahead(*until, now))
            }
        }
    }

    /// How many of `wanted` may be claimed at once.
    pub(super) fn at_once(self, wanted: u32) -> u32 {
        match self {
            Self::Enough => wanted,
            Self::Short { .. } | Self::Trying { .. } => wanted.min(1),
        }
    }

    /// Claims from before the shortage do not start.
    pub(super) fn refuses(self, now: Timestamp) -> bool {
        matches!(self, Self::Short { until, .. } if is_ahead(until, now))
    }
}

/// A time further ahead than one interval was set before the clock was set back.
fn is_ahead(until: Timestamp, now: Timestamp) -> bool {
    now < until && until <= now + TRY_INTERVAL
}

/// The node's side of it.
#[derive(Default)]
pub(super) struct ShortageLog {
    /// By resource: when it was logged last, and how many attempts were prevented since.
    logged: [(Option<Instant>, u64); Resource::ALL.len()],
    closed_idle_at: Option<Instant>,
}

impl ShortageLog {
    pub(super) fn note(&mut self, shortage: &Shortage, endpoint: &str, counters: &NodeCounters, kept: &Kept) {
        counters.short_of(shortage.of);
        let now = Instant::now();
        if shortage.of == Resource::OpenFiles && is_due(self.closed_idle_at, CLOSE_IDLE_INTERVAL, now) {
            self.closed_idle_at = Some(now);
            kept.let_go();
        }
        let (logged_at, attempts) = &mut self.logged[shortage.of as usize];
        *attempts += 1;
        if is_due(*logged_at, LOG_INTERVAL, now) {
            *logged_at = Some(now);
            let attempts = std::mem::take(attempts);
            let (short_of, error) = (shortage.of.as_str(), &shortage.error);
            tracing::warn!(
                short_of,
                attempts,
                endpoint,
                error,
                advice = advice(shortage.of),
                "attempts not started: this node is short of a resource; retrying, not counted"
            );
        }
    }
}

fn is_due(last: Option<Instant>, interval: Duration, now: Instant) -> bool {
    last.is_none_or(|last| last + interval <= now)
}

fn advice(resource: Resource) -> &'static str {
    match resource {
        Resource::OpenFiles => {
            "raise the limit of open files (ulimit -n, LimitNOFILE), or lower --max-in-flight"
        }
        Resource::LocalPorts => "widen net.ipv4.ip_local_port_range, or lower --max-in-flight",
        Resource::Memory => "give this machine more memory, or lower --max-in-flight",
        Resource::Threads => "raise the limit of processes and threads (ulimit -u, TasksMax)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn a_shortage_lets_one_message_a_second_find_out() {
        let mut wait = ShortageWait::Enough;
        assert_eq!((wait.until(at(0)), wait.at_once(16)), (None, 16));
        wait.began(at(0));
        assert!(wait.refuses(at(0)));
        assert_eq!((wait.until(at(0)), wait.at_once(16)), (Some(at(1)), 1));
        assert!(!wait.refuses(at(1)));
        assert_eq!((wait.until(at(1)), wait.at_once(16)), (None, 1));
        wait.claimed(at(1));
        assert!(!wait.refuses(at(1)), "the one that finds out starts");
        assert_eq!((wait.until(at(1)), wait.at_once(16)), (Some(at(2)), 1));
        assert_eq!((wait.until(at(2)), wait.at_once(16)), (None, 1), "the first one may hang");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_prolong_a_shortage() {
        let mut wait = ShortageWait::Enough;
        wait.began(at(86_400));
        assert!(!wait.refuses(at(10)));
        assert_eq!(wait.until(at(10)), None);
        wait.claimed(at(10));
        assert_eq!(wait.until(at(10)), Some(at(11)));
        assert!(wait.ended(at(10)));
    }

    #[test]
    fn only_an_attempt_begun_after_the_shortage_ends_it() {
        let mut wait = ShortageWait::Enough;
        assert!(!wait.ended(at(0)));
        wait.began(at(5));
        assert!(!wait.ended(at(4)));
        wait.claimed(at(6));
        assert!(wait.ended(at(6)));
        assert_eq!(wait, ShortageWait::Enough);
    }
}
