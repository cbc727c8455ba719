//! Whole nodes on one database, by the real clock.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use postrider::sink::Environment;
use postrider::store::postgres::{PostgresOptions, send_in};
use postrider::{Engine, EngineOptions, NewEndpoint, NewMessage, Operate, PostgresStore};
use serde_json::{Value, json};
use tempfile::TempDir;
use test_servers::Database;
use tokio::time::Instant;

const PATIENCE: Duration = Duration::from_secs(30);

struct Post {
    database: Database,
    folder: TempDir,
}

impl Post {
    async fn open() -> Self {
        let recipe = PostgresStore::migration_recipe();
        let database = Database::copied(&recipe, async |template| super::migrated(template).await).await;
        let post = Self { database, folder: tempfile::tempdir().unwrap() };
        let config = json!({"path": "letters"}).as_object().unwrap().clone();
        let endpoint =
            NewEndpoint { name: "a".into(), protocol: "file".into(), config, ..NewEndpoint::default() };
        post.store().await.create_endpoint(endpoint).await.unwrap();
        post
    }

    async fn store(&self) -> Arc<PostgresStore> {
        Arc::new(PostgresStore::open(PostgresOptions::new(self.database.url())).await.unwrap())
    }

    /// Each node writes into a folder of its own.
    async fn node(&self, name: &str) -> Engine {
        let file_root = self.folder.path().join(name);
        std::fs::create_dir_all(&file_root).unwrap();
        let environment = Environment { file_root: Some(file_root), ..Environment::default() };
        let options = EngineOptions { node_name: name.into(), environment, ..EngineOptions::default() };
        Engine::start(self.store().await, options).await.unwrap()
    }

    /// What a node wrote, in its order.
    fn letters(&self, node: &str) -> Vec<Value> {
        let path: PathBuf = self.folder.path().join(node).join("letters");
        let text = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    async fn until_empty(&self) {
        until_empty(&*self.store().await).await;
    }
}

/// Everything is settled: nothing pending, nothing processing.
pub(crate) async fn until_empty(store: &impl Operate) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = store.status().await.unwrap();
        if status.pending + status.processing == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn numbered(n: usize) -> NewMessage {
    NewMessage::new("a", format!(r#"{{"n":{n}}}"#)).ordering_key(format!("k{}", n % 10))
}

#[tokio::test]
async fn two_nodes_deliver_everything_once_and_every_key_in_order() {
    let post = Post::open().await;
    let nodes = [post.node("one").await, post.node("two").await];
    let app = post.database.connect().await;
    for n in 0..300 {
        send_in(&app, &numbered(n)).await.unwrap();
    }
    post.until_empty().await;
    for node in nodes {
        node.stop().await;
    }
    let mut all: Vec<String> = Vec::new();
    for node in ["one", "two"] {
        let mut last: HashMap<String, u64> = HashMap::new();
        for letter in post.letters(node) {
            let n = letter["payload"]["n"].as_u64().unwrap();
            let key = format!("k{}", n % 10);
            let before = last.insert(key.clone(), n);
            assert!(before.is_none_or(|before| before < n), "{key}: {before:?} then {n}");
            all.push(letter["id"].to_string());
        }
    }
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 300, "each of them");
    assert_eq!(post.letters("one").len() + post.letters("two").len(), 300, "and once");
}

#[tokio::test]
async fn the_first_message_after_a_rest_is_delivered_at_once() {
    let post = Post::open().await;
    let node = post.node("one").await;
    let app = post.database.connect().await;
    send_in(&app, &numbered(0)).await.unwrap();
    post.until_empty().await;
    let begun = Instant::now();
    send_in(&app, &numbered(1)).await.unwrap();
    while post.letters("one").len() < 2 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Well before anybody would look without being told.
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    node.stop().await;
}
