//! The way of all connections to a cluster. The Kafka client takes no stream from us, but it can be told to connect through
//! a SOCKS5 proxy. The tunnel is that proxy, inside this process and on loopback: whatever broker the client wants, one of
//! the config or one that another broker named, our own dialer connects to it, through the gate, by our TCP and TLS. And
//! the tunnel can cut the client off, so that a producer that was given up sends nothing more.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::passage::{Passage, PassageCore};
use super::socks::{self, SocksReply};
use crate::net::{Dialer, judge};
use crate::protocol::broker::BrokerAddress;
use crate::sink::Undelivered;
use crate::verdict::Failure;

/// The client is in this process: what takes longer to say who it is, is something else.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that was cut off may try to connect for a moment longer. Another program that was given this port meanwhile
/// would be asked to let it in.
const LINGER: Duration = Duration::from_secs(30);
/// After an error of the listener.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct KafkaTunnel {
    address: SocketAddr,
    core: Arc<TunnelCore>,
}

struct TunnelCore {
    encrypted: bool,
    /// Of the newest producer. Older ones are cut.
    passage: Mutex<Option<Arc<PassageCore>>>,
    closed: CancellationToken,
}

impl KafkaTunnel {
    pub(super) fn open(encrypted: bool) -> Result<Self, Undelivered> {
        let (listener, address) = listen().map_err(|error| {
            judge(&error, Failure::retryable(format!("cannot listen on loopback: {error}")))
        })?;
        let core =
            Arc::new(TunnelCore { encrypted, passage: Mutex::default(), closed: CancellationToken::new() });
        tokio::spawn(Arc::clone(&core).run(listener));
        Ok(Self { address, core })
    }

    /// For a new producer. The one before is cut off.
    pub(super) fn passage(&self, dialer: &Arc<Dialer>) -> Passage {
        let core = Arc::new(PassageCore::new(Arc::clone(dialer)));
        let mut newest = self.core.passage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = newest.replace(Arc::clone(&core)) {
            before.cut();
        }
        Passage::new(self.address, core)
    }
}

impl Drop for KafkaTunnel {
    fn drop(&mut self) {
        self.core.closed.cancel();
    }
}

fn listen() -> io::Result<(TcpListener, SocketAddr)> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}

impl TunnelCore {
    async fn run(self: Arc<Self>, listener: TcpListener) {
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((client, _)) => drop(tokio::spawn(Arc::clone(&self).carry(client))),
                    Err(_) => tokio::time::sleep(PAUSE).await,
                }
            }
        };
        tokio::pin!(accepting);
        tokio::select! {
            () = &mut accepting => {}
            () = self.closed.cancelled() => {}
        }
        let _ = tokio::time::timeout(LINGER, accepting).await;
    }

    async fn carry(self: Arc<Self>, mut client: TcpStream) {
        let _ = client.set_nodelay(true);
        let greeted = tokio::time::timeout(GREETING_TIMEOUT, self.greet(&mut client)).await;
        let Ok(Ok((passage, broker))) = greeted else { return };
        tokio::select! {
            // What is cut carries not one piece more.
            biased;
            () = passage.until_cut() => {}
            () = self.carry_to(client, &broker, &passage) => {}
        }
    }

    /// Only the newest producer is let in: it alone knows the password.
    async fn greet(&self, client: &mut TcpStream) -> io::Result<(Arc<PassageCore>, BrokerAddress)> {
        let password = socks::password(client).await?;
        let newest = self.passage.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let passage =
            newest.filter(|passage| passage.admits(&password)).ok_or(io::ErrorKind::PermissionDenied)?;
        Ok((passage, socks::target(client).await?))
    }

    async fn carry_to(&self, mut client: TcpStream, broker: &BrokerAddress, passage: &PassageCore) {
        match passage.dialer.open(&broker.host, broker.port, self.encrypted).await {
            Ok(server) => {
                if socks::reply(&mut client, SocksReply::Connected).await.is_ok() {
                    passage.carry(client, server, broker).await;
                }
            }
            Err(undelivered) => {
                passage.cannot_connect(undelivered);
                let _ = socks::reply(&mut client, SocksReply::Failed).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::protocol::tls::TlsConfig;
    use crate::sink::Environment;

    /// Whether a client with this password is let in.
    async fn is_let_in(tunnel: &KafkaTunnel, password: &[u8]) -> bool {
        let mut client = TcpStream::connect(tunnel.address).await.unwrap();
        client.write_all(&[5, 1, 2, 1, 1, b'u', u8::try_from(password.len()).unwrap()]).await.unwrap();
        client.write_all(password).await.unwrap();
        let mut answer = [0; 4];
        client.read_exact(&mut answer).await.is_ok_and(|_| answer == [5, 2, 1, 0])
    }

    #[tokio::test]
    async fn only_the_newest_producer_is_let_in() {
        let environment = Environment { allow_internal: true, ..Environment::default() };
        let dialer = Arc::new(Dialer::new(&TlsConfig::default(), &[], &environment).unwrap());
        let tunnel = KafkaTunnel::open(false).unwrap();
        assert!(!is_let_in(&tunnel, b"").await);
        let first = tunnel.passage(&dialer);
        assert!(is_let_in(&tunnel, first.password()).await);
        assert!(!is_let_in(&tunnel, b"guess").await);
        let second = tunnel.passage(&dialer);
        assert!(!is_let_in(&tunnel, first.password()).await);
        assert!(is_let_in(&tunnel, second.password()).await);
        second.lose("a fatal error".to_owned());
        assert!(!is_let_in(&tunnel, second.password()).await);
    }
}
