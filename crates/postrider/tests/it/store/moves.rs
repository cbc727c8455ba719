//! Moves that `docs/lifecycle.md` does not know are refused by the SQLite file itself, whoever asks: here a
//! person with a shell, who has none of our code in between.

use std::sync::Arc;

use postrider::clock::ManualClock;
use postrider::message::NodeId;
use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{ClaimRequest, NoDirectClaims, Redrive, Settlement, Story};
use postrider::verdict::Verdict;
use postrider::{MessageId, NewMessage, Operate, SqliteStore, State, Store};
use serde_json::json;
use tempfile::TempDir;

use super::world::{DEAD, Ticket, due, join, new_endpoint, to};

/// One message in every state there is, and a plain connection to the file.
struct File {
    _folder: TempDir,
    store: SqliteStore,
    shell: Connection,
    node: NodeId,
    batch: i64,
    pending: MessageId,
    /// Behind a dead head that holds its key: nothing else of the key is in the queue.
    waiting: MessageId,
    processing: Ticket,
    completed: MessageId,
    cancelled: MessageId,
    dead: MessageId,
    discarded: MessageId,
}

impl File {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.db");
        let clock = Arc::new(ManualClock::at("2026-01-15T12:00:00Z".parse().unwrap()));
        let options = SqliteOptions { clock, ..SqliteOptions::node(&path) };
        let store = SqliteStore::open(options).unwrap();
        for name in ["a", "b", "c", "d"] {
            store.create_endpoint(new_endpoint(name, json!({"on_dead": "hold"}))).await.unwrap();
        }
        let node = join(&store, Arc::new(NoDirectClaims)).await.0;
        let id = MessageId(0);
        let processing = Ticket {
            id,
            endpoint: postrider::endpoint::EndpointId(0),
            fence: postrider::message::Fence { node, batch: 0 },
            attempt: 0,
        };
        let shell = Connection::open(&path).unwrap();
        let mut file = Self {
            _folder: folder,
            store,
            shell,
            node,
            batch: 0,
            pending: id,
            waiting: id,
            processing,
            completed: id,
            cancelled: id,
            dead: id,
            discarded: id,
        };
        file.fill().await;
        file
    }

    async fn fill(&mut self) {
        self.completed = self.send(to("b")).await;
        let delivered = self.claim("b").await;
        self.settle(delivered, Verdict::Complete).await;
        self.discarded = self.send(to("b")).await;
        let failed = self.claim("b").await;
        self.settle(failed, DEAD).await;
        self.store.discard(self.letter(self.discarded)).await.unwrap();
        self.dead = self.send(to("c").ordering_key("k")).await;
        let failed = self.claim("c").await;
        self.settle(failed, DEAD).await;
        self.waiting = self.send(to("c").ordering_key("k")).await;
        self.cancelled = self.send(to("a")).await;
        self.store.cancel(self.cancelled).await.unwrap();
        self.send(to("d")).await;
        self.processing = self.claim("d").await;
        self.pending = self.send(to("a")).await;
    }

    async fn send(&self, message: NewMessage) -> MessageId {
        self.store.send(message).await.unwrap().id
    }

    async fn claim(&mut self, endpoint: &str) -> Ticket {
        self.batch += 1;
        let endpoint = self.store.endpoint(endpoint).await.unwrap().id;
        let request =
            ClaimRequest { node: self.node, batch: self.batch, wants: vec![due(endpoint, 1)], alone: false };
        Ticket::of(&self.store.claim(request).await.unwrap().claims[0])
    }

    async fn settle(&self, ticket: Ticket, verdict: Verdict) {
        let Ticket { id, endpoint, fence, .. } = ticket;
        let end = ticket.attempted(self.store.now(), verdict);
        let settlement = Settlement { id, endpoint, fence, end, hold_endpoint_until: None };
        self.store.settle(vec![settlement]).await.unwrap();
    }

    fn letter(&self, message: MessageId) -> i64 {
        let sql = "SELECT id FROM _postrider_dlq WHERE message_id = ?1";
        self.shell.query_row(sql, [message.0], |row| row.get(0)).unwrap()
    }

    async fn stories(&self) -> Vec<Story> {
        let ids = [
            self.pending,
            self.waiting,
            self.processing.id,
            self.completed,
            self.cancelled,
            self.dead,
            self.discarded,
        ];
        let mut stories = Vec::new();
        for id in ids {
            stories.push(self.store.story(id).await.unwrap());
        }
        stories
    }

    /// The shell is told why not, and nothing has changed.
    async fn refuses(&self, sql: &str, sentence: &str) {
        let before = self.stories().await;
        let error = self.shell.execute_batch(sql).expect_err(sql).to_string();
        assert!(error.contains("55000 ") && error.contains(sentence), "{sql}\n{error}");
        assert_eq!(self.stories().await, before, "{sql}");
    }

    async fn refuses_all(&self, table: &[(String, &str)]) {
        for (sql, sentence) in table {
            self.refuses(sql, sentence).await;
        }
    }
}

fn update(id: MessageId, set: &str) -> String {
    format!("UPDATE _postrider_queue SET {set} WHERE id = {id}")
}

/// As our own code does it: the row goes to the archive with the place it had.
fn archive(id: MessageId, status: &str) -> String {
    format!(
        "INSERT INTO _postrider_archive_2026_01 (id, endpoint_id, status, finished_at, priority, attempts, place,
           delivered_late, created_at, expires_at, content_type, payload)
         SELECT id, endpoint_id, '{status}', 1, priority, attempts, place, delivered_late, created_at, expires_at,
           content_type, payload FROM _postrider_queue WHERE id = {id}"
    )
}

fn bury(id: MessageId, status: &str) -> String {
    format!(
        "INSERT INTO _postrider_dlq (message_id, endpoint_id, status, reason, died_at, errors, bytes, priority,
           attempts, losses, created_at, content_type, payload)
         SELECT id, endpoint_id, '{status}', 'permanent', 1, '[]', 1, priority, attempts, losses, created_at,
           content_type, payload FROM _postrider_queue WHERE id = {id}"
    )
}

#[tokio::test]
async fn a_message_behind_its_key_cannot_be_claimed() {
    let file = File::open().await;
    let claim = "place = 2, node_id = 1, batch = 99, attempts = attempts + 1, started_at = 1";
    file.refuses(&update(file.waiting, claim), "waits for its turn").await;
    file.refuses(&update(file.waiting, "place = 0"), "waits for its turn").await;
    file.refuses(&update(file.pending, "place = 1, behind_key = 1"), "behind its ordering key").await;
}

#[tokio::test]
async fn a_claim_names_its_node_and_counts_its_attempt() {
    let file = File::open().await;
    let processing = file.processing.id;
    file.refuses_all(&[
        (update(file.pending, "place = 2"), "has a node"),
        (update(file.pending, "place = 2, node_id = 1, batch = 99"), "an attempt that is counted"),
        (update(file.pending, "node_id = 1"), "has no node"),
        (update(file.pending, "attempts = -1"), "counted"),
        (update(processing, "attempts = attempts - 1"), "counted"),
        (update(processing, "place = 0"), "has no node"),
        (update(processing, "node_id = 0"), "has a node"),
        (update(processing, "place = 3, node_id = 0, batch = 0"), "on probation"),
    ])
    .await;
}

#[tokio::test]
async fn only_what_was_claimed_can_be_completed_and_only_what_is_pending_cancelled() {
    let file = File::open().await;
    file.refuses_all(&[
        (archive(file.pending, "completed"), "when a node delivered it"),
        (archive(file.waiting, "completed"), "when a node delivered it"),
        (archive(file.processing.id, "cancelled"), "cancelled while it is pending"),
        (archive(file.processing.id, "expired"), "expired when it can expire"),
        (archive(file.pending, "expired"), "expired when it can expire"),
        (archive(file.processing.id, "dead"), "completed when"),
    ])
    .await;
}

#[tokio::test]
async fn only_what_is_processing_can_die() {
    let file = File::open().await;
    file.refuses_all(&[
        (bury(file.pending, "failed"), "only a message that is processing can die"),
        (bury(file.waiting, "failed"), "only a message that is processing can die"),
        (bury(file.processing.id, "discarded"), "only a message that is processing can die"),
    ])
    .await;
}

#[tokio::test]
async fn a_finished_message_never_moves_again() {
    let file = File::open().await;
    let change =
        |id: MessageId, set: &str| format!("UPDATE _postrider_archive_2026_01 SET {set} WHERE id = {id}");
    file.refuses_all(&[
        (change(file.completed, "status = 'cancelled', place = 0"), "a finished message never changes"),
        (change(file.cancelled, "status = 'completed', place = 2"), "a finished message never changes"),
        (change(file.cancelled, "status = 'completed'"), "a finished message never changes"),
        (
            change(file.cancelled, "status = 'expired', delivered_late = 1"),
            "a finished message never changes",
        ),
        (change(file.completed, "status = 'cancelled'"), "a finished message never changes"),
        (change(file.completed, "payload = x'00'"), "a finished message never changes"),
        (change(file.completed, "id = 4711"), "a finished message never changes"),
    ])
    .await;
}

#[tokio::test]
async fn a_dead_letter_ends_once_and_is_redriven_into_the_queue() {
    let file = File::open().await;
    let (dead, discarded) = (file.letter(file.dead), file.letter(file.discarded));
    let change = |id: i64, set: &str| format!("UPDATE _postrider_dlq SET {set} WHERE id = {id}");
    file.refuses_all(&[
        (change(dead, "status = 'redriven'"), "when its message is in the queue again"),
        (change(discarded, "status = 'failed'"), "only once"),
        (change(discarded, "status = 'redriven'"), "only once"),
        (change(dead, "payload = x'00'"), "a dead letter never changes"),
        (change(dead, "message_id = 4711"), "a dead letter never changes"),
    ])
    .await;
    assert_eq!(file.store.redrive(Redrive::One(dead)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_queued_message_never_changes() {
    let file = File::open().await;
    for set in [
        "id = 4711",
        "payload = x'00'",
        "payload = NULL, headers = NULL",
        "headers = '{}'",
        "content_type = 'text/plain'",
        "endpoint_id = 2",
        "ordering_key = 'other'",
        "key_position = 7",
        "idempotency_key = 'other'",
        "expires_at = 1",
        "created_at = 1",
    ] {
        for id in [file.pending, file.waiting, file.processing.id] {
            file.refuses(&update(id, set), "a queued message never changes").await;
        }
    }
    for set in ["attempts_before = -7", "attempts_before = 1", "attempts_before = attempts_before + 1"] {
        for id in [file.pending, file.waiting, file.processing.id] {
            file.refuses(&update(id, set), "an attempt is spared after it ended").await;
        }
    }
}

#[tokio::test]
async fn what_was_refused_goes_its_own_way_afterwards() {
    let mut file = File::open().await;
    file.refuses(&archive(file.processing.id, "cancelled"), "cancelled while").await;
    file.settle(file.processing, Verdict::Complete).await;
    file.refuses(&update(file.pending, "place = 2"), "has a node").await;
    let ticket = file.claim("a").await;
    assert_eq!(ticket.id, file.pending);
    file.settle(ticket, Verdict::Complete).await;
    for id in [file.processing.id, file.pending] {
        assert_eq!(file.store.story(id).await.unwrap().state, State::Completed);
    }
}
