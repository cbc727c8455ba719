//! The engine: claims what is due, attempts it, settles it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::dispatcher::{Dispatcher, Parts};
use self::events::Events;
use self::janitor::Janitor;
use self::journal::{Journal, Written};
use self::lease::{Began, Lease, LeaseKeeper};
use self::replayer::Replayer;
use self::slots::Slots;
use self::tally::Tally;
use crate::endpoint::Endpoint;
use crate::error::StoreError;
use crate::message::NewMessage;
use crate::sink::Environment;
use crate::store::{Hello, Store};
use crate::trace::Tracer;

pub use events::{Event, Happening};
pub use histogram::Buckets;
pub use tally::{EndpointFigures, Measures, NodeFigures};
pub use trial::{Trial, TrialReport};

mod dispatcher;
mod lanes;
mod lane;
mod circuits;
mod errand;
mod slots;
mod stock;
mod supply;
mod shortages;
mod concurrency;
mod attempt;
mod mask;
mod trial;
mod ended;
mod settlement;
mod spans;
mod journal;
mod tally;
mod histogram;
mod probation;
mod lease;
mod janitor;
mod replayer;
mod events;

pub const IN_FLIGHT_DEFAULT: u32 = 1024;
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

/// Lost claims judged in one transaction.
const LOST_CLAIMS_MAX: usize = 250;
/// A dispatcher that has not turned for this long is stuck.
const PULSE_LOST: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Shown to people: `host:pid` or what they chose.
    pub node_name: String,
    /// Attempts running at once on this node, over all endpoints.
    pub max_in_flight: u32,
    /// How long a clean stop waits for running attempts.
    pub drain_timeout: Duration,
    pub environment: Environment,
    /// None makes no spans, and costs nothing.
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
    written: Written,
    pulse: Arc<Pulse>,
    stop_dispatcher: CancellationToken,
    stop_upkeep: CancellationToken,
    dispatcher: JoinHandle<()>,
    upkeep: Vec<JoinHandle<()>>,
}

impl Engine {
    pub async fn start(store: Arc<dyn Store>, options: EngineOptions) -> Result<Self, StoreError> {
        let slots = Arc::new(Slots::new(options.max_in_flight));
        let (arrivals, inbox) = mpsc::unbounded_channel();
        let hello =
            Hello { name: options.node_name.clone(), arrivals: arrivals.clone(), direct: slots.clone() };
        let began = Began::now();
        let joined = store.join(hello).await?;
        let snapshot = match store.snapshot(None).await {
            Ok(snapshot) => snapshot.expect("a snapshot of no known version is always given"),
            Err(error) => {
                // Nobody listens under its name: the store must not claim for it.
                let _ = store.leave(joined.node).await;
                return Err(error);
            }
        };
        let lease = Arc::new(Lease::new(joined, began));
        let (events, pulse, suspects) = (Events::new(), Arc::new(Pulse::new()), Arc::new(Notify::new()));
        let measures = Measures { tally: Arc::new(Tally::new()), slots: slots.clone() };
        let (journal, written) = Journal::open();
        let (settings, settings_now) = watch::channel(snapshot.settings.clone());
        let (stop_dispatcher, stop_upkeep) = (CancellationToken::new(), CancellationToken::new());

        let keeper = LeaseKeeper {
            store: store.clone(),
            lease: lease.clone(),
            granted: joined.lease,
            name: options.node_name,
            arrivals,
            slots: slots.clone(),
            events: events.clone(),
            tally: measures.tally.clone(),
            journal: journal.clone(),
            suspects: suspects.clone(),
            snapshot: snapshot.clone(),
        };
        let janitor = Janitor {
            store: store.clone(),
            journal: journal.clone(),
            tally: measures.tally.clone(),
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
            slots,
            lease: lease.clone(),
            events: events.clone(),
            tally: measures.tally.clone(),
            journal,
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
            written,
            pulse,
            stop_dispatcher,
            stop_upkeep,
            dispatcher,
            upkeep,
        })
    }

    /// What happens from now on. A slow reader misses events, it never slows the engine.
    pub fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// What this node did so far.
    pub fn measures(&self) -> Measures {
        self.measures.clone()
    }

    /// The dispatcher turned within the last seconds, and the lease is confirmed.
    pub fn is_progressing(&self) -> bool {
        !self.dispatcher.is_finished() && self.pulse.is_felt() && self.lease.is_valid()
    }

    /// A message that goes to the receiver as this node would send it, and is in no queue.
    pub fn trial(&self, endpoint: Endpoint, message: NewMessage, body_bytes_max: usize) -> Trial {
        Trial::new(endpoint, self.environment.clone(), self.store.name(), message, body_bytes_max)
    }

    /// Stops claiming, waits for running attempts up to `drain_timeout`, gives the rest back.
    pub async fn stop(self) {
        self.stop_dispatcher.cancel();
        if let Err(error) = self.dispatcher.await {
            tracing::error!(%error, "the dispatcher ended badly");
        }
        self.stop_upkeep.cancel();
        for task in self.upkeep {
            let _ = task.await;
        }
        if let Err(error) = self.measures.tally.tell(&*self.store).await {
            tracing::warn!(%error, "could not store attempt results");
        }
        if let Err(error) = self.store.leave(self.lease.node()).await {
            tracing::warn!(%error, "could not leave the store; its claims are taken over after the lease");
        }
        self.written.wait().await;
    }
}

/// When the dispatcher last turned, in milliseconds since the engine started.
struct Pulse(AtomicU64, tokio::time::Instant);

impl Pulse {
    fn new() -> Self {
        Self(AtomicU64::new(0), tokio::time::Instant::now())
    }

    fn beat(&self) {
        self.0.store(self.1.elapsed().as_millis() as u64, Relaxed);
    }

    fn is_felt(&self) -> bool {
        let last = Duration::from_millis(self.0.load(Relaxed));
        self.1.elapsed().saturating_sub(last) < PULSE_LOST
    }
}
