//! Counters of this node for `/metrics`: a few additions for each attempt. The store gets attempt results from here, too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Duration;

use jiff::Timestamp;

use super::attempt::EndpointSink;
use super::capacity::Capacity;
use super::histogram::{Buckets, Histogram};
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::protocol::Protocol;
use crate::sink::{Resource, SinkConnection};
use crate::store::figures::{ENDPOINTS_MAX, OTHERS};
use crate::store::{AttemptOutcome, Results, Store};
use crate::verdict::{Class, Outcome};

/// Upper bounds in seconds: from a receiver on the same host to the longest usual timeout.
const DURATION_BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];
/// Upper bounds in seconds: from a direct claim to a day of retries.
const DELAY_BOUNDS: &[f64] = &[
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
    21_600.0, 86_400.0,
];

/// How an attempt can end, with its class. Counters are in this order.
const ENDS: [(AttemptOutcome, Option<Class>); 5] = [
    (AttemptOutcome::Delivered, None),
    (AttemptOutcome::Failed, Some(Class::Retryable)),
    (AttemptOutcome::Failed, Some(Class::Permanent)),
    (AttemptOutcome::Failed, Some(Class::Gone)),
    (AttemptOutcome::Lost, Some(Class::Retryable)),
];

/// A node's counters, to be read at any time. Outlives the engine.
#[derive(Clone)]
pub struct Measures {
    pub(super) counters: Arc<NodeCounters>,
    pub(super) capacity: Arc<Capacity>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFigures {
    /// Claims that run or wait to run.
    pub in_flight: u32,
    pub in_flight_max: u32,
    /// How many attempts could not start because the node lacked the resource.
    pub shortages: Vec<(Resource, u64)>,
    /// The hundred oldest endpoints each by name, the rest summed.
    pub endpoints: Vec<EndpointFigures>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EndpointFigures {
    pub endpoint: String,
    /// None for the others together.
    pub protocol: Option<Protocol>,
    /// None before the first attempt.
    pub connection: Option<SinkConnection>,
    pub in_flight: u32,
    pub attempts: Vec<(AttemptOutcome, Option<Class>, u64)>,
    /// Failed attempts after which the receiver may have the message.
    pub ambiguous: u64,
    /// How long attempts took.
    pub durations: Buckets,
    /// From creation to delivery.
    pub delays: Buckets,
}

impl Measures {
    pub fn read(&self) -> NodeFigures {
        let counted = &self.counters.read().by_id;
        let mut others = self.counters.dropped.read(OTHERS, 0);
        let mut endpoints = Vec::with_capacity(counted.len().min(ENDPOINTS_MAX) + 1);
        for (id, counters) in counted {
            let figures = counters.read(&counters.endpoint, self.capacity.taken(*id));
            if counters.has_own_label { endpoints.push(figures) } else { others.add(&figures) }
        }
        if others.attempts.iter().any(|(_, _, count)| *count > 0) || endpoints.len() < counted.len() {
            endpoints.push(others);
        }
        let shortages = Resource::ALL.into_iter().zip(&self.counters.shortages);
        NodeFigures {
            in_flight: self.capacity.taken_in_all(),
            in_flight_max: self.capacity.total(),
            shortages: shortages.map(|(of, count)| (of, count.load(Relaxed))).collect(),
            endpoints,
        }
    }
}

impl Measures {
    /// Whether this node is connected to the receiver. None where it made no attempt yet.
    pub fn connection(&self, endpoint: EndpointId) -> Option<SinkConnection> {
        self.counters.read().by_id.get(&endpoint)?.connection()
    }
}

impl EndpointFigures {
    fn add(&mut self, other: &Self) {
        self.in_flight += other.in_flight;
        for ((_, _, count), (_, _, more)) in self.attempts.iter_mut().zip(&other.attempts) {
            *count += more;
        }
        self.ambiguous += other.ambiguous;
        self.durations.add(&other.durations);
        self.delays.add(&other.delays);
    }
}

pub(super) struct NodeCounters {
    endpoints: RwLock<EndpointTable>,
    /// The sum of dropped endpoints, so that no metric ever shrinks.
    dropped: EndpointCounters,
    /// In the order of [`Resource::ALL`].
    shortages: [AtomicU64; Resource::ALL.len()],
}

#[derive(Default)]
struct EndpointTable {
    by_id: BTreeMap<EndpointId, Arc<EndpointCounters>>,
    own_labels: usize,
}

impl NodeCounters {
    pub(super) fn new() -> Self {
        Self {
            endpoints: RwLock::default(),
            dropped: EndpointCounters::new(OTHERS.into(), None, false),
            shortages: Default::default(),
        }
    }

    pub(super) fn endpoint(&self, endpoint: &Endpoint) -> Arc<EndpointCounters> {
        let mut endpoints = self.write();
        if let Some(counters) = endpoints.by_id.get(&endpoint.id) {
            return Arc::clone(counters);
        }
        let has_own_label = endpoints.own_labels < ENDPOINTS_MAX;
        let counters =
            Arc::new(EndpointCounters::new(endpoint.name.clone(), Some(endpoint.protocol), has_own_label));
        endpoints.own_labels += usize::from(has_own_label);
        endpoints.by_id.insert(endpoint.id, Arc::clone(&counters));
        counters
    }

    pub(super) fn forget(&self, endpoint: EndpointId) {
        let mut endpoints = self.write();
        if let Some(counters) = endpoints.by_id.remove(&endpoint) {
            endpoints.own_labels -= usize::from(counters.has_own_label);
            self.dropped.add(&counters);
        }
    }

    /// An attempt could not start.
    pub(super) fn short_of(&self, resource: Resource) {
        self.shortages[resource as usize].fetch_add(1, Relaxed);
    }

    /// A claim was lost with its node.
    pub(super) fn lost(&self, endpoint: EndpointId) {
        let endpoints = self.read();
        let counters = endpoints.by_id.get(&endpoint).map_or(&self.dropped, |counters| &**counters);
        counters.attempts[4].fetch_add(1, Relaxed);
        counters.unreported().lost += 1;
    }

    /// Reports attempt results to the store. Results that the store does not note are reported again next time.
    pub(super) async fn report(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut unreported = self.take_unreported();
        if unreported.is_empty() {
            return Ok(());
        }
        let noted = store.note_results(unreported.clone()).await;
        if let Ok(noted) = &noted {
            unreported.retain(|(endpoint, _)| !noted.contains(endpoint));
        }
        let endpoints = self.read();
        for (endpoint, earlier) in unreported {
            if let Some(counters) = endpoints.by_id.get(&endpoint) {
                let mut since = counters.unreported();
                *since = earlier.then(std::mem::take(&mut *since));
            }
        }
        noted.map(drop)
    }

    fn take_unreported(&self) -> Vec<(EndpointId, Results)> {
        let endpoints = self.read();
        let taken = endpoints.by_id.iter().map(|(id, of)| (*id, std::mem::take(&mut *of.unreported())));
        taken.filter(|(_, results)| *results != Results::default()).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, EndpointTable> {
        self.endpoints.read().expect("no code panics while holding this lock")
    }

    fn write(&self) -> RwLockWriteGuard<'_, EndpointTable> {
        self.endpoints.write().expect("no code panics while holding this lock")
    }
}

pub(super) struct EndpointCounters {
    endpoint: Arc<str>,
    protocol: Option<Protocol>,
    /// The sink that attempts use now.
    sink: Mutex<Weak<EndpointSink>>,
    /// Or it is counted among the others, for good: their sum may not shrink.
    has_own_label: bool,
    /// In the order of [`ENDS`].
    attempts: [AtomicU64; ENDS.len()],
    ambiguous: AtomicU64,
    durations: Histogram,
    delays: Histogram,
    /// For the store.
    unreported: Mutex<Results>,
}

impl EndpointCounters {
    fn new(endpoint: Arc<str>, protocol: Option<Protocol>, has_own_label: bool) -> Self {
        Self {
            endpoint,
            protocol,
            sink: Mutex::default(),
            has_own_label,
            attempts: Default::default(),
            ambiguous: AtomicU64::new(0),
            durations: Histogram::new(DURATION_BOUNDS),
            delays: Histogram::new(DELAY_BOUNDS),
            unreported: Mutex::default(),
        }
    }

    fn unreported(&self) -> MutexGuard<'_, Results> {
        self.unreported.lock().expect("no code panics while holding this lock")
    }

    /// To tell whether it is connected.
    pub(super) fn watch(&self, sink: &Arc<EndpointSink>) {
        *self.sink.lock().expect("no code panics while holding this lock") = Arc::downgrade(sink);
    }

    fn connection(&self) -> Option<SinkConnection> {
        let sink = self.sink.lock().expect("no code panics while holding this lock").upgrade();
        sink?.connection()
    }

    /// `age`: since the message was created.
    pub(super) fn attempted(
        &self,
        outcome: &Outcome,
        ended_at: Timestamp,
        duration: Duration,
        age: Duration,
    ) {
        self.unreported().add(outcome, ended_at);
        let end = match outcome {
            Outcome::Delivered(_) => 0,
            Outcome::Failed(failure) => match failure.class {
                Class::Retryable => 1,
                Class::Permanent => 2,
                Class::Gone => 3,
            },
            Outcome::Lost { .. } | Outcome::CutOff => 4,
        };
        self.attempts[end].fetch_add(1, Relaxed);
        if matches!(outcome, Outcome::Failed(failure) if failure.ambiguous) {
            self.ambiguous.fetch_add(1, Relaxed);
        }
        self.durations.observe(duration);
        if end == 0 {
            self.delays.observe(age);
        }
    }

    fn add(&self, other: &Self) {
        for (count, more) in self.attempts.iter().zip(&other.attempts) {
            count.fetch_add(more.load(Relaxed), Relaxed);
        }
        self.ambiguous.fetch_add(other.ambiguous.load(Relaxed), Relaxed);
        self.durations.add(&other.durations);
        self.delays.add(&other.delays);
    }

    fn read(&self, endpoint: &str, in_flight: u32) -> EndpointFigures {
        let counts = ENDS.iter().zip(&self.attempts);
        EndpointFigures {
            endpoint: endpoint.to_owned(),
            protocol: self.protocol,
            connection: self.connection(),
            in_flight,
            attempts: counts
                .map(|((outcome, class), count)| (*outcome, *class, count.load(Relaxed)))
                .collect(),
            ambiguous: self.ambiguous.load(Relaxed),
            durations: self.durations.read(),
            delays: self.delays.read(),
        }
    }
}
