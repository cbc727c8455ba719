//! A store with one endpoint `a` and one node, and short words for what tests do to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider::endpoint::{EndpointId, NewEndpoint};
use postrider::message::{Claim, Fence, LostClaim, NodeId};
use postrider::store::{
    Arrival, AttemptOutcome, AttemptRecord, ClaimRequest, Claimed, DeadLetter, DirectClaims, DlqFilter,
    Effect, End, EventRecord, Evicted, Hello, Keyring, NextDue, NoDirectClaims, Pick, Settled, Settlement,
    Story, Want,
};
use postrider::verdict::{Class, DeadReason, Verdict};
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// What a store needs to be tested.
#[async_trait]
pub(crate) trait Harness: Send + Sync + Sized + 'static {
    type S: Store + Operate + Keyring;
    /// Whoever opens the data again knows that the nodes before it are dead.
    const REOPENING_ENDS_EARLIER_NODES: bool;
    /// Empty data, and a clock that stands still.
    async fn new() -> Self;
    /// Opens the same data, again after a crash: the handle before it was dropped, not left.
    async fn open(&self) -> Self::S;
    /// Opens the same data beside the one that is open, as another process does that runs no node.
    async fn beside(&self) -> Self::S;
    fn advance(&self, by: Duration);
    /// Another program writes into the row of a queued message what no node can read.
    async fn damage(&self, id: MessageId, damage: Damage);
}

/// What of a row is damaged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Damage {
    Headers,
    Options,
    CreatedAt,
    ExpiresAt,
}

impl Damage {
    pub(crate) const ALL: [Self; 4] = [Self::Headers, Self::Options, Self::CreatedAt, Self::ExpiresAt];

    pub(crate) fn column(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Options => "options",
            Self::CreatedAt => "created_at",
            Self::ExpiresAt => "expires_at",
        }
    }
}

pub(crate) struct World<H: Harness> {
    harness: H,
    store: Option<H::S>,
    /// The endpoint that every world has.
    pub(crate) a: EndpointId,
    pub(crate) node: NodeId,
    pub(crate) arrivals: mpsc::UnboundedReceiver<Arrival>,
    batch: i64,
}

impl<H: Harness> World<H> {
    pub(crate) async fn start() -> Self {
        let mut world = Self::over(H::new().await, EndpointId(0)).await;
        world.a = world.endpoint("a", json!({})).await;
        world
    }

    /// Where there is data already, and this endpoint `a`.
    pub(crate) async fn over(harness: H, a: EndpointId) -> Self {
        let store = harness.open().await;
        let (node, arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
        Self { harness, store: Some(store), a, node, arrivals, batch: 0 }
    }

    /// The process dies without a word; what it leaves behind.
    pub(crate) fn die_out(self) -> H {
        self.harness
    }

    pub(crate) fn store(&self) -> &H::S {
        self.store.as_ref().expect("a world has a store between crashes")
    }

    pub(crate) fn harness(&self) -> &H {
        &self.harness
    }

    /// The process dies without a word and another one opens the data.
    pub(crate) async fn crash(&mut self) {
        drop(self.store.take());
        let store = self.harness.open().await;
        (self.node, self.arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
        self.store = Some(store);
    }

    pub(crate) fn advance(&self, seconds: u64) {
        self.harness.advance(Duration::from_secs(seconds));
    }

    /// Time passes while this world's node keeps its lease.
    pub(crate) async fn live(&self, seconds: u64) {
        for _ in 0..seconds {
            self.advance(1);
            self.store().heartbeat(self.node).await.expect("a living node keeps its lease");
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.store().now()
    }

    pub(crate) fn in_seconds(&self, seconds: u64) -> Timestamp {
        self.now() + Duration::from_secs(seconds)
    }

    pub(crate) async fn endpoint(&self, name: &str, options: Value) -> EndpointId {
        self.store().create_endpoint(new_endpoint(name, options)).await.expect("a valid endpoint").id
    }

    pub(crate) async fn configure(&self, name: &str, value: impl ToString) {
        self.store().configure(vec![(name.into(), value.to_string())]).await.expect("a valid setting");
    }

    pub(crate) async fn send(&self, message: NewMessage) -> MessageId {
        let sent = self.store().send(message).await.expect("a valid message");
        assert!(!sent.duplicate);
        sent.id
    }

    /// Sends to endpoint `a` in this order, all with one ordering key.
    pub(crate) async fn send_keyed(&self, key: &str, count: usize) -> Vec<MessageId> {
        let mut ids = Vec::new();
        for _ in 0..count {
            ids.push(self.send(to("a").ordering_key(key)).await);
        }
        ids
    }

    /// Another node beside this world's.
    pub(crate) async fn another_node(&self) -> NodeId {
        join(self.store(), Arc::new(NoDirectClaims)).await.0
    }

    pub(crate) async fn ask(&mut self, node: NodeId, alone: bool, wants: Vec<Want>) -> Claimed {
        self.batch += 1;
        let request = ClaimRequest { node, batch: self.batch, wants, alone };
        self.store().claim(request).await.expect("a claim")
    }

    pub(crate) async fn claim_as(&mut self, node: NodeId, endpoint: EndpointId, room: u32) -> Vec<Ticket> {
        let claimed = self.ask(node, false, vec![due(endpoint, room)]).await;
        claimed.claims.iter().map(Ticket::of).collect()
    }

    pub(crate) async fn claim(&mut self, endpoint: EndpointId, room: u32) -> Vec<Ticket> {
        self.claim_as(self.node, endpoint, room).await
    }

    /// The one message that endpoint `a` has to give now.
    pub(crate) async fn claim_one(&mut self) -> Ticket {
        let claims = self.claim(self.a, 10).await;
        assert_eq!(claims.len(), 1, "{claims:?}");
        claims[0]
    }

    /// What endpoint `a` has to give now, by id, in order.
    pub(crate) async fn claim_ids(&mut self) -> Vec<MessageId> {
        self.claim(self.a, 100).await.iter().map(|ticket| ticket.id).collect()
    }

    pub(crate) async fn claim_suspects(&mut self, alone: bool, ids: &[MessageId]) -> Vec<Claim> {
        let want = Want { endpoint: self.a, room: 10, pick: Pick::Suspects(ids.to_vec()) };
        self.ask(self.node, alone, vec![want]).await.claims
    }

    pub(crate) async fn next_due(&mut self, endpoint: EndpointId) -> NextDue {
        let claimed = self.ask(self.node, false, vec![due(endpoint, 1)]).await;
        assert_eq!(claimed.next[0].0, endpoint);
        claimed.next[0].1
    }

    pub(crate) async fn end(&self, ticket: Ticket, end: End) -> Settled {
        self.end_and_hold(ticket, end, None).await
    }

    pub(crate) async fn end_and_hold(
        &self,
        ticket: Ticket,
        end: End,
        hold_endpoint_until: Option<Timestamp>,
    ) -> Settled {
        let Ticket { id, endpoint, fence, .. } = ticket;
        let settlement = Settlement { id, endpoint, fence, end, hold_endpoint_until };
        let settled = self.store().settle(vec![settlement]).await.expect("a settlement");
        assert_eq!(settled.len(), 1);
        assert_eq!(settled[0].id, ticket.id);
        settled[0]
    }

    pub(crate) async fn settle(&self, ticket: Ticket, verdict: Verdict) -> Settled {
        let end = ticket.attempted(self.now(), verdict);
        self.end(ticket, end).await
    }

    pub(crate) async fn complete(&self, ticket: Ticket) -> Settled {
        self.settle(ticket, Verdict::Complete).await
    }

    /// In one go.
    pub(crate) async fn complete_all(&self, tickets: &[Ticket]) -> Vec<Settled> {
        let settlement = |ticket: &Ticket| {
            let Ticket { id, endpoint, fence, .. } = *ticket;
            let end = ticket.attempted(self.now(), Verdict::Complete);
            Settlement { id, endpoint, fence, end, hold_endpoint_until: None }
        };
        self.store().settle(tickets.iter().map(settlement).collect()).await.expect("settlements")
    }

    pub(crate) async fn retry(&self, ticket: Ticket, seconds: u64) -> Settled {
        self.settle(ticket, retry_at(self.in_seconds(seconds))).await
    }

    pub(crate) async fn die(&self, ticket: Ticket) -> Settled {
        self.settle(ticket, DEAD).await
    }

    /// Its one due message dies; its row in the DLQ.
    pub(crate) async fn send_to_death(&mut self, message: NewMessage) -> DeadLetter {
        let id = self.send(message).await;
        self.kill(id).await
    }

    pub(crate) async fn kill(&mut self, id: MessageId) -> DeadLetter {
        let endpoint = self.store().endpoint(&self.story(id).await.endpoint).await.unwrap().id;
        let claims = self.claim(endpoint, 1).await;
        assert_eq!(claims[0].id, id, "it is the next one");
        assert_eq!(self.die(claims[0]).await.effect, Effect::Applied(State::Dead));
        self.letter_of(id).await
    }

    pub(crate) async fn letter_of(&self, id: MessageId) -> DeadLetter {
        let filter = DlqFilter { message: Some(id), ..DlqFilter::default() };
        self.store().dlq(filter).await.unwrap().pop().expect("a dead letter")
    }

    pub(crate) async fn letters(&self) -> Vec<DeadLetter> {
        self.store().dlq(DlqFilter { limit: 1000, ..DlqFilter::default() }).await.unwrap()
    }

    /// The claims of a node that fell silent, after this world's node waited for it.
    pub(crate) async fn lost(&self) -> Vec<LostClaim> {
        self.live(16).await;
        self.store().lost_claims(100).await.unwrap()
    }

    /// Settles a lost claim as a retry that is due now.
    pub(crate) async fn lose(&self, lost: &LostClaim) -> Settled {
        self.lose_as(lost, retry_at(self.now())).await
    }

    pub(crate) async fn lose_as(&self, lost: &LostClaim, verdict: Verdict) -> Settled {
        let ticket =
            Ticket { id: lost.id, endpoint: lost.endpoint, fence: lost.fence, attempt: lost.attempt };
        self.lose_ticket(ticket, verdict).await
    }

    pub(crate) async fn lose_ticket(&self, ticket: Ticket, verdict: Verdict) -> Settled {
        let record = AttemptRecord {
            outcome: AttemptOutcome::Lost,
            error: Some("[RETRYABLE] lease expired".into()),
            ..ticket.record(self.now(), &verdict)
        };
        self.end(ticket, End::Attempted { verdict, record }).await
    }

    pub(crate) async fn story(&self, id: MessageId) -> Story {
        self.store().story(id).await.unwrap_or_else(|error| panic!("story of {id}: {error}"))
    }

    pub(crate) async fn state(&self, id: MessageId) -> State {
        self.story(id).await.state
    }

    pub(crate) async fn states(&self, ids: &[MessageId]) -> Vec<State> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.state(*id).await);
        }
        states
    }

    /// Why it is not delivered yet.
    pub(crate) async fn reason(&self, id: MessageId) -> String {
        self.story(id).await.reason.expect("a pending message says why")
    }

    pub(crate) async fn queued(&self) -> u64 {
        let status = self.store().status().await.unwrap();
        status.pending + status.processing
    }

    pub(crate) async fn events(&self) -> Vec<EventRecord> {
        self.store().events(None, 1000).await.unwrap()
    }

    /// What that evicted.
    pub(crate) async fn clean_up(&self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for _ in 0..1000 {
            let cleaned = self.store().clean_up(100).await.unwrap();
            evicted.extend(cleaned.evicted);
            if !cleaned.more {
                return evicted;
            }
        }
        panic!("cleaning up never ends");
    }
}

/// One claim by its parts, so that a test can settle it twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: MessageId,
    pub(crate) endpoint: EndpointId,
    pub(crate) fence: Fence,
    pub(crate) attempt: u32,
}

impl Ticket {
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            id: claim.message.id,
            endpoint: claim.message.endpoint,
            fence: claim.fence,
            attempt: claim.attempt,
        }
    }

    pub(crate) fn attempted(self, now: Timestamp, verdict: Verdict) -> End {
        let record = self.record(now, &verdict);
        End::Attempted { verdict, record }
    }

    pub(crate) fn record(self, started_at: Timestamp, verdict: &Verdict) -> AttemptRecord {
        let delivered = *verdict == Verdict::Complete;
        AttemptRecord {
            number: self.attempt,
            node: self.fence.node,
            started_at,
            duration: Duration::from_millis(3),
            outcome: if delivered { AttemptOutcome::Delivered } else { AttemptOutcome::Failed },
            class: (!delivered).then_some(Class::Retryable),
            error: (!delivered).then(|| format!("[RETRYABLE] try {} failed", self.attempt)),
            response_status: Some(if delivered { 200 } else { 500 }),
            response_body: None,
        }
    }
}

pub(crate) const DEAD: Verdict =
    Verdict::Dead { reason: DeadReason::AttemptsExhausted, disable_endpoint: false };

pub(crate) fn retry_at(due_at: Timestamp) -> Verdict {
    Verdict::Retry { due_at, asked: false }
}

pub(crate) fn due(endpoint: EndpointId, room: u32) -> Want {
    Want { endpoint, room, pick: Pick::Due }
}

pub(crate) fn to(endpoint: &str) -> NewMessage {
    NewMessage::new(endpoint, r#"{"n":1}"#)
}

/// To endpoint `a`, gone stale after ten seconds.
pub(crate) fn short_lived(now: Timestamp) -> NewMessage {
    NewMessage { expires_at: Some(now + Duration::from_secs(10)), ..to("a") }
}

pub(crate) fn new_endpoint(name: &str, options: Value) -> NewEndpoint {
    NewEndpoint {
        name: name.into(),
        protocol: "http".into(),
        config: json!({"url": "https://example.com/hook"}).as_object().unwrap().clone(),
        retry_policy: None,
        options: Some(options),
    }
}

pub(crate) async fn join(
    store: &impl Store,
    direct: Arc<dyn DirectClaims>,
) -> (NodeId, mpsc::UnboundedReceiver<Arrival>) {
    let (sender, arrivals) = mpsc::unbounded_channel();
    let joined =
        store.join(Hello { name: "test".into(), arrivals: sender, direct }).await.expect("a node joins");
    (joined.node, arrivals)
}

/// A node's free room, counted.
#[derive(Default)]
pub(crate) struct Slots(pub(crate) AtomicUsize);

impl DirectClaims for Slots {
    fn try_reserve(&self, _endpoint: EndpointId) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| free.checked_sub(1)).is_ok()
    }

    fn give_back(&self, _endpoint: EndpointId) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
