//! A publication that a delivery waits for, and what is known about publications that the broker takes.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::publication::Publication;
use crate::verdict::Failure;

pub(super) type Answer = Result<(), Failure>;

pub(super) struct Order {
    pub(super) publication: Box<Publication>,
    answer: oneshot::Sender<Answer>,
    /// The broker returns a message before it confirms it.
    returned: Option<Failure>,
    /// It was on the shared channel when the broker closed that.
    is_suspect: bool,
}

impl Order {
    pub(super) fn new(publication: Publication) -> (Self, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        (Self { publication: Box::new(publication), answer, returned: None, is_suspect: false }, answered)
    }

    /// Its delivery ran out of time.
    pub(super) fn is_given_up(&self) -> bool {
        self.answer.is_closed()
    }

    pub(super) fn is_returned(&self) -> bool {
        self.returned.is_some()
    }

    pub(super) fn set_returned(&mut self, failure: Failure) {
        self.returned = Some(failure);
    }

    pub(super) fn suspected(self) -> Self {
        Self { is_suspect: true, returned: None, ..self }
    }

    pub(super) fn answer(self, answer: Answer) {
        let _ = self.answer.send(self.returned.map_or(answer, Err));
    }
}

/// What the broker has confirmed on this connection. A publication to a missing exchange, without the right to publish, or
/// larger than the broker's limit is never covered.
#[derive(Default)]
pub(super) struct Proven {
    exchanges: HashSet<Arc<str>>,
    body_bytes: usize,
}

impl Proven {
    pub(super) fn covers(&self, order: &Order) -> bool {
        let publication = &order.publication;
        !order.is_suspect
            && publication.body_bytes() <= self.body_bytes
            && self.exchanges.contains(publication.exchange())
    }

    pub(super) fn add(&mut self, order: &Order) {
        let publication = &order.publication;
        self.body_bytes = self.body_bytes.max(publication.body_bytes());
        self.exchanges.insert(Arc::clone(publication.exchange()));
    }

    pub(super) fn remove(&mut self, order: &Order) {
        self.exchanges.remove(order.publication.exchange());
    }
}
