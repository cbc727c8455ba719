//! Whether this node has what it needs to try an endpoint. While it does not, one message a second finds out. Pure.

use std::time::Duration;

use jiff::Timestamp;

/// Long enough for attempts to end and give back what is short.
const TRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Supply {
    #[default]
    Enough,
    /// Nothing starts before `until`.
    Short { since: Timestamp, until: Timestamp },
    /// One message is on its way to find out; no other starts before `until`.
    Trying { since: Timestamp, until: Timestamp },
}

impl Supply {
    /// An attempt could not be made.
    pub(super) fn ran_out(&mut self, now: Timestamp) {
        *self = Self::Short { since: now, until: now + TRY_INTERVAL };
    }

    /// An attempt was made that began then. True when that ends a shortage.
    pub(super) fn sufficed(&mut self, began_at: Timestamp) -> bool {
        match *self {
            Self::Short { since, .. } | Self::Trying { since, .. } if since <= began_at => {
                *self = Self::Enough;
                true
            }
            Self::Enough | Self::Short { .. } | Self::Trying { .. } => false,
        }
    }

    /// Messages are claimed now.
    pub(super) fn claimed(&mut self, now: Timestamp) {
        if let Self::Short { since, .. } | Self::Trying { since, .. } = *self {
            // The clock may have been set back meanwhile.
            *self = Self::Trying { since: since.min(now), until: now + TRY_INTERVAL };
        }
    }

    /// Until when nothing may be claimed.
    pub(super) fn wait_until(self, now: Timestamp) -> Option<Timestamp> {
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

    /// What was claimed before the shortage was known does not start.
    pub(super) fn refuses(self, now: Timestamp) -> bool {
        matches!(self, Self::Short { until, .. } if is_ahead(until, now))
    }
}

/// A time further ahead than any wait was set before the clock was set back.
fn is_ahead(until: Timestamp, now: Timestamp) -> bool {
    now < until && until <= now + TRY_INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn a_shortage_lets_one_message_a_second_find_out() {
        let mut supply = Supply::Enough;
        assert_eq!((supply.wait_until(at(0)), supply.at_once(16)), (None, 16));
        supply.ran_out(at(0));
        assert!(supply.refuses(at(0)));
        assert_eq!((supply.wait_until(at(0)), supply.at_once(16)), (Some(at(1)), 1));
        assert!(!supply.refuses(at(1)));
        assert_eq!((supply.wait_until(at(1)), supply.at_once(16)), (None, 1));
        supply.claimed(at(1));
        assert!(!supply.refuses(at(1)), "the one that finds out starts");
        assert_eq!((supply.wait_until(at(1)), supply.at_once(16)), (Some(at(2)), 1));
        assert_eq!((supply.wait_until(at(2)), supply.at_once(16)), (None, 1), "the first one may hang");
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_prolong_a_shortage() {
        let mut supply = Supply::Enough;
        supply.ran_out(at(86_400));
        assert!(!supply.refuses(at(10)));
        assert_eq!(supply.wait_until(at(10)), None);
        supply.claimed(at(10));
        assert_eq!(supply.wait_until(at(10)), Some(at(11)));
        assert!(supply.sufficed(at(10)));
    }

    #[test]
    fn only_an_attempt_begun_after_the_shortage_ends_it() {
        let mut supply = Supply::Enough;
        assert!(!supply.sufficed(at(0)));
        supply.ran_out(at(5));
        assert!(!supply.sufficed(at(4)));
        supply.claimed(at(6));
        assert!(supply.sufficed(at(6)));
        assert_eq!(supply, Supply::Enough);
    }
}
