//! The channels of a connection, as lanes with room for one publication each.

use std::collections::BTreeMap;

use amq_protocol::protocol::{AMQPClass, channel, confirm};
use tokio::sync::oneshot;

use super::frames::FrameWriter;
use crate::verdict::Failure;

/// While the broker answers quickly, few lanes are enough: they are opened step by step.
const OPENING_MAX: usize = 16;
/// A channel costs the broker some memory, so no more than these are kept for later.
const FREE_MAX: usize = 64;

pub(super) type Answer = Result<(), Failure>;

pub(super) struct Lanes {
    lanes: BTreeMap<u16, Lane>,
    free: Vec<u16>,
    opening: usize,
    /// As the broker allows.
    max: u16,
}

enum Lane {
    Opening,
    Free,
    /// The broker returns a message before it confirms it.
    Busy {
        answer: oneshot::Sender<Answer>,
        returned: Option<Failure>,
    },
    Closing,
}

impl Lanes {
    pub(super) fn new(max: u16) -> Self {
        Self { lanes: BTreeMap::new(), free: Vec::new(), opening: 0, max }
    }

    pub(super) fn free(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// The lane that `free` gave.
    pub(super) fn occupy(&mut self, number: u16, answer: oneshot::Sender<Answer>) {
        self.lanes.insert(number, Lane::Busy { answer, returned: None });
    }

    /// The lane that `free` gave was not needed.
    pub(super) fn give_back(&mut self, number: u16) {
        self.free.push(number);
    }

    /// So that `wanted` publications find one. Lanes whose delivery was given up are closed first: their answer
    /// may never come.
    pub(super) fn open(&mut self, wanted: usize, writer: &mut FrameWriter) {
        let wanted = wanted.min(OPENING_MAX);
        if self.opening >= wanted {
            return;
        }
        self.close_abandoned(writer);
        while self.opening < wanted {
            let Some(number) = (1..=self.max).find(|number| !self.lanes.contains_key(number)) else { return };
            self.lanes.insert(number, Lane::Opening);
            self.opening += 1;
            writer.method(number, AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {})));
        }
    }

    fn close_abandoned(&mut self, writer: &mut FrameWriter) {
        for (number, lane) in &mut self.lanes {
            if matches!(lane, Lane::Busy { answer, .. } if answer.is_closed()) {
                *lane = Lane::Closing;
                writer.method(*number, close());
            }
        }
    }

    pub(super) fn opened(&mut self, number: u16, writer: &mut FrameWriter) {
        let select = confirm::Select { nowait: false };
        writer.method(number, AMQPClass::Confirm(confirm::AMQPMethod::Select(select)));
    }

    /// It confirms publications from here on.
    pub(super) fn ready(&mut self, number: u16, writer: &mut FrameWriter) {
        if matches!(self.lanes.get(&number), Some(Lane::Opening)) {
            self.opening -= 1;
            self.set_free(number, writer);
        }
    }

    pub(super) fn returned(&mut self, number: u16, failure: Failure) {
        if let Some(Lane::Busy { returned, .. }) = self.lanes.get_mut(&number) {
            *returned = Some(failure);
        }
    }

    /// `confirmed` is what the broker said of the message on this lane.
    pub(super) fn answered(&mut self, number: u16, confirmed: Answer, writer: &mut FrameWriter) {
        match self.lanes.get_mut(&number) {
            Some(lane @ Lane::Busy { .. }) => {
                if let Lane::Busy { answer, returned } = std::mem::replace(lane, Lane::Free) {
                    let _ = answer.send(returned.map_or(confirmed, Err));
                }
                self.set_free(number, writer);
            }
            Some(Lane::Opening | Lane::Free | Lane::Closing) | None => {}
        }
    }

    /// The broker closed it.
    pub(super) fn refused(&mut self, number: u16, failure: Failure, writer: &mut FrameWriter) {
        writer.method(number, AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {})));
        match self.lanes.remove(&number) {
            Some(Lane::Busy { answer, .. }) => drop(answer.send(Err(failure))),
            Some(Lane::Opening) => self.opening -= 1,
            Some(Lane::Free) => self.free.retain(|free| *free != number),
            // Both sides closed it at once; its answer to us follows.
            Some(Lane::Closing) => drop(self.lanes.insert(number, Lane::Closing)),
            None => {}
        }
    }

    pub(super) fn closed(&mut self, number: u16) {
        if matches!(self.lanes.get(&number), Some(Lane::Closing)) {
            self.lanes.remove(&number);
        }
    }

    fn set_free(&mut self, number: u16, writer: &mut FrameWriter) {
        if self.free.len() < FREE_MAX {
            self.lanes.insert(number, Lane::Free);
            self.free.push(number);
        } else {
            self.lanes.insert(number, Lane::Closing);
            writer.method(number, close());
        }
    }
}

fn close() -> AMQPClass {
    AMQPClass::Channel(channel::AMQPMethod::Close(channel::Close {
        reply_code: 200,
        reply_text: "OK".into(),
        class_id: 0,
        method_id: 0,
    }))
}
