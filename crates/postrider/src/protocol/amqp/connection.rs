//! The connection: one future owns it, with everything that waits to be published or to be confirmed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::answer;
use super::frames::{FrameReader, FrameWriter};
use super::incoming::{BrokerFrame, ChannelFrame, unexpected};
use super::lanes::Lanes;
use super::order::{Order, Proven};
use super::publication::Publication;
use super::shared_channel::{SHARED, SharedChannel};
use super::sign_in::SignedIn;
use super::wire;
use crate::protocol::broker::BrokerAddress;
use crate::sink::Undelivered;

/// Publications wait unencoded while this much waits for the socket, so that those given up meanwhile are never sent.
const UNSENT_BYTES_MAX: usize = 64 << 10;
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
    pub(super) fn new(signed_in: SignedIn, address: Arc<BrokerAddress>) -> (AmqpClient, Self) {
        let (sender, orders) = mpsc::unbounded_channel();
        let (blocks, blocked) = watch::channel(None);
        let connection = Self {
            address,
            reader: signed_in.reader,
            writer: signed_in.writer,
            heartbeat: signed_in.heartbeat,
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

    fn handle(&mut self, frame: BrokerFrame) -> Result<(), String> {
        match frame {
            BrokerFrame::Heartbeat => {}
            BrokerFrame::Blocked { reason } => self.block(&reason),
            BrokerFrame::Unblocked => self.unblock(),
            BrokerFrame::Close(why) => return Err(why.to_string()),
            BrokerFrame::OfChannel(SHARED, frame) => return self.handle_shared(frame),
            BrokerFrame::OfChannel(lane, frame) => self.handle_lane(lane, frame),
            BrokerFrame::Start { .. } | BrokerFrame::Tune(_) | BrokerFrame::Opened => {
                return Err(unexpected());
            }
        }
        Ok(())
    }

    fn handle_shared(&mut self, frame: ChannelFrame) -> Result<(), String> {
        let (shared, writer, address) = (&mut self.shared, &mut self.writer, &*self.address);
        match frame {
            ChannelFrame::Opened => writer.select_confirms(SHARED),
            ChannelFrame::Confirming => shared.ready(),
            ChannelFrame::Return(why) => shared.returning(answer::returned(address, &why)),
            ChannelFrame::Properties { message_id } => {
                if !shared.returned(message_id.as_deref()) {
                    return Err("it returned a message that it was not given".to_owned());
                }
            }
            ChannelFrame::Ack { number, multiple } => shared.answered(number, multiple, &Ok(())),
            ChannelFrame::Nack { number, multiple } => {
                shared.answered(number, multiple, &Err(answer::not_taken(address)));
            }
            ChannelFrame::Close(_) => {
                let suspects = shared.refused(writer);
                self.waiting_alone.extend(suspects);
            }
            ChannelFrame::Closed => shared.closed(),
            ChannelFrame::Flow { active } => self.obey(SHARED, active),
            ChannelFrame::Body => {}
        }
        Ok(())
    }

    fn handle_lane(&mut self, lane: u16, frame: ChannelFrame) {
        let Self { lanes, writer, proven, .. } = self;
        let address = &*self.address;
        match frame {
            ChannelFrame::Opened => writer.select_confirms(lane),
            ChannelFrame::Confirming => lanes.ready(lane),
            ChannelFrame::Return(why) => lanes.returned(lane, answer::returned(address, &why)),
            ChannelFrame::Ack { .. } => lanes.answered(lane, Ok(()), proven),
            ChannelFrame::Nack { .. } => lanes.answered(lane, Err(answer::not_taken(address)), proven),
            ChannelFrame::Close(why) => {
                lanes.refused(lane, answer::refused(address, &why), proven, writer);
            }
            ChannelFrame::Closed => lanes.closed(lane),
            ChannelFrame::Flow { active } => self.obey(lane, active),
            ChannelFrame::Properties { .. } | ChannelFrame::Body => {}
        }
    }

    /// RabbitMQ blocks connections; other brokers pause single channels.
    fn obey(&mut self, number: u16, active: bool) {
        self.writer.method(number, wire::CHANNEL_FLOW_OK, &[active.into()]);
        match active {
            true => self.unblock(),
            false => self.block("flow control"),
        }
    }

    fn block(&self, reason: &str) {
        self.blocked.send_replace(Some(answer::blocked(&self.address, reason)));
    }

    fn unblock(&self) {
        self.blocked.send_replace(None);
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
            self.writer.heartbeat();
        }
        self.writer.sent = Instant::now();
        Ok(())
    }
}

/// Before they were sent.
fn drop_given_up(waiting: &mut VecDeque<Order>) {
    while waiting.pop_front_if(|order| order.is_given_up()).is_some() {}
}
