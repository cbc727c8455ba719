//! The connection: one future owns it, with everything that waits to be published or to be confirmed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, basic, channel, confirm, connection};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::answer;
use super::frames::{FrameReader, FrameWriter};
use super::lanes::Lanes;
use super::order::{Order, Proven};
use super::publication::Publication;
use super::shared_channel::{SHARED, SharedChannel};
use super::sign_in::SignedIn;
use crate::protocol::broker::BrokerAddress;
use crate::sink::Undelivered;

/// Publications wait unencoded while this much waits for the socket, so that those given up meanwhile are never sent.
const UNSENT_BYTES_MAX: usize = 64 << 10;
/// After a restart a broker may take connections before it has found all its queues. How long that lasts was not measured.
const SETTLING: Duration = Duration::from_secs(10);
/// How many are taken over at a time.
const TAKEN_AT_ONCE: usize = 256;

/// What deliveries have of the connection.
pub(super) struct AmqpClient {
    orders: mpsc::UnboundedSender<Order>,
    blocked: watch::Receiver<Option<String>>,
}

pub(super) struct AmqpConnection {
    address: Arc<BrokerAddress>,
    reader: FrameReader,
    writer: FrameWriter,
    heartbeat: Duration,
    /// Until then the broker may not have found all its queues again.
    settling_until: Option<Instant>,
    /// No more than a node has attempts in flight.
    orders: mpsc::UnboundedReceiver<Order>,
    proven: Proven,
    /// For the shared channel.
    waiting: VecDeque<Order>,
    shared: SharedChannel,
    /// For lanes, because they are not proven.
    waiting_alone: VecDeque<Order>,
    lanes: Lanes,
    blocked: watch::Sender<Option<String>>,
}

impl AmqpClient {
    /// Until the broker confirmed or refused it.
    pub(super) async fn publish(&self, publication: Publication) -> Result<(), Undelivered> {
        let (order, answered) = Order::new(publication);
        let _ = self.orders.send(order);
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
    /// A broker that was connected before may have been restarted.
    pub(super) fn new(
        signed_in: SignedIn,
        address: Arc<BrokerAddress>,
        was_connected: bool,
    ) -> (AmqpClient, Self) {
        let (sender, orders) = mpsc::unbounded_channel();
        let (blocks, blocked) = watch::channel(None);
        let connection = Self {
            address,
            reader: signed_in.reader,
            writer: signed_in.writer,
            heartbeat: signed_in.heartbeat,
            settling_until: was_connected.then(|| Instant::now() + SETTLING),
            orders,
            proven: Proven::default(),
            waiting: VecDeque::new(),
            shared: SharedChannel::new(),
            waiting_alone: VecDeque::new(),
            lanes: Lanes::new(signed_in.channels_max),
            blocked: blocks,
        };
        (AmqpClient { orders: sender, blocked }, connection)
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
                _ => self.take_over(taken),
            },
            () = tokio::time::sleep_until(next_beat) => self.beat()?,
        }
        Ok(())
    }

    fn take_over(&mut self, orders: Vec<Order>) {
        for order in orders {
            match self.proven.covers(&order) {
                true => self.waiting.push_back(order),
                false => self.waiting_alone.push_back(order),
            }
        }
    }

    fn publish_waiting(&mut self) {
        let suspects = self.shared.forget_given_up(&mut self.writer);
        self.waiting_alone.extend(suspects);
        while let Some(order) = self.next_alone() {
            match self.proven.covers(&order) {
                // One before it proved it.
                true => self.waiting.push_back(order),
                false => self.lanes.publish(order, &mut self.writer),
            }
        }
        while let Some(order) = self.next_shared() {
            self.shared.publish(order, &mut self.writer);
        }
    }

    fn next_alone(&mut self) -> Option<Order> {
        drop_given_up(&mut self.waiting_alone);
        if self.waiting_alone.is_empty() || !self.may_publish() {
            return None;
        }
        if !self.lanes.has_free() {
            self.lanes.open(self.waiting_alone.len(), &mut self.writer);
            return None;
        }
        self.waiting_alone.pop_front()
    }

    fn next_shared(&mut self) -> Option<Order> {
        drop_given_up(&mut self.waiting);
        if self.waiting.is_empty() || !self.may_publish() || !self.shared.is_open(&mut self.writer) {
            return None;
        }
        self.waiting.pop_front()
    }

    fn may_publish(&self) -> bool {
        self.blocked.borrow().is_none() && self.writer.unsent() < UNSENT_BYTES_MAX
    }

    fn block(&self, reason: &str) {
        self.blocked.send_replace(Some(answer::blocked(&self.address, reason)));
    }

    fn handle(&mut self, frame: AMQPFrame) -> Result<(), String> {
        match frame {
            AMQPFrame::Heartbeat => Ok(()),
            AMQPFrame::Method(0, AMQPClass::Connection(method)) => self.handle_connection(method),
            AMQPFrame::Method(SHARED, method) => self.handle_shared(method),
            AMQPFrame::Method(lane, method) => self.handle_lane(lane, method),
            // Of a returned message.
            AMQPFrame::Header(SHARED, header) => {
                let id = header.properties.message_id().as_ref().map(|id| id.as_str());
                match self.shared.returned(id) {
                    true => Ok(()),
                    false => Err("it returned a message that it was not given".to_owned()),
                }
            }
            AMQPFrame::Header(..) | AMQPFrame::Body(..) => Ok(()),
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

    fn handle_shared(&mut self, method: AMQPClass) -> Result<(), String> {
        let is_settling = self.settling_until.is_some_and(|until| Instant::now() < until);
        let (shared, writer, address) = (&mut self.shared, &mut self.writer, &*self.address);
        match method {
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(_)) => shared.opened(writer),
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(_)) => shared.ready(),
            AMQPClass::Basic(basic::AMQPMethod::Return(back)) => {
                shared.returning(answer::returned(
                    address,
                    back.reply_code,
                    back.reply_text.as_str(),
                    is_settling,
                ));
            }
            AMQPClass::Basic(basic::AMQPMethod::Ack(ack)) => {
                shared.answered(ack.delivery_tag, ack.multiple, &Ok(()));
            }
            AMQPClass::Basic(basic::AMQPMethod::Nack(nack)) => {
                shared.answered(nack.delivery_tag, nack.multiple, &Err(answer::not_taken(address)));
            }
            AMQPClass::Channel(channel::AMQPMethod::Close(_)) => {
                let suspects = shared.refused(writer);
                self.waiting_alone.extend(suspects);
            }
            AMQPClass::Channel(channel::AMQPMethod::CloseOk(_)) => shared.closed(),
            AMQPClass::Channel(channel::AMQPMethod::Flow(flow)) => self.obey(SHARED, flow.active),
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    fn handle_lane(&mut self, lane: u16, method: AMQPClass) -> Result<(), String> {
        let is_settling = self.settling_until.is_some_and(|until| Instant::now() < until);
        let Self { lanes, writer, proven, .. } = self;
        let address = &*self.address;
        match method {
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(_)) => lanes.opened(lane, writer),
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(_)) => lanes.ready(lane),
            AMQPClass::Basic(basic::AMQPMethod::Return(back)) => {
                lanes.returned(
                    lane,
                    answer::returned(address, back.reply_code, back.reply_text.as_str(), is_settling),
                );
            }
            AMQPClass::Basic(basic::AMQPMethod::Ack(_)) => lanes.answered(lane, Ok(()), proven),
            AMQPClass::Basic(basic::AMQPMethod::Nack(_)) => {
                lanes.answered(lane, Err(answer::not_taken(address)), proven);
            }
            AMQPClass::Channel(channel::AMQPMethod::Close(close)) => {
                let failure = answer::refused(address, close.reply_code, close.reply_text.as_str());
                lanes.refused(lane, failure, proven, writer);
            }
            AMQPClass::Channel(channel::AMQPMethod::CloseOk(_)) => lanes.closed(lane),
            AMQPClass::Channel(channel::AMQPMethod::Flow(flow)) => self.obey(lane, flow.active),
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    /// RabbitMQ blocks connections; other brokers pause single channels.
    fn obey(&mut self, number: u16, active: bool) {
        let answer = channel::AMQPMethod::FlowOk(channel::FlowOk { active });
        self.writer.method(number, AMQPClass::Channel(answer));
        match active {
            true => drop(self.blocked.send_replace(None)),
            false => self.block("flow control"),
        }
    }

    /// Half of the agreed time after the last frame of ours, or when the broker has been silent for twice that time.
    fn next_beat(&self) -> Instant {
        (self.writer.sent + self.heartbeat / 2).min(self.reader.heard + self.heartbeat * 2)
    }

    fn beat(&mut self) -> Result<(), String> {
        if self.reader.heard.elapsed() >= self.heartbeat * 2 {
            return Err(format!("no heartbeat for {} s", self.heartbeat.as_secs() * 2));
        }
        self.lanes.close_idle(&mut self.writer);
        // Where the socket takes nothing, another one would not help.
        if self.writer.is_idle() {
            self.writer.frame(&AMQPFrame::Heartbeat);
        }
        self.writer.sent = Instant::now();
        Ok(())
    }
}

/// Before they were sent.
fn drop_given_up(waiting: &mut VecDeque<Order>) {
    while waiting.pop_front_if(|order| order.is_given_up()).is_some() {}
}

fn unexpected() -> String {
    "it sent a frame that AMQP 0-9-1 does not have here".to_owned()
}
