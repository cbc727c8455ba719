//! The connection: one future owns it, with everything that waits to be published or to be confirmed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::answer;
use super::frames::{FrameReader, FrameWriter};
use super::lanes::{Answer, Lanes};
use super::publication::Publication;
use super::sign_in::SignedIn;
use crate::protocol::broker::BrokerAddress;
use crate::sink::Undelivered;

/// Publications wait unencoded while this much waits for the socket, so that those given up meanwhile are never sent.
const UNSENT_BYTES_MAX: usize = 64 << 10;
/// How many are taken over at a time.
const TAKEN_AT_ONCE: usize = 256;

/// What deliveries have of the connection.
pub(super) struct AmqpClient {
    publish: mpsc::UnboundedSender<Order>,
    blocked: watch::Receiver<Option<String>>,
}

struct Order {
    publication: Publication,
    answer: oneshot::Sender<Answer>,
}

pub(super) struct AmqpConnection {
    address: Arc<BrokerAddress>,
    reader: FrameReader,
    writer: FrameWriter,
    heartbeat: Duration,
    /// As many as a node has attempts in flight.
    orders: mpsc::UnboundedReceiver<Order>,
    waiting: VecDeque<Order>,
    lanes: Lanes,
    blocked: watch::Sender<Option<String>>,
}

impl AmqpClient {
    /// Until the broker confirmed or refused it.
    pub(super) async fn publish(&self, publication: Publication) -> Result<(), Undelivered> {
        let (answer, answered) = oneshot::channel();
        let _ = self.publish.send(Order { publication, answer });
        match answered.await {
            Ok(answer) => answer.map_err(Undelivered::from),
            // The connection ended, and the link is about to say why.
            Err(_) => std::future::pending().await,
        }
    }

    /// Why the broker does not let us publish at present.
    pub(super) fn blocked(&self) -> Option<String> {
        self.blocked.borrow().clone()
    }
}

impl AmqpConnection {
    pub(super) fn new(signed_in: SignedIn, address: Arc<BrokerAddress>) -> (AmqpClient, Self) {
        let (publish, orders) = mpsc::unbounded_channel();
        let (blocks, blocked) = watch::channel(None);
        let connection = Self {
            address,
            reader: signed_in.reader,
            writer: signed_in.writer,
            heartbeat: signed_in.heartbeat,
            orders,
            waiting: VecDeque::new(),
            lanes: Lanes::new(signed_in.channels_max),
            blocked: blocks,
        };
        (AmqpClient { publish, blocked }, connection)
    }

    /// Until it is lost, and why.
    pub(super) async fn run(mut self) -> String {
        loop {
            if let Err(why) = self.step().await {
                return format!("{}: {why}", self.address);
            }
        }
    }

    async fn step(&mut self) -> Result<(), String> {
        self.publish_waiting();
        let mut taken = Vec::new();
        let (is_idle, next_beat) = (self.writer.is_idle(), self.next_beat());
        tokio::select! {
            frame = self.reader.next() => {
                self.handle(frame?)?;
                while let Some(frame) = self.reader.received()? {
                    self.handle(frame)?;
                }
            }
            written = self.writer.flush(), if !is_idle => written?,
            count = self.orders.recv_many(&mut taken, TAKEN_AT_ONCE) => match count {
                0 => return Err("no endpoint uses it".to_owned()),
                _ => self.waiting.extend(taken),
            },
            () = tokio::time::sleep_until(next_beat) => self.beat()?,
        }
        Ok(())
    }

    fn publish_waiting(&mut self) {
        loop {
            // Given up before they were sent.
            while self.waiting.pop_front_if(|order| order.answer.is_closed()).is_some() {}
            if self.waiting.is_empty() || self.is_blocked() || self.writer.unsent() >= UNSENT_BYTES_MAX {
                return;
            }
            let Some(lane) = self.lanes.free() else {
                return self.lanes.open(self.waiting.len(), &mut self.writer);
            };
            let Some(Order { publication, answer }) = self.waiting.pop_front() else { return };
            match publication.write(lane, &mut self.writer) {
                Ok(()) => self.lanes.occupy(lane, answer),
                Err(failure) => {
                    let _ = answer.send(Err(failure));
                    self.lanes.give_back(lane);
                }
            }
        }
    }

    fn is_blocked(&self) -> bool {
        self.blocked.borrow().is_some()
    }

    fn block(&self, reason: &str) {
        self.blocked.send_replace(Some(answer::blocked(&self.address, reason)));
    }

    fn handle(&mut self, frame: AMQPFrame) -> Result<(), String> {
        match frame {
            AMQPFrame::Heartbeat => Ok(()),
            // The content of a returned message, which we have.
            AMQPFrame::Header(..) | AMQPFrame::Body(..) => Ok(()),
            AMQPFrame::Method(0, AMQPClass::Connection(method)) => self.handle_connection(method),
            AMQPFrame::Method(lane, method) => self.handle_lane(lane, method),
            AMQPFrame::ProtocolHeader(_) | AMQPFrame::InvalidHeartbeat(_) => Err(unexpected()),
        }
    }

    fn handle_connection(&mut self, method: connection::AMQPMethod) -> Result<(), String> {
        match method {
            connection::AMQPMethod::Blocked(blocked) => self.block(blocked.reason.as_str()),
            connection::AMQPMethod::Unblocked(_) => drop(self.blocked.send_replace(None)),
            connection::AMQPMethod::Close(close) => {
                return Err(format!("{} {}", close.reply_code, close.reply_text));
            }
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    fn handle_lane(&mut self, lane: u16, method: AMQPClass) -> Result<(), String> {
        let (lanes, writer, address) = (&mut self.lanes, &mut self.writer, &*self.address);
        match method {
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(_)) => lanes.opened(lane, writer),
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(_)) => lanes.ready(lane, writer),
            AMQPClass::Basic(basic::AMQPMethod::Return(back)) => {
                lanes.returned(lane, answer::returned(address, back.reply_code, back.reply_text.as_str()));
            }
            AMQPClass::Basic(basic::AMQPMethod::Ack(_)) => lanes.answered(lane, Ok(()), writer),
            AMQPClass::Basic(basic::AMQPMethod::Nack(_)) => {
                lanes.answered(lane, Err(answer::not_taken(address)), writer);
            }
            AMQPClass::Channel(channel::AMQPMethod::Close(close)) => {
                let failure = answer::refused(address, close.reply_code, close.reply_text.as_str());
                lanes.refused(lane, failure, writer);
            }
            AMQPClass::Channel(channel::AMQPMethod::CloseOk(_)) => lanes.closed(lane),
            // RabbitMQ blocks the connection instead; other brokers pause single channels.
            AMQPClass::Channel(channel::AMQPMethod::Flow(channel::Flow { active })) => {
                let answer = channel::AMQPMethod::FlowOk(channel::FlowOk { active });
                writer.method(lane, AMQPClass::Channel(answer));
                if active { drop(self.blocked.send_replace(None)) } else { self.block("flow control") }
            }
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    /// Half of the agreed time after the last frame of ours, or when the broker has been silent for twice that time.
    fn next_beat(&self) -> Instant {
        (self.writer.sent + self.heartbeat / 2).min(self.reader.heard + self.heartbeat * 2)
    }

    fn beat(&mut self) -> Result<(), String> {
        if self.reader.heard.elapsed() >= self.heartbeat * 2 {
            return Err(format!("no heartbeat for {} s", self.heartbeat.as_secs() * 2));
        }
        // Where the socket takes nothing, another one would not help.
        if self.writer.is_idle() {
            self.writer.frame(&AMQPFrame::Heartbeat);
        }
        self.writer.sent = Instant::now();
        Ok(())
    }
}

fn unexpected() -> String {
    "it sent a frame that AMQP 0-9-1 does not have here".to_owned()
}
