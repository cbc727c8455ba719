//! Connections to one origin: idle ones of HTTP/1, or one of HTTP/2 that requests share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::client::conn::TrySendError;
use tokio::time::{Instant, timeout};

use super::Request;
use super::answer::{Answer, Way, lost};
use super::connector::{Connection, Connector, Http1, Http2Connection};
use super::origin::{Origin, as_http1, as_http2};
use crate::verdict::Failure;

/// Shorter than the keep-alive of common servers, so that they seldom close what is about to be used.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection that still has something to finish gets this long before another is opened instead.
const READY_TIME_MAX: Duration = Duration::from_millis(100);

pub(super) struct Pool {
    origin: Origin,
    connector: Arc<Connector>,
    idle: Arc<IdleConnections>,
    /// None where HTTP/2 is out of the question.
    shared: Option<Shared>,
}

#[derive(Default)]
struct Shared {
    open: tokio::sync::Mutex<Option<Http2Connection>>,
    /// The receiver was asked and speaks HTTP/1 only.
    declined: AtomicBool,
}

/// What became of one try.
enum Tried {
    Answered(Answer),
    /// Not a byte of it was written.
    NotSent(Request),
}

impl Pool {
    pub(super) fn new(origin: Origin, connector: Arc<Connector>, idle_max: usize) -> Self {
        let shared = connector.may_share(&origin).then(Shared::default);
        Self { origin, connector, idle: Arc::new(IdleConnections::new(idle_max)), shared }
    }

    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Sends a request in the form of HTTP/1. When an open connection turns out to be closed before
    /// anything was written, the request goes out on a new one; nothing is written twice.
    pub(super) async fn send(&self, mut request: Request) -> Result<Answer, Failure> {
        if let Some(connection) = self.reused().await {
            match self.send_on(connection, request).await? {
                Tried::Answered(answer) => return Ok(answer),
                Tried::NotSent(unsent) => request = as_http1(unsent),
            }
        }
        let connection = match timeout(self.connector.connect_timeout(), self.open()).await {
            Ok(connection) => connection?,
            Err(_) => return Err(self.timed_out()),
        };
        match self.send_on(connection, request).await? {
            Tried::Answered(answer) => Ok(answer),
            Tried::NotSent(_) => {
                Err(Failure::retryable("the connection was closed before the request was sent"))
            }
        }
    }

    /// An open connection, if there is one.
    async fn reused(&self) -> Option<Connection> {
        match self.sharing() {
            Some(shared) => {
                // Whoever opens the connection holds the lock: wait for it in `open`, under its timeout.
                let open = shared.open.try_lock().ok()?;
                open.as_ref().filter(|open| !open.sender.is_closed()).cloned().map(Connection::Http2)
            }
            None => self.idle.take().await.map(Connection::Http1),
        }
    }

    async fn open(&self) -> Result<Connection, Failure> {
        let Some(shared) = &self.shared else {
            return self.connector.open(&self.origin).await;
        };
        if shared.declined.load(Ordering::Relaxed) {
            return self.connector.open(&self.origin).await;
        }
        // Held while connecting, so that many waiting requests make one connection.
        let mut open = shared.open.lock().await;
        if let Some(open) = open.as_ref().filter(|open| !open.sender.is_closed()) {
            return Ok(Connection::Http2(open.clone()));
        }
        let connection = self.connector.open(&self.origin).await?;
        match &connection {
            Connection::Http1(_) => shared.declined.store(true, Ordering::Relaxed),
            Connection::Http2(fresh) => *open = Some(fresh.clone()),
        }
        Ok(connection)
    }

    fn sharing(&self) -> Option<&Shared> {
        self.shared.as_ref().filter(|shared| !shared.declined.load(Ordering::Relaxed))
    }

    async fn send_on(&self, connection: Connection, request: Request) -> Result<Tried, Failure> {
        match connection {
            Connection::Http1(mut connection) => match connection.sender.try_send_request(request).await {
                Ok(response) => Ok(Tried::Answered(Answer {
                    response,
                    way: Way::Http1 { connection, idle: Arc::clone(&self.idle) },
                })),
                Err(error) => not_sent(error),
            },
            Connection::Http2(mut connection) => {
                let request = as_http2(request, &self.origin)?;
                match connection.sender.try_send_request(request).await {
                    Ok(response) => {
                        Ok(Tried::Answered(Answer { response, way: Way::Http2 { _connection: connection } }))
                    }
                    Err(error) => not_sent(error),
                }
            }
        }
    }

    fn timed_out(&self) -> Failure {
        let seconds = self.connector.connect_timeout().as_secs_f64();
        Failure::retryable(format!("timed out connecting after {seconds} s"))
    }
}

fn not_sent(mut error: TrySendError<Request>) -> Result<Tried, Failure> {
    match error.take_message() {
        Some(request) => Ok(Tried::NotSent(request)),
        None => Err(lost(&error.into_error())),
    }
}

/// Last in, first out: the youngest is the least likely to have been closed meanwhile.
pub(super) struct IdleConnections {
    list: Mutex<Vec<Idle>>,
    count_max: usize,
}

struct Idle {
    connection: Http1,
    since: Instant,
}

impl IdleConnections {
    fn new(count_max: usize) -> Self {
        Self { list: Mutex::new(Vec::new()), count_max }
    }

    async fn take(&self) -> Option<Http1> {
        loop {
            let Idle { mut connection, since } = self.lock().pop()?;
            if since.elapsed() > IDLE_TIME_MAX {
                // Those below it are older still. They are closed after the lock is given back.
                drop(std::mem::take(&mut *self.lock()));
                return None;
            }
            if connection.sender.is_ready() {
                return Some(connection);
            }
            if let Ok(Ok(())) = timeout(READY_TIME_MAX, connection.sender.ready()).await {
                return Some(connection);
            }
        }
    }

    /// Only for a connection whose last answer was read to its end.
    pub(super) fn put(&self, connection: Http1) {
        let mut list = self.lock();
        if list.len() < self.count_max && !connection.sender.is_closed() {
            list.push(Idle { connection, since: Instant::now() });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
