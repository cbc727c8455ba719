//! The store in PostgreSQL: schema `postrider`, where the rules live in SQL functions, and any number of nodes.
//!
//! Four kinds of connections: two that claim and settle (`exchange.rs`), one that listens (`listen.rs`), a few for what
//! else a node asks, and a pool for senders and tools, a part of which is never lent to those who may wait for others. No
//! transaction is ever open while anything but the database is waited for.

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
use self::exchange::Exchange;
use self::holders::Holders;
use self::listen::Ear;
use self::nodes::Listeners;
use self::send::Commit;
use self::settle_apart::InTheWay;
use self::time::StoreClock;
use super::moving::{MoveError, Moved};
use super::refusals::Refusals;
use super::{
    ClaimRequest, Claimed, Cleaned, DeadLetter, DlqFilter, DlqSummary, EndpointHealth, EventRecord, Expired,
    Hello, Joined, Operate, Redrive, ReplayTurn, Result, Results, Settled, Settlement, Snapshot, Store,
    StoreStatus, Story, Suspect, Waiting,
};
use crate::breaker::Circuit;
use crate::clock::Clock;
use crate::endpoint::{Endpoint, EndpointChange, EndpointId, NewEndpoint};
use crate::message::{LostClaim, MessageId, NewMessage, NodeId, Sent};
use crate::outcome::log_cancelled;
use crate::settings::Settings;

mod connect;
mod connections;
mod tls;
mod errors;
mod time;
mod migrate;
mod known_keys;
mod row;
mod send;
#[cfg(feature = "sqlx")]
pub mod sqlx;
mod exchange;
mod claim;
mod cursors;
mod settle;
mod settle_apart;
mod batches;
mod nodes;
mod listen;
mod stragglers;
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
/// What a node asks beside claiming and settling. Senders may wait for each other: the node's lease does not depend on
/// a connection of theirs.
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
    shared: Arc<Shared>,
    ear: tokio::sync::Mutex<Option<Ear>>,
}

/// What the parts of a store share.
struct Shared {
    server: Server,
    /// Of senders and tools, for what waits for nobody's transaction: looks, and sends without keys.
    prompt: Connections,
    /// Two thirds of the same ones, for everything else. A transaction that stays open holds up those who wait for it
    /// and nobody else.
    pool: Connections,
    /// Of the nodes of this process.
    own: Connections,
    exchange: Exchange,
    name: Mutex<Arc<str>>,
    clock: StoreClock,
    listeners: Listeners,
    cursors: Cursors,
    batches: Batches,
    in_the_way: InTheWay,
    under_way: UnderWay,
    holders: Holders,
    refusals: Refusals,
    /// Messages, since upkeep last asked.
    claimed_lately: AtomicUsize,
}

impl PostgresStore {
    /// Makes the schema or brings it up to date. Returns the statements for roles and their rights that are left
    /// for somebody who may run them; none when all is done.
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
        let shared = Shared {
            pool: prompt.at_most((options.connections_max * 2 / 3).max(1)),
            prompt,
            own: Connections::of(server.clone(), NODE_CONNECTIONS_MAX),
            exchange: Exchange::new(server.clone()),
            name: Mutex::new(name.into()),
            clock: StoreClock::new(options.clock, &client).await?,
            listeners: Listeners::default(),
            cursors: Cursors::default(),
            batches: Batches::default(),
            in_the_way: InTheWay::default(),
            under_way: UnderWay::default(),
            holders: Holders::default(),
            refusals: Refusals::default(),
            claimed_lately: AtomicUsize::new(0),
            server,
        };
        Ok(Self { shared: Arc::new(shared), ear: tokio::sync::Mutex::default() })
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
        *self.shared.name.lock().expect("nobody panics while naming") = name.into();
        Ok(())
    }

    /// Everything that a migrated database depends on, as text: a test's template is as good as its recipe.
    #[doc(hidden)]
    pub fn migration_recipe() -> String {
        migrate::recipe()
    }
}

impl Shared {
    /// Senders of one key wait for each other's transactions.
    fn lender(&self, any_key: bool) -> &Connections {
        if any_key { &self.pool } else { &self.prompt }
    }

    /// What takes no time is answered soon, or there is nobody any more who would: a server that froze, or that another
    /// one took the place of. Then the connections that had all that time to answer end, so that whoever waits for one
    /// of them connects again. Connecting has a patience of its own.
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
        self.shared.name.lock().expect("nobody panics while naming").clone()
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    async fn join(&self, hello: Hello) -> Result<Joined> {
        let mut ear = self.ear.lock().await;
        if ear.is_none() {
            *ear = Some(listen::begin(&self.shared).await?);
        }
        let joined = nodes::join(&self.shared, &hello.name).await?;
        // Another store may have been imported since this one was opened; from now on none is.
        let name = self.shared.own.with(async |client| {
            migrate::warn_of_copy(client).await?;
            migrate::name(client).await
        });
        let name = name.await?;
        *self.shared.name.lock().expect("nobody panics while naming") = name.into();
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

    async fn expire(&self, limit: usize) -> Result<Vec<Expired>> {
        upkeep::expire(&self.shared, limit).await
    }

    async fn clean_up(&self, limit: usize) -> Result<Cleaned> {
        upkeep::clean_up(&self.shared, limit).await
    }

    async fn note_results(&self, results: Vec<(EndpointId, Results)>) -> Result<Vec<EndpointId>> {
        self.shared.in_time(results::note(&self.shared, &results)).await
    }

    async fn advance_replays(&self, limit: usize) -> Result<ReplayTurn> {
        replays::advance(&self.shared, limit).await
    }
}

#[async_trait]
impl Operate for PostgresStore {
    async fn send(&self, message: NewMessage) -> Result<Sent> {
        self.shared.refusals.noted(send::send(&self.shared, Commit::Durable, &message).await)
    }

    async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.shared.refusals.noted(send::send_batch(&self.shared, Commit::Durable, &messages).await)
    }

    async fn send_fast(&self, message: NewMessage) -> Result<Sent> {
        self.shared.refusals.noted(send::send(&self.shared, Commit::Fast, &message).await)
    }

    async fn send_batch_fast(&self, messages: Vec<NewMessage>) -> Result<Vec<Sent>> {
        self.shared.refusals.noted(send::send_batch(&self.shared, Commit::Fast, &messages).await)
    }

    async fn create_endpoint(&self, endpoint: NewEndpoint) -> Result<Endpoint> {
        endpoints::create(&self.shared, endpoint).await
    }

    async fn alter_endpoint(&self, name: &str, change: EndpointChange) -> Result<Endpoint> {
        endpoints::alter(&self.shared, name, change).await
    }

    async fn drop_endpoint(&self, name: &str, force: bool) -> Result<()> {
        endpoints::drop(&self.shared, name, force).await
    }

    async fn endpoint(&self, name: &str) -> Result<Endpoint> {
        endpoints::by_name(&self.shared, name).await
    }

    async fn endpoint_health(&self, name: &str) -> Result<EndpointHealth> {
        results::health(&self.shared, name).await
    }

    async fn endpoints(&self, after: Option<&str>, limit: usize) -> Result<Vec<Endpoint>> {
        endpoints::list(&self.shared, after, limit).await
    }

    async fn set_endpoint_enabled(&self, name: &str, enabled: bool) -> Result<()> {
        let sql = match enabled {
            true => "SELECT postrider.enable_endpoint($1)",
            false => "SELECT postrider.disable_endpoint($1)",
        };
        self.shared.pool.call(sql, &[&name]).await
    }

    async fn set_endpoint_paused(&self, name: &str, paused: bool) -> Result<()> {
        self.shared.pool.call("SELECT postrider._set_paused($1, $2)", &[&name, &paused]).await
    }

    async fn reset_circuit(&self, name: &str) -> Result<()> {
        self.shared.pool.call("SELECT postrider.reset_circuit_breaker($1)", &[&name]).await
    }

    async fn pause(&self, reason: &str) -> Result<()> {
        self.shared.pool.call("SELECT postrider.pause($1)", &[&reason]).await
    }

    async fn resume(&self) -> Result<()> {
        self.shared.pool.call("SELECT postrider.resume()", &[]).await
    }

    async fn cancel(&self, id: MessageId) -> Result<()> {
        self.shared.pool.call("SELECT postrider.cancel_message($1)", &[&id.0]).await?;
        log_cancelled(id);
        Ok(())
    }

    async fn reschedule(&self, id: MessageId, at: Timestamp) -> Result<()> {
        self.shared.pool.call("SELECT postrider.reschedule_message($1, $2)", &[&id.0, &at]).await?;
        self.shared.cursors.all_returned();
        Ok(())
    }

    async fn erase(&self, id: MessageId) -> Result<()> {
        self.shared.pool.call("SELECT postrider.erase_message($1)", &[&id.0]).await
    }

    async fn release_key(&self, key: &str, endpoint: Option<&str>) -> Result<u64> {
        let released =
            self.shared.pool.query_one("SELECT postrider.release_key($1, $2)", &[&key, &endpoint]).await?;
        self.shared.cursors.all_returned();
        Ok(row::big_count(&released, 0))
    }

    async fn story(&self, id: MessageId) -> Result<Story> {
        inspect::story(&self.shared, id).await
    }

    async fn dlq(&self, filter: DlqFilter) -> Result<Vec<DeadLetter>> {
        dlq::list(&self.shared, &filter).await
    }

    async fn redrive(&self, selection: Redrive) -> Result<u64> {
        let redriven = self.shared.refusals.noted(dlq::redrive(&self.shared, selection).await);
        self.shared.cursors.all_returned();
        redriven
    }

    async fn discard(&self, dlq_id: i64) -> Result<()> {
        self.shared.pool.call("SELECT postrider.discard_message($1)", &[&dlq_id]).await?;
        self.shared.cursors.all_returned();
        Ok(())
    }

    async fn dlq_summary(&self) -> Result<Vec<DlqSummary>> {
        dlq::summary(&self.shared).await
    }

    async fn settings(&self) -> Result<Settings> {
        endpoints::settings(&self.shared.prompt).await
    }

    async fn configure(&self, changes: Vec<(String, String)>) -> Result<()> {
        endpoints::configure(&self.shared, &changes).await
    }

    async fn events(&self, before: Option<i64>, limit: usize) -> Result<Vec<EventRecord>> {
        inspect::events(&self.shared, before, limit).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        inspect::status(&self.shared).await
    }

    fn in_the_way(&self) -> Vec<String> {
        self.shared.holders.sentences()
    }
}
