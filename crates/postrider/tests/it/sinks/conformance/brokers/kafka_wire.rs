//! A few requests of Kafka's protocol over a plain socket: with these, tests look into a broker.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use bytes::{Buf, BufMut, Bytes};

use super::BrokerMessage;

/// A record as a consumer sees it.
#[derive(Clone, Debug)]
pub(super) struct WireRecord {
    pub(super) offset: i64,
    pub(super) key: Option<Bytes>,
    pub(super) message: BrokerMessage,
}

pub(super) struct Wire(TcpStream);

/// Number and version of a request. These versions have no tagged fields.
struct Kind(i16, i16);

const FETCH: Kind = Kind(1, 4);
const CREATE_TOPICS: Kind = Kind(19, 2);
const DELETE_TOPICS: Kind = Kind(20, 1);
const CREATE_ACLS: Kind = Kind(30, 1);

const NO_ERROR: i16 = 0;
const UNKNOWN_TOPIC: i16 = 3;
const NOT_LEADER: i16 = 6;

impl Wire {
    pub(super) fn to(port: u16) -> Self {
        Self(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap())
    }

    pub(super) fn create_topic(&mut self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        let mut request = Vec::new();
        request.put_i32(1);
        put_text(&mut request, name);
        request.put_i32(partitions);
        request.put_i16(1);
        request.put_i32(0);
        request.put_i32(settings.len() as i32);
        for (key, value) in settings {
            put_text(&mut request, key);
            put_text(&mut request, value);
        }
        request.put_i32(30_000);
        request.put_u8(0);
        let mut answer = self.ask(CREATE_TOPICS, &request);
        answer.advance(4 + 4);
        text(&mut answer);
        assert_eq!(answer.get_i16(), NO_ERROR, "the topic cannot be created");
        // The broker answers before it has the partitions.
        for partition in 0..partitions {
            while self.fetch(name, partition, 0).is_none() {}
        }
    }

    pub(super) fn delete_topic(&mut self, name: &str) {
        let mut request = Vec::new();
        request.put_i32(1);
        put_text(&mut request, name);
        request.put_i32(30_000);
        let mut answer = self.ask(DELETE_TOPICS, &request);
        answer.advance(4 + 4);
        text(&mut answer);
        assert_eq!(answer.get_i16(), NO_ERROR, "the topic cannot be deleted");
    }

    /// Lets a user write to a topic, and nothing else.
    pub(super) fn let_write(&mut self, user: &str, topic: &str) {
        let (a_topic, literally, write, allow) = (2, 3, 4, 3);
        let mut request = Vec::new();
        request.put_i32(1);
        request.put_i8(a_topic);
        put_text(&mut request, topic);
        request.put_i8(literally);
        put_text(&mut request, &format!("User:{user}"));
        put_text(&mut request, "*");
        request.put_i8(write);
        request.put_i8(allow);
        let mut answer = self.ask(CREATE_ACLS, &request);
        answer.advance(4 + 4);
        assert_eq!(answer.get_i16(), NO_ERROR, "the right cannot be given");
    }

    /// All records of a partition, in order.
    pub(super) fn records(&mut self, topic: &str, partition: i32) -> Vec<WireRecord> {
        let (mut records, mut next) = (Vec::new(), 0);
        loop {
            let Some((found, end)) = self.fetch(topic, partition, next) else { continue };
            // A batch comes whole, also when its middle is asked for.
            records.extend(records_of(found).into_iter().filter(|record| record.offset >= next));
            next = records.last().map_or(0, |last| last.offset + 1);
            if next >= end {
                return records;
            }
        }
    }

    /// The numbers of the codecs that compressed the first batches of a partition.
    pub(super) fn codecs(&mut self, topic: &str, partition: i32) -> Vec<i16> {
        let (bytes, _) = self.fetch(topic, partition, 0).expect("a topic that exists");
        batches(bytes).into_iter().map(|(_, codec, _)| codec).collect()
    }

    /// Some batches from an offset on, and the offset after the last record that consumers may see.
    fn fetch(&mut self, topic: &str, partition: i32, offset: i64) -> Option<(Bytes, i64)> {
        let (bytes_max, wait_millis, any_reader) = (64 << 20, 10, -1);
        let mut request = Vec::new();
        request.put_i32(any_reader);
        request.put_i32(wait_millis);
        request.put_i32(1);
        request.put_i32(bytes_max);
        request.put_i8(0);
        request.put_i32(1);
        put_text(&mut request, topic);
        request.put_i32(1);
        request.put_i32(partition);
        request.put_i64(offset);
        request.put_i32(bytes_max);
        let mut answer = self.ask(FETCH, &request);
        answer.advance(4 + 4);
        text(&mut answer);
        answer.advance(4 + 4);
        match answer.get_i16() {
            NO_ERROR => {}
            // Right after a topic was created, or the broker was started.
            UNKNOWN_TOPIC | NOT_LEADER => return None,
            code => panic!("error {code} for {topic}"),
        }
        let end = answer.get_i64();
        answer.advance(8);
        let aborted = answer.get_i32().max(0) as usize;
        answer.advance(aborted * 16);
        let length = answer.get_i32().max(0) as usize;
        Some((answer.split_to(length), end))
    }

    fn ask(&mut self, Kind(number, version): Kind, request: &[u8]) -> Bytes {
        let mut whole = Vec::new();
        whole.put_i16(number);
        whole.put_i16(version);
        whole.put_i32(7);
        put_text(&mut whole, "tests");
        whole.put_slice(request);
        self.0.write_all(&(whole.len() as u32).to_be_bytes()).unwrap();
        self.0.write_all(&whole).unwrap();
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut answer).unwrap();
        Bytes::from(answer).slice(4..)
    }
}

fn put_text(request: &mut Vec<u8>, text: &str) {
    request.put_i16(text.len() as i16);
    request.put_slice(text.as_bytes());
}

fn text(answer: &mut Bytes) -> Bytes {
    let length = answer.get_i16().max(0) as usize;
    answer.split_to(length)
}

/// Of each batch the first offset, the number of the codec, and the records.
fn batches(mut bytes: Bytes) -> Vec<(i64, i16, Bytes)> {
    let mut batches = Vec::new();
    while bytes.len() > 12 {
        let (base, length) = (bytes.get_i64(), bytes.get_i32() as usize);
        // The last one may be cut off.
        if bytes.len() < length {
            break;
        }
        let mut batch = bytes.split_to(length);
        batch.advance(4 + 1 + 4);
        let codec = batch.get_i16() & 7;
        batch.advance(4 + 8 + 8 + 8 + 2 + 4);
        batches.push((base, codec, batch));
    }
    batches
}

fn records_of(bytes: Bytes) -> Vec<WireRecord> {
    let mut records = Vec::new();
    for (base, codec, mut batch) in batches(bytes) {
        assert_eq!(codec, 0, "the records of compressed batches are not read here");
        for _ in 0..batch.get_i32() {
            records.push(record(&mut batch, base));
        }
    }
    records
}

fn record(batch: &mut Bytes, base: i64) -> WireRecord {
    varint(batch);
    batch.advance(1);
    varint(batch);
    let offset = base + varint(batch);
    let key = field(batch);
    let payload = field(batch).unwrap_or_default();
    let mut message = BrokerMessage { payload, ..BrokerMessage::default() };
    for _ in 0..varint(batch) {
        let mut text = || String::from_utf8(field(batch).unwrap_or_default().to_vec()).unwrap();
        let (name, value) = (text(), text());
        match name.as_str() {
            "postrider-id" => message.id = value,
            "content-type" => message.content_type = value,
            _ => assert_eq!(message.headers.insert(name, value), None, "a header came twice"),
        }
    }
    WireRecord { offset, key, message }
}

fn field(batch: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(varint(batch)).ok()?;
    Some(batch.split_to(length))
}

/// Seven bits in a byte, the lowest first, the sign in the lowest bit.
fn varint(batch: &mut Bytes) -> i64 {
    let (mut number, mut shift) = (0_u64, 0);
    loop {
        let byte = batch.get_u8();
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return (number >> 1) as i64 ^ -((number & 1) as i64);
        }
        shift += 7;
    }
}
