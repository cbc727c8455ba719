//! A forward proxy on loopback that opens tunnels (CONNECT), for tests. It alone knows where names lead: to loopback.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

pub(super) struct TunnelProxy {
    pub(super) address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

/// What it answers to a CONNECT, given the whole request; 200 opens the tunnel.
type Admit = dyn Fn(&str) -> u16 + Send + Sync;

impl TunnelProxy {
    pub(super) async fn open() -> Self {
        Self::start(None, |_| 200).await
    }

    pub(super) async fn start(
        tls: Option<TlsAcceptor>,
        admit: impl Fn(&str) -> u16 + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (list, admit): (_, Arc<Admit>) = (Arc::clone(&asked), Arc::new(admit));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, list, admit) = (tls.clone(), Arc::clone(&list), Arc::clone(&admit));
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, &list, &*admit).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &list, &*admit).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Self { address, asked, _tasks: tasks }
    }

    /// The requests that it got, each with its headers.
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// None when either side goes away.
async fn serve(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    asked: &Mutex<Vec<String>>,
    admit: &Admit,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    asked.lock().unwrap().push(head.clone());
    let status = admit(&head);
    if status != 200 {
        let refusal = format!("HTTP/1.1 {status} x\r\ncontent-length: 4\r\n\r\nbody");
        client.write_all(refusal.as_bytes()).await.ok()?;
        // Waits for the client to close, so that it can read the answer.
        let _ = client.read_u8().await;
        return None;
    }
    let target = head.strip_prefix("CONNECT ")?.split(' ').next()?;
    let port: u16 = target.rsplit(':').next()?.parse().ok()?;
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.ok()?;
    copy_bidirectional(&mut client, &mut server).await.ok().map(drop)
}
