//! Frames from the broker, as far as a publisher hears them (AMQP 0-9-1 section 4.2). Tables are skipped by their length: no
//! broker decides how deep they are read.

use std::fmt;

use bytes::{Buf as _, BytesMut};

use super::wire;

/// Type, channel and size.
const FRAME_BEGIN: usize = 7;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum BrokerFrame {
    Heartbeat,
    /// The mechanisms are separated by spaces.
    Start {
        mechanisms: String,
    },
    Tune(AmqpLimits),
    /// We are in the virtual host.
    Opened,
    Blocked {
        reason: String,
    },
    Unblocked,
    Close(AmqpReply),
    OfChannel(u16, ChannelFrame),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChannelFrame {
    Opened,
    /// It confirms publications from here on.
    Confirming,
    Ack {
        number: u64,
        multiple: bool,
    },
    Nack {
        number: u64,
        multiple: bool,
    },
    /// Followed by the message's properties and its body.
    Return(AmqpReply),
    Properties {
        message_id: Option<String>,
    },
    Body,
    Flow {
        active: bool,
    },
    Close(AmqpReply),
    Closed,
}

/// 0 is "no limit".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AmqpLimits {
    pub(super) channel_max: u16,
    pub(super) frame_max: u32,
    /// Seconds.
    pub(super) heartbeat: u16,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct AmqpReply {
    pub(super) code: u16,
    pub(super) text: String,
}

impl fmt::Display for AmqpReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

/// Takes the next frame off the front; None while it is not complete.
pub(super) fn take(buffer: &mut BytesMut, bytes_max: usize) -> Result<Option<BrokerFrame>, String> {
    let Some(&[kind, high, low, ref size @ ..]) = buffer.first_chunk::<FRAME_BEGIN>() else {
        return Ok(None);
    };
    if kind == b'A' {
        return Err("it does not speak AMQP 0-9-1".to_owned());
    }
    let bytes = (u32::from_be_bytes(*size) as usize).saturating_add(wire::FRAME_EXTRA);
    if bytes > bytes_max {
        return Err(format!("it sent a frame of {bytes} bytes, above the limit of {bytes_max}"));
    }
    if buffer.len() < bytes {
        return Ok(None);
    }
    let taken = buffer.split_to(bytes);
    let fields = taken[FRAME_BEGIN..].strip_suffix(&[wire::FRAME_END]);
    let read = fields.and_then(|mut fields| read(kind, u16::from_be_bytes([high, low]), &mut fields));
    read.map(Some).ok_or_else(unexpected)
}

pub(super) fn unexpected() -> String {
    "it sent a frame that AMQP 0-9-1 does not have here".to_owned()
}

/// None if it ends too early, or if it is nothing that a publisher hears.
fn read(kind: u8, channel: u16, fields: &mut &[u8]) -> Option<BrokerFrame> {
    let of_channel = match (kind, channel) {
        (wire::HEARTBEAT, 0) => return Some(BrokerFrame::Heartbeat),
        (wire::METHOD, 0) => return of_connection(fields),
        (_, 0) => return None,
        (wire::METHOD, _) => of_channel(fields)?,
        (wire::PROPERTIES, _) => ChannelFrame::Properties { message_id: message_id(fields)? },
        (wire::BODY, _) => ChannelFrame::Body,
        _ => return None,
    };
    Some(BrokerFrame::OfChannel(channel, of_channel))
}

fn of_connection(fields: &mut &[u8]) -> Option<BrokerFrame> {
    Some(match (two_bytes(fields)?, two_bytes(fields)?) {
        wire::CONNECTION_START => {
            let (_version, _server_properties) = (two_bytes(fields)?, long(fields)?);
            BrokerFrame::Start { mechanisms: text(long(fields)?) }
        }
        wire::CONNECTION_TUNE => BrokerFrame::Tune(AmqpLimits {
            channel_max: two_bytes(fields)?,
            frame_max: fields.try_get_u32().ok()?,
            heartbeat: two_bytes(fields)?,
        }),
        wire::CONNECTION_OPEN_OK => BrokerFrame::Opened,
        wire::CONNECTION_BLOCKED => BrokerFrame::Blocked { reason: text(short(fields)?) },
        wire::CONNECTION_UNBLOCKED => BrokerFrame::Unblocked,
        wire::CONNECTION_CLOSE => BrokerFrame::Close(reply(fields)?),
        _ => return None,
    })
}

fn of_channel(fields: &mut &[u8]) -> Option<ChannelFrame> {
    Some(match (two_bytes(fields)?, two_bytes(fields)?) {
        wire::CHANNEL_OPEN_OK => ChannelFrame::Opened,
        wire::CONFIRM_SELECT_OK => ChannelFrame::Confirming,
        wire::BASIC_ACK => ChannelFrame::Ack { number: number(fields)?, multiple: bit(fields)? },
        wire::BASIC_NACK => ChannelFrame::Nack { number: number(fields)?, multiple: bit(fields)? },
        wire::BASIC_RETURN => ChannelFrame::Return(reply(fields)?),
        wire::CHANNEL_FLOW => ChannelFrame::Flow { active: bit(fields)? },
        wire::CHANNEL_CLOSE => ChannelFrame::Close(reply(fields)?),
        wire::CHANNEL_CLOSE_OK => ChannelFrame::Closed,
        _ => return None,
    })
}

fn message_id(fields: &mut &[u8]) -> Option<Option<String>> {
    let (_class, _weight, _body_size) = (two_bytes(fields)?, two_bytes(fields)?, fields.try_get_u64().ok()?);
    let flags = two_bytes(fields)?;
    for before in (8..16).rev().map(|bit| 1 << bit).filter(|bit| flags & bit != 0) {
        match before {
            wire::HEADERS => long(fields)?,
            wire::DELIVERY_MODE | wire::PRIORITY => fields.split_off(..1)?,
            // All others are texts.
            _ => short(fields)?,
        };
    }
    let is_given = flags & wire::MESSAGE_ID != 0;
    Some(if is_given { Some(text(short(fields)?)) } else { None })
}

fn reply(fields: &mut &[u8]) -> Option<AmqpReply> {
    Some(AmqpReply { code: two_bytes(fields)?, text: text(short(fields)?) })
}

fn two_bytes(fields: &mut &[u8]) -> Option<u16> {
    fields.try_get_u16().ok()
}

fn number(fields: &mut &[u8]) -> Option<u64> {
    fields.try_get_u64().ok()
}

/// The first of up to eight in a byte.
fn bit(fields: &mut &[u8]) -> Option<bool> {
    fields.try_get_u8().ok().map(|bits| bits & 1 != 0)
}

fn short<'f>(fields: &mut &'f [u8]) -> Option<&'f [u8]> {
    let length = fields.try_get_u8().ok()?;
    fields.split_off(..usize::from(length))
}

/// A long text, or a table.
fn long<'f>(fields: &mut &'f [u8]) -> Option<&'f [u8]> {
    let length = fields.try_get_u32().ok()?;
    fields.split_off(..length as usize)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
    use amq_protocol::protocol::basic::AMQPProperties;
    use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection};
    use amq_protocol::types::{AMQPValue, FieldTable, ShortString};
    use bytes::BufMut as _;
    use proptest::prelude::*;

    use super::*;

    /// As another implementation writes it.
    fn written(frame: &AMQPFrame) -> BytesMut {
        let written = gen_frame(frame)(WriteContext::from(Vec::new())).unwrap();
        BytesMut::from(&written.into_inner().0[..])
    }

    fn frame(kind: u8, channel: u16, content: &[u8]) -> BytesMut {
        let mut bytes = BytesMut::new();
        bytes.put_u8(kind);
        bytes.put_u16(channel);
        bytes.put_u32(content.len() as u32);
        bytes.put_slice(content);
        bytes.put_u8(wire::FRAME_END);
        bytes
    }

    fn taken(mut bytes: BytesMut) -> Result<Option<BrokerFrame>, String> {
        take(&mut bytes, usize::MAX)
    }

    /// A table in a table in a table, with its length.
    fn nested(depth: usize) -> Vec<u8> {
        let mut table = Vec::new();
        for inside in (0..depth).rev() {
            table.put_u32(6 * inside as u32);
            table.put_slice(if inside > 0 { b"\0F" } else { b"" });
        }
        table
    }

    #[test]
    fn nested_tables_are_not_followed() {
        let table = nested(100_000);
        let start = [&b"\0\x0a\0\x0a\0\x09"[..], &table, b"\0\0\0\x05PLAIN\0\0\0\0"].concat();
        let start = taken(frame(wire::METHOD, 0, &start));
        assert_eq!(start, Ok(Some(BrokerFrame::Start { mechanisms: "PLAIN".to_owned() })));
        let flags = wire::HEADERS | wire::MESSAGE_ID;
        let returned = [&[0; 12], &flags.to_be_bytes()[..], &table, b"\x01m"].concat();
        let properties = ChannelFrame::Properties { message_id: Some("m".to_owned()) };
        assert_eq!(
            taken(frame(wire::PROPERTIES, 1, &returned)),
            Ok(Some(BrokerFrame::OfChannel(1, properties)))
        );
    }

    #[test]
    fn what_has_not_arrived_is_waited_for_and_what_is_wrong_is_said() {
        let whole = frame(wire::METHOD, 7, b"\0\x14\0\x0b\0\0\0\0");
        for length in 0..whole.len() {
            assert_eq!(taken(whole[..length].into()), Ok(None));
        }
        let says = |bytes: &[u8]| take(&mut bytes.into(), 100).unwrap_err();
        assert!(says(b"AMQP\0\0\x09\x01").contains("does not speak"));
        assert!(says(&frame(wire::BODY, 1, &[0; 100])).contains("of 108 bytes, above the limit of 100"));
        let mut endless = whole.clone();
        endless[whole.len() - 1] = 0;
        // A consumer's, another end, cut off, on the wrong channel.
        for wrong in [
            &frame(wire::METHOD, 1, b"\0\x3c\0\x3c"),
            &endless,
            &frame(wire::METHOD, 0, b"\0\x0a\0"),
            &frame(wire::BODY, 0, b""),
        ] {
            assert_eq!(says(wrong), unexpected());
        }
    }

    fn short_text() -> impl Strategy<Value = ShortString> {
        "\\PC{0,60}".prop_map(|text| ShortString::try_new(text).unwrap())
    }

    fn table(text: &ShortString) -> FieldTable {
        let mut table = FieldTable::default();
        table.insert(text.clone(), AMQPValue::LongString(text.as_str().into()));
        table
    }

    fn of_connections(code: u16, text: &ShortString, limits: AmqpLimits) -> Vec<(AMQPFrame, BrokerFrame)> {
        use connection::AMQPMethod;
        let AmqpLimits { channel_max, frame_max, heartbeat } = limits;
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: table(text),
            mechanisms: text.as_str().into(),
            locales: text.as_str().into(),
        };
        let tune = connection::Tune { channel_max, frame_max, heartbeat };
        let blocked = connection::Blocked { reason: text.clone() };
        let close =
            connection::Close { reply_code: code, reply_text: text.clone(), class_id: 10, method_id: 40 };
        let text = text.to_string();
        let methods = [
            (AMQPMethod::Start(start), BrokerFrame::Start { mechanisms: text.clone() }),
            (AMQPMethod::Tune(tune), BrokerFrame::Tune(limits)),
            (AMQPMethod::OpenOk(connection::OpenOk {}), BrokerFrame::Opened),
            (AMQPMethod::Blocked(blocked), BrokerFrame::Blocked { reason: text.clone() }),
            (AMQPMethod::Unblocked(connection::Unblocked {}), BrokerFrame::Unblocked),
            (AMQPMethod::Close(close), BrokerFrame::Close(AmqpReply { code, text })),
        ];
        methods.map(|(method, is)| (AMQPFrame::Method(0, AMQPClass::Connection(method)), is)).into()
    }

    fn of_channels(
        (id, number, flag): (u16, u64, bool),
        (code, text): (u16, &ShortString),
    ) -> Vec<(AMQPFrame, BrokerFrame)> {
        let of_channel = |method| AMQPFrame::Method(id, AMQPClass::Channel(method));
        let of_basic = |method| AMQPFrame::Method(id, AMQPClass::Basic(method));
        let selected = AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {}));
        let flow = channel::Flow { active: flag };
        let close =
            channel::Close { reply_code: code, reply_text: text.clone(), class_id: 60, method_id: 40 };
        let ack = basic::Ack { delivery_tag: number, multiple: flag };
        let nack = basic::Nack { delivery_tag: number, multiple: flag, requeue: !flag };
        let returned = basic::Return {
            reply_code: code,
            reply_text: text.clone(),
            exchange: text.clone(),
            routing_key: text.clone(),
        };
        let reply = || AmqpReply { code, text: text.to_string() };
        let frames = [
            (of_channel(channel::AMQPMethod::OpenOk(channel::OpenOk {})), ChannelFrame::Opened),
            (of_channel(channel::AMQPMethod::Flow(flow)), ChannelFrame::Flow { active: flag }),
            (of_channel(channel::AMQPMethod::Close(close)), ChannelFrame::Close(reply())),
            (of_channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})), ChannelFrame::Closed),
            (AMQPFrame::Method(id, selected), ChannelFrame::Confirming),
            (of_basic(basic::AMQPMethod::Ack(ack)), ChannelFrame::Ack { number, multiple: flag }),
            (of_basic(basic::AMQPMethod::Nack(nack)), ChannelFrame::Nack { number, multiple: flag }),
            (of_basic(basic::AMQPMethod::Return(returned)), ChannelFrame::Return(reply())),
            (AMQPFrame::Body(id, text.as_str().into()), ChannelFrame::Body),
        ];
        frames.map(|(frame, is)| (frame, BrokerFrame::OfChannel(id, is))).into()
    }

    type Property = fn(AMQPProperties, ShortString) -> AMQPProperties;
    const PROPERTIES: [Property; 14] = [
        |all, text| all.with_message_id(text),
        |all, text| all.with_content_type(text),
        |all, text| all.with_content_encoding(text),
        |all, text| all.with_headers(table(&text)),
        |all, text| all.with_delivery_mode(text.as_str().len() as u8),
        |all, text| all.with_priority(text.as_str().len() as u8),
        |all, text| all.with_correlation_id(text),
        |all, text| all.with_reply_to(text),
        |all, text| all.with_expiration(text),
        |all, text| all.with_timestamp(text.as_str().len() as u64),
        |all, text| all.with_type(text),
        |all, text| all.with_user_id(text),
        |all, text| all.with_app_id(text),
        |all, text| all.with_cluster_id(text),
    ];

    proptest! {
        #[test]
        fn frames_are_read_as_another_implementation_writes_them(
            id in 1u16.., number: u64, flag: bool, code: u16, text in short_text(), limits: (u16, u32, u16)
        ) {
            let (channel_max, frame_max, heartbeat) = limits;
            let limits = AmqpLimits { channel_max, frame_max, heartbeat };
            let frames = of_connections(code, &text, limits);
            for (frame, is) in frames.into_iter().chain(of_channels((id, number, flag), (code, &text))) {
                prop_assert_eq!(taken(written(&frame)), Ok(Some(is)));
            }
        }

        #[test]
        fn the_id_is_found_among_any_properties(given: [bool; 14], texts in [short_text(), short_text()]) {
            let [id, other] = texts;
            let mut properties = AMQPProperties::default();
            for (at, with) in PROPERTIES.iter().enumerate().filter(|(at, _)| given[*at]) {
                properties = with(properties, if at == 0 { id.clone() } else { other.clone() });
            }
            let header = AMQPContentHeader { class_id: 60, body_size: 7, properties };
            let is = ChannelFrame::Properties { message_id: given[0].then(|| id.to_string()) };
            prop_assert_eq!(
                taken(written(&AMQPFrame::Header(7, header))),
                Ok(Some(BrokerFrame::OfChannel(7, is)))
            );
        }

        #[test]
        fn no_bytes_make_it_panic(content: Vec<u8>, kind: u8, channel in 0u16..2) {
            let _ = taken(content.as_slice().into());
            let _ = taken(frame(kind, channel, &content));
            let _ = taken(frame(wire::PROPERTIES, 1, &content));
            for class in [10, 20, 60, 85] {
                for method in 10..=120 {
                    let method = [&[0, class, 0, method], &content[..]].concat();
                    let _ = taken(frame(wire::METHOD, channel, &method));
                }
            }
        }
    }
}
