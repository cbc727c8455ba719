//! Packets from the broker. Reasons are kept as numbers: brokers send some that no list has.

use bytes::{Buf as _, BytesMut};

use super::config::MqttVersion;
use super::outgoing::property;

/// A broker has nothing longer to say to one who only publishes.
pub(super) const PACKET_BYTES_MAX: usize = 64 << 10;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BrokerPacket {
    Connected(BrokerLimits),
    Refused(MqttReason),
    Answer { step: AnswerStep, number: u16, reason: MqttReason },
    Pong,
    Disconnect(MqttReason),
}

/// Which answer to a message it is: PUBACK (QoS 1), PUBREC and then PUBCOMP (QoS 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerStep {
    Acknowledged,
    Received,
    Completed,
}

/// 0x80 and above are refusals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MqttReason {
    pub(super) code: u8,
    /// The broker's own words.
    pub(super) says: Option<String>,
}

/// What a broker told when it accepted the connection. One of version 3.1.1 tells nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BrokerLimits {
    /// Unanswered messages of QoS 1 and 2.
    pub(super) receive_maximum: u16,
    pub(super) packet_bytes_max: usize,
    pub(super) qos_max: u8,
    pub(super) retain_available: bool,
    /// Instead of the one that was asked for.
    pub(super) keepalive: Option<u16>,
}

impl Default for BrokerLimits {
    fn default() -> Self {
        Self {
            receive_maximum: u16::MAX,
            packet_bytes_max: usize::MAX,
            qos_max: 2,
            retain_available: true,
            keepalive: None,
        }
    }
}

/// Takes the next packet off the front; None while it is not complete. The error is the rest of a sentence about the broker.
pub(super) fn take(buffer: &mut BytesMut, version: MqttVersion) -> Result<Option<BrokerPacket>, String> {
    let Some(&first) = buffer.first() else { return Ok(None) };
    let Some((length, length_bytes)) = length(&buffer[1..])? else { return Ok(None) };
    if length > PACKET_BYTES_MAX {
        return Err(format!("sent a packet of {length} bytes"));
    }
    if buffer.len() < 1 + length_bytes + length {
        return Ok(None);
    }
    buffer.advance(1 + length_bytes);
    let packet = buffer.split_to(length);
    let read = read(first, &mut UnreadFields(&packet), version);
    read.map(Some).ok_or_else(|| format!("sent a packet that makes no sense here (0x{first:02x})"))
}

fn read(first: u8, fields: &mut UnreadFields<'_>, version: MqttVersion) -> Option<BrokerPacket> {
    let step = match first {
        0x20 => return connected(fields, version),
        0x40 => AnswerStep::Acknowledged,
        0x50 => AnswerStep::Received,
        0x70 => AnswerStep::Completed,
        0xd0 => return Some(BrokerPacket::Pong),
        0xe0 if version == MqttVersion::V5 => return Some(BrokerPacket::Disconnect(fields.reason()?)),
        _ => return None,
    };
    Some(BrokerPacket::Answer { step, number: fields.two_bytes()?, reason: fields.reason()? })
}

fn connected(fields: &mut UnreadFields<'_>, version: MqttVersion) -> Option<BrokerPacket> {
    let _session_present = fields.byte()?;
    let mut reason = MqttReason { code: fields.byte()?, says: None };
    let mut limits = BrokerLimits::default();
    // A broker that knows version 3.1.1 only refuses in that version's words, without properties.
    if version == MqttVersion::V5 && !fields.0.is_empty() {
        fields.properties(|number, value| match (number, value) {
            (property::RECEIVE_MAXIMUM, ReadProperty::Number(maximum)) => {
                limits.receive_maximum = u16::try_from(maximum).unwrap_or(u16::MAX).max(1);
            }
            (property::MAXIMUM_PACKET_SIZE, ReadProperty::Number(bytes)) => {
                limits.packet_bytes_max = bytes as usize;
            }
            (property::MAXIMUM_QOS, ReadProperty::Number(qos)) => limits.qos_max = qos as u8,
            (property::RETAIN_AVAILABLE, ReadProperty::Number(flag)) => limits.retain_available = flag != 0,
            (property::SERVER_KEEP_ALIVE, ReadProperty::Number(seconds)) => {
                limits.keepalive = u16::try_from(seconds).ok();
            }
            (property::REASON_STRING, ReadProperty::Text(text)) => reason.says = Some(text),
            _ => {}
        })?;
    }
    Some(if reason.code == 0 { BrokerPacket::Connected(limits) } else { BrokerPacket::Refused(reason) })
}

enum ReadProperty {
    Number(u32),
    Text(String),
    /// Two texts, or one that is no text.
    Other,
}

/// What is left of a packet; None when it ends too early.
struct UnreadFields<'p>(&'p [u8]);

impl<'p> UnreadFields<'p> {
    fn bytes(&mut self, count: usize) -> Option<&'p [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    fn two_bytes(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn number(&mut self, bytes: usize) -> Option<ReadProperty> {
        let number = self.bytes(bytes)?.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        Some(ReadProperty::Number(number))
    }

    fn text(&mut self) -> Option<ReadProperty> {
        let length = usize::from(self.two_bytes()?);
        let text = std::str::from_utf8(self.bytes(length)?);
        Some(text.map_or(ReadProperty::Other, |text| ReadProperty::Text(text.to_owned())))
    }

    fn variable_number(&mut self) -> Option<usize> {
        let (number, bytes) = length(self.0).ok()??;
        self.0 = &self.0[bytes..];
        Some(number)
    }

    /// At the end of a packet; left out when it is a plain success.
    fn reason(&mut self) -> Option<MqttReason> {
        let mut reason = MqttReason::default();
        if self.0.is_empty() {
            return Some(reason);
        }
        reason.code = self.byte()?;
        if !self.0.is_empty() {
            self.properties(|number, value| {
                if let (property::REASON_STRING, ReadProperty::Text(text)) = (number, value) {
                    reason.says = Some(text);
                }
            })?;
        }
        Some(reason)
    }

    fn properties(&mut self, mut each: impl FnMut(u8, ReadProperty)) -> Option<()> {
        let length = self.variable_number()?;
        let mut rest = UnreadFields(self.bytes(length)?);
        while !rest.0.is_empty() {
            let number = rest.byte()?;
            each(number, rest.property(number)?);
        }
        Some(())
    }

    /// The kinds of all properties (MQTT 5 section 2.2.2.2), to find the end of those that do not matter here.
    fn property(&mut self, number: u8) -> Option<ReadProperty> {
        match number {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => self.number(1),
            0x13 | 0x21 | 0x22 | 0x23 => self.number(2),
            0x02 | 0x11 | 0x18 | 0x27 => self.number(4),
            0x0b => self.variable_number().map(|_| ReadProperty::Other),
            0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1a | 0x1c | 0x1f => self.text(),
            0x26 => {
                self.text()?;
                self.text().map(|_| ReadProperty::Other)
            }
            _ => None,
        }
    }
}

/// The number, and how many bytes it takes; None while it is not complete.
fn length(bytes: &[u8]) -> Result<Option<(usize, usize)>, String> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate() {
        if at == 4 {
            return Err("sent a packet without a valid length".to_owned());
        }
        number |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((number, at + 1)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8], version: MqttVersion) -> Result<Option<BrokerPacket>, String> {
        take(&mut BytesMut::from(bytes), version)
    }

    fn answer(
        step: AnswerStep,
        number: u16,
        code: u8,
        says: Option<&str>,
    ) -> Result<Option<BrokerPacket>, String> {
        let reason = MqttReason { code, says: says.map(str::to_owned) };
        Ok(Some(BrokerPacket::Answer { step, number, reason }))
    }

    #[test]
    fn answers_are_read() {
        let v5 = MqttVersion::V5;
        assert_eq!(one(b"\x40\x02\x00\x07", MqttVersion::V3), answer(AnswerStep::Acknowledged, 7, 0, None));
        assert_eq!(one(b"\x40\x03\x00\x07\x95", v5), answer(AnswerStep::Acknowledged, 7, 0x95, None));
        let words = b"\x50\x0e\x01\x00\x97\x0a\x1f\x00\x02no\x26\x00\x00\x00\x00";
        assert_eq!(one(words, v5), answer(AnswerStep::Received, 256, 0x97, Some("no")));
        assert_eq!(one(b"\xd0\x00", v5), Ok(Some(BrokerPacket::Pong)));
    }

    #[test]
    fn limits_are_read() {
        // As mosquitto 2.0 sends them.
        let Ok(Some(BrokerPacket::Connected(limits))) =
            one(b"\x20\x0e\x00\x00\x0b\x22\x00\x0a\x21\x00\x14\x27\x00\x00\x04\x00", MqttVersion::V5)
        else {
            panic!("no limits")
        };
        let expected =
            BrokerLimits { receive_maximum: 20, packet_bytes_max: 1024, ..BrokerLimits::default() };
        assert_eq!(limits, expected);
        let refused = MqttReason { code: 5, says: None };
        assert_eq!(one(b"\x20\x02\x00\x05", MqttVersion::V3), Ok(Some(BrokerPacket::Refused(refused))));
    }

    #[test]
    fn what_has_not_arrived_is_waited_for_and_what_is_wrong_is_said() {
        let mut buffer = BytesMut::from(&b"\x40\x02\x00\x07\x40\x02\x00"[..]);
        assert_eq!(take(&mut buffer, MqttVersion::V5), answer(AnswerStep::Acknowledged, 7, 0, None));
        assert_eq!((take(&mut buffer, MqttVersion::V5), buffer.len()), (Ok(None), 3));
        for wrong in [&b"\x40\xff\xff\xff\xff\x01"[..], b"\x40\xff\xff\xff\x7f", b"\x40\x01\x00", b"\x30\x00"]
        {
            assert!(one(wrong, MqttVersion::V5).is_err(), "{wrong:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, first in 0u8..16, v5: bool) {
            let version = if v5 { MqttVersion::V5 } else { MqttVersion::V3 };
            let mut packet = BytesMut::from(&[first << 4, bytes.len().min(127) as u8][..]);
            packet.extend_from_slice(&bytes);
            while let Ok(Some(_)) = take(&mut packet, version) {}
        }
    }
}
