//! A store in a file, a receiver, and short words for what tests do to them.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use postrider::clock::{Clock, ManualClock, SystemClock};
use postrider::engine::{EngineEvent, EngineEventKind};
use postrider::sink::Environment;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{DeadLetter, DlqFilter, Story};
use postrider::{
    Engine, EngineOptions, MessageId, NewEndpoint, NewMessage, Operate, SqliteStore, State, Store, StoreError,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::broadcast;

use super::PATIENCE;
use super::receiver::Receiver;

pub(super) struct World {
    folder: TempDir,
    clock: Arc<dyn Clock>,
    pub(super) store: Arc<SqliteStore>,
    pub(super) receiver: Receiver,
}

impl World {
    pub(super) async fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock)).await
    }

    /// Its store's time stands still until it is moved.
    pub(super) async fn standing_still() -> (Self, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at("2026-01-15T12:00:00Z".parse().unwrap()));
        (Self::with_clock(clock.clone()).await, clock)
    }

    /// Its disk syncs as `sync` says.
    pub(super) async fn syncing(sync: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = SqliteOptions::node(folder.path().join("store.db"));
        let store = SqliteStore::open(SqliteOptions { sync: Arc::new(move |_| sync()), ..options }).unwrap();
        Self::over(folder, Arc::new(SystemClock), store).await
    }

    async fn with_clock(clock: Arc<dyn Clock>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = try_open(folder.path().join("store.db"), clock.clone()).unwrap();
        Self::over(folder, clock, store).await
    }

    async fn over(folder: TempDir, clock: Arc<dyn Clock>, store: SqliteStore) -> Self {
        Self { folder, clock, store: Arc::new(store), receiver: Receiver::start().await }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// As another process would open it.
    pub(super) fn tool(&self) -> SqliteStore {
        SqliteStore::open(SqliteOptions::tool(self.path())).unwrap()
    }

    /// Opens the file anew, once whoever held the store before has let go of it.
    pub(super) async fn reopen(&mut self) {
        let elsewhere = SqliteOptions::node(self.folder.path().join("elsewhere.db"));
        self.store = Arc::new(SqliteStore::open(elsewhere).unwrap());
        let deadline = Instant::now() + PATIENCE;
        loop {
            match try_open(self.path(), self.clock.clone()) {
                Ok(store) => return self.store = Arc::new(store),
                Err(error) => assert!(Instant::now() < deadline, "somebody still holds the store: {error}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// With the policy that tests can wait for.
    pub(super) async fn endpoint(&self, name: &str) {
        self.endpoint_with(name, json!({})).await;
    }

    pub(super) async fn endpoint_with(&self, name: &str, options: Value) {
        self.endpoint_from(json!({ "name": name, "options": options, "retry_policy": quick(20) })).await;
    }

    /// As people write it; what is missing is an HTTP endpoint at the receiver.
    pub(super) async fn endpoint_from(&self, endpoint: Value) {
        let mut endpoint: NewEndpoint = serde_json::from_value(complete(endpoint)).unwrap();
        if endpoint.protocol == "http" {
            let url = self.receiver.url(&endpoint.name);
            endpoint.config.entry("url").or_insert(url.into());
        }
        self.store.create_endpoint(endpoint).await.unwrap();
    }

    pub(super) async fn configure(&self, name: &str, value: &str) {
        self.store.configure(vec![(name.into(), value.into())]).await.unwrap();
    }

    pub(super) async fn engine(&self) -> Engine {
        self.engine_with(self.options()).await
    }

    pub(super) async fn engine_with(&self, options: EngineOptions) -> Engine {
        Engine::start(self.store.clone(), options).await.unwrap()
    }

    pub(super) fn options(&self) -> EngineOptions {
        EngineOptions {
            node_name: "test".to_owned(),
            drain_timeout: Duration::from_secs(5),
            environment: Environment {
                allow_internal: true,
                file_root: Some(self.folder()),
                ..Environment::default()
            },
            ..EngineOptions::default()
        }
    }

    pub(super) async fn send(&self, endpoint: &str, payload: impl ToString) -> MessageId {
        self.send_message(to(endpoint, payload)).await
    }

    pub(super) async fn send_message(&self, message: NewMessage) -> MessageId {
        self.store.send(message).await.unwrap().id
    }

    /// One transaction; payloads count from 0.
    pub(super) async fn send_many(&self, endpoint: &str, count: usize) -> Vec<MessageId> {
        self.send_all((0..count).map(|n| to(endpoint, n)).collect()).await
    }

    pub(super) async fn send_all(&self, messages: Vec<NewMessage>) -> Vec<MessageId> {
        self.store.send_batch(messages).await.unwrap().into_iter().map(|sent| sent.id).collect()
    }

    pub(super) async fn story(&self, id: MessageId) -> Story {
        self.store.story(id).await.unwrap()
    }

    #[track_caller]
    pub(super) fn until_state(&self, id: MessageId, state: State) -> impl Future<Output = Story> {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let story = self.story(id).await;
                if story.state == state {
                    return story;
                }
                assert!(Instant::now() < deadline, "{caller}: message {id} is not {state}: {story:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Everything is settled: nothing pending, nothing processing.
    #[track_caller]
    pub(super) fn until_empty(&self) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let status = self.store.status().await.unwrap();
                if status.pending + status.processing == 0 {
                    return;
                }
                assert!(Instant::now() < deadline, "{caller}: not everything was settled: {status:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    pub(super) async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.store.dlq(DlqFilter { limit: 10_000, ..DlqFilter::default() }).await.unwrap()
    }

    /// What a receiver sees of this id.
    pub(super) fn public(&self, id: MessageId) -> String {
        format!("msg_{}_{id}", self.store.name())
    }
}

fn try_open(path: PathBuf, clock: Arc<dyn Clock>) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(SqliteOptions { migrate: true, clock, ..SqliteOptions::node(path) })
}

fn complete(mut endpoint: Value) -> Value {
    let fields = endpoint.as_object_mut().unwrap();
    fields.entry("protocol").or_insert("http".into());
    endpoint
}

pub(super) fn to(endpoint: &str, payload: impl ToString) -> NewMessage {
    NewMessage { content_type: "text/plain".to_owned(), ..NewMessage::new(endpoint, payload.to_string()) }
}

/// Retries after 50 ms.
pub(super) fn quick(max_attempts: u32) -> Value {
    json!({ "max_attempts": max_attempts, "backoff": "fixed", "base_delay_seconds": 0.05 })
}

/// The next event that `wanted` makes something of.
#[track_caller]
pub(super) fn until_event<T>(
    events: &mut broadcast::Receiver<EngineEvent>,
    wanted: impl Fn(&EngineEventKind) -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let wait = async {
            loop {
                let event = events.recv().await.expect("the engine runs and the test keeps up");
                if let Some(found) = wanted(&event.kind) {
                    return found;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(found) => found,
            Err(_) => panic!("{caller}: the event never came"),
        }
    }
}

/// Until this is dropped, paused time moves only as the test says: not while others work on threads of their own.
pub(super) fn stand_still() -> mpsc::Sender<()> {
    let (held, dropped) = mpsc::channel();
    tokio::task::spawn_blocking(move || dropped.recv());
    held
}

/// Without letting time pass.
pub(super) async fn until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came");
        tokio::task::yield_now().await;
    }
}
