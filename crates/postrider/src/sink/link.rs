//! A standing connection to a broker, shared by all endpoints that name the same broker and credentials. One task opens
//! it, watches it and opens it again. Deliveries use it while it is up; while it is down they are refused at once, so
//! that nothing waits in a client's queue to be sent later.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::kept::{Holder, Kept};
use super::{Environment, SinkConnection, Undelivered, hand_over};
use crate::net::{blocking, judge, within};
use crate::verdict::Failure;

/// After the first failure to connect, doubled after each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
/// A broker that is back is noticed within this time, well within the shortest cooldown of a circuit.
const PAUSE_MAX: Duration = Duration::from_secs(3);
/// A connection that lasted this long worked: when it is lost, the next one is opened without a pause.
const LASTED: Duration = Duration::from_secs(1);
/// A broker that answered none of its deliveries for this long is taken for dead. Shorter pauses are common: a disk that is
/// slow to sync, a collection of garbage.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// A broker that is away is not asked any more when no delivery wanted it for this long.
const UNWANTED_AFTER: Duration = Duration::from_secs(120);

/// How a protocol opens its connection. Made anew for each connection, where reading files may block, so that rotated
/// secrets and certificates are used.
#[async_trait]
pub(crate) trait OpenLink: Send + Sync + 'static {
    type Client: Send + Sync + 'static;

    /// How long a connection may be silent while deliveries wait. A client that cannot forget what was given up is dropped
    /// earlier, before it sends that.
    const SILENCE_MAX: Duration = SILENCE_MAX;

    /// Through the gate, signed in, ready to send.
    async fn open(&self) -> Result<OpenedLink<Self::Client>, Undelivered>;
}

pub(crate) struct OpenedLink<C> {
    pub(crate) client: C,
    /// Ends when the connection is lost, and says why.
    pub(crate) lost: BoxFuture<'static, String>,
}

type MakeOpener<O> = Arc<dyn Fn() -> Result<O, Undelivered> + Send + Sync>;

/// The connections of one node, by what they connect to and how long that may take. Sinks own them; the last one closes the
/// connection.
#[derive(Default)]
pub struct Links(Mutex<HashMap<(LinkKey, Duration), Weak<dyn Any + Send + Sync>>>);

/// Endpoints with equal keys share a connection. Holds secrets, so it has no Debug.
#[derive(Clone, PartialEq, Eq, Hash)]
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
        opener: impl Fn(&Environment) -> Result<O, Undelivered> + Send + Sync + 'static,
    ) -> Arc<Link<O::Client>> {
        let key = (key, connect_timeout);
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let existing = links.get(&key).and_then(Weak::upgrade);
        if let Some(link) = existing.and_then(|link| link.downcast::<Link<O::Client>>().ok()) {
            return link;
        }
        links.retain(|_, link| link.strong_count() > 0);
        let allowed = environment.clone();
        let make_opener = Arc::new(move || opener(&allowed));
        let link = Arc::new(Link::new(make_opener, connect_timeout, &environment.kept));
        let held: Weak<dyn Holder> = Arc::downgrade(&(Arc::clone(&link) as Arc<dyn Holder>));
        environment.kept.add(held);
        let any: Weak<dyn Any + Send + Sync> =
            Arc::downgrade(&(Arc::clone(&link) as Arc<dyn Any + Send + Sync>));
        links.insert(key, any);
        link
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
struct LinkOrders {
    connect: Notify,
    let_go: Notify,
    since: Instant,
    /// Milliseconds after `since` when a delivery last asked for a connection that was not up.
    wanted: AtomicU64,
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
    silence_max: Duration,
    /// Milliseconds after `since` from which on the broker answered nothing although deliveries wait. 0: none waits.
    silent_from: AtomicU64,
    in_use: AtomicUsize,
    ended: CancellationToken,
    /// Why it ended.
    why: OnceLock<String>,
}

impl<C: Send + Sync + 'static> Link<C> {
    fn new<O: OpenLink<Client = C>>(
        make_opener: MakeOpener<O>,
        connect_timeout: Duration,
        kept: &Arc<Kept>,
    ) -> Self {
        let (sender, state) = watch::channel(LinkState::Idle);
        let orders = Arc::new(LinkOrders::new());
        let keeper = LinkKeeper {
            make_opener,
            connect_timeout,
            state: sender,
            orders: Arc::clone(&orders),
            kept: Arc::clone(kept),
        };
        Self { state, orders, _keeper: AbortOnDropHandle::new(tokio::spawn(keeper.run())) }
    }

    /// Hands the connection to `send`, which waits for the broker's answer. Ends when the connection is lost before.
    pub(crate) async fn deliver<T>(
        &self,
        send: impl AsyncFnOnce(&C) -> Result<T, Undelivered>,
    ) -> Result<T, Undelivered> {
        let mut unanswered = self.begin().await?;
        let live = Arc::clone(&unanswered.live);
        hand_over();
        tokio::select! {
            biased;
            result = send(&live.client) => {
                unanswered.answered = !matches!(&result, Err(Undelivered::Failed(failure)) if failure.ambiguous);
                result
            }
            () = live.ended.cancelled() => {
                unanswered.answered = true;
                let why = live.why.get().map_or("it was closed", String::as_str);
                let error = format!("the connection was lost before the broker answered: {why}");
                Err(Failure { ambiguous: true, ..Failure::retryable(error) }.into())
            }
        }
    }

    /// For a broker that answers, but cannot take messages: another one may stand behind the same name by now. A new
    /// connection is left alone for a second.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn replace(&self, why: &str) {
        if let LinkState::Up(live) = &*self.state.borrow()
            && live.since.elapsed() >= LASTED
        {
            live.end(why.to_owned());
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

    /// A delivery over the connection, which is opened if it is idle.
    async fn begin(&self) -> Result<Unanswered<C>, Undelivered> {
        if let Some(begun) = Unanswered::begin(&self.state.borrow()) {
            return Ok(begun);
        }
        let mut state = self.state.clone();
        loop {
            self.orders.want();
            match &*state.borrow_and_update() {
                state @ LinkState::Up(_) => {
                    if let Some(begun) = Unanswered::begin(state) {
                        return Ok(begun);
                    }
                    // The keeper is about to open the next one.
                }
                LinkState::Down(why) => return Err(why.clone()),
                LinkState::Idle => self.orders.connect.notify_one(),
                LinkState::Connecting => {}
            }
            if state.changed().await.is_err() {
                return Err(Failure::retryable("this node is stopping").into());
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

impl LinkOrders {
    fn new() -> Self {
        Self {
            connect: Notify::new(),
            let_go: Notify::new(),
            since: Instant::now(),
            wanted: AtomicU64::new(0),
        }
    }

    fn want(&self) {
        self.wanted.store(millis_after(self.since), Relaxed);
    }

    fn unwanted_for(&self) -> Duration {
        Duration::from_millis(millis_after(self.since).saturating_sub(self.wanted.load(Relaxed)))
    }
}

/// One delivery that waits for the broker's answer.
struct Unanswered<C> {
    live: Arc<LiveLink<C>>,
    answered: bool,
}

impl<C> Unanswered<C> {
    /// The caller borrows the state, so the keeper cannot change it between the look and the count.
    fn begin(state: &LinkState<C>) -> Option<Self> {
        let LinkState::Up(live) = state else { return None };
        if live.ended.is_cancelled() {
            return None;
        }
        live.in_use.fetch_add(1, Relaxed);
        let _ = live.silent_from.compare_exchange(0, live.millis(), Relaxed, Relaxed);
        Some(Self { live: Arc::clone(live), answered: false })
    }
}

/// A delivery that ends without an answer ran out of time. If the broker has been silent for long, the connection is taken
/// for dead: closing it also keeps the client from sending this message later.
impl<C> Drop for Unanswered<C> {
    fn drop(&mut self) {
        let live = &self.live;
        let is_last = live.in_use.fetch_sub(1, Relaxed) == 1;
        if self.answered {
            live.silent_from.store(if is_last { 0 } else { live.millis() }, Relaxed);
            return;
        }
        let silent_from = live.silent_from.load(Relaxed);
        let silent_for = Duration::from_millis(live.millis().saturating_sub(silent_from));
        if silent_from > 0 && silent_for >= live.silence_max {
            live.end("the broker answered nothing in time".to_owned());
        }
    }
}

impl<C> LiveLink<C> {
    fn new(client: C, silence_max: Duration) -> Self {
        Self {
            client,
            since: Instant::now(),
            silence_max,
            silent_from: AtomicU64::new(0),
            in_use: AtomicUsize::new(0),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
        }
    }

    /// Since it was opened; never 0.
    fn millis(&self) -> u64 {
        millis_after(self.since) + 1
    }

    fn end(&self, why: String) {
        let _ = self.why.set(why);
        self.ended.cancel();
    }
}

fn millis_after(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
}

/// The task behind a link.
struct LinkKeeper<O: OpenLink> {
    make_opener: MakeOpener<O>,
    connect_timeout: Duration,
    state: watch::Sender<LinkState<O::Client>>,
    orders: Arc<LinkOrders>,
    kept: Arc<Kept>,
}

/// Why an open connection is not watched any more.
enum LinkEnd {
    Lost,
    LetGo,
}

impl<O: OpenLink> LinkKeeper<O> {
    async fn run(self) {
        loop {
            self.orders.connect.notified().await;
            self.keep_up().await;
            // Deliveries that wait see the idle state and ask again; an older request would open it for nobody.
            let _ = self.orders.connect.notified().now_or_never();
            self.state.send_replace(LinkState::Idle);
        }
    }

    /// Until the connection is let go, or cannot be opened and is not wanted.
    async fn keep_up(&self) {
        let mut pause = PAUSE_MIN;
        loop {
            self.state.send_replace(LinkState::Connecting);
            match self.open().await {
                // The opener lives as long as the connection: it may own a part of it.
                Ok((_opener, opened)) => {
                    let live = Arc::new(LiveLink::new(opened.client, O::SILENCE_MAX));
                    match self.watch(&live, opened.lost).await {
                        LinkEnd::LetGo => return,
                        LinkEnd::Lost => self.orders.want(),
                    }
                    if live.since.elapsed() >= LASTED {
                        pause = PAUSE_MIN;
                        continue;
                    }
                    let why = live.why.get().map_or("it was closed", String::as_str);
                    let failure = Failure::retryable(format!("the connection did not last: {why}"));
                    self.state.send_replace(LinkState::Down(failure.into()));
                }
                Err(undelivered) => {
                    self.state.send_replace(LinkState::Down(undelivered));
                }
            }
            if self.orders.unwanted_for() >= UNWANTED_AFTER {
                return;
            }
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.8..1.2))).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn open(&self) -> Result<(O, OpenedLink<O::Client>), Undelivered> {
        const PANICKED: &str = "opening the connection panicked";
        let opening = async {
            let make_opener = Arc::clone(&self.make_opener);
            let opener = blocking(move || make_opener()).await;
            let opener = opener.unwrap_or_else(|error| Err(judge(&error, Failure::retryable(PANICKED))))?;
            let opened = opener.open().await?;
            Ok((opener, opened))
        };
        let opening = AssertUnwindSafe(opening).catch_unwind();
        within(
            self.connect_timeout,
            opening.map(|opened| match opened {
                Ok(opened) => opened,
                Err(_panic) => Err(Failure::retryable(PANICKED).into()),
            }),
        )
        .await
    }

    async fn watch(&self, live: &Arc<LiveLink<O::Client>>, lost: BoxFuture<'static, String>) -> LinkEnd {
        let mut lost = pin!(AssertUnwindSafe(lost).catch_unwind());
        // As other connections that are kept; but a broker has only one, so it stays open without a place, too.
        let _place = self.kept.place();
        // Asked of the connection before.
        let _ = self.orders.let_go.notified().now_or_never();
        self.state.send_replace(LinkState::Up(Arc::clone(live)));
        loop {
            tokio::select! {
                why = &mut lost => {
                    live.end(why.unwrap_or_else(|_panic| "its client panicked".to_owned()));
                    return LinkEnd::Lost;
                }
                () = live.ended.cancelled() => return LinkEnd::Lost,
                () = self.orders.let_go.notified() => {
                    // From here on no delivery begins, so the count does not grow.
                    self.state.send_replace(LinkState::Idle);
                    if live.in_use.load(Relaxed) == 0 {
                        live.end("this node needed the connection's place".to_owned());
                        return LinkEnd::LetGo;
                    }
                    self.state.send_replace(LinkState::Up(Arc::clone(live)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
