//! The store's tokens, remembered for a moment: a token is not worth a query per request.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider::StoreError;
use postrider::store::{Keyring, TokenKey};

/// A revoked token is refused after this time, on every node; a second is promised.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct Keys {
    keyring: Arc<dyn Keyring>,
    known: Mutex<Option<Known>>,
    /// One asks the store, the others wait for what it is told.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Known {
    keys: Arc<[TokenKey]>,
    until: Instant,
}

impl Keys {
    pub(super) fn new(keyring: Arc<dyn Keyring>) -> Self {
        Self { keyring, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    pub(super) async fn current(&self) -> Result<Arc<[TokenKey]>, StoreError> {
        if let Some(keys) = self.fresh() {
            return Ok(keys);
        }
        let _asking = self.asking.lock().await;
        if let Some(keys) = self.fresh() {
            return Ok(keys);
        }
        // They are as old as the question, not as the answer.
        let until = Instant::now() + FRESH;
        let keys: Arc<[TokenKey]> = self.keyring.keys().await?.into();
        *self.lock() = Some(Known { keys: keys.clone(), until });
        Ok(keys)
    }

    fn fresh(&self) -> Option<Arc<[TokenKey]>> {
        self.lock().as_ref().filter(|known| Instant::now() < known.until).map(|known| known.keys.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Known>> {
        self.known.lock().expect("nothing panics while it holds a list")
    }
}
