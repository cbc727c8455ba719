//! The store in PostgreSQL: schema `postrider`, where the rules live in SQL functions, and any number of nodes.
//!
//! Four kinds of connections: two that claim and settle (`exchange.rs`), one that listens (`listen.rs`), a few for other
//! queries of a node, and a pool for senders and tools, a third of which is reserved for queries that wait for no lock. No
//! transaction stays open while the program waits for anything but the database.

use std::io::Read;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_postgres::Client;

use self::batches::Batches;
use self::claim::UnderWay;
use self::connect::Server;
use self::connections::Connections;
use self::cursors::Cursors;
use self::endpoints::LastConfigs;
use self::exchange::Exchange;
use self::holders::LockHolders;
use self::listen::ListenTask;
use self::nodes::LocalNodes;
use self::settle_apart::LastBlocked;
use self::time::StoreClock;
use super::moving::{MoveError, Moved};
use super::refusals::Refusals;
use super::{
    ClaimRequest, Claimed, Cleaned, Expired, Hello, Joined, ReplayTurn, Result, Results, Settled, Settlement,
    Snapshot, Store, Suspect, Waiting,
};
use crate::breaker::Circuit;
use crate::clock::Clock;
use crate::endpoint::EndpointId;
use crate::message::{LostClaim, NodeId};

mod connect;
mod connections;
mod tls;
mod errors;
mod time;
mod constants;
mod migrate;
mod known_keys;
mod patterns;
mod row;
mod send;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod operate;
mod exchange;
mod claim;
mod cursors;
mod settle;
mod settle_apart;
mod batches;
mod nodes;
mod listen;
mod late_commits;
mod endpoints;
mod event_types;
mod subscriptions;
mod publish;
mod dlq;
mod sweep;
mod replays;
mod results;
mod inspect;
mod figures;
mod listing;
mod tokens;
mod upkeep;
mod holders;
mod import;
mod copy;

pub use publish::{publish_batch_in, publish_in};
pub use send::{send_batch_in, send_in};

/// Connections beside those of a node.
const CONNECTIONS_MAX: usize = 12;
/// A node's queries beside claims and settlements. Separate from senders, who may block each other: the node's lease must not
/// wait for them.
const NODE_CONNECTIONS_MAX: usize = 4;

/// How to open a store.
#[derive(Clone)]
pub struct PostgresOptions {
    /// `postgres://user:password@host/database?sslmode=…`, as libpq reads it.
    pub url: String,
    /// Make the schema, or bring an older one up to date. Without it an old or missing schema is an error.
    pub migrate: bool,
    /// For senders and tools; a node has up to seven more.
    pub connections_max: usize,
    /// Stands in for the database's clock in tests that move both.
    #[doc(hidden)]
    pub clock: Option<Arc<dyn Clock>>,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), migrate: false, connections_max: CONNECTIONS_MAX, clock: None }
    }
}

/// One process's handle on the store; it may run a node, or only send and look.
pub struct PostgresStore {
    shared: Arc<SharedState>,
    listener: tokio::sync::Mutex<Option<ListenTask>>,
}

/// Shared by the parts of a store.
struct SharedState {
    server: Server,
    /// For senders and tools, queries that wait for no lock: reads, and sends without keys.
    prompt: Connections,
    /// Two thirds of the same connections, for everything else. So a transaction that stays open blocks only those who wait for
    /// it.
    pool: Connections,
    /// For the nodes of this process.
    own: Connections,
    exchange: Exchange,
    name: Mutex<Arc<str>>,
    clock: StoreClock,
    listeners: LocalNodes,
    cursors: Cursors,
    last_configs: LastConfigs,
    batches: Batches,
    last_blocked: LastBlocked,
    under_way: UnderWay,
    holders: LockHolders,
    refusals: Refusals,
    /// Messages claimed since the last upkeep.
    claimed_lately: AtomicUsize,
}

impl PostgresStore {
    /// Makes the schema or brings it up to date. Returns the statements for roles and their rights that need a role with more
    /// rights; none when all is done.
    pub async fn migrate(url: &str) -> Result<Vec<String>> {
        let mut client = Server::parse(url)?.for_ourselves().client().await?;
        migrate::migrate(&mut client).await
    }

    pub async fn open(options: PostgresOptions) -> Result<Self> {
        let server = Server::parse(&options.url)?.for_ourselves();
        let mut client = server.client().await?;
        if options.migrate && !migrate::migrate(&mut client).await?.is_empty() {
            tracing::info!(
                "not all roles could be made; `postrider migrate` prints the statements that are left"
            );
        }
        migrate::check(&client).await?;
        let name: &str = &migrate::name(&client).await?;
        let prompt = Connections::of(server.for_others(), options.connections_max);
        let shared = SharedState {
            pool: prompt.at_most((options.connections_max * 2 / 3).max(1)),
            prompt,
            own: Connections::of(server.clone(), NODE_CONNECTIONS_MAX),
            exchange: Exchange::new(server.clone()),
            name: Mutex::new(name.into()),
            clock: StoreClock::new(options.clock, &client).await?,
            listeners: LocalNodes::default(),
            cursors: Cursors::default(),
            last_configs: LastConfigs::default(),
            batches: Batches::default(),
            last_blocked: LastBlocked::default(),
            under_way: UnderWay::default(),
            holders: LockHolders::default(),
            refusals: Refusals::default(),
            claimed_lately: AtomicUsize::new(0),
            server,
        };
        Ok(Self { shared: Arc::new(shared), listener: tokio::sync::Mutex::default() })
    }

    /// Says what is wrong with an address, if anything is, without connecting.
    pub fn check_url(url: &str) -> Result<()> {
        Server::parse(url).map(drop)
    }

    /// A connection for an application of its own, to whichever host takes writes, encrypted as the URL says.
    pub async fn connect(url: &str) -> Result<Client> {
        Server::parse(url)?.client().await
    }

    /// Whether the database has our schema, of whatever version.
    pub async fn is_installed(url: &str) -> Result<bool> {
        let client = Server::parse(url)?.for_ourselves().client().await?;
        Ok(migrate::version(&client).await? > 0)
    }

    /// Reads all of a store from the stream that [`SqliteStore::export`](crate::SqliteStore::export) wrote, into a
    /// schema that holds nothing yet: the same ids, the same name, in one transaction.
    pub async fn import(url: &str, from: impl Read + Send + 'static) -> Result<Moved, MoveError> {
        let mut client = Server::parse(url)?.for_ourselves().client().await?;
        import::import(&mut client, from).await
    }

    /// Gives the store a new name, after a restore or a clone: ids of the two stores must never be equal.
    pub async fn renew_name(&self) -> Result<()> {
        let name = self.shared.pool.with(async |client| migrate::renew_name(client).await).await?;
        *self.shared.name.lock().expect("no panic while naming") = name.into();
        Ok(())
    }

    /// Everything that a migrated database depends on, as text: tests make a new template when it changes.
    #[doc(hidden)]
    pub fn migration_recipe() -> String {
        migrate::recipe()
    }
}

impl SharedState {
    /// Senders of one key wait for each other's transactions.
    fn lender(&self, any_key: bool) -> &Connections {
        if any_key { &self.pool } else { &self.prompt }
    }

    /// For quick queries. When no answer comes, the server froze or was replaced: connections older than the query are closed, so
    /// that the query reconnects. Connecting has its own timeout.
    async fn in_time<T>(&self, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let patience = self.server.silence_max();
        let mut asked = std::pin::pin!(asked);
        loop {
            let since = Instant::now();
            match tokio::time::timeout(patience, &mut asked).await {
                Ok(answered) => return answered,
                Err(_) => self.server.hang_up(since),
            }
        }
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn name(&self) -> Arc<str> {
        self.shared.name.lock().expect("no panic while naming").clone()
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    async fn join(&self, hello: Hello) -> Result<Joined> {
        let mut listener = self.listener.lock().await;
        if listener.is_none() {
            *listener = Some(listen::begin(&self.shared).await?);
        }
        let joined = nodes::join(&self.shared, &hello.name).await?;
        // Another store may have been imported since this one was opened; no import runs beside a node.
        let name = self.shared.own.with(async |client| {
            migrate::warn_of_copy(client).await?;
            migrate::name(client).await
        });
        let name = name.await?;
        *self.shared.name.lock().expect("no panic while naming") = name.into();
        self.shared.listeners.add(joined.node, hello.arrivals);
        Ok(joined)
    }

    async fn heartbeat(&self, node: NodeId) -> Result<Duration> {
        self.shared.in_time(nodes::heartbeat(&self.shared, node)).await
    }

    async fn leave(&self, node: NodeId) -> Result<()> {
        self.shared.listeners.remove(node);
        self.shared.in_time(nodes::leave(&self.shared, node)).await
    }

    async fn snapshot(&self, known: Option<i64>) -> Result<Option<Arc<Snapshot>>> {
        self.shared.in_time(endpoints::snapshot(&self.shared, known)).await
    }

    async fn waiting(&self) -> Result<Vec<Waiting>> {
        claim::waiting(&self.shared).await
    }

    async fn claim(&self, request: ClaimRequest) -> Result<Claimed> {
        claim::claim(&self.shared, request).await
    }

    async fn settle(&self, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        settle::settle(&self.shared, settlements).await
    }

    async fn suspects(&self, limit: usize) -> Result<Vec<Suspect>> {
        claim::suspects(&self.shared, limit).await
    }

    async fn lost_claims(&self, limit: usize) -> Result<Vec<LostClaim>> {
        self.shared.in_time(nodes::lost_claims(&self.shared, limit)).await
    }

    async fn move_circuit(&self, endpoint: EndpointId, from_epoch: i64, to: Circuit) -> Result<bool> {
        endpoints::move_circuit(&self.shared, endpoint, from_epoch, to).await
    }

    async fn upkeep(&self, limit: usize) -> Result<Vec<Expired>> {
        upkeep::upkeep(&self.shared, limit).await
    }

    async fn clean_up(&self, limit: usize) -> Result<Cleaned> {
        upkeep::clean_up(&self.shared, limit).await
    }

    async fn note_results(&self, results: Vec<(EndpointId, Results)>) -> Result<Vec<EndpointId>> {
        self.shared.in_time(results::note(&self.shared, &results)).await
    }

    async fn advance_replays(&self, limit: usize) -> Result<ReplayTurn> {
        crate::store::replaying::advance(self, limit).await
    }
}
