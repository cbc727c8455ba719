//! What this node counts of its own work, for metrics: a few additions for each attempt, and whoever asks reads them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use jiff::Timestamp;

use super::histogram::{Buckets, Histogram};
use super::slots::Slots;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::sink::Resource;
use crate::store::figures::{ENDPOINTS_MAX, OTHERS};
use crate::store::{AttemptOutcome, Results, Store};
use crate::verdict::{Class, Outcome};

/// Upper bounds in seconds: from a receiver in the same room to the longest timeout people set.
const DURATION_BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Upper bounds in seconds: from a direct claim to a day of retries.
const DELAY_BOUNDS: &[f64] = &[
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    21_600.0, 86_400.0,
];

/// How an attempt can end, with its class.
const ENDS: [(AttemptOutcome, Option<Class>); 5] = [
    (AttemptOutcome::Delivered, None),
    (AttemptOutcome::Failed, Some(Class::Retryable)),
    (AttemptOutcome::Failed, Some(Class::Permanent)),
    (AttemptOutcome::Failed, Some(Class::Gone)),
    (AttemptOutcome::Lost, Some(Class::Retryable)),
];

/// What a node did so far; outlives its engine.
#[derive(Clone)]
pub struct Measures {
    pub(super) tally: Arc<Tally>,
    pub(super) slots: Arc<Slots>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFigures {
    /// Claims that run or are about to.
    pub in_flight: u32,
    pub in_flight_max: u32,
    /// How often an attempt could not be made for want of it.
    pub shortages: Vec<(Resource, u64)>,
    /// The first hundred that this node heard of, and the rest as one.
    pub endpoints: Vec<EndpointFigures>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EndpointFigures {
    pub endpoint: String,
    pub in_flight: u32,
    pub attempts: Vec<(AttemptOutcome, Option<Class>, u64)>,
    /// Of attempts.
    pub durations: Buckets,
    /// From created to delivered.
    pub delays: Buckets,
}

impl Measures {
    pub fn read(&self) -> NodeFigures {
        let lines = &self.tally.lines.read().expect("nobody panics while holding the tally").of;
        let mut others = self.tally.dropped.read(OTHERS, 0);
        let mut endpoints = Vec::with_capacity(lines.len().min(ENDPOINTS_MAX) + 1);
        for (id, line) in lines {
            let figures = line.read(&line.endpoint, self.slots.taken(*id));
            if line.stands_alone { endpoints.push(figures) } else { others.add(&figures) }
        }
        if others.attempts.iter().any(|(_, _, count)| *count > 0) || endpoints.len() < lines.len() {
            endpoints.push(others);
        }
        let shortages = Resource::ALL.into_iter().zip(&self.tally.shortages);
        NodeFigures {
            in_flight: self.slots.taken_in_all(),
            in_flight_max: self.slots.total(),
            shortages: shortages.map(|(of, count)| (of, count.load(Relaxed))).collect(),
            endpoints,
        }
    }
}

impl EndpointFigures {
    fn add(&mut self, other: &Self) {
        self.in_flight += other.in_flight;
        for ((_, _, count), (_, _, more)) in self.attempts.iter_mut().zip(&other.attempts) {
            *count += more;
        }
        self.durations.add(&other.durations);
        self.delays.add(&other.delays);
    }
}

/// One line for each endpoint. What dropped ones did is kept together, so that no sum ever shrinks.
pub(super) struct Tally {
    lines: RwLock<Lines>,
    dropped: Line,
    /// As [`Resource::ALL`].
    shortages: [AtomicU64; Resource::ALL.len()],
}

#[derive(Default)]
struct Lines {
    of: BTreeMap<EndpointId, Arc<Line>>,
    /// How many of them stand alone.
    alone: usize,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            lines: RwLock::default(),
            dropped: Line::new(OTHERS.into(), false),
            shortages: Default::default(),
        }
    }

    pub(super) fn line(&self, endpoint: &Endpoint) -> Arc<Line> {
        let mut lines = self.lines.write().expect("nobody panics while holding the tally");
        if let Some(line) = lines.of.get(&endpoint.id) {
            return Arc::clone(line);
        }
        let line = Arc::new(Line::new(endpoint.name.clone(), lines.alone < ENDPOINTS_MAX));
        lines.alone += usize::from(line.stands_alone);
        lines.of.insert(endpoint.id, Arc::clone(&line));
        line
    }

    pub(super) fn forget(&self, endpoint: EndpointId) {
        let mut lines = self.lines.write().expect("nobody panics while holding the tally");
        if let Some(line) = lines.of.remove(&endpoint) {
            lines.alone -= usize::from(line.stands_alone);
            self.dropped.add(&line);
        }
    }

    /// An attempt could not be made.
    pub(super) fn short_of(&self, resource: Resource) {
        self.shortages[resource as usize].fetch_add(1, Relaxed);
    }

    /// A claim was lost with its node.
    pub(super) fn lost(&self, endpoint: EndpointId) {
        let lines = self.lines.read().expect("nobody panics while holding the tally");
        let line = lines.of.get(&endpoint).map_or(&self.dropped, |line| &**line);
        line.attempts[4].fetch_add(1, Relaxed);
        line.untold().lost += 1;
    }

    /// Tells the store what attempts came to. What it does not note is told with what comes next.
    pub(super) async fn tell(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut untold = self.take_untold();
        if untold.is_empty() {
            return Ok(());
        }
        let noted = store.note_results(untold.clone()).await;
        if let Ok(noted) = &noted {
            untold.retain(|(endpoint, _)| !noted.contains(endpoint));
        }
        let lines = self.lines.read().expect("nobody panics while holding the tally");
        for (endpoint, earlier) in untold {
            if let Some(line) = lines.of.get(&endpoint) {
                let mut since = line.untold();
                *since = earlier.then(std::mem::take(&mut *since));
            }
        }
        noted.map(drop)
    }

    fn take_untold(&self) -> Vec<(EndpointId, Results)> {
        let lines = self.lines.read().expect("nobody panics while holding the tally");
        let taken = lines.of.iter().map(|(endpoint, line)| (*endpoint, std::mem::take(&mut *line.untold())));
        taken.filter(|(_, results)| *results != Results::default()).collect()
    }
}

pub(super) struct Line {
    endpoint: Arc<str>,
    /// Or among the others, for good: a sum that an endpoint leaves would shrink.
    stands_alone: bool,
    /// As [`ENDS`].
    attempts: [AtomicU64; ENDS.len()],
    durations: Histogram,
    delays: Histogram,
    /// What the store has not heard yet.
    untold: Mutex<Results>,
}

impl Line {
    fn new(endpoint: Arc<str>, stands_alone: bool) -> Self {
        Self {
            endpoint,
            stands_alone,
            attempts: Default::default(),
            durations: Histogram::new(DURATION_BOUNDS),
            delays: Histogram::new(DELAY_BOUNDS),
            untold: Mutex::default(),
        }
    }

    fn untold(&self) -> MutexGuard<'_, Results> {
        self.untold.lock().expect("nobody panics while holding results")
    }

    /// `age`: since the message was created.
    pub(super) fn attempted(
        &self,
        outcome: &Outcome,
        ended_at: Timestamp,
        duration: Duration,
        age: Duration,
    ) {
        self.untold().add(outcome, ended_at);
        let end = match outcome {
            Outcome::Delivered(_) => 0,
            Outcome::Failed(failure) => match failure.class {
                Class::Retryable => 1,
                Class::Permanent => 2,
                Class::Gone => 3,
            },
            // A node that stops counts no more.
            Outcome::Lost { .. } | Outcome::CutOff => 4,
        };
        self.attempts[end].fetch_add(1, Relaxed);
        self.durations.observe(duration);
        if end == 0 {
            self.delays.observe(age);
        }
    }

    fn add(&self, other: &Self) {
        for (count, more) in self.attempts.iter().zip(&other.attempts) {
            count.fetch_add(more.load(Relaxed), Relaxed);
        }
        self.durations.add(&other.durations);
        self.delays.add(&other.delays);
    }

    fn read(&self, endpoint: &str, in_flight: u32) -> EndpointFigures {
        let counts = ENDS.iter().zip(&self.attempts);
        EndpointFigures {
            endpoint: endpoint.to_owned(),
            in_flight,
            attempts: counts
                .map(|((outcome, class), count)| (*outcome, *class, count.load(Relaxed)))
                .collect(),
            durations: self.durations.read(),
            delays: self.delays.read(),
        }
    }
}
