//! TCP to the first of several addresses that answers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;

use super::{judge, short};
use crate::sink::Undelivered;
use crate::verdict::Failure;

/// How long one address of several is tried alone (RFC 8305 advises 250 ms).
const HEAD_START: Duration = Duration::from_millis(250);

/// Connects to the first address that answers. A slow one does not hold up those after it. If none answers and this
/// node could not try one of them, that is what the caller hears.
pub(super) async fn connect(addresses: &[SocketAddr]) -> Result<TcpStream, Undelivered> {
    let mut waiting = interleaved(addresses).into_iter();
    let mut trying = FuturesUnordered::new();
    let mut undelivered = None;
    loop {
        if let Some(address) = waiting.next() {
            trying.push(async move { (address, TcpStream::connect(address).await) });
        }
        let finished = match waiting.len() {
            0 => trying.next().await,
            _ => match tokio::time::timeout(HEAD_START, trying.next()).await {
                Ok(finished) => finished,
                Err(_) => continue,
            },
        };
        match finished {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => {
                undelivered = match undelivered {
                    Some(Undelivered::Short(shortage)) => Some(Undelivered::Short(shortage)),
                    Some(Undelivered::Failed(_)) | None => Some(cannot_connect(address, &error)),
                };
            }
            None if waiting.len() == 0 => {
                return Err(undelivered
                    .unwrap_or_else(|| Failure::retryable("there is no address to connect to").into()));
            }
            None => {}
        }
    }
}

/// One family after the other in turn, beginning with the one the resolver put first.
fn interleaved(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == first_is_v6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut order = Vec::with_capacity(addresses.len());
    while order.len() < addresses.len() {
        order.extend(first.next());
        order.extend(second.next());
    }
    order
}

fn cannot_connect(address: SocketAddr, error: &io::Error) -> Undelivered {
    let failure = Failure::retryable(match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {address}"),
        _ => format!("cannot connect to {address}: {}", short(error)),
    });
    match error.kind() {
        io::ErrorKind::AddrNotAvailable if !is_within_reach(address) => failure.into(),
        _ => judge(error, failure),
    }
}

/// False when this machine has no address to reach it from, as where IPv6 is off. Sends nothing: connecting a UDP
/// socket chooses the own address by the same rules, and takes no port from TCP.
fn is_within_reach(address: SocketAddr) -> bool {
    let unspecified = match address {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let connected = UdpSocket::bind((unspecified, 0)).and_then(|socket| socket.connect(address));
    !connected.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}
