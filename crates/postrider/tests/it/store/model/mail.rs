//! The model: what a store is, said as plainly as possible. No index, no cache, no place for a bug to hide.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::message::Fence;
use postrider::store::DlqStatus;
use postrider::{MessageId, State};

use super::operations::{Ending, Letter as NewLetter};

/// What an endpoint of the model is: a place in `ENDPOINTS`.
pub(super) type Place = usize;

pub(super) struct Policy {
    pub(super) name: &'static str,
    pub(super) global: bool,
    pub(super) hold: bool,
}

pub(super) const ENDPOINTS: [Policy; 4] = [
    Policy { name: "a", global: false, hold: false },
    Policy { name: "hold", global: false, hold: true },
    Policy { name: "global", global: true, hold: false },
    Policy { name: "global-hold", global: true, hold: true },
];

/// A key in its namespace: its endpoint's own, or the one that global endpoints share.
pub(super) type Key = (Option<Place>, u8);

pub(super) fn key_of(endpoint: Place, key: u8) -> Key {
    ((!ENDPOINTS[endpoint].global).then_some(endpoint), key)
}

#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) endpoint: Place,
    pub(super) key: Option<Key>,
    pub(super) state: State,
    pub(super) due_at: Timestamp,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) attempts: u32,
    pub(super) losses: u32,
    pub(super) fence: Option<Fence>,
    priority: u8,
    idempotency: Option<u8>,
    payload: u8,
    /// Among those of its key: the lower goes first.
    position: i64,
    delivered_late: bool,
}

#[derive(Clone, Debug)]
pub(super) struct DeadLetter {
    pub(super) message: MessageId,
    pub(super) status: DlqStatus,
    holds: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    New,
    Duplicate(MessageId),
    Conflict(MessageId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Applied(State),
    Fenced,
    Noted,
}

#[derive(Clone, Default)]
pub(super) struct Mail {
    pub(super) messages: BTreeMap<MessageId, Message>,
    pub(super) letters: BTreeMap<i64, DeadLetter>,
    next_position: i64,
}

impl Mail {
    pub(super) fn accept(&mut self, letter: &NewLetter, now: Timestamp) -> Accepted {
        let holder = self.messages.iter().find(|(_, message)| {
            letter.idempotency.is_some()
                && message.idempotency == letter.idempotency
                && message.endpoint == letter.endpoint
                && matches!(message.state, State::Pending | State::Processing)
        });
        let Some((&id, holder)) = holder else { return Accepted::New };
        if holder.state == State::Pending && holder.is_expired(now) {
            self.finish(id, State::Expired);
            return Accepted::New;
        }
        if holder.payload == letter.payload { Accepted::Duplicate(id) } else { Accepted::Conflict(id) }
    }

    pub(super) fn insert(&mut self, id: MessageId, letter: &NewLetter, now: Timestamp) {
        self.next_position += 1;
        let message = Message {
            endpoint: letter.endpoint,
            key: letter.key.map(|key| key_of(letter.endpoint, key)),
            state: State::Pending,
            due_at: letter.due_at(now),
            expires_at: letter.expires_at(now),
            attempts: 0,
            losses: 0,
            fence: None,
            priority: letter.priority,
            idempotency: letter.idempotency,
            payload: letter.payload,
            position: self.next_position,
            delivered_late: false,
        };
        assert!(self.messages.insert(id, message).is_none(), "id {id} was used before");
    }

    /// The one message of a key that may move: it is processing, or first in line of a key that is not held.
    pub(super) fn active(&self, key: Key) -> Option<MessageId> {
        let of_key = || self.messages.iter().filter(|(_, message)| message.key == Some(key));
        if let Some((id, _)) = of_key().find(|(_, message)| message.state == State::Processing) {
            return Some(*id);
        }
        let holds = |letter: &DeadLetter| letter.holds && self.messages[&letter.message].key == Some(key);
        if self.letters.values().any(holds) {
            return None;
        }
        let pending = of_key().filter(|(_, message)| message.state == State::Pending);
        pending.min_by_key(|(_, message)| message.position).map(|(id, _)| *id)
    }

    /// Pending and not behind anything but time.
    pub(super) fn is_free(&self, id: MessageId) -> bool {
        let message = &self.messages[&id];
        message.state == State::Pending && message.key.is_none_or(|key| self.active(key) == Some(id))
    }

    pub(super) fn claimable(&self, endpoint: Place, now: Timestamp) -> Vec<MessageId> {
        let due =
            |message: &Message| message.due_at <= now && !message.is_expired(now) && message.losses == 0;
        let mut ids: Vec<MessageId> = self
            .messages
            .iter()
            .filter(|(id, message)| message.endpoint == endpoint && due(message) && self.is_free(**id))
            .map(|(id, _)| *id)
            .collect();
        ids.sort_by_key(|id| {
            let message = &self.messages[id];
            (std::cmp::Reverse(message.priority), message.due_at, *id)
        });
        ids
    }

    /// Pending messages that lost a claim, as far as nothing but time holds them.
    pub(super) fn suspects(&self) -> Vec<MessageId> {
        let suspect = |id: &MessageId| self.messages[id].losses > 0 && self.is_free(*id);
        self.messages.keys().copied().filter(suspect).collect()
    }

    pub(super) fn claim(&mut self, id: MessageId, fence: Fence) {
        if let Some(key) = self.messages[&id].key {
            let others = |message: &Message| message.key == Some(key) && message.state == State::Processing;
            assert!(!self.messages.values().any(others), "two of a key at once");
        }
        let message = self.messages.get_mut(&id).expect("a known message");
        assert_eq!(message.state, State::Pending, "a message is claimed once at a time");
        (message.state, message.fence) = (State::Processing, Some(fence));
        message.attempts += 1;
    }

    /// What a settlement does, and which message of its key it lets go. `letter` is the number that the store
    /// gave to the dead letter, if there is one.
    pub(super) fn settle(
        &mut self,
        id: MessageId,
        fence: Fence,
        ending: Ending,
        letter: Option<i64>,
        now: Timestamp,
    ) -> (Effect, Option<MessageId>) {
        let message = &self.messages[&id];
        let (key, processing) = (message.key, message.state == State::Processing);
        if message.state == State::Cancelled && ending == Ending::Complete {
            self.message(id).state = State::Completed;
            return (Effect::Applied(State::Completed), None);
        }
        if !processing && message.state != State::Pending {
            return (Effect::Fenced, None);
        }
        let current = processing && message.fence == Some(fence);
        if !current && ending != Ending::Complete {
            return (Effect::Fenced, None);
        }
        if !current && processing && key.is_some() {
            self.message(id).delivered_late = true;
            return (Effect::Noted, None);
        }
        let was_active = key.is_some_and(|key| self.active(key) == Some(id));
        let state = self.apply(id, ending, now);
        if state == State::Dead {
            self.bury(id, letter.expect("a dead message has a letter"));
        }
        let next = key.filter(|_| was_active).and_then(|key| self.active(key)).filter(|next| *next != id);
        (Effect::Applied(state), next)
    }

    fn apply(&mut self, id: MessageId, ending: Ending, now: Timestamp) -> State {
        let message = self.message(id);
        let state = match ending {
            _ if message.delivered_late => State::Completed,
            Ending::Complete => State::Completed,
            Ending::Retry(_) | Ending::Lost | Ending::Released => State::Pending,
            Ending::Dead | Ending::LostForGood => State::Dead,
            Ending::Expire | Ending::Unstarted => State::Expired,
        };
        match ending {
            Ending::Retry(seconds) => message.due_at = now + std::time::Duration::from_secs(seconds),
            Ending::Lost => (message.due_at, message.losses) = (now, message.losses + 1),
            Ending::Released | Ending::Unstarted => message.attempts -= 1,
            Ending::Complete | Ending::Dead | Ending::LostForGood | Ending::Expire => {}
        }
        self.finish(id, state);
        state
    }

    /// It is in this state now and in nobody's hands.
    fn finish(&mut self, id: MessageId, state: State) {
        let message = self.message(id);
        (message.state, message.fence) = (state, None);
    }

    fn bury(&mut self, id: MessageId, letter: i64) {
        let message = &self.messages[&id];
        let holds = message.key.is_some() && ENDPOINTS[message.endpoint].hold;
        let letter_of_it = DeadLetter { message: id, status: DlqStatus::Failed, holds };
        assert!(self.letters.insert(letter, letter_of_it).is_none(), "letter {letter} was used before");
    }

    /// Everything pending past its expiry; how many there were.
    pub(super) fn expire(&mut self, now: Timestamp) -> usize {
        let expired = |message: &Message| message.state == State::Pending && message.is_expired(now);
        let ids: Vec<_> =
            self.messages.iter().filter(|(_, message)| expired(message)).map(|(id, _)| *id).collect();
        ids.iter().for_each(|id| self.finish(*id, State::Expired));
        ids.len()
    }

    pub(super) fn cancel(&mut self, id: MessageId) -> bool {
        let pending = self.messages[&id].state == State::Pending;
        if pending {
            self.finish(id, State::Cancelled);
        }
        pending
    }

    pub(super) fn reschedule(&mut self, id: MessageId, at: Timestamp) -> bool {
        let message = self.message(id);
        let fits = message.state == State::Pending && message.expires_at.is_none_or(|expiry| at < expiry);
        if fits {
            message.due_at = at;
        }
        fits
    }

    /// Dead letters that can be put back, in the order in which their messages were sent.
    pub(super) fn redrivable(&self, endpoint: Option<Place>) -> Vec<i64> {
        let wanted = |letter: &DeadLetter| {
            letter.status == DlqStatus::Failed
                && endpoint.is_none_or(|endpoint| self.messages[&letter.message].endpoint == endpoint)
        };
        let mut letters: Vec<_> = self
            .letters
            .iter()
            .filter(|(_, letter)| wanted(letter))
            .map(|(id, letter)| (letter.message, *id))
            .collect();
        letters.sort();
        letters.into_iter().map(|(_, id)| id).collect()
    }

    /// Puts them back before everything that was sent, and among those put back in the order of their ids.
    pub(super) fn redrive(&mut self, letters: &[i64], now: Timestamp) {
        for id in letters {
            self.end_letter(*id, DlqStatus::Redriven);
            let id = self.letters[id].message;
            let message = self.message(id);
            message.position = id.0 - i64::MAX;
            (message.state, message.due_at, message.losses) = (State::Pending, now, 0);
            (message.expires_at, message.idempotency) = (None, None);
        }
    }

    pub(super) fn end_letter(&mut self, id: i64, status: DlqStatus) {
        let letter = self.letters.get_mut(&id).expect("a known letter");
        (letter.status, letter.holds) = (status, false);
    }

    pub(super) fn release(&mut self, key: Key) -> u64 {
        let messages = &self.messages;
        let held = self
            .letters
            .values_mut()
            .filter(|letter| letter.holds && messages[&letter.message].key == Some(key));
        held.map(|letter| letter.holds = false).count() as u64
    }

    pub(super) fn count(&self, endpoint: Place, state: State) -> u64 {
        let counted = |message: &&Message| message.endpoint == endpoint && message.state == state;
        self.messages.values().filter(counted).count() as u64
    }

    fn message(&mut self, id: MessageId) -> &mut Message {
        self.messages.get_mut(&id).expect("a known message")
    }
}

impl Message {
    fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}
