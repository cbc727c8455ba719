//! The connections of clients, at most as many as the node has descriptors for, and the requests on them. When all are
//! taken, the client that has been waiting longest is closed for a new one.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::node;
use super::problem::Problem;

/// Time for the head of a request, from its first byte; on a new connection from its beginning.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
/// Time between two requests.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a new connection waits before it looks again for a client to close, or for the closed one to be gone.
const ENTER_PAUSE: Duration = Duration::from_millis(20);
/// How often clients whose time is over are closed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// A quarter of the connections, at most this many, are kept free of requests, so that new connections and probes get in.
const SPARE_MAX: usize = 8;
/// How long a request waits for its turn. Then the client whose body has made no progress for longest is closed, and
/// the request waits as long again. Both together are less than [`HEAD_TIME_MAX`].
const TURN_PAUSE: Duration = Duration::from_secs(2);
/// The log says at most once in this time that requests wait.
const TELL_INTERVAL: Duration = Duration::from_secs(10);
const RETRY_AFTER_SECONDS: u32 = 1;

pub(super) struct Clients {
    max: usize,
    /// One permit for each request, except probes.
    turns: Arc<Semaphore>,
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    clients: HashMap<u64, Arc<ClientState>>,
    told_at: Option<Instant>,
}

/// A connection's phase and the millisecond since which it lasts, in one word, so that a request takes no lock.
struct ClientState {
    word: AtomicU64,
    cut: CancellationToken,
    /// Cancelled when its descriptor is closed.
    gone: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two requests.
    Idle = 0,
    /// A head has begun and is not complete.
    Head = 1,
    /// A body has begun and is not complete.
    Body = 2,
    /// The node works on the request, or the client reads a long answer.
    Busy = 3,
}

/// One connection. Its place is free again when this is dropped.
pub(super) struct Client {
    clients: Weak<Clients>,
    number: u64,
    began: Instant,
    state: Arc<ClientState>,
}

impl Clients {
    /// Clients whose time is over are closed until this is dropped.
    pub(super) fn up_to(max: usize) -> Arc<Self> {
        let turns = Arc::new(Semaphore::new(turns(max)));
        let clients = Arc::new(Self { max, turns, began: Instant::now(), open: Mutex::default() });
        tokio::spawn(sweep(Arc::downgrade(&clients)));
        clients
    }

    /// Takes a place, if need be that of the client which has waited longest. Waits while all clients are busy.
    pub(super) async fn enter(self: &Arc<Self>) -> Client {
        while self.lock().clients.len() >= self.max {
            self.make_room().await;
        }
        let now = milliseconds(self.began);
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        let (cut, gone) = (CancellationToken::new(), CancellationToken::new());
        let state = Arc::new(ClientState { word: AtomicU64::new(packed(Phase::Head, now)), cut, gone });
        open.clients.insert(number, Arc::clone(&state));
        Client { clients: Arc::downgrade(self), number, began: self.began, state }
    }

    /// Closes the client that has waited longest, unless all are busy.
    pub(super) async fn make_room(&self) {
        let closing = self.lock().close_longest(|phase| phase != Phase::Busy);
        match closing {
            Some(gone) => _ = timeout(ENTER_PAUSE, gone.cancelled()).await,
            None => tokio::time::sleep(ENTER_PAUSE).await,
        }
    }

    async fn wait_for_turn(&self) -> Result<OwnedSemaphorePermit, Problem> {
        self.tell_that_requests_wait();
        let mut turn = std::pin::pin!(Arc::clone(&self.turns).acquire_owned());
        let mut taken = timeout(TURN_PAUSE, turn.as_mut()).await;
        if taken.is_err() {
            self.lock().close_longest(|phase| phase == Phase::Body);
            taken = timeout(TURN_PAUSE, turn).await;
        }
        taken.ok().and_then(Result::ok).ok_or_else(|| too_many(self.max))
    }

    fn tell_that_requests_wait(&self) {
        let mut open = self.lock();
        if open.told_at.is_none_or(|at| at.elapsed() >= TELL_INTERVAL) {
            open.told_at = Some(Instant::now());
            drop(open);
            let (at_once, client_connections_max) = (turns(self.max), self.max);
            tracing::warn!(
                at_once,
                client_connections_max,
                "Requests wait: clients have as many under way as this node takes at once; raise the limit of open files (ulimit -n, LimitNOFILE) if this lasts"
            );
        }
    }

    fn close_late(&self) {
        let now = milliseconds(self.began);
        self.lock().clients.retain(|_, state| {
            let late = is_late(state.word.load(Relaxed), now);
            if late {
                state.cut.cancel();
            }
            !late
        });
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// The token is cancelled when its descriptor is closed.
    fn close_longest(&mut self, may_go: impl Fn(Phase) -> bool) -> Option<CancellationToken> {
        let words = self.clients.iter().map(|(number, state)| (*number, state.word.load(Relaxed)));
        let number = longest(words, may_go)?;
        let closed = self.clients.remove(&number)?;
        closed.cut.cancel();
        Some(closed.gone.clone())
    }
}

impl Client {
    /// Cancelled when the connection is to be closed, and when it has ended.
    pub(super) fn cut(&self) -> CancellationToken {
        self.state.cut.clone()
    }

    /// The permit for one request. While the request waits for it, its connection may be closed for another.
    pub(super) async fn turn(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let clients = self.clients.upgrade().ok_or_else(node::stopping)?;
        match Arc::clone(&clients.turns).try_acquire_owned() {
            Ok(turn) => Ok(turn),
            Err(_) => {
                self.is_at(Phase::Head);
                Box::pin(clients.wait_for_turn()).await
            }
        }
    }

    pub(super) fn is_at(&self, phase: Phase) {
        self.state.word.store(packed(phase, milliseconds(self.began)), Relaxed);
    }

    pub(super) fn phase(&self) -> Phase {
        phase(self.state.word.load(Relaxed))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.state.cut.cancel();
        self.state.gone.cancel();
        if let Some(clients) = self.clients.upgrade() {
            clients.lock().clients.remove(&self.number);
        }
    }
}

async fn sweep(clients: Weak<Clients>) {
    while let Some(clients) = clients.upgrade() {
        clients.close_late();
        drop(clients);
        tokio::time::sleep(SWEEP_INTERVAL).await;
    }
}

fn milliseconds(began: Instant) -> u64 {
    began.elapsed().as_millis() as u64
}

fn packed(phase: Phase, at: u64) -> u64 {
    at << 2 | phase as u64
}

fn phase(word: u64) -> Phase {
    match word & 3 {
        0 => Phase::Idle,
        1 => Phase::Head,
        2 => Phase::Body,
        _ => Phase::Busy,
    }
}

/// [`super::body`] limits the time of a body.
fn is_late(word: u64, now: u64) -> bool {
    let since = Duration::from_millis(now.saturating_sub(word >> 2));
    match phase(word) {
        Phase::Idle => since >= IDLE_TIME_MAX,
        Phase::Head => since >= HEAD_TIME_MAX,
        Phase::Body | Phase::Busy => false,
    }
}

fn longest(words: impl Iterator<Item = (u64, u64)>, may_go: impl Fn(Phase) -> bool) -> Option<u64> {
    let waiting = words.filter(|(_, word)| may_go(phase(*word)));
    waiting.min_by_key(|(number, word)| (*word >> 2, *number)).map(|(number, _)| number)
}

/// How many requests may be under way on this many connections.
fn turns(connections: usize) -> usize {
    connections.saturating_sub((connections / 4).clamp(1, SPARE_MAX)).max(1)
}

fn too_many(connections: usize) -> Problem {
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "too-many-requests", "Too many requests are under way")
        .detail(format!(
            "all client connections of this node are busy: {} requests are under way, and none of them ended in time",
            turns(connections)
        ))
        .retry_after(RETRY_AFTER_SECONDS)
}

#[cfg(test)]
mod tests {
    use super::Phase::{Body, Busy, Head, Idle};
    use super::*;

    #[test]
    fn the_one_that_has_waited_longest_makes_room_and_none_that_is_busy() {
        let cases = [
            (vec![], None),
            (vec![(Busy, 1), (Busy, 2)], None),
            (vec![(Busy, 1), (Head, 7), (Idle, 5)], Some(2)),
            (vec![(Body, 3), (Head, 7), (Idle, 5)], Some(0)),
            (vec![(Head, 4), (Head, 3), (Head, 5)], Some(1)),
            (vec![(Idle, 4), (Idle, 4)], Some(0)),
        ];
        for (clients, expected) in cases {
            let words = clients.iter().map(|(phase, at)| packed(*phase, *at));
            let found = longest((0..).zip(words), |phase| phase != Busy);
            assert_eq!(found, expected, "{clients:?}");
        }
    }

    #[test]
    fn requests_leave_some_of_the_connections_to_newcomers() {
        let cases = [(0, 1), (1, 1), (2, 1), (3, 2), (12, 9), (48, 40), (224, 216), (4096, 4088)];
        for (connections, expected) in cases {
            assert_eq!(turns(connections), expected, "{connections}");
        }
    }

    #[test]
    fn heads_have_seconds_and_idle_clients_longer() {
        let cases = [
            (Head, 4_999, false),
            (Head, 5_000, true),
            (Idle, 29_999, false),
            (Idle, 30_000, true),
            (Body, 3_600_000, false),
            (Busy, 3_600_000, false),
        ];
        for (phase, after, expected) in cases {
            assert_eq!(is_late(packed(phase, 1_000), 1_000 + after), expected, "{phase:?} after {after} ms");
        }
    }
}
