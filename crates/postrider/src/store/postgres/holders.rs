//! Sessions that hold a lock which nodes or senders need for too long.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;
use postgres_types::Json;
use serde::Serialize;
use tokio_postgres::Row;

use super::SharedState;
use super::row::Span;
use crate::store::Result;

/// The locks that were held at the last look, and since when this process has seen them.
#[derive(Default)]
pub(super) struct LockHolders(Mutex<HashMap<HeldLock, Sight>>);

/// One session's hold on one lock. A session that ends its transaction and takes the lock again holds it anew.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct HeldLock {
    lock: String,
    session: String,
    #[serde(skip)]
    transaction: Option<String>,
    endpoint_id: Option<i64>,
    stops_delivery: bool,
    #[serde(skip)]
    patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sight {
    since: Timestamp,
    is_told: bool,
}

#[derive(Serialize)]
struct Noted<'a> {
    #[serde(flatten)]
    held: &'a HeldLock,
    since: Timestamp,
}

impl LockHolders {
    /// One sentence per session that blocks nodes or senders.
    pub(super) fn sentences(&self) -> Vec<String> {
        let seen = self.lock();
        let told = seen.iter().filter(|(_, sight)| sight.is_told);
        told.map(|(held, sight)| {
            format!("{} holds the lock of {} since {}", held.session, held.lock, sight.since)
        })
        .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<HeldLock, Sight>> {
        self.0.lock().expect("no panic while looking at locks")
    }
}

/// Runs once a second. Logs each holder once, and stores the current ones for others to read.
pub(super) async fn look(shared: &SharedState) -> Result<()> {
    let holders = "SELECT lock, session, transaction, endpoint_id, stops_delivery, patience FROM postrider._lock_holders()";
    let found = shared.own.query(holders, &[]).await?.iter().map(held).collect();
    let noted = {
        let mut seen = shared.holders.lock();
        let before = std::mem::take(&mut *seen);
        let had_any = before.values().any(|sight| sight.is_told);
        *seen = judge(&before, found, Timestamp::now());
        log(&before, &seen);
        let told = seen.iter().filter(|(_, sight)| sight.is_told);
        let told: Vec<Noted<'_>> = told.map(|(held, sight)| Noted { held, since: sight.since }).collect();
        (had_any || !told.is_empty()).then(|| serde_json::to_value(told)).transpose().unwrap_or_default()
    };
    match noted {
        Some(noted) => {
            let note = "SELECT set_config('lock_timeout', '1s', true), postrider._note_in_the_way($1)";
            shared.own.call(note, &[&Json(noted)]).await
        }
        None => Ok(()),
    }
}

fn held(row: &Row) -> HeldLock {
    HeldLock {
        lock: row.get(0),
        session: row.get(1),
        transaction: row.get(2),
        endpoint_id: row.get(3),
        stops_delivery: row.get(4),
        patience: row.get::<_, Span>(5).0,
    }
}

/// A lock that is seen for longer than its patience is reported.
fn judge(
    before: &HashMap<HeldLock, Sight>,
    found: Vec<HeldLock>,
    now: Timestamp,
) -> HashMap<HeldLock, Sight> {
    found
        .into_iter()
        .map(|held| {
            let mut sight = before.get(&held).copied().unwrap_or(Sight { since: now, is_told: false });
            sight.is_told |= now.duration_since(sight.since).unsigned_abs() >= held.patience;
            (held, sight)
        })
        .collect()
}

fn log(before: &HashMap<HeldLock, Sight>, seen: &HashMap<HeldLock, Sight>) {
    let is_told = |seen: &HashMap<HeldLock, Sight>, held| seen.get(held).is_some_and(|sight| sight.is_told);
    for (HeldLock { session, lock, .. }, Sight { since, .. }) in
        seen.iter().filter(|(held, _)| is_told(seen, held) && !is_told(before, held))
    {
        tracing::warn!(holder = session, lock, %since, "a session holds a lock that nodes or senders wait for");
    }
    for (HeldLock { session, lock, .. }, _) in
        before.iter().filter(|(held, _)| is_told(before, held) && !is_told(seen, held))
    {
        tracing::info!(
            holder = session,
            lock,
            "a session released the lock that nodes or senders waited for"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(transaction: &str) -> HeldLock {
        HeldLock {
            lock: "all claims".into(),
            session: "role \"stranger\" (process 7)".into(),
            transaction: Some(transaction.into()),
            endpoint_id: None,
            stops_delivery: true,
            patience: Duration::from_secs(1),
        }
    }

    #[test]
    fn only_what_one_transaction_holds_for_longer_than_a_moment_is_in_the_way() {
        let at = |seconds: i64| Timestamp::from_second(seconds).expect("a time");
        let told = |seen: &HashMap<HeldLock, Sight>| seen.values().filter(|sight| sight.is_told).count();
        let first = judge(&HashMap::new(), vec![held("3/1")], at(0));
        assert_eq!(told(&first), 0, "for a moment");
        let another = judge(&first, vec![held("3/2")], at(1));
        assert_eq!(told(&another), 0, "again, in another transaction");
        let still = judge(&first, vec![held("3/1")], at(1));
        assert_eq!(still[&held("3/1")], Sight { since: at(0), is_told: true });
        let still = judge(&still, vec![held("3/1")], at(2));
        assert_eq!(still[&held("3/1")].since, at(0));
        assert!(judge(&still, Vec::new(), at(3)).is_empty());
    }
}
