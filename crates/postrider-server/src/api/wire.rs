//! A client's connection as hyper sees it. It notes when a head begins, and gives the answers that hyper makes itself
//! the form of all others: hyper refuses what is not HTTP before any handler runs, with a status and no content.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::http::StatusCode;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::clients::{Client, Phase};
use super::problem;

/// So much of what a refused client still sends is read: it would lose the answer if its connection were reset.
const LINGER_BYTES_MAX: usize = 1 << 20;

pub(super) struct Wire {
    stream: TcpStream,
    client: Arc<Client>,
    refusal: HyperRefusal,
}

/// What stands in the place of hyper's own answer.
enum HyperRefusal {
    None,
    /// As far as it is written.
    Answering {
        answer: Vec<u8>,
        written: usize,
    },
    /// Bytes that were read since.
    Lingering {
        read: usize,
    },
}

impl Wire {
    pub(super) fn new(stream: TcpStream, client: Arc<Client>) -> Self {
        Self { stream, client, refusal: HyperRefusal::None }
    }

    /// A client that still reads its answer does not idle.
    fn wrote(&self, polled: &Poll<io::Result<usize>>) {
        if matches!(polled, Poll::Ready(Ok(_))) && self.client.phase() == Phase::Idle {
            self.client.is_at(Phase::Idle);
        }
    }

    fn poll_refuse(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let HyperRefusal::Answering { answer, written } = &mut self.refusal {
            match answer.get(*written..).filter(|left| !left.is_empty()) {
                Some(left) => {
                    *written += ready!(Pin::new(&mut self.stream).poll_write(context, left))?;
                }
                None => self.refusal = HyperRefusal::Lingering { read: 0 },
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && self.client.phase() == Phase::Idle {
            self.client.is_at(Phase::Head);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if matches!(self.client.phase(), Phase::Idle | Phase::Head)
            && let Some(answer) = in_place_of(bytes)
        {
            self.refusal = HyperRefusal::Answering { answer, written: 0 };
            return Poll::Ready(Ok(bytes.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(&polled);
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match slices {
            [head] => self.poll_write(context, head),
            _ => {
                let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
                self.wrote(&polled);
                polled
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refuse(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Keep reading from a refused client so that it can read the answer, until it closes its side or its time for a head is over.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refuse(context))?;
        ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
        let mut scratch = [0; 4096];
        while let HyperRefusal::Lingering { read } = self.refusal
            && read < LINGER_BYTES_MAX
        {
            let mut buffer = ReadBuf::new(&mut scratch);
            ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
            match buffer.filled().len() {
                0 => break,
                more => self.refusal = HyperRefusal::Lingering { read: read + more },
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// None unless these bytes are an answer by hyper itself: the head of a refusal without content. Handlers refuse with a
/// document, so none of theirs looks like that.
fn in_place_of(bytes: &[u8]) -> Option<Vec<u8>> {
    const EMPTY: &str = "\r\ncontent-length: 0\r\n";
    // Most answers are good, and large ones are not looked through.
    let code = bytes.strip_prefix(b"HTTP/1.1 ")?.get(..3).filter(|code| code.starts_with(b"4"))?;
    let status = StatusCode::from_bytes(code).ok()?;
    let head = std::str::from_utf8(bytes).ok()?;
    let is_whole = head.find("\r\n\r\n")? + 4 == head.len();
    let (before, after) = head.split_once(EMPTY).filter(|_| is_whole)?;
    let document = problem::not_http(status)?;
    let (media_type, length) = (problem::MEDIA_TYPE, document.len());
    let mut answer =
        format!("{before}\r\ncontent-type: {media_type}\r\ncontent-length: {length}\r\n{after}").into_bytes();
    answer.extend_from_slice(&document);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_refusal_without_content_is_replaced() {
        let bare = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n";
        let answer = String::from_utf8(in_place_of(bare.as_bytes()).expect("replaced")).expect("text");
        let (head, document) = answer.split_once("\r\n\r\n").expect("a head and a document");
        assert!(head.starts_with("HTTP/1.1 431 ") && head.contains("\r\nconnection: close\r\n"), "{head}");
        assert!(head.contains(&format!("\r\ncontent-length: {}\r\n", document.len())), "{head}");
        assert!(head.ends_with("\r\ndate: now"), "{head}");
        let not_bare = [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\nmore",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            "HTTP/1.1 4",
            "",
        ];
        for bytes in not_bare {
            assert_eq!(in_place_of(bytes.as_bytes()), None, "{bytes:?}");
        }
    }
}
