//! Counts of durations in fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(super) struct Histogram {
    /// Upper bounds in seconds, and the same in microseconds, which compare faster.
    bounds: &'static [f64],
    micros: Box<[u64]>,
    /// One for each bound, and one for everything above.
    counts: Box<[AtomicU64]>,
    sum_micros: AtomicU64,
}

/// A histogram as it was at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Buckets {
    /// Upper bounds in seconds, inclusive.
    pub bounds: &'static [f64],
    /// How many are within each bound and above the one before; the last counts what is above all bounds.
    pub counts: Vec<u64>,
    pub sum_seconds: f64,
}

impl Histogram {
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            micros: bounds.iter().map(|seconds| (seconds * 1e6) as u64).collect(),
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            sum_micros: AtomicU64::new(0),
        }
    }

    pub(super) fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = self.micros.partition_point(|bound| *bound < micros);
        self.counts[place].fetch_add(1, Relaxed);
        self.sum_micros.fetch_add(micros, Relaxed);
    }

    pub(super) fn add(&self, other: &Self) {
        for (count, more) in self.counts.iter().zip(&other.counts) {
            count.fetch_add(more.load(Relaxed), Relaxed);
        }
        self.sum_micros.fetch_add(other.sum_micros.load(Relaxed), Relaxed);
    }

    pub(super) fn read(&self) -> Buckets {
        Buckets {
            bounds: self.bounds,
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum_seconds: self.sum_micros.load(Relaxed) as f64 / 1e6,
        }
    }
}

impl Buckets {
    pub(super) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_seconds += other.sum_seconds;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_as_long_as_a_bound_is_within_it() {
        let histogram = Histogram::new(&[0.001, 0.1]);
        for micros in [0, 1000, 1001, 100_000, 100_001, 7_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let read = histogram.read();
        assert_eq!(read.counts, [2, 2, 2]);
        assert_eq!(read.count(), 6);
        assert!((read.sum_seconds - 7.202_002).abs() < 1e-9, "{}", read.sum_seconds);
    }
}
