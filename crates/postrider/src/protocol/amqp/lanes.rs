//! Channels that carry one publication at a time: what the broker says of such a channel is about that message.

use std::collections::BTreeMap;

use super::frames::FrameWriter;
use super::order::{Answer, Order, Proven};
use super::shared_channel::SHARED;
use crate::verdict::Failure;

/// While the broker answers quickly, few lanes are enough: they are opened step by step.
const OPENING_MAX: usize = 16;
/// A channel costs the broker some memory, so no more than these are kept when they are not needed.
const IDLE_MAX: usize = 8;

pub(super) struct Lanes {
    lanes: BTreeMap<u16, Lane>,
    /// The last one is used first, so the first ones are used only when many are needed.
    free: Vec<u16>,
    /// The fewest that were free since idle lanes were last closed.
    free_min: usize,
    opening: usize,
    /// The highest number of a channel.
    number_max: u16,
}

enum Lane {
    Opening,
    Free,
    Busy(Order),
    Closing,
}

impl Lanes {
    pub(super) fn new(number_max: u16) -> Self {
        Self { lanes: BTreeMap::new(), free: Vec::new(), free_min: 0, opening: 0, number_max }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// On a free lane.
    pub(super) fn publish(&mut self, order: Order, writer: &mut FrameWriter) {
        let Some(number) = self.free.pop() else { return };
        match order.publication.write(number, writer) {
            Ok(()) => {
                self.free_min = self.free_min.min(self.free.len());
                self.lanes.insert(number, Lane::Busy(order));
            }
            Err(failure) => {
                self.free.push(number);
                order.answer(Err(failure));
            }
        }
    }

    /// So that `wanted` publications find one. Lanes whose delivery was given up are closed first: their answer
    /// may never come.
    pub(super) fn open(&mut self, wanted: usize, writer: &mut FrameWriter) {
        let wanted = wanted.min(OPENING_MAX);
        if self.opening >= wanted {
            return;
        }
        self.close_given_up(writer);
        while self.opening < wanted {
            let mut numbers = SHARED + 1..=self.number_max;
            let Some(number) = numbers.find(|number| !self.lanes.contains_key(number)) else { return };
            self.lanes.insert(number, Lane::Opening);
            self.opening += 1;
            writer.open_channel(number);
        }
    }

    fn close_given_up(&mut self, writer: &mut FrameWriter) {
        for (number, lane) in &mut self.lanes {
            if matches!(lane, Lane::Busy(order) if order.is_given_up()) {
                *lane = Lane::Closing;
                writer.close_channel(*number);
            }
        }
    }

    /// Those that no publication needed since this was last called.
    pub(super) fn close_idle(&mut self, writer: &mut FrameWriter) {
        for number in self.free.drain(..self.free_min.saturating_sub(IDLE_MAX)) {
            self.lanes.insert(number, Lane::Closing);
            writer.close_channel(number);
        }
        self.free_min = self.free.len();
    }

    /// It confirms publications from here on.
    pub(super) fn ready(&mut self, number: u16) {
        if let Some(lane @ Lane::Opening) = self.lanes.get_mut(&number) {
            *lane = Lane::Free;
            self.opening -= 1;
            self.free.push(number);
        }
    }

    pub(super) fn returned(&mut self, number: u16, failure: Failure) {
        if let Some(Lane::Busy(order)) = self.lanes.get_mut(&number) {
            order.set_returned(failure);
        }
    }

    /// What the broker said of the message on this lane.
    pub(super) fn answered(&mut self, number: u16, answer: Answer, proven: &mut Proven) {
        let Some(lane @ Lane::Busy(_)) = self.lanes.get_mut(&number) else { return };
        if let Lane::Busy(order) = std::mem::replace(lane, Lane::Free) {
            if answer.is_ok() && !order.is_returned() {
                proven.add(&order);
            }
            order.answer(answer);
        }
        self.free.push(number);
    }

    /// The broker closed it.
    pub(super) fn refused(
        &mut self,
        number: u16,
        failure: Failure,
        proven: &mut Proven,
        writer: &mut FrameWriter,
    ) {
        writer.channel_closed(number);
        match self.lanes.remove(&number) {
            Some(Lane::Busy(order)) => {
                proven.remove(&order);
                order.answer(Err(failure));
            }
            Some(Lane::Opening) => self.opening -= 1,
            Some(Lane::Free) => {
                self.free.retain(|free| *free != number);
                self.free_min = self.free_min.min(self.free.len());
            }
            // Both sides closed it at once; the broker's answer to us follows.
            Some(Lane::Closing) => drop(self.lanes.insert(number, Lane::Closing)),
            None => {}
        }
    }

    pub(super) fn closed(&mut self, number: u16) {
        if matches!(self.lanes.get(&number), Some(Lane::Closing)) {
            self.lanes.remove(&number);
        }
    }
}
