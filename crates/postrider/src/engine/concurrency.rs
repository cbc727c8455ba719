//! How many attempts may run at once for one receiver: additive increase, multiplicative decrease. Pure.

use jiff::Timestamp;

/// Enough to learn how the receiver copes, few enough that a slow one does not fill the node.
const START: f64 = 16.0;
const DECREASE: f64 = 0.5;

#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    limit: f64,
    max: u32,
    /// Until the first overload each success adds one; afterwards a full round of successes does.
    probing: bool,
    /// Attempts that started before the last decrease do not decrease it again.
    decreased_at: Timestamp,
}

/// What one attempt says about the load of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverLoad {
    Fine,
    /// A timeout, or the receiver wants fewer messages at a time.
    Overloaded,
    /// The attempt says nothing about it.
    Unknown,
}

impl Concurrency {
    pub(super) fn up_to(max: u32) -> Self {
        Self { limit: START.min(f64::from(max)), max, probing: true, decreased_at: Timestamp::MIN }
    }

    pub(super) fn set_max(&mut self, max: u32) {
        self.max = max;
        self.limit = self.limit.min(f64::from(max));
    }

    pub(super) fn limit(&self) -> u32 {
        self.limit as u32
    }

    pub(super) fn observe(&mut self, load: ReceiverLoad, started_at: Timestamp, now: Timestamp) {
        match load {
            ReceiverLoad::Fine => {
                let step = if self.probing { 1.0 } else { 1.0 / self.limit };
                self.limit = (self.limit + step).min(f64::from(self.max));
            }
            // A decrease in the future dates from before the clock was set back.
            ReceiverLoad::Overloaded if started_at >= self.decreased_at || now < self.decreased_at => {
                self.limit = (self.limit * DECREASE).max(1.0);
                self.probing = false;
                self.decreased_at = now;
            }
            ReceiverLoad::Overloaded | ReceiverLoad::Unknown => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn successes_raise_it_up_to_the_maximum_and_never_above() {
        let mut concurrency = Concurrency::up_to(64);
        for _ in 0..1000 {
            concurrency.observe(ReceiverLoad::Fine, at(0), at(0));
        }
        assert_eq!(concurrency.limit(), 64);
    }

    #[test]
    fn one_wave_of_failures_halves_it_once() {
        let mut concurrency = Concurrency::up_to(64);
        (0..64).for_each(|_| concurrency.observe(ReceiverLoad::Fine, at(0), at(0)));
        (0..64).for_each(|_| concurrency.observe(ReceiverLoad::Overloaded, at(1), at(2)));
        assert_eq!(concurrency.limit(), 32);
        concurrency.observe(ReceiverLoad::Overloaded, at(2), at(3));
        assert_eq!(concurrency.limit(), 16);
    }

    #[test]
    fn it_never_falls_below_one() {
        let mut concurrency = Concurrency::up_to(4);
        (0..100).for_each(|second| concurrency.observe(ReceiverLoad::Overloaded, at(second), at(second)));
        assert_eq!(concurrency.limit(), 1);
        (0..100).for_each(|_| concurrency.observe(ReceiverLoad::Unknown, at(200), at(200)));
        assert_eq!(concurrency.limit(), 1);
    }

    #[test]
    fn after_a_decrease_it_rises_by_one_a_round() {
        let mut concurrency = Concurrency::up_to(64);
        concurrency.observe(ReceiverLoad::Overloaded, at(0), at(0));
        assert_eq!(concurrency.limit(), 8);
        (0..9).for_each(|_| concurrency.observe(ReceiverLoad::Fine, at(1), at(1)));
        assert_eq!(concurrency.limit(), 9);
    }
}
