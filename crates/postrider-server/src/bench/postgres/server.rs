//! The server that is measured, and databases on it that nothing else uses.

use tokio_postgres::{Client, NoTls};
use url::Url;

use crate::failure::Failure;
use crate::store_url::StoreUrl;

pub(in crate::bench) struct Server {
    url: Url,
}

impl Server {
    pub(in crate::bench) fn at(url: Url) -> Self {
        Self { url }
    }

    pub(in crate::bench) async fn new_database(&self, number: u32) -> Result<StoreUrl, Failure> {
        let name = format!("postrider_bench_{}_{number}", std::process::id());
        let client = connect(&self.url).await?;
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.map_err(failed)?;
        let mut url = self.url.clone();
        url.set_path(&name);
        Ok(StoreUrl::Postgres(url))
    }

    pub(in crate::bench) async fn drop_database(&self, url: &Url) -> Result<(), Failure> {
        let name = url.path().trim_start_matches('/');
        let client = connect(&self.url).await?;
        client.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await.map_err(failed)
    }
}

/// A plain connection, as an application has one.
pub(super) async fn connect(url: &Url) -> Result<Client, Failure> {
    let (client, connection) = tokio_postgres::connect(url.as_str(), NoTls).await.map_err(failed)?;
    // It ends with its client.
    tokio::spawn(connection);
    Ok(client)
}

pub(super) async fn connect_to(store: &StoreUrl) -> Result<Client, Failure> {
    match store {
        StoreUrl::Postgres(url) => connect(url).await,
        StoreUrl::Sqlite(_) => Err(Failure::usage("this scenario needs --store postgres://…")),
    }
}

pub(super) fn failed(error: tokio_postgres::Error) -> Failure {
    Failure::failed(format!(
        "the database: {}",
        error.as_db_error().map_or(error.to_string(), |error| error.to_string())
    ))
}
