//! The connections of clients: how many there are, what each is at, and which of them makes room for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// For the head of a request, from its first byte; of a new connection from its beginning.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
/// Between two requests.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a newcomer waits when all others are busy, or one of them has to go.
const ENTER_PAUSE: Duration = Duration::from_millis(20);
/// How often late ones are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct Clients {
    max: usize,
    began: Instant,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    clients: HashMap<u64, Arc<State>>,
}

/// What a connection is at, and since when, in milliseconds of its node: in one word, so that a request costs no lock.
struct State {
    word: AtomicU64,
    cut: CancellationToken,
    /// Cancelled when its descriptor is free again.
    gone: CancellationToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Between two requests.
    Idle = 0,
    /// A head has begun and is not whole.
    Head = 1,
    /// A body has begun and is not whole.
    Body = 2,
    /// It is the node's turn, or an answer that goes on is being read.
    Busy = 3,
}

/// One connection, as long as it is kept.
pub(super) struct Client {
    clients: Weak<Clients>,
    number: u64,
    began: Instant,
    state: Arc<State>,
}

impl Clients {
    /// Late ones are closed until it is dropped.
    pub(super) fn up_to(max: usize) -> Arc<Self> {
        let clients = Arc::new(Self { max, began: Instant::now(), open: Mutex::default() });
        tokio::spawn(sweep(Arc::downgrade(&clients)));
        clients
    }

    /// A place for one more, if need be that of the one which has waited longest. Waits while all are busy.
    pub(super) async fn enter(self: &Arc<Self>) -> Client {
        while self.lock().clients.len() >= self.max {
            self.make_room().await;
        }
        let now = milliseconds(self.began);
        let mut open = self.lock();
        let number = open.next;
        open.next += 1;
        let (cut, gone) = (CancellationToken::new(), CancellationToken::new());
        let state = Arc::new(State { word: AtomicU64::new(packed(Phase::Head, now)), cut, gone });
        open.clients.insert(number, Arc::clone(&state));
        Client { clients: Arc::downgrade(self), number, began: self.began, state }
    }

    /// Closes the one that has waited longest, if one waits.
    pub(super) async fn make_room(&self) {
        let closing = self.lock().close_longest_waiting();
        match closing {
            Some(gone) => _ = tokio::time::timeout(ENTER_PAUSE, gone.cancelled()).await,
            None => tokio::time::sleep(ENTER_PAUSE).await,
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
    /// Tells when it is gone.
    fn close_longest_waiting(&mut self) -> Option<CancellationToken> {
        let words = self.clients.iter().map(|(number, state)| (*number, state.word.load(Relaxed)));
        let number = longest_waiting(words)?;
        let closed = self.clients.remove(&number)?;
        closed.cut.cancel();
        Some(closed.gone.clone())
    }
}

impl Client {
    /// Cancelled when it has to go, and when it has gone.
    pub(super) fn cut(&self) -> CancellationToken {
        self.state.cut.clone()
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

/// A body has a time of its own: see [`super::body`].
fn is_late(word: u64, now: u64) -> bool {
    let since = Duration::from_millis(now.saturating_sub(word >> 2));
    match phase(word) {
        Phase::Idle => since >= IDLE_TIME_MAX,
        Phase::Head => since >= HEAD_TIME_MAX,
        Phase::Body | Phase::Busy => false,
    }
}

fn longest_waiting(words: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let waiting = words.filter(|(_, word)| phase(*word) != Phase::Busy);
    waiting.min_by_key(|(number, word)| (*word >> 2, *number)).map(|(number, _)| number)
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
            assert_eq!(longest_waiting((0..).zip(words)), expected, "{clients:?}");
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
