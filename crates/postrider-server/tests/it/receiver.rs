//! A receiver in the test process: a thread a connection, a closure that decides.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use crate::http::{length, read_headers, read_line};

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Received {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// Status and body to answer; None cuts the connection.
pub(crate) type Handler = dyn Fn(Received) -> Option<(u16, String)> + Send + Sync;

pub(crate) struct Receiver {
    address: SocketAddr,
}

impl Receiver {
    /// Listens until the test process ends.
    pub(crate) fn start(handler: impl Fn(Received) -> Option<u16> + Send + Sync + 'static) -> Self {
        Self::talking(move |received| handler(received).map(|status| (status, String::new())))
    }

    /// One that says something, too.
    pub(crate) fn talking(
        handler: impl Fn(Received) -> Option<(u16, String)> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let handler = Arc::clone(&handler);
                std::thread::spawn(move || serve(stream, &*handler));
            }
        });
        Self { address }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }
}

/// Ends with the connection.
fn serve(stream: TcpStream, handler: &Handler) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut stream = BufReader::new(stream);
    loop {
        let line = read_line(&mut stream).ok()?;
        let path = line.split(' ').nth(1)?.to_owned();
        let headers = read_headers(&mut stream).ok()?;
        let mut body = vec![0; length(&headers)];
        stream.read_exact(&mut body).ok()?;
        let (status, said) = handler(Received { path, headers, body })?;
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{said}", said.len());
        stream.get_mut().write_all(answer.as_bytes()).ok()?;
    }
}
