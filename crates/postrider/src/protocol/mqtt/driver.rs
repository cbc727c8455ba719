//! The task that owns a connection: it writes messages, numbers them, and reads the broker's answers.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::pending;
use std::io::Cursor;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::answer;
use super::config::MqttVersion;
use super::incoming::{self, AnswerStep, BrokerLimits, BrokerPacket, MqttReason};
use super::outgoing::{DISCONNECT, EncodedPublish, PINGREQ, pubrel};
use crate::net::{Stream, short};
use crate::protocol::broker::BrokerAddress;
use crate::verdict::Failure;

/// Messages are written together up to this size, and more are taken when it is written.
const BATCH_BYTES: usize = 64 << 10;
/// Room for as many answers as come at once under load.
const READ_BYTES_MIN: usize = 8 << 10;
/// A buffer that a large message made longer than this is cut.
const BUFFER_BYTES_MAX: usize = 1 << 20;
/// How often in the time of `keepalive` it is looked whether the broker said anything.
const LOOKS: u32 = 3;
/// After so many looks without a word from the broker it is sent a ping: well before the time of `keepalive` is over.
const LOOKS_UNTIL_PING: u32 = 2;
/// The broker has as long as `keepalive` to answer the ping.
const LOOKS_UNTIL_LOST: u32 = LOOKS_UNTIL_PING + LOOKS;

/// What deliveries hold of a connection.
pub(super) struct MqttClient {
    limits: BrokerLimits,
    /// As many places as the broker wants unanswered messages at most. Without one, a delivery waits outside of the
    /// driver's queue, and leaves no trace when it is given up.
    places: Arc<Semaphore>,
    orders: mpsc::UnboundedSender<PublishOrder>,
}

struct PublishOrder {
    packet: EncodedPublish,
    answered: oneshot::Sender<MqttReason>,
    place: OwnedSemaphorePermit,
}

impl MqttClient {
    /// Refuses what the broker said that it does not take. Sending it would end the connection, and hurt the others on it.
    pub(super) fn check(&self, packet: &EncodedPublish, address: &BrokerAddress) -> Result<(), Failure> {
        let (bytes, limits) = (packet.len(), &self.limits);
        let rule = if bytes > limits.packet_bytes_max {
            format!("takes packets of up to {} bytes, and this one has {bytes}", limits.packet_bytes_max)
        } else if packet.qos > limits.qos_max {
            format!("takes no QoS above {}", limits.qos_max)
        } else if packet.retain && !limits.retain_available {
            "retains no messages".to_owned()
        } else {
            return Ok(());
        };
        Err(Failure::permanent(format!("{address} {rule}")))
    }

    /// The last answer to the message; a plain success when one of QoS 0 is written. Waits for ever when the connection
    /// is lost: the link ends deliveries then, and says why.
    pub(super) async fn publish(&self, packet: EncodedPublish) -> MqttReason {
        let Ok(place) = Arc::clone(&self.places).acquire_owned().await else { return pending().await };
        let (answered, answer) = oneshot::channel();
        if self.orders.send(PublishOrder { packet, answered, place }).is_err() {
            return pending().await;
        }
        match answer.await {
            Ok(reason) => reason,
            Err(_) => pending().await,
        }
    }
}

pub(super) struct MqttDriver {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    version: MqttVersion,
    orders: mpsc::UnboundedReceiver<PublishOrder>,
    received: BytesMut,
    outgoing: Cursor<Vec<u8>>,
    writing: Writing,
    /// Messages of QoS 0 in `outgoing`.
    unconfirmed: Vec<PublishOrder>,
    unanswered: HashMap<u16, UnansweredPublish>,
    last_number: u16,
    looks: Interval,
    silent_looks: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Writing {
    Nothing,
    /// `outgoing`, or what the stream holds of it.
    UnderWay,
    /// The stream is broken, or in the middle of a packet.
    Broken,
}

/// Its place is free when the broker has answered, even if its delivery was given up.
struct UnansweredPublish {
    awaits: AnswerStep,
    answered: oneshot::Sender<MqttReason>,
    _place: OwnedSemaphorePermit,
}

/// On a connection that the broker has accepted; `received` is what it sent after that.
pub(super) fn start(
    stream: Stream,
    version: MqttVersion,
    limits: BrokerLimits,
    keepalive: Duration,
    received: BytesMut,
) -> (MqttClient, MqttDriver) {
    let (reader, writer) = tokio::io::split(stream);
    let (sender, orders) = mpsc::unbounded_channel();
    let places = Arc::new(Semaphore::new(usize::from(limits.receive_maximum)));
    let mut looks = interval_at(Instant::now() + keepalive / LOOKS, keepalive / LOOKS);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let driver = MqttDriver {
        reader,
        writer,
        version,
        orders,
        received,
        outgoing: Cursor::default(),
        writing: Writing::Nothing,
        unconfirmed: Vec::new(),
        unanswered: HashMap::new(),
        last_number: 0,
        looks,
        silent_looks: 0,
    };
    (MqttClient { limits, places, orders: sender }, driver)
}

impl MqttDriver {
    /// Until the connection is lost. Returns what the broker did, as the rest of a sentence about it.
    pub(super) async fn run(mut self) -> String {
        let mut went_on = self.read_answers();
        loop {
            if let Err(why) = went_on {
                self.writing = Writing::Broken;
                return why;
            }
            self.received.reserve(READ_BYTES_MIN);
            went_on = tokio::select! {
                read = self.reader.read_buf(&mut self.received) => match read {
                    Ok(0) => Err("closed the connection".to_owned()),
                    Ok(_) => self.read_answers(),
                    Err(error) => Err(broken(&error)),
                },
                wrote = write_on(&mut self.writer, &mut self.outgoing), if self.writing == Writing::UnderWay => {
                    wrote.map(|progress| self.wrote(progress)).map_err(|error| broken(&error))
                }
                Some(order) = self.orders.recv(), if self.writing == Writing::Nothing => {
                    self.take_batch(order);
                    Ok(())
                }
                _ = self.looks.tick() => self.look(),
            };
        }
    }

    fn take_batch(&mut self, first: PublishOrder) {
        let mut next = Some(first);
        while let Some(order) = next {
            self.take(order);
            next = match self.outgoing.remaining() < BATCH_BYTES {
                true => self.orders.try_recv().ok(),
                false => None,
            };
        }
    }

    /// A delivery that was given up meanwhile is not written.
    fn take(&mut self, order: PublishOrder) {
        if order.answered.is_closed() {
            return;
        }
        let awaits = match order.packet.qos {
            0 => {
                self.write(order.packet.unnumbered());
                self.unconfirmed.push(order);
                return;
            }
            1 => AnswerStep::Acknowledged,
            _ => AnswerStep::Received,
        };
        let PublishOrder { mut packet, answered, place } = order;
        // There are fewer places than numbers, or as many.
        let number = loop {
            self.last_number = self.last_number.checked_add(1).unwrap_or(1);
            if let Entry::Vacant(free) = self.unanswered.entry(self.last_number) {
                free.insert(UnansweredPublish { awaits, answered, _place: place });
                break self.last_number;
            }
        };
        self.write(packet.numbered(number));
    }

    fn write(&mut self, bytes: &[u8]) {
        self.outgoing.get_mut().extend_from_slice(bytes);
        self.writing = Writing::UnderWay;
    }

    fn wrote(&mut self, progress: WriteProgress) {
        if progress == WriteProgress::Partly || self.outgoing.has_remaining() {
            return;
        }
        self.writing = Writing::Nothing;
        self.outgoing.set_position(0);
        self.outgoing.get_mut().clear();
        self.outgoing.get_mut().shrink_to(BUFFER_BYTES_MAX);
        for order in self.unconfirmed.drain(..) {
            let _ = order.answered.send(MqttReason::default());
        }
    }

    fn read_answers(&mut self) -> Result<(), String> {
        self.silent_looks = 0;
        while let Some(packet) = incoming::take(&mut self.received, self.version)? {
            match packet {
                BrokerPacket::Answer { step, number, reason } => self.answered(step, number, reason)?,
                BrokerPacket::Pong => {}
                BrokerPacket::Disconnect(reason) => {
                    return Err(format!("closed the connection: {}", answer::words(&reason)));
                }
                BrokerPacket::Connected(_) | BrokerPacket::Refused(_) => {
                    return Err("accepted the connection twice".to_owned());
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self, step: AnswerStep, number: u16, reason: MqttReason) -> Result<(), String> {
        let Entry::Occupied(mut publish) = self.unanswered.entry(number) else {
            return Err(format!("answered message {number}, which is not on its way"));
        };
        if publish.get().awaits != step {
            return Err(format!("answered message {number} in a wrong order"));
        }
        if step == AnswerStep::Received && reason.code < 0x80 {
            publish.get_mut().awaits = AnswerStep::Completed;
            self.write(&pubrel(number));
            return Ok(());
        }
        let _ = publish.remove().answered.send(reason);
        Ok(())
    }

    fn look(&mut self) -> Result<(), String> {
        self.silent_looks += 1;
        match self.silent_looks {
            LOOKS_UNTIL_PING => self.write(&PINGREQ),
            LOOKS_UNTIL_LOST.. => return Err("did not answer a ping in time".to_owned()),
            _ => {}
        }
        Ok(())
    }
}

fn broken(error: &std::io::Error) -> String {
    format!("cannot be reached any more: {}", short(error))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteProgress {
    Partly,
    Flushed,
}

/// May be dropped at any time, and called again.
async fn write_on(
    writer: &mut WriteHalf<Stream>,
    outgoing: &mut Cursor<Vec<u8>>,
) -> std::io::Result<WriteProgress> {
    if !outgoing.has_remaining() {
        writer.flush().await?;
        return Ok(WriteProgress::Flushed);
    }
    match writer.write_buf(outgoing).await? {
        0 => Err(std::io::ErrorKind::WriteZero.into()),
        _ => Ok(WriteProgress::Partly),
    }
}

/// When this node has no more use for the connection, it says goodbye, so that the broker does not publish the will.
impl Drop for MqttDriver {
    fn drop(&mut self) {
        if self.writing == Writing::Nothing {
            let goodbye = async {
                self.writer.write_all(&DISCONNECT).await?;
                self.writer.shutdown().await
            };
            // There is room for two bytes. If not, the broker is not reading anyway.
            let _ = goodbye.now_or_never();
        }
    }
}
