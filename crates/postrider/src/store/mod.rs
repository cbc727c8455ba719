//! What the engine and what people need of a store. SQLite and PostgreSQL implement it, and both pass one
//! conformance suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::breaker::Circuit;
use crate::endpoint::{Endpoint, EndpointChange, EndpointId, NewEndpoint};
use crate::error::{Invalid, StoreError};
use crate::message::{Claim, Fence, LostClaim, MessageId, NewMessage, NodeId, Sent, State};
use crate::settings::Settings;
use crate::verdict::{Class, Verdict};

pub use figures::{Figure, Figures};
pub use listing::*;
pub use pubsub::PubSub;
pub use records::*;
pub use replays::*;
pub use results::{EndpointHealth, Results};
pub use sweeps::*;
pub use tokens::*;

pub mod figures;
mod listing;
mod pubsub;
mod records;
mod refusals;
mod replaying;
pub(crate) mod response_body;
mod replays;
mod results;
mod sweeps;
mod tokens;
pub mod moving;
pub mod sqlite;
pub mod postgres;

pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// What the engine needs: claim, settle, and the upkeep around them.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Short random name made at first migrate; part of the ids that receivers see.
    fn name(&self) -> Arc<str>;

    /// The store's clock: it alone judges due times, expiry and leases.
    fn now(&self) -> Timestamp;

    /// A node starts. From now on the store tells it about work through `hello.arrivals`.
    async fn join(&self, hello: Hello) -> Result<Joined>;

    /// Confirms the node's lease; for how long. Err(Conflict) once the lease was lost.
    async fn heartbeat(&self, node: NodeId) -> Result<Duration>;

    /// A clean stop: claims still held are given back without consuming their attempt.
    async fn leave(&self, node: NodeId) -> Result<()>;

    /// Endpoints, settings and the system pause; None while version `known` still holds.
    async fn snapshot(&self, known: Option<i64>) -> Result<Option<Arc<Snapshot>>>;

    /// Endpoints that have claimable messages, with the earliest due time of each.
    async fn waiting(&self) -> Result<Vec<Waiting>>;

    /// Claims due messages for many endpoints at once. Counts the attempt of each.
    async fn claim(&self, request: ClaimRequest) -> Result<Claimed>;

    /// Ends claims, in order, in one transaction. A stale fence changes nothing, but for a late "delivered".
    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>>;

    /// Pending messages that lost a claim, oldest due first: they are claimed on probation.
    async fn suspects(&self, limit: usize) -> Result<Vec<Suspect>>;

    /// Claims of nodes whose lease ran out, and claims older than `stale_recovery_timeout`.
    async fn lost_claims(&self, limit: usize) -> Result<Vec<LostClaim>>;

    /// Compare-and-swap on the circuit's epoch; false when another node was first.
    async fn move_circuit(&self, endpoint: EndpointId, from_epoch: i64, to: Circuit) -> Result<bool>;

    /// What some node does every second: archives up to `limit` pending messages that are past their expiry, returns them, and
    /// finds work that no sender told of.
    async fn upkeep(&self, limit: usize) -> Result<Vec<Expired>>;

    /// Applies retention to at most `limit` rows.
    async fn clean_up(&self, limit: usize) -> Result<Cleaned>;

    /// Adds to the results of these endpoints. Returns those it added to; the node sends the others again.
    async fn note_results(&self, results: Vec<(EndpointId, Results)>) -> Result<Vec<EndpointId>>;

    /// Takes one replay a step further: at most `limit` messages, and its position, in one transaction.
    async fn advance_replays(&self, limit: usize) -> Result<ReplayTurn>;
}

/// What people and their programs need: send, look, change.
#[async_trait]
pub trait Operate: Figures + Listing + PubSub + Replays + Sweeps + Tokens {
    async fn send(&self, message: NewMessage) -> Result<Sent>;
    /// All or nothing.
    async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>>;
    /// Answered once the message is committed, without waiting for the disk. It survives the death of the
    /// process; a power cut or a crash of the system in the moment until the disk has it may lose it, and its id
    /// may be given to another one. Everything else is as with [`Operate::send`]; `docs/durability.md` has the
    /// details.
    async fn send_fast(&self, message: NewMessage) -> Result<Sent>;
    /// All or nothing, answered like [`Operate::send_fast`].
    async fn send_batch_fast(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>>;

    async fn create_endpoint(&self, endpoint: NewEndpoint) -> Result<Endpoint>;
    async fn alter_endpoint(&self, name: &str, change: EndpointChange) -> Result<Endpoint>;
    /// Refused while it has messages, unless forced: then they are cancelled.
    async fn drop_endpoint(&self, name: &str, force: bool) -> Result<()>;
    async fn endpoint(&self, name: &str) -> Result<Endpoint>;
    /// How attempts at it went, but for those of the last second or so.
    async fn endpoint_health(&self, name: &str) -> Result<EndpointHealth>;
    /// By name, after `after`.
    async fn endpoints(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>>;
    async fn set_endpoint_enabled(&self, name: &str, enabled: bool) -> Result<()>;
    async fn set_endpoint_paused(&self, name: &str, paused: bool) -> Result<()>;
    async fn reset_circuit(&self, name: &str) -> Result<()>;

    /// Stops all dispatch until [`Operate::resume`]; survives restarts.
    async fn pause(&self, reason: &str) -> Result<()>;
    async fn resume(&self) -> Result<()>;

    /// Pending only.
    async fn cancel(&self, id: MessageId) -> Result<()>;
    /// Pending only.
    async fn reschedule(&self, id: MessageId, at: Timestamp) -> Result<()>;
    /// Removes payload and headers wherever the message is; refused while it is processing.
    async fn erase(&self, id: MessageId) -> Result<()>;
    /// Releases a key that waits for its dead head; how many heads were released.
    async fn release_key(&self, key: &str, endpoint: Option<&str>) -> Result<u64>;

    /// A message's whole story, wherever it is now.
    async fn story(&self, id: MessageId) -> Result<Story>;

    async fn dlq(&self, filter: DlqFilter) -> Result<Vec<DeadLetter>>;
    /// In original order, in steps when there are many; how many were put back. Refused before anything
    /// changes when the queue has no room for all of them. After another error some may have been put back:
    /// call it again for the rest.
    async fn redrive(&self, selection: Redrive) -> Result<u64>;
    async fn discard(&self, dlq_id: i64) -> Result<()>;
    async fn dlq_summary(&self) -> Result<Vec<DlqSummary>>;

    async fn settings(&self) -> Result<Settings>;
    /// All or none.
    async fn configure(&self, changes: Vec<(String, String)>) -> Result<()>;

    /// Newest first, older than `before`.
    async fn events(&self, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>>;
    async fn status(&self) -> Result<StoreStatus>;

    /// Sessions of the database that keep this process's node from its work, each in a sentence.
    fn in_the_way(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A node introduces itself.
pub struct Hello {
    pub name: String,
    pub arrivals: mpsc::UnboundedSender<Arrival>,
    pub direct: Arc<dyn DirectClaims>,
}

/// A node that joined, and for how long its first lease is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    pub node: NodeId,
    pub lease: Duration,
}

/// What a store tells a node without being asked.
#[derive(Debug)]
pub enum Arrival {
    /// Sent through this node and claimed in the same transaction; its slot is reserved.
    Claimed(Claim),
    /// This endpoint has new work.
    Pending(EndpointId),
    /// Another process changed something: look everywhere.
    Outside,
    /// Endpoints, settings or the system pause changed. Messages that arrive later were sent after the change.
    Reconfigured,
    /// A circuit moved, which says nothing about messages.
    CircuitMoved,
}

/// A node's free room, asked while a message is inserted: may the same transaction claim it?
pub trait DirectClaims: Send + Sync {
    /// Reserves a slot. After true the caller starts an attempt or gives the slot back.
    fn try_reserve(&self, endpoint: EndpointId) -> bool;
    fn give_back(&self, endpoint: EndpointId);
}

/// Never reserves: for a store without a node.
pub struct NoDirectClaims;

impl DirectClaims for NoDirectClaims {
    fn try_reserve(&self, _endpoint: EndpointId) -> bool {
        false
    }
    fn give_back(&self, _endpoint: EndpointId) {}
}

/// Endpoints, settings and pause as of one version.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub version: i64,
    pub settings: Arc<Settings>,
    /// Why everything is paused, if it is.
    pub paused: Option<String>,
    pub endpoints: Vec<Arc<Endpoint>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub endpoint: EndpointId,
    pub due_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub node: NodeId,
    /// Never used twice by this node; at least 1 (0 is for direct claims).
    pub batch: i64,
    pub wants: Vec<Want>,
    /// The claim is made while nothing else is in flight on the node, and nothing will be.
    pub alone: bool,
}

#[derive(Clone, Debug)]
pub struct Want {
    pub endpoint: EndpointId,
    pub room: u32,
    pub pick: Pick,
}

#[derive(Clone, Debug)]
pub enum Pick {
    /// By priority, due time and id; never one that lost a claim before.
    Due,
    /// One: the due message with the fewest attempts, to probe a half-open circuit.
    Probe,
    /// Exactly these, as far as they are still due and pending.
    Suspects(Vec<MessageId>),
}

#[derive(Debug, Default)]
pub struct Claimed {
    pub claims: Vec<Claim>,
    /// Expired messages that the claim found and archived.
    pub expired: Vec<Expired>,
    /// Unreadable messages that the claim found and made dead letters.
    pub unreadable: Vec<Unreadable>,
    /// For each want, in order: when to ask again.
    pub next: Vec<(EndpointId, NextDue)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextDue {
    /// Room was used up; there may be more due now.
    Now,
    At(Timestamp),
    /// Nothing until something arrives.
    Nothing,
}

/// How a claim ends.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub fence: Fence,
    pub end: End,
    /// The receiver wants to be left alone until then.
    pub hold_endpoint_until: Option<Timestamp>,
}

#[derive(Clone, Debug)]
pub enum End {
    /// An attempt was made, or its lease was lost.
    Attempted { verdict: Verdict, record: AttemptRecord },
    /// No attempt was made and none is counted: a clean stop, a late lease, a key whose head failed.
    Released,
    /// It expired between claim and start; no attempt is counted.
    ExpiredUnstarted,
    /// The store handed out something that no node can read: a dead letter. No attempt is counted.
    Unreadable { error: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub effect: Effect,
    /// A successor of its ordering key became claimable, at this endpoint. Where several settlements unblock the
    /// same endpoint, one of them may say so for all.
    pub unblocked: Option<EndpointId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The message is in this state now.
    Applied(State),
    /// The claim was not current any more: nothing changed.
    Fenced,
    /// A late "delivered": noted, the message is settled when its current claim ends.
    Noted,
    /// Nothing changed: another transaction holds a lock, or the store refuses this one. To be settled again.
    Later,
}

/// A pending message that was past its expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expired {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub attempts: u32,
}

/// A message that a claim found and cannot read, because another program wrote into the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub attempts: u32,
    /// Which column is wrong, and how.
    pub error: String,
}

impl Unreadable {
    pub(crate) fn new(id: MessageId, endpoint: EndpointId, attempts: u32, what: &Invalid) -> Self {
        Self { id, endpoint, attempts, error: format!("{} {what}", Class::Permanent.tag()) }
    }
}

/// What one step of retention did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// There is more to do.
    pub more: bool,
    /// Counted and logged in the store already.
    pub evicted: Vec<Evicted>,
}

/// Dead letters that a rule took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// The setting.
    pub rule: String,
    pub count: u64,
    pub bytes: u64,
}

/// A pending message that lost a claim with its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    pub id: MessageId,
    pub endpoint: EndpointId,
    pub losses: u32,
    pub due_at: Timestamp,
    /// Attempts of the current budget used so far.
    pub budget_used: u32,
    /// Its own limit, when it has one.
    pub max_attempts: Option<u32>,
}
