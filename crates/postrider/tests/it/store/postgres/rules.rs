//! What the tables refuse by themselves, whoever asks: here it is their owner.

use postrider::store::Arrival;
use postrider::{NewMessage, Operate, Store};
use serde_json::json;

use super::Postgres;
use super::prompt::{self, Prompt};
use crate::store::world::{World, to};

/// A world with a message in every table that has some.
async fn start() -> (World<Postgres>, Prompt) {
    let (mut world, owner) = prompt::start().await;
    world.endpoint("hold", json!({"on_dead": "hold"})).await;
    world.send_to_death(to("hold").ordering_key("k")).await;
    world.send_to_death(to("a")).await;
    let discarded = world.send_to_death(to("a")).await;
    world.store().discard(discarded.id).await.unwrap();
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let headers = [("x-a".to_owned(), "b".to_owned())].into();
    world.send(NewMessage { headers, ..to("a") }).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 60).await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    (world, owner)
}

/// All of these statements, by one rule, and they change nothing.
async fn refuses(owner: &Prompt, code: &str, rule: &str, statements: &[&str]) {
    let all = "SELECT json_build_array(
        (SELECT json_agg(q) FROM postrider.queue q), (SELECT json_agg(d) FROM postrider.dlq d),
        (SELECT json_agg(a) FROM postrider.archive a), (SELECT json_agg(t) FROM postrider.attempts t),
        (SELECT json_agg(e) FROM postrider._endpoints e), (SELECT json_agg(n) FROM postrider.nodes n),
        (SELECT json_agg(s) FROM postrider.settings s), (SELECT json_agg(l) FROM postrider.event_log l))";
    let before = owner.value(all).await;
    for statement in statements {
        owner.refuses(statement, code, rule).await;
    }
    assert_eq!(owner.value(all).await, before);
}

/// Each change of one table, by one rule.
async fn never_changes(owner: &Prompt, table: &str, rule: &str, changes: &[&str]) {
    let updates: Vec<String> =
        changes.iter().map(|change| format!("UPDATE postrider.{table} SET {change}")).collect();
    refuses(owner, "55000", rule, &updates.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn a_queued_message_never_changes() {
    let (_world, owner) = start().await;
    let changes = [
        "id = 99",
        "endpoint_id = 2",
        "payload = '\\x00'",
        "payload = NULL",
        "headers = '{}'",
        "headers = NULL",
        "content_type = 'text/plain'",
        "priority = 9",
        "ordering_key = 'k'",
        "key_scope = 1",
        "key_position = 1",
        "idempotency_key = 'i'",
        "correlation_id = gen_random_uuid()",
        "event_type = 'e'",
        "options = '{}'",
        "expires_at = now()",
        "created_at = now()",
    ];
    never_changes(&owner, "queue", "a queued message never changes; cancel it and send another", &changes)
        .await;
    let spared = "an attempt is spared after it ended, and one at a time";
    let changes =
        ["attempts_before = -1", "attempts_before = attempts + 1", "attempts = 9, attempts_before = 2"];
    never_changes(&owner, "queue", spared, &changes).await;
}

#[tokio::test]
async fn a_queued_message_takes_no_step_back() {
    let (_world, owner) = start().await;
    owner.run("UPDATE postrider.queue SET losses = 1, delivered_late = true").await;
    let places = "a queued message is ready, behind its key or on probation";
    never_changes(&owner, "queue", places, &["place = 2", "place = -1"]).await;
    let times = "a queued message is due at a time before 9999-12-30";
    never_changes(
        &owner,
        "queue",
        times,
        &["due_at = 'infinity'", "due_at = '-infinity'", "due_at = '9999-12-30T00:00:00Z'"],
    )
    .await;
    let counts = "what was counted of a queued message is never taken back";
    never_changes(
        &owner,
        "queue",
        counts,
        &["attempts = attempts - 1", "losses = 0", "delivered_late = false"],
    )
    .await;
}

#[tokio::test]
async fn no_messages_are_truncated_away() {
    let (_world, owner) = start().await;
    let truncates = ["TRUNCATE postrider.queue", "TRUNCATE postrider.dlq", "TRUNCATE postrider.archive"];
    refuses(&owner, "55000", "never just gone", &truncates).await;
}

#[tokio::test]
async fn a_dead_letter_begins_as_failed_and_ends_once() {
    let (_world, owner) = start().await;
    let begins = "INSERT INTO postrider.dlq (message_id, endpoint_id, status, reason, died_at, errors, bytes,
                    priority, attempts, losses, created_at, content_type)
                  VALUES (99, 1, 'redriven', 'none', now(), '[]', 0, 0, 0, 0, now(), 'text/plain')";
    refuses(&owner, "55000", "a message becomes a dead letter as failed", &[begins]).await;
    let unqueued = "UPDATE postrider.dlq SET status = 'redriven' WHERE id = 2";
    refuses(&owner, "55000", "redriven when its message is in the queue again", &[unqueued]).await;
    let ended = [
        "UPDATE postrider.dlq SET status = 'failed' WHERE id = 3",
        "UPDATE postrider.dlq SET status = 'redriven' WHERE id = 3",
    ];
    refuses(&owner, "55000", "only a failed dead letter can be redriven or discarded, and only once", &ended)
        .await;
    let unknown = "UPDATE postrider.dlq SET status = 'lost' WHERE id = 2";
    refuses(&owner, "23514", "dlq_status_check", &[unknown]).await;
}

#[tokio::test]
async fn a_dead_letter_never_changes_but_can_be_erased() {
    let (_world, owner) = start().await;
    let changes = [
        "payload = '\\x00'",
        "headers = '{}'",
        "reason = 'none'",
        "errors = '[]'",
        "attempts = 0",
        "losses = 9",
        "message_id = 99",
        "ordering_key = 'other'",
        "bytes = 0",
        "last_error = 'none'",
        "died_at = now()",
    ];
    never_changes(
        &owner,
        "dlq",
        "a dead letter never changes; its payload and headers can be erased",
        &changes,
    )
    .await;
    owner.run("UPDATE postrider.dlq SET payload = NULL, headers = NULL").await;
}

#[tokio::test]
async fn a_dead_letter_lets_go_of_its_key_and_never_takes_it_again() {
    let (_world, owner) = start().await;
    let takes = "UPDATE postrider.dlq SET holds_key = true WHERE id = 2";
    refuses(&owner, "55000", "a dead letter holds its key from the beginning or never", &[takes]).await;
    let deletes = "DELETE FROM postrider.dlq WHERE id = 1";
    refuses(
        &owner,
        "55000",
        "a head that holds its key is redriven, discarded or released first",
        &[deletes],
    )
    .await;
    owner
        .run(
            "UPDATE postrider.dlq SET holds_key = false WHERE id = 1; DELETE FROM postrider.dlq WHERE id = 1",
        )
        .await;
}

#[tokio::test]
async fn a_finished_message_never_changes_in_any_partition_but_can_be_erased() {
    let (_world, owner) = start().await;
    let rule = "a finished message never changes; its payload and headers can be erased";
    for table in ["archive", "archive_2026_01"] {
        never_changes(&owner, table, rule, &["payload = '\\x00'", "headers = '{}'", "priority = 9"]).await;
        let beside_erasing = [
            "status = 'expired', payload = NULL",
            "id = 99, payload = NULL",
            "endpoint_id = 2, payload = NULL",
            "attempts = 9, payload = NULL",
            "priority = 9, payload = NULL",
            "ordering_key = 'k', payload = NULL",
            "finished_at = now(), payload = NULL",
            "created_at = created_at + interval '1 s', payload = NULL",
            "event_type = 'e', payload = NULL",
            "last_error = 'none', payload = NULL",
            "options = '{}', payload = NULL",
            "content_type = 'text/plain', payload = NULL",
            "idempotency_key = 'i', payload = NULL",
            "correlation_id = gen_random_uuid(), payload = NULL",
        ];
        never_changes(&owner, table, rule, &beside_erasing).await;
    }
    let pending =
        "INSERT INTO postrider.archive (id, endpoint_id, status, finished_at, created_at, priority, attempts,
                     content_type)
                   VALUES (99, 1, 'pending', now(), now(), 0, 0, 'text/plain')";
    refuses(&owner, "23514", "archive_status_check", &[pending]).await;
    owner.run("UPDATE postrider.archive SET payload = NULL, headers = NULL").await;
}

#[tokio::test]
async fn an_attempt_is_a_record_whose_body_can_be_erased() {
    let (_world, owner) = start().await;
    let changes = [
        "outcome = 'delivered'",
        "error = 'none', response_body = NULL",
        "response_body = '\\x00'",
        "number = 9",
        "response_status = 200",
    ];
    never_changes(&owner, "attempts", "a recorded attempt never changes; its body can be erased", &changes)
        .await;
    let unknown =
        "INSERT INTO postrider.attempts (message_id, number, node_id, started_at, duration, outcome)
                   VALUES (1, 1, 1, now(), '1 s', 'perhaps')";
    refuses(&owner, "23514", "attempts_outcome_check", &[unknown]).await;
    owner.run("UPDATE postrider.attempts SET response_body = NULL").await;
}

#[tokio::test]
async fn what_was_logged_is_not_rewritten() {
    let (_world, owner) = start().await;
    let changes = ["kind = 'none'", "subject = 'none'", "at = now()"];
    never_changes(&owner, "event_log", "what was logged never changes", &changes).await;
}

#[tokio::test]
async fn an_endpoint_keeps_its_name_and_never_comes_back() {
    let (world, owner) = start().await;
    world.endpoint("dropped", json!({})).await;
    owner.run("SELECT postrider.drop_endpoint('dropped')").await;
    let deletes = ["DELETE FROM postrider.endpoints", "TRUNCATE postrider.endpoints"];
    refuses(&owner, "55000", "endpoints are not deleted; drop_endpoint() keeps the name", &deletes).await;
    let names = ["id = DEFAULT", "name = 'b' WHERE name = 'a'", "protocol = 'file'", "created_at = now()"];
    never_changes(&owner, "endpoints", "an endpoint keeps its name and protocol", &names).await;
    let dropped = "an endpoint that was dropped does not come back";
    never_changes(&owner, "endpoints", dropped, &["options = '{}' WHERE name = 'dropped'"]).await;
    refuses(&owner, "23514", "_circuits_state_check", &["UPDATE postrider._circuits SET state = 'broken'"])
        .await;
}

#[tokio::test]
async fn what_nodes_and_functions_keep_of_an_endpoint_is_not_written_by_hand() {
    let (_world, owner) = start().await;
    let kept = [
        "disabled_by = 'gone'",
        "disabled_by = 'operator'",
        "paused = true",
        "revision = 7",
        "dropped_at = now()",
        "options = '{}', paused = true",
    ];
    let rule = "only config, retry_policy and options of an endpoint can be updated";
    never_changes(&owner, "endpoints", rule, &kept).await;
    owner.run("BEGIN; SELECT postrider.pause_endpoint('a'), postrider.disable_endpoint('a')").await;
    owner.refuses("UPDATE postrider.endpoints SET paused = false", "55000", rule).await;
    owner.run("ROLLBACK").await;
}

#[tokio::test]
async fn an_endpoint_is_checked_however_it_is_written_and_every_node_hears_of_it() {
    let (mut world, owner) = start().await;
    let wrong = [
        ("config = '{\"url\": 7}'", "config.url: "),
        ("config = NULL", "config: "),
        ("config = config || '{\"urll\": \"https://example.com\"}'", "config.urll: "),
        ("config = config || '{\"timeout\": 300}'", "config.timeout: must be below stale_recovery_timeout"),
        ("retry_policy = '{\"max_attempts\": -1}'", "retry_policy.max_attempts: "),
        ("retry_policy = '[]'", "retry_policy: must be an object"),
        ("options = '{\"max_in_flight\": 0}'", "options.max_in_flight: "),
        (
            "options = '{\"key_scope\": \"global\"}' WHERE name = 'hold'",
            "options.key_scope: cannot change while",
        ),
    ];
    for (change, rule) in wrong {
        refuses(&owner, "22023", rule, &[&format!("UPDATE postrider.endpoints SET {change}")]).await;
    }
    let known = world.store().snapshot(None).await.unwrap().expect("a snapshot");
    while world.arrivals.try_recv().is_ok() {}
    owner.run("UPDATE postrider.endpoints SET retry_policy = '{\"max_retries\": 2}' WHERE name = 'a'").await;
    while !matches!(world.arrivals.recv().await, Some(Arrival::Reconfigured)) {}
    let news = world.store().snapshot(Some(known.version)).await.unwrap().expect("news");
    let [before, after] = [&known, &news].map(|snapshot| {
        snapshot.endpoints.iter().find(|endpoint| endpoint.id == world.a).expect("endpoint a").clone()
    });
    assert_eq!(json!(after.retry), json!({ "max_attempts": 3 }), "as alter_endpoint() writes it");
    assert!(after.revision > before.revision);
    let event = world.events().await.remove(0);
    let told = (event.kind.as_str(), event.subject.as_deref(), event.detail);
    assert_eq!(told, ("endpoint.changed", Some("a"), json!({ "fields": ["retry_policy"] })));
}

#[tokio::test]
async fn a_node_that_ended_does_not_live_again() {
    let (_world, owner) = start().await;
    owner.run("UPDATE postrider.nodes SET state = 'lost'").await;
    let ended = "a node that left or was lost does not come back";
    never_changes(&owner, "nodes", ended, &["state = 'live'", "state = 'left'"]).await;
    let unknown = "INSERT INTO postrider.nodes (name, state, joined_at, heartbeat_at, lease_until)
                   VALUES ('n', 'asleep', now(), now(), now())";
    refuses(&owner, "23514", "nodes_state_check", &[unknown]).await;
}

#[tokio::test]
async fn a_setting_is_checked_however_it_is_written_and_takes_effect() {
    let (_world, owner) = start().await;
    owner.run("SELECT postrider.configure('node_lease', '20')").await;
    let wrong = [
        (
            "INSERT INTO postrider.settings VALUES ('node_leas', '10')",
            "node_leas: unknown field; expected one of: ",
        ),
        (
            "INSERT INTO postrider.settings VALUES ('max_fanout', 'many')",
            "max_fanout: must be a whole number",
        ),
        ("UPDATE postrider.settings SET value = '4'", "node_lease: must be a whole number from 5 to 300"),
        ("UPDATE postrider.settings SET name = 'archive'", "archive: must be one of on, metadata, off"),
    ];
    for (statement, rule) in wrong {
        refuses(&owner, "22023", rule, &[statement]).await;
    }
    owner.run("INSERT INTO postrider.settings VALUES ('max_payload_bytes', '1024')").await;
    let large = "SELECT postrider.send('a', to_jsonb(repeat('x', 2000)))";
    owner.refuses(large, "54000", "max_payload_bytes allows, which is 1024").await;
    owner.run("DELETE FROM postrider.settings").await;
    owner.run(large).await;
}
