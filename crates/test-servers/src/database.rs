//! A database of a test's own, and the ordinary role that owns it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tokio_postgres::{Client, Config, NoTls};

use crate::postgres::shared;

/// How long the server is waited for when a database goes: it may be frozen or gone itself.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// Goes with its value.
#[derive(Debug)]
pub struct Database(Address);

/// Where a database is, and the role without any rights beyond it that owns it.
#[derive(Clone, Debug)]
pub struct Address {
    /// The superuser's address of its server.
    server: Config,
    name: String,
    owner: String,
}

impl Database {
    /// An empty one on the shared server, with its own owner.
    pub async fn empty() -> Self {
        Self::empty_on(shared()).await
    }

    pub async fn empty_on(server: &str) -> Self {
        let name = fresh_name();
        let address = Address { server: parse(server), owner: name.clone(), name };
        let server = address.server().await;
        address.create(&server, "template1").await;
        Self(address)
    }

    /// A copy of one that `prepare` filled, once for each server and recipe: quicker than filling each. The recipe
    /// is whatever `prepare` depends on, as text (all migrations, say). All copies have the same owner.
    pub async fn copied(recipe: &str, prepare: impl AsyncFnOnce(&Address)) -> Self {
        Self::copied_on(shared(), recipe, prepare).await
    }

    pub async fn copied_on(server: &str, recipe: &str, prepare: impl AsyncFnOnce(&Address)) -> Self {
        let key = hash(recipe);
        let template = Address {
            server: parse(server),
            name: format!("template_{key:x}"),
            owner: format!("owner_{key:x}"),
        };
        let server = template.server().await;
        if !template.is_template(&server).await {
            template.prepare_once(&server, key, prepare).await;
        }
        let copy = Address { name: fresh_name(), ..template.clone() };
        copy.create(&server, &template.name).await;
        Self(copy)
    }
}

impl std::ops::Deref for Database {
    type Target = Address;

    fn deref(&self) -> &Address {
        &self.0
    }
}

impl Address {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Of its server.
    pub fn port(&self) -> u16 {
        self.server.get_ports()[0]
    }

    /// As its owner.
    pub fn url(&self) -> String {
        self.url_as(&self.owner)
    }

    pub fn superuser_url(&self) -> String {
        self.url_as("postgres")
    }

    /// As any role that the server knows.
    pub fn url_as(&self, role: &str) -> String {
        format!("postgres://{role}@127.0.0.1:{}/{}", self.port(), self.name)
    }

    /// As its owner.
    pub async fn connect(&self) -> Client {
        self.connect_as(&self.owner).await
    }

    pub async fn connect_as_superuser(&self) -> Client {
        self.connect_as("postgres").await
    }

    pub async fn connect_as(&self, role: &str) -> Client {
        connect(self.server.clone().user(role).dbname(&self.name)).await.expect("the database can be reached")
    }

    async fn server(&self) -> Client {
        connect(&self.server).await.expect("the server can be reached")
    }

    async fn create(&self, server: &Client, template: &str) {
        let Self { name, owner, .. } = self;
        let role = format!(
            "DO $$ BEGIN CREATE ROLE {owner} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
        );
        server.batch_execute(&role).await.expect("a role");
        let strategy = strategy(server).await;
        let create = format!("CREATE DATABASE {name} TEMPLATE {template} OWNER {owner} {strategy}");
        server.batch_execute(&create).await.expect("a database");
    }

    async fn is_template(&self, server: &Client) -> bool {
        let ready = "SELECT FROM pg_database WHERE datname = $1 AND datistemplate";
        server.query_opt(ready, &[&self.name]).await.expect("an answer").is_some()
    }

    /// The first process does it, others wait. A migration that died in the middle is begun again.
    async fn prepare_once(&self, server: &Client, key: i64, prepare: impl AsyncFnOnce(&Address)) {
        server.query("SELECT pg_advisory_lock($1)", &[&key]).await.expect("a lock");
        if !self.is_template(server).await {
            let name = &self.name;
            let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            server.batch_execute(&drop).await.expect("half a template goes");
            self.create(server, "template1").await;
            prepare(self).await;
            let ready = format!("ALTER DATABASE {name} IS_TEMPLATE true ALLOW_CONNECTIONS false");
            server.batch_execute(&ready).await.expect("a template");
            // What is still connected would keep it from being copied.
            let leave = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1";
            server.query(leave, &[name]).await.expect("an answer");
        }
        server.query("SELECT pg_advisory_unlock($1)", &[&key]).await.expect("a lock");
    }

    async fn drop_database(&self) -> Result<(), tokio_postgres::Error> {
        let server = connect(&self.server).await?;
        server.batch_execute(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name)).await?;
        if self.owner == self.name {
            server.batch_execute(&format!("DROP ROLE {}", self.owner)).await?;
        }
        Ok(())
    }
}

/// Best effort, so that a long run does not fill the disk: what is left goes with the server.
impl Drop for Database {
    fn drop(&mut self) {
        let address = self.0.clone();
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            runtime.block_on(async {
                tokio::time::timeout(DROP_TIMEOUT, address.drop_database()).await.ok()?.ok()
            })
        });
        let _ = dropping.join();
    }
}

async fn connect(config: &Config) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Copying files took 27 ms and dropping them 12 ms; through the WAL it was 34 and 20. Version 14 only copies.
async fn strategy(server: &Client) -> &'static str {
    let version = "SELECT current_setting('server_version_num')::int";
    let version: i32 = server.query_one(version, &[]).await.expect("a version").get(0);
    if version >= 150_000 { "STRATEGY file_copy" } else { "" }
}

fn parse(url: &str) -> Config {
    url.parse().expect("the address of a PostgreSQL server")
}

/// No other database of the server has it: test processes that share it have different ids.
fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("test_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

fn hash(text: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    // Positive, because it becomes part of names.
    (hasher.finish() >> 1) as i64
}
