//! What every sink must do, run against each. A receiver is whatever the sink delivers to.

mod brokers;
mod file;
mod http;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use postrider::endpoint::Endpoint;
use postrider::message::Message;
use postrider::sink::{Delivery, Environment, Sink, connect};
use postrider::verdict::Class;

use super::support::*;

/// What a receiver holds of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    id: String,
    attempt: u32,
    content_type: String,
    payload: Bytes,
}

#[async_trait]
trait Receiver: Send + Sync {
    fn endpoint(&self) -> Endpoint;
    fn environment(&self) -> Environment;
    /// As an independent client sees it.
    async fn held(&self) -> Vec<Held>;
    /// Goes away: deliveries fail until it is started again.
    async fn stop(&mut self);
    /// Comes back at the same place, with or without what it held.
    async fn start(&mut self);
    /// The sink's endpoint, such that its receiver refuses for good.
    async fn refusing(&mut self) -> Endpoint;

    fn sink(&self) -> Arc<dyn Sink> {
        connect(&self.endpoint(), &self.environment()).unwrap()
    }
}

async fn an_acknowledged_message_is_at_the_receiver(receiver: &mut dyn Receiver) {
    let sink = receiver.sink();
    for number in 1..=3 {
        let sent = delivery(message(number, format!("{{\"n\":{number}}}")));
        sink.deliver(&sent).await.unwrap();
        let held = receiver.held().await.pop().unwrap();
        assert_eq!(held.id, format!("msg_{STORE}_{number}"));
        assert_eq!(held.payload, sent.message.payload);
    }
    assert_eq!(receiver.held().await.len(), 3);
}

async fn every_attempt_carries_the_same_id_and_its_own_number(receiver: &mut dyn Receiver) {
    let sink = receiver.sink();
    for attempt in 1..=3 {
        sink.deliver(&Delivery { attempt, ..delivery(message(7, "{}")) }).await.unwrap();
    }
    let held = receiver.held().await;
    assert!(held.iter().all(|held| held.id == format!("msg_{STORE}_7")), "{held:?}");
    assert_eq!(held.iter().map(|held| held.attempt).collect::<Vec<_>>(), [1, 2, 3]);
}

async fn payloads_arrive_byte_for_byte_with_their_content_type(receiver: &mut dyn Receiver) {
    let sink = receiver.sink();
    let payloads: [(&str, &[u8]); 6] = [
        ("application/json", br#"{"b":1.0,  "a":"\u00e9 \/", "b":1e3}"#),
        ("application/json", b"not json"),
        ("application/octet-stream", &[0, 255, 10, 13, 254, 0, 34]),
        ("text/plain; charset=latin1", &[0xe9, 0x0a]),
        ("application/json", b"\xff\xfe"),
        ("text/csv", b""),
    ];
    for (content_type, payload) in payloads {
        let message =
            Message { content_type: content_type.to_owned(), ..message(1, Bytes::copy_from_slice(payload)) };
        sink.deliver(&delivery(message)).await.unwrap();
        let held = receiver.held().await.pop().unwrap();
        assert_eq!((held.content_type.as_str(), &held.payload[..]), (content_type, payload));
    }
}

async fn sixty_four_at_once_all_arrive(receiver: &mut dyn Receiver) {
    let sink = receiver.sink();
    for round in 0..4 {
        let sent: Vec<_> = (0..64).map(|number| delivery(message(round * 64 + number, "{}"))).collect();
        for result in join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
            result.unwrap();
        }
    }
    let ids: BTreeSet<String> = receiver.held().await.into_iter().map(|held| held.id).collect();
    assert_eq!(ids.len(), 256);
}

async fn a_receiver_that_is_away_is_retryable_and_works_again_once_it_is_back(receiver: &mut dyn Receiver) {
    let sink = receiver.sink();
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    receiver.stop().await;
    let failure = sink.deliver(&delivery(message(2, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable, "{}", failure.error);
    assert!(!failure.error.is_empty() && !failure.error.starts_with('['), "{:?}", failure.error);
    receiver.start().await;
    for attempt in 2..=4 {
        sink.deliver(&Delivery { attempt, ..delivery(message(2, "{}")) }).await.unwrap();
    }
    assert_eq!(receiver.held().await.last().unwrap().id, format!("msg_{STORE}_2"));
}

async fn what_is_refused_for_good_is_permanent(receiver: &mut dyn Receiver) {
    let endpoint = receiver.refusing().await;
    let failure = match connect(&endpoint, &receiver.environment()) {
        Ok(sink) => sink.deliver(&delivery(message(1, "{}"))).await.failed(),
        Err(refused) => refused.failed(),
    };
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_eq!(receiver.held().await, []);
}

async fn a_cancelled_delivery_does_not_break_the_next(receiver: &mut dyn Receiver) {
    let sink = receiver.sink();
    for round in 0..20 {
        // Polled once and dropped: it may have been sent or not.
        let sent: Vec<_> = (0..8).map(|number| delivery(message(1000 + number, "{}"))).collect();
        let cancelled: Vec<_> = sent.iter().map(|sent| sink.deliver(sent).now_or_never()).collect();
        drop(cancelled);
        sink.deliver(&delivery(message(round, "{}"))).await.unwrap();
    }
    let ids: BTreeSet<String> = receiver.held().await.into_iter().map(|held| held.id).collect();
    assert!((0..20).all(|round| ids.contains(&format!("msg_{STORE}_{round}"))));
}

macro_rules! conforms {
    ($sink:ident, $receiver:ident: $($promise:ident),+ $(,)?) => {
        mod $sink {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let Some(mut receiver) = super::$receiver::new().await else { return };
                super::super::$promise(&mut receiver).await;
            })+
        }
    };
    ($($sink:ident = $receiver:ident),+) => {
        $(conforms!($sink, $receiver:
            an_acknowledged_message_is_at_the_receiver,
            every_attempt_carries_the_same_id_and_its_own_number,
            payloads_arrive_byte_for_byte_with_their_content_type,
            sixty_four_at_once_all_arrive,
            a_receiver_that_is_away_is_retryable_and_works_again_once_it_is_back,
            what_is_refused_for_good_is_permanent,
            a_cancelled_delivery_does_not_break_the_next,
        );)+
    };
}

use conforms;
