//! Whole nodes before and after a move, by the real clock.

use std::collections::HashMap;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use postrider::sink::Environment;
use postrider::store::postgres::PostgresOptions;
use postrider::store::sqlite::SqliteOptions;
use postrider::{Engine, EngineOptions, NewEndpoint, NewMessage, Operate, PostgresStore, SqliteStore, Store};
use serde_json::{Value, json};
use tempfile::TempDir;
use test_servers::Database;
use tokio::time::Instant;

use super::super::postgres::migrated;
use super::super::postgres::post::until_empty;
use super::super::world::{due, join};
use super::export;

const PATIENCE: Duration = Duration::from_secs(30);
const KEYS: usize = 7;
const MESSAGES: usize = 300;

struct Post {
    folder: TempDir,
    sqlite: SqliteStore,
    database: Database,
}

impl Post {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = SqliteStore::open(SqliteOptions::node(folder.path().join("store.db"))).unwrap();
        let recipe = PostgresStore::migration_recipe();
        let database = Database::copied(&recipe, async |template| migrated(template).await).await;
        let config = json!({"path": "letters"}).as_object().unwrap().clone();
        let endpoint = NewEndpoint {
            name: "a".into(),
            protocol: "file".into(),
            config,
            retry_policy: Some(json!({"backoff": "fixed", "base_delay_seconds": 0.05})),
            ..NewEndpoint::default()
        };
        sqlite.create_endpoint(endpoint).await.unwrap();
        Self { folder, sqlite, database }
    }

    async fn send_all(&self) {
        for n in 0..MESSAGES {
            let message =
                NewMessage::new("a", format!(r#"{{"n":{n}}}"#)).ordering_key(format!("k{}", n % KEYS));
            self.sqlite.send(message).await.unwrap();
        }
    }

    async fn take(&self) -> Vec<u8> {
        self.sqlite.close_for_export("a test").await.unwrap();
        export(&self.sqlite).await
    }

    async fn node(&self) -> (Engine, Arc<PostgresStore>) {
        let store = Arc::new(PostgresStore::open(PostgresOptions::new(self.database.url())).await.unwrap());
        (start(store.clone(), self.folder.path()).await, store)
    }

    fn letters(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.folder.path().join("letters")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

async fn start(store: Arc<PostgresStore>, file_root: &Path) -> Engine {
    let environment = Environment { file_root: Some(file_root.to_owned()), ..Environment::default() };
    Engine::start(store, EngineOptions { environment, ..EngineOptions::default() }).await.unwrap()
}

#[tokio::test]
async fn every_key_goes_on_in_its_order() {
    let post = Post::new().await;
    post.send_all().await;
    // A node takes the heads of some keys with it when it dies.
    let (node, _arrivals) = join(&post.sqlite, Arc::new(postrider::store::NoDirectClaims)).await;
    let a = post.sqlite.endpoint("a").await.unwrap().id;
    let request = postrider::store::ClaimRequest { node, batch: 1, wants: vec![due(a, 3)], alone: false };
    assert_eq!(post.sqlite.claim(request).await.unwrap().claims.len(), 3);
    let stream = post.take().await;
    PostgresStore::import(&post.database.url(), Cursor::new(stream)).await.unwrap();
    let (engine, store) = post.node().await;
    let after =
        NewMessage::new("a", format!(r#"{{"n":{MESSAGES}}}"#)).ordering_key(format!("k{}", MESSAGES % KEYS));
    let after = store.send(after).await.unwrap();
    assert_eq!(after.id.0, MESSAGES as i64 + 1);
    until_empty(&*store).await;
    engine.stop().await;

    let letters = post.letters();
    assert_eq!(letters.len(), MESSAGES + 1, "each once");
    let mut last: HashMap<String, u64> = HashMap::new();
    for letter in &letters {
        let number = letter["payload"]["n"].as_u64().unwrap_or_else(|| panic!("{letter}"));
        let key = letter["ordering_key"].as_str().unwrap().to_owned();
        let before = last.insert(key, number);
        assert!(before.is_none_or(|before| before < number), "{letter} after {before:?}");
        assert_eq!(
            letter["id"],
            format!("msg_{}_{}", post.sqlite.name(), number + 1),
            "the id it always had"
        );
    }
    let mut attempts: Vec<u64> = letters
        .iter()
        .filter_map(|letter| letter["attempt"].as_u64())
        .filter(|attempt| *attempt > 1)
        .collect();
    attempts.sort_unstable();
    assert_eq!(attempts, [2, 2, 2], "what was in flight counted once");
}

/// Gives what it has, and the rest when it is told to.
struct Halting {
    first: Cursor<Vec<u8>>,
    go_on: mpsc::Receiver<Vec<u8>>,
}

impl Read for Halting {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.first.read(into)? {
            0 => match self.go_on.recv() {
                Ok(rest) => {
                    self.first = Cursor::new(rest);
                    self.first.read(into)
                }
                Err(_) => Ok(0),
            },
            read => Ok(read),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_in_the_middle_of_an_import_waits_for_all_of_it() {
    let post = Post::new().await;
    post.send_all().await;
    let stream = post.take().await;
    // One node is about to start when it begins, another comes later.
    let early = Arc::new(PostgresStore::open(PostgresOptions::new(post.database.url())).await.unwrap());
    let (to, go_on) = mpsc::channel();
    let (first, rest) = stream.split_at(stream.len() / 2);
    let halting = Halting { first: Cursor::new(first.to_vec()), go_on };
    let url = post.database.url();
    let importing = tokio::spawn(async move { PostgresStore::import(&url, halting).await });
    let observer = post.database.connect_as_superuser().await;
    let locked = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'postrider.nodes'::regclass
                  AND mode = 'ExclusiveLock' AND granted)";
    until(async || observer.query_one(locked, &[]).await.unwrap().get(0)).await;
    let file_root = post.folder.path().to_owned();
    let starting = tokio::spawn(async move { (start(early.clone(), &file_root).await, early) });
    let url = post.database.url();
    let opening = tokio::spawn(async move { PostgresStore::open(PostgresOptions::new(url)).await.unwrap() });
    let waiting = "SELECT count(*) = 2 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    until(async || observer.query_one(waiting, &[]).await.unwrap().get(0)).await;
    let nothing = "SELECT count(*) FROM postrider.queue";
    assert_eq!(observer.query_one(nothing, &[]).await.unwrap().get::<_, i64>(0), 0, "nobody sees half of it");
    assert!(post.letters().is_empty());
    to.send(rest.to_vec()).unwrap();
    drop(to);
    importing.await.unwrap().unwrap();
    let (engine, early) = starting.await.unwrap();
    assert_eq!(opening.await.unwrap().name(), post.sqlite.name());
    until_empty(&*early).await;
    engine.stop().await;
    let letters = post.letters();
    assert_eq!(letters.len(), MESSAGES);
    let prefix = format!("msg_{}_", post.sqlite.name());
    assert!(
        letters.iter().all(|letter| letter["id"].as_str().unwrap().starts_with(&prefix)),
        "{}",
        letters[0]
    );
}

async fn until(asked: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !asked().await {
        assert!(Instant::now() < deadline, "it never happened");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
