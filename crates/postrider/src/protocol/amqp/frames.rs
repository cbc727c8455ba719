//! Frames on a stream. Both halves can be dropped while they wait, and lose nothing.

use amq_protocol::frame::{AMQPFrame, ProtocolVersion, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, constants};
use bytes::{Buf as _, BufMut as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::time::Instant;

use crate::net::{Stream, short};

/// Type, channel and size before a frame's content, one byte after it.
pub(super) const FRAME_EXTRA: usize = 8;
const FRAME_HEADER: usize = 7;
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
    pub(super) async fn next(&mut self) -> Result<AMQPFrame, String> {
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
    pub(super) fn received(&mut self) -> Result<Option<AMQPFrame>, String> {
        let Some(header) = self.received.first_chunk::<FRAME_HEADER>() else { return Ok(None) };
        let [kind, _, _, size @ ..] = *header;
        if kind == b'A' {
            return Err("it does not speak AMQP 0-9-1".to_owned());
        }
        let bytes = (u32::from_be_bytes(size) as usize).saturating_add(FRAME_EXTRA);
        if bytes > self.frame_max {
            return Err(format!("it sent a frame of {bytes} bytes, above the limit of {}", self.frame_max));
        }
        if self.received.len() < bytes {
            return Ok(None);
        }
        match parse_frame(&self.received.split_to(bytes)[..]) {
            Ok((_, frame)) => Ok(Some(frame)),
            Err(_) => Err("it sent a frame that cannot be read".to_owned()),
        }
    }
}

impl FrameWriter {
    pub(super) fn protocol_header(&mut self) {
        self.frame(&AMQPFrame::ProtocolHeader(ProtocolVersion::amqp_0_9_1()));
    }

    pub(super) fn method(&mut self, channel: u16, method: AMQPClass) {
        self.frame(&AMQPFrame::Method(channel, method));
    }

    pub(super) fn frame(&mut self, frame: &AMQPFrame) {
        self.unsent.extend_from_slice(&encoded(frame));
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.unsent.extend_from_slice(bytes);
    }

    /// In as many frames as it takes.
    pub(super) fn body(&mut self, channel: u16, body: &[u8]) {
        for chunk in body.chunks(self.frame_max - FRAME_EXTRA) {
            self.unsent.put_u8(constants::FRAME_BODY);
            self.unsent.put_u16(channel);
            self.unsent.put_u32(chunk.len() as u32);
            self.unsent.extend_from_slice(chunk);
            self.unsent.put_u8(constants::FRAME_END);
        }
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

pub(super) fn encoded(frame: &AMQPFrame) -> Vec<u8> {
    let written = gen_frame(frame)(WriteContext::from(Vec::with_capacity(256)));
    written.expect("a vector can always be written to").into_inner().0
}
