//! What all brokers have in common; their own clients are used in the modules.

mod kafka;
mod mosquitto;
mod nats;
mod rabbitmq;
mod redis;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use test_servers::{Broker, BrokerKind, BrokerListeners};

/// What a client sends first, and the first byte of the answer.
struct Hello {
    question: &'static [u8],
    answer: u8,
}

fn hello(kind: BrokerKind) -> Hello {
    let (question, answer): (&'static [u8], u8) = match kind {
        // CONNECT of version 3.1.1 with a clean session; CONNACK.
        BrokerKind::Mosquitto => (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", 0x20),
        BrokerKind::Redis => (b"PING\r\n", b'+'),
        BrokerKind::Nats => (b"CONNECT {\"verbose\":true}\r\n", b'+'),
        BrokerKind::RabbitMq => (b"AMQP\x00\x00\x09\x01", 1),
        // A request for API versions; the length of its answer.
        BrokerKind::Kafka => (b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x07\xff\xff", 0),
    };
    Hello { question, answer }
}

#[test]
fn listeners_survive_an_environment_variable() {
    let Some(listeners) = BrokerKind::Redis.shared() else { return };
    let fields: Vec<String> = listeners.to_string().split(' ').map(str::to_owned).collect();
    assert_eq!(fields[0], listeners.plain.to_string());
    assert!(listeners.authority().starts_with(&fields[5]));
}

/// It is silent while it is frozen, and answers when it thaws.
fn freezes(kind: BrokerKind, broker: &Broker) {
    let Hello { question, .. } = hello(kind);
    broker.freeze();
    let mut connection =
        TcpStream::connect((Ipv4Addr::LOCALHOST, broker.listeners().plain)).expect("a connection");
    connection.write_all(question).expect("an open connection");
    connection.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    assert!(connection.read(&mut [0]).is_err(), "a frozen broker answered");
    broker.thaw();
    connection.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    assert_eq!(connection.read(&mut [0]).expect("a late answer"), 1);
}

/// Clients that trust its authority can check its certificate, and one listener wants theirs.
fn speaks_tls(kind: BrokerKind, listeners: &BrokerListeners) {
    let answer = format!("{:02x}", hello(kind).answer);
    for port in [listeners.tls, listeners.password_tls] {
        // Kafka asks for a password only after the API versions.
        assert_eq!(ask_by_tls(kind, listeners, port, false), Ok(answer.clone()));
    }
    assert_eq!(ask_by_tls(kind, listeners, listeners.mutual_tls, true), Ok(answer));
    ask_by_tls(kind, listeners, listeners.mutual_tls, false).expect_err("a certificate is demanded");
}

/// The first byte of the answer, in hexadecimal.
fn ask_by_tls(
    kind: BrokerKind,
    listeners: &BrokerListeners,
    port: u16,
    certified: bool,
) -> Result<String, String> {
    const CLIENT: &str = "
import socket, ssl, sys
port, authority, certificate, key, greeting, question = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
if certificate:
    context.load_cert_chain(certificate, key)
connection = socket.create_connection(('127.0.0.1', int(port)), 10)
if greeting:
    connection.recv(4096)
connection = context.wrap_socket(connection, server_hostname='127.0.0.1')
connection.sendall(bytes.fromhex(question))
print(connection.recv(1).hex() or sys.exit('closed'))";
    let question: String = hello(kind).question.iter().map(|byte| format!("{byte:02x}")).collect();
    // NATS greets before it encrypts.
    let greeting = if kind == BrokerKind::Nats { "greeting" } else { "" };
    let mut client = Command::new("python3");
    client.args(["-c", CLIENT, &port.to_string()]).arg(listeners.authority());
    if certified {
        client.arg(listeners.client_certificate()).arg(listeners.client_key());
    } else {
        client.args(["", ""]);
    }
    run(client.args([greeting, &question]))
}

/// What a client printed; as an error what it complained about.
fn run(client: &mut Command) -> Result<String, String> {
    let output = client.output().expect("a client that is installed");
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(said.trim_end().to_owned()) } else { Err(format!("{said}{errors}")) }
}
