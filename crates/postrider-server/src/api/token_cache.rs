//! The store's tokens, remembered for a moment: a token is not worth a query per request.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use postrider::StoreError;
use postrider::store::{Keyring, TokenKey};
use tokio_util::sync::CancellationToken;

/// A revoked token is refused after this time, on every node; a second is promised.
const FRESH: Duration = Duration::from_millis(500);

pub(super) struct TokenCache {
    keyring: Arc<dyn Keyring>,
    known: Mutex<KnownTokens>,
    /// One asks the store, the others wait for what it is told.
    asking: tokio::sync::Mutex<()>,
}

/// The token that a request was let in with, for long answers.
#[derive(Clone)]
pub(super) struct Pass {
    keys: Arc<TokenCache>,
    /// Of the token; None where there were none.
    prefix: Option<String>,
    /// Cancelled when their connection ends, and ends it when cancelled.
    pub(super) connection: CancellationToken,
}

impl Pass {
    pub(super) fn new(keys: &Arc<TokenCache>, prefix: Option<&str>, connection: CancellationToken) -> Self {
        Self { keys: Arc::clone(keys), prefix: prefix.map(str::to_owned), connection }
    }

    /// Would it let them in now?
    pub(super) async fn holds(&self) -> bool {
        match (self.keys.current().await, &self.prefix) {
            (Ok(keys), Some(prefix)) => keys.iter().any(|key| key.prefix == *prefix),
            (Ok(keys), None) => keys.is_empty(),
            (Err(_), _) => false,
        }
    }
}

struct KnownTokens {
    /// A store that does not answer is not asked by everybody who waits.
    answer: Result<Arc<[TokenKey]>, StoreError>,
    until: Instant,
    /// There were tokens when it last answered.
    any: bool,
}

impl TokenCache {
    pub(super) fn new(keyring: Arc<dyn Keyring>, keys: Vec<TokenKey>) -> Self {
        let known = KnownTokens { any: !keys.is_empty(), answer: Ok(keys.into()), until: Instant::now() };
        Self { keyring, known: Mutex::new(known), asking: tokio::sync::Mutex::default() }
    }

    /// When the store last answered.
    pub(super) fn were_any(&self) -> bool {
        self.lock().any
    }

    pub(super) async fn current(&self) -> Result<Arc<[TokenKey]>, StoreError> {
        if let Some(answer) = self.fresh() {
            return answer;
        }
        let _asking = self.asking.lock().await;
        if let Some(answer) = self.fresh() {
            return answer;
        }
        let asked_at = Instant::now();
        let answer: Result<Arc<[TokenKey]>, StoreError> = self.keyring.keys().await.map(Arc::from);
        let mut known = self.lock();
        match &answer {
            Ok(keys) => {
                if known.any && keys.is_empty() {
                    tracing::warn!(
                        "The store has no tokens any more; every client that reaches this node on loopback may do everything"
                    );
                }
                // They are as old as the question, not as the answer.
                (known.any, known.until) = (!keys.is_empty(), asked_at + FRESH);
            }
            Err(_) => known.until = Instant::now() + FRESH,
        }
        known.answer = answer.clone();
        answer
    }

    fn fresh(&self) -> Option<Result<Arc<[TokenKey]>, StoreError>> {
        let known = self.lock();
        (Instant::now() < known.until).then(|| known.answer.clone())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, KnownTokens> {
        self.known.lock().expect("nothing panics while it holds a list")
    }
}
