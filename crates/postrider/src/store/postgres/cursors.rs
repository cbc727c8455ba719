//! Where the last claim of each endpoint ended. While a backlog lasts the next one starts there, because
//! everything before it was deleted, and while some old transaction is open anywhere, PostgreSQL cannot
//! forget what was deleted: every claim would walk over all of it again.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::endpoint::EndpointId;

/// Messages can appear before a cursor, when a sender took its time to commit or another node gave one back.
/// So every so often a claim looks from the beginning.
const FOLLOWED_MAX: Duration = Duration::from_secs(2);
/// Where ordering keys are among them: the next one of a key stands in its old place, most often behind the cursor,
/// sometimes before it.
const FOLLOWED_WITH_KEYS_MAX: Duration = Duration::from_millis(20);

/// Behind this one the next claim starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) priority: i16,
    pub(super) due_at: Timestamp,
    pub(super) id: i64,
}

#[derive(Default)]
pub(super) struct Cursors(Mutex<HashMap<EndpointId, Cursor>>);

#[derive(Default)]
struct Cursor {
    after: Option<Position>,
    /// When a claim last looked from the beginning.
    began: Option<Instant>,
    has_keys: bool,
    /// The last claim used up its room.
    has_more: bool,
    /// Goes up whenever something may have come back before the cursor: a claim that was under way then does
    /// not know of it.
    returns: u64,
}

impl Cursor {
    fn is_old(&self) -> bool {
        let followed_max = if self.has_keys { FOLLOWED_WITH_KEYS_MAX } else { FOLLOWED_MAX };
        self.began.is_none_or(|began| began.elapsed() >= followed_max)
    }
}

/// What a claim goes by, and what it has to show when it is back.
#[derive(Clone, Copy, Debug)]
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
            cursor.has_keys = false;
        }
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
        cursor.after = at.filter(|_| cursor.returns == start.returns);
    }

    /// The next one of a key may be claimed.
    pub(super) fn has_keys(&self, endpoint: EndpointId) {
        self.lock().entry(endpoint).or_default().has_keys = true;
    }

    /// Something of this endpoint may have come back to its old place.
    pub(super) fn returned(&self, endpoint: EndpointId) {
        let mut cursors = self.lock();
        let cursor = cursors.entry(endpoint).or_default();
        cursor.after = None;
        cursor.returns += 1;
    }

    /// Of any endpoint.
    pub(super) fn all_returned(&self) {
        for cursor in self.lock().values_mut() {
            cursor.after = None;
            cursor.returns += 1;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<EndpointId, Cursor>> {
        self.0.lock().expect("nobody panics while holding the cursors")
    }
}
