//! What a receiver saw, in the order it saw it.

use std::collections::{BTreeMap, HashMap, HashSet};

use jiff::Timestamp;
use serde::Deserialize;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) arrivals: Vec<ReceivedRequest>,
}

#[derive(Debug)]
pub(super) struct ReceivedRequest {
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) body: DemoPayload,
    /// What was answered.
    pub(super) status: u16,
    /// Answered only after the sender had stopped waiting.
    pub(super) stalled: bool,
    pub(super) at: Timestamp,
}

/// The payload as the demo's sender wrote it.
#[derive(Debug, Deserialize)]
pub(super) struct DemoPayload {
    pub(super) number: u32,
    pub(super) kind: String,
    pub(super) key: Option<String>,
    pub(super) place: Option<u32>,
    pub(super) sent_us: i64,
}

impl Ledger {
    pub(super) fn enter(&mut self, arrival: ReceivedRequest) {
        self.arrivals.push(arrival);
    }

    fn acknowledged(&self) -> impl Iterator<Item = &ReceivedRequest> {
        self.arrivals.iter().filter(|arrival| arrival.status < 300)
    }

    /// Ids that were answered 2xx, with how long the first acknowledgement took since the send.
    pub(super) fn delivered(&self) -> HashMap<&str, f64> {
        let mut delivered = HashMap::new();
        for arrival in self.acknowledged() {
            let seconds = (arrival.at.as_microsecond() - arrival.body.sent_us) as f64 / 1e6;
            delivered.entry(arrival.id.as_str()).or_insert(seconds);
        }
        delivered
    }

    /// Arrivals of what had been accepted before.
    pub(super) fn duplicates(&self) -> usize {
        let mut accepted = HashSet::new();
        let mut duplicates = 0;
        for arrival in &self.arrivals {
            duplicates += usize::from(accepted.contains(arrival.id.as_str()));
            if arrival.status < 300 {
                accepted.insert(arrival.id.as_str());
            }
        }
        duplicates
    }

    /// Keys, and how often a message of a key came for the first time after a later one had come.
    pub(super) fn order(&self) -> (usize, usize) {
        let mut seen = HashSet::new();
        let mut last: HashMap<&str, u32> = HashMap::new();
        let mut violations = 0;
        for arrival in &self.arrivals {
            let (Some(key), Some(place)) = (arrival.body.key.as_deref(), arrival.body.place) else {
                continue;
            };
            if !seen.insert(arrival.id.as_str()) {
                continue;
            }
            let last = last.entry(key).or_default();
            violations += usize::from(place < *last);
            *last = place.max(*last);
        }
        (last.len(), violations)
    }

    /// Messages that came under more than one id.
    pub(super) fn renamed(&self) -> usize {
        let mut names: HashMap<u32, &str> = HashMap::new();
        self.arrivals
            .iter()
            .filter(|arrival| *names.entry(arrival.body.number).or_insert(&arrival.id) != arrival.id)
            .count()
    }

    pub(super) fn answers(&self) -> BTreeMap<u16, usize> {
        let mut answers = BTreeMap::new();
        for arrival in &self.arrivals {
            *answers.entry(arrival.status).or_default() += 1;
        }
        answers
    }

    pub(super) fn stalls(&self) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.stalled).count()
    }

    pub(super) fn highest_attempt(&self) -> u32 {
        self.arrivals.iter().map(|arrival| arrival.attempt).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(id: &str, key: &str, place: u32, status: u16) -> ReceivedRequest {
        let body = DemoPayload {
            number: place,
            kind: "ordinary".to_owned(),
            key: Some(key.to_owned()),
            place: Some(place),
            sent_us: 0,
        };
        ReceivedRequest {
            id: id.to_owned(),
            attempt: 1,
            body,
            status,
            stalled: false,
            at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_late_duplicate_is_no_violation_and_a_late_first_is() {
        let mut ledger = Ledger::default();
        for (id, place) in [("a", 1), ("b", 2), ("a", 1), ("d", 4), ("c", 3)] {
            ledger.enter(arrival(id, "k", place, 200));
        }
        assert_eq!(ledger.order(), (1, 1));
        assert_eq!(ledger.duplicates(), 1);
    }

    #[test]
    fn a_retry_after_a_failure_is_no_duplicate() {
        let mut ledger = Ledger::default();
        ledger.enter(arrival("a", "k", 1, 500));
        ledger.enter(arrival("a", "k", 1, 200));
        assert_eq!(ledger.duplicates(), 0);
        assert_eq!(ledger.delivered().len(), 1);
    }
}
