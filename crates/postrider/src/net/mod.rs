//! The way out, for every protocol: a name is resolved, the gate admits its addresses, TCP connects, TLS encrypts.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::task::JoinHandle;

use crate::sink::Undelivered;
use crate::verdict::Failure;

pub(crate) use dial::{Dialer, Stream, within};
pub use resolve::{Resolve, SystemResolver};
pub use shortage::{Resource, Shortage};

mod resolve;
mod address;
mod gate;
mod tcp;
mod tls;
mod dial;
mod shortage;

/// Runs `work` on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    begin_blocking(work).map_err(io::Error::other)?.await.map_err(io::Error::other)
}

/// The call itself panics only when the runtime can have no thread.
pub(crate) fn begin_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Shortage> {
    let begun = catch_unwind(AssertUnwindSafe(|| tokio::task::spawn_blocking(work)));
    begun.map_err(|_| Shortage { of: Resource::Threads, error: "no thread can be started".to_owned() })
}

/// What `failure` is, given the operating system's error behind it.
pub(crate) fn judge(error: &io::Error, failure: Failure) -> Undelivered {
    match Resource::lacking(error) {
        Some(of) => Undelivered::Short(Shortage { of, error: failure.error }),
        None => Undelivered::Failed(failure),
    }
}

/// The error as a phrase, without the number that follows it.
pub(crate) fn short(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
