//! A store that refuses when it is told to, and counts how often it was asked meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider::breaker::Circuit;
use postrider::endpoint::EndpointId;
use postrider::message::{Fence, LostClaim, NodeId};
use postrider::store::{
    Arrival, ClaimRequest, Claimed, Cleaned, Effect, Expired, Hello, Joined, ReplayTurn, Result, Results,
    Settled, Settlement, Snapshot, Suspect, Waiting,
};
use postrider::{MessageId, Operate, SqliteStore, Store, StoreError};
use serde_json::Map;
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::Instant;

pub(super) struct Faulty {
    store: Arc<SqliteStore>,
    pub(super) failing: AtomicBool,
    /// Heartbeats that are still to be refused.
    pub(super) refused_heartbeats: AtomicU32,
    pub(super) heartbeats: AtomicUsize,
    /// Before the next heartbeat another process sets `node_lease` to so many seconds.
    pub(super) lowers_lease: std::sync::Mutex<Option<u32>>,
    /// So many heartbeats are answered; the others wait.
    pub(super) answers: Semaphore,
    /// Settles that are still to be refused.
    pub(super) refused_settles: AtomicU32,
    /// When it was asked to settle. Time stands still from the first refusal on, but for what is waited for.
    pub(super) asked_to_settle: std::sync::Mutex<Vec<Instant>>,
    /// It settles everything later.
    pub(super) postponing: AtomicBool,
    /// How often it was asked to settle a message that it settles later.
    pub(super) postponed: std::sync::Mutex<HashMap<MessageId, u32>>,
    /// Messages that it settled.
    pub(super) settled: AtomicUsize,
    /// Messages that it handed out to those who claim.
    pub(super) claimed: AtomicUsize,
    /// However many lost claims are judged, there are more of them.
    pub(super) endless_losses: AtomicBool,
    /// Questions it refused.
    pub(super) refused: AtomicUsize,
    /// Those of the dispatcher, which then backs off.
    pub(super) refused_to_dispatcher: AtomicUsize,
    /// Where it tells the node that joined.
    pub(super) arrivals: std::sync::Mutex<Option<mpsc::UnboundedSender<Arrival>>>,
    /// Every snapshot waits for this one afterwards.
    pub(super) loading: Mutex<()>,
    /// Whoever claims waits for this one afterwards.
    pub(super) handing_out: Mutex<()>,
    /// Whoever leaves waits for this one afterwards.
    pub(super) leaving: Mutex<()>,
    pub(super) left: AtomicUsize,
    /// Notes of results that are still to be refused.
    pub(super) refused_notes: AtomicU32,
    pub(super) looked_for_expired: AtomicUsize,
    last_upkeep: std::sync::Mutex<Option<Instant>>,
    /// The upkeep turns in which everything was cleaned up. A test may advance its clock as soon as it sees a turn, so the
    /// end of a clean-up may be later.
    pub(super) cleaned_up: std::sync::Mutex<Vec<Instant>>,
}

impl Faulty {
    pub(super) fn over(store: &Arc<SqliteStore>) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            failing: AtomicBool::new(false),
            refused_heartbeats: AtomicU32::new(0),
            heartbeats: AtomicUsize::new(0),
            lowers_lease: std::sync::Mutex::default(),
            answers: Semaphore::new(Semaphore::MAX_PERMITS),
            refused_settles: AtomicU32::new(0),
            asked_to_settle: std::sync::Mutex::default(),
            postponing: AtomicBool::new(false),
            postponed: std::sync::Mutex::default(),
            settled: AtomicUsize::new(0),
            claimed: AtomicUsize::new(0),
            endless_losses: AtomicBool::new(false),
            refused: AtomicUsize::new(0),
            refused_to_dispatcher: AtomicUsize::new(0),
            arrivals: std::sync::Mutex::default(),
            loading: Mutex::default(),
            handing_out: Mutex::default(),
            leaving: Mutex::default(),
            left: AtomicUsize::new(0),
            refused_notes: AtomicU32::new(0),
            looked_for_expired: AtomicUsize::new(0),
            last_upkeep: std::sync::Mutex::default(),
            cleaned_up: std::sync::Mutex::default(),
        })
    }

    pub(super) fn fail(&self, failing: bool) {
        self.failing.store(failing, SeqCst);
    }

    fn ask(&self) -> Result<&SqliteStore> {
        if self.failing.load(SeqCst) {
            self.refused.fetch_add(1, SeqCst);
            return Err(StoreError::Unavailable("the disk is full".to_owned()));
        }
        Ok(&self.store)
    }

    fn ask_as_dispatcher(&self) -> Result<&SqliteStore> {
        self.ask().inspect_err(|_| {
            self.refused_to_dispatcher.fetch_add(1, SeqCst);
        })
    }

    fn later(&self, settlement: &Settlement) -> Settled {
        let Settlement { id, endpoint, .. } = *settlement;
        *self.postponed.lock().unwrap().entry(id).or_default() += 1;
        Settled { id, endpoint, effect: Effect::Later, unblocked: None }
    }
}

/// Of an endpoint that is not there.
fn lost_claim() -> LostClaim {
    LostClaim {
        id: MessageId(1),
        endpoint: EndpointId(-1),
        fence: Fence { node: NodeId(-1), batch: 1 },
        attempt: 1,
        attempts_before: 0,
        losses: 0,
        alone: false,
        started_at: Timestamp::UNIX_EPOCH,
        expires_at: None,
        options: Map::new(),
    }
}

fn one_of(left: &AtomicU32) -> bool {
    left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok()
}

#[async_trait]
impl Store for Faulty {
    fn name(&self) -> Arc<str> {
        self.store.name()
    }

    fn now(&self) -> Timestamp {
        self.store.now()
    }

    async fn join(&self, hello: Hello) -> Result<Joined> {
        *self.arrivals.lock().unwrap() = Some(hello.arrivals.clone());
        self.ask()?.join(hello).await
    }

    async fn heartbeat(&self, node: NodeId) -> Result<Duration> {
        self.heartbeats.fetch_add(1, SeqCst);
        if one_of(&self.refused_heartbeats) {
            return Err(StoreError::Unavailable("no heartbeat today".to_owned()));
        }
        let lowered = self.lowers_lease.lock().unwrap().take();
        if let Some(seconds) = lowered {
            self.store.configure(vec![("node_lease".into(), seconds.to_string())]).await?;
        }
        let confirmed = self.ask()?.heartbeat(node).await;
        self.answers.acquire().await.expect("never closed").forget();
        confirmed
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.ask()?.leave(node).await?;
        self.left.fetch_add(1, SeqCst);
        drop(self.leaving.lock().await);
        Ok(())
    }

    async fn snapshot(&self, known: Option<i64>) -> Result<Option<Arc<Snapshot>>> {
        let snapshot = self.ask_as_dispatcher()?.snapshot(known).await;
        drop(self.loading.lock().await);
        snapshot
    }

    async fn waiting(&self) -> Result<Vec<Waiting>> {
        self.ask_as_dispatcher()?.waiting().await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed> {
        let claimed = self.ask_as_dispatcher()?.claim(request).await?;
        drop(self.handing_out.lock().await);
        self.claimed.fetch_add(claimed.claims.len(), SeqCst);
        Ok(claimed)
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        let refused = one_of(&self.refused_settles);
        self.asked_to_settle.lock().unwrap().push(Instant::now());
        if refused {
            if self.asked_to_settle.lock().unwrap().len() == 1 {
                tokio::time::pause();
            }
            return Err(StoreError::Unavailable("no settling today".to_owned()));
        }
        if self.postponing.load(SeqCst) {
            return Ok(settlements.iter().map(|settlement| self.later(settlement)).collect());
        }
        let settled = self.ask_as_dispatcher()?.settle(settlements).await?;
        self.settled.fetch_add(settled.len(), SeqCst);
        Ok(settled)
    }

    async fn suspects(&self, limit: usize) -> Result<Vec<Suspect>> {
        self.ask_as_dispatcher()?.suspects(limit).await
    }

    async fn lost_claims(&self, limit: usize) -> Result<Vec<LostClaim>> {
        if self.endless_losses.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            return Ok((0..limit).map(|_| lost_claim()).collect());
        }
        self.ask()?.lost_claims(limit).await
    }

    async fn move_circuit(&self, endpoint: EndpointId, from_epoch: i64, to: Circuit) -> Result<bool> {
        self.ask()?.move_circuit(endpoint, from_epoch, to).await
    }

    async fn upkeep(&self, limit: usize) -> Result<Vec<Expired>> {
        let expired = self.ask()?.upkeep(limit).await;
        *self.last_upkeep.lock().unwrap() = Some(Instant::now());
        self.looked_for_expired.fetch_add(1, SeqCst);
        expired
    }

    async fn clean_up(&self, limit: usize) -> Result<Cleaned> {
        let cleaned = self.ask()?.clean_up(limit).await?;
        if !cleaned.more {
            self.cleaned_up.lock().unwrap().extend(*self.last_upkeep.lock().unwrap());
        }
        Ok(cleaned)
    }

    async fn note_results(&self, results: Vec<(EndpointId, Results)>) -> Result<Vec<EndpointId>> {
        if one_of(&self.refused_notes) {
            return Err(StoreError::Unavailable("no notes today".to_owned()));
        }
        self.ask()?.note_results(results).await
    }

    async fn advance_replays(&self, limit: usize) -> Result<ReplayTurn> {
        self.ask()?.advance_replays(limit).await
    }
}
