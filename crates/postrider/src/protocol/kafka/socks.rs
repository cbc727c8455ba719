//! The server's side of SOCKS5 (RFC 1928) with user name and password (RFC 1929), as far as the Kafka client needs it.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Host;

use crate::protocol::broker::BrokerAddress;

const VERSION: u8 = 5;
const BY_PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;
const PASSWORD_VERSION: u8 = 1;
const CONNECT: u8 = 1;

#[derive(Clone, Copy)]
pub(super) enum SocksReply {
    Connected = 0,
    Failed = 1,
}

/// The password that the client knows.
pub(super) async fn password(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    expect(client, VERSION).await?;
    let methods = text(client).await?;
    if !methods.contains(&BY_PASSWORD) {
        client.write_all(&[VERSION, NO_METHOD]).await?;
        return Err(ErrorKind::PermissionDenied.into());
    }
    client.write_all(&[VERSION, BY_PASSWORD]).await?;
    expect(client, PASSWORD_VERSION).await?;
    text(client).await?;
    text(client).await
}

/// Lets the client in, and reads whom it wants to be connected to.
pub(super) async fn target(client: &mut TcpStream) -> io::Result<BrokerAddress> {
    client.write_all(&[PASSWORD_VERSION, 0]).await?;
    expect(client, VERSION).await?;
    expect(client, CONNECT).await?;
    expect(client, 0).await?;
    let host = match client.read_u8().await? {
        1 => Host::Ipv4(Ipv4Addr::from(client.read_u32().await?)),
        4 => Host::Ipv6(Ipv6Addr::from(client.read_u128().await?)),
        // What looks like a number is an address here, so that the gate sees it.
        3 => String::from_utf8(text(client).await?)
            .ok()
            .and_then(|name| Host::parse(&name).ok())
            .ok_or(ErrorKind::InvalidData)?,
        _ => return Err(ErrorKind::InvalidData.into()),
    };
    Ok(BrokerAddress { host, port: client.read_u16().await? })
}

pub(super) async fn reply(client: &mut TcpStream, reply: SocksReply) -> io::Result<()> {
    // The address that the server connected from is not told.
    client.write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

async fn expect(client: &mut TcpStream, byte: u8) -> io::Result<()> {
    if client.read_u8().await? == byte { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

/// Its length in one byte, then its bytes.
async fn text(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut text = vec![0; usize::from(client.read_u8().await?)];
    client.read_exact(&mut text).await?;
    Ok(text)
}
