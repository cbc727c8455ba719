//! Fast mode on the SQLite file: who waits for the disk, and who does not. The disk is held still meanwhile.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use postrider::endpoint::EndpointId;
use postrider::message::NodeId;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{Arrival, ClaimRequest, DirectClaims, NoDirectClaims};
use postrider::{MessageId, NewMessage, Operate, SqliteStore, State, Store};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use super::world::{Slots, due, join, new_endpoint, to};

/// A disk whose syncs can be held up.
#[derive(Default)]
struct Disk {
    held: Mutex<bool>,
    let_go: Condvar,
}

impl Disk {
    fn hold(&self) {
        *self.held.lock().unwrap() = true;
    }

    fn let_go(&self) {
        *self.held.lock().unwrap() = false;
        self.let_go.notify_all();
    }

    fn sync(&self) {
        let held = self.held.lock().unwrap();
        drop(self.let_go.wait_while(held, |held| *held).unwrap());
    }
}

fn open(path: &Path, disk: &Arc<Disk>) -> SqliteStore {
    let disk = disk.clone();
    let sync = Arc::new(move |file: &File| {
        disk.sync();
        file.sync_data()
    });
    SqliteStore::open(SqliteOptions { sync, ..SqliteOptions::node(path) }).unwrap()
}

/// A node on a file, the disk still free.
struct Node {
    folder: TempDir,
    disk: Arc<Disk>,
    store: SqliteStore,
    id: NodeId,
    a: EndpointId,
    arrivals: UnboundedReceiver<Arrival>,
}

impl Drop for Node {
    fn drop(&mut self) {
        // A store waits for its disk before it closes.
        self.disk.let_go();
    }
}

impl Node {
    async fn start(direct: Arc<dyn DirectClaims>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::default());
        let store = open(&folder.path().join("store.db"), &disk);
        let a = store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap().id;
        let (id, arrivals) = join(&store, direct).await;
        let mut node = Self { folder, disk, store, id, a, arrivals };
        assert!(node.claim(1).await.is_empty());
        while node.arrivals.try_recv().is_ok() {}
        node
    }

    async fn claim(&self, batch: i64) -> Vec<MessageId> {
        let request = ClaimRequest { node: self.id, batch, wants: vec![due(self.a, 10)], alone: false };
        let claimed = self.store.claim(request).await.unwrap();
        claimed.claims.iter().map(|claim| claim.message.id).collect()
    }

    /// The writer has done all that was asked of it before.
    async fn catch_up(&self) {
        self.store.snapshot(None).await.unwrap();
    }
}

#[tokio::test]
async fn a_fast_send_is_answered_without_the_disk_and_another_one_is_not() {
    let node = Node::start(Arc::new(NoDirectClaims)).await;
    node.disk.hold();
    let fast = node.store.send_fast(to("a")).await.unwrap();
    let batch = node.store.send_batch_fast(vec![to("a"), to("a")]).await.unwrap();
    let mut durable = pin!(node.store.send(to("a")));
    assert!(durable.as_mut().now_or_never().is_none());
    node.catch_up().await;
    assert!(durable.as_mut().now_or_never().is_none(), "it has to be on disk");
    for id in [fast.id, batch[0].id, batch[1].id] {
        assert_eq!(node.store.story(id).await.unwrap().state, State::Pending);
    }
    node.disk.let_go();
    durable.await.unwrap();
}

#[tokio::test]
async fn no_node_gets_a_fast_message_before_the_disk_has_it() {
    let mut node = Node::start(Arc::new(NoDirectClaims)).await;
    node.disk.hold();
    let sent = node.store.send_fast(to("a")).await.unwrap();
    let mut claim = Box::pin(node.claim(2));
    assert!(claim.as_mut().now_or_never().is_none());
    node.catch_up().await;
    assert!(claim.as_mut().now_or_never().is_none(), "a lost message must not have been seen by anybody");
    node.disk.let_go();
    assert_eq!(claim.await, [sent.id]);
    assert!(matches!(node.arrivals.recv().await, Some(Arrival::Pending(_))));
}

#[tokio::test]
async fn a_fast_message_that_is_claimed_at_once_waits_for_the_disk_too() {
    let mut node = Node::start(Arc::new(Slots(AtomicUsize::new(1)))).await;
    node.disk.hold();
    let sent = node.store.send_fast(to("a")).await.unwrap();
    assert_eq!(node.store.story(sent.id).await.unwrap().state, State::Processing);
    node.catch_up().await;
    assert!(node.arrivals.try_recv().is_err());
    node.disk.let_go();
    match node.arrivals.recv().await {
        Some(Arrival::Claimed(claim)) => assert_eq!(claim.message.id, sent.id),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_another_process_sent_is_not_claimed_before_the_disk_has_it() {
    let node = Node::start(Arc::new(NoDirectClaims)).await;
    let tool = SqliteStore::open(SqliteOptions::tool(node.folder.path().join("store.db"))).unwrap();
    node.disk.hold();
    let sent = tool.send_fast(to("a")).await.unwrap();
    let mut claim = Box::pin(node.claim(2));
    assert!(claim.as_mut().now_or_never().is_none());
    node.catch_up().await;
    assert!(claim.as_mut().now_or_never().is_none());
    node.disk.let_go();
    assert_eq!(claim.await, [sent.id]);
}

#[tokio::test]
async fn the_disk_gets_a_fast_message_without_being_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let (syncs, synced) = std::sync::mpsc::channel();
    let sync = Arc::new(move |file: &File| {
        let _ = syncs.send(());
        file.sync_data()
    });
    let options = SqliteOptions { sync, ..SqliteOptions::node(folder.path().join("store.db")) };
    let store = SqliteStore::open(options).unwrap();
    store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
    while synced.try_recv().is_ok() {}
    store.send_fast(to("a")).await.unwrap();
    synced.recv_timeout(Duration::from_secs(5)).expect("a sync of its own");
}

const PATH_OF_CHILD: &str = "POSTRIDER_TEST_FAST_CHILD";

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL on Unix.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_process_that_is_killed_after_the_answer_loses_nothing() {
    if let Some(path) = std::env::var_os(PATH_OF_CHILD) {
        return send_fast_and_wait_to_be_killed(path.into()).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let store = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
    store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
    drop(store);
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store::fast::a_process_that_is_killed_after_the_answer_loses_nothing",
            "--nocapture",
        ])
        .env(PATH_OF_CHILD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let answered = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("answered ").map(|(_, ids)| ids.to_owned()));
    drop(child);

    let ids: Vec<i64> = answered.expect("an answer").split(' ').map(|id| id.parse().unwrap()).collect();
    assert_eq!(ids.len(), 4);
    let store = SqliteStore::open(SqliteOptions::node(&path)).unwrap();
    for id in ids {
        let story = store.story(MessageId(id)).await.unwrap();
        assert_eq!((story.state, story.payload), (State::Pending, Some(to("a").payload)));
    }
}

/// No sync of this process ever ends, so what it was answered it was answered without one.
async fn send_fast_and_wait_to_be_killed(path: PathBuf) {
    let disk = Arc::new(Disk::default());
    disk.hold();
    let store = open(&path, &disk);
    let mut sent = vec![store.send_fast(to("a")).await.unwrap()];
    let batch: Vec<NewMessage> = vec![to("a"), to("a").ordering_key("k"), to("a").idempotency_key("i")];
    sent.extend(store.send_batch_fast(batch).await.unwrap());
    let ids: Vec<String> = sent.iter().map(|sent| sent.id.to_string()).collect();
    println!("answered {}", ids.join(" "));
    std::future::pending().await
}
