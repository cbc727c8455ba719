//! Frames on a stream. Both halves can be dropped while they wait, and lose nothing.

use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::Instant;

use super::incoming::{BrokerFrame, take};
use super::wire;
use crate::net::{Stream, short};

const READ_BYTES: usize = 16 << 10;

pub(super) struct FrameReader {
    stream: ReadHalf<Stream>,
    received: BytesMut,
    pub(super) frame_max: usize,
    /// When the broker last sent anything.
    pub(super) heard: Instant,
}

pub(super) struct FrameWriter {
    stream: WriteHalf<Stream>,
    unsent: BytesMut,
    is_flushed: bool,
    pub(super) frame_max: usize,
    /// When this node last sent anything.
    pub(super) sent: Instant,
}

/// `frame_max` is for the time before the broker says its own.
pub(super) fn split(stream: Stream, frame_max: usize) -> (FrameReader, FrameWriter) {
    let (reader, writer) = tokio::io::split(stream);
    let now = Instant::now();
    (
        FrameReader { stream: reader, received: BytesMut::new(), frame_max, heard: now },
        FrameWriter { stream: writer, unsent: BytesMut::new(), is_flushed: true, frame_max, sent: now },
    )
}

impl FrameReader {
    /// Ends with the reason why there will be no more.
    pub(super) async fn next(&mut self) -> Result<BrokerFrame, String> {
        loop {
            if let Some(frame) = self.received()? {
                return Ok(frame);
            }
            self.received.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err("it was closed".to_owned()),
                Ok(_) => self.heard = Instant::now(),
                Err(error) => return Err(short(&error)),
            }
        }
    }

    /// A frame that has arrived whole.
    pub(super) fn received(&mut self) -> Result<Option<BrokerFrame>, String> {
        take(&mut self.received, self.frame_max)
    }
}

impl FrameWriter {
    pub(super) fn protocol_header(&mut self) {
        self.unsent.put_slice(wire::PROTOCOL_HEADER);
    }

    pub(super) fn heartbeat(&mut self) {
        self.frame(wire::HEARTBEAT, 0, &[]);
    }

    pub(super) fn open_channel(&mut self, channel: u16) {
        self.method(channel, wire::CHANNEL_OPEN, &[0]);
    }

    pub(super) fn select_confirms(&mut self, channel: u16) {
        self.method(channel, wire::CONFIRM_SELECT, &[0]);
    }

    pub(super) fn close_channel(&mut self, channel: u16) {
        self.method(channel, wire::CHANNEL_CLOSE, b"\x00\xc8\x02OK\0\0\0\0");
    }

    /// The broker closed it.
    pub(super) fn channel_closed(&mut self, channel: u16) {
        self.method(channel, wire::CHANNEL_CLOSE_OK, &[]);
    }

    pub(super) fn method(&mut self, channel: u16, (class, number): (u16, u16), arguments: &[u8]) {
        self.begin(wire::METHOD, channel, 4 + arguments.len());
        self.unsent.put_u16(class);
        self.unsent.put_u16(number);
        self.end(arguments);
    }

    pub(super) fn frame(&mut self, kind: u8, channel: u16, content: &[u8]) {
        self.begin(kind, channel, content.len());
        self.end(content);
    }

    /// In as many frames as it takes.
    pub(super) fn body(&mut self, channel: u16, body: &[u8]) {
        for chunk in body.chunks(self.frame_max - wire::FRAME_EXTRA) {
            self.frame(wire::BODY, channel, chunk);
        }
    }

    fn begin(&mut self, kind: u8, channel: u16, bytes: usize) {
        self.unsent.put_u8(kind);
        self.unsent.put_u16(channel);
        self.unsent.put_u32(bytes as u32);
    }

    fn end(&mut self, content: &[u8]) {
        self.unsent.put_slice(content);
        self.unsent.put_u8(wire::FRAME_END);
    }

    pub(super) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unsent.is_empty() && self.is_flushed
    }

    /// Until everything is written.
    pub(super) async fn flush(&mut self) -> Result<(), String> {
        while self.unsent.has_remaining() {
            self.is_flushed = false;
            self.stream.write_buf(&mut self.unsent).await.map_err(|error| short(&error))?;
            self.sent = Instant::now();
        }
        self.stream.flush().await.map_err(|error| short(&error))?;
        self.is_flushed = true;
        Ok(())
    }
}
