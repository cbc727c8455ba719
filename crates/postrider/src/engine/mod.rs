//! The engine: claims what is due, attempts it, settles it.

use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;
use crate::sink::Environment;
use crate::store::Store;

pub use events::{Event, Happening};

mod events;

pub const IN_FLIGHT_DEFAULT: usize = 1024;
pub const DRAIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Shown to people: `host:pid` or what they chose.
    pub node_name: String,
    /// Attempts running at once on this node, over all endpoints.
    pub max_in_flight: usize,
    /// How long a clean stop waits for running attempts.
    pub drain_timeout: Duration,
    pub environment: Environment,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            node_name: format!("node:{}", std::process::id()),
            max_in_flight: IN_FLIGHT_DEFAULT,
            drain_timeout: DRAIN_TIMEOUT_DEFAULT,
            environment: Environment::default(),
        }
    }
}

/// A running node.
pub struct Engine {}

impl Engine {
    pub async fn start(_store: Arc<dyn Store>, _options: EngineOptions) -> Result<Self, StoreError> {
        Ok(Self {})
    }

    /// What happens from now on. A slow reader misses events, it never slows the engine.
    pub fn events(&self) -> tokio::sync::broadcast::Receiver<Event> {
        tokio::sync::broadcast::channel(1).1
    }

    /// The dispatcher made a turn, and the lease was confirmed, within the last seconds.
    pub fn is_progressing(&self) -> bool {
        true
    }

    /// Stops claiming, waits for running attempts up to `drain_timeout`, gives the rest back.
    pub async fn stop(self) {}
}
