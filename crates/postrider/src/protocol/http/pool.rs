//! Connections to one origin: idle ones of HTTP/1, or one of HTTP/2 that requests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use tokio::time::{Instant, sleep_until, timeout};

use super::Request;
use super::answer::HttpAnswer;
use super::connection::{Http1, Http2, HttpConnection, SendOutcome};
use super::connector::Connector;
use super::origin::Origin;
use crate::net::within;
use crate::sink::Undelivered;
use crate::sink::kept::{Holder, Kept, KeptPlace};
use crate::verdict::Failure;

/// Shorter than the keep-alive of common servers, so that they seldom close what is about to be used.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection that still has something to finish gets this long before another is opened instead.
const READY_TIME_MAX: Duration = Duration::from_millis(100);

pub(super) struct ConnectionPool {
    origin: Origin,
    connector: Arc<Connector>,
    idle: Arc<IdleConnections>,
    /// None where HTTP/2 is out of the question.
    shared: Option<Arc<SharedConnection>>,
}

#[derive(Default)]
struct SharedConnection {
    /// A connection that the node may not keep serves one request only.
    open: Mutex<Option<(Http2, KeptPlace)>>,
    /// Held while connecting, so that many waiting requests make one connection.
    opening: tokio::sync::Mutex<()>,
    /// The receiver was asked and speaks HTTP/1 only.
    declined: AtomicBool,
}

/// An open connection, if there is one.
enum Reused {
    Ready(HttpConnection),
    /// Not yet done with its last request, or closed.
    Busy(Http1),
    None,
}

impl ConnectionPool {
    pub(super) fn new(origin: Origin, connector: Arc<Connector>, idle_max: usize, kept: &Arc<Kept>) -> Self {
        let idle = Arc::new(IdleConnections::new(idle_max, Arc::clone(kept)));
        let shared = connector.may_share(&origin).then(|| Arc::new(SharedConnection::default()));
        if idle_max > 0 {
            kept.add(Arc::downgrade(&idle) as Weak<dyn Holder>);
            if let Some(shared) = &shared {
                kept.add(Arc::downgrade(shared) as Weak<dyn Holder>);
            }
        }
        Self { origin, connector, idle, shared }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Sends a request in the form of HTTP/1. When an open connection turns out to be closed before
    /// anything was written, the request goes out on a new one; nothing is written twice.
    ///
    /// Written without `async` so that a delivery is small: the request moves straight into the
    /// connection, and the rare cases are boxed.
    pub(super) fn send(&self, request: Request) -> impl Future<Output = Result<HttpAnswer, Undelivered>> {
        let connection = match self.reused() {
            Reused::Ready(connection) => connection,
            Reused::Busy(busy) => return Either::Left(self.send_once_ready(busy, request).boxed()),
            Reused::None => return Either::Left(self.send_anew(request).boxed()),
        };
        let sent = connection.send(request, &self.origin);
        Either::Right(sent.then(|sent| match sent {
            SendOutcome::Returned(request) => Either::Left(self.send_anew(request).boxed()),
            sent => Either::Right(ready(self.answer(sent).map_err(Undelivered::from))),
        }))
    }

    /// Takes back a connection whose last answer was read to its end.
    pub(super) fn put(&self, connection: Http1) {
        self.idle.put(connection);
    }

    fn answer(&self, sent: SendOutcome) -> Result<HttpAnswer, Failure> {
        match sent {
            SendOutcome::Answered(response, connection) => {
                Ok(HttpAnswer { response, connection, keep_connection: self.idle.count_max > 0 })
            }
            SendOutcome::Returned(_) => {
                Err(Failure::retryable("the connection was closed before the request was sent"))
            }
            SendOutcome::Lost(failure) => Err(Failure { ambiguous: true, ..failure }),
        }
    }

    async fn send_once_ready(&self, mut busy: Http1, request: Request) -> Result<HttpAnswer, Undelivered> {
        while !timeout(READY_TIME_MAX, busy.ready()).await.unwrap_or(false) {
            match self.idle.take() {
                Some(next) => busy = next,
                None => return self.send_anew(request).await,
            }
        }
        match HttpConnection::Http1(busy).send(request, &self.origin).await {
            SendOutcome::Returned(request) => self.send_anew(request).await,
            sent => Ok(self.answer(sent)?),
        }
    }

    async fn send_anew(&self, request: Request) -> Result<HttpAnswer, Undelivered> {
        let connection = within(self.connector.connect_timeout(), self.open()).await?;
        Ok(self.answer(connection.send(request, &self.origin).await)?)
    }

    fn reused(&self) -> Reused {
        if let Some(shared) = self.sharing() {
            return shared.open().map_or(Reused::None, Reused::Ready);
        }
        match self.idle.take() {
            Some(connection) if connection.is_ready() => Reused::Ready(HttpConnection::Http1(connection)),
            Some(connection) => Reused::Busy(connection),
            None => Reused::None,
        }
    }

    async fn open(&self) -> Result<HttpConnection, Undelivered> {
        let Some(shared) = self.sharing() else {
            return self.connector.open(&self.origin).await;
        };
        let _opening = shared.opening.lock().await;
        if let Some(open) = shared.open() {
            return Ok(open);
        }
        let connection = self.connector.open(&self.origin).await?;
        match &connection {
            HttpConnection::Http1(_) => shared.declined.store(true, Ordering::Relaxed),
            HttpConnection::Http2(fresh) => {
                let mut open = lock(&shared.open);
                *open = None;
                *open = self.idle.kept.place().map(|place| (fresh.clone(), place));
            }
        }
        Ok(connection)
    }

    fn sharing(&self) -> Option<&SharedConnection> {
        self.shared.as_deref().filter(|shared| !shared.declined.load(Ordering::Relaxed))
    }
}

impl SharedConnection {
    fn open(&self) -> Option<HttpConnection> {
        let open = lock(&self.open);
        let open = open.as_ref().map(|(open, _)| open).filter(|open| open.is_open());
        open.cloned().map(HttpConnection::Http2)
    }
}

/// Requests under way keep the connection open until they end.
impl Holder for SharedConnection {
    fn let_go(&self) {
        lock(&self.open).take();
    }
}

struct IdleConnections {
    state: Mutex<IdleState>,
    count_max: usize,
    kept: Arc<Kept>,
}

impl Holder for IdleConnections {
    fn let_go(&self) {
        let closing = std::mem::take(&mut lock(&self.state).list);
        drop(closing);
    }
}

#[derive(Default)]
struct IdleState {
    /// Last in, first out: the youngest is the least likely to have been closed meanwhile.
    list: Vec<IdleConnection>,
    is_swept: bool,
}

struct IdleConnection {
    connection: Http1,
    since: Instant,
    _place: KeptPlace,
}

impl IdleConnection {
    fn is_old(&self) -> bool {
        self.since.elapsed() >= IDLE_TIME_MAX
    }
}

impl IdleConnections {
    fn new(count_max: usize, kept: Arc<Kept>) -> Self {
        Self { state: Mutex::default(), count_max, kept }
    }

    fn take(&self) -> Option<Http1> {
        let youngest = lock(&self.state).list.pop()?;
        (!youngest.is_old()).then_some(youngest.connection)
    }

    fn put(self: &Arc<Self>, connection: Http1) {
        let mut state = lock(&self.state);
        if state.list.len() >= self.count_max {
            return;
        }
        // Where the node keeps as many as it may, the oldest of this receiver makes room.
        let place = self.kept.place().or_else(|| {
            let oldest = (!state.list.is_empty()).then(|| state.list.remove(0))?;
            drop(oldest);
            self.kept.place()
        });
        let Some(place) = place else { return };
        state.list.push(IdleConnection { connection, since: Instant::now(), _place: place });
        if !state.is_swept {
            state.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Closes the old ones; when the next one will be old, if any is left.
    fn sweep(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        let old = state.list.partition_point(IdleConnection::is_old);
        let closing: Vec<IdleConnection> = state.list.drain(..old).collect();
        let next = state.list.first().map(|oldest| oldest.since + IDLE_TIME_MAX);
        state.is_swept = next.is_some();
        drop(state);
        drop(closing);
        next
    }
}

/// One timer for all of them, so that an idle node holds no sockets. Ends when none is left.
async fn sweep(connections: Weak<IdleConnections>) {
    while let Some(next) = connections.upgrade().and_then(|idle| idle.sweep()) {
        sleep_until(next).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
