//! What may happen to a store, generated at random.

use std::time::Duration;

use jiff::Timestamp;
use postrider::NewMessage;
use proptest::prelude::*;
use proptest::sample::Index;

use super::mail::{ENDPOINTS, Place};

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Send(Letter),
    Batch(Vec<Letter>),
    Claim {
        node: usize,
        endpoint: Place,
        room: u32,
    },
    ClaimSuspects {
        node: usize,
    },
    /// Any claim ever made, current or not.
    Settle(Index, Ending),
    /// A node is silent for too long; its claims go back, or die.
    Freeze {
        node: usize,
        dead: bool,
    },
    Crash,
    Pass(u64),
    Cancel(Index),
    Reschedule(Index, u64),
    RedriveOne(Index),
    RedriveEndpoint(Place),
    RedriveAll,
    Discard(Index),
    Release {
        key: u8,
        endpoint: Place,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(super) endpoint: Place,
    pub(super) key: Option<u8>,
    pub(super) idempotency: Option<u8>,
    pub(super) payload: u8,
    pub(super) priority: u8,
    pub(super) delay: Option<u64>,
    /// Seconds that it lives once it is due.
    pub(super) lives: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Complete,
    Retry(u64),
    Dead,
    Expire,
    Released,
    Unstarted,
    /// By the janitor: tried again, now.
    Lost,
    LostForGood,
}

impl Letter {
    pub(super) fn due_at(&self, now: Timestamp) -> Timestamp {
        now + Duration::from_secs(self.delay.unwrap_or(0))
    }

    pub(super) fn expires_at(&self, now: Timestamp) -> Option<Timestamp> {
        self.lives.map(|seconds| self.due_at(now) + Duration::from_secs(seconds))
    }

    pub(super) fn message(&self, now: Timestamp) -> NewMessage {
        NewMessage {
            ordering_key: self.key.map(|key| format!("key {key}")),
            idempotency_key: self.idempotency.map(|key| format!("once {key}")),
            priority: self.priority,
            scheduled_at: self.delay.map(|_| self.due_at(now)),
            expires_at: self.expires_at(now),
            ..NewMessage::new(ENDPOINTS[self.endpoint].name, self.payload.to_string())
        }
    }
}

pub(crate) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..200)
}

fn operation() -> impl Strategy<Value = Operation> {
    let index = any::<Index>;
    prop_oneof![
        8 => letter().prop_map(Operation::Send),
        2 => prop::collection::vec(letter(), 0..4).prop_map(Operation::Batch),
        4 => backlog().prop_map(Operation::Batch),
        12 => (0..2usize, an_endpoint(), 1..4u32)
            .prop_map(|(node, endpoint, room)| Operation::Claim { node, endpoint, room }),
        4 => (0..2usize).prop_map(|node| Operation::ClaimSuspects { node }),
        16 => (index(), ending()).prop_map(|(which, ending)| Operation::Settle(which, ending)),
        1 => (0..2usize, any::<bool>()).prop_map(|(node, dead)| Operation::Freeze { node, dead }),
        1 => Just(Operation::Crash),
        2 => (1..20u64).prop_map(Operation::Pass),
        4 => index().prop_map(Operation::Cancel),
        2 => (index(), 0..20u64).prop_map(|(which, seconds)| Operation::Reschedule(which, seconds)),
        6 => index().prop_map(Operation::RedriveOne),
        1 => an_endpoint().prop_map(Operation::RedriveEndpoint),
        1 => Just(Operation::RedriveAll),
        1 => index().prop_map(Operation::Discard),
        1 => (0..2u8, an_endpoint()).prop_map(|(key, endpoint)| Operation::Release { key, endpoint }),
    ]
}

/// Mostly the first, so that there is something to meet.
fn an_endpoint() -> impl Strategy<Value = Place> {
    prop_oneof![3 => Just(0usize), 1 => 0..ENDPOINTS.len()]
}

/// Several of one key: what ordering is about.
fn backlog() -> impl Strategy<Value = Vec<Letter>> {
    let plain = |letter: Letter| Letter { key: Some(0), idempotency: None, ..letter };
    (letter().prop_map(plain), 2..5usize).prop_map(|(letter, count)| vec![letter; count])
}

fn letter() -> impl Strategy<Value = Letter> {
    let rarely = |seconds: std::ops::Range<u64>| prop::option::weighted(0.2, seconds);
    (
        an_endpoint(),
        prop::option::weighted(0.8, prop_oneof![3 => Just(0u8), 1 => Just(1u8)]),
        prop::option::weighted(0.2, 0..2u8),
        0..2u8,
        prop_oneof![3 => Just(0u8), 1 => 0..=10u8],
        rarely(1..20),
        rarely(1..30),
    )
        .prop_map(|(endpoint, key, idempotency, payload, priority, delay, lives)| Letter {
            endpoint,
            key,
            idempotency,
            payload,
            priority,
            delay,
            lives,
        })
}

fn ending() -> impl Strategy<Value = Ending> {
    prop_oneof![
        5 => Just(Ending::Complete),
        4 => (0..15u64).prop_map(Ending::Retry),
        4 => Just(Ending::Dead),
        1 => Just(Ending::Expire),
        2 => Just(Ending::Released),
        1 => Just(Ending::Unstarted),
    ]
}
