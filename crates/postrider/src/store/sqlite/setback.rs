//! The wall clock was set back. Stored times are absolute, so a retry due in 10 s would wait as long as the jump. These
//! steps pull times in, so that no message waits longer than its policy allows.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use rusqlite::params;

use super::endpoints;
use super::keys::QueuePlace;
use super::query::Query;
use super::row::micros_of;
use super::shown::ShownRow;
use super::writer::Write;
use crate::endpoint::EndpointId;
use crate::retry::RetryPolicy;
use crate::store::Result;
use crate::verdict::RETRY_AFTER_MAX;

/// Smaller corrections are common, and a retry that is a minute late does no harm.
const JUMP_MIN: SignedDuration = SignedDuration::from_secs(60);
/// Rows in one step: about 2 ms where nothing has to be changed.
const STEP_ROWS: usize = 1000;
/// After an error: the disk may need a while.
const TROUBLE_WAIT: Duration = Duration::from_secs(1);
/// No replay waits longer: the longest interval of a rate limit is an hour.
const REPLAY_REST_MAX: Duration = Duration::from_secs(3600);

/// What the writer knows of the clock between its transactions.
pub(super) struct ClockWatch {
    /// Only the node corrects times.
    owned: bool,
    last: Option<(Instant, Timestamp)>,
    correction: Option<Correction>,
    not_before: Option<Instant>,
}

/// Which stored times are corrected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Correction {
    Beginning,
    Reservations,
    /// Messages up to this id are done.
    Messages(i64),
}

impl ClockWatch {
    /// `last_heartbeat` is the latest one of any node.
    pub(super) fn of_file(owned: bool, last_heartbeat: Option<Timestamp>, now: Timestamp) -> Self {
        let mut watch = Self { owned, last: None, correction: None, not_before: None };
        if let Some(ahead) = last_heartbeat.map(|last| last.duration_since(now)).filter(|by| *by > JUMP_MIN) {
            watch.was_set_back(ahead);
        }
        watch
    }

    /// At the beginning of a transaction.
    pub(super) fn observe(&mut self, now: Timestamp, at: Instant) {
        let Some((last_at, last)) = self.last.replace((at, now)) else { return };
        match jump(now.duration_since(last), at.duration_since(last_at)) {
            Some(by) if by.is_negative() => self.was_set_back(-by),
            Some(by) => {
                tracing::warn!(
                    "The clock jumped ahead by {} s: retries and expiry come earlier",
                    by.as_secs()
                );
            }
            None => {}
        }
    }

    fn was_set_back(&mut self, by: SignedDuration) {
        if !self.owned {
            return;
        }
        tracing::warn!(
            seconds = by.as_secs(),
            "The clock was set back: retries that would wait longer than their policy allows are pulled in; scheduled messages and expiry stay as they are"
        );
        self.correction = Some(Correction::Beginning);
        self.not_before = None;
    }

    /// The next step, unless it has to wait.
    pub(super) fn due(&self) -> Option<Correction> {
        self.correction.filter(|_| self.not_before.is_none_or(|at| at <= Instant::now()))
    }

    /// The step was committed.
    pub(super) fn corrected(&mut self, next: Option<Correction>) {
        self.correction = next;
    }

    /// It was rolled back.
    pub(super) fn retry_later(&mut self) {
        self.not_before = Some(Instant::now() + TROUBLE_WAIT);
    }
}

/// How much further the wall clock moved than time passed; None when that is no jump.
fn jump(moved: SignedDuration, passed: Duration) -> Option<SignedDuration> {
    let by = moved.saturating_sub(SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX));
    (by.abs() > JUMP_MIN).then_some(by)
}

/// The times of a pending message.
struct PendingTimes {
    due_at: Timestamp,
    scheduled_at: Option<Timestamp>,
    /// Attempts of the current budget.
    used: u32,
    /// Its receiver asked for this time.
    asked: bool,
}

/// Its new due time; None when its policy allows the present one.
fn pulled_in(waiting: &PendingTimes, policy: &RetryPolicy, now: Timestamp, dice: f64) -> Option<Timestamp> {
    let not_before_schedule = |at: Timestamp| waiting.scheduled_at.map_or(at, |scheduled| scheduled.max(at));
    let delay = |dice| waiting.used.checked_sub(1).map_or(Duration::ZERO, |n| policy.delay(n, dice));
    let longest = if waiting.asked { RETRY_AFTER_MAX.max(delay(1.0)) } else { delay(1.0) };
    let latest = not_before_schedule(now + longest);
    (waiting.due_at > latest).then(|| not_before_schedule(now + delay(dice)))
}

/// One bounded step; returns the next one, or None at the end.
pub(super) fn correct(
    write: &mut Write<'_>,
    correction: Correction,
    until: Instant,
) -> Result<Option<Correction>> {
    match correction {
        Correction::Beginning => {
            correct_endpoints(write)?;
            correct_claims_and_replays(write)?;
            // What nodes have in memory is from before the jump, too.
            endpoints::reload(write)?;
            Ok(Some(Correction::Reservations))
        }
        Correction::Reservations => {
            let corrected = correct_reservations(write)?;
            Ok(Some(if corrected == STEP_ROWS {
                Correction::Reservations
            } else {
                Correction::Messages(i64::MIN)
            }))
        }
        Correction::Messages(after) => correct_messages(write, after, until),
    }
}

/// Circuits, probes and Retry-After holds. Nodes reload an endpoint with a new epoch.
fn correct_endpoints(write: &Write<'_>) -> Result<()> {
    let settings = write.config.settings();
    let latest = |most: Duration| micros_of(write.now + most);
    let values = params![
        latest(settings.retry_max_delay),
        latest(settings.circuit_breaker_cooldown),
        latest(settings.stale_recovery_timeout),
    ];
    write.conn.run(
        "UPDATE _postrider_endpoints SET circuit_epoch = circuit_epoch + 1,
           held_until = CASE WHEN held_until > ?1 THEN ?1 ELSE held_until END,
           circuit_until = CASE WHEN circuit = 'open' AND circuit_until > ?2 THEN ?2
                                WHEN circuit = 'half_open' AND circuit_until > ?3 THEN ?3
                                ELSE circuit_until END
         WHERE dropped_at IS NULL AND (held_until > ?1 OR (circuit = 'open' AND circuit_until > ?2)
           OR (circuit = 'half_open' AND circuit_until > ?3))",
        values,
    )
}

/// A running attempt cannot have begun later than now.
fn correct_claims_and_replays(write: &Write<'_>) -> Result<()> {
    let now = micros_of(write.now);
    write.conn.run(
        "UPDATE _postrider_queue INDEXED BY _postrider_queue_claimed SET started_at = ?1
         WHERE place = 2 AND started_at > ?1",
        [now],
    )?;
    let rested = micros_of(write.now + REPLAY_REST_MAX);
    write.conn.run(
        "UPDATE _postrider_replays SET next_at = ?1 WHERE state = 'running' AND next_at > ?2",
        [now, rested],
    )?;
    Ok(())
}

fn correct_reservations(write: &Write<'_>) -> Result<usize> {
    let latest = micros_of(write.now + write.config.settings().idempotency_retention);
    write.conn.run_counted(
        "UPDATE _postrider_reservations SET until = ?1 WHERE (endpoint_id, idempotency_key) IN
         (SELECT endpoint_id, idempotency_key FROM _postrider_reservations WHERE until > ?1 LIMIT ?2)",
        params![latest, STEP_ROWS as i64],
    )
}

fn correct_messages(write: &mut Write<'_>, after: i64, until: Instant) -> Result<Option<Correction>> {
    let rows = next_rows(write, after)?;
    let mut endpoints = BTreeSet::new();
    let (count, mut reached) = (rows.len(), after);
    for row in rows {
        if reached > after && Instant::now() > until {
            return Ok(tell(write, endpoints, Some(Correction::Messages(reached))));
        }
        reached = row.id;
        if row.place == QueuePlace::Claimed || row.waiting.due_at <= write.now {
            continue;
        }
        let Some(endpoint) = write.config.by_id(row.endpoint).cloned() else { continue };
        let policy = endpoint.retry_policy(write.config.settings());
        if let Some(due_at) = pulled_in(&row.waiting, &policy, write.now, rand::random()) {
            put_due(write, row.id, due_at)?;
            endpoints.insert(row.endpoint);
        }
    }
    Ok(tell(write, endpoints, (count == STEP_ROWS).then_some(Correction::Messages(reached))))
}

fn tell(
    write: &mut Write<'_>,
    endpoints: BTreeSet<EndpointId>,
    next: Option<Correction>,
) -> Option<Correction> {
    endpoints.into_iter().for_each(|endpoint| write.tell_pending(endpoint));
    next
}

struct PendingRow {
    id: i64,
    endpoint: EndpointId,
    place: QueuePlace,
    waiting: PendingTimes,
}

fn next_rows(write: &Write<'_>, after: i64) -> Result<Vec<PendingRow>> {
    write.conn.rows(
        "SELECT id, endpoint_id, place, due_at, attempts, attempts_before, scheduled_at, asked
         FROM _postrider_queue
         WHERE id > ?1 ORDER BY id LIMIT ?2",
        params![after, STEP_ROWS as i64],
        |row| {
            let row = ShownRow(row);
            Ok(PendingRow {
                id: row.whole(0),
                endpoint: EndpointId(row.whole(1)),
                place: QueuePlace::from_column(row.whole(2)),
                waiting: PendingTimes {
                    due_at: row.time(3).unwrap_or_default(),
                    scheduled_at: row.time(6),
                    used: row.count(4).saturating_sub(row.count(5)),
                    asked: row.whole(7) != 0,
                },
            })
        },
    )
}

fn put_due(write: &Write<'_>, id: i64, due_at: Timestamp) -> Result<()> {
    write.conn.run(
        "UPDATE _postrider_queue SET due_at = ?2, asked = 0 WHERE id = ?1",
        params![id, micros_of(due_at)],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::RetryOverrides;
    use crate::settings::Settings;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).expect("in range")
    }

    #[test]
    fn a_jump_is_what_the_clock_moved_more_than_time_passed() {
        let seconds = SignedDuration::from_secs;
        for (moved, passed, expected) in [
            (5, 5, None),
            (60, 0, None),
            (-60, 0, None),
            (61, 0, Some(61)),
            (-61, 0, Some(-61)),
            (3600, 3600, None),
            (-86_400, 10, Some(-86_410)),
            (0, 100, Some(-100)),
        ] {
            let found = jump(seconds(moved), Duration::from_secs(passed));
            assert_eq!(found, expected.map(seconds), "{moved} in {passed}");
        }
    }

    /// With the default policy retries come after 10, 20, 40 … 300 s.
    #[test]
    fn a_due_time_is_pulled_in_when_the_policy_cannot_have_put_it_there() {
        let policy = RetryOverrides::default().over(&Settings::default());
        let now = at(0);
        let waiting = |due, used, scheduled: Option<i64>, asked| PendingTimes {
            due_at: at(due),
            scheduled_at: scheduled.map(at),
            used,
            asked,
        };
        for (case, expected) in [
            // Never tried: due when it was sent.
            (waiting(1, 0, None, false), Some(0)),
            (waiting(0, 0, None, false), None),
            // After its first attempt, its second and its fourth.
            (waiting(10, 1, None, false), None),
            (waiting(11, 1, None, false), Some(10)),
            (waiting(500_000, 2, None, false), Some(20)),
            (waiting(80, 4, None, false), None),
            // A receiver may ask for a day.
            (waiting(86_400, 1, None, true), None),
            (waiting(86_401, 1, None, true), Some(10)),
            // Scheduled is scheduled, however far away.
            (waiting(900_000, 0, Some(900_000), false), None),
            (waiting(900_001, 0, Some(900_000), false), Some(900_000)),
            (waiting(900_000, 3, Some(5), false), Some(40)),
        ] {
            let found = pulled_in(&case, &policy, now, 0.5);
            assert_eq!(found, expected.map(at), "{:?} {}", case.due_at, case.used);
        }
    }
}
