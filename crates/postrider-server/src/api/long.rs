//! Long answers, which last until the client or the node ends them: how many there may be, and how they end. When a
//! client has stopped reading, its answer cannot be ended; then its connection is closed.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use postrider::store::NodeLimits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::problem::Problem;
use super::token_cache::Pass;

/// On one node, and at most a quarter of its client connections: each occupies one, and gets every event.
const PLACES_MAX: usize = 64;
/// How often a reader's token is checked: a revoked one is refused within a second.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How long a reader has to read the end of its answer.
const LAST_WORDS_MAX: Duration = Duration::from_secs(1);
/// Readers stay for long; asking more often does not help.
const RETRY_AFTER_SECONDS: u32 = 5;

pub(super) struct LongAnswers {
    max: usize,
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

/// One long answer. Its place is free again when this is dropped.
pub(super) struct LongAnswer {
    over: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl LongAnswers {
    pub(super) fn new(limits: Option<NodeLimits>, stop: CancellationToken) -> Self {
        let quarter = limits.map_or(PLACES_MAX, |limits| limits.client_connections_max as usize / 4);
        let max = quarter.clamp(1, PLACES_MAX);
        Self { max, places: Arc::new(Semaphore::new(max)), stop }
    }

    pub(super) fn begin(&self, pass: Option<Pass>) -> Result<LongAnswer, Problem> {
        let permit = Arc::clone(&self.places).try_acquire_owned().map_err(|_| too_many(self.max))?;
        let over = self.stop.child_token();
        if let Some(pass) = pass {
            tokio::spawn(watch(pass, over.clone()));
        }
        Ok(LongAnswer { over, _permit: permit })
    }
}

impl LongAnswer {
    /// Returns when the node stops, or when the token of the reader was revoked.
    pub(super) async fn over(&self) {
        self.over.cancelled().await;
    }
}

/// Watches until the connection has ended; its answer ends with it.
async fn watch(pass: Pass, over: CancellationToken) {
    let connection = pass.connection.clone();
    let watching = async {
        while over.run_until_cancelled(tokio::time::sleep(LOOK_INTERVAL)).await.is_some() {
            if !pass.holds().await {
                over.cancel();
            }
        }
        tokio::time::sleep(LAST_WORDS_MAX).await;
        pass.connection.cancel();
    };
    connection.run_until_cancelled(watching).await;
}

fn too_many(max: usize) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-tails", "Too many tails are open")
        .detail(format!("this node has places for {max}; end one that is not read"))
        .retry_after(RETRY_AFTER_SECONDS)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use postrider::endpoint::EndpointId;
    use postrider::engine::{EngineEvent, EngineEventKind, TestDelivery};
    use postrider::store::sqlite::SqliteOptions;
    use postrider::store::{Keyring, NewToken, Scope, Tokens};
    use postrider::{Endpoint, MessageId, NewMessage, SqliteStore, State};
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::broadcast;
    use tokio::task::JoinHandle;

    use super::super::{Api, ApiGate, NodeHandle, router, serve};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const EVENTS_KEPT: usize = 64;

    /// A node whose events the test makes up.
    struct Noisy(broadcast::Sender<EngineEvent>);

    impl NodeHandle for Noisy {
        fn is_progressing(&self) -> bool {
            true
        }
        fn events(&self) -> Option<broadcast::Receiver<EngineEvent>> {
            Some(self.0.subscribe())
        }
        fn limits(&self) -> Option<NodeLimits> {
            None
        }
        fn test_delivery(&self, _: Endpoint, _: NewMessage, _: usize) -> Option<TestDelivery> {
            None
        }
    }

    struct Served {
        happenings: broadcast::Sender<EngineEvent>,
        store: Arc<SqliteStore>,
        address: SocketAddr,
        stop: CancellationToken,
        serving: JoinHandle<()>,
        _folder: tempfile::TempDir,
    }

    async fn served() -> Served {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let store = SqliteStore::open(SqliteOptions::tool(folder.path().join("a.db"))).expect("a store");
        let (store, happenings) = (Arc::new(store), broadcast::Sender::new(EVENTS_KEPT));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let (address, stop) = (listener.local_addr().expect("an address"), CancellationToken::new());
        let gate = ApiGate::new(Arc::clone(&store) as Arc<dyn Keyring>, Vec::new(), address);
        let api = Api::new(Arc::clone(&store) as _, Arc::new(Noisy(happenings.clone())), None, stop.clone());
        let serving =
            tokio::spawn(serve(listener, router(api), gate, 64, stop.clone(), CancellationToken::new()));
        Served { happenings, store, address, stop, serving, _folder: folder }
    }

    impl Served {
        async fn token(&self) -> (String, String) {
            let wanted = NewToken { name: "reader".to_owned(), scope: Scope::Monitor };
            let issued = self.store.create_token(wanted).await.expect("a token");
            (issued.token, issued.record.prefix)
        }

        /// Nobody reads it, and the node cannot write any more.
        async fn unread_tail(&self, token: &str) -> TcpStream {
            let mut stream = TcpStream::connect(self.address).await.expect("the node listens");
            let head =
                format!("GET /v1/tail HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.expect("it is taken");
            let listens = async || self.happenings.receiver_count() == 1;
            assert!(until(PATIENCE, listens).await, "the tail begins");
            while self.fill_and_drain().await {}
            stream
        }

        async fn fill_and_drain(&self) -> bool {
            for _ in 0..EVENTS_KEPT {
                self.happenings.send(large()).expect("the tail listens");
            }
            until(Duration::from_secs(1), async || self.happenings.is_empty()).await
        }
    }

    async fn until(within: Duration, is_so: impl AsyncFn() -> bool) -> bool {
        let asking = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(within, asking).await.is_ok()
    }

    fn large() -> EngineEvent {
        EngineEvent {
            at: jiff::Timestamp::UNIX_EPOCH,
            endpoint: EndpointId(1),
            endpoint_name: "x".repeat(100_000).into(),
            kind: EngineEventKind::Lost { message: MessageId(1), state: State::Pending },
        }
    }

    #[tokio::test]
    async fn a_tail_that_nobody_reads_does_not_hold_up_a_stop() {
        let served = served().await;
        let (token, _) = served.token().await;
        let _unread = served.unread_tail(&token).await;
        served.stop.cancel();
        tokio::time::timeout(PATIENCE, served.serving).await.expect("it stops").expect("it does not panic");
    }

    #[tokio::test]
    async fn a_tail_that_nobody_reads_ends_with_its_token() {
        let served = served().await;
        let (token, prefix) = served.token().await;
        served.token().await;
        let _unread = served.unread_tail(&token).await;
        served.store.revoke_token(&prefix, false).await.expect("it is revoked");
        let is_gone = async || served.happenings.receiver_count() == 0;
        assert!(until(PATIENCE, is_gone).await, "it still listens");
    }
}
