//! Packets to the broker, as bytes (MQTT 5 section 3, which holds for 3.1.1 without the properties).

use bytes::{BufMut as _, Bytes, BytesMut};

use super::config::{MqttVersion, MqttWill};
use crate::verdict::Failure;

pub(super) const PINGREQ: [u8; 2] = [0xc0, 0];
/// Says goodbye: the broker does not publish the will.
pub(super) const DISCONNECT: [u8; 2] = [0xe0, 0];

/// The longest packet that its length can tell, in bytes behind the length.
const REST_BYTES_MAX: usize = 268_435_455;

/// The broker forgets the session with its connection: what this node has to send again, the engine sends again.
const CLEAN_START: u8 = 0b10;

pub(super) struct ConnectPacket<'a> {
    pub(super) version: MqttVersion,
    pub(super) client_id: &'a str,
    pub(super) username: Option<&'a str>,
    pub(super) password: Option<&'a str>,
    pub(super) keepalive: u16,
    pub(super) will: Option<&'a MqttWill>,
    /// The longest packet that this node takes.
    pub(super) packet_bytes_max: u32,
}

impl ConnectPacket<'_> {
    pub(super) fn bytes(&self) -> Result<BytesMut, Failure> {
        let mut fields = PacketFields::default();
        fields.text("MQTT")?;
        fields.0.put_u8(if self.is_v5() { 5 } else { 4 });
        fields.0.put_u8(self.flags());
        fields.0.put_u16(self.keepalive);
        let mut properties = PacketFields::default();
        properties.0.put_u8(property::MAXIMUM_PACKET_SIZE);
        properties.0.put_u32(self.packet_bytes_max);
        self.put_properties(&mut fields, &properties);
        fields.text(self.client_id)?;
        if let Some(will) = self.will {
            self.put_properties(&mut fields, &PacketFields::default());
            fields.text(&will.topic)?;
            fields.text(&will.payload)?;
        }
        for text in [self.username, self.password].into_iter().flatten() {
            fields.text(text)?;
        }
        Ok(whole(0x10, &fields.0, &[])?.0)
    }

    fn put_properties(&self, fields: &mut PacketFields, properties: &PacketFields) {
        if self.is_v5() {
            fields.properties(properties);
        }
    }

    fn flags(&self) -> u8 {
        let will = self.will.map_or(0, |will| 0b100 | will.qos << 3 | u8::from(will.retain) << 5);
        let login = u8::from(self.username.is_some()) << 7 | u8::from(self.password.is_some()) << 6;
        CLEAN_START | will | login
    }

    fn is_v5(&self) -> bool {
        self.version == MqttVersion::V5
    }
}

/// A message for a topic. Without properties it is one of version 3.1.1.
pub(super) struct PublishPacket<'a> {
    pub(super) topic: &'a str,
    pub(super) qos: u8,
    pub(super) retain: bool,
    pub(super) properties: Option<PublishProperties<'a>>,
    pub(super) payload: Bytes,
}

pub(super) struct PublishProperties<'a> {
    pub(super) content_type: &'a str,
    pub(super) user: Vec<(&'a str, &'a str)>,
}

/// The bytes of a message, but for its number, which it gets when it is written.
pub(super) struct EncodedPublish {
    pub(super) qos: u8,
    pub(super) retain: bool,
    bytes: BytesMut,
    number_at: usize,
}

impl PublishPacket<'_> {
    pub(super) fn encoded(&self) -> Result<EncodedPublish, Failure> {
        let mut fields = PacketFields::default();
        fields.text(self.topic)?;
        let number_at = fields.0.len();
        if self.qos > 0 {
            fields.0.put_u16(0);
        }
        if let Some(properties) = &self.properties {
            fields.properties(&properties.fields()?);
        }
        let first = 0x30 | self.qos << 1 | u8::from(self.retain);
        let (bytes, before_fields) = whole(first, &fields.0, &self.payload)?;
        Ok(EncodedPublish { qos: self.qos, retain: self.retain, bytes, number_at: before_fields + number_at })
    }
}

impl PublishProperties<'_> {
    fn fields(&self) -> Result<PacketFields, Failure> {
        let mut fields = PacketFields::default();
        fields.0.put_u8(property::CONTENT_TYPE);
        fields.text(self.content_type)?;
        for (name, value) in &self.user {
            fields.0.put_u8(property::USER_PROPERTY);
            fields.text(name)?;
            fields.text(value)?;
        }
        Ok(fields)
    }
}

impl EncodedPublish {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// QoS 0 has no number.
    pub(super) fn unnumbered(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn numbered(&mut self, number: u16) -> &[u8] {
        self.bytes[self.number_at..self.number_at + 2].copy_from_slice(&number.to_be_bytes());
        &self.bytes
    }
}

pub(super) fn pubrel(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [0x62, 2, high, low]
}

/// Numbers of the properties that are used here (MQTT 5 section 2.2.2.2).
pub(super) mod property {
    pub(in super::super) const CONTENT_TYPE: u8 = 0x03;
    pub(in super::super) const SERVER_KEEP_ALIVE: u8 = 0x13;
    pub(in super::super) const REASON_STRING: u8 = 0x1f;
    pub(in super::super) const RECEIVE_MAXIMUM: u8 = 0x21;
    pub(in super::super) const MAXIMUM_QOS: u8 = 0x24;
    pub(in super::super) const RETAIN_AVAILABLE: u8 = 0x25;
    pub(in super::super) const USER_PROPERTY: u8 = 0x26;
    pub(in super::super) const MAXIMUM_PACKET_SIZE: u8 = 0x27;
}

/// A part of a packet.
#[derive(Default)]
struct PacketFields(Vec<u8>);

impl PacketFields {
    fn text(&mut self, text: &str) -> Result<(), Failure> {
        let length = u16::try_from(text.len()).map_err(|_| {
            Failure::permanent("a text is longer than the 65535 bytes that MQTT can carry as a name or value")
        })?;
        self.0.put_u16(length);
        self.0.put_slice(text.as_bytes());
        Ok(())
    }

    fn properties(&mut self, properties: &PacketFields) {
        put_length(&mut self.0, properties.0.len());
        self.0.put_slice(&properties.0);
    }
}

/// The packet, and how many bytes are before its fields.
fn whole(first: u8, fields: &[u8], payload: &[u8]) -> Result<(BytesMut, usize), Failure> {
    let rest = fields.len() + payload.len();
    if rest > REST_BYTES_MAX {
        return Err(Failure::permanent(format!("MQTT cannot carry a message of {rest} bytes")));
    }
    let mut start = vec![first];
    put_length(&mut start, rest);
    let mut bytes = BytesMut::with_capacity(start.len() + rest);
    [&start[..], fields, payload].into_iter().for_each(|part| bytes.put_slice(part));
    Ok((bytes, start.len()))
}

/// Seven bits a byte, the lowest first; the eighth says that more follow.
fn put_length(out: &mut Vec<u8>, mut length: usize) {
    while length > 0x7f {
        out.put_u8(0x80 | (length & 0x7f) as u8);
        length >>= 7;
    }
    out.put_u8(length as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(qos: u8, properties: Option<PublishProperties<'_>>) -> EncodedPublish {
        let payload = Bytes::from_static(b"hello");
        PublishPacket { topic: "a/b", qos, retain: true, properties, payload }.encoded().unwrap()
    }

    #[test]
    fn packets_are_written_as_the_standard_says() {
        assert_eq!(publish(0, None).unnumbered(), b"\x31\x0a\x00\x03a/bhello");
        assert_eq!(publish(1, None).numbered(0x102), b"\x33\x0c\x00\x03a/b\x01\x02hello");
        let properties = PublishProperties { content_type: "t", user: vec![("k", "vé")] };
        assert_eq!(
            publish(2, Some(properties)).numbered(7),
            b"\x35\x1a\x00\x03a/b\x00\x07\x0d\x03\x00\x01t\x26\x00\x01k\x00\x03v\xc3\xa9hello"
        );
    }

    #[test]
    fn a_connection_begins_as_the_standard_says() {
        let will = MqttWill { topic: "w".into(), payload: "x".into(), qos: 1, retain: true };
        let mut packet = ConnectPacket {
            version: MqttVersion::V3,
            client_id: "c",
            username: Some("u"),
            password: Some("p"),
            keepalive: 60,
            will: Some(&will),
            packet_bytes_max: 1 << 16,
        };
        let v3 = b"\x10\x19\x00\x04MQTT\x04\xee\x00\x3c\x00\x01c\x00\x01w\x00\x01x\x00\x01u\x00\x01p";
        assert_eq!(&packet.bytes().unwrap()[..], v3);
        packet = ConnectPacket { version: MqttVersion::V5, will: None, username: None, ..packet };
        let v5 = b"\x10\x16\x00\x04MQTT\x05\x42\x00\x3c\x05\x27\x00\x01\x00\x00\x00\x01c\x00\x01p";
        assert_eq!(&packet.bytes().unwrap()[..], &v5[..]);
    }

    #[test]
    fn lengths_take_as_many_bytes_as_they_need() {
        let cases: [(usize, &[u8]); 4] =
            [(0, &[0]), (127, &[0x7f]), (128, &[0x80, 1]), (REST_BYTES_MAX, &[0xff, 0xff, 0xff, 0x7f])];
        for (length, expected) in cases {
            let mut out = Vec::new();
            put_length(&mut out, length);
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn what_no_packet_can_carry_is_permanent() {
        let topic = "t".repeat(65_536);
        let packet =
            PublishPacket { topic: &topic, qos: 1, retain: false, properties: None, payload: Bytes::new() };
        assert_eq!(packet.encoded().err().unwrap().class, crate::verdict::Class::Permanent);
    }
}
