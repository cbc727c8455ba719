//! Whole nodes on one database, each with a store of its own, and the receiver that they deliver to.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use postrider::sink::Environment;
use postrider::store::postgres::PostgresOptions;
use postrider::{Engine, EngineOptions, NewEndpoint, NewMessage, Operate, PostgresStore, State};
use serde_json::{Value, json};
use tempfile::TempDir;
use test_servers::Database;
use tokio::time::Instant;

use super::Postgres;
use crate::engine::receiver::Receiver;
use crate::store::world::Harness;

pub(super) const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Post {
    pub(super) database: Database,
    pub(super) receiver: Receiver,
    pub(super) store: Arc<PostgresStore>,
    folder: TempDir,
}

impl Post {
    pub(super) async fn open() -> Self {
        let recipe = PostgresStore::migration_recipe();
        let database = Database::copied(&recipe, async |template| super::migrated(template).await).await;
        let store = PostgresStore::open(PostgresOptions::new(database.url())).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        Self { database, receiver: Receiver::start().await, store: Arc::new(store), folder }
    }

    /// An HTTP endpoint at the receiver, at the path of its name, that tries again at once.
    pub(super) async fn endpoint(&self, name: &str, options: Value) {
        create_endpoint(&self.store, &self.receiver, name, options).await;
    }

    /// Each node writes into a folder of its own.
    pub(super) async fn file_endpoint(&self, name: &str) {
        create_file_endpoint(&self.store, name, "letters").await;
    }

    pub(super) async fn configure(&self, name: &str, value: &str) {
        self.store.configure(vec![(name.into(), value.into())]).await.unwrap();
    }

    /// A node with a store of its own, as on another machine.
    pub(super) async fn node(&self, name: &str) -> Engine {
        self.node_at(name, &self.database.url()).await
    }

    pub(super) async fn node_at(&self, name: &str, url: &str) -> Engine {
        let file_root = self.folder.path().join(name);
        std::fs::create_dir_all(&file_root).unwrap();
        let store = PostgresStore::open(PostgresOptions::new(url)).await.unwrap();
        node_with_files(Arc::new(store), name, file_root).await
    }

    /// What a node wrote, in its order.
    pub(super) fn letters(&self, node: &str) -> Vec<Value> {
        let path = self.folder.path().join(node).join("letters");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(super) async fn send(&self, endpoint: &str, payload: &str) -> postrider::MessageId {
        let message = NewMessage::new(endpoint, payload.to_owned());
        self.store.send(NewMessage { content_type: "text/plain".to_owned(), ..message }).await.unwrap().id
    }

    pub(super) async fn send_many(&self, endpoint: &str, count: usize) {
        let message = NewMessage::new(endpoint, "{}");
        self.store.send_batch(vec![message; count]).await.unwrap();
    }

    pub(super) async fn until_state(&self, id: postrider::MessageId, state: State) {
        let what = format!("message {id} to be {state}");
        until(&what, async || self.store.story(id).await.unwrap().state == state).await;
    }

    pub(super) async fn until_empty(&self) {
        until_empty(&*self.store).await;
    }

    /// What a query of one number says.
    pub(super) async fn number(&self, sql: &str) -> i64 {
        self.database.connect_as_superuser().await.query_one(sql, &[]).await.unwrap().get(0)
    }
}

/// Everything is settled: nothing pending, nothing processing.
pub(crate) async fn until_empty(store: &impl Operate) {
    until("an empty queue", async || {
        let status = store.status().await.unwrap();
        status.pending + status.processing == 0
    })
    .await;
}

/// For it time stands still until it is moved.
pub(super) async fn node_of(postgres: &Postgres, name: &str) -> Engine {
    start(Arc::new(postgres.open().await), name, None).await
}

pub(super) async fn node_with_files(store: Arc<PostgresStore>, name: &str, root: PathBuf) -> Engine {
    start(store, name, Some(root)).await
}

async fn start(store: Arc<PostgresStore>, name: &str, file_root: Option<PathBuf>) -> Engine {
    let environment = Environment { allow_internal: true, file_root, ..Environment::default() };
    let options = EngineOptions { node_name: name.into(), environment, ..EngineOptions::default() };
    Engine::start(store, options).await.unwrap()
}

pub(super) async fn create_file_endpoint(store: &PostgresStore, name: &str, path: &str) {
    let config = json!({ "path": path }).as_object().unwrap().clone();
    let endpoint =
        NewEndpoint { name: name.into(), protocol: "file".into(), config, ..NewEndpoint::default() };
    store.create_endpoint(endpoint).await.unwrap();
}

pub(super) async fn create_endpoint(store: &PostgresStore, receiver: &Receiver, name: &str, options: Value) {
    // Longer than anybody is held up here.
    let config = json!({ "url": receiver.url(name), "timeout": 60 });
    let endpoint = json!({
        "name": name, "protocol": "http", "config": config, "options": options,
        "retry_policy": { "backoff": "fixed", "base_delay_seconds": 0.05 },
    });
    store.create_endpoint(serde_json::from_value(endpoint).unwrap()).await.unwrap();
}

/// Asks again and again until it is so.
pub(super) async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
