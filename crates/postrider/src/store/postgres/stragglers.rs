//! Why no wake-up is lost although not every sender gives one.
//!
//! A commit with a notification takes a lock of the whole server. So of the transactions that send to one
//! endpoint at about the same time only one rings the bell (`postrider._ring`), after its message is inserted. Whoever
//! found the bell taken has inserted too, so it has a transaction id; and whoever holds the bell has not yet
//! committed. So when the notification arrives, everybody who counts on it has ended or is running with an id below
//! any that is given out now. (A snapshot alone does not tell: its `xmax` follows the last transaction that ended, and
//! one that runs may be above it.) The endpoint is looked at again until the last of these has ended, as often as
//! anything has been committed in between: usually not at all.
//!
//! Whoever rings may take its time, or roll back. Bells are of one hundredth of a second, so that it silences few;
//! these are found by upkeep, which looks for them every second while there is little else to do (`upkeep.rs`), and
//! at the latest by the dispatcher, which looks everywhere every few seconds.

use std::time::Duration;

use tokio::time::Instant;

/// How soon an endpoint is looked at again; the longer it takes, the less often.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const PAUSE_SHARE: u32 = 8;

/// What `pg_current_snapshot()` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Every transaction below has ended.
    xmin: u64,
    text: String,
}

impl Snapshot {
    /// `xmin:xmax:running,…`
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (xmin, _) = text.split_once(':')?;
        Some(Self { xmin: xmin.parse().ok()?, text: text.to_owned() })
    }
}

/// One endpoint from a notification on, until all who may count on it have ended.
#[derive(Debug)]
pub(super) struct Stragglers {
    since: Instant,
    pub(super) look_at: Instant,
    /// Who may count on the notification is below.
    all_below: u64,
    last: Option<Snapshot>,
}

/// What a look comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// There may be something new.
    pub(super) tell: bool,
    pub(super) over: bool,
}

impl Stragglers {
    /// `next` is an id given out after the notification arrived.
    pub(super) fn since(now: Instant, next: u64) -> Self {
        Self { since: now, look_at: now, all_below: next, last: None }
    }

    pub(super) fn look(&mut self, snapshot: &Snapshot, now: Instant) -> Look {
        let pause = (now - self.since) / PAUSE_SHARE;
        self.look_at = now + pause.clamp(PAUSE_MIN, PAUSE_MAX);
        let tell = self.last.as_ref() != Some(snapshot);
        self.last = Some(snapshot.clone());
        Look { tell, over: snapshot.xmin >= self.all_below }
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
        assert_eq!(look(&mut Stragglers::since(Instant::now(), 7), "7:7:"), (true, true));
    }

    #[tokio::test]
    async fn who_runs_is_waited_for_though_no_later_one_has_ended() {
        let mut stragglers = Stragglers::since(Instant::now(), 8);
        assert_eq!(look(&mut stragglers, "7:7:"), (true, false), "7 runs, and no snapshot shows it yet");
        assert_eq!(look(&mut stragglers, "9:9:"), (true, true));
    }

    #[tokio::test]
    async fn who_was_running_is_waited_for_and_nobody_who_came_later() {
        let mut stragglers = Stragglers::since(Instant::now(), 9);
        assert_eq!(look(&mut stragglers, "5:9:5,7"), (true, false));
        assert_eq!(look(&mut stragglers, "5:9:5,7"), (false, false), "nothing was committed");
        assert_eq!(look(&mut stragglers, "5:12:5,11"), (true, false));
        assert_eq!(look(&mut stragglers, "11:12:11"), (true, true));
    }
}
