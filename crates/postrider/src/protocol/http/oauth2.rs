//! Access tokens by client credentials (RFC 6749, section 4.4). All deliveries of an endpoint share one token, and while it
//! is fetched they wait for the same answer.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::sync::watch;
use tokio::time::Instant;

use super::token_endpoint::{AccessToken, TokenEndpoint};
use crate::sink::Undelivered;
use crate::verdict::Failure;

pub(super) struct AccessTokens {
    endpoint: TokenEndpoint,
    state: Mutex<AccessTokenState>,
}

#[derive(Default)]
struct AccessTokenState {
    current: Option<Arc<AccessToken>>,
    fetch: Option<TokenFetch>,
}

/// Tells all who wait for it. None until the token endpoint has answered.
type TokenFetch = watch::Receiver<Option<Result<Arc<AccessToken>, Undelivered>>>;

impl AccessTokens {
    pub(super) fn new(endpoint: TokenEndpoint) -> Arc<Self> {
        Arc::new(Self { endpoint, state: Mutex::default() })
    }

    /// A token that can be used now; never the one that the receiver has just refused.
    pub(super) async fn get(
        self: &Arc<Self>,
        refused: Option<&Arc<AccessToken>>,
    ) -> Result<Arc<AccessToken>, Undelivered> {
        let mut fetch = {
            let mut state = self.state();
            if let Some(token) = state.current.as_ref().filter(|token| is_usable(token, refused)) {
                return Ok(Arc::clone(token));
            }
            state.fetch.get_or_insert_with(|| self.begin()).clone()
        };
        let fetched = fetch.wait_for(Option::is_some).await;
        let fetched = fetched.ok().and_then(|fetched| fetched.clone());
        fetched.unwrap_or_else(|| Err(Failure::retryable("the node stops").into()))
    }

    /// A task of its own: an attempt that runs out of time leaves the fetch to the others.
    fn begin(self: &Arc<Self>) -> TokenFetch {
        let (done, fetch) = watch::channel(None);
        let tokens = Arc::clone(self);
        tokio::spawn(async move {
            let fetched = AssertUnwindSafe(tokens.endpoint.fetch()).catch_unwind().await;
            let fetched = fetched
                .unwrap_or_else(|_| Err(Failure::retryable("fetching an access token panicked").into()));
            let fetched = fetched.map(Arc::new);
            let mut state = tokens.state();
            state.fetch = None;
            if let Ok(token) = &fetched {
                state.current = Some(Arc::clone(token));
            }
            drop(state);
            done.send_replace(Some(fetched));
        });
        fetch
    }

    fn state(&self) -> MutexGuard<'_, AccessTokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Another fetch may give the same text again; what counts is that the receiver has not refused it since.
fn is_usable(token: &Arc<AccessToken>, refused: Option<&Arc<AccessToken>>) -> bool {
    Instant::now() < token.renew_at && !refused.is_some_and(|refused| Arc::ptr_eq(refused, token))
}
