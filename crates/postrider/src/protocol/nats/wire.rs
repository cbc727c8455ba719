//! The protocol of NATS: lines of text, some followed by headers and a payload.

use bytes::{Buf as _, Bytes, BytesMut};
use serde::Deserialize;

pub(super) const PING: &[u8] = b"PING\r\n";
pub(super) const PONG: &[u8] = b"PONG\r\n";
const LINE_END: &[u8] = b"\r\n";
/// Acknowledgements are short. An INFO may list the servers of a large cluster.
const OPERATION_BYTES_MAX: usize = 1 << 20;

/// What a server says.
#[derive(Debug)]
pub(super) enum NatsOperation {
    Info(NatsInfo),
    Ping,
    Pong,
    /// Only servers that are told to be verbose say it.
    Okay,
    Error(String),
    Message(NatsReply),
}

#[derive(Debug, Deserialize)]
pub(super) struct NatsInfo {
    pub(super) max_payload: usize,
    /// What a user's key has to sign.
    #[serde(default)]
    pub(super) nonce: String,
    #[serde(default)]
    pub(super) headers: bool,
    #[serde(default)]
    pub(super) tls_required: bool,
    #[serde(default)]
    pub(super) tls_available: bool,
}

/// A message to one of our own subjects.
#[derive(Debug)]
pub(super) struct NatsReply {
    pub(super) subject: String,
    /// Of a reply by the server itself.
    pub(super) status: Option<u16>,
    pub(super) payload: Bytes,
}

/// The next operation, if all of it has come.
pub(super) fn take(buffer: &mut BytesMut) -> Result<Option<NatsOperation>, String> {
    let Some(end) = buffer.windows(LINE_END.len()).position(|at| at == LINE_END) else {
        return match buffer.len() {
            ..OPERATION_BYTES_MAX => Ok(None),
            _ => Err("the server sent a line without an end".to_owned()),
        };
    };
    let line = std::str::from_utf8(&buffer[..end]).map_err(|_| "the server sent no text".to_owned())?;
    let (verb, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    let operation = match verb {
        "INFO" => NatsOperation::Info(
            serde_json::from_str(rest).map_err(|error| format!("the server sent a wrong INFO: {error}"))?,
        ),
        "PING" => NatsOperation::Ping,
        "PONG" => NatsOperation::Pong,
        "+OK" => NatsOperation::Okay,
        "-ERR" => NatsOperation::Error(rest.trim().trim_matches('\'').to_owned()),
        "MSG" | "HMSG" => {
            let envelope = NatsEnvelope::parse(verb, rest).ok_or_else(|| not_understood(line))?;
            return Ok(envelope.fill(buffer, end + LINE_END.len()));
        }
        _ => return Err(not_understood(line)),
    };
    buffer.advance(end + LINE_END.len());
    Ok(Some(operation))
}

fn not_understood(line: &str) -> String {
    format!("the server sent a line that is not of NATS: {:?}", line.chars().take(60).collect::<String>())
}

/// The line before a message.
struct NatsEnvelope {
    subject: String,
    header_bytes: usize,
    /// Of headers and payload.
    bytes: usize,
}

impl NatsEnvelope {
    /// `subject sid [reply] [header bytes] bytes`
    fn parse(verb: &str, rest: &str) -> Option<Self> {
        let mut words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let bytes = words.pop()?.parse().ok().filter(|bytes| *bytes <= OPERATION_BYTES_MAX)?;
        let header_bytes = match verb {
            "HMSG" => words.pop()?.parse().ok().filter(|header_bytes| *header_bytes <= bytes)?,
            _ => 0,
        };
        Some(Self { subject: (*words.first()?).to_owned(), header_bytes, bytes })
    }

    fn fill(self, buffer: &mut BytesMut, line_bytes: usize) -> Option<NatsOperation> {
        if buffer.len() < line_bytes + self.bytes + LINE_END.len() {
            return None;
        }
        buffer.advance(line_bytes);
        let headers = buffer.split_to(self.header_bytes);
        let payload = buffer.split_to(self.bytes - self.header_bytes).freeze();
        buffer.advance(LINE_END.len());
        Some(NatsOperation::Message(NatsReply { subject: self.subject, status: status(&headers), payload }))
    }
}

/// `NATS/1.0 503 No Responders`
fn status(headers: &[u8]) -> Option<u16> {
    let line = headers.strip_prefix(b"NATS/1.0 ")?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}

/// Begins a block of headers.
pub(super) fn headers() -> Vec<u8> {
    let mut block = Vec::with_capacity(512);
    block.extend_from_slice(b"NATS/1.0\r\n");
    block
}

/// Neither name nor value may have line breaks.
pub(super) fn push_header(block: &mut Vec<u8>, name: &str, value: &str) {
    for part in [name, ": ", value, "\r\n"] {
        block.extend_from_slice(part.as_bytes());
    }
}

pub(super) fn push_message(
    out: &mut BytesMut,
    subject: &str,
    reply_to: &str,
    headers: &[u8],
    payload: &[u8],
) {
    let header_bytes = headers.len() + LINE_END.len();
    let bytes = header_bytes + payload.len();
    out.reserve(bytes + subject.len() + 128);
    out.extend_from_slice(format!("HPUB {subject} {reply_to} {header_bytes} {bytes}\r\n").as_bytes());
    for part in [headers, LINE_END, payload, LINE_END] {
        out.extend_from_slice(part);
    }
}

/// What of a message counts for the server's limit.
pub(super) fn message_bytes(headers: &[u8], payload: &[u8]) -> usize {
    headers.len() + LINE_END.len() + payload.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Vec<String> {
        // Byte by byte, so that every operation is cut at every place.
        let (mut buffer, mut found) = (BytesMut::new(), Vec::new());
        for byte in text {
            buffer.extend_from_slice(&[*byte]);
            while let Some(operation) = take(&mut buffer).unwrap() {
                found.push(match operation {
                    NatsOperation::Info(info) => format!("info {} {:?}", info.max_payload, info.nonce),
                    NatsOperation::Message(NatsReply { subject, status, payload }) => {
                        format!("{subject} {status:?} {}", String::from_utf8_lossy(&payload))
                    }
                    other => format!("{other:?}"),
                });
            }
        }
        assert!(buffer.is_empty(), "{buffer:?}");
        found
    }

    #[test]
    fn operations_are_read_however_they_are_cut() {
        let text = b"INFO {\"max_payload\":7,\"nonce\":\"n\"} \r\nPING\r\nPONG\r\n+OK\r\n-ERR 'Stale Connection'\r\n\
            MSG a.1 1 4\r\n\r\nhi\r\nMSG a.2 1 reply 0\r\n\r\nHMSG a.3 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n";
        let expected = [
            "info 7 \"n\"",
            "Ping",
            "Pong",
            "Okay",
            "Error(\"Stale Connection\")",
            "a.1 None \r\nhi",
            "a.2 None ",
            "a.3 Some(503) ",
        ];
        assert_eq!(all(text), expected);
    }

    #[test]
    fn what_is_not_of_nats_is_an_error() {
        for text in
            ["HTTP/1.1 400 Bad Request\r\n", "MSG a\r\n", "MSG a 1 9999999999\r\n", "HMSG a 1 5 4\r\n"]
        {
            assert!(take(&mut BytesMut::from(text)).is_err(), "{text}");
        }
        assert!(take(&mut BytesMut::from(&vec![b'x'; OPERATION_BYTES_MAX + 1][..])).is_err());
    }

    #[test]
    fn a_message_is_written_with_its_lengths() {
        let mut block = headers();
        push_header(&mut block, "Nats-Msg-Id", "msg_1");
        let mut out = BytesMut::new();
        push_message(&mut out, "orders", "_INBOX.x.1", &block, b"{}");
        let expected = "HPUB orders _INBOX.x.1 32 34\r\nNATS/1.0\r\nNats-Msg-Id: msg_1\r\n\r\n{}\r\n";
        assert_eq!(out, expected);
        assert_eq!(message_bytes(&block, b"{}"), 34);
        let mut out = BytesMut::new();
        push_message(&mut out, "orders", "", &block, b"{}");
        assert!(out.starts_with(b"HPUB orders  32 34\r\n"));
    }
}
