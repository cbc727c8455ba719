//! Why no wake-up is lost although not every sender gives one.
//!
//! A commit with a notification takes a lock of the whole server. So of the transactions that send to one
//! endpoint at about the same time only one rings the bell (`postrider._ring`), after its message is inserted. Whoever
//! found the bell taken has inserted too, so it has a transaction id; and whoever holds the bell has not yet
//! committed. So when the notification arrives, everybody who counts on it has ended or is among the transactions
//! that a snapshot taken now shows as running. The endpoint is looked at again until the last of these has ended,
//! as often as anything has been committed in between: usually not at all.
//!
//! Whoever rings may take its time, or roll back. Bells are of one hundredth of a second, so that it silences few;
//! these are found by upkeep, which looks for them every second while there is nothing else to do (`upkeep.rs`), and
//! at the latest by the dispatcher, which looks everywhere every few seconds.

use std::time::Duration;

use tokio::time::Instant;

/// How soon an endpoint is looked at again; the longer it takes, the less often.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const PAUSE_SHARE: u32 = 8;

/// What `pg_current_snapshot()` says: every transaction below `xmin` has ended, none from `xmax` on has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    xmin: u64,
    xmax: u64,
    text: String,
}

impl Snapshot {
    /// `xmin:xmax:running,…`
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let mut next = || parts.next()?.parse().ok();
        Some(Self { xmin: next()?, xmax: next()?, text: text.to_owned() })
    }
}

/// One endpoint from a notification on, until all who may count on it have ended.
#[derive(Debug)]
pub(super) struct Stragglers {
    since: Instant,
    pub(super) look_at: Instant,
    seen: Option<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// Who may count on the notification is below.
    all_below: u64,
    last: Snapshot,
}

/// What a look comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// There may be something new.
    pub(super) tell: bool,
    pub(super) over: bool,
}

impl Stragglers {
    pub(super) fn since(now: Instant) -> Self {
        Self { since: now, look_at: now, seen: None }
    }

    pub(super) fn look(&mut self, snapshot: &Snapshot, now: Instant) -> Look {
        let pause = (now - self.since) / PAUSE_SHARE;
        self.look_at = now + pause.clamp(PAUSE_MIN, PAUSE_MAX);
        let tell = self.seen.as_ref().is_none_or(|seen| seen.last != *snapshot);
        let all_below = self.seen.as_ref().map_or(snapshot.xmax, |seen| seen.all_below);
        self.seen = Some(Seen { all_below, last: snapshot.clone() });
        Look { tell, over: snapshot.xmin >= all_below }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(stragglers: &mut Stragglers, text: &str) -> (bool, bool) {
        let Look { tell, over } = stragglers.look(&Snapshot::parse(text).unwrap(), Instant::now());
        (tell, over)
    }

    #[tokio::test]
    async fn one_look_is_enough_when_nobody_else_is_at_it() {
        assert_eq!(look(&mut Stragglers::since(Instant::now()), "7:7:"), (true, true));
    }

    #[tokio::test]
    async fn who_was_running_is_waited_for_and_nobody_who_came_later() {
        let mut stragglers = Stragglers::since(Instant::now());
        assert_eq!(look(&mut stragglers, "5:9:5,7"), (true, false));
        assert_eq!(look(&mut stragglers, "5:9:5,7"), (false, false), "nothing was committed");
        assert_eq!(look(&mut stragglers, "5:12:5,11"), (true, false));
        assert_eq!(look(&mut stragglers, "11:12:11"), (true, true));
    }
}
