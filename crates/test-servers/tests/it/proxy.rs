use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use test_servers::Proxy;
use test_servers::proxy::Fault;

const SILENCE: Duration = Duration::from_millis(150);

#[test]
fn bytes_pass_both_ways() {
    let (_, proxy) = echo();
    assert_eq!(Client::connect(&proxy).ask("letter"), Some("letter".to_owned()));
}

#[test]
fn frozen_bytes_arrive_when_the_freeze_ends() {
    let (_, proxy) = echo();
    let mut client = Client::connect(&proxy);
    proxy.set(Fault::Freeze);
    assert_eq!(client.ask("letter"), None);
    proxy.set(Fault::None);
    assert_eq!(client.read(), Some("letter".to_owned()));
}

#[test]
fn a_swallowed_answer_is_lost_although_the_server_had_the_request() {
    let (seen, proxy) = echo();
    let mut client = Client::connect(&proxy);
    proxy.set(Fault::SwallowAnswers);
    assert_eq!(client.ask("letter"), None);
    assert_eq!(seen.recv_timeout(Duration::from_secs(5)).as_deref(), Ok("letter"));
    proxy.set(Fault::None);
    assert_eq!(client.ask("another"), Some("another".to_owned()));
}

#[test]
fn a_cut_ends_connections_and_admits_new_ones() {
    let (_, proxy) = echo();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("letter"), Some("letter".to_owned()));
    proxy.cut();
    assert_eq!(client.0.read(&mut [0]).ok().filter(|length| *length > 0), None);
    assert_eq!(Client::connect(&proxy).ask("letter"), Some("letter".to_owned()));
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn a_cut_ends_frozen_connections_too() {
    let (_, proxy) = echo();
    let mut client = Client::connect(&proxy);
    assert_eq!(client.ask("letter"), Some("letter".to_owned()));
    proxy.set(Fault::Freeze);
    client.write("another");
    proxy.cut();
    assert_eq!(client.0.read(&mut [0]).expect("an end, not silence"), 0);
}

#[test]
fn delayed_bytes_arrive_later() {
    let (_, proxy) = echo();
    let mut client = Client::connect(&proxy);
    client.0.get_ref().set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let start = Instant::now();
    assert_eq!(client.ask("letter"), Some("letter".to_owned()));
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
}

#[test]
fn a_refused_connection_ends_at_once() {
    let (_, proxy) = echo();
    proxy.set(Fault::Refuse);
    let mut client = Client::connect(&proxy);
    assert_eq!(client.0.read(&mut [0]).expect("an end, not silence"), 0);
}

/// A server that repeats each line, and the lines that it has read.
fn echo() -> (mpsc::Receiver<String>, Proxy) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let proxy = Proxy::to(listener.local_addr().expect("an address").port()).expect("a proxy");
    let (lines, seen) = mpsc::channel();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let lines = lines.clone();
            thread::spawn(move || {
                let mut answers = connection.try_clone().expect("a second handle");
                for line in BufReader::new(connection).lines().map_while(Result::ok) {
                    let _ = lines.send(line.clone());
                    let _ = writeln!(answers, "{line}");
                }
            });
        }
    });
    (seen, proxy)
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(proxy: &Proxy) -> Self {
        let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).expect("a connection");
        connection.set_read_timeout(Some(SILENCE)).expect("a timeout");
        Self(BufReader::new(connection))
    }

    /// None where no answer comes.
    fn ask(&mut self, line: &str) -> Option<String> {
        self.write(line);
        self.read()
    }

    fn write(&mut self, line: &str) {
        writeln!(self.0.get_mut(), "{line}").expect("an open connection");
    }

    fn read(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok().filter(|length| *length > 0)?;
        Some(line.trim_end().to_owned())
    }
}
