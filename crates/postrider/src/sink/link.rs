//! A standing connection to a broker, shared by all endpoints that name the same broker and credentials. One task opens
//! it, watches it and opens it again. Deliveries use it while it is up; while it is down they are refused at once, so
//! that nothing waits in a client's queue to be sent later.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::kept::Holder;
use super::{Environment, SinkConnection, Undelivered};
use crate::net::within;
use crate::verdict::Failure;

/// After the first failure to connect, doubled after each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A broker that is back is noticed within this time, well within the shortest cooldown of a circuit.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// A connection that lasted this long worked: when it is lost, the next one is opened without a pause.
const LASTED: Duration = Duration::from_secs(1);
/// A delivery that was given up earlier says nothing about the connection.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// How a protocol opens its connection.
#[async_trait]
pub(crate) trait OpenLink: Send + Sync + 'static {
    type Client: Send + Sync + 'static;

    /// Through the gate, signed in, ready to send. Reads secrets each time, so that rotated ones are used.
    async fn open(&self) -> Result<OpenedLink<Self::Client>, Undelivered>;
}

pub(crate) struct OpenedLink<C> {
    pub(crate) client: C,
    /// Ends when the connection is lost, and says why.
    pub(crate) lost: BoxFuture<'static, String>,
}

/// The connections of one node, by what they connect to. Sinks own them; the last one closes the connection.
#[derive(Default)]
pub struct Links(Mutex<HashMap<LinkKey, Weak<dyn Any + Send + Sync>>>);

/// Endpoints with equal keys share a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey {
    pub(crate) protocol: &'static str,
    /// All that the connection depends on: address, credentials, TLS.
    pub(crate) config: String,
}

impl LinkKey {
    pub(crate) fn of(protocol: &'static str, config: &impl serde::Serialize) -> Self {
        let config = serde_json::to_string(config).expect("a config that was read from JSON can be written");
        Self { protocol, config }
    }
}

impl Links {
    /// The open link of this key, or else a new one. Nothing is connected before the first delivery.
    pub(crate) fn shared<O: OpenLink>(
        &self,
        key: LinkKey,
        connect_timeout: Duration,
        environment: &Environment,
        opener: impl FnOnce() -> Result<O, Undelivered>,
    ) -> Result<Arc<Link<O::Client>>, Undelivered> {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let existing = links.get(&key).and_then(Weak::upgrade);
        if let Some(link) = existing.and_then(|link| link.downcast::<Link<O::Client>>().ok()) {
            return Ok(link);
        }
        links.retain(|_, link| link.strong_count() > 0);
        let link = Arc::new(Link::new(opener()?, connect_timeout));
        let held: Weak<dyn Holder> = Arc::downgrade(&(Arc::clone(&link) as Arc<dyn Holder>));
        environment.kept.add(held);
        let any: Weak<dyn Any + Send + Sync> =
            Arc::downgrade(&(Arc::clone(&link) as Arc<dyn Any + Send + Sync>));
        links.insert(key, any);
        Ok(link)
    }
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Links({})", self.0.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

pub(crate) struct Link<C> {
    state: watch::Receiver<LinkState<C>>,
    orders: Arc<LinkOrders>,
    _keeper: AbortOnDropHandle<()>,
}

/// What the task that keeps the link is asked for.
#[derive(Default)]
struct LinkOrders {
    connect: Notify,
    let_go: Notify,
}

enum LinkState<C> {
    /// The next delivery opens it.
    Idle,
    Connecting,
    Up(Arc<LiveLink<C>>),
    Down(Undelivered),
}

struct LiveLink<C> {
    client: C,
    since: Instant,
    /// Milliseconds after `since` when the broker last answered a delivery.
    heard: AtomicU64,
    in_use: AtomicUsize,
    ended: CancellationToken,
    /// Why it ended.
    why: OnceLock<String>,
}

impl<C: Send + Sync + 'static> Link<C> {
    fn new<O: OpenLink<Client = C>>(opener: O, connect_timeout: Duration) -> Self {
        let (sender, state) = watch::channel(LinkState::Idle);
        let orders = Arc::new(LinkOrders::default());
        let keeper = LinkKeeper { opener, connect_timeout, state: sender, orders: Arc::clone(&orders) };
        Self { state, orders, _keeper: AbortOnDropHandle::new(tokio::spawn(keeper.run())) }
    }

    /// Hands the connection to `send`, which waits for the broker's answer. Ends when the connection is lost before.
    pub(crate) async fn deliver<T>(
        &self,
        send: impl AsyncFnOnce(&C) -> Result<T, Undelivered>,
    ) -> Result<T, Undelivered> {
        let live = self.live().await?;
        let mut unanswered = Unanswered::begin(&live);
        tokio::select! {
            biased;
            result = send(&live.client) => {
                unanswered.answered = true;
                result
            }
            () = live.ended.cancelled() => {
                unanswered.answered = true;
                let why = live.why.get().map_or("it was closed", String::as_str);
                Err(Failure::retryable(format!("the connection was lost before the broker answered: {why}")).into())
            }
        }
    }

    pub(crate) fn connection(&self) -> SinkConnection {
        match &*self.state.borrow() {
            LinkState::Idle => SinkConnection::Idle,
            LinkState::Connecting => SinkConnection::Connecting,
            LinkState::Up(_) => SinkConnection::Up,
            LinkState::Down(Undelivered::Failed(failure)) => {
                SinkConnection::Down { error: failure.error.clone() }
            }
            LinkState::Down(Undelivered::Short(shortage)) => {
                SinkConnection::Down { error: shortage.to_string() }
            }
        }
    }

    /// What `look` finds of the open connection. None while it is down.
    #[cfg_attr(not(feature = "amqp"), allow(dead_code))]
    pub(crate) fn look<T>(&self, look: impl FnOnce(&C) -> T) -> Option<T> {
        match &*self.state.borrow() {
            LinkState::Up(live) => Some(look(&live.client)),
            LinkState::Idle | LinkState::Connecting | LinkState::Down(_) => None,
        }
    }

    async fn live(&self) -> Result<Arc<LiveLink<C>>, Undelivered> {
        if let LinkState::Up(live) = &*self.state.borrow()
            && !live.ended.is_cancelled()
        {
            return Ok(Arc::clone(live));
        }
        let mut state = self.state.clone();
        loop {
            match &*state.borrow_and_update() {
                LinkState::Up(live) if !live.ended.is_cancelled() => return Ok(Arc::clone(live)),
                LinkState::Down(why) => return Err(why.clone()),
                LinkState::Idle => self.orders.connect.notify_one(),
                // The keeper is about to open the next one.
                LinkState::Up(_) | LinkState::Connecting => {}
            }
            if state.changed().await.is_err() {
                return Err(Failure::retryable("opening the connection panicked").into());
            }
        }
    }
}

impl<C: Send + Sync + 'static> Holder for Link<C> {
    fn let_go(&self) {
        if let LinkState::Up(live) = &*self.state.borrow()
            && live.in_use.load(Relaxed) == 0
        {
            self.orders.let_go.notify_one();
        }
    }
}

/// One delivery that waits for the broker's answer.
struct Unanswered<'l, C> {
    live: &'l LiveLink<C>,
    began: Instant,
    answered: bool,
}

impl<'l, C> Unanswered<'l, C> {
    fn begin(live: &'l LiveLink<C>) -> Self {
        live.in_use.fetch_add(1, Relaxed);
        Self { live, began: Instant::now(), answered: false }
    }
}

/// A delivery that is dropped before its answer ran out of time. If the broker answered no other delivery meanwhile, the
/// connection is taken for dead: closing it also keeps the client from sending this message later.
impl<C> Drop for Unanswered<'_, C> {
    fn drop(&mut self) {
        let live = self.live;
        live.in_use.fetch_sub(1, Relaxed);
        if self.answered {
            live.heard.store(live.millis(), Relaxed);
            return;
        }
        let heard = live.since + Duration::from_millis(live.heard.load(Relaxed));
        if self.began.elapsed() >= SILENCE_MIN && heard <= self.began {
            live.end("the broker answered nothing in time".to_owned());
        }
    }
}

impl<C> LiveLink<C> {
    fn new(client: C) -> Self {
        Self {
            client,
            since: Instant::now(),
            heard: AtomicU64::new(0),
            in_use: AtomicUsize::new(0),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
        }
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn end(&self, why: String) {
        let _ = self.why.set(why);
        self.ended.cancel();
    }
}

/// The task behind a link.
struct LinkKeeper<O: OpenLink> {
    opener: O,
    connect_timeout: Duration,
    state: watch::Sender<LinkState<O::Client>>,
    orders: Arc<LinkOrders>,
}

impl<O: OpenLink> LinkKeeper<O> {
    async fn run(self) {
        loop {
            self.orders.connect.notified().await;
            self.keep_up().await;
            self.state.send_replace(LinkState::Idle);
        }
    }

    /// Until the connection is let go.
    async fn keep_up(&self) {
        let mut pause = PAUSE_MIN;
        loop {
            self.state.send_replace(LinkState::Connecting);
            match within(self.connect_timeout, self.opener.open()).await {
                Ok(opened) => {
                    let live = Arc::new(LiveLink::new(opened.client));
                    self.state.send_replace(LinkState::Up(Arc::clone(&live)));
                    tokio::select! {
                        why = opened.lost => live.end(why),
                        () = live.ended.cancelled() => {}
                        () = self.orders.let_go.notified() => {
                            live.end("this node needed the connection's place".to_owned());
                            return;
                        }
                    }
                    if live.since.elapsed() >= LASTED {
                        pause = PAUSE_MIN;
                        continue;
                    }
                    let why = live.why.get().map_or("", String::as_str);
                    let failure = Failure::retryable(format!("the broker closed the connection: {why}"));
                    self.state.send_replace(LinkState::Down(failure.into()));
                }
                Err(undelivered) => {
                    self.state.send_replace(LinkState::Down(undelivered));
                }
            }
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.8..1.2))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

#[cfg(test)]
mod tests;
