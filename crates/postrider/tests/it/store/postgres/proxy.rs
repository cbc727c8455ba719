//! The network between a node and its database, which can stop to carry anything without a word to either.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(super) struct Network {
    port: u16,
    asks: watch::Sender<bool>,
    answers: watch::Sender<bool>,
}

impl Network {
    pub(super) async fn before(server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asks, answers) = (watch::Sender::new(true), watch::Sender::new(true));
        let open = (asks.subscribe(), answers.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server_port)).await.unwrap();
                let ((from_client, to_client), (from_server, to_server)) =
                    (client.into_split(), server.into_split());
                tokio::spawn(carry(from_client, to_server, open.0.clone()));
                tokio::spawn(carry(from_server, to_client, open.1.clone()));
            }
        });
        Self { port, asks, answers }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn freeze(&self) {
        self.asks.send_replace(false);
        self.freeze_answers();
    }

    /// The database hears the node, but not the other way round.
    pub(super) fn freeze_answers(&self) {
        self.answers.send_replace(false);
    }

    pub(super) fn thaw(&self) {
        self.asks.send_replace(true);
        self.answers.send_replace(true);
    }
}

/// Until either side hangs up, which the other one hears of when the network carries again.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut open: watch::Receiver<bool>,
) -> Option<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let length = from.read(&mut buffer).await.unwrap_or(0);
        open.wait_for(|open| *open).await.ok()?;
        if length == 0 {
            return to.shutdown().await.ok();
        }
        to.write_all(&buffer[..length]).await.ok()?;
    }
}
