//! The channel that most publications share, because the broker works least then. It takes those that are proven. If the
//! broker closes it all the same, it does not say whose fault that was: each of them is published again on a lane of its own.

use std::collections::BTreeMap;

use super::frames::FrameWriter;
use super::order::{Answer, Order};
use crate::verdict::Failure;

/// Lanes have the numbers above.
pub(super) const SHARED: u16 = 1;
/// So many deliveries that were given up, unconfirmed, cost a new channel: the broker may never confirm them.
const GIVEN_UP_MAX: usize = 256;

pub(super) struct SharedChannel {
    state: ChannelState,
    /// By the number that the broker confirms.
    in_flight: BTreeMap<u64, Order>,
    last: u64,
    /// Of a returned message whose properties have not arrived yet.
    returning: Option<Failure>,
    /// How many are in flight when those given up are counted next.
    count_at: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ChannelState {
    Closed,
    Opening,
    Open,
    Closing,
}

impl SharedChannel {
    pub(super) fn new() -> Self {
        Self {
            state: ChannelState::Closed,
            in_flight: BTreeMap::new(),
            last: 0,
            returning: None,
            count_at: GIVEN_UP_MAX,
        }
    }

    /// Opens it where it is closed.
    pub(super) fn is_open(&mut self, writer: &mut FrameWriter) -> bool {
        if self.state == ChannelState::Closed {
            self.state = ChannelState::Opening;
            (self.last, self.returning) = (0, None);
            writer.open_channel(SHARED);
        }
        self.state == ChannelState::Open
    }

    pub(super) fn ready(&mut self) {
        self.state = ChannelState::Open;
    }

    pub(super) fn publish(&mut self, order: Order, writer: &mut FrameWriter) {
        match order.publication.write(SHARED, writer) {
            Ok(()) => {
                self.last += 1;
                self.in_flight.insert(self.last, order);
            }
            Err(failure) => order.answer(Err(failure)),
        }
    }

    pub(super) fn returning(&mut self, failure: Failure) {
        self.returning = Some(failure);
    }

    /// Messages are returned in the order in which they were published. False if there is none of this id.
    pub(super) fn returned(&mut self, id: Option<&str>) -> bool {
        let Some(failure) = self.returning.take() else { return false };
        let mut orders = self.in_flight.values_mut();
        let is_it = |order: &&mut Order| Some(order.publication.id()) == id && !order.is_returned();
        orders.find(is_it).map(|order| order.set_returned(failure)).is_some()
    }

    /// The one of this number, or all up to it.
    pub(super) fn answered(&mut self, number: u64, multiple: bool, answer: &Answer) {
        if !multiple {
            if let Some(order) = self.in_flight.remove(&number) {
                order.answer(answer.clone());
            }
            return;
        }
        let later = self.in_flight.split_off(&number.saturating_add(1));
        for order in std::mem::replace(&mut self.in_flight, later).into_values() {
            order.answer(answer.clone());
        }
    }

    /// The broker closed it. What was on it has to be published again.
    pub(super) fn refused(&mut self, writer: &mut FrameWriter) -> Vec<Order> {
        writer.channel_closed(SHARED);
        // If both sides closed it at once, the broker's answer to us follows.
        if self.state != ChannelState::Closing {
            self.state = ChannelState::Closed;
        }
        self.suspects()
    }

    pub(super) fn closed(&mut self) {
        self.state = ChannelState::Closed;
    }

    /// Closes it if too many deliveries were given up. What else was on it has to be published again.
    pub(super) fn forget_given_up(&mut self, writer: &mut FrameWriter) -> Vec<Order> {
        if self.state != ChannelState::Open || self.in_flight.len() < self.count_at {
            return Vec::new();
        }
        let given_up = self.in_flight.values().filter(|order| order.is_given_up()).count();
        self.count_at = 2 * (self.in_flight.len() - given_up) + GIVEN_UP_MAX;
        if given_up < GIVEN_UP_MAX {
            return Vec::new();
        }
        self.state = ChannelState::Closing;
        writer.close_channel(SHARED);
        self.suspects()
    }

    fn suspects(&mut self) -> Vec<Order> {
        let orders = std::mem::take(&mut self.in_flight).into_values();
        orders.filter(|order| !order.is_given_up()).map(Order::suspected).collect()
    }
}
