//! What is refused, on every way in, by which SQLSTATE; and that a refusal changes nothing.

use postrider::Operate;
use postrider::protocol::Protocol;
use postrider::sink::{Environment, Undelivered, connect};
use postrider::verdict::Class;
use serde_json::{Value, json};
use test_servers::Database;

use super::prompt::{self, Prompt};
use crate::store::world::to;

/// Every way to send one JSON payload to an endpoint.
fn ways_in(endpoint: &str, payload: &str) -> [String; 6] {
    let two = format!("ARRAY['1', {payload}]::jsonb[]");
    let listed = format!(
        "jsonb_build_array(jsonb_build_object('payload', 1), jsonb_build_object('payload', {payload}))"
    );
    [
        format!("send({endpoint}, {payload})"),
        format!("send_with_options({endpoint}, {payload})"),
        format!("send_bytes({endpoint}, convert_to(({payload})::text, 'UTF8'), 'application/json')"),
        format!("send_batch({endpoint}, {two})"),
        format!("send_batch_with_priority({endpoint}, {two}, 1)"),
        format!("send_batch_with_options({endpoint}, {listed})"),
    ]
    .map(|call| format!("SELECT postrider.{call}"))
}

/// Where `e` is an event that endpoint `a` wants, and `notes` a table whose rows go there.
async fn start() -> (Database, Prompt) {
    let (database, owner) = prompt::alone().await;
    owner.run("SELECT postrider.create_event_type('e'), postrider.subscribe('e', 'a')").await;
    owner.run("SELECT postrider.create_event_type('unheard')").await;
    owner.run("CREATE TABLE notes (note text); SELECT postrider.capture_rows('notes', 'a')").await;
    owner.run("CREATE TABLE pages (page text); SELECT postrider.capture_statements('pages', 'a')").await;
    (database, owner)
}

/// The ways that lead to endpoint `a` by subscription and by capture.
fn ways_around(payload: &str) -> [String; 4] {
    let event = format!("jsonb_build_object('event_type', 'e', 'payload', {payload})");
    [
        format!("SELECT postrider.publish('e', {payload})"),
        format!("SELECT postrider.publish_batch(jsonb_build_array({event}))"),
        format!("INSERT INTO notes VALUES (({payload})::text)"),
        format!("INSERT INTO pages VALUES (({payload})::text)"),
    ]
}

/// All that a send could have touched.
async fn everything(owner: &Prompt) -> String {
    let all = "SELECT json_build_array((SELECT json_agg(q ORDER BY id) FROM postrider.queue q),
                 (SELECT count(*) FROM postrider.archive), (SELECT count(*) FROM postrider.event_log),
                 (SELECT count(*) FROM postrider._counts), (SELECT count(*) FROM postrider._departures),
                 (SELECT count(*) FROM notes), (SELECT count(*) FROM pages))";
    owner.value(all).await
}

async fn refuses_all(owner: &Prompt, statements: impl IntoIterator<Item = String>, code: &str, says: &str) {
    let before = everything(owner).await;
    for statement in statements {
        owner.refuses(&statement, code, says).await;
    }
    assert_eq!(everything(owner).await, before);
}

#[tokio::test]
async fn what_is_not_known_is_42704() {
    let (_database, owner) = start().await;
    refuses_all(&owner, ways_in("'nobody'", "'{}'"), "42704", "there is no endpoint \"nobody\"").await;
    let empty = ["send_batch('nobody', '{}')", "send_batch_with_options('nobody', '[]')"];
    let empty = empty.map(|call| format!("SELECT postrider.{call}"));
    refuses_all(&owner, empty, "42704", "there is no endpoint \"nobody\"").await;
    let events = [
        "SELECT postrider.publish('gone', '{}')".to_owned(),
        r#"SELECT postrider.publish_batch('[{"event_type": "gone", "payload": 1}]')"#.to_owned(),
    ];
    refuses_all(&owner, events, "42704", "there is no event type \"gone\"").await;
    let things = [
        ("cancel_message(99)", "message \"99\""),
        ("reschedule_message(99, now())", "message \"99\""),
        ("erase_message(99)", "message \"99\""),
        ("message(99)", "message \"99\""),
        ("replay_message(99)", "message \"99\""),
        ("redrive_message(99)", "dead letter \"99\""),
        ("discard_message(99)", "dead letter \"99\""),
        ("redrive_endpoint('x')", "endpoint \"x\""),
        ("release_key('k', 'x')", "endpoint \"x\""),
        ("alter_endpoint('x')", "endpoint \"x\""),
        ("drop_endpoint('x')", "endpoint \"x\""),
        ("enable_endpoint('x')", "endpoint \"x\""),
        ("disable_endpoint('x')", "endpoint \"x\""),
        ("pause_endpoint('x')", "endpoint \"x\""),
        ("resume_endpoint('x')", "endpoint \"x\""),
        ("reset_circuit_breaker('x')", "endpoint \"x\""),
        ("update_circuit_breaker(99, true)", "endpoint \"99\""),
        ("get_endpoint_health('x')", "endpoint \"x\""),
        ("drop_event_type('x')", "event type \"x\""),
        ("unsubscribe(99)", "subscription \"99\""),
        ("enable_subscription(99)", "subscription \"99\""),
        ("disable_subscription(99)", "subscription \"99\""),
    ];
    for (call, thing) in things {
        owner.refuses(&format!("SELECT postrider.{call}"), "42704", &format!("there is no {thing}")).await;
    }
}

#[tokio::test]
async fn a_name_that_is_null_is_a_field_that_is_missing() {
    let (_database, owner) = start().await;
    refuses_all(&owner, ways_in("NULL", "'{}'"), "22023", "endpoint: is required").await;
    let empty = ["send_batch(NULL, '{}')", "send_batch_with_options(NULL, '[]')"];
    let empty = empty.map(|call| format!("SELECT postrider.{call}"));
    refuses_all(&owner, empty, "22023", "endpoint: is required").await;
    let calls = [
        ("publish(NULL, '{}')", "event_type: is required"),
        ("subscribe('e', NULL)", "endpoint: is required"),
        ("capture_rows('notes', NULL)", "endpoint: is required"),
        ("create_endpoint(NULL, 'http', '{}')", "name: must be 1 to 128 letters"),
        ("create_event_type(NULL)", "name: must be 1 to 128 letters"),
        ("drop_event_type(NULL)", "name: is required"),
        ("alter_endpoint(NULL)", "name: is required"),
        ("drop_endpoint(NULL)", "name: is required"),
        ("enable_endpoint(NULL)", "name: is required"),
        ("disable_endpoint(NULL)", "name: is required"),
        ("pause_endpoint(NULL)", "name: is required"),
        ("resume_endpoint(NULL)", "name: is required"),
        ("reset_circuit_breaker(NULL)", "name: is required"),
        ("redrive_endpoint(NULL)", "name: is required"),
        ("release_key(NULL)", "key: is required"),
        ("configure(NULL, '1')", "name: "),
    ];
    for (call, says) in calls {
        owner.refuses(&format!("SELECT postrider.{call}"), "22023", says).await;
    }
}

#[tokio::test]
async fn a_priority_is_a_whole_number_of_any_size_and_out_of_range_by_its_rule() {
    let (_database, owner) = start().await;
    for priority in ["11", "-1", "70000", "NULL"] {
        let calls = [
            format!("send_with_options('a', '{{}}', {priority})"),
            format!("send_bytes('a', '1', 'application/json', {priority})"),
            format!("send_batch_with_priority('a', ARRAY['1']::jsonb[], {priority})"),
            format!("publish('e', '{{}}', {priority})"),
            format!("publish('unheard', '{{}}', {priority})"),
        ];
        let calls = calls.map(|call| format!("SELECT postrider.{call}"));
        refuses_all(&owner, calls, "22023", "priority: must be from 0 to 10").await;
    }
    owner.run("SELECT postrider.send_with_options('a', '{}', p_priority := 5)").await;
    owner.run("SELECT postrider.send_batch_with_priority('a', ARRAY['1']::jsonb[], 5)").await;
    owner.run("SELECT postrider.send_batch_with_priority('a', ARRAY['1']::jsonb[])").await;
    let sent = owner.column("SELECT priority FROM postrider.queue ORDER BY id").await;
    assert_eq!(sent, ["5", "5", "0"]);
}

#[tokio::test]
async fn what_is_disabled_is_55000() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.disable_endpoint('a')").await;
    let [_, _, rows, statements] = ways_around("'{}'");
    let ways = ways_in("'a'", "'{}'").into_iter().chain([rows, statements]);
    refuses_all(&owner, ways, "55000", "endpoint \"a\" is disabled; enable it to send to it").await;
    owner.run("SELECT postrider.enable_endpoint('a'), postrider.pause_endpoint('a')").await;
    for way in ways_in("'a'", "'{}'") {
        owner.run(&way).await;
    }
}

#[tokio::test]
async fn a_payload_is_required_on_every_way_in() {
    let (_database, owner) = start().await;
    let [send, options, bytes, batch, with_priority, _] = ways_in("'a'", "NULL::jsonb");
    let published = "SELECT postrider.publish('e', NULL)".to_owned();
    let nothing = "SELECT postrider.send_batch_with_options('a', '[{\"priority\": 1}]')".to_owned();
    let ways = [send, options, bytes, batch, with_priority, published, nothing];
    refuses_all(&owner, ways, "22023", "payload: is required").await;
}

#[tokio::test]
async fn every_option_is_checked_on_every_way_in_that_has_it() {
    let bad = [
        ("p_priority => 11", json!({"priority": 11}), "22023", "priority: must be "),
        ("p_priority => -1", json!({"priority": -1}), "22023", "priority: must be "),
        ("p_ordering_key => ''", json!({"ordering_key": ""}), "22023", "ordering_key: must not be empty"),
        ("p_ordering_key => E'a\\nb'", json!({"ordering_key": "a\nb"}), "22023", "has no control characters"),
        (
            "p_idempotency_key => ''",
            json!({"idempotency_key": ""}),
            "22023",
            "idempotency_key: must not be empty",
        ),
        (
            "p_ordering_key => repeat('k', 257)",
            json!({"ordering_key": "k".repeat(257)}),
            "54000",
            "ordering_key: 257 is more than max_key_bytes allows, which is 256",
        ),
        (
            "p_idempotency_key => repeat('k', 257)",
            json!({"idempotency_key": "k".repeat(257)}),
            "54000",
            "idempotency_key: 257 is more than max_key_bytes",
        ),
        ("p_headers => '[]'", json!({"headers": []}), "22023", "headers: must be an object of strings"),
        (
            "p_headers => '{\"n\": 1}'",
            json!({"headers": {"n": 1}}),
            "22023",
            "headers: must be an object of strings",
        ),
        ("p_headers => '{\"a b\": \"c\"}'", json!({"headers": {"a b": "c"}}), "22023", "headers"),
        (
            "p_headers => jsonb_build_object('x', repeat('v', 16384))",
            json!({"headers": {"x": "v".repeat(16384)}}),
            "54000",
            "headers: 16385 is more than max_headers_bytes allows, which is 16384",
        ),
        ("p_options => '[]'", json!({"options": []}), "22023", "options: must be an object"),
        (
            "p_options => '{\"max_tries\": 1}'",
            json!({"options": {"max_tries": 1}}),
            "22023",
            "options.max_tries: unknown field",
        ),
        (
            "p_options => '{\"max_attempts\": -1}'",
            json!({"options": {"max_attempts": -1}}),
            "22023",
            "options.max_attempts: must be ",
        ),
        (
            "p_scheduled_at => '2030-01-01', p_expires_at => '2029-01-01'",
            json!({"scheduled_at": "2030-01-01", "expires_at": "2029-01-01"}),
            "22023",
            "expires_at: must be later than scheduled_at",
        ),
        (
            "p_scheduled_at => 'infinity'",
            json!({"scheduled_at": "infinity"}),
            "22023",
            "scheduled_at: must be a time before 9999-12-30",
        ),
        (
            "p_scheduled_at => '-infinity'",
            json!({"scheduled_at": "-infinity"}),
            "22023",
            "scheduled_at: must be a time before 9999-12-30",
        ),
        (
            "p_scheduled_at => '9999-12-30T00:00:00Z'",
            json!({"scheduled_at": "9999-12-30T00:00:00Z"}),
            "22023",
            "scheduled_at: must be a time before 9999-12-30",
        ),
        (
            "p_expires_at => 'infinity'",
            json!({"expires_at": "infinity"}),
            "22023",
            "expires_at: must be a time before 9999-12-30",
        ),
    ];
    let (_database, owner) = start().await;
    for (named, listed, code, says) in bad {
        let mut message = listed.clone();
        message["payload"] = json!(1);
        let mut event = message.clone();
        event["event_type"] = json!("e");
        let ways = [
            format!("SELECT postrider.send_with_options('a', '{{}}', {named})"),
            format!("SELECT postrider.send_bytes('a', '\\x00', 'text/plain', {named})"),
            format!("SELECT postrider.send_batch_with_options('a', '{}')", json!([{"payload": 1}, message])),
            format!("SELECT postrider.publish('e', '{{}}', {named})"),
            format!("SELECT postrider.publish_batch('{}')", json!([event])),
        ];
        refuses_all(&owner, ways, code, says).await;
        // Which options and names of headers are good depends on who gets it.
        if !named.starts_with("p_options") && says != "headers" {
            let unheard = format!("SELECT postrider.publish('unheard', '{{}}', {named})");
            refuses_all(&owner, [unheard], code, says).await;
        }
    }
    let only_there = [
        ("send_batch_with_priority('a', ARRAY['1']::jsonb[], 11)", "priority: must be from 0 to 10"),
        ("send_batch_with_priority('a', ARRAY['1']::jsonb[], NULL)", "priority: must be from 0 to 10"),
        (
            "send_bytes('a', '', E'text/plain\\n')",
            "content_type: must be 1 to 256 printable ASCII characters",
        ),
        ("send_bytes('a', '', NULL)", "content_type: must be 1 to 256 printable ASCII characters"),
    ];
    for (call, says) in only_there {
        refuses_all(&owner, [format!("SELECT postrider.{call}")], "22023", says).await;
    }
}

#[tokio::test]
async fn a_list_names_the_message_and_the_field_that_is_wrong() {
    let bad = [
        (json!([{"payload": 1}, 2]), "messages[1]: must be an object"),
        (
            json!([{"payload": 1}, {"payload": 1, "when": 1}]),
            "messages[1].when: unknown field; expected one of: payload",
        ),
        (
            json!([{"payload": 1, "payload_base64": "AA=="}]),
            "messages[0].payload: cannot be given beside payload_base64",
        ),
        (json!([{}]), "messages[0].payload: is required"),
        (json!([{"payload": 1, "ordering_key": 7}]), "messages[0].ordering_key: must be a string"),
        (json!([{"payload": 1, "scheduled_at": "soon"}]), "messages[0].scheduled_at: must be a time"),
        (json!([{"payload": 1, "correlation_id": "7"}]), "messages[0].correlation_id: must be a UUID"),
        (json!([{"payload_base64": "!"}]), "messages[0].payload_base64: must be base64"),
        (
            json!([{"payload": 1, "priority": 1.5}]),
            "messages[0].priority: must be a whole number from 0 to 10",
        ),
        (
            json!([{"payload": 1}, {"payload": 1, "ordering_key": ""}]),
            "messages[1].ordering_key: must not be empty",
        ),
        (
            json!([{"payload": 1}, {"payload": 1, "idempotency_key": ""}]),
            "messages[1].idempotency_key: must not be ",
        ),
        (
            json!([{"payload": 1}, {"payload": 1, "headers": 7}]),
            "messages[1].headers: must be an object of strings",
        ),
        (
            json!([{"payload": 1}, {"payload": 1, "headers": {"a b": ""}}]),
            "messages[1].headers.a b: is not a valid",
        ),
        (json!([{"payload": 1}, {"payload": 1, "options": 7}]), "messages[1].options: must be an object"),
        (
            json!([{"payload": 1}, {"payload": 1, "options": {"x": 1}}]),
            "messages[1].options.x: unknown field",
        ),
        (
            json!([{"payload": 1}, {"payload": 1, "scheduled_at": "infinity"}]),
            "messages[1].scheduled_at: must be a time before 9999-12-30",
        ),
        (json!([{"payload": 1}, {"payload_base64": null}]), "messages[1].payload: is required"),
        (
            json!([{"payload": 1}, {"payload": 1, "content_type": ""}]),
            "messages[1].content_type: must be 1 to 256",
        ),
        (json!({}), "messages: must be a list of objects"),
    ];
    let (_database, owner) = start().await;
    for (messages, says) in bad {
        let send = format!("SELECT postrider.send_batch_with_options('a', '{messages}')");
        refuses_all(&owner, [send], "22023", says).await;
    }
    owner
        .refuses("SELECT postrider.send_batch_with_options('a', NULL)", "22023", "messages: must be a list")
        .await;
    let large = json!([{"payload": 1}, {"payload": 1, "ordering_key": "k".repeat(257)}]);
    let too_large = [
        (format!("send_batch_with_options('a', '{large}')"), "messages[1].ordering_key: 257 is more than"),
        (
            "send_batch('a', ARRAY['1', to_jsonb(repeat('x', 2000000))])".to_owned(),
            "messages[1].payload: 2000002 is more than",
        ),
    ];
    for (call, says) in too_large {
        refuses_all(&owner, [format!("SELECT postrider.{call}")], "54000", says).await;
    }
    let missing = "SELECT postrider.send_batch('a', ARRAY['1', NULL]::jsonb[])".to_owned();
    refuses_all(&owner, [missing], "22023", "messages[1].payload: is required").await;
}

#[tokio::test]
async fn an_idempotency_key_with_another_payload_is_23505() {
    let (_database, owner) = start().await;
    let first = owner.number("SELECT postrider.send_with_options('a', '1', p_idempotency_key => 'i')").await;
    let ways = [
        "send_with_options('a', '2', p_idempotency_key => 'i')",
        "send_bytes('a', '1', 'text/plain', p_idempotency_key => 'i')",
        "send_batch_with_options('a', '[{\"payload\": 3}, {\"payload\": 2, \"idempotency_key\": \"i\"}]')",
    ];
    let says = |holder: i64| format!("idempotency_key: message {holder} of this endpoint has the same key");
    let ways = ways.map(|call| format!("SELECT postrider.{call}"));
    owner.refuses(&ways[2], "23505", &format!("messages[1].{}", says(first))).await;
    refuses_all(&owner, ways, "23505", &says(first)).await;
    // A subscription's key is its own.
    assert_eq!(owner.number("SELECT postrider.publish('e', '1', p_idempotency_key => 'i')").await, 1);
    let published = owner.number("SELECT max(id) FROM postrider.queue").await;
    let ways = [
        "publish('e', '2', p_idempotency_key => 'i')",
        "publish_batch('[{\"event_type\": \"e\", \"payload\": 2, \"idempotency_key\": \"i\"}]')",
    ];
    refuses_all(&owner, ways.map(|call| format!("SELECT postrider.{call}")), "23505", &says(published)).await;
    let twice = json!([1, 2].map(|payload| json!({"payload": payload, "idempotency_key": "j"})));
    let within = format!("SELECT postrider.send_batch_with_options('a', '{twice}')");
    let of_the_batch = "messages[1].idempotency_key: a message before it in the batch has the same key";
    refuses_all(&owner, [within], "23505", of_the_batch).await;
    let same = "SELECT postrider.send_with_options('a', '1', p_idempotency_key => 'i')";
    assert_eq!(owner.number(same).await, first);
}

#[tokio::test]
async fn a_full_queue_is_53400() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider._bury(postrider.send('a', '1'), 1, 'permanent', 'no')").await;
    let finished = owner.number("SELECT postrider.send('a', '2')").await;
    owner.run(&format!("SELECT postrider.cancel_message({finished}), postrider.send('a', '3')")).await;
    owner.configure("max_queue_size", 1).await;
    let calls = [
        "redrive_message(1)".into(),
        "redrive_endpoint('a')".into(),
        "redrive_all()".into(),
        format!("replay_message({finished})"),
        "replay_range(1, '2026-01-01', '2026-02-01')".into(),
    ];
    let again = calls.map(|call| format!("SELECT postrider.{call}"));
    let ways: Vec<String> =
        ways_in("'a'", "'{}'").into_iter().chain(ways_around("'{}'")).chain(again).collect();
    let says =
        "the queue is full: 1 messages of 1 (the whole queue); try again later or raise max_queue_size";
    refuses_all(&owner, ways.clone(), "53400", says).await;
    owner.configure("max_queue_size", 100).await;
    let options = json!({"max_queue_size": 1});
    owner.run(&format!("SELECT postrider.alter_endpoint('a', options => '{options}')")).await;
    refuses_all(&owner, ways, "53400", "the queue is full: 1 messages of 1 (endpoint \"a\")").await;
}

#[tokio::test]
async fn what_is_too_large_is_54000() {
    let (_database, owner) = start().await;
    owner.configure("max_payload_bytes", 1024).await;
    owner.configure("max_batch_messages", 2).await;
    let ways = ways_in("'a'", "to_jsonb(repeat('x', 1023))").into_iter();
    let ways = ways.chain(ways_around("to_jsonb(repeat('x', 1023))").into_iter().take(2));
    refuses_all(&owner, ways, "54000", "payload: 1025 is more than max_payload_bytes allows, which is 1024")
        .await;
    let captured = ways_around("to_jsonb(repeat('x', 1023))").into_iter().skip(2);
    refuses_all(&owner, captured, "54000", "is more than max_payload_bytes allows, which is 1024").await;
    let three = [
        "send_batch('a', ARRAY['1', '2', '3']::jsonb[])",
        "send_batch_with_priority('a', ARRAY['1', '2', '3']::jsonb[], 1)",
        "send_batch_with_options('a', '[{\"payload\": 1}, {\"payload\": 2}, {\"payload\": 3}]')",
    ];
    let three = three.map(|call| format!("SELECT postrider.{call}"));
    refuses_all(&owner, three, "54000", "messages: 3 is more than max_batch_messages allows, which is 2")
        .await;
    let events = json!([1, 2, 3].map(|n| json!({"event_type": "e", "payload": n})));
    refuses_all(
        &owner,
        [format!("SELECT postrider.publish_batch('{events}')")],
        "54000",
        "events: 3 is more than max_batch_messages",
    )
    .await;
    for way in ways_in("'a'", "to_jsonb(repeat('x', 1022))") {
        owner.run(&way).await;
    }
}

#[tokio::test]
async fn only_what_is_pending_is_cancelled_or_rescheduled() {
    let (mut world, owner) = prompt::start().await;
    let id = world.send(to("a")).await;
    let changes = ["cancel_message({})", "reschedule_message({}, now())"]
        .map(|call| call.replace("{}", &id.to_string()));
    let ticket = world.claim_one().await;
    for call in &changes {
        owner
            .refuses(
                &format!("SELECT postrider.{call}"),
                "55000",
                "is processing; only a pending one can be changed",
            )
            .await;
    }
    world.complete(ticket).await;
    for call in &changes {
        owner
            .refuses(
                &format!("SELECT postrider.{call}"),
                "55000",
                "is completed; only a pending one can be changed",
            )
            .await;
    }
    let pending = world.send(to("a")).await;
    let times = ["NULL", "'infinity'", "'9999-12-30T00:00:00Z'"];
    for (at, says) in
        times.into_iter().zip(["at: is required", "at: must be a time before 9999-12-30", "at: must be "])
    {
        owner.refuses(&format!("SELECT postrider.reschedule_message({pending}, {at})"), "22023", says).await;
    }
    assert_eq!(world.claim_ids().await, [pending]);
}

#[tokio::test]
async fn what_is_there_or_in_use_is_left_alone() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.send('a', '1')").await;
    let refused = [
        (
            r#"create_endpoint('a', 'http', '{"url": "https://b.c/"}')"#,
            "42710",
            "endpoint \"a\" exists already",
        ),
        ("create_event_type('e')", "42710", "event type \"e\" exists already"),
        ("drop_endpoint('a')", "55000", "has messages; force the drop to cancel them"),
    ];
    for (call, code, says) in refused {
        refuses_all(&owner, [format!("SELECT postrider.{call}")], code, says).await;
    }
}

/// SQL looks at a config less closely than the program.
#[tokio::test]
async fn what_sql_cannot_judge_of_a_config_its_sink_refuses() {
    let (world, owner) = prompt::start().await;
    let url = |url: &str| json!({"url": url});
    let with = |key: &str, value: Value| json!({"url": "https://b.c/", key: value});
    let pair = format!("whsk_{}", "A".repeat(86) + "==");
    let by_sql = [
        url("example.com"),
        url("ftp://example.com/"),
        url("http:example.com"),
        url("http://"),
        url("http:///x/"),
        url("http://u:p@example.com/"),
        url("HTTP://u@example.com/"),
        url("http://a b/"),
        url("http://x/\u{2003}"),
        url("http://x\\@y/"),
        url("http://x/#f"),
        with("signing_secrets", json!(["whsec_!"])),
        with("signing_secrets", json!(["whsec_c2hvcnQ="])),
        with("signing_secrets", json!(["whsk_c2hvcnQ="])),
        with("headers", json!({"Host": "a/b"})),
        with("headers", json!({"Host": ""})),
        with("tls", json!({"ca": "nonsense"})),
        with("tls", json!({"client_key": "file:key"})),
    ];
    let by_the_program = [
        url("http://x:70000/"),
        url("http://x:0/"),
        url("http://x:y/"),
        url("http://1.2.3.4.5/"),
        url("http://0x1000000000/"),
        url("http://[::1/"),
        url("http://[1]/"),
        url("http://a^b/"),
        with("signing_secrets", json!([pair])),
        with("headers", json!({"Host": "[]"})),
        with("headers", json!({"Host": "a:b"})),
        with("tls", json!({"ca": "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"})),
    ];
    let says = |config: &Value| {
        let refused = Protocol::Http.check_config(config.as_object().expect("an object"));
        refused.expect_err("the program refuses it").to_string()
    };
    let create = |name: &str, config: &Value| {
        let config = config.to_string().replace('\'', "''");
        format!("SELECT postrider.create_endpoint('{name}', 'http', '{config}')")
    };
    for config in by_sql {
        let refusal = owner.ask(&create("wrong", &config)).await.expect_err("SQL refuses it");
        assert_eq!(refusal.message, says(&config), "{config}");
    }
    for (number, config) in by_the_program.iter().enumerate() {
        let name = format!("wrong{number}");
        owner.run(&create(&name, config)).await;
        let endpoint = world.store().endpoint(&name).await.unwrap();
        let Err(Undelivered::Failed(failure)) = connect(&endpoint, &Environment::default()) else {
            panic!("{config} connects");
        };
        assert_eq!((failure.class, failure.error), (Class::Retryable, says(config)));
    }
}

#[tokio::test]
async fn a_bad_value_is_22023_wherever_it_is_given() {
    let refused = [
        (
            r#"create_endpoint('b', 'http', '{"url": "https://b.c/", "urls": 1}')"#,
            "config.urls: unknown field",
        ),
        (r#"create_endpoint('b c', 'http', '{"url": "https://b.c/"}')"#, "name: must be 1 to 128 letters"),
        (r#"create_endpoint('..', 'http', '{"url": "https://b.c/"}')"#, "name: must not be '.' or '..'"),
        ("create_endpoint('b', 'smoke', '{}')", "protocol"),
        (r#"validate_endpoint_config('http', '{"url": 1}')"#, "config.url: must be "),
        (
            r#"validate_endpoint_config('http', '{"url": "https://b.c/", "tls": {"ca": "-----BEGIN PRIVATE KEY-----"}}')"#,
            "config.tls.ca: must hold certificates only, and no private key",
        ),
        (r#"alter_endpoint('a', options => '{"max_in_flight": 0}')"#, "options.max_in_flight: must be "),
        (r#"alter_endpoint('a', retry_policy => '{"jitter": 2}')"#, "retry_policy.jitter: must be "),
        ("configure('node_lease', '1')", "node_lease: must be a whole number from 5 to 300"),
        ("configure('lease', '1')", "lease: unknown field; expected one of: "),
        ("configure(NULL, '1')", "name: unknown field"),
        ("pause(NULL)", "reason: is required"),
        ("redrive_endpoint(NULL)", "name: is required"),
        ("update_circuit_breaker(1, NULL)", "success: must be true or false"),
        ("maintain_archive_partitions(-1)", "months_ahead: must be a whole number from 0 to 120"),
        ("cleanup_old_archive_partitions(0)", "retention_months: must be a whole number from 1 to 120"),
    ];
    let (_database, owner) = start().await;
    for (call, says) in refused {
        refuses_all(&owner, [format!("SELECT postrider.{call}")], "22023", says).await;
    }
}
