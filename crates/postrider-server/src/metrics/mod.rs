//! What a scrape gets: the store's figures, this node's own, and its process, on one page.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use postrider::Operate;
use postrider::engine::Measures;
use tokio::sync::Mutex;
use tokio::time::Instant;

pub(crate) use families::{FAMILIES, Family, MetricKind};
pub(crate) use page::MetricsPage;

mod families;
mod page;
mod process;

/// However many scrape, the store is asked this often.
const CACHED: Duration = Duration::from_secs(1);
/// A store that does not answer in time is down, as far as a scrape is concerned.
const PATIENCE: Duration = Duration::from_secs(3);

/// The pages of one node.
pub(crate) struct Metrics {
    operate: Arc<dyn Operate>,
    /// From the start of the engine on.
    measures: Arc<OnceLock<Measures>>,
    /// Held while a page is made, so that requests that come meanwhile get the same one.
    latest: Mutex<Option<(Instant, Texts)>>,
}

/// One page in both of its forms.
#[derive(Clone)]
pub(crate) struct Texts {
    /// `application/openmetrics-text; version=1.0.0`
    pub(crate) openmetrics: Bytes,
    /// `text/plain; version=0.0.4`
    pub(crate) plain: Bytes,
}

impl Metrics {
    pub(crate) fn new(operate: Arc<dyn Operate>, measures: Arc<OnceLock<Measures>>) -> Self {
        Self { operate, measures, latest: Mutex::default() }
    }

    pub(crate) async fn texts(&self) -> Texts {
        let mut latest = self.latest.lock().await;
        if let Some((at, texts)) = &*latest
            && at.elapsed() < CACHED
        {
            return texts.clone();
        }
        let texts = self.page().await.texts();
        *latest = Some((Instant::now(), texts.clone()));
        texts
    }

    /// A node whose store is down still tells what it did itself.
    async fn page(&self) -> MetricsPage {
        let store = match tokio::time::timeout(PATIENCE, self.operate.figures()).await {
            Ok(Ok(figures)) => Some(figures),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the store did not tell its figures");
                None
            }
            Err(_) => None,
        };
        let node = self.measures.get().map(Measures::read).unwrap_or_default();
        MetricsPage { store, node, process: process::figures() }
    }
}
