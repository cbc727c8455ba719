//! The engine through its public boundary: a real store in a file, real sinks, a real receiver.

use std::time::Duration;

pub(crate) mod receiver;
mod world;
mod node;
mod faulty;

mod delivery;
mod retries;
mod order;
mod limits;
mod shortage;
mod breaker;
mod neighbours;
mod steering;
mod changes;
mod prefetch;
mod settling;
mod stopping;
mod crash;
mod outage;
mod measures;
mod replays;
mod upkeep;

/// Long enough for a slow machine; every wait ends as soon as what it waits for is there.
const PATIENCE: Duration = Duration::from_secs(20);
