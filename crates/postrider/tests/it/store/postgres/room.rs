//! What a limit of the queue costs, and that it is honest however it is counted.

use serde_json::json;
use test_servers::Database;

use super::prompt::{self, Prompt};

/// More than are counted whenever somebody asks.
const MANY: u64 = 30_000;

async fn send_many(owner: &Prompt, endpoint: &str, count: u64) {
    for start in (0..count).step_by(10_000) {
        let batch = (count - start).min(10_000);
        let payloads = format!("ARRAY(SELECT '{{}}'::jsonb FROM generate_series(1, {batch}))");
        owner.run(&format!("SELECT cardinality(postrider.send_batch('{endpoint}', {payloads}))")).await;
    }
}

/// As a node does every second.
async fn count(owner: &Prompt) {
    owner.run("SELECT postrider._recount_queue()").await;
}

async fn cancel(owner: &Prompt, endpoint: &str, count: u64) {
    owner
        .run(&format!(
            "SELECT postrider.cancel_message(id) FROM (
               SELECT q.id FROM postrider.queue q JOIN postrider.endpoints e ON e.id = q.endpoint_id
               WHERE e.name = '{endpoint}' LIMIT {count}) AS few"
        ))
        .await;
}

/// Without a vacuum, after which reads of an index alone would not be told.
async fn start() -> (Database, Prompt) {
    let (database, owner) = prompt::alone().await;
    owner.run("ALTER TABLE postrider.queue SET (autovacuum_enabled = off)").await;
    (database, owner)
}

/// How many rows of the queue are read meanwhile. Not pages: whenever others change the catalog, all of it is read again.
async fn rows_read<T>(owner: &Prompt, work: impl Future<Output = T>) -> (i64, T) {
    let read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'queue'";
    owner.run("BEGIN").await;
    let before = owner.number(read).await;
    let done = work.await;
    let rows = owner.number(read).await - before;
    owner.run("COMMIT").await;
    (rows, done)
}

/// How many rows a send reads, and whether it was refused.
async fn send(owner: &Prompt, endpoint: &str) -> (i64, bool) {
    owner
        .run(
            "CREATE OR REPLACE FUNCTION pg_temp.refused(p_endpoint text) RETURNS boolean LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM postrider.send(p_endpoint, '{}');
               RETURN false;
             EXCEPTION WHEN SQLSTATE '53400' THEN
               RETURN true;
             END $$",
        )
        .await;
    let (rows, refused) =
        rows_read(owner, owner.value(&format!("SELECT pg_temp.refused('{endpoint}')"))).await;
    (rows, refused == "t")
}

/// Reads about as many rows as are counted at once, and not those of an endpoint besides.
async fn counts_cheaply(owner: &Prompt) {
    let (rows, ()) = rows_read(owner, count(owner)).await;
    assert!(rows < 11_000, "{rows} rows were read");
}

async fn accepts_cheaply(owner: &Prompt, endpoint: &str) {
    let (rows, refused) = send(owner, endpoint).await;
    assert!(!refused && rows < 200, "{rows} rows were read, refused: {refused}");
}

async fn refuses_cheaply(owner: &Prompt, endpoint: &str) {
    let (rows, refused) = send(owner, endpoint).await;
    assert!(refused && rows < 200, "{rows} rows were read, refused: {refused}");
}

#[tokio::test]
async fn a_send_to_an_endpoint_with_a_limit_does_not_read_what_others_have_queued() {
    let (_database, owner) = start().await;
    owner.endpoint("small", json!({"max_queue_size": 100})).await;
    send_many(&owner, "a", MANY).await;
    send_many(&owner, "small", 50).await;
    accepts_cheaply(&owner, "small").await;
    count(&owner).await;
    accepts_cheaply(&owner, "small").await;
    send_many(&owner, "small", 100 - 52).await;
    refuses_cheaply(&owner, "small").await;
}

#[tokio::test]
async fn a_send_to_an_endpoint_with_a_limit_does_not_read_what_others_have_under_keys_of_the_same_scope() {
    let (_database, owner) = start().await;
    owner.endpoint("small", json!({"max_queue_size": 100, "key_scope": "global"})).await;
    owner.endpoint("large", json!({"key_scope": "global"})).await;
    owner
        .run("SELECT postrider.send_with_options('large', '{}', p_ordering_key => 'k') FROM generate_series(1, 500)")
        .await;
    accepts_cheaply(&owner, "small").await;
}

#[tokio::test]
async fn a_full_queue_is_not_counted_by_those_it_refuses() {
    let (_database, owner) = start().await;
    owner.configure("max_queue_size", MANY).await;
    send_many(&owner, "a", MANY).await;
    count(&owner).await;
    refuses_cheaply(&owner, "a").await;
    cancel(&owner, "a", 10).await;
    accepts_cheaply(&owner, "a").await;
}

#[tokio::test]
async fn a_full_endpoint_is_not_counted_by_those_it_refuses() {
    let (_database, owner) = start().await;
    owner.endpoint("large", json!({"max_queue_size": MANY})).await;
    send_many(&owner, "a", 10).await;
    send_many(&owner, "large", MANY).await;
    count(&owner).await;
    refuses_cheaply(&owner, "large").await;
    cancel(&owner, "large", MANY / 10).await;
    let (_, refused) = send(&owner, "large").await;
    assert!(!refused, "never refused below 95 %");
}

#[tokio::test]
async fn an_endpoint_far_from_its_limit_is_not_counted_every_second() {
    let (_database, owner) = start().await;
    owner.endpoint("large", json!({"max_queue_size": 2 * MANY})).await;
    send_many(&owner, "large", MANY).await;
    count(&owner).await;
    for _ in 0..3 {
        send_many(&owner, "large", 10).await;
        send_many(&owner, "a", 1_000).await;
        cancel(&owner, "large", 10).await;
        counts_cheaply(&owner).await;
        accepts_cheaply(&owner, "large").await;
    }
}

#[tokio::test]
async fn a_full_endpoint_is_counted_again_when_enough_has_left() {
    let (_database, owner) = start().await;
    owner.endpoint("large", json!({"max_queue_size": MANY})).await;
    send_many(&owner, "a", MANY / 10).await;
    send_many(&owner, "large", MANY).await;
    count(&owner).await;
    for _ in 0..3 {
        cancel(&owner, "large", 100).await;
        counts_cheaply(&owner).await;
        refuses_cheaply(&owner, "large").await;
    }
    cancel(&owner, "large", MANY / 20).await;
    count(&owner).await;
    accepts_cheaply(&owner, "large").await;
    counts_cheaply(&owner).await;
}

/// Whoever looks only at what came and left in all cannot tell whose it was.
#[tokio::test]
async fn what_others_send_and_get_neither_fills_an_endpoint_nor_makes_room_there() {
    let (_database, owner) = start().await;
    owner.endpoint("large", json!({"max_queue_size": MANY})).await;
    send_many(&owner, "large", MANY - 2_000).await;
    for _ in 0..3 {
        send_many(&owner, "a", 2_000).await;
        count(&owner).await;
        accepts_cheaply(&owner, "large").await;
    }
    send_many(&owner, "large", 2_000 - 3).await;
    for _ in 0..3 {
        cancel(&owner, "a", 2_000).await;
        count(&owner).await;
        refuses_cheaply(&owner, "large").await;
    }
    assert_eq!(owner.number("SELECT count(*) FROM postrider.queue").await, MANY as i64);
}

#[tokio::test]
async fn what_is_redriven_takes_room() {
    let (_database, owner) = start().await;
    owner.endpoint("large", json!({"max_queue_size": MANY})).await;
    send_many(&owner, "large", MANY - 1).await;
    owner
        .run(
            "SELECT postrider._bury(id, 1, 'exhausted', 'no'), postrider._departed(1)
             FROM (SELECT id FROM postrider.queue LIMIT 2000) AS few",
        )
        .await;
    count(&owner).await;
    accepts_cheaply(&owner, "large").await;
    assert_eq!(owner.number("SELECT postrider.redrive_endpoint('large')").await, 2_000);
    count(&owner).await;
    refuses_cheaply(&owner, "large").await;
}

#[tokio::test]
async fn a_limit_that_is_raised_holds_though_more_was_queued_than_the_old_one() {
    let (_database, owner) = start().await;
    owner.endpoint("small", json!({})).await;
    send_many(&owner, "small", 60).await;
    for (limit, room) in [(20, 0), (100, 40), (70, 0), (101, 1)] {
        let options = json!({"max_queue_size": limit});
        owner.run(&format!("SELECT postrider.alter_endpoint('small', options => '{options}')")).await;
        count(&owner).await;
        send_many(&owner, "a", 1).await;
        count(&owner).await;
        if room > 0 {
            send_many(&owner, "small", room).await;
        }
        owner.refuses("SELECT postrider.send('small', '{}')", "53400", &format!("of {limit}")).await;
    }
}

#[tokio::test]
async fn what_was_rolled_back_takes_no_room() {
    let (_database, owner) = start().await;
    owner.configure("max_queue_size", MANY).await;
    send_many(&owner, "a", MANY - 5_000).await;
    count(&owner).await;
    owner.run("BEGIN").await;
    send_many(&owner, "a", 5_000).await;
    owner.run("ROLLBACK").await;
    send_many(&owner, "a", 4_999).await;
    let (_, refused) = send(&owner, "a").await;
    assert!(!refused, "it was counted before anybody is refused");
    count(&owner).await;
    refuses_cheaply(&owner, "a").await;
}

#[tokio::test]
async fn a_refused_send_takes_no_id() {
    let (_database, owner) = prompt::alone().await;
    owner.endpoint("small", json!({"max_queue_size": 2})).await;
    owner.run("SELECT postrider.send('small', '{}'), postrider.send('small', '{}')").await;
    owner.configure("max_queue_size", 2).await;
    for endpoint in ["a", "small"] {
        owner.refuses(&format!("SELECT postrider.send('{endpoint}', '{{}}')"), "53400", "is full").await;
    }
    assert_eq!(owner.number("SELECT last_value FROM postrider.message_ids").await, 2);
}

#[tokio::test]
async fn every_message_of_an_endpoint_counts_wherever_it_stands() {
    for scope in ["endpoint", "global"] {
        let (_database, owner) = prompt::alone().await;
        owner.endpoint("small", json!({"max_queue_size": 5, "key_scope": scope})).await;
        owner.endpoint("other", json!({"key_scope": scope})).await;
        for (endpoint, key) in
            [("small", "'k'"), ("small", "'k'"), ("other", "'k'"), ("small", "'l'"), ("small", "NULL")]
        {
            owner
                .run(&format!(
                    "SELECT postrider.send_with_options('{endpoint}', '{{}}', p_ordering_key => {key})"
                ))
                .await;
        }
        // One is on probation.
        owner.run("UPDATE postrider.queue SET place = 3, losses = 1 WHERE ordering_key IS NULL").await;
        owner.run("SELECT postrider.send('small', '{}')").await;
        owner.refuses("SELECT postrider.send('small', '{}')", "53400", "5 messages of 5").await;
        owner.refuses("SELECT postrider.drop_endpoint('small')", "55000", "has messages").await;
        owner.run("SELECT postrider.drop_endpoint('small', true)").await;
        assert_eq!(owner.number("SELECT count(*) FROM postrider.queue").await, 1, "{scope}");
    }
}
