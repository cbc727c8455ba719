//! `postrider_send` inside the application's transaction.

use std::time::Duration;

use jiff::Timestamp;
use postrider::rusqlite::Connection;
use postrider::store::{Arrival, NoDirectClaims};
use postrider::verdict::Verdict;
use postrider::{MessageId, NewMessage, Operate, State};
use serde_json::json;

use super::super::world::{DEAD, join, new_endpoint, to};
use super::{Shop, last_send, refusal, send};

const MINIMAL: &str = r#"INTO postrider_send (endpoint, payload) VALUES ('a', '{"total": 4200}')"#;

#[tokio::test]
async fn a_message_commits_or_rolls_back_with_the_data_it_belongs_to() {
    let shop = Shop::open().await;
    for end in ["COMMIT", "ROLLBACK"] {
        let order =
            format!("BEGIN IMMEDIATE; INSERT INTO orders (total) VALUES (4200); INSERT {MINIMAL}; {end}");
        shop.app.execute_batch(&order).unwrap();
    }
    assert_eq!((shop.number("SELECT count(*) FROM orders"), shop.queued().await), (1, 1));
    let story = shop.store.story(last_send(&shop.app).unwrap().id).await.unwrap();
    assert_eq!((story.state, story.content_type.as_str()), (State::Pending, "application/json"));
    assert_eq!(story.payload.as_deref(), Some(br#"{"total": 4200}"#.as_slice()), "byte for byte");
    assert_eq!(shop.store.send(to("a")).await.unwrap().id, MessageId(2), "both ways share the ids");
}

#[tokio::test]
async fn a_blob_is_kept_byte_for_byte_with_its_content_type() {
    let shop = Shop::open().await;
    let payload: Vec<u8> = (0..=255).collect();
    let message =
        NewMessage { content_type: "application/octet-stream".into(), ..NewMessage::new("a", payload) };
    let sent = shop.send(&message).unwrap();
    let story = shop.store.story(sent.id).await.unwrap();
    assert_eq!((story.payload, story.listed.content_type), (Some(message.payload), message.content_type));
}

#[tokio::test]
async fn a_uuid_is_read_in_every_way_that_it_is_commonly_written() {
    let shop = Shop::open().await;
    let hyphened = "1C0A7E5E-3f0b-4a55-9a52-0f4b6f3b9a11";
    for written in [hyphened.to_owned(), hyphened.replace('-', ""), format!("{{{hyphened}}}")] {
        let sql = "INSERT INTO postrider_send (endpoint, payload, correlation_id) VALUES ('a', '1', ?1)";
        shop.app.execute(sql, [&written]).unwrap();
        let story = shop.store.story(last_send(&shop.app).unwrap().id).await.unwrap();
        assert_eq!(story.correlation_id, hyphened.parse().ok(), "{written}");
        let row = "SELECT count(*) FROM postrider_queue WHERE correlation_id = '1c0a7e5e-3f0b-4a55-9a52-0f4b6f3b9a11'";
        assert!(shop.number(row) > 0, "{written}");
    }
}

#[tokio::test]
async fn every_row_of_one_statement_is_a_message() {
    let shop = Shop::open().await;
    let sql = "INSERT INTO postrider_send (endpoint, payload, ordering_key)
               SELECT 'a', json_object('n', value), 'k' FROM json_each('[1, 2, 3]')";
    shop.app.execute(sql, []).unwrap();
    let order: Vec<String> = shop
        .app
        .prepare("SELECT CAST(payload AS TEXT) FROM postrider_queue ORDER BY id")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(order, [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
    assert_eq!(last_send(&shop.app).unwrap().id, MessageId(3), "the last one");
}

#[tokio::test]
async fn an_id_is_not_given_twice_in_one_statement() {
    let shop = Shop::open().await;
    let sql = "INSERT INTO postrider_send (endpoint, payload, idempotency_key, expires_at)
               SELECT 'a', value, 'i', 1 FROM json_each('[\"1\", \"2\", \"3\"]')";
    shop.app.execute(sql, []).unwrap();
    let states = "SELECT sum(state = 'expired' AND id IN (1, 2)) * 10 + sum(state = 'pending' AND id = 3) FROM postrider_messages";
    assert_eq!(shop.number(states), 21, "each was expired by the next one");
}

#[tokio::test]
async fn a_refusal_names_field_and_rule_and_leaves_the_transaction_as_it_was() {
    let shop = Shop::open().await;
    shop.store.create_endpoint(new_endpoint("off", json!({}))).await.unwrap();
    shop.store.set_endpoint_enabled("off", false).await.unwrap();
    let refusals = [
        ("endpoint", "'nowhere'", "42704 endpoint: there is no endpoint of this name"),
        ("endpoint", "NULL", "42704 endpoint: there is no endpoint of this name"),
        ("endpoint", "'off'", "55000 endpoint: is disabled; enable it to send to it"),
        ("payload", "NULL", "22023 payload: is required"),
        ("payload", "42", "22023 payload: must be text or a blob"),
        (
            "payload",
            "'\"' || hex(zeroblob(524288)) || '\"'",
            "54000 payload: is more than max_payload_bytes allows",
        ),
        ("priority", "11", "22023 priority: must be from 0 to 10"),
        ("priority", "'high'", "22023 priority: must be from 0 to 10"),
        ("scheduled_at", "'2026-02-30T00:00:00Z'", "22023 scheduled_at: must be a time like "),
        ("scheduled_at", "'2026-02-28T00:00:00.Z'", "22023 scheduled_at: must be a time like "),
        ("scheduled_at", "x'00'", "22023 scheduled_at: must be a time like "),
        ("expires_at", "'tomorrow'", "22023 expires_at: must be a time like "),
        ("expires_at", "'9999-12-30T00:00:00Z'", "22023 expires_at: must be a time before 9999-12-30"),
        ("expires_at", "9e15", "22023 expires_at: must be a time like "),
        ("idempotency_key", "''", "22023 idempotency_key: must not be empty and has no control characters"),
        (
            "ordering_key",
            "'a' || char(0)",
            "22023 ordering_key: must not be empty and has no control characters",
        ),
        ("ordering_key", "CAST(x'61ff' AS TEXT)", "22023 ordering_key: must be text in UTF-8"),
        ("ordering_key", "7", "22023 ordering_key: must be text in UTF-8"),
        ("correlation_id", "'7'", "22023 correlation_id: must be a UUID"),
        (
            "correlation_id",
            "'urn:uuid:1c0a7e5e-3f0b-4a55-9a52-0f4b6f3b9a11'",
            "22023 correlation_id: must be a UUID",
        ),
        ("headers", "'[]'", "22023 headers: must be an object of strings"),
        ("headers", "'{\"a\":1}'", "22023 headers: must be an object of strings"),
        ("headers", "x'7b7d'", "22023 headers: must be an object of strings"),
        (
            "headers",
            "'{\"te\":\"x\"}'",
            "22023 headers: a header belongs to the connection and cannot be set",
        ),
        ("headers", "'{\"a\":\"\\u0000\"}'", "22023 headers: must not contain the character U+0000"),
        ("options", "'{'", "22023 options: must be an object"),
        (
            "options",
            "'{\"url_suffix\":\"/a\\u0000\"}'",
            "22023 options: must not contain the character U+0000",
        ),
        (
            "options",
            "'{\"retries\":1}'",
            "22023 options: a key unknown field; expected one of: method, timeout, ",
        ),
        ("options", "'{\"timeout\":300}'", "22023 options.timeout: must be below stale_recovery_timeout"),
        (
            "options",
            "'{\"max_attempts\":1002}'",
            "22023 options.max_attempts: must be a whole number from 0 to 1001",
        ),
        ("content_type", "''", "22023 content_type: must be 1 to 256 printable ASCII characters"),
        ("event_type", "zeroblob(3)", "22023 event_type: must be text in UTF-8"),
        ("event_type", "printf('%.257c', 'x')", "54000 event_type: is more than max_key_bytes allows"),
    ];
    shop.app.execute_batch(&format!("BEGIN IMMEDIATE; INSERT {MINIMAL}")).unwrap();
    for (field, value, expected) in refusals {
        let columns =
            [("endpoint", "'a'"), ("payload", "'1'")].into_iter().filter(|(name, _)| *name != field);
        let (names, values): (Vec<_>, Vec<_>) = columns.chain([(field, value)]).unzip();
        let sql = format!("INSERT INTO postrider_send ({}) VALUES ({})", names.join(", "), values.join(", "));
        let refused = refusal(&shop.app, &sql);
        assert!(refused.starts_with(expected), "{sql}\n{refused}");
    }
    shop.app.execute_batch("COMMIT").unwrap();
    assert_eq!(shop.queued().await, 1);
    assert_eq!(last_send(&shop.app).unwrap().id, MessageId(1));
}

#[tokio::test]
async fn a_time_is_read_as_it_was_meant() {
    let shop = Shop::open().await;
    let times = [
        ("'2035-06-01T12:00:00Z'", "2035-06-01T12:00:00Z"),
        ("'2035-06-01 12:00:00'", "2035-06-01T12:00:00Z"),
        ("'2035-06-01T12:00:00.123456+02:00'", "2035-06-01T10:00:00.123456Z"),
        ("'2035-06-01T12:00:00.9999999-00:30'", "2035-06-01T12:30:00.999999Z"),
        ("'2036-02-29T23:59:59.5'", "2036-02-29T23:59:59.5Z"),
        ("'9999-12-29T23:59:59.999999Z'", "9999-12-29T23:59:59.999999Z"),
        ("2000000000", "2033-05-18T03:33:20Z"),
        ("2000000000.25", "2033-05-18T03:33:20.25Z"),
    ];
    for (given, meant) in times {
        let sql = format!(
            "INSERT INTO postrider_send (endpoint, payload, scheduled_at) VALUES ('a', '1', {given})"
        );
        shop.app.execute(&sql, []).unwrap();
        let story = shop.store.story(last_send(&shop.app).unwrap().id).await.unwrap();
        let meant: Timestamp = meant.parse().unwrap();
        assert_eq!((story.scheduled_at, story.due_at), (Some(meant), Some(meant)), "{given}");
    }
}

#[tokio::test]
async fn conflict_clauses_of_the_caller_change_nothing() {
    let shop = Shop::open().await;
    let held = shop.send(&to("a").idempotency_key("i").ordering_key("k")).unwrap();
    let behind = shop.send(&to("a").ordering_key("k")).unwrap();
    for insert in
        ["INSERT", "REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE", "INSERT OR FAIL", "INSERT OR ROLLBACK"]
    {
        let same = send(&shop.app, insert, &to("a").idempotency_key("i")).unwrap();
        assert_eq!((same.id, same.duplicate), (held.id, true), "{insert}");
        shop.app.execute_batch("BEGIN IMMEDIATE").unwrap();
        let other = NewMessage::new("a", "2").idempotency_key("i");
        let refused = send(&shop.app, insert, &other).unwrap_err();
        assert!(refused.starts_with("23505 idempotency_key: "), "{insert}: {refused}");
        let invalid = NewMessage { priority: 11, ..to("a") };
        let refused = send(&shop.app, insert, &invalid).unwrap_err();
        assert!(refused.starts_with("22023 priority: "), "{insert}: {refused}");
        shop.app.execute_batch("COMMIT").expect("the transaction is still open");
    }
    assert_eq!(shop.queued().await, 2);
    for insert in ["REPLACE", "INSERT OR IGNORE"] {
        let next = send(&shop.app, insert, &to("a").ordering_key("k")).unwrap();
        let reason = shop.store.story(next.id).await.unwrap().reason.unwrap();
        assert!(next.id > behind.id && reason.contains("behind"), "{insert}: {reason}");
    }
    assert_eq!(shop.store.status().await.unwrap().pending, 4);
}

#[tokio::test]
async fn a_full_queue_refuses_and_counts_both_ways_in() {
    let shop = Shop::open().await;
    shop.store.create_endpoint(new_endpoint("small", json!({ "max_queue_size": 1 }))).await.unwrap();
    shop.configure("max_queue_size", "3").await;
    shop.send(&to("small").idempotency_key("i")).unwrap();
    let refused = shop.send(&to("small")).unwrap_err();
    assert!(refused.starts_with("53400 options.max_queue_size: "), "{refused}");
    shop.store.send(to("a")).await.unwrap();
    shop.send(&to("a")).unwrap();
    let refused = shop.send(&to("a")).unwrap_err();
    assert!(refused.starts_with("53400 max_queue_size: "), "{refused}");
    assert_eq!(shop.store.send(to("a")).await.unwrap_err().sqlstate(), "53400");
    assert!(shop.send(&to("small").idempotency_key("i")).unwrap().duplicate, "a duplicate needs no room");
}

#[tokio::test]
async fn a_running_node_notices_the_commit() {
    let shop = Shop::open().await;
    let (_, mut arrivals) = join(&shop.store, std::sync::Arc::new(NoDirectClaims)).await;
    let a = shop.store.endpoint("a").await.unwrap().id;
    while arrivals.try_recv().is_ok() {}
    shop.send(&to("a")).unwrap();
    let told = async {
        while !matches!(arrivals.recv().await, Some(Arrival::Pending(endpoint)) if endpoint == a) {}
    };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("the node is told without being asked");
}

#[tokio::test]
async fn a_reserved_key_is_compared_whatever_the_archive_keeps() {
    for archive in ["on", "metadata", "off"] {
        let shop = Shop::open().await;
        shop.configure("idempotency_retention", "600").await;
        shop.configure("archive", archive).await;
        let message = NewMessage::new("a", "1".repeat(150)).idempotency_key("i");
        let first = shop.send(&message).unwrap();
        shop.finish_one("a", Verdict::Complete).await;
        let again = shop.send(&message).unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true), "archive {archive}");
        let others = [
            NewMessage { payload: "1".repeat(151).into(), ..message.clone() },
            NewMessage { content_type: "text/plain".into(), ..message },
        ];
        for other in others {
            let refused = shop.send(&other).unwrap_err();
            assert!(refused.starts_with("23505 idempotency_key: "), "archive {archive}: {refused}");
        }
        assert_eq!(shop.queued().await, 0);
    }
}

#[tokio::test]
async fn a_reserved_key_is_compared_whatever_bytes_the_payload_has() {
    let shop = Shop::open().await;
    shop.configure("idempotency_retention", "600").await;
    shop.configure("archive", "off").await;
    for length in (38..=48).chain(102..=112) {
        let payload: Vec<u8> = (0..length).map(|byte| byte as u8 ^ 0xa5).collect();
        let message = NewMessage {
            content_type: "application/data".into(),
            ..NewMessage::new("a", payload).idempotency_key(format!("key {length}"))
        };
        let first = shop.send(&message).unwrap();
        shop.finish_one("a", Verdict::Complete).await;
        let again = shop.send(&message).unwrap();
        assert_eq!((again.id, again.duplicate), (first.id, true), "{length} bytes");
    }
}

#[tokio::test]
async fn a_reserved_key_is_compared_however_large_the_payload_is() {
    let shop = Shop::open().await;
    shop.configure("idempotency_retention", "600").await;
    shop.configure("archive", "off").await;
    let message = NewMessage::new("a", vec![b'1'; 70_000]).idempotency_key("i");
    let first = shop.send(&message).unwrap();
    shop.finish_one("a", Verdict::Complete).await;
    let again = shop.send(&message).unwrap();
    assert_eq!((again.id, again.duplicate), (first.id, true));
    let refused =
        shop.send(&NewMessage { payload: vec![b'1'; 70_001].into(), ..message.clone() }).unwrap_err();
    assert!(refused.starts_with("23505 idempotency_key: "), "{refused}");
    assert!(shop.store.send(message).await.unwrap().duplicate);
}

#[tokio::test]
async fn an_erased_message_leaves_no_payload_and_its_reserved_key_refuses_every_send() {
    let shop = Shop::open().await;
    shop.configure("idempotency_retention", "600").await;
    let message = NewMessage::new("a", r#""secret""#).idempotency_key("i");
    let first = shop.send(&message).unwrap();
    shop.finish_one("a", Verdict::Complete).await;
    shop.store.erase(first.id).await.unwrap();
    let kept = "SELECT count(*) FROM _postrider_reservations WHERE payload IS NOT NULL";
    assert_eq!(shop.app.query_row(kept, [], |row| row.get::<_, i64>(0)).unwrap(), 0);

    let says = "has the same key and another payload or content type, or was erased";
    let by_sql = shop.send(&message).unwrap_err();
    assert!(by_sql.starts_with("23505 idempotency_key: ") && by_sql.ends_with(says), "{by_sql}");
    let in_transaction = postrider::store::sqlite::send_in(&shop.app, &message).unwrap_err();
    let by_program = shop.store.send(message.clone()).await.unwrap_err();
    let in_batch = shop.store.send_batch(vec![message]).await.unwrap_err();
    for refused in [in_transaction, by_program, in_batch] {
        assert_eq!(refused.sqlstate(), "23505");
        assert_eq!(
            refused.to_string(),
            format!("idempotency_key: message {} of this endpoint {says}", first.id)
        );
    }
    assert_eq!(shop.queued().await, 0);
}

#[tokio::test]
async fn a_copy_for_a_reserved_key_is_erased_when_nothing_else_is_left_of_the_message() {
    let shop = Shop::open().await;
    shop.configure("idempotency_retention", "600").await;
    shop.configure("archive", "off").await;
    let message = NewMessage::new("a", r#""secret""#).idempotency_key("i");
    let first = shop.send(&message).unwrap();
    shop.finish_one("a", Verdict::Complete).await;
    let kept = "SELECT count(*) FROM _postrider_reservations WHERE payload IS NOT NULL";
    let kept = || shop.app.query_row(kept, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(kept(), 1);
    shop.store.erase(first.id).await.unwrap();
    assert_eq!(kept(), 0);
    let unknown = shop.store.erase(MessageId(99)).await.unwrap_err();
    assert_eq!(unknown.sqlstate(), "42704");
}

#[tokio::test]
async fn an_expired_holder_of_the_key_is_expired_first() {
    let shop = Shop::open().await;
    let past = Timestamp::now() - Duration::from_secs(1);
    let stale = NewMessage { expires_at: Some(past), ..to("a").idempotency_key("i").ordering_key("k") };
    let holder = shop.send(&stale).unwrap();
    let behind = shop.send(&to("a").ordering_key("k")).unwrap();
    let next = shop.send(&NewMessage::new("a", "2").idempotency_key("i")).unwrap();
    assert!(!next.duplicate && next.id != holder.id);
    assert_eq!(shop.store.story(holder.id).await.unwrap().state, State::Expired);
    let reason = shop.store.story(behind.id).await.unwrap().reason.unwrap();
    assert_eq!(reason, "no node runs; due now", "its key lets the next one go");
    assert_eq!(shop.store.status().await.unwrap().pending, 2);
}

#[tokio::test]
async fn a_held_key_holds_what_sql_sends() {
    let shop = Shop::open().await;
    shop.store.create_endpoint(new_endpoint("hold", json!({ "on_dead": "hold" }))).await.unwrap();
    shop.send(&to("hold").ordering_key("k")).unwrap();
    shop.finish_one("hold", DEAD).await;
    let held = shop.send(&to("hold").ordering_key("k")).unwrap();
    let free = shop.send(&to("hold").ordering_key("l")).unwrap();
    let reason = shop.store.story(held.id).await.unwrap().reason.unwrap();
    assert!(reason.starts_with("behind key \"k\""), "{reason}");
    assert_eq!(shop.store.story(free.id).await.unwrap().reason.unwrap(), "due now");
}

#[tokio::test]
async fn a_closed_store_refuses_what_sql_sends_and_a_reopened_one_takes_it() {
    let shop = Shop::open().await;
    shop.send(&to("a").idempotency_key("i")).unwrap();
    shop.store.close_for_export("an export to away.jsonl").await.unwrap();
    for message in [to("a"), to("a").idempotency_key("i")] {
        let refused = shop.send(&message).unwrap_err();
        assert!(refused.starts_with("55000 this store was closed by an export to away.jsonl; "), "{refused}");
    }
    shop.store.reopen().await.unwrap();
    shop.send(&to("a")).unwrap();
    assert_eq!(shop.queued().await, 2);
}

#[tokio::test]
async fn a_file_of_another_encoding_says_so_instead_of_sending_other_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.db");
    let app = Connection::open(&path).unwrap();
    app.execute_batch("PRAGMA encoding = 'UTF-16le'; CREATE TABLE orders (id INTEGER PRIMARY KEY)").unwrap();
    let store = postrider::SqliteStore::open(postrider::store::sqlite::SqliteOptions::node(&path)).unwrap();
    store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap();
    assert_eq!(refusal(&app, &format!("INSERT {MINIMAL}")), "55000 encoding: the file must be in UTF-8");
}
