//! What is shown while the demo runs: counters and recent happenings. The account does not rely on it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use postrider::State;
use postrider::breaker::CircuitName;
use postrider::engine::{EngineEvent, EngineEventKind};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

#[derive(Default)]
pub(super) struct DemoTally(Mutex<DemoCounts>);

#[derive(Clone, Debug, Default)]
pub(super) struct DemoCounts {
    pub(super) sent: usize,
    pub(super) delivered: usize,
    pub(super) retries: usize,
    pub(super) dead: usize,
    pub(super) expired: usize,
    pub(super) circuits: BTreeMap<String, CircuitName>,
    circuits_opened: usize,
    news: VecDeque<String>,
}

impl DemoTally {
    pub(super) fn sent(&self, count: usize) {
        self.lock().sent += count;
    }

    pub(super) fn note(&self, news: String) {
        self.lock().news.push_back(news);
    }

    pub(super) fn circuits_opened(&self) -> usize {
        self.lock().circuits_opened
    }

    /// The counters, and what happened since the last look.
    pub(super) fn look(&self) -> (DemoCounts, Vec<String>) {
        let mut counts = self.lock();
        let news = counts.news.drain(..).collect();
        (counts.clone(), news)
    }

    pub(super) async fn watch(self: Arc<Self>, mut events: Receiver<EngineEvent>) {
        loop {
            match events.recv().await {
                Ok(event) => self.count(event),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    fn count(&self, event: EngineEvent) {
        let mut counts = self.lock();
        let endpoint = &event.endpoint_name;
        match event.kind {
            EngineEventKind::Attempted { message, state, error, .. } => match state {
                State::Completed => counts.delivered += 1,
                State::Pending | State::Processing => counts.retries += 1,
                State::Expired | State::Cancelled => counts.expired += 1,
                State::Dead => {
                    counts.dead += 1;
                    let why = error.unwrap_or_default();
                    counts.news.push_back(format!("message {message} of {endpoint} is dead: {why}"));
                }
            },
            EngineEventKind::Lost { message, .. } => {
                counts.news.push_back(format!("the claim of message {message} was lost"));
            }
            EngineEventKind::Circuit { to, .. } => {
                counts.circuits_opened += usize::from(to == CircuitName::Open);
                let what = match to {
                    CircuitName::Closed => "closes: deliveries go on",
                    CircuitName::HalfOpen => "is half open: one message goes as a probe",
                    CircuitName::Open => "opens: its messages wait and cost nothing",
                };
                counts.news.push_back(format!("the circuit of {endpoint} {what}"));
                counts.circuits.insert(endpoint.to_string(), to);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DemoCounts> {
        self.0.lock().expect("nothing panics while it counts")
    }
}
