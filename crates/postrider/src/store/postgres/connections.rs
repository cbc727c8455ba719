//! A pool of connections with a limit.

use std::time::Duration;

use deadpool::managed::Object;
use deadpool_postgres::ClientWrapper;
use postgres_types::ToSql;
use scopeguard::ScopeGuard;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_postgres::Row;

use super::connect::{Server, ServerPool};
use super::errors::{pool_error, store_error};
use crate::error::StoreError;
use crate::store::Result;

/// How long a caller waits while all connections are in use.
const TURN_WAIT_MAX: Duration = Duration::from_secs(10);

/// A query that takes longer may end with a lock timeout: find out who blocks it. Shorter than every timeout of ours.
const NAMED_AFTER: Duration = Duration::from_secs(1);

pub(super) struct Connections {
    pool: ServerPool,
    server: Server,
    /// How many connections of the pool may be in use here at a time.
    turns: Semaphore,
}

impl Connections {
    pub(super) fn of(server: Server, count_max: usize) -> Self {
        Self { pool: server.pool(count_max), server, turns: Semaphore::new(count_max) }
    }

    /// The same pool, but at most this many at a time: the rest stays free for others.
    pub(super) fn at_most(&self, count_max: usize) -> Self {
        let (pool, server) = (self.pool.clone(), self.server.clone());
        Self { pool, server, turns: Semaphore::new(count_max) }
    }

    /// Lends a connection for one query, or for several in a transaction. When the caller drops this future before the answer, the
    /// connection is closed: the next borrower would wait behind that query.
    pub(super) async fn with<T>(&self, ask: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T>) -> Result<T> {
        let _turn = self.turn().await?;
        let pooled = self.pool.get().await.map_err(pool_error)?;
        let mut pooled = scopeguard::guard(pooled, |pooled| self.server.give_up(Object::take(pooled).client));
        let process = pooled.process;
        let answered = self.naming_blockers(process, ask(&mut pooled.client)).await;
        if answered.is_err() {
            // The server reports an error before it releases the transaction's locks.
            let _ = pooled.client.check_connection().await;
        }
        drop(ScopeGuard::into_inner(pooled));
        answered
    }

    /// On a lock timeout, add the blocking session to the error.
    async fn naming_blockers<T>(&self, process: i32, asked: impl Future<Output = Result<T>>) -> Result<T> {
        let mut asked = std::pin::pin!(asked);
        if let Ok(answered) = tokio::time::timeout(NAMED_AFTER, &mut asked).await {
            return answered;
        }
        let (answered, blockers) = tokio::select! {
            answered = &mut asked => (answered, None),
            blockers = self.blockers(process) => (asked.await, blockers),
        };
        answered.map_err(|error| match (error, blockers) {
            (StoreError::Unavailable(why), Some(who)) => StoreError::Unavailable(format!("{why}: {who}")),
            (error, _) => error,
        })
    }

    async fn blockers(&self, process: i32) -> Option<String> {
        let ask = async {
            // Only with a free connection: senders come first. As in `with`, none goes back before its answer.
            let _turn = self.turns.try_acquire().ok()?;
            let pooled = self.pool.get().await.ok()?;
            let pooled = scopeguard::guard(pooled, |pooled| self.server.give_up(Object::take(pooled).client));
            let row = pooled.client.query_one("SELECT postrider._blockers($1)", &[&process]).await.ok();
            drop(ScopeGuard::into_inner(pooled));
            row?.get(0)
        };
        tokio::time::timeout(NAMED_AFTER, ask).await.ok().flatten()
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        let Ok(turn) = tokio::time::timeout(TURN_WAIT_MAX, self.turns.acquire()).await else {
            let sentence = format!("no connection to the database became free within {TURN_WAIT_MAX:?}");
            return Err(StoreError::Unavailable(sentence));
        };
        Ok(turn.expect("the semaphore is never closed"))
    }

    pub(super) async fn query(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        self.with(async |client| {
            let statement = client.prepare_cached(sql).await.map_err(store_error)?;
            client.query(&statement, parameters).await.map_err(store_error)
        })
        .await
    }

    pub(super) async fn query_one(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        self.with(async |client| {
            let statement = client.prepare_cached(sql).await.map_err(store_error)?;
            client.query_one(&statement, parameters).await.map_err(store_error)
        })
        .await
    }

    /// For functions that answer nothing.
    pub(super) async fn call(&self, sql: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<()> {
        self.query(sql, parameters).await.map(drop)
    }
}
