//! The store's tokens, remembered for a moment: a token is not worth a query per request.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider::StoreError;
use postrider::store::{Keyring, TokenKey};

/// A revoked token is refused after this time, on every node; a second is promised.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct Keys {
    keyring: Arc<dyn Keyring>,
    known: Mutex<Known>,
    /// One asks the store, the others wait for what it is told.
    asking: tokio::sync::Mutex<()>,
}

struct Known {
    keys: Arc<[TokenKey]>,
    until: Instant,
}

impl Keys {
    pub(super) fn new(keyring: Arc<dyn Keyring>, keys: Vec<TokenKey>) -> Self {
        let known = Known { keys: keys.into(), until: Instant::now() };
        Self { keyring, known: Mutex::new(known), asking: tokio::sync::Mutex::default() }
    }

    /// When the store was last asked.
    pub(super) fn were_any(&self) -> bool {
        !self.lock().keys.is_empty()
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
        *self.lock() = Known { keys: keys.clone(), until };
        Ok(keys)
    }

    fn fresh(&self) -> Option<Arc<[TokenKey]>> {
        let known = self.lock();
        (Instant::now() < known.until).then(|| known.keys.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().expect("nothing panics while it holds a list")
    }
}
