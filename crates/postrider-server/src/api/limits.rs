//! The limits of payloads and batches, cached for a second: not every request queries the settings.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use postrider::{Operate, StoreError};

/// A changed setting reaches the API within this time.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Limits(Mutex<Option<KnownLimits>>);

#[derive(Clone, Copy)]
struct KnownLimits {
    max_payload_bytes: u64,
    max_batch_messages: u64,
    until: Instant,
}

impl Limits {
    pub(super) async fn max_payload_bytes(&self, operate: &dyn Operate) -> Result<u64, StoreError> {
        Ok(self.known(operate).await?.max_payload_bytes)
    }

    pub(super) async fn max_batch_messages(&self, operate: &dyn Operate) -> Result<u64, StoreError> {
        Ok(self.known(operate).await?.max_batch_messages)
    }

    async fn known(&self, operate: &dyn Operate) -> Result<KnownLimits, StoreError> {
        if let Some(known) = self.fresh() {
            return Ok(known);
        }
        let settings = operate.settings().await?;
        let known = KnownLimits {
            max_payload_bytes: settings.max_payload_bytes,
            max_batch_messages: settings.max_batch_messages,
            until: Instant::now() + FRESH,
        };
        *self.lock() = Some(known);
        Ok(known)
    }

    fn fresh(&self) -> Option<KnownLimits> {
        self.lock().filter(|known| Instant::now() < known.until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<KnownLimits>> {
        self.0.lock().expect("nothing panics while it holds a few numbers")
    }
}
