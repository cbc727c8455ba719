//! A small blocking HTTP/1.1 client: says exactly what is sent, and sees exactly what comes back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error} in {:?}", String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self
    }
}

/// One keep-alive connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::new(stream), host: address.to_string() })
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> std::io::Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        let mut has = (false, false);
        for (name, value) in headers {
            has.0 |= name.eq_ignore_ascii_case("host");
            has.1 |=
                name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding");
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !has.0 {
            head.push_str(&format!("host: {}\r\n", self.host));
        }
        if !has.1 {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        // A server that refuses early may stop reading: what it answered counts, not the broken pipe.
        let written = self.stream.get_mut().write_all(&request);
        self.read().or_else(|error| written.and(Err(error)))
    }

    /// These bytes, all of them, whatever comes back meanwhile.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads lines of an answer that goes on, until one holds this text; false when it ends before.
    pub(crate) fn read_until(&mut self, text: &str) -> bool {
        while let Ok(line) = read_line(&mut self.stream) {
            if line.contains(text) {
                return true;
            }
        }
        false
    }

    /// What follows this word, at the beginning of the next line that has it.
    pub(crate) fn read_line_with(&mut self, word: &str) -> Option<String> {
        while let Ok(line) = read_line(&mut self.stream) {
            if let Some(rest) = line.strip_prefix(word) {
                return Some(rest.to_owned());
            }
        }
        None
    }

    pub(crate) fn read(&mut self) -> std::io::Result<Answer> {
        let line = read_line(&mut self.stream)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(ended)?;
        let headers = read_headers(&mut self.stream)?;
        let length = length(&headers);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(Answer { status, headers, body })
    }
}

/// Name (lower case) and value of each header, up to the empty line.
pub(crate) fn read_headers(stream: &mut impl BufRead) -> std::io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let line = read_line(stream)?;
        if line.is_empty() {
            return Ok(headers);
        }
        let (name, value) = line.split_once(':').ok_or_else(ended)?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

pub(crate) fn read_line(stream: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(ended());
    }
    Ok(line.trim_end().to_owned())
}

pub(crate) fn length(headers: &[(String, String)]) -> usize {
    let found = headers.iter().find(|(name, _)| name == "content-length");
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

fn ended() -> std::io::Error {
    std::io::Error::from(std::io::ErrorKind::UnexpectedEof)
}
