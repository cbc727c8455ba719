//! The steps of a replay, the same for every store: count what is selected, find the next messages, then send them and
//! keep the replay's position in one transaction.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;

use super::{ReplayTurn, Result, Store};
use crate::endpoint::EndpointId;
use crate::message::MessageId;
use crate::rate::{Grant, RateLimit};

/// Messages of one step have at most this many bytes together, unless a single one is larger.
const STEP_BYTES_MAX: i64 = 4 << 20;
/// A replay that waits for room, or for an endpoint, is tried again after this long.
const RETRY_WAIT: Duration = Duration::from_secs(2);
/// Ids that are looked through at a time.
const WINDOW: i64 = 10_000;
/// A step that finds little looks through further windows for this long.
const LOOK_BUDGET: Duration = Duration::from_millis(20);

/// What a store has to do for the steps.
#[async_trait]
pub(crate) trait ReplaySteps: Store {
    /// Messages in one step.
    const STEP_MESSAGES: usize;
    /// Where a found message is kept.
    type Table: Send;

    /// The running replay that waited longest for its turn.
    async fn next_replay(&self) -> Result<NextReplay>;
    /// How many messages it selects of the ids after `after`, up to `to`.
    async fn count_selected(&self, replay: i64, after: i64, to: i64) -> Result<u64>;
    /// The first of those, by id.
    async fn find_selected(
        &self,
        replay: i64,
        after: i64,
        to: i64,
        limit: usize,
    ) -> Result<Vec<FoundMessage<Self::Table>>>;
    /// Adds to the count.
    async fn keep_count(&self, replay: RunningReplay, count: u64, counted_to: i64) -> Result<StepEnd>;
    /// Sends the messages again and keeps [`RunningReplay::after`] in the same transaction.
    async fn send_again(
        &self,
        replay: RunningReplay,
        found: Vec<FoundMessage<Self::Table>>,
        reached: i64,
    ) -> Result<StepEnd>;
    /// Its next turn is then.
    async fn postpone(
        &self,
        replay: RunningReplay,
        until: Timestamp,
        waiting: Option<String>,
    ) -> Result<StepEnd>;
}

pub(crate) enum NextReplay {
    Due(RunningReplay),
    /// No turn before then; None while no replay runs.
    NotBefore(Option<Timestamp>),
}

/// A running replay as its row was at `now`.
#[derive(Clone, Debug)]
pub(crate) struct RunningReplay {
    pub(crate) id: i64,
    pub(crate) now: Timestamp,
    pub(crate) to: Option<EndpointId>,
    pub(crate) rate_limit: Option<RateLimit>,
    pub(crate) rate_position: Option<Timestamp>,
    pub(crate) last_id: i64,
    pub(crate) counted_to: i64,
    pub(crate) position: i64,
    pub(crate) done: u64,
    pub(crate) skipped: BTreeMap<String, u64>,
}

/// A selected message.
#[derive(Clone, Debug)]
pub(crate) struct FoundMessage<T> {
    pub(crate) id: MessageId,
    /// Of its payload.
    pub(crate) bytes: i64,
    pub(crate) table: T,
}

/// How a step ends. Several nodes may begin the same step of a replay; one of them does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepEnd {
    Done,
    /// Nothing was changed: another node did this step, or is doing it, or the replay was stopped.
    Overtaken,
}

/// What one step did.
pub(crate) struct ReplayStep {
    /// All selected messages up to this id were sent or skipped.
    pub(crate) position: i64,
    pub(crate) sent: u64,
    pub(crate) skipped: BTreeMap<String, u64>,
    /// Why it went no further.
    pub(crate) waiting: Option<String>,
}

/// The replay's row after a step.
pub(crate) struct ReplayProgress {
    pub(crate) position: i64,
    pub(crate) done: u64,
    pub(crate) skipped: BTreeMap<String, u64>,
    pub(crate) waiting: Option<String>,
    pub(crate) rate_position: Option<Timestamp>,
    pub(crate) next_at: Timestamp,
    /// It is completed, and selected this many. Retention may have deleted some since they were counted.
    pub(crate) completed: Option<u64>,
}

/// Takes the replay whose turn it is one step further.
pub(crate) async fn advance<S: ReplaySteps>(store: &S, limit: usize) -> Result<ReplayTurn> {
    let replay = match store.next_replay().await? {
        NextReplay::Due(replay) => replay,
        NextReplay::NotBefore(next_at) => return Ok(ReplayTurn::Idle(next_at)),
    };
    let end = match step(store, replay.clone(), limit.min(S::STEP_MESSAGES)).await {
        Ok(end) => end,
        Err(error) => {
            // The replay shows the error and waits, so that other replays have their turns.
            let retry_at = replay.now + RETRY_WAIT;
            store.postpone(replay, retry_at, Some(error.to_string())).await?
        }
    };
    Ok(match end {
        StepEnd::Done => ReplayTurn::Worked,
        // One node advances it fastest: this one looks again later.
        StepEnd::Overtaken => ReplayTurn::Idle(None),
    })
}

async fn step<S: ReplaySteps>(store: &S, replay: RunningReplay, limit: usize) -> Result<StepEnd> {
    if replay.counted_to < replay.last_id {
        return count(store, replay).await;
    }
    let limit = match replay.grant(limit as u64) {
        Some(Grant { granted: 0, next_at, .. }) => return store.postpone(replay, next_at, None).await,
        Some(Grant { granted, .. }) => granted as usize,
        None => limit,
    };
    let (found, reached) = find(store, &replay, limit).await?;
    store.send_again(replay, found, reached).await
}

async fn count<S: ReplaySteps>(store: &S, replay: RunningReplay) -> Result<StepEnd> {
    let began = Instant::now();
    let (mut count, mut reached) = (0, replay.counted_to);
    while reached < replay.last_id && began.elapsed() < LOOK_BUDGET {
        let to = replay.last_id.min(reached + WINDOW);
        count += store.count_selected(replay.id, reached, to).await?;
        reached = to;
    }
    store.keep_count(replay, count, reached).await
}

/// The next messages, and the id up to which they are all that is selected.
async fn find<S: ReplaySteps>(
    store: &S,
    replay: &RunningReplay,
    limit: usize,
) -> Result<(Vec<FoundMessage<S::Table>>, i64)> {
    let began = Instant::now();
    let (mut found, mut reached) = (Vec::new(), replay.position);
    while reached < replay.last_id && found.len() < limit && began.elapsed() < LOOK_BUDGET {
        let to = replay.last_id.min(reached + WINDOW);
        found.extend(store.find_selected(replay.id, reached, to, limit - found.len()).await?);
        reached = found.last().filter(|_| found.len() == limit).map_or(to, |last| last.id.0);
    }
    let fitting = fitting(&found);
    if fitting < found.len() {
        found.truncate(fitting);
        reached = found.last().map_or(reached, |last| last.id.0);
    }
    Ok((found, reached))
}

/// How many of them fit into one step: at least one, however large it is.
fn fitting<T>(found: &[FoundMessage<T>]) -> usize {
    let sums = found.iter().scan(0, |bytes, message| {
        *bytes += message.bytes;
        Some(*bytes)
    });
    sums.take_while(|bytes| *bytes <= STEP_BYTES_MAX).count().max(1)
}

impl RunningReplay {
    /// None without a rate limit.
    fn grant(&self, wanted: u64) -> Option<Grant> {
        self.rate_limit.map(|limit| limit.grant(self.rate_position, self.now, wanted as u32))
    }

    /// What the step makes of the replay's row.
    pub(crate) fn after(&self, step: ReplayStep) -> ReplayProgress {
        let rate_position = match self.grant(step.sent) {
            Some(grant) => Some(grant.position),
            None => self.rate_position,
        };
        let mut skipped = self.skipped.clone();
        for (reason, count) in step.skipped {
            *skipped.entry(reason).or_default() += count;
        }
        let done = self.done + step.sent;
        let completed = (step.position >= self.last_id).then(|| done + skipped.values().sum::<u64>());
        let wait = if step.waiting.is_some() { RETRY_WAIT } else { Duration::ZERO };
        let (position, waiting, next_at) = (step.position, step.waiting, self.now + wait);
        ReplayProgress { position, done, skipped, waiting, rate_position, next_at, completed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replay() -> RunningReplay {
        RunningReplay {
            id: 1,
            now: Timestamp::UNIX_EPOCH,
            to: None,
            rate_limit: None,
            rate_position: None,
            last_id: 10,
            counted_to: 10,
            position: 0,
            done: 3,
            skipped: BTreeMap::from([("invalid".to_owned(), 1)]),
        }
    }

    fn messages(bytes: &[i64]) -> Vec<FoundMessage<()>> {
        let ids = (1..).map(MessageId);
        ids.zip(bytes).map(|(id, bytes)| FoundMessage { id, bytes: *bytes, table: () }).collect()
    }

    #[test]
    fn a_step_has_a_limit_of_bytes_and_at_least_one_message() {
        assert_eq!(fitting(&messages(&[1, 2, 3])), 3);
        assert_eq!(fitting(&messages(&[STEP_BYTES_MAX, 1])), 1);
        assert_eq!(fitting(&messages(&[STEP_BYTES_MAX + 1, 1])), 1);
    }

    #[test]
    fn a_step_adds_up_and_the_last_one_completes_the_replay() {
        let skipped = BTreeMap::from([("invalid".to_owned(), 1), ("too_large".to_owned(), 2)]);
        let step = |position| ReplayStep { position, sent: 4, skipped: skipped.clone(), waiting: None };
        let half = replay().after(step(9));
        assert_eq!((half.position, half.done, half.completed), (9, 7, None));
        assert_eq!(half.skipped, BTreeMap::from([("invalid".to_owned(), 2), ("too_large".to_owned(), 2)]));
        assert_eq!(half.next_at, replay().now, "its next turn may come at once");
        assert_eq!(replay().after(step(10)).completed, Some(11));
    }

    #[test]
    fn a_step_that_waits_is_tried_again_later() {
        let waiting = Some("the queue is full".to_owned());
        let step = ReplayStep { position: 5, sent: 0, skipped: BTreeMap::new(), waiting: waiting.clone() };
        let after = replay().after(step);
        assert_eq!((after.waiting, after.next_at), (waiting, replay().now + RETRY_WAIT));
    }
}
