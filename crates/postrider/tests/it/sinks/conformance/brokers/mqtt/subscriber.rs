//! A client that only subscribes, over a plain socket, in version 5. Its session outlives its connection and the broker, so
//! nothing that a publisher was told is there can pass it by.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};

/// A message as it arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    pub(super) topic: String,
    pub(super) qos: u8,
    pub(super) retain: bool,
    pub(super) content_type: String,
    pub(super) user_properties: Vec<(String, String)>,
    pub(super) payload: Bytes,
}

pub(super) struct Subscriber {
    port: u16,
    name: String,
    inbox: Arc<Inbox>,
}

#[derive(Default)]
struct Inbox {
    arrived: Mutex<Vec<Arrived>>,
    more: Condvar,
}

const PATIENCE: Duration = Duration::from_secs(30);

impl Subscriber {
    /// To all topics that the filter finds. Subscribed when this returns.
    pub(super) fn to(port: u16, filter: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("sub{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let subscriber = Self { port, name, inbox: Arc::default() };
        let (name, inbox) = (subscriber.name.clone(), Arc::clone(&subscriber.inbox));
        let mut stream = connect(port, &name).expect("a broker that takes subscribers");
        subscribe(&mut stream, &[filter, &subscriber.mark_topic()]).expect("a subscription");
        thread::spawn(move || {
            let mut last_connected = Instant::now();
            let mut next = Some(stream);
            while last_connected.elapsed() < PATIENCE {
                if let Some(mut stream) = next {
                    let _ = read(&mut stream, &inbox);
                    last_connected = Instant::now();
                }
                thread::sleep(Duration::from_millis(20));
                next = connect(port, &name).ok();
            }
        });
        subscriber
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Everything that was published until now. A message that is published behind it says when all of it is there.
    pub(super) fn all(&self) -> Vec<Arrived> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = Bytes::from(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        let topic = self.mark_topic();
        publish(self.port, &topic, &mark);
        let is_mark = |arrived: &Arrived| arrived.topic == topic;
        let arrived = self.until(|arrived| arrived.iter().any(|one| is_mark(one) && one.payload == mark));
        arrived.into_iter().filter(|one| !is_mark(one)).collect()
    }

    /// Waits for what comes by itself.
    pub(super) fn until(&self, done: impl Fn(&[Arrived]) -> bool) -> Vec<Arrived> {
        let arrived = self.inbox.arrived.lock().unwrap();
        let waited = self.inbox.more.wait_timeout_while(arrived, PATIENCE, |arrived| !done(arrived)).unwrap();
        assert!(!waited.1.timed_out(), "{} did not come", self.name);
        waited.0.clone()
    }

    fn mark_topic(&self) -> String {
        format!("marks/{}", self.name)
    }
}

/// Into the session of this name, which is kept for an hour.
fn connect(port: u16, name: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let mut body = b"\x00\x04MQTT\x05\x00\x00\x00\x05\x11\x00\x00\x0e\x10".to_vec();
    put_text(&mut body, name);
    send(&mut stream, 0x10, &body)?;
    match receive(&mut stream)? {
        (0x20, answer) if answer.get(1) == Some(&0) => Ok(stream),
        other => Err(io::Error::other(format!("no connection: {other:?}"))),
    }
}

fn subscribe(stream: &mut TcpStream, filters: &[&str]) -> io::Result<()> {
    let mut body = vec![0, 1, 0];
    for filter in filters {
        put_text(&mut body, filter);
        body.put_u8(2);
    }
    send(stream, 0x82, &body)?;
    match receive(stream)? {
        (0x90, answer) if answer[answer.len() - filters.len()..].iter().all(|code| *code < 0x80) => Ok(()),
        other => Err(io::Error::other(format!("no subscription: {other:?}"))),
    }
}

/// On a connection for this one message, with QoS 1.
fn publish(port: u16, topic: &str, payload: &[u8]) {
    let begun = Instant::now();
    let mut body = Vec::new();
    put_text(&mut body, topic);
    body.put_slice(&[0, 1, 0]);
    body.put_slice(payload);
    let once = || {
        let mut stream = connect(port, &topic.replace('/', ""))?;
        send(&mut stream, 0x32, &body)?;
        receive(&mut stream)
    };
    while !matches!(once(), Ok((0x40, _))) {
        assert!(begun.elapsed() < PATIENCE, "the broker takes no message");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Until the connection is lost.
fn read(stream: &mut TcpStream, inbox: &Inbox) -> io::Result<()> {
    loop {
        let (first, mut body) = receive(stream)?;
        match first {
            0x30..=0x3f => {
                let (arrived, number) = arrived(first, &mut body);
                let qos = arrived.qos;
                inbox.arrived.lock().unwrap().push(arrived);
                inbox.more.notify_all();
                match qos {
                    0 => {}
                    1 => send(stream, 0x40, &number)?,
                    _ => send(stream, 0x50, &number)?,
                }
            }
            0x62 => send(stream, 0x70, &body[..2])?,
            _ => {}
        }
    }
}

fn arrived(first: u8, body: &mut Bytes) -> (Arrived, [u8; 2]) {
    let mut arrived =
        Arrived { topic: text(body), qos: first >> 1 & 3, retain: first & 1 == 1, ..Arrived::default() };
    let number = if arrived.qos > 0 { body.get_u16() } else { 0 };
    let length = length(|| Ok(body.get_u8())).unwrap();
    let mut properties = body.split_to(length);
    while properties.has_remaining() {
        match properties.get_u8() {
            0x03 => arrived.content_type = text(&mut properties),
            0x26 => arrived.user_properties.push((text(&mut properties), text(&mut properties))),
            other => panic!("property 0x{other:02x} was not sent"),
        }
    }
    arrived.payload = body.clone();
    (arrived, number.to_be_bytes())
}

fn send(stream: &mut TcpStream, first: u8, body: &[u8]) -> io::Result<()> {
    let mut packet = vec![first];
    let mut rest = body.len();
    while rest > 127 {
        packet.push(rest as u8 | 128);
        rest /= 128;
    }
    packet.push(rest as u8);
    packet.put_slice(body);
    stream.write_all(&packet)
}

fn receive(stream: &mut TcpStream) -> io::Result<(u8, Bytes)> {
    let mut byte = || {
        let mut one = [0];
        stream.read_exact(&mut one).map(|()| one[0])
    };
    let first = byte()?;
    let mut body = vec![0; length(byte)?];
    stream.read_exact(&mut body)?;
    Ok((first, body.into()))
}

fn length(mut next: impl FnMut() -> io::Result<u8>) -> io::Result<usize> {
    let mut length = 0;
    for shift in 0.. {
        let byte = next()?;
        length |= usize::from(byte & 127) << (7 * shift);
        if byte < 128 {
            break;
        }
    }
    Ok(length)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.put_u16(text.len() as u16);
    out.put_slice(text.as_bytes());
}

fn text(body: &mut Bytes) -> String {
    let length = body.get_u16();
    String::from_utf8(body.split_to(length.into()).to_vec()).unwrap()
}
