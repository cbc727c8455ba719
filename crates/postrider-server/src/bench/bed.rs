//! A store with a paused endpoint and a backlog, delivered by an engine in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::Environment;
use postrider::{Engine, EngineOptions, NewEndpoint, NewMessage, Operate, Store};
use serde_json::{Map, Value};

use super::partner::Partner;
use super::sink::Measured;
use crate::failure::CommandError;
use crate::store_url::StoreUrl;

pub(super) const HEALTHY: &str = "healthy";
const BATCH: u32 = 1000;
/// For the whole of one delivery; far above what a target allows.
const PATIENCE: Duration = Duration::from_secs(600);

pub(super) struct Bed {
    pub(super) store: Arc<dyn Operate>,
    engine: Arc<dyn Store>,
}

/// About 200 bytes, as the targets say.
pub(super) fn payload(number: u32) -> String {
    let filler = "0123456789abcdef".repeat(9);
    format!(r#"{{"number":{number},"kind":"bench","filler":"{filler}"}}"#)
}

impl Bed {
    pub(super) async fn open(url: &StoreUrl) -> Result<Self, CommandError> {
        let store = url.open_node(true).await?;
        store.api.configure(vec![("max_queue_size".to_owned(), "0".to_owned())]).await?;
        Ok(Self { store: store.api, engine: store.engine })
    }

    pub(super) async fn create_endpoint(&self, name: &str, url: String) -> Result<(), CommandError> {
        let config = Map::from_iter([("url".to_owned(), Value::String(url))]);
        self.create_measured(name, &Measured { protocol: "http".to_owned(), config }).await
    }

    pub(super) async fn create_measured(&self, name: &str, measured: &Measured) -> Result<(), CommandError> {
        let Measured { protocol, config } = measured.clone();
        let endpoint =
            NewEndpoint { name: name.to_owned(), protocol, config, retry_policy: None, options: None };
        self.store.create_endpoint(endpoint).await?;
        Ok(())
    }

    pub(super) async fn create_paused(&self, name: &str, url: String) -> Result<(), CommandError> {
        self.create_endpoint(name, url).await?;
        self.store.set_endpoint_paused(name, true).await?;
        Ok(())
    }

    /// Fills the queue; `keys` 0 means no ordering keys.
    pub(super) async fn fill(&self, name: &str, count: u32, keys: u32) -> Result<(), CommandError> {
        let mut from = 0;
        while from < count {
            let to = (from + BATCH).min(count);
            let batch = (from..to).map(|number| message(name, number, keys)).collect();
            self.store.send_batch(batch).await?;
            from = to;
        }
        Ok(())
    }

    pub(super) async fn start_engine(&self, drain_timeout: Duration) -> Result<Engine, CommandError> {
        self.start_engine_in(environment(), drain_timeout).await
    }

    pub(super) async fn start_engine_in(
        &self,
        environment: Environment,
        drain_timeout: Duration,
    ) -> Result<Engine, CommandError> {
        let options = EngineOptions { environment, drain_timeout, ..EngineOptions::default() };
        Ok(Engine::start(Arc::clone(&self.engine), options).await?)
    }

    /// Messages a second from resuming the healthy endpoint until all its `count` messages arrived
    /// and are settled in the store.
    pub(super) async fn deliver(&self, partner: &mut Partner, count: u32) -> Result<f64, CommandError> {
        partner.reset().await?;
        let began = Instant::now();
        self.store.set_endpoint_paused(HEALTHY, false).await?;
        partner.until_counted(u64::from(count), PATIENCE).await?;
        self.until_settled(began + PATIENCE).await?;
        Ok(f64::from(count) / began.elapsed().as_secs_f64())
    }

    /// Until no endpoint has a message.
    pub(super) async fn until_empty(&self) -> Result<(), CommandError> {
        self.until_settled_where(Instant::now() + PATIENCE, |_| true).await
    }

    async fn until_settled(&self, deadline: Instant) -> Result<(), CommandError> {
        self.until_settled_where(deadline, |name| name == HEALTHY).await
    }

    async fn until_settled_where(
        &self,
        deadline: Instant,
        is_measured: impl Fn(&str) -> bool,
    ) -> Result<(), CommandError> {
        loop {
            let status = self.store.status().await?;
            let measured = status.endpoints.iter().filter(|endpoint| is_measured(&endpoint.name));
            match measured.map(|endpoint| endpoint.pending + endpoint.processing).sum::<u64>() {
                0 => return Ok(()),
                open if Instant::now() >= deadline => {
                    return Err(CommandError::failed(format!("{open} messages were not settled in time")));
                }
                _ => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }
}

/// Receivers are on this machine.
pub(super) fn environment() -> Environment {
    Environment { allow_internal: true, ..Environment::default() }
}

fn message(endpoint: &str, number: u32, keys: u32) -> NewMessage {
    let message = NewMessage::new(endpoint, payload(number));
    if keys == 0 { message } else { message.ordering_key(format!("key-{}", number % keys)) }
}
