//! Before a broker of Kafka: all that comes passes, but for a while it says that it leads no partition.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use bytes::{Buf, BufMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const PRODUCE: i16 = 0;
const NOT_LEADER: i16 = 6;

pub(super) struct Followers {
    port: u16,
    /// How many requests to produce are still refused.
    left: Arc<AtomicUsize>,
}

impl Followers {
    pub(super) async fn before(broker: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = Arc::new(AtomicUsize::new(0));
        let refusals = Arc::clone(&left);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, broker, port, Arc::clone(&refusals)));
            }
        });
        Self { port, left }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn refuse(&self, count: usize) {
        self.left.store(count, SeqCst);
    }

    pub(super) fn refusals_left(&self) -> usize {
        self.left.load(SeqCst)
    }
}

/// One request at a time: a client that sends several before it has an answer waits a little longer.
async fn carry(mut client: TcpStream, broker: u16, port: u16, left: Arc<AtomicUsize>) {
    let mut server = TcpStream::connect(("127.0.0.1", broker)).await.unwrap();
    while let Some(request) = frame(&mut client).await {
        let is_refused = (&request[..]).get_i16() == PRODUCE
            && left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        let answer = if is_refused {
            refusal(&request)
        } else {
            server.write_all(&framed(&request)).await.unwrap();
            let Some(answer) = frame(&mut server).await else { return };
            renamed(answer, broker, port)
        };
        if client.write_all(&framed(&answer)).await.is_err() {
            return;
        }
    }
}

async fn frame(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut frame = vec![0; from.read_u32().await.ok()? as usize];
    from.read_exact(&mut frame).await.ok()?;
    Some(frame)
}

fn framed(frame: &[u8]) -> Vec<u8> {
    [&(frame.len() as u32).to_be_bytes(), frame].concat()
}

/// The broker names itself by its own port; clients would go past us.
fn renamed(mut answer: Vec<u8>, broker: u16, port: u16) -> Vec<u8> {
    let named = [b"127.0.0.1".as_slice(), &u32::from(broker).to_be_bytes()].concat();
    for at in 0..answer.len().saturating_sub(named.len() - 1) {
        if answer[at..].starts_with(&named) {
            answer[at + named.len() - 2..at + named.len()].copy_from_slice(&port.to_be_bytes());
        }
    }
    answer
}

/// The answer to a request, of version 13, that has one batch for one partition. Short lengths are one byte, plus one.
fn refusal(mut request: &[u8]) -> Vec<u8> {
    let (_kind, version, number) = (request.get_i16(), request.get_i16(), request.get_i32());
    assert_eq!(version, 13, "another version of the request to produce");
    let client_name = request.get_i16() as usize;
    let (tagged, no_transaction, acks, timeout, topics) = (1, 1, 2, 4, 1);
    request.advance(client_name + tagged + no_transaction + acks + timeout + topics);
    let topic = request.copy_to_bytes(16);
    request.advance(1);
    let partition = request.get_i32();
    let mut answer = Vec::new();
    answer.put_i32(number);
    answer.put_u8(0);
    answer.put_u8(1 + 1);
    answer.put(topic);
    answer.put_u8(1 + 1);
    answer.put_i32(partition);
    answer.put_i16(NOT_LEADER);
    // Offset, time, first offset: none.
    [-1; 3].into_iter().for_each(|none| answer.put_i64(none));
    // Errors of records, a text, tagged fields of the partition and of the topic: none.
    answer.put_slice(&[1, 0, 0, 0]);
    // No throttling, no tagged fields.
    answer.put_i32(0);
    answer.put_u8(0);
    answer
}
