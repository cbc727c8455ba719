//! The connections for claims and settlements. They are separate for two reasons: a settle and the next claim are pipelined, so
//! both cost one round trip; and they commit asynchronously, because a claim or settlement that a crash of the database loses
//! means a message delivered twice, never a lost one.

use std::sync::{Arc, Mutex};

use tokio_postgres::{Client, Statement};

use super::connect::Server;
use super::errors::store_error;
use crate::store::Result;

const CLAIM: &str = "SELECT want, id, attempt, attempts_before, losses, endpoint_id, priority, due_at, created_at,
    expires_at, correlation_id, content_type, ordering_key, event_type, headers, options, payload, next, next_at
  FROM postrider._claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
/// Plans are cached, and a plan that was made for a short queue would read all of a long one at every claim. So no plan may use a
/// sequential or bitmap scan. `lock_timeout`: an operator's transaction may stay open for hours; what it holds is settled later
/// (`settle_apart.rs`).
const SESSION: &str = "SET synchronous_commit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
    SET lock_timeout = '300ms'";
const SETTLE: &str = "SELECT completed, settled, unblocked FROM postrider._settle($1, $2, $3, $4, $5, $6)";

pub(super) struct Exchange {
    server: Server,
    connections: Mutex<Option<Arc<ExchangeConnections>>>,
    opening: tokio::sync::Mutex<()>,
}

pub(super) struct ExchangeConnections {
    /// Settlements and claims, one after the other.
    pub(super) in_turn: ExchangeConnection,
    /// Prepared on `in_turn`.
    pub(super) settle: Statement,
    /// For claims beside running settlements, while a backlog lasts.
    pub(super) aside: ExchangeConnection,
}

/// An open connection with the prepared claim.
pub(super) struct ExchangeConnection {
    pub(super) client: Client,
    pub(super) claim: Statement,
}

impl Exchange {
    pub(super) fn new(server: Server) -> Self {
        Self { server, connections: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// Does not wait while they are open, so that requests are sent in the order of the calls.
    pub(super) async fn connections(&self) -> Result<Arc<ExchangeConnections>> {
        if let Some(connections) = self.open_connections() {
            return Ok(connections);
        }
        let _only_one = self.opening.lock().await;
        if let Some(connections) = self.open_connections() {
            return Ok(connections);
        }
        let (in_turn, aside) =
            tokio::try_join!(ExchangeConnection::open(&self.server), ExchangeConnection::open(&self.server))?;
        let settle = in_turn.client.prepare(SETTLE).await.map_err(store_error)?;
        let connections = Arc::new(ExchangeConnections { in_turn, settle, aside });
        *self.slot() = Some(connections.clone());
        Ok(connections)
    }

    fn open_connections(&self) -> Option<Arc<ExchangeConnections>> {
        self.slot().as_ref().filter(|connections| connections.are_open()).cloned()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<ExchangeConnections>>> {
        self.connections.lock().expect("no panic while holding the connections")
    }
}

impl ExchangeConnections {
    fn are_open(&self) -> bool {
        !self.in_turn.client.is_closed() && !self.aside.client.is_closed()
    }
}

impl ExchangeConnection {
    async fn open(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        client.batch_execute(SESSION).await.map_err(store_error)?;
        let claim = client.prepare(CLAIM).await.map_err(store_error)?;
        Ok(Self { client, claim })
    }
}
