//! Who waits for which answer on one connection. Pure: bytes come in, bytes go out.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use super::answer::NatsAnswer;
use super::wire::{self, NatsOperation, NatsReply, PING, PONG};

/// The reply of a server that knows no receiver of a subject.
const NO_RESPONDERS: u16 = 503;
/// While more bytes wait to be written, no further message is taken: it can still be given up.
const OUTGOING_BYTES_MAX: usize = 256 << 10;
/// Acknowledgements that nobody waits for any more are swept out when there are this many, or twice as many as were left.
const SWEPT_AT_MIN: usize = 1024;

/// A message to be published, and who wants to know what became of it.
pub(super) struct NatsOrder {
    pub(super) message: NatsMessage,
    pub(super) answer: oneshot::Sender<NatsAnswer>,
}

pub(super) struct NatsMessage {
    pub(super) subject: String,
    /// As [`wire::headers`] begins them.
    pub(super) headers: Vec<u8>,
    pub(super) payload: Bytes,
    /// Is a stream to acknowledge it?
    pub(super) jetstream: bool,
}

pub(super) struct NatsExchange {
    /// Acknowledgements come to subjects that begin so, and end with the number of the message.
    inbox: String,
    /// False if the user may not subscribe to the inbox.
    hears_streams: bool,
    message_bytes_max: usize,
    /// Read, and not yet understood.
    pub(super) incoming: BytesMut,
    /// Not yet written.
    pub(super) outgoing: BytesMut,
    last: u64,
    to_be_acknowledged: BTreeMap<u64, NatsWaiter>,
    swept_at: usize,
    /// Messages without JetStream.
    to_be_read: BTreeMap<u64, NatsWaiter>,
    /// For each PING the last message before it.
    pings: VecDeque<u64>,
}

struct NatsWaiter {
    subject: String,
    answer: oneshot::Sender<NatsAnswer>,
}

impl NatsExchange {
    pub(super) fn new(
        inbox: String,
        hears_streams: bool,
        message_bytes_max: usize,
        incoming: BytesMut,
    ) -> Self {
        Self {
            inbox,
            hears_streams,
            message_bytes_max,
            incoming,
            outgoing: BytesMut::new(),
            last: 0,
            to_be_acknowledged: BTreeMap::new(),
            swept_at: SWEPT_AT_MIN,
            to_be_read: BTreeMap::new(),
            pings: VecDeque::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.outgoing.len() < OUTGOING_BYTES_MAX
    }

    /// As many as there is room for. One PING for all that have no other answer: the server answers it when it has read
    /// all before it.
    pub(super) fn send(&mut self, mut orders: impl Iterator<Item = NatsOrder>) {
        let unanswered_before = self.to_be_read.len();
        while self.has_room()
            && let Some(order) = orders.next()
        {
            self.send_one(order);
        }
        if self.to_be_read.len() > unanswered_before {
            self.outgoing.extend_from_slice(PING);
            self.pings.push_back(self.last);
        }
    }

    fn send_one(&mut self, NatsOrder { message, answer }: NatsOrder) {
        // A delivery that was given up must not be sent afterwards.
        if answer.is_closed() {
            return;
        }
        let NatsMessage { subject, headers, payload, jetstream } = message;
        let bytes = wire::message_bytes(&headers, &payload);
        // The server would close the connection.
        if bytes > self.message_bytes_max {
            let _ = answer.send(NatsAnswer::TooLarge { bytes, bytes_max: self.message_bytes_max });
            return;
        }
        if jetstream && !self.hears_streams {
            let _ = answer.send(NatsAnswer::Deaf);
            return;
        }
        self.last += 1;
        let reply_to = if jetstream { format!("{}{}", self.inbox, self.last) } else { String::new() };
        wire::push_message(&mut self.outgoing, &subject, &reply_to, &headers, &payload);
        let waiter = NatsWaiter { subject, answer };
        if jetstream {
            self.sweep();
            self.to_be_acknowledged.insert(self.last, waiter);
        } else {
            self.to_be_read.insert(self.last, waiter);
        }
    }

    /// Handles what was read. An error ends the connection.
    pub(super) fn hear(&mut self) -> Result<(), String> {
        while let Some(operation) = wire::take(&mut self.incoming)? {
            match operation {
                NatsOperation::Info(info) => self.message_bytes_max = info.max_payload,
                NatsOperation::Ping => self.outgoing.extend_from_slice(PONG),
                NatsOperation::Pong => self.has_read(),
                NatsOperation::Okay => {}
                NatsOperation::Message(reply) => self.acknowledge(reply),
                NatsOperation::Error(error) => self.refuse(&error)?,
            }
        }
        Ok(())
    }

    fn has_read(&mut self) {
        let Some(last) = self.pings.pop_front() else { return };
        let later = self.to_be_read.split_off(&(last + 1));
        for waiter in std::mem::replace(&mut self.to_be_read, later).into_values() {
            let _ = waiter.answer.send(NatsAnswer::Read);
        }
    }

    fn acknowledge(&mut self, reply: NatsReply) {
        let number = reply.subject.strip_prefix(&self.inbox).and_then(|number| number.parse().ok());
        let waiter = number.and_then(|number: u64| self.to_be_acknowledged.remove(&number));
        if let Some(waiter) = waiter {
            let _ = waiter.answer.send(match reply.status {
                Some(NO_RESPONDERS) => NatsAnswer::NoStream,
                Some(_) | None => NatsAnswer::Stream(reply.payload),
            });
        }
    }

    /// The server names the subject only. It answers in order, so the oldest message to that subject is meant that still
    /// waits.
    fn refuse(&mut self, error: &str) -> Result<(), String> {
        if !is_denial(error) {
            return Err(format!("the server said: {error}"));
        }
        let subject = error.split('"').nth(1).unwrap_or_default();
        let is_meant = |waiter: &NatsWaiter| waiter.subject == subject && !waiter.answer.is_closed();
        let all = [&mut self.to_be_acknowledged, &mut self.to_be_read];
        let oldest = all.into_iter().filter_map(|waiters| {
            let number = *waiters.iter().find(|(_, waiter)| is_meant(waiter))?.0;
            Some((number, waiters))
        });
        let waiter = oldest.min_by_key(|(number, _)| *number).and_then(|(number, of)| of.remove(&number));
        if let Some(waiter) = waiter {
            let _ = waiter.answer.send(NatsAnswer::Denied(error.to_owned()));
        }
        Ok(())
    }

    fn sweep(&mut self) {
        if self.to_be_acknowledged.len() >= self.swept_at {
            self.to_be_acknowledged.retain(|_, waiter| !waiter.answer.is_closed());
            self.swept_at = (2 * self.to_be_acknowledged.len()).max(SWEPT_AT_MIN);
        }
    }
}

/// After every other error the server closes the connection. NATS has no codes for them.
pub(super) fn is_denial(error: &str) -> bool {
    error.starts_with("Permissions Violation")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange() -> NatsExchange {
        NatsExchange::new("_INBOX.x.".to_owned(), true, 1000, BytesMut::new())
    }

    fn order(subject: &str, jetstream: bool) -> (NatsOrder, oneshot::Receiver<NatsAnswer>) {
        let (answer, answered) = oneshot::channel();
        let (headers, payload) = (wire::headers(), Bytes::from_static(b"{}"));
        let message = NatsMessage { subject: subject.to_owned(), headers, payload, jetstream };
        (NatsOrder { message, answer }, answered)
    }

    fn sent(exchange: &mut NatsExchange) -> String {
        String::from_utf8(exchange.outgoing.split().to_vec()).unwrap()
    }

    fn hear(exchange: &mut NatsExchange, text: &str) -> Result<(), String> {
        exchange.incoming.extend_from_slice(text.as_bytes());
        exchange.hear()
    }

    #[test]
    fn a_delivery_that_was_given_up_is_not_sent() {
        let mut exchange = exchange();
        let (first, answered) = order("a", true);
        drop(answered);
        let (second, _answered) = order("b", true);
        exchange.send([first, second].into_iter());
        let sent = sent(&mut exchange);
        assert!(sent.starts_with("HPUB b _INBOX.x.1 "), "{sent}");
    }

    #[test]
    fn each_acknowledgement_finds_its_message() {
        let mut exchange = exchange();
        let (orders, mut answers): (Vec<_>, Vec<_>) =
            ["a", "a", "b"].map(|s| order(s, true)).into_iter().unzip();
        exchange.send(orders.into_iter());
        hear(
            &mut exchange,
            "MSG _INBOX.x.3 1 1\r\n3\r\nMSG _INBOX.x.9 1 1\r\n9\r\nMSG _INBOX.x.1 1 1\r\n1\r\n",
        )
        .unwrap();
        assert!(matches!(answers[0].try_recv(), Ok(NatsAnswer::Stream(payload)) if payload == "1"));
        assert!(answers[1].try_recv().is_err());
        assert!(matches!(answers[2].try_recv(), Ok(NatsAnswer::Stream(payload)) if payload == "3"));
        hear(&mut exchange, "HMSG _INBOX.x.2 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n").unwrap();
        assert!(matches!(answers[1].try_recv(), Ok(NatsAnswer::NoStream)));
    }

    #[test]
    fn without_jetstream_the_answer_to_a_ping_counts_for_all_before_it() {
        let mut exchange = exchange();
        let (orders, mut answers): (Vec<_>, Vec<_>) =
            ["a", "denied", "c"].map(|s| order(s, false)).into_iter().unzip();
        exchange.send(orders.into_iter());
        let (late, mut late_answer) = order("a", false);
        exchange.send([late].into_iter());
        assert_eq!(sent(&mut exchange).matches("PING\r\n").count(), 2);
        hear(&mut exchange, "-ERR 'Permissions Violation for Publish to \"denied\"'\r\nPONG\r\n").unwrap();
        assert!(matches!(answers[0].try_recv(), Ok(NatsAnswer::Read)));
        assert!(matches!(answers[1].try_recv(), Ok(NatsAnswer::Denied(_))));
        assert!(matches!(answers[2].try_recv(), Ok(NatsAnswer::Read)));
        assert!(late_answer.try_recv().is_err());
        hear(&mut exchange, "PONG\r\n").unwrap();
        assert!(matches!(late_answer.try_recv(), Ok(NatsAnswer::Read)));
    }

    #[test]
    fn a_denial_is_for_the_oldest_message_to_the_subject() {
        let mut exchange = exchange();
        let (orders, mut answers): (Vec<_>, Vec<_>) =
            ["a", "b", "b"].map(|s| order(s, true)).into_iter().unzip();
        exchange.send(orders.into_iter());
        hear(&mut exchange, "-ERR 'Permissions Violation for Publish to \"b\"'\r\n").unwrap();
        assert!(answers[0].try_recv().is_err());
        assert!(matches!(answers[1].try_recv(), Ok(NatsAnswer::Denied(_))));
        assert!(answers[2].try_recv().is_err());
        assert!(hear(&mut exchange, "-ERR 'Stale Connection'\r\n").is_err());
    }

    const DENIAL: &str = "-ERR 'Permissions Violation for Publish to \"a\"'\r\n";

    #[test]
    fn denials_come_in_the_order_of_messages_with_and_without_jetstream() {
        for kinds in 0..8 {
            let kinds = [0, 1, 2].map(|bit| kinds >> bit & 1 == 1);
            let mut exchange = exchange();
            let (orders, answers): (Vec<_>, Vec<_>) = kinds.map(|kind| order("a", kind)).into_iter().unzip();
            orders.into_iter().for_each(|order| exchange.send([order].into_iter()));
            for jetstream in kinds {
                hear(&mut exchange, DENIAL).unwrap();
                if !jetstream {
                    hear(&mut exchange, "PONG\r\n").unwrap();
                }
            }
            for mut answer in answers {
                let answer = answer.try_recv();
                assert!(matches!(answer, Ok(NatsAnswer::Denied(_))), "{kinds:?}: {answer:?}");
            }
        }
    }

    #[test]
    fn a_denial_passes_over_messages_that_were_given_up() {
        for kinds in [[true, true], [true, false], [false, true], [false, false]] {
            let mut exchange = exchange();
            let [(gone, given_up), (live, mut answer)] = kinds.map(|jetstream| order("a", jetstream));
            exchange.send([gone, live].into_iter());
            drop(given_up);
            hear(&mut exchange, DENIAL).unwrap();
            assert!(matches!(answer.try_recv(), Ok(NatsAnswer::Denied(_))), "{kinds:?}");
        }
    }

    #[test]
    fn no_message_is_taken_while_enough_bytes_wait_to_be_written() {
        let mut exchange = exchange();
        exchange.message_bytes_max = 1 << 20;
        let (orders, _answers): (Vec<_>, Vec<_>) = (0..64)
            .map(|_| {
                let (mut order, answer) = order("a", true);
                order.message.payload = vec![0; 100 << 10].into();
                (order, answer)
            })
            .unzip();
        let mut orders = orders.into_iter();
        exchange.send(&mut orders);
        assert_eq!(orders.len(), 61, "{} bytes wait", exchange.outgoing.len());
        exchange.send(&mut orders);
        assert_eq!(orders.len(), 61);
        exchange.outgoing.clear();
        exchange.send(&mut orders);
        assert_eq!(orders.len(), 58);
    }

    #[test]
    fn a_message_above_the_limit_is_not_sent() {
        let mut exchange = exchange();
        hear(&mut exchange, "INFO {\"max_payload\":5}\r\nPING\r\n").unwrap();
        let (order, mut answered) = order("a", true);
        exchange.send([order].into_iter());
        assert!(matches!(answered.try_recv(), Ok(NatsAnswer::TooLarge { bytes: 14, bytes_max: 5 })));
        assert_eq!(sent(&mut exchange), "PONG\r\n");
    }

    #[test]
    fn waiters_that_are_gone_are_swept_out() {
        let mut exchange = exchange();
        for _ in 0..10 * SWEPT_AT_MIN {
            let (order, _gone) = order("a", true);
            exchange.send([order].into_iter());
        }
        assert!(exchange.to_be_acknowledged.len() <= SWEPT_AT_MIN);
    }
}
