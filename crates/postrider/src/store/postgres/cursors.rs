//! Where the last claim of each endpoint ended. While a backlog lasts, the next claim starts there: everything before it was
//! deleted, and while any old transaction is open PostgreSQL cannot remove deleted rows, so every claim would walk over them
//! again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::endpoint::EndpointId;

/// Messages can appear before a cursor, when a sender commits late or another node gives one back. So after this long a claim
/// starts from the beginning.
const FOLLOWED_MAX: Duration = Duration::from_secs(2);

/// A message in claim order; the next claim starts after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) priority: i16,
    pub(super) due_at: Timestamp,
    pub(super) id: i64,
}

impl Position {
    fn is_before(&self, other: &Self) -> bool {
        let order = |at: &Self| (Reverse(at.priority), at.due_at, at.id);
        order(self) < order(other)
    }
}

#[derive(Default)]
pub(super) struct Cursors(Mutex<HashMap<EndpointId, Cursor>>);

#[derive(Default)]
struct Cursor {
    after: Option<Position>,
    /// When a claim last started from the beginning.
    began: Option<Instant>,
    /// The first message that became claimable after the last claim was requested, which may not have seen it.
    appeared: Option<Position>,
    /// The last claim used up its room.
    has_more: bool,
    /// Goes up whenever a message may have come back before the cursor, so that a claim that was running then is not trusted.
    returns: u64,
}

impl Cursor {
    fn is_old(&self) -> bool {
        self.began.is_none_or(|began| began.elapsed() >= FOLLOWED_MAX)
    }
}

/// Where a claim starts; handed back to [`Cursors::ended`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    pub(super) after: Option<Position>,
    pub(super) has_more: bool,
    returns: u64,
}

impl Cursors {
    pub(super) fn start(&self, endpoint: EndpointId) -> Start {
        let mut cursors = self.lock();
        let cursor = cursors.entry(endpoint).or_default();
        if cursor.is_old() {
            cursor.after = None;
        }
        cursor.appeared = None;
        if cursor.after.is_none() {
            cursor.began = Some(Instant::now());
        }
        Start { after: cursor.after, has_more: cursor.has_more, returns: cursor.returns }
    }

    /// A claim used up its room and ended here, or found less than it wanted.
    pub(super) fn ended(&self, endpoint: EndpointId, start: Start, at: Option<Position>) {
        let mut cursors = self.lock();
        let cursor = cursors.entry(endpoint).or_default();
        cursor.has_more = at.is_some();
        let passed_none = |at: &Position| cursor.appeared.is_none_or(|first| !first.is_before(at));
        cursor.after = at.filter(passed_none).filter(|_| cursor.returns == start.returns);
    }

    /// Messages that waited behind their ordering keys became claimable; this is the first of them. They are mostly after the
    /// cursor, sometimes before it.
    pub(super) fn appeared(&self, endpoint: EndpointId, first: Position) {
        let mut cursors = self.lock();
        let cursor = cursors.entry(endpoint).or_default();
        cursor.after = cursor.after.filter(|after| !first.is_before(after));
        cursor.appeared = Some(cursor.appeared.filter(|earlier| earlier.is_before(&first)).unwrap_or(first));
    }

    /// A message of this endpoint may have come back before the cursor.
    pub(super) fn returned(&self, endpoint: EndpointId) {
        let mut cursors = self.lock();
        let cursor = cursors.entry(endpoint).or_default();
        cursor.after = None;
        cursor.returns += 1;
    }

    /// The same, for any endpoint.
    pub(super) fn all_returned(&self) {
        for cursor in self.lock().values_mut() {
            cursor.after = None;
            cursor.returns += 1;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<EndpointId, Cursor>> {
        self.0.lock().expect("no panic while holding the cursors")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: EndpointId = EndpointId(1);

    fn at(priority: i16, id: i64) -> Position {
        Position { priority, due_at: Timestamp::UNIX_EPOCH, id }
    }

    #[test]
    fn a_claim_does_not_pass_what_appeared_while_it_was_under_way() {
        let after = |appeared: &[Position]| {
            let cursors = Cursors::default();
            let start = cursors.start(ENDPOINT);
            appeared.iter().for_each(|first| cursors.appeared(ENDPOINT, *first));
            cursors.ended(ENDPOINT, start, Some(at(5, 10)));
            cursors.start(ENDPOINT).after
        };
        assert_eq!(after(&[]), Some(at(5, 10)));
        assert_eq!(after(&[at(5, 11), at(4, 1)]), Some(at(5, 10)), "behind where it ended");
        assert_eq!(after(&[at(5, 9)]), None);
        assert_eq!(after(&[at(5, 9), at(5, 11)]), None);
        assert_eq!(after(&[at(6, 11)]), None, "a higher priority is before");
    }

    #[test]
    fn what_appears_before_the_cursor_ends_it() {
        let cursors = Cursors::default();
        let follow = || {
            let start = cursors.start(ENDPOINT);
            cursors.ended(ENDPOINT, start, Some(at(0, 10)));
        };
        follow();
        cursors.appeared(ENDPOINT, at(0, 11));
        assert_eq!(cursors.start(ENDPOINT).after, Some(at(0, 10)));
        cursors.appeared(ENDPOINT, at(0, 9));
        assert_eq!(cursors.start(ENDPOINT).after, None);
        // A claim that was requested after that saw it.
        follow();
        assert_eq!(cursors.start(ENDPOINT).after, Some(at(0, 10)));
    }
}
