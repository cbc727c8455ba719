//! What people are told: a message's story, figures and health, against known states.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider::store::Results;
use postrider::{MessageId, NewMessage, Operate, Store};
use serde_json::{Value, json};

use super::Postgres;
use super::prompt::{self, Prompt};
use super::replays::one_of_each;
use crate::store::world::{World, retry_at, to};

async fn message(owner: &Prompt, id: MessageId) -> Value {
    owner.json(&format!("SELECT postrider.message({id})")).await
}

async fn reason(owner: &Prompt, id: MessageId) -> String {
    message(owner, id).await["reason"].as_str().expect("a reason").to_owned()
}

/// A node takes the probe of endpoint `a`.
const HALF_OPEN: &str =
    "SELECT postrider._move_circuit(1, circuit_epoch, 'half_open', circuit_epoch + 1, NULL, 1)
    FROM postrider._endpoints WHERE id = 1";

async fn open_circuit(world: &World<Postgres>) {
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let opened = circuit.opened(world.now(), Duration::from_secs(30));
    assert!(world.store().move_circuit(world.a, circuit.epoch, opened).await.unwrap());
}

#[tokio::test]
async fn a_message_says_when_it_is_tried_next() {
    let (mut world, owner) = prompt::start().await;
    let now = world.send(to("a")).await;
    assert_eq!(reason(&owner, now).await, "due now");
    let ticket = world.claim_one().await;
    assert_eq!(message(&owner, now).await["reason"], Value::Null);
    world.settle(ticket, retry_at(world.in_seconds(60))).await;
    assert_eq!(reason(&owner, now).await, "waiting after attempt 1: next try at 2026-01-15T12:01:00Z");
    let scheduled = world.send(NewMessage { scheduled_at: Some(world.in_seconds(90)), ..to("a") }).await;
    assert_eq!(reason(&owner, scheduled).await, "scheduled: next try at 2026-01-15T12:01:30Z");
}

#[tokio::test]
async fn a_message_says_what_of_its_key_is_before_it() {
    let (mut world, owner) = prompt::start().await;
    let keyed = world.send_keyed("customer \"7\"", 2).await;
    assert_eq!(
        reason(&owner, keyed[1]).await,
        format!(r#"behind key "customer \"7\"": message {} is before it"#, keyed[0])
    );
    world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let head = world.send_to_death(to("hold").ordering_key("k")).await;
    let next = world.send(to("hold").ordering_key("k")).await;
    assert_eq!(
        reason(&owner, next).await,
        format!(r#"behind key "k": held by dead message {}; redrive, discard or release it"#, head.message)
    );
}

#[tokio::test]
async fn a_message_says_what_its_endpoint_waits_for() {
    let (mut world, owner) = prompt::start().await;
    let id = world.send(to("a")).await;
    open_circuit(&world).await;
    assert_eq!(reason(&owner, id).await, "circuit open: next try at 2026-01-15T12:00:30Z");
    owner.run(HALF_OPEN).await;
    assert_eq!(reason(&owner, id).await, "circuit half open: one probe at a time");
    world.store().reset_circuit("a").await.unwrap();
    owner.run("SELECT postrider.pause_endpoint('a')").await;
    assert_eq!(reason(&owner, id).await, "endpoint \"a\" is paused");
    owner.run("SELECT postrider.resume_endpoint('a'), postrider.disable_endpoint('a')").await;
    assert_eq!(reason(&owner, id).await, "endpoint \"a\" is disabled");
    owner.run("SELECT postrider.enable_endpoint('a'), postrider.pause('upgrade')").await;
    assert_eq!(reason(&owner, id).await, "everything is paused: upgrade");
    owner.run("SELECT postrider.resume()").await;
    owner.run("SELECT postrider._hold_endpoint(1, '2026-01-15 12:00:20+00')").await;
    assert_eq!(reason(&owner, id).await, "the receiver asked to wait: next try at 2026-01-15T12:00:20Z");
    world.live(20).await;
    let rate_limit = json!({"rate_limit": {"limit": 1, "interval": "minute"}});
    owner.run(&format!("SELECT postrider.alter_endpoint('a', options => '{rate_limit}')")).await;
    let next = world.send(to("a")).await;
    assert_eq!(world.claim_ids().await, [id], "nothing is in its way any more");
    assert_eq!(reason(&owner, next).await, "rate limited: next try at 2026-01-15T12:01:20Z");
}

#[tokio::test]
async fn a_message_tells_its_whole_story() {
    let (mut world, owner) = prompt::start().await;
    world.configure("attempt_log", "all").await;
    let sent = NewMessage {
        headers: [("x-a".to_owned(), "b".to_owned())].into(),
        correlation_id: Some(uuid::Uuid::from_u128(7)),
        ..to("a").ordering_key("k").idempotency_key("i")
    };
    let id = world.send(sent).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    let ticket = world.claim_one().await;
    assert_eq!(message(&owner, id).await["state"], "processing");
    world.complete(ticket).await;
    let story = message(&owner, id).await;
    let expected = json!({
        "id": id.0, "endpoint": "a", "state": "completed", "priority": 0, "content_type": "application/json",
        "payload": {"n": 1}, "payload_base64": null, "headers": {"x-a": "b"}, "options": {}, "event_type": null,
        "idempotency_key": "i", "correlation_id": "00000000-0000-0000-0000-000000000007", "ordering_key": "k",
        "scheduled_at": null, "expires_at": null, "due_at": null, "attempt_count": 2, "reason": null,
        "dlq_id": null, "replay_of": null, "last_error": "[RETRYABLE] try 1 failed",
    });
    for (field, value) in expected.as_object().expect("an object") {
        assert_eq!(&story[field], value, "{field}");
    }
    let attempts: Vec<Value> = story["attempts"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|attempt| {
            json!([
                attempt["number"],
                attempt["outcome"],
                attempt["class"],
                attempt["response_status"],
                attempt["error"]
            ])
        })
        .collect();
    assert_eq!(
        attempts,
        [
            json!([1, "failed", "retryable", 500, "[RETRYABLE] try 1 failed"]),
            json!([2, "delivered", null, 200, null])
        ]
    );
    let bytes = MessageId(owner.number("SELECT postrider.send_bytes('a', '\\x00ff', 'image/png')").await);
    let story = message(&owner, bytes).await;
    assert_eq!((&story["payload"], &story["payload_base64"]), (&Value::Null, &json!("AP8=")));
}

/// A message in every state, by the name of its state.
async fn one_in_each_state(world: &mut World<Postgres>) -> BTreeMap<MessageId, &'static str> {
    let [completed, expired, cancelled, dead, discarded] = one_of_each(world).await;
    // Redriven ones leave a letter behind; one is delivered then, one dies again.
    let redriven = world.send_to_death(to("a")).await;
    world.store().redrive(postrider::store::Redrive::One(redriven.id)).await.unwrap();
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let twice_dead = world.send_to_death(to("a")).await;
    world.store().redrive(postrider::store::Redrive::One(twice_dead.id)).await.unwrap();
    let ticket = world.claim_one().await;
    world.die(ticket).await;
    let processing = world.send(to("a")).await;
    world.claim_one().await;
    let pending = world.send(to("a")).await;
    [
        (completed, "completed"),
        (dead, "dead"),
        (discarded, "dead"),
        (cancelled, "cancelled"),
        (expired, "expired"),
        (redriven.message, "completed"),
        (twice_dead.message, "dead"),
        (processing, "processing"),
        (pending, "pending"),
    ]
    .into()
}

#[tokio::test]
async fn the_view_of_messages_has_every_message_once_in_its_latest_state() {
    let (mut world, owner) = prompt::start().await;
    let expected = one_in_each_state(&mut world).await;
    let rows = owner.rows("SELECT id, state, attempts FROM postrider.messages ORDER BY id").await;
    let shown: Vec<(MessageId, String)> = rows
        .iter()
        .map(|row| match &row[..] {
            [Some(id), Some(state), _] => (MessageId(id.parse().expect("an id")), state.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected: Vec<(MessageId, String)> =
        expected.into_iter().map(|(id, state)| (id, state.to_owned())).collect();
    assert_eq!(shown, expected);
    for (row, (id, state)) in rows.iter().zip(&expected) {
        let story = message(&owner, *id).await;
        assert_eq!(story["state"], state.as_str());
        assert_eq!(
            story["attempt_count"].to_string(),
            row[2].clone().unwrap_or_default(),
            "attempts of {state}"
        );
    }
}

#[tokio::test]
async fn a_payload_in_the_view_is_json_or_null() {
    let (_world, owner) = prompt::start().await;
    let payloads = [
        (r#"{"a": 1}"#, "application/json", r#"{"a": 1}"#),
        ("[1]", "application/cloudevents+json; charset=utf-8", "[1]"),
        ("{}", "text/plain", ""),
        // What jsonb cannot hold.
        (r#""\u0000""#, "application/json", ""),
    ];
    for (payload, content_type, expected) in payloads {
        let send =
            format!("SELECT postrider.send_bytes('a', convert_to('{payload}', 'UTF8'), '{content_type}')");
        let id = owner.number(&send).await;
        let shown = owner.value(&format!("SELECT payload FROM postrider.messages WHERE id = {id}")).await;
        assert_eq!(shown, expected, "{payload} as {content_type}");
    }
}

async fn health(owner: &Prompt) -> BTreeMap<String, (String, Value)> {
    let rows = owner.rows("SELECT component, status, details FROM postrider.health_check()").await;
    rows.into_iter()
        .map(|row| match &row[..] {
            [Some(component), Some(status), Some(details)] => {
                (component.clone(), (status.clone(), serde_json::from_str(details).expect("JSON")))
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[tokio::test]
async fn a_healthy_store_says_so() {
    let (_world, owner) = prompt::start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    let health = health(&owner).await;
    let components: Vec<&str> = health.keys().map(String::as_str).collect();
    assert_eq!(
        components,
        ["archive", "dead_letters", "dispatch", "endpoints", "identity", "locks", "nodes", "queue"]
    );
    assert!(health.values().all(|(status, _)| status == "ok"), "{health:?}");
}

#[tokio::test]
async fn a_check_of_health_names_what_is_wrong() {
    let (mut world, owner) = prompt::start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    let is = async |component: &str, status: &str| {
        let found = health(&owner).await;
        assert_eq!(found[component].0, status, "{component}: {found:?}");
    };
    // Eight tenths of what fits are a warning.
    world.configure("max_queue_size", 5).await;
    for (queued, status) in [(1, "ok"), (2, "ok"), (3, "ok"), (4, "warning"), (5, "critical")] {
        world.send(to("a")).await;
        assert_eq!(world.queued().await, queued);
        is("queue", status).await;
    }
    is("dead_letters", "ok").await;
    let ticket = world.claim(world.a, 1).await[0];
    world.die(ticket).await;
    is("dead_letters", "warning").await;
    open_circuit(&world).await;
    is("endpoints", "warning").await;
    world.store().reset_circuit("a").await.unwrap();
    is("endpoints", "ok").await;
    world.store().pause("upgrade").await.unwrap();
    is("dispatch", "warning").await;
    world.advance(16);
    is("nodes", "critical").await;
    world.advance(400 * 86_400);
    is("archive", "warning").await;
}

#[tokio::test]
async fn metrics_are_the_figures_of_the_store() {
    let (mut world, owner) = prompt::start().await;
    one_in_each_state(&mut world).await;
    world.live(7).await;
    world.store().pause("upgrade").await.unwrap();
    open_circuit(&world).await;
    let (failed, lost) = (Some((world.now(), "[RETRYABLE] no".to_owned())), 4);
    let results = Results {
        delivered: 9,
        retryable: 1,
        permanent: 2,
        gone: 3,
        lost,
        last_failure: failed,
        ..Results::default()
    };
    world.store().note_results(vec![(world.a, results)]).await.unwrap();
    let of_kind = async |kind: &str| {
        let names = format!("SELECT DISTINCT name FROM postrider.metrics() WHERE kind = '{kind}'");
        owner.column(&names).await
    };
    assert!(of_kind("counter").await.iter().all(|name| name.ends_with("_total")));
    assert!(of_kind("gauge").await.iter().all(|name| !name.ends_with("_total")));
    let rows = owner
        .rows("SELECT name || labels::text, value FROM postrider.metrics() WHERE kind IS NOT NULL")
        .await;
    let metrics: BTreeMap<String, f64> = rows
        .into_iter()
        .map(|row| match &row[..] {
            [Some(name), Some(value)] => (name.clone(), value.parse().expect("a number")),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (r#"postrider_messages{"state": "pending"}"#, 1.0),
        (r#"postrider_messages{"state": "processing"}"#, 1.0),
        (r#"postrider_messages{"state": "dead"}"#, 2.0),
        ("postrider_oldest_pending_age_seconds{}", 7.0),
        ("postrider_paused{}", 1.0),
        (r#"postrider_endpoints{"state": "enabled"}"#, 1.0),
        (r#"postrider_endpoints{"state": "paused"}"#, 0.0),
        (r#"postrider_endpoints{"state": "disabled"}"#, 0.0),
        (r#"postrider_retention_lag_seconds{"of": "dlq"}"#, 0.0),
        (r#"postrider_retention_lag_seconds{"of": "event_log"}"#, 0.0),
        (r#"postrider_retention_lag_seconds{"of": "archive"}"#, 0.0),
        (r#"postrider_nodes{"state": "live"}"#, 1.0),
        ("postrider_capture_skipped_total{}", 0.0),
        ("postrider_evictions_total{}", 0.0),
        ("postrider_publish_skipped_total{}", 0.0),
        (r#"postrider_endpoint_messages{"state": "pending", "endpoint": "a"}"#, 1.0),
        (r#"postrider_endpoint_messages{"state": "processing", "endpoint": "a"}"#, 1.0),
        (r#"postrider_endpoint_messages{"state": "dead", "endpoint": "a"}"#, 2.0),
        (r#"postrider_endpoint_oldest_pending_age_seconds{"endpoint": "a"}"#, 7.0),
        (r#"postrider_endpoint_circuit_state{"endpoint": "a"}"#, 2.0),
        (r#"postrider_endpoint_mode{"endpoint": "a"}"#, 0.0),
        (r#"postrider_attempts_total{"class": "none", "outcome": "delivered", "endpoint": "a"}"#, 9.0),
        (r#"postrider_attempts_total{"class": "retryable", "outcome": "failed", "endpoint": "a"}"#, 1.0),
        (r#"postrider_attempts_total{"class": "permanent", "outcome": "failed", "endpoint": "a"}"#, 2.0),
        (r#"postrider_attempts_total{"class": "gone", "outcome": "failed", "endpoint": "a"}"#, 3.0),
        (r#"postrider_attempts_total{"class": "retryable", "outcome": "lost", "endpoint": "a"}"#, 4.0),
    ];
    let expected: BTreeMap<String, f64> =
        expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    assert_eq!(metrics, expected);
}

#[tokio::test]
async fn very_many_dead_letters_are_counted_though_the_queue_is_empty() {
    let (mut world, owner) = prompt::start().await;
    world.send_to_death(to("a")).await;
    owner
        .run(
            "INSERT INTO postrider.dlq (message_id, endpoint_id, reason, died_at, errors, bytes, priority, attempts, losses,
               created_at, content_type)
             SELECT d.message_id, d.endpoint_id, d.reason, d.died_at, d.errors, d.bytes, d.priority, d.attempts, d.losses,
               d.created_at, d.content_type FROM postrider.dlq d, generate_series(1, 10999)",
        )
        .await;
    world.store().upkeep(10).await.unwrap();
    let dead = "SELECT (SELECT dead FROM postrider._totals()) || ' ' || (SELECT dead FROM postrider.endpoint_status)";
    assert_eq!(owner.value(dead).await, "11000 11000");
}

#[tokio::test]
async fn the_health_of_an_endpoint_is_what_it_is_at() {
    let (mut world, owner) = prompt::start().await;
    world.endpoint("b", json!({})).await;
    one_in_each_state(&mut world).await;
    world.live(7).await;
    let rows =
        "SELECT endpoint, healthy, protocol, enabled, paused, circuit, mode, pending, processing, dead,
                  oldest_pending_seconds
                FROM postrider.get_endpoint_health() ORDER BY endpoint";
    let text =
        |fields: [&str; 11]| fields.map(|field| (!field.is_empty()).then(|| field.to_owned())).to_vec();
    assert_eq!(
        owner.rows(rows).await,
        [
            text(["a", "t", "http", "t", "f", "closed", "cold", "1", "1", "2", "7.000"]),
            text(["b", "t", "http", "t", "f", "closed", "cold", "0", "0", "0", ""]),
        ]
    );
    let healthy = "SELECT healthy FROM postrider.get_endpoint_health(name => 'b')";
    for (make, restore) in [("pause_endpoint", "resume_endpoint"), ("disable_endpoint", "enable_endpoint")] {
        owner.run(&format!("SELECT postrider.{make}('b')")).await;
        assert_eq!(owner.value(healthy).await, "f", "{make}");
        owner.run(&format!("SELECT postrider.{restore}('b')")).await;
        assert_eq!(owner.value(healthy).await, "t", "{restore}");
    }
    owner.run("SELECT postrider.update_circuit_breaker(2, false) FROM generate_series(1, 10)").await;
    assert_eq!(owner.value("SELECT circuit FROM postrider.get_endpoint_health('b')").await, "open");
    assert_eq!(owner.value(healthy).await, "f");
}

#[tokio::test]
async fn whoever_delivers_by_themselves_moves_the_circuit_by_what_they_report() {
    let (_world, owner) = prompt::start().await;
    let report = async |success: bool, times: usize| {
        let report =
            format!("SELECT postrider.update_circuit_breaker(1, {success}) FROM generate_series(1, {times})");
        owner.run(&report).await;
        owner.value("SELECT circuit FROM postrider.endpoint_status").await
    };
    assert_eq!(report(false, 9).await, "closed");
    assert_eq!(report(true, 1).await, "closed");
    assert_eq!(report(false, 9).await, "closed", "only what fails in a row counts");
    assert_eq!(report(false, 1).await, "open");
    assert_eq!(report(true, 1).await, "open", "of an attempt that began before");
    owner.run(HALF_OPEN).await;
    assert_eq!(report(false, 1).await, "open");
    owner.run(HALF_OPEN).await;
    assert_eq!(report(true, 1).await, "closed");
}

#[tokio::test]
async fn a_report_after_the_cooldown_counts_like_a_probe() {
    let (world, owner) = prompt::start().await;
    let report = async |success: bool| {
        owner.run(&format!("SELECT postrider.update_circuit_breaker(1, {success})")).await;
        owner
            .value("SELECT circuit || coalesce(' until ' || (circuit_until AT TIME ZONE 'UTC')::time, '') FROM postrider.endpoint_status")
            .await
    };
    open_circuit(&world).await;
    world.live(29).await;
    assert_eq!(report(true).await, "open until 12:00:30", "the cooldown is not over");
    world.live(1).await;
    assert_eq!(report(false).await, "open until 12:01:00", "a fresh cooldown");
    assert_eq!(report(true).await, "open until 12:01:00");
    world.live(30).await;
    assert_eq!(report(true).await, "closed");
}

#[tokio::test]
async fn the_health_of_an_endpoint_says_how_attempts_went() {
    let (world, owner) = prompt::start().await;
    let at = Some(world.now());
    let failure = at.map(|at| (at, "[RETRYABLE] answered 500".to_owned()));
    let results = Results {
        delivered: 5,
        retryable: 2,
        failed_since: 2,
        last_success_at: at,
        last_failure: failure,
        ..Results::default()
    };
    world.store().note_results(vec![(world.a, results)]).await.unwrap();
    let told = "delivered || ' ' || failed || ' ' || consecutive_failures || ' ' || (last_success_at AT TIME ZONE 'UTC')::time
                  || ' ' || (last_failure_at AT TIME ZONE 'UTC')::time || ' ' || last_error";
    for from in ["postrider.get_endpoint_health('a')", "postrider.endpoint_status"] {
        let health = owner.value(&format!("SELECT {told} FROM {from}")).await;
        assert_eq!(health, "5 2 2 12:00:00 12:00:00 [RETRYABLE] answered 500", "{from}");
    }
}

#[tokio::test]
async fn no_node_waits_for_who_reports_an_attempt() {
    let (world, owner) = prompt::start().await;
    let b = world.endpoint("b", json!({})).await;
    owner.run("BEGIN; SELECT postrider.update_circuit_breaker(1, false)").await;
    let one = || Results { delivered: 1, last_success_at: Some(world.now()), ..Results::default() };
    let noted = world.store().note_results(vec![(world.a, one()), (b, one())]).await.unwrap();
    assert_eq!(noted, [b], "the other one is told again");
    owner.run("COMMIT").await;
    let health = world.store().endpoint_health("a").await.unwrap();
    assert_eq!(
        (health.failed, health.consecutive_failures, health.delivered),
        (1, 1, 0),
        "reports count, too"
    );
    assert_eq!(world.store().note_results(vec![(world.a, one())]).await.unwrap(), [world.a]);
    let health = world.store().endpoint_health("a").await.unwrap();
    assert_eq!((health.failed, health.consecutive_failures, health.delivered), (1, 0, 1));
}

#[tokio::test]
async fn the_summary_of_dead_letters_counts_each_status_by_endpoint() {
    let (mut world, owner) = prompt::start().await;
    world.endpoint("b", json!({})).await;
    world.send_to_death(to("b")).await;
    one_in_each_state(&mut world).await;
    let rows =
        "SELECT endpoint, failed, redriven, discarded, oldest_failed AT TIME ZONE 'UTC', newest_failed = oldest_failed,
           reasons
         FROM postrider.dlq_summary()";
    let text = |fields: [&str; 7]| fields.map(|field| Some(field.to_owned())).to_vec();
    assert_eq!(
        owner.rows(rows).await,
        [
            text(["a", "2", "2", "1", "2026-01-15 12:00:00", "f", r#"{"attempts_exhausted": 2}"#]),
            text(["b", "1", "0", "0", "2026-01-15 12:00:00", "t", r#"{"attempts_exhausted": 1}"#])
        ]
    );
}

#[tokio::test]
async fn workers_are_shown_with_what_they_hold() {
    let (mut world, owner) = prompt::start().await;
    world.send(to("a")).await;
    world.claim_one().await;
    world.live(3).await;
    world.advance(2);
    let rows = owner
        .rows("SELECT name, state, seconds_since_heartbeat, in_flight FROM postrider.get_worker_status()")
        .await;
    assert_eq!(rows, [["test", "live", "2.000", "1"].map(|field| Some(field.to_owned()))]);
}
