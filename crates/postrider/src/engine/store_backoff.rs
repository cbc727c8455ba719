//! Store errors are expected: the dispatcher backs off and retries. Pure.

use std::time::Duration;

use tokio::time::Instant;

const DELAY_MIN: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// How long the dispatcher leaves a failing store alone.
pub(super) struct StoreBackoff {
    retry_at: Instant,
    delay: Duration,
}

impl StoreBackoff {
    pub(super) fn new(now: Instant) -> Self {
        Self { retry_at: now, delay: DELAY_MIN }
    }

    /// A call failed. Returns how long to wait; after another failure twice as long.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let delay = self.delay;
        self.retry_at = now + delay;
        self.delay = (delay * 2).min(DELAY_MAX);
        delay
    }

    pub(super) fn succeeded(&mut self) {
        self.delay = DELAY_MIN;
    }

    /// None once the store may be asked again.
    pub(super) fn wait_until(&self, now: Instant) -> Option<Instant> {
        Some(self.retry_at).filter(|at| *at > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_until_a_success() {
        let now = Instant::now();
        let mut backoff = StoreBackoff::new(now);
        assert_eq!(backoff.wait_until(now), None);
        let waits: Vec<u128> = (0..9).map(|_| backoff.failed(now).as_millis()).collect();
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.wait_until(now), Some(now + DELAY_MAX));
        assert_eq!(backoff.wait_until(now + DELAY_MAX), None);
        backoff.succeeded();
        assert_eq!(backoff.failed(now), DELAY_MIN);
    }
}
