//! The largest payload, remembered for a moment: a setting is not worth a query per request.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use postrider::{Operate, StoreError};

/// A changed setting reaches the API within this time.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Limits(Mutex<Option<Known>>);

#[derive(Clone, Copy)]
struct Known {
    max_payload_bytes: u64,
    until: Instant,
}

impl Limits {
    pub(super) async fn max_payload_bytes(&self, operate: &dyn Operate) -> Result<u64, StoreError> {
        if let Some(known) = self.known() {
            return Ok(known.max_payload_bytes);
        }
        let max_payload_bytes = operate.settings().await?.max_payload_bytes;
        *self.lock() = Some(Known { max_payload_bytes, until: Instant::now() + FRESH });
        Ok(max_payload_bytes)
    }

    fn known(&self) -> Option<Known> {
        self.lock().filter(|known| Instant::now() < known.until)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Known>> {
        self.0.lock().expect("nothing panics while it holds two numbers")
    }
}
