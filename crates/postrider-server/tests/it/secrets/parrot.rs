//! Stands before a broker, and puts the secret that a client told into the words with which the broker refuses it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Of Redis, NATS, RabbitMQ and Kafka. As many bytes stay as there were, so that lengths stay true.
const REFUSALS: [&[u8]; 4] = [
    b"username-password pair or user is disabled",
    b"Authorization Violation",
    b"Login was refused using authentication mechanism",
    b"Invalid username or password",
];
const BEGINNING: &[u8] = b"leak-planted";

/// Its port. Listens until the test process ends.
pub(super) fn before(server: u16) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let _ = connect(client, server);
        }
    });
    port
}

fn connect(client: TcpStream, server: u16) -> std::io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    let heard: Arc<Mutex<Vec<u8>>> = Arc::default();
    let hearing = Arc::clone(&heard);
    copy(client.try_clone()?, server.try_clone()?, move |said| {
        if let Some(secret) = secret_in(&said) {
            *hearing.lock().expect("nobody panics here") = secret;
        }
        said
    });
    copy(server, client, move |answer| repeated(answer, &heard.lock().expect("nobody panics here")));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, change: impl Fn(Vec<u8>) -> Vec<u8> + Send + 'static) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if to.write_all(&change(buffer[..length].to_vec())).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    });
}

fn secret_in(said: &[u8]) -> Option<Vec<u8>> {
    let start = said.windows(BEGINNING.len()).position(|part| part == BEGINNING)?;
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'-';
    Some(said[start..].iter().take_while(is_part).copied().collect())
}

fn repeated(mut answer: Vec<u8>, secret: &[u8]) -> Vec<u8> {
    // A CONNACK of MQTT 5 without a reason string gets one.
    if let [0x20, 3, 0, code @ 0x80..=0xff, 0] = answer[..] {
        let length = u8::try_from(secret.len()).expect("a short secret");
        let head = [0x20, length + 6, 0, code, length + 3, 0x1f, 0, length];
        return [&head, secret].concat();
    }
    for refusal in REFUSALS {
        if let Some(start) = answer.windows(refusal.len()).position(|part| part == refusal) {
            let place = &mut answer[start..start + refusal.len()];
            place.fill(b' ');
            let length = secret.len().min(place.len());
            place[..length].copy_from_slice(&secret[..length]);
        }
    }
    answer
}
