use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use test_servers::BrokerKind::Nats;
use test_servers::brokers::{DENIED_USER, MESSAGE_BYTES_MAX, PASSWORD, USER, nats};

const CREATE: &str = r#"{"name":"letters","subjects":["letters"],"max_msgs":1,"discard":"new"}"#;

#[test]
fn a_stream_survives_a_kill_and_can_be_full() {
    let Some(mut broker) = Nats.start() else { return };
    let port = broker.listeners().plain;
    let mut client = Client::connect(port, "{}");
    assert!(client.request("$JS.API.STREAM.CREATE.letters", CREATE).contains(r#""name":"letters""#));
    let stored = client.request("letters", "hello");
    assert!(stored.contains(r#""seq":1"#), "{stored}");
    broker.kill();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("a killed broker");
    broker.start_again().expect("the same broker");
    let mut client = Client::connect(port, "{}");
    let stream = client.request("$JS.API.STREAM.INFO.letters", "");
    assert!(stream.contains(r#""messages":1,"#), "{stream}");
    let full = client.request("letters", "another");
    assert!(full.contains("maximum messages exceeded"), "{full}");
    broker.stop();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect_err("a stopped broker");
}

#[test]
fn nats_freezes() {
    let Some(broker) = Nats.start() else { return };
    super::freezes(Nats, &broker);
}

#[test]
fn nats_speaks_tls() {
    let Some(listeners) = Nats.shared() else { return };
    super::speaks_tls(Nats, listeners);
}

#[test]
fn nats_checks_passwords_and_rights() {
    let Some(listeners) = Nats.shared() else { return };
    let as_user = |user: &str, password: &str| {
        let options = format!(r#"{{"user":"{user}","pass":"{password}"}}"#);
        let mut client = Client::connect(listeners.password, &options);
        client.send("PUB letters 5\r\nhello\r\nPING\r\n");
        client.line()
    };
    assert_eq!(as_user(USER, PASSWORD), "PONG");
    assert_eq!(as_user(USER, "wrong"), "-ERR 'Authorization Violation'");
    assert!(as_user(DENIED_USER, PASSWORD).starts_with("-ERR 'Permissions Violation for Publish"));
}

#[test]
fn nats_can_demand_a_token() {
    let Some(broker) = Nats.start_with(nats::DEMAND_TOKEN) else { return };
    let with_options = |options: &str| {
        let mut client = Client::connect(broker.listeners().plain, options);
        client.send("PING\r\n");
        client.line()
    };
    assert_eq!(with_options(&format!(r#"{{"auth_token":"{PASSWORD}"}}"#)), "PONG");
    assert_eq!(with_options("{}"), "-ERR 'Authorization Violation'");
}

#[test]
fn nats_refuses_long_messages() {
    let Some(listeners) = Nats.shared() else { return };
    let mut client = Client::connect(listeners.plain, "{}");
    client.send(&format!("PUB letters {}\r\n", MESSAGE_BYTES_MAX + 1));
    assert_eq!(client.line(), "-ERR 'Maximum Payload Violation'");
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(port: u16, options: &str) -> Self {
        let connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a connection");
        connection.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut client = Self(BufReader::new(connection));
        assert!(client.line().starts_with("INFO"));
        let (open, rest) = options.split_at(1);
        let comma = if rest == "}" { "" } else { "," };
        client.send(&format!("CONNECT {open}\"verbose\":false{comma}{rest}\r\n"));
        client
    }

    /// The answer to a message.
    fn request(&mut self, subject: &str, message: &str) -> String {
        let length = message.len();
        self.send(&format!("SUB answers 1\r\nUNSUB 1 1\r\nPUB {subject} answers {length}\r\n{message}\r\n"));
        let header = self.line();
        let length = header.rsplit(' ').next().and_then(|length| length.parse().ok());
        let mut answer = vec![0; length.unwrap_or_else(|| panic!("not a message: {header}"))];
        self.0.read_exact(&mut answer).expect("a whole message");
        self.line();
        String::from_utf8(answer).expect("text")
    }

    fn send(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("an open connection");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }
}
