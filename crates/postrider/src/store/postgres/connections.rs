//! Open connections, as many as are needed and not more than allowed.

use deadpool::managed::Object;
use deadpool_postgres::ClientWrapper;
use postgres_types::ToSql;
use scopeguard::ScopeGuard;
use tokio_postgres::Row;

use super::connect::{Pool, Server};
use super::errors::{pool_error, store_error};
use crate::store::Result;

pub(super) struct Connections {
    pool: Pool,
    server: Server,
}

impl Connections {
    pub(super) fn of(server: Server, count_max: usize) -> Self {
        Self { pool: server.pool(count_max), server }
    }

    /// Lends a connection for a question, or for several in a transaction. Whoever leaves before the answer has come takes
    /// it along: the next one would wait behind a question that nobody asks any more.
    pub(super) async fn with<T>(&self, ask: impl AsyncFnOnce(&mut ClientWrapper) -> Result<T>) -> Result<T> {
        let client = self.pool.get().await.map_err(pool_error)?;
        let mut client = scopeguard::guard(client, |client| self.server.give_up(Object::take(client)));
        let answered = ask(&mut client).await;
        drop(ScopeGuard::into_inner(client));
        answered
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
