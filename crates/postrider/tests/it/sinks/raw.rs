//! A TCP server that follows a script instead of HTTP.

use std::future::Future;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub(super) struct RawServer {
    pub(super) address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl RawServer {
    /// Runs the script on every connection; it is told the connection's number, from 0.
    pub(super) async fn start<F>(script: impl Fn(Peer, usize) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(script(Peer { stream, buffered: Vec::new() }, number));
            }
        });
        Self { address, _tasks: tasks }
    }

    /// Every connection answers every request with these bytes, and stays open.
    pub(super) async fn answering(bytes: &'static [u8]) -> Self {
        Self::start(move |mut peer, _| async move {
            while peer.request().await.is_some() {
                peer.send(bytes).await;
            }
        })
        .await
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

pub(super) struct Peer {
    pub(super) stream: TcpStream,
    buffered: Vec<u8>,
}

impl Peer {
    /// The next request, head and body; None at the end of the connection.
    pub(super) async fn request(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.complete() {
                let request: Vec<u8> = self.buffered.drain(..end).collect();
                return Some(String::from_utf8_lossy(&request).into_owned());
            }
            if self.stream.read_buf(&mut self.buffered).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    fn complete(&self) -> Option<usize> {
        let head = self.buffered.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
        let text = String::from_utf8_lossy(&self.buffered[..head]).into_owned();
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
        let end = head + length.map_or(0, |length| length.trim().parse::<usize>().unwrap());
        (self.buffered.len() >= end).then_some(end)
    }

    /// False once the other side is gone.
    pub(super) async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }

    /// Returns when the other side has closed the connection: how many bytes it sent before.
    pub(super) async fn until_closed(&mut self) -> usize {
        let mut bytes = vec![0; 65_536];
        let mut total = 0;
        while let Ok(count @ 1..) = self.stream.read(&mut bytes).await {
            total += count;
        }
        total
    }
}
