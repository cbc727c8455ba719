//! A disk that refuses, and a disk that takes its time: what the SQLite store makes of it.

use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::poll;
use postrider::message::NodeId;
use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{
    Arrival, ClaimRequest, NewReplay, ReplaySelection, ReplayState, ReplayStatus, ReplayTurn, Replays,
};
use postrider::{
    MessageId, NewEventType, NewMessage, NewSubscription, Operate, PubSub, SqliteStore, State, Store,
    StoreError,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::mpsc::UnboundedReceiver;

use super::sqlite::Sqlite;
use super::world::{Slots, World, due, join, new_endpoint, to};

const PATIENCE: Duration = Duration::from_secs(20);

/// Syncs as it is told.
#[derive(Default)]
struct Disk {
    state: Mutex<DiskState>,
    moved: Condvar,
}

#[derive(Default)]
struct DiskState {
    refuses: bool,
    holds: bool,
    /// Syncs that are held just now.
    held: usize,
}

impl Disk {
    fn refuse(&self, refuses: bool) {
        self.state.lock().unwrap().refuses = refuses;
    }

    /// Nothing is synced until what it returns is dropped.
    fn hold(self: &Arc<Self>) -> Held {
        self.state.lock().unwrap().holds = true;
        Held(self.clone())
    }

    /// Returns when a sync is under way and held.
    fn until_held(&self) {
        let state = self.state.lock().unwrap();
        let (_state, waited) =
            self.moved.wait_timeout_while(state, PATIENCE, |state| state.held == 0).unwrap();
        assert!(!waited.timed_out(), "nobody syncs");
    }

    fn sync(&self) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.held += 1;
        self.moved.notify_all();
        let mut state = self.moved.wait_while(state, |state| state.holds).unwrap();
        state.held -= 1;
        if state.refuses { Err(std::io::Error::other("input/output error")) } else { Ok(()) }
    }
}

struct Held(Arc<Disk>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().holds = false;
        self.0.moved.notify_all();
    }
}

/// A store on such a disk, with an endpoint `a` and a node that has room for `room` messages.
struct Shaky {
    folder: TempDir,
    disk: Arc<Disk>,
    store: Arc<SqliteStore>,
    node: NodeId,
    slots: Arc<Slots>,
    arrivals: UnboundedReceiver<Arrival>,
}

impl Shaky {
    async fn open(room: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::default());
        let syncing = disk.clone();
        let store = SqliteStore::open(SqliteOptions {
            sync: Arc::new(move |_| syncing.sync()),
            ..SqliteOptions::node(folder.path().join("store.db"))
        });
        let (store, slots) = (Arc::new(store.unwrap()), Arc::new(Slots(room.into())));
        store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
        let (node, arrivals) = join(&*store, slots.clone()).await;
        Self { folder, disk, store, node, slots, arrivals }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    /// Inserting a message of this event type fails in this way, as SQLite's own failures do.
    fn fail_inserts(&self, event_type: &str, how: &str) {
        let trigger = format!(
            "CREATE TRIGGER fault_{event_type} BEFORE INSERT ON _postrider_queue
             WHEN NEW.event_type = '{event_type}' BEGIN SELECT RAISE({how}, 'database or disk is full'); END"
        );
        Connection::open(self.path()).unwrap().execute_batch(&trigger).unwrap();
    }

    fn free(&self) -> usize {
        self.slots.0.load(Ordering::SeqCst)
    }

    async fn claim(&self, batch: i64) -> Result<usize, StoreError> {
        let endpoint = self.store.endpoint("a").await?.id;
        let request = ClaimRequest { node: self.node, batch, wants: vec![due(endpoint, 10)], alone: false };
        Ok(self.store.claim(request).await?.claims.len())
    }
}

fn of_type(event_type: &str) -> NewMessage {
    NewMessage { event_type: Some(event_type.to_owned()), ..to("a") }
}

#[track_caller]
fn within<T>(future: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move { tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{caller}: it hangs")) }
}

#[tokio::test]
async fn nothing_is_written_outside_a_transaction_that_sqlite_ended_by_itself() {
    const PAIRS: usize = 20;
    let shaky = Shaky::open(0).await;
    // What SQLite does by itself when the disk is full: the statement fails and takes its transaction along.
    shaky.fail_inserts("full", "ROLLBACK");
    let sends = (0..2 * PAIRS).map(|n| {
        let message = if n % 2 == 0 { of_type("full") } else { to("a") };
        shaky.store.send(message)
    });
    // While another process holds the file they gather, so that the next transaction has all of them.
    let other = Connection::open(shaky.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let release = async { other.execute_batch("COMMIT").unwrap() };
    let (first, outcomes, ()) =
        within(async { tokio::join!(shaky.store.send(to("a")), join_all(sends), release) }).await;
    first.unwrap();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        assert_eq!(outcome.is_err(), n % 2 == 0, "only whoever fails pays for it: {n} {outcome:?}");
    }
    let status = shaky.store.status().await.unwrap();
    assert_eq!(status.pending, PAIRS as u64 + 1, "what was accepted is there, and nothing else");
    let claimed: usize =
        shaky.claim(1).await.unwrap() + shaky.claim(2).await.unwrap() + shaky.claim(3).await.unwrap();
    assert_eq!(claimed, PAIRS + 1);
}

#[tokio::test]
async fn nothing_is_written_outside_a_transaction_that_a_stored_event_ended() {
    const SENDS: usize = 20;
    let shaky = Shaky::open(0).await;
    for event_type in ["good", "full"] {
        shaky.store.create_event_type(NewEventType::new(event_type)).await.unwrap();
    }
    shaky.store.subscribe(NewSubscription::new("*", "a")).await.unwrap();
    shaky.fail_inserts("full", "ROLLBACK");
    // The application commits when the sends wait behind it: whatever comes next begins with its events.
    let app = Connection::open(shaky.path()).unwrap();
    app.execute_batch(
        "BEGIN IMMEDIATE;
         INSERT INTO postrider_publish (event_type, payload) VALUES ('good', '1'), ('full', '2'), ('good', '3')",
    )
    .unwrap();
    let sends = (0..SENDS).map(|_| shaky.store.send(to("a")));
    let commit = async { app.execute_batch("COMMIT").unwrap() };
    let (outcomes, ()) = within(async { tokio::join!(join_all(sends), commit) }).await;
    let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count() as i64;
    let number = |sql: &str| app.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let sent = || number("SELECT count(*) FROM postrider_queue WHERE event_type IS NULL");
    assert_eq!((sent(), accepted), (SENDS as i64, SENDS as i64), "the disk fails the event, not them");
    let left = async |events: i64| {
        while number("SELECT count(*) FROM _postrider_events") > events {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // What is before the event that fails does not fail with it again and again.
    within(left(2)).await;
    app.execute_batch("DROP TRIGGER fault_full").unwrap();
    within(left(0)).await;
    let published = number(
        "SELECT json_group_array(CAST(payload AS TEXT)) = '[\"1\",\"2\",\"3\"]'
         FROM (SELECT payload FROM postrider_queue WHERE event_type IS NOT NULL ORDER BY id)",
    );
    assert_eq!(published, 1, "once each, in their order");
    let counted = number("SELECT queued FROM _postrider_counts WHERE endpoint_id = 0");
    assert_eq!(counted, SENDS as i64 + 3);
}

#[tokio::test]
async fn an_insert_that_fails_gives_its_slot_back() {
    let mut shaky = Shaky::open(1).await;
    for (event_type, how) in [("aborted", "ABORT"), ("failed", "FAIL"), ("rolled_back", "ROLLBACK")] {
        shaky.fail_inserts(event_type, how);
        shaky.store.send(of_type(event_type)).await.unwrap_err();
        assert_eq!(shaky.free(), 1, "{how}");
    }
    let id = shaky.store.send(to("a")).await.unwrap().id;
    assert_eq!(next_claimed(&mut shaky.arrivals).await, id);
}

async fn next_claimed(arrivals: &mut UnboundedReceiver<Arrival>) -> MessageId {
    loop {
        if let Arrival::Claimed(claim) = within(arrivals.recv()).await.expect("the store lives") {
            return claim.message.id;
        }
    }
}

#[tokio::test]
async fn a_refused_sync_refuses_whatever_must_be_durable_until_a_restart() {
    let shaky = Shaky::open(1).await;
    shaky.disk.refuse(true);
    let refused = shaky.store.send(to("a")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Unusable(text) if text.contains("refused to sync")), "{refused}");
    assert_eq!(shaky.free(), 1, "nobody starts what may not be there");
    // The kernel has forgotten what it could not write: a sync that succeeds now proves nothing.
    shaky.disk.refuse(false);
    shaky.store.send(to("a")).await.unwrap_err();
    shaky.store.create_endpoint(new_endpoint("b", json!({}))).await.unwrap_err();
    shaky.store.heartbeat(shaky.node).await.unwrap_err();
    let (folder, disk) = (shaky.folder, shaky.disk);
    drop((shaky.store, disk));
    let store = SqliteStore::open(SqliteOptions::node(folder.path().join("store.db"))).unwrap();
    let queued = store.status().await.unwrap();
    assert!(queued.pending + queued.processing <= 1, "the second one was not even tried: {queued:?}");
    store.send(to("a")).await.unwrap();
}

#[tokio::test]
async fn a_claim_is_answered_only_when_what_it_may_have_seen_is_on_disk() {
    let shaky = Shaky::open(0).await;
    let held = shaky.disk.hold();
    let mut send = Box::pin(shaky.store.send(to("a")));
    assert!(poll!(&mut send).is_pending());
    shaky.disk.until_held();
    let endpoint = shaky.store.endpoint("a").await.unwrap().id;
    let request = ClaimRequest { node: shaky.node, batch: 1, wants: vec![due(endpoint, 1)], alone: false };
    let mut claim = Box::pin(shaky.store.claim(request));
    assert!(poll!(&mut claim).is_pending());
    // The writer answers in order: when it has answered this, it has made the claim.
    within(shaky.store.snapshot(None)).await.unwrap();
    assert!(poll!(&mut claim).is_pending(), "the message may still be lost with the power");
    assert!(poll!(&mut send).is_pending());
    drop(held);
    assert_eq!(within(claim).await.unwrap().claims.len(), 1);
    within(send).await.unwrap();
}

#[tokio::test]
async fn a_claim_of_what_could_not_be_synced_is_refused() {
    let shaky = Shaky::open(0).await;
    let held = shaky.disk.hold();
    let mut send = Box::pin(shaky.store.send(to("a")));
    assert!(poll!(&mut send).is_pending());
    shaky.disk.until_held();
    let mut claim = Box::pin(shaky.claim(1));
    within(async {
        while shaky.store.status().await.unwrap().processing == 0 {
            assert!(poll!(&mut claim).is_pending());
        }
    })
    .await;
    shaky.disk.refuse(true);
    drop(held);
    within(send).await.unwrap_err();
    within(claim).await.unwrap_err();
    within(shaky.claim(1)).await.expect_err("what it would see may not be on disk");
}

#[tokio::test]
async fn a_node_that_joins_anew_loses_no_slot_to_a_message_on_its_way_to_disk() {
    let mut shaky = Shaky::open(1).await;
    let (anew, _arrivals) = join(&*shaky.store, shaky.slots.clone()).await;
    let held = shaky.disk.hold();
    let mut send = Box::pin(shaky.store.send(to("a")));
    assert!(poll!(&mut send).is_pending());
    shaky.disk.until_held();
    assert_eq!(shaky.free(), 0, "it is claimed for the old node, and on its way to disk");
    let (store, old) = (shaky.store.clone(), shaky.node);
    let leaving = tokio::spawn(async move { store.leave(old).await });
    tokio::task::yield_now().await;
    drop(held);
    let id = within(send).await.unwrap().id;
    within(leaving).await.unwrap().unwrap();
    assert_eq!(shaky.free(), 1);
    assert_eq!(shaky.store.story(id).await.unwrap().state, State::Pending);
    shaky.node = anew;
    assert_eq!(shaky.claim(1).await.unwrap(), 1);
}

#[tokio::test]
async fn a_replay_skips_a_damaged_message_and_says_so() {
    let world = World::<Sqlite>::start().await;
    world.endpoint("b", json!({})).await;
    for endpoint in ["a", "b"] {
        let id = world.send(to(endpoint)).await;
        world.store().cancel(id).await.unwrap();
    }
    let shell = Connection::open(world.harness().path()).unwrap();
    shell.execute_batch("DROP TRIGGER _postrider_archive_2026_01_final").unwrap();
    let sql = "UPDATE _postrider_archive_2026_01 SET headers = '{' WHERE endpoint_id = 1";
    assert_eq!(shell.execute(sql, []).unwrap(), 1);
    let selection = ReplaySelection { status: Some(ReplayStatus::Cancelled), ..ReplaySelection::default() };
    let new = NewReplay { selection, ..NewReplay::default() };
    let replay = world.store().start_replay(new).await.unwrap().id;
    while let ReplayTurn::Worked = world.store().advance_replays(100).await.unwrap() {}
    let done = world.store().replay(replay).await.unwrap();
    assert_eq!((done.state, done.done, done.waiting), (ReplayState::Completed, 1, None));
    assert_eq!(done.skipped.get("invalid"), Some(&1));
    let one = world.store().replay_message(postrider::MessageId(1), None).await.unwrap_err();
    assert!(one.to_string().starts_with("headers: cannot be read: EOF while parsing"), "{one}");
}
