//! Why no message is missed although not every sender notifies.
//!
//! A commit with a notification takes a lock of the whole server. So of the transactions that send to one endpoint at about the
//! same time only one notifies: the one that gets the lock called bell (`postrider._ring`), after its message is inserted. A
//! sender that finds the bell taken has inserted its message too, so it has a transaction id, and the bell's holder has not
//! committed yet. So when the notification arrives, every sender that relied on it has ended, or is running with an id below any
//! id that is assigned now. (A snapshot alone is not enough: its `xmax` follows the last transaction that ended, and a running
//! one may be above it.) The node looks at the endpoint again until the last of these late commits, as often as anything was
//! committed in between: usually not at all.
//!
//! The bell's holder may commit late, or roll back. There is one bell per hundredth of a second, so that few senders rely on it.
//! Upkeep finds their messages, every second while the node is idle (`upkeep.rs`), and at the latest the dispatcher, which looks
//! at every endpoint every few seconds.

use std::time::Duration;

use tokio::time::Instant;

/// When to look at an endpoint again: after an eighth of the time since the notification, within these bounds.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const PAUSE_SHARE: u32 = 8;

/// The result of `pg_current_snapshot()`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TransactionSnapshot {
    /// Every transaction below has ended.
    xmin: u64,
    text: String,
}

impl TransactionSnapshot {
    /// `xmin:xmax:running,…`
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (xmin, _) = text.split_once(':')?;
        Some(Self { xmin: xmin.parse().ok()?, text: text.to_owned() })
    }
}

/// One endpoint, from a notification until every transaction that may rely on it has ended.
#[derive(Debug)]
pub(super) struct LateCommits {
    since: Instant,
    pub(super) look_at: Instant,
    /// Every transaction that may rely on the notification has a lower id.
    all_below: u64,
    last: Option<TransactionSnapshot>,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recheck {
    /// There may be new messages.
    pub(super) tell: bool,
    pub(super) over: bool,
}

impl LateCommits {
    /// `next` is an id given out after the notification arrived.
    pub(super) fn since(now: Instant, next: u64) -> Self {
        Self { since: now, look_at: now, all_below: next, last: None }
    }

    pub(super) fn look(&mut self, snapshot: &TransactionSnapshot, now: Instant) -> Recheck {
        let pause = (now - self.since) / PAUSE_SHARE;
        self.look_at = now + pause.clamp(PAUSE_MIN, PAUSE_MAX);
        let tell = self.last.as_ref() != Some(snapshot);
        self.last = Some(snapshot.clone());
        Recheck { tell, over: snapshot.xmin >= self.all_below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(late_commits: &mut LateCommits, text: &str) -> (bool, bool) {
        let Recheck { tell, over } =
            late_commits.look(&TransactionSnapshot::parse(text).unwrap(), Instant::now());
        (tell, over)
    }

    #[tokio::test]
    async fn one_look_is_enough_when_no_other_transaction_runs() {
        assert_eq!(look(&mut LateCommits::since(Instant::now(), 7), "7:7:"), (true, true));
    }

    #[tokio::test]
    async fn a_running_transaction_is_waited_for_though_no_later_one_has_ended() {
        let mut late_commits = LateCommits::since(Instant::now(), 8);
        assert_eq!(look(&mut late_commits, "7:7:"), (true, false), "7 runs, and no snapshot shows it yet");
        assert_eq!(look(&mut late_commits, "9:9:"), (true, true));
    }

    #[tokio::test]
    async fn transactions_that_ran_are_waited_for_and_later_ones_are_not() {
        let mut late_commits = LateCommits::since(Instant::now(), 9);
        assert_eq!(look(&mut late_commits, "5:9:5,7"), (true, false));
        assert_eq!(look(&mut late_commits, "5:9:5,7"), (false, false), "nothing was committed");
        assert_eq!(look(&mut late_commits, "5:12:5,11"), (true, false));
        assert_eq!(look(&mut late_commits, "11:12:11"), (true, true));
    }
}
