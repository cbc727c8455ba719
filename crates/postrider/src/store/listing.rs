//! Lists of messages, whatever has become of them, and of nodes: page by page, at a cost that does not grow with the
//! store.
//!
//! No index of the queue serves a list, because each would cost something at every send. A list walks down the ids
//! instead, window by window, and looks at a bounded number of messages for one page. Where few match, a page has
//! fewer items than asked for, or none, and still says where to go on.

use std::ops::Range;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Result;
use crate::message::{MessageId, NodeId, State};

/// What people look through.
#[async_trait]
pub trait Listing: Send + Sync + 'static {
    /// Newest first.
    async fn messages(&self, filter: MessageFilter) -> Result<MessagePage>;
    /// Newest first, older than `before`.
    async fn nodes(&self, before: Option<NodeId>, limit: usize) -> Result<Vec<NodeRecord>>;
}

/// Which messages; everything that is given has to hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MessageFilter {
    pub state: Option<State>,
    /// One that was dropped is still known by its name.
    pub endpoint: Option<String>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    pub correlation_id: Option<Uuid>,
    /// At this moment or later.
    pub created_after: Option<Timestamp>,
    pub created_before: Option<Timestamp>,
    /// Only ids below this one: the `next` of the page before.
    pub before: Option<MessageId>,
    /// 0 means 100.
    pub limit: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessagePage {
    pub items: Vec<ListedMessage>,
    /// Where to go on; None when there is nothing more.
    pub next: Option<MessageId>,
}

/// A message in a list: everything but payload, headers, options and attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ListedMessage {
    pub id: MessageId,
    pub endpoint: String,
    pub state: State,
    pub priority: u8,
    /// When it is next tried; only while pending.
    pub due_at: Option<Timestamp>,
    /// Attempts counted so far, the running one included.
    pub attempt_count: u32,
    /// Of the last attempt that failed; it stays when a later one delivers the message.
    pub last_error: Option<String>,
    pub content_type: String,
    pub idempotency_key: Option<String>,
    pub correlation_id: Option<Uuid>,
    pub ordering_key: Option<String>,
    pub event_type: Option<String>,
    pub created_at: Timestamp,
    pub scheduled_at: Option<Timestamp>,
    pub expires_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    /// Its dead letter, while it is dead.
    pub dlq_id: Option<i64>,
}

/// One run of one engine process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = Node))]
pub struct NodeRecord {
    pub id: NodeId,
    pub name: String,
    pub state: NodeState,
    pub joined_at: Timestamp,
    pub heartbeat_at: Timestamp,
    pub lease_until: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    Live,
    /// It stopped cleanly.
    Left,
    /// Its lease ran out.
    Lost,
}

pub(crate) const PAGE_DEFAULT: usize = 100;

/// Messages that one window may hold: a few milliseconds.
pub(crate) const WINDOW_ROWS_MAX: usize = 2_000;
/// Messages looked at for one page.
const LOOKED_AT_MAX: usize = 4_000;
/// Windows for one page. Empty ones grow 64 times each and crowded ones shrink to an eighth, so this many find the next
/// message behind any gap.
const WINDOWS_MAX: usize = 80;
/// What a window counts that had too much in it.
const CROWDED_ROWS: usize = 500;
/// Wide enough for a page of what was sent last.
const SPAN_FIRST: i64 = 1_000;
const SPAN_GROWTH_MAX: i64 = 64;
/// Ids and times of creation grow together, but for transactions that ran side by side.
pub(crate) const DISORDER_MAX: std::time::Duration = std::time::Duration::from_secs(3600);

/// What is found among the messages with ids in a range.
pub(crate) struct Window {
    /// From which id on everything was looked at; None where there is too much to say, and nothing here counts.
    pub(crate) from: Option<i64>,
    /// How many there are, matching or not.
    pub(crate) rows: usize,
    /// Of those.
    pub(crate) newest: Option<Timestamp>,
    /// The matching ones, highest id first, at most as many as asked for.
    pub(crate) found: Vec<ListedMessage>,
}

/// A page in the making: says where to look next, and takes what is found there.
pub(crate) struct Pager {
    filter: MessageFilter,
    limit: usize,
    walk: Walk,
    page: MessagePage,
    is_done: bool,
}

impl Pager {
    /// Nothing above `last_id` can match.
    pub(crate) fn new(filter: &MessageFilter, last_id: i64) -> Self {
        let below = filter.before.map_or(i64::MAX, |id| id.0).min(last_id.saturating_add(1));
        Self {
            filter: filter.clone(),
            limit: if filter.limit == 0 { PAGE_DEFAULT } else { filter.limit },
            walk: Walk { below, span: SPAN_FIRST, crowd: None, looked_at: 0, windows: 0 },
            page: MessagePage::default(),
            is_done: false,
        }
    }

    /// Ids to look at, and how many matching messages are wanted of them: one more than there is room for tells
    /// whether there is a next page.
    pub(crate) fn next(&mut self) -> Option<(Range<i64>, usize)> {
        if self.is_done {
            return None;
        }
        let ids = self.walk.next();
        if ids.is_none() {
            self.page.next = (self.walk.below > 1).then_some(MessageId(self.walk.below));
        }
        ids.map(|ids| (ids, self.limit - self.page.items.len() + 1))
    }

    pub(crate) fn take(&mut self, ids: &Range<i64>, window: Window) {
        let Some(from) = window.from else { return self.walk.narrow(ids) };
        let items = &mut self.page.items;
        items.extend(window.found);
        if items.len() > self.limit {
            items.truncate(self.limit);
            self.page.next = items.last().map(|item| item.id);
            self.is_done = true;
        }
        self.is_done |= is_past(&self.filter, window.newest);
        self.walk.go_on(from.max(ids.start), window.rows);
    }

    pub(crate) fn page(self) -> MessagePage {
        self.page
    }
}

/// Everything further down is older than what is asked for.
fn is_past(filter: &MessageFilter, newest: Option<Timestamp>) -> bool {
    match (filter.created_after, newest) {
        (Some(after), Some(newest)) => {
            after.checked_sub(DISORDER_MAX).is_ok_and(|certainly| newest < certainly)
        }
        _ => false,
    }
}

/// The way down the ids. A window is made as wide as messages are expected in it.
struct Walk {
    /// Everything from here on was looked at.
    below: i64,
    span: i64,
    /// Down to this id no window is wider: one that was had too much in it.
    crowd: Option<(i64, i64)>,
    looked_at: usize,
    windows: usize,
}

impl Walk {
    fn next(&mut self) -> Option<Range<i64>> {
        let goes_on = self.below > 1 && self.looked_at < LOOKED_AT_MAX && self.windows < WINDOWS_MAX;
        self.windows += 1;
        goes_on.then(|| self.below.saturating_sub(self.span).max(1)..self.below)
    }

    fn narrow(&mut self, ids: &Range<i64>) {
        self.looked_at += CROWDED_ROWS;
        self.span = ((ids.end - ids.start) / 8).max(WINDOW_ROWS_MAX as i64 / 4);
        self.crowd = Some((ids.start, self.span));
    }

    fn go_on(&mut self, below: i64, rows: usize) {
        self.below = below;
        self.looked_at += rows;
        let growth = (WINDOW_ROWS_MAX / 2 / rows.max(1)).clamp(1, SPAN_GROWTH_MAX as usize);
        self.span = self.span.saturating_mul(growth as i64);
        self.crowd = self.crowd.filter(|(from, _)| below > *from);
        if let Some((_, widest)) = self.crowd {
            self.span = self.span.min(widest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages over these ids, of which every `one_in`-th matches: what they hold, and the most that was looked at.
    /// `ordered`: the store can tell the first so many of a window.
    fn walk(ids: &[i64], one_in: i64, limit: usize, ordered: bool) -> (Vec<i64>, usize) {
        let last = ids.iter().copied().max().unwrap_or(0);
        let mut filter = MessageFilter { limit, ..MessageFilter::default() };
        let (mut found, mut most) = (Vec::new(), 0);
        loop {
            let (mut pager, mut looked) = (Pager::new(&filter, last), 0);
            while let Some((range, room)) = pager.next() {
                let mut inside: Vec<i64> = ids.iter().copied().filter(|id| range.contains(id)).collect();
                inside.sort_unstable_by(|a, b| b.cmp(a));
                looked += inside.len().min(WINDOW_ROWS_MAX + 1);
                let crowded = inside.len() > WINDOW_ROWS_MAX;
                inside.truncate(WINDOW_ROWS_MAX);
                let from = match (crowded, ordered) {
                    (false, _) => Some(range.start),
                    (true, true) => inside.last().copied(),
                    (true, false) => None,
                };
                let matching = inside.iter().filter(|id| *id % one_in == 0).take(room);
                let found = matching.map(|id| listed(*id)).collect();
                pager.take(&range, Window { from, rows: inside.len(), newest: None, found });
            }
            let page = pager.page();
            assert!(page.items.len() <= limit);
            most = most.max(looked);
            found.extend(page.items.iter().map(|item| item.id.0));
            match page.next {
                Some(next) => filter.before = Some(next),
                None => return (found, most),
            }
        }
    }

    fn listed(id: i64) -> ListedMessage {
        ListedMessage {
            id: MessageId(id),
            endpoint: "a".to_owned(),
            state: State::Pending,
            priority: 0,
            due_at: None,
            attempt_count: 0,
            last_error: None,
            content_type: String::new(),
            idempotency_key: None,
            correlation_id: None,
            ordering_key: None,
            event_type: None,
            created_at: Timestamp::UNIX_EPOCH,
            scheduled_at: None,
            expires_at: None,
            finished_at: None,
            dlq_id: None,
        }
    }

    #[test]
    fn the_first_page_finds_what_is_behind_a_long_gap() {
        let ids: Vec<i64> = (1..=50_000).collect();
        for ordered in [true, false] {
            let mut pager = Pager::new(&MessageFilter::default(), 3_000_000_000);
            while let Some((range, room)) = pager.next() {
                let inside: Vec<i64> = ids.iter().rev().copied().filter(|id| range.contains(id)).collect();
                let rows = inside.len().min(WINDOW_ROWS_MAX);
                let from = match (inside.len() > rows, ordered) {
                    (false, _) => Some(range.start),
                    (true, true) => Some(inside[rows - 1]),
                    (true, false) => None,
                };
                let found = inside.into_iter().take(room.min(rows)).map(listed).collect();
                pager.take(&range, Window { from, rows, newest: None, found });
            }
            assert_eq!(pager.page().items.len(), PAGE_DEFAULT, "ordered: {ordered}");
        }
    }

    #[test]
    fn every_matching_message_is_found_once_however_the_ids_lie() {
        let dense: Vec<i64> = (1..=60_000).collect();
        let gaps: Vec<i64> = (1..=50).chain(1_000_000..1_030_000).chain([i64::MAX - 2]).collect();
        for ids in [vec![], vec![1], dense, gaps] {
            for (one_in, limit) in [(1, 7_000), (3, 1_000), (9_973, 10)] {
                let mut expected: Vec<i64> = ids.iter().copied().filter(|id| id % one_in == 0).collect();
                expected.reverse();
                for ordered in [true, false] {
                    let (found, most) = walk(&ids, one_in, limit, ordered);
                    assert_eq!(found, expected, "one in {one_in}");
                    // Crowded windows one after the other, and one that is not.
                    let bound = LOOKED_AT_MAX / CROWDED_ROWS * (WINDOW_ROWS_MAX + 1) + WINDOW_ROWS_MAX;
                    assert!(most <= bound, "{most} were looked at for one page");
                }
            }
        }
    }
}
