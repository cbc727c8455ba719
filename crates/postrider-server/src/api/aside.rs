//! Large bodies are read aside: the runtime has few threads, and heartbeats and settles would wait for millions of lines.

use tokio::runtime::Handle;

/// Less than this is read sooner than handed over.
const LARGE: usize = 256 << 10;

/// Runs work that begins with reading `bytes` bytes; on another thread when the body is large.
pub(super) async fn run<T, F>(bytes: usize, work: F) -> T
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    if bytes < LARGE {
        return work.await;
    }
    let runtime = Handle::current();
    let done = tokio::task::spawn_blocking(move || runtime.block_on(work)).await;
    done.expect("reading a body does not panic")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_large_body_does_not_hold_up_the_runtime() {
        let (others, reader) = mpsc::channel();
        let reading = run(LARGE, async move { reader.recv_timeout(Duration::from_secs(30)).is_ok() });
        let (others_ran, ()) = tokio::join!(reading, async { others.send(()).expect("it is being read") });
        assert!(others_ran, "this runtime has one thread, and the reader waits for another task on it");
    }
}
