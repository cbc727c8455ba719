//! The engine: claims due messages, attempts them, settles them.
//!
//! [`Engine::start`] runs a node in this process: the dispatcher (claim, attempt, settle), and three upkeep tasks (lease,
//! janitor, replayer).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::capacity::Capacity;
use self::counters::NodeCounters;
use self::dispatcher::{Dispatcher, Parts};
use self::events::Events;
use self::janitor::Janitor;
use self::lease::{Lease, LeaseKeeper, LeaseStart};
use self::replayer::Replayer;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::message::NewMessage;
use crate::outcome_log::{OutcomeLog, OutcomeLogEnd};
use crate::sink::{Environment, SinkConnection};
use crate::store::{Hello, Store};
use crate::trace::Tracer;

pub use counters::{EndpointFigures, Measures, NodeFigures};
pub use events::{EngineEvent, EngineEventKind};
pub use histogram::Buckets;
pub use test_delivery::{TestDelivery, TestDeliveryReport};

mod dispatcher;
mod poll;
mod endpoint_states;
mod endpoint_state;
mod capacity;
mod concurrency;
mod prefetch;
mod shortage;
mod attempt;
mod test_delivery;
mod settlement;
mod ended_claim;
mod settle_queue;
mod store_backoff;
mod probation;
mod lease;
mod janitor;
mod replayer;
mod events;
mod spans;
mod counters;
mod histogram;

pub const IN_FLIGHT_DEFAULT: u32 = 1024;
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

/// A dispatcher whose loop has not turned for this long is stuck.
const PULSE_LOST: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// For people, like `host:pid`.
    pub node_name: String,
    /// Attempts that run at once on this node, over all endpoints.
    pub max_in_flight: u32,
    /// How long a clean stop waits for running attempts.
    pub drain_timeout: Duration,
    pub environment: Environment,
    /// None: no spans.
    pub tracer: Option<Tracer>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            node_name: format!("node:{}", std::process::id()),
            max_in_flight: IN_FLIGHT_DEFAULT,
            drain_timeout: DRAIN_TIMEOUT_DEFAULT,
            environment: Environment::default(),
            tracer: None,
        }
    }
}

/// A running node.
pub struct Engine {
    store: Arc<dyn Store>,
    environment: Arc<Environment>,
    lease: Arc<Lease>,
    events: Events,
    measures: Measures,
    outcome_log_end: OutcomeLogEnd,
    pulse: Arc<Pulse>,
    stop_dispatcher: CancellationToken,
    stop_upkeep: CancellationToken,
    dispatcher: JoinHandle<()>,
    upkeep: Vec<JoinHandle<()>>,
}

impl Engine {
    pub async fn start(store: Arc<dyn Store>, options: EngineOptions) -> Result<Self, StoreError> {
        let capacity = Arc::new(Capacity::new(options.max_in_flight));
        let (arrivals, inbox) = mpsc::unbounded_channel();
        let hello =
            Hello { name: options.node_name.clone(), arrivals: arrivals.clone(), direct: capacity.clone() };
        let started = LeaseStart::now();
        let joined = store.join(hello).await?;
        let snapshot = match store.snapshot(None).await {
            Ok(snapshot) => snapshot.expect("a snapshot of no known version is always given"),
            Err(error) => {
                // No dispatcher runs for this node: the store must not claim for it.
                let _ = store.leave(joined.node).await;
                return Err(error);
            }
        };
        let lease = Arc::new(Lease::new(joined, started));
        let (events, pulse, suspects) = (Events::new(), Arc::new(Pulse::new()), Arc::new(Notify::new()));
        let measures = Measures { counters: Arc::new(NodeCounters::new()), capacity: capacity.clone() };
        let (outcome_log, outcome_log_end) = OutcomeLog::open();
        let (settings, settings_now) = watch::channel(snapshot.settings.clone());
        let (stop_dispatcher, stop_upkeep) = (CancellationToken::new(), CancellationToken::new());

        let keeper = LeaseKeeper {
            store: store.clone(),
            lease: lease.clone(),
            granted: joined.lease,
            name: options.node_name,
            arrivals,
            capacity: capacity.clone(),
            events: events.clone(),
            counters: measures.counters.clone(),
            outcome_log: outcome_log.clone(),
            suspects: suspects.clone(),
            snapshot: snapshot.clone(),
        };
        let janitor = Janitor {
            store: store.clone(),
            outcome_log: outcome_log.clone(),
            counters: measures.counters.clone(),
            settings: settings_now,
        };
        let upkeep = vec![
            tokio::spawn(keeper.run(stop_upkeep.clone())),
            tokio::spawn(janitor.run(stop_upkeep.clone())),
            tokio::spawn(Replayer { store: store.clone() }.run(stop_upkeep.clone())),
        ];
        let environment = Arc::new(options.environment);
        let dispatcher = Dispatcher::new(Parts {
            store: store.clone(),
            environment: environment.clone(),
            capacity,
            lease: lease.clone(),
            events: events.clone(),
            counters: measures.counters.clone(),
            outcome_log,
            tracer: options.tracer,
            pulse: pulse.clone(),
            snapshot,
            settings,
        });
        let dispatcher =
            tokio::spawn(dispatcher.run(inbox, suspects, stop_dispatcher.clone(), options.drain_timeout));
        Ok(Self {
            store,
            environment,
            lease,
            events,
            measures,
            outcome_log_end,
            pulse,
            stop_dispatcher,
            stop_upkeep,
            dispatcher,
            upkeep,
        })
    }

    /// What happens from now on. A slow reader misses events and does not slow the engine.
    pub fn events(&self) -> broadcast::Receiver<EngineEvent> {
        self.events.subscribe()
    }

    /// The node's counters.
    pub fn measures(&self) -> Measures {
        self.measures.clone()
    }

    /// Whether this node is connected to an endpoint's receiver. None where it made no attempt yet.
    pub fn connection(&self, endpoint: EndpointId) -> Option<SinkConnection> {
        self.measures.connection(endpoint)
    }

    /// The dispatcher's loop turned within the last seconds, and the lease is valid.
    pub fn is_progressing(&self) -> bool {
        !self.dispatcher.is_finished() && self.pulse.is_recent() && self.lease.is_valid()
    }

    /// Tests an endpoint: delivers one message as this node would, without queueing it.
    pub fn test_delivery(
        &self,
        endpoint: Endpoint,
        message: NewMessage,
        body_bytes_max: usize,
    ) -> TestDelivery {
        TestDelivery::new(endpoint, self.environment.clone(), self.store.name(), message, body_bytes_max)
    }

    /// Stops claiming, waits up to `drain_timeout` for running attempts, and releases the rest.
    pub async fn stop(self) {
        self.stop_dispatcher.cancel();
        if let Err(error) = self.dispatcher.await {
            tracing::error!(%error, "the dispatcher panicked");
        }
        self.stop_upkeep.cancel();
        for task in self.upkeep {
            let _ = task.await;
        }
        if let Err(error) = self.measures.counters.report(&*self.store).await {
            tracing::warn!(%error, "could not store attempt results");
        }
        if let Err(error) = self.store.leave(self.lease.node()).await {
            tracing::warn!(%error, "could not leave the store; other nodes take over the claims when the lease ends");
        }
        self.outcome_log_end.wait().await;
    }
}

/// When the dispatcher's loop last turned, in milliseconds since the engine started.
struct Pulse(AtomicU64, tokio::time::Instant);

impl Pulse {
    fn new() -> Self {
        Self(AtomicU64::new(0), tokio::time::Instant::now())
    }

    fn beat(&self) {
        self.0.store(self.1.elapsed().as_millis() as u64, Relaxed);
    }

    fn is_recent(&self) -> bool {
        let last = Duration::from_millis(self.0.load(Relaxed));
        self.1.elapsed().saturating_sub(last) < PULSE_LOST
    }
}
