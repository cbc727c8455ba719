//! The server that is measured, and databases on it that nothing else uses.

use postrider::PostgresStore;
use tokio_postgres::Client;

use crate::failure::CommandError;
use crate::postgres_url::PostgresUrl;
use crate::store_url::StoreUrl;

pub(in crate::bench) struct Server {
    url: PostgresUrl,
}

impl Server {
    pub(in crate::bench) fn at(url: PostgresUrl) -> Self {
        Self { url }
    }

    pub(in crate::bench) async fn new_database(&self, number: u32) -> Result<StoreUrl, CommandError> {
        let name = format!("postrider_bench_{}_{number}", std::process::id());
        let client = connect(&self.url).await?;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.map_err(failed)?;
        Ok(StoreUrl::Postgres(self.url.with_database(&name)))
    }

    pub(in crate::bench) async fn drop_database(&self, url: &PostgresUrl) -> Result<(), CommandError> {
        let name = url.database();
        let client = connect(&self.url).await?;
        client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.map_err(failed)
    }
}

/// Whether the server syncs what it commits.
pub(in crate::bench) async fn is_durable(url: &PostgresUrl) -> Result<bool, CommandError> {
    let row = connect(url).await?.query_one("SHOW fsync", &[]).await.map_err(failed)?;
    Ok(row.get::<_, &str>(0) == "on")
}

/// A plain connection, as an application has one.
pub(super) async fn connect(url: &PostgresUrl) -> Result<Client, CommandError> {
    Ok(PostgresStore::connect(url.as_str()).await?)
}

pub(in crate::bench) async fn connect_to(store: &StoreUrl) -> Result<Client, CommandError> {
    match store {
        StoreUrl::Postgres(url) => connect(url).await,
        StoreUrl::Sqlite(_) => Err(CommandError::usage("this scenario needs --store postgres://…")),
    }
}

pub(in crate::bench) fn failed(error: tokio_postgres::Error) -> CommandError {
    CommandError::failed(format!(
        "the database: {}",
        error.as_db_error().map_or(error.to_string(), |error| error.to_string())
    ))
}
