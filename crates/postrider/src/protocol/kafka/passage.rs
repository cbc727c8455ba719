//! The right of one producer to use the tunnel, and what is known of its connections.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use krafka::ProxyConfig;
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::net::{Dialer, Stream, short};
use crate::protocol::broker::BrokerAddress;
use crate::sink::Undelivered;
use crate::verdict::{Class, Failure};

const BUFFER_BYTES: usize = 64 << 10;

pub(super) struct Passage {
    proxy: SocketAddr,
    core: Arc<PassageCore>,
}

impl Passage {
    pub(super) fn new(proxy: SocketAddr, core: Arc<PassageCore>) -> Self {
        Self { proxy, core }
    }

    #[cfg(test)]
    pub(super) fn password(&self) -> &[u8] {
        self.core.password.as_bytes()
    }

    pub(super) fn proxy(&self) -> ProxyConfig {
        ProxyConfig::with_credentials(self.proxy.to_string(), "postrider", &*self.core.password)
    }

    /// Waits until an address is refused for ever.
    pub(super) async fn refused(&self) -> Undelivered {
        self.core.refused.wait().await.clone().into()
    }

    /// Why the last connection failed.
    pub(super) fn trouble(&self) -> Option<Undelivered> {
        self.core.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn lose(&self, why: String) {
        self.core.lose(why);
    }

    pub(super) fn lost(&self) -> BoxFuture<'static, String> {
        let core = Arc::clone(&self.core);
        Box::pin(async move { core.lost.wait().await.clone() })
    }

    pub(super) fn cut(&self) {
        self.core.cut();
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.cut();
    }
}

pub(super) struct PassageCore {
    pub(super) dialer: Arc<Dialer>,
    password: String,
    cut: CancellationToken,
    /// Connections on which a broker has answered.
    answering: AtomicUsize,
    trouble: Mutex<Option<Undelivered>>,
    refused: SetOnce<Failure>,
    /// And why.
    lost: SetOnce<String>,
}

impl PassageCore {
    pub(super) fn new(dialer: Arc<Dialer>) -> Self {
        Self {
            dialer,
            password: Uuid::new_v4().simple().to_string(),
            cut: CancellationToken::new(),
            answering: AtomicUsize::new(0),
            trouble: Mutex::default(),
            refused: SetOnce::new(),
            lost: SetOnce::new(),
        }
    }

    /// An address that may never be connected to, such as an internal one, ends the producer: the client would only try it
    /// again.
    pub(super) fn cannot_connect(&self, undelivered: Undelivered) {
        match undelivered {
            Undelivered::Failed(failure) if failure.class == Class::Permanent => {
                let why = failure.error.clone();
                let _ = self.refused.set(failure);
                self.lose(why);
            }
            other => self.note(other),
        }
    }

    fn note(&self, undelivered: Undelivered) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(undelivered);
    }

    /// From here on its deliveries fail, so nothing of them may leave.
    pub(super) fn lose(&self, why: String) {
        self.cut();
        let _ = self.lost.set(why);
    }

    pub(super) fn admits(&self, password: &[u8]) -> bool {
        !self.cut.is_cancelled() && bool::from(self.password.as_bytes().ct_eq(password))
    }

    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    pub(super) async fn until_cut(&self) {
        self.cut.cancelled().await;
    }

    /// Until one side closes the connection.
    pub(super) async fn carry(&self, client: TcpStream, server: Stream, broker: &BrokerAddress) {
        let (asked, answering) = (AtomicBool::new(false), AtomicBool::new(false));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = tokio::io::split(server);
        let there = copy(from_client, to_server, || asked.store(true, Relaxed));
        let back = copy(from_server, to_client, || {
            asked.store(false, Relaxed);
            if !answering.swap(true, Relaxed) {
                self.answering.fetch_add(1, Relaxed);
            }
        });
        let (by_client, closed) = tokio::select! {
            closed = there => (closed.is_ok(), closed),
            closed = back => (false, closed),
        };
        let why = match closed {
            Ok(()) => format!("{broker} closed it"),
            Err(error) => format!("{broker}: {}", short(&error)),
        };
        if !answering.into_inner() {
            // Not lost, but never made.
            return self.note(Failure::retryable(format!("the connection failed: {why}")).into());
        }
        let others = self.answering.fetch_sub(1, Relaxed) - 1;
        // Brokers close connections that are idle, which matters only if none is left.
        if asked.into_inner() || (!by_client && others == 0) {
            self.lose(why);
        }
    }
}

/// Tells of each piece before it is written.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    tell: impl Fn(),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        tell();
        to.write_all(&buffer[..length]).await?;
        // Encrypted bytes may wait for more.
        to.flush().await?;
    }
}
