//! Numbers and fields of AMQP 0-9-1 (section 4.2), as far as a publisher needs them.

use bytes::{BufMut as _, BytesMut};

use crate::verdict::Failure;

pub(super) const PROTOCOL_HEADER: &[u8] = b"AMQP\0\0\x09\x01";
/// Type, channel and size before a frame's content, one byte after it.
pub(super) const FRAME_EXTRA: usize = 8;
pub(super) const FRAME_END: u8 = 0xce;

// Types of frames.
pub(super) const METHOD: u8 = 1;
pub(super) const PROPERTIES: u8 = 2;
pub(super) const BODY: u8 = 3;
pub(super) const HEARTBEAT: u8 = 8;

// Methods: class and number.
pub(super) const CONNECTION_START: (u16, u16) = (10, 10);
pub(super) const CONNECTION_START_OK: (u16, u16) = (10, 11);
pub(super) const CONNECTION_TUNE: (u16, u16) = (10, 30);
pub(super) const CONNECTION_TUNE_OK: (u16, u16) = (10, 31);
pub(super) const CONNECTION_OPEN: (u16, u16) = (10, 40);
pub(super) const CONNECTION_OPEN_OK: (u16, u16) = (10, 41);
pub(super) const CONNECTION_CLOSE: (u16, u16) = (10, 50);
pub(super) const CONNECTION_BLOCKED: (u16, u16) = (10, 60);
pub(super) const CONNECTION_UNBLOCKED: (u16, u16) = (10, 61);
pub(super) const CHANNEL_OPEN: (u16, u16) = (20, 10);
pub(super) const CHANNEL_OPEN_OK: (u16, u16) = (20, 11);
pub(super) const CHANNEL_FLOW: (u16, u16) = (20, 20);
pub(super) const CHANNEL_FLOW_OK: (u16, u16) = (20, 21);
pub(super) const CHANNEL_CLOSE: (u16, u16) = (20, 40);
pub(super) const CHANNEL_CLOSE_OK: (u16, u16) = (20, 41);
pub(super) const BASIC_PUBLISH: (u16, u16) = (60, 40);
pub(super) const BASIC_RETURN: (u16, u16) = (60, 50);
pub(super) const BASIC_ACK: (u16, u16) = (60, 80);
pub(super) const BASIC_NACK: (u16, u16) = (60, 120);
pub(super) const CONFIRM_SELECT: (u16, u16) = (85, 10);
pub(super) const CONFIRM_SELECT_OK: (u16, u16) = (85, 11);

// Bits that say which properties follow, in the order of the bits, the highest first.
pub(super) const CONTENT_TYPE: u16 = 1 << 15;
pub(super) const HEADERS: u16 = 1 << 13;
pub(super) const DELIVERY_MODE: u16 = 1 << 12;
pub(super) const PRIORITY: u16 = 1 << 11;
pub(super) const MESSAGE_ID: u16 = 1 << 7;

/// Arguments, properties or the entries of a table, to be written.
#[derive(Default)]
pub(super) struct WireFields(pub(super) BytesMut);

impl WireFields {
    /// `what` names it in the error.
    pub(super) fn short(&mut self, what: &str, text: &str) -> Result<(), Failure> {
        let length = u8::try_from(text.len())
            .map_err(|_| Failure::permanent(format!("{what}: has {} bytes; AMQP takes 255", text.len())))?;
        self.0.put_u8(length);
        self.0.put_slice(text.as_bytes());
        Ok(())
    }

    /// A long text, or a table.
    pub(super) fn long(&mut self, bytes: &[u8]) {
        self.0.put_u32(bytes.len() as u32);
        self.0.put_slice(bytes);
    }

    /// An entry of a table.
    pub(super) fn header(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        self.short("the name of a header", name)?;
        self.0.put_u8(b'S');
        self.long(value.as_bytes());
        Ok(())
    }
}
