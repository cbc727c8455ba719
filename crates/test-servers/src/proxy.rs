//! A TCP proxy that breaks connections in the ways that networks do.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

const BUFFER_BYTES: usize = 64 << 10;

/// Between clients and one server, on loopback. All connections, old and new, are treated alike.
pub struct Proxy {
    port: u16,
    core: Arc<ProxyCore>,
}

/// What happens to bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// They wait until the fault is over.
    Freeze,
    /// Those from the server are dropped: requests arrive, acknowledgements are lost.
    SwallowAnswers,
    /// They arrive later, in both directions.
    Delay(Duration),
    /// New connections are closed at once, as if the server were down.
    Refuse,
}

struct ProxyCore {
    server: u16,
    /// The port that the server names is replaced by the proxy's own.
    port_in_answers: Option<u16>,
    state: Mutex<ProxyState>,
    changed: Condvar,
}

struct ProxyState {
    fault: Fault,
    connections: Vec<TcpStream>,
    accepted: usize,
    /// Connections that clients have not closed.
    clients: usize,
    open: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Proxy {
    /// To the server on this port of 127.0.0.1.
    pub fn to(server: u16) -> io::Result<Self> {
        Self::new(server, false)
    }

    /// The same, for a broker of Kafka. It tells clients where to connect to; the proxy puts its own port in the place of
    /// the broker's, or clients would go past it.
    pub fn to_kafka(server: u16) -> io::Result<Self> {
        Self::new(server, true)
    }

    fn new(server: u16, names_itself: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let state =
            ProxyState { fault: Fault::None, connections: Vec::new(), accepted: 0, clients: 0, open: true };
        let port_in_answers = names_itself.then_some(port);
        let state = Mutex::new(state);
        let core = Arc::new(ProxyCore { server, port_in_answers, state, changed: Condvar::new() });
        let accepting = core.clone();
        thread::spawn(move || accepting.accept(&listener));
        Ok(Self { port, core })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections clients have opened so far.
    pub fn accepted(&self) -> usize {
        self.core.state().accepted
    }

    /// How many of them are open now.
    pub fn open(&self) -> usize {
        self.core.state().clients
    }

    /// From here on.
    pub fn set(&self, fault: Fault) {
        self.core.state().fault = fault;
        self.core.changed.notify_all();
    }

    /// Closes all accepted connections, on both sides. Bytes on their way are lost.
    pub fn cut(&self) {
        self.core.state().cut();
        self.core.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.core.state();
        state.open = false;
        state.cut();
        drop(state);
        self.core.changed.notify_all();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl ProxyCore {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().expect("no thread panics with the lock")
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming().flatten() {
            let mut state = self.state();
            if !state.open {
                return;
            }
            if state.fault == Fault::Refuse {
                continue;
            }
            state.accepted += 1;
            // A client of a server that is down sees its connection closed.
            let _ = self.connect(&mut state, client);
        }
    }

    fn connect(self: &Arc<Self>, state: &mut ProxyState, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        state.connections.extend([client.try_clone()?, server.try_clone()?]);
        state.clients += 1;
        self.copy(client.try_clone()?, server.try_clone()?, Direction::ToServer);
        self.copy(server, client, Direction::ToClient);
        Ok(())
    }

    fn copy(self: &Arc<Self>, mut from: TcpStream, mut to: TcpStream, direction: Direction) {
        let core = self.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; BUFFER_BYTES];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if direction == Direction::ToClient {
                    core.rename(&mut buffer[..length]);
                }
                if core.lets_pass(direction) && to.write_all(&buffer[..length]).is_err() {
                    break;
                }
            }
            if direction == Direction::ToServer {
                core.state().clients -= 1;
            }
            core.wait_while_frozen();
            let _ = to.shutdown(Shutdown::Write);
        });
    }

    /// In Kafka's protocol an address is a text, then its port in four bytes. Answers that hold one are short enough to
    /// arrive in one piece.
    fn rename(&self, answer: &mut [u8]) {
        let Some(own) = self.port_in_answers else { return };
        let named = [b"127.0.0.1".as_slice(), &u32::from(self.server).to_be_bytes()].concat();
        for at in 0..answer.len().saturating_sub(named.len() - 1) {
            if answer[at..].starts_with(&named) {
                answer[at + named.len() - 2..at + named.len()].copy_from_slice(&own.to_be_bytes());
            }
        }
    }

    /// Waits as long as the fault wants it. Whether the bytes are sent then.
    fn lets_pass(&self, direction: Direction) -> bool {
        match self.wait_while_frozen() {
            Fault::Delay(delay) => thread::sleep(delay),
            Fault::SwallowAnswers => return direction == Direction::ToServer,
            Fault::None | Fault::Freeze | Fault::Refuse => {}
        }
        true
    }

    fn wait_while_frozen(&self) -> Fault {
        let frozen = |state: &mut ProxyState| state.open && state.fault == Fault::Freeze;
        self.changed.wait_while(self.state(), frozen).expect("no thread panics with the lock").fault
    }
}

impl ProxyState {
    fn cut(&mut self) {
        for connection in self.connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
