//! Events: who gets them, as what, and what is not let through.

use serde_json::{Value, json};
use test_servers::Database;

use super::prompt::{self, Prompt};

/// With some event types.
async fn start() -> (Database, Prompt) {
    let (database, owner) = prompt::alone().await;
    for name in ["orders", "orders.created", "orders.items.added", "orders-archive.created", "users.created"]
    {
        owner.run(&format!("SELECT postrider.create_event_type('{name}')")).await;
    }
    (database, owner)
}

async fn publish(owner: &Prompt, event_type: &str, payload: &Value) -> i64 {
    owner.number(&format!("SELECT postrider.publish('{event_type}', '{payload}')")).await
}

async fn subscribe(owner: &Prompt, pattern: &str) -> i64 {
    owner.number(&format!("SELECT postrider.subscribe('{pattern}', 'a')")).await
}

/// Each makes a message of its own of an event.
async fn subscribe_often(owner: &Prompt, pattern: &str, times: usize) {
    let each = format!(
        "SELECT postrider.subscribe('{pattern}', 'a', p_template => to_jsonb(n)) FROM generate_series(1, {times}) AS n"
    );
    owner.run(&each).await;
}

async fn queued(owner: &Prompt) -> i64 {
    owner.number("SELECT count(*) FROM postrider.queue").await
}

#[tokio::test]
async fn a_pattern_fits_its_event_types_and_no_others() {
    let all = ["orders", "orders.created", "orders.items.added", "orders-archive.created", "users.created"];
    let patterns: [(&str, &[&str]); 6] = [
        ("*", &all),
        ("orders", &["orders"]),
        ("orders.created", &["orders.created"]),
        ("orders.*", &["orders.created", "orders.items.added"]),
        ("orders.items.*", &["orders.items.added"]),
        ("orders.created.*", &[]),
    ];
    let (_database, owner) = start().await;
    for (pattern, expected) in patterns {
        let subscription = subscribe(&owner, pattern).await;
        let mut fitting = Vec::new();
        for event_type in all {
            if publish(&owner, event_type, &json!({})).await == 1 {
                fitting.push(event_type);
            }
        }
        assert_eq!(fitting, expected, "{pattern}");
        owner.run(&format!("SELECT postrider.unsubscribe({subscription})")).await;
    }
}

#[tokio::test]
async fn a_star_stands_nowhere_but_at_the_end() {
    let (_database, owner) = start().await;
    for pattern in [
        "*.created",
        "orders.*.added",
        "orders*",
        "ord*",
        "**",
        "*.*",
        ".*",
        "orders.",
        "",
        "orders..*",
        "a b",
    ] {
        owner
            .refuses(&format!("SELECT postrider.subscribe('{pattern}', 'a')"), "22023", "pattern: must be ")
            .await;
    }
    owner.refuses("SELECT postrider.subscribe(NULL, 'a')", "22023", "pattern: must be ").await;
    owner
        .refuses(
            "SELECT postrider.subscribe('orders.gone', 'a')",
            "42704",
            "there is no event type \"orders.gone\"",
        )
        .await;
    owner
        .refuses("SELECT postrider.subscribe('*', 'nobody')", "42704", "there is no endpoint \"nobody\"")
        .await;
    assert_eq!(owner.number("SELECT count(*) FROM postrider.subscriptions").await, 0);
}

#[tokio::test]
async fn a_filter_lets_through_what_contains_it() {
    let filters = [
        (json!({"region": "eu"}), json!({"region": "eu", "total": 1}), true),
        (json!({"region": "eu"}), json!({"region": "us"}), false),
        (json!({"region": "eu"}), json!({}), false),
        (json!({"customer": {"tier": 1}}), json!({"customer": {"tier": 1, "id": 7}}), true),
        (json!({"tags": ["new"]}), json!({"tags": ["old", "new"]}), true),
        (json!({"tags": ["new"]}), json!({"tags": ["old"]}), false),
        (json!({}), json!({"total": 1}), true),
        (json!({"total": null}), json!({"total": null}), true),
        (json!({"total": null}), json!({}), false),
    ];
    let (_database, owner) = start().await;
    for (filter, payload, expected) in filters {
        owner.run(&format!("SELECT postrider.subscribe('orders', 'a', p_filter => '{filter}')")).await;
        let made = publish(&owner, "orders", &payload).await;
        assert_eq!(made, i64::from(expected), "{filter} in {payload}");
        owner.run("SELECT postrider.unsubscribe(id) FROM postrider.subscriptions").await;
    }
}

#[tokio::test]
async fn a_template_is_filled_from_the_event() {
    let event = json!({"total": 5, "list": [10, {"deep": true}], "none": null,
        "": "empty", "a/b": 1, "m~n": 2, "~1": 3});
    let templates = [
        (json!("{{/total}}"), json!(5)),
        (
            json!({"sum": "{{/total}}", "all": ["{{/list}}", 1]}),
            json!({"sum": 5, "all": [[10, {"deep": true}], 1]}),
        ),
        (json!("{{/list/0}}"), json!(10)),
        (json!("{{/list/1/deep}}"), json!(true)),
        (json!("{{/none}}"), json!(null)),
        (json!("{{/}}"), json!("empty")),
        (json!("{{/a~1b}}"), json!(1)),
        (json!("{{/m~0n}}"), json!(2)),
        (json!("{{/~01}}"), json!(3)),
        // What is not there is null.
        (json!("{{/missing}}"), json!(null)),
        (json!("{{/total/deeper}}"), json!(null)),
        (json!("{{/list/2}}"), json!(null)),
        (json!("{{/list/-}}"), json!(null)),
        (json!("{{/list/-1}}"), json!(null)),
        (json!("{{/list/00}}"), json!(null)),
        (json!("{{/list/+0}}"), json!(null)),
        (json!("{{/list/ 0}}"), json!(null)),
        // All else is what it says.
        (json!("total {{/total}}"), json!("total {{/total}}")),
        (json!("{{/total}} of {{/total}}"), json!("{{/total}} of {{/total}}")),
        (json!("{{ /total }}"), json!("{{ /total }}")),
        (json!("{{total}}"), json!("{{total}}")),
        (json!("{/total}"), json!("{/total}")),
        (json!({"{{/total}}": 1}), json!({"{{/total}}": 1})),
        (json!([true, null, 1.5]), json!([true, null, 1.5])),
    ];
    let (_database, owner) = start().await;
    for (template, expected) in templates {
        owner.run(&format!("SELECT postrider.subscribe('orders', 'a', p_template => '{template}')")).await;
        publish(&owner, "orders", &event).await;
        let sent = owner.json("SELECT payload FROM postrider.messages ORDER BY id DESC LIMIT 1").await;
        assert_eq!(sent, expected, "{template}");
        owner.run("SELECT postrider.unsubscribe(id) FROM postrider.subscriptions").await;
    }
}

#[tokio::test]
async fn a_schema_is_enforced_and_says_where_it_is_broken() {
    let good_and_bad = [
        (json!({"type": "object"}), json!({}), json!([]), "payload: must be of type object"),
        (
            json!({"type": ["string", "null"]}),
            json!(null),
            json!(1),
            "payload: must be of type string or null",
        ),
        (json!({"type": "integer"}), json!(1.0), json!(1.5), "payload: must be of type integer"),
        (json!({"enum": [1, "a"]}), json!("a"), json!("b"), "payload: must be one of [1, \"a\"]"),
        (json!({"const": {"v": 1}}), json!({"v": 1}), json!({"v": 2}), "payload: must be {\"v\": 1}"),
        (json!({"required": ["id"]}), json!({"id": null}), json!({}), "payload.id: is required"),
        (
            json!({"properties": {"id": {"type": "number"}}}),
            json!({"x": "y"}),
            json!({"id": "7"}),
            "payload.id: must be of type number",
        ),
        (
            json!({"properties": {"id": true}, "additionalProperties": false}),
            json!({"id": 1}),
            json!({"x": 1}),
            "payload.x: is not allowed here",
        ),
        (
            json!({"additionalProperties": {"type": "string"}}),
            json!({"x": "y"}),
            json!({"x": 1}),
            "payload.x: must be of type string",
        ),
        (json!({"items": {"minimum": 3}}), json!([3, 4]), json!([3, 2]), "payload[1]: must be at least 3"),
        (json!({"maximum": 3}), json!(3), json!(3.1), "payload: must be at most 3"),
        (json!({"minLength": 2}), json!("åß"), json!("å"), "payload: must have at least 2 characters"),
        (json!({"maxLength": 2}), json!("åß"), json!("abc"), "payload: must have at most 2 characters"),
        (json!({"minItems": 1}), json!([1]), json!([]), "payload: must have at least 1 items"),
        (json!({"maxItems": 1}), json!([1]), json!([1, 2]), "payload: must have at most 1 items"),
        (
            json!({"properties": {"a": {"items": {"required": ["b"]}}}}),
            json!({"a": [{"b": 1}]}),
            json!({"a": [{}]}),
            "payload.a[0].b: is required",
        ),
    ];
    let (_database, owner) = start().await;
    subscribe(&owner, "*").await;
    for (schema, good, bad, says) in good_and_bad {
        owner.run(&format!("SELECT postrider.create_event_type('checked', schema => '{schema}')")).await;
        assert_eq!(publish(&owner, "checked", &good).await, 1, "{schema}");
        owner.refuses(&format!("SELECT postrider.publish('checked', '{bad}')"), "22023", says).await;
        let batch =
            json!([{"event_type": "checked", "payload": good}, {"event_type": "checked", "payload": bad}]);
        let says = says.replacen("payload", "events[1].payload", 1);
        owner.refuses(&format!("SELECT postrider.publish_batch('{batch}')"), "22023", &says).await;
        owner.run("SELECT postrider.drop_event_type('checked')").await;
    }
    assert_eq!(queued(&owner).await, 16, "what was refused left nothing");
}

#[tokio::test]
async fn a_schema_that_would_not_be_enforced_is_refused() {
    let refused = [
        (json!({"pattern": "^a"}), "schema.pattern: unknown field; expected one of: type, enum, const"),
        (json!({"properties": {"a": {"oneOf": []}}}), "schema.properties.a.oneOf: unknown field"),
        (json!({"items": {"format": "email"}}), "schema.items.format: unknown field"),
        (json!({"exclusiveMinimum": 0}), "schema.exclusiveMinimum: unknown field"),
        (json!({"$ref": "#"}), "schema.$ref: unknown field"),
        (json!({"type": "text"}), "schema.type: must be "),
        (json!({"type": 1}), "schema.type: must be "),
        (json!({"enum": 1}), "schema.enum: must be a list"),
        (json!({"required": "id"}), "schema.required: must be a list of strings"),
        (json!({"properties": []}), "schema.properties: must be an object"),
        (json!({"minimum": "1"}), "schema.minimum: must be a number"),
        (json!({"minLength": -1}), "schema.minLength: must be a whole number"),
        (json!(["type"]), "schema: must be an object or a boolean"),
    ];
    let (_database, owner) = prompt::alone().await;
    for (schema, says) in refused {
        let create = format!("SELECT postrider.create_event_type('checked', schema => '{schema}')");
        owner.refuses(&create, "22023", says).await;
    }
    for name in ["", "a..b", ".a", "a.*", "a b", &"x".repeat(129)] {
        let create = format!("SELECT postrider.create_event_type('{name}')");
        owner.refuses(&create, "22023", "name: must be 1 to 128 letters").await;
    }
    assert_eq!(owner.number("SELECT count(*) FROM postrider.event_types").await, 0);
}

#[tokio::test]
async fn what_is_disabled_is_skipped_and_what_is_gone_is_kept() {
    let (_database, owner) = start().await;
    for name in ["open", "closed", "gone", "paused"] {
        owner.endpoint(name, json!({})).await;
        owner.run(&format!("SELECT postrider.subscribe('*', '{name}')")).await;
    }
    owner.run("SELECT postrider.disable_endpoint('closed'), postrider.pause_endpoint('paused')").await;
    owner.run("SELECT postrider._note_gone(id) FROM postrider.endpoints WHERE name = 'gone'").await;
    let silent = subscribe(&owner, "*").await;
    owner.run(&format!("SELECT postrider.disable_subscription({silent})")).await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 3);
    let got = owner.column("SELECT endpoint FROM postrider.messages ORDER BY endpoint").await;
    assert_eq!(got, ["gone", "open", "paused"]);
    assert_eq!(owner.counted("publish_skipped").await, 1, "of the disabled endpoint");
    owner
        .run(&format!("SELECT postrider.enable_subscription({silent}), postrider.enable_endpoint('closed')"))
        .await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 5);
    assert_eq!(owner.counted("publish_skipped").await, 1);
}

#[tokio::test]
async fn an_event_that_nobody_wants_is_not_an_error() {
    let (_database, owner) = start().await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 0);
    assert_eq!(owner.number("SELECT postrider.publish_batch('[]')").await, 0);
    subscribe(&owner, "*").await;
    owner.run("SELECT postrider.drop_endpoint('a')").await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 0, "subscriptions go with their endpoint");
}

#[tokio::test]
async fn every_option_of_send_reaches_every_message() {
    let (_database, owner) = start().await;
    owner.endpoint("b", json!({})).await;
    owner.run("SELECT postrider.subscribe('*', 'a'), postrider.subscribe('orders.*', 'b')").await;
    let id = "00000000-0000-0000-0000-000000000007";
    let publish = format!(
        "SELECT postrider.publish('orders.created', '{{}}', p_priority => 4,
           p_scheduled_at => '2030-01-01 00:00:00+00', p_idempotency_key => 'i', p_correlation_id => '{id}',
           p_expires_at => '2031-01-01 00:00:00+00', p_ordering_key => 'k', p_headers => '{{\"x-a\": \"b\"}}',
           p_options => '{{\"max_attempts\": 2}}')"
    );
    assert_eq!(owner.number(&publish).await, 2);
    let event = json!({"event_type": "orders.created", "payload": {}, "priority": 4,
        "scheduled_at": "2030-01-01T00:00:00Z", "idempotency_key": "j", "correlation_id": id,
        "expires_at": "2031-01-01T00:00:00Z", "ordering_key": "k", "headers": {"x-a": "b"},
        "options": {"max_attempts": 2}});
    assert_eq!(owner.number(&format!("SELECT postrider.publish_batch('[{event}]')")).await, 2);
    let seen = owner.rows(
        "SELECT DISTINCT priority, scheduled_at AT TIME ZONE 'UTC', correlation_id,
           expires_at AT TIME ZONE 'UTC', ordering_key, headers, options, event_type FROM postrider.queue",
    );
    let expected = [
        "4",
        "2030-01-01 00:00:00",
        id,
        "2031-01-01 00:00:00",
        "k",
        r#"{"x-a": "b"}"#,
        r#"{"max_attempts": 2}"#,
        "orders.created",
    ];
    assert_eq!(seen.await, [expected.map(|text| Some(text.to_owned()))]);
    let keys = owner.column("SELECT idempotency_key FROM postrider.queue ORDER BY id").await;
    assert_eq!(keys, ["i#1", "i#2", "j#1", "j#2"], "each subscription has its own");
}

#[tokio::test]
async fn an_event_published_twice_under_one_key_is_sent_once() {
    let (_database, owner) = start().await;
    subscribe(&owner, "*").await;
    let publish = "SELECT postrider.publish('orders', '{\"n\": 1}', p_idempotency_key => 'i')";
    assert_eq!((owner.number(publish).await, owner.number(publish).await), (1, 0));
    owner.refuses(&publish.replace("1}", "2}"), "23505", "idempotency_key: ").await;
    assert_eq!(queued(&owner).await, 1);
}

#[tokio::test]
async fn a_batch_of_events_is_all_or_nothing() {
    let (_database, owner) = start().await;
    subscribe(&owner, "orders.*").await;
    let good = json!({"event_type": "orders.created", "payload": 1});
    let unwanted = json!({"event_type": "users.created", "payload": 2});
    let batch = json!([good, unwanted, {"event_type": "orders.items.added", "payload": 3}]);
    assert_eq!(owner.number(&format!("SELECT postrider.publish_batch('{batch}')")).await, 2);
    let order = owner.column("SELECT payload FROM postrider.messages ORDER BY id").await;
    assert_eq!(order, ["1", "3"]);
    let refused = [
        (
            json!({"event_type": "orders.gone", "payload": 1}),
            "42704",
            "there is no event type \"orders.gone\"",
        ),
        (json!({"payload": 1}), "22023", "events[1]: must have an event_type and a payload"),
        (json!({"event_type": "orders"}), "22023", "events[1].payload: is required"),
        (
            json!({"event_type": "orders", "payload": 1, "priority": 11}),
            "22023",
            "events[1].priority: must be a whole number",
        ),
        (
            json!({"event_type": "orders", "payload": 1, "endpoint": "a"}),
            "22023",
            "events[1].endpoint: unknown field",
        ),
        (
            json!({"event_type": "orders", "payload": 1, "content_type": "a/b"}),
            "22023",
            "events[1].content_type: unknown field",
        ),
        (
            json!({"event_type": "orders", "payload_base64": "AA=="}),
            "22023",
            "events[1].payload_base64: unknown field",
        ),
        (json!(1), "22023", "events[1]: must be an object"),
        (
            json!({"event_type": "orders", "payload": 1, "ordering_key": ""}),
            "22023",
            "events[1].ordering_key: must not be empty",
        ),
        (
            json!({"event_type": "orders", "payload": 1, "idempotency_key": "k".repeat(250)}),
            "54000",
            "events[1].idempotency_key: ",
        ),
        (
            json!({"event_type": "orders.created", "payload": 1, "options": {"colour": 1}}),
            "22023",
            "events[1].options.colour: unknown field",
        ),
    ];
    for (bad, code, says) in refused {
        owner.refuses(&format!("SELECT postrider.publish_batch('{}')", json!([good, bad])), code, says).await;
    }
    owner.refuses("SELECT postrider.publish_batch('{}')", "22023", "events: must be a list of objects").await;
    owner.refuses("SELECT postrider.publish_batch(NULL)", "22023", "events: must be a list of objects").await;
    assert_eq!(queued(&owner).await, 2);
}

#[tokio::test]
async fn the_whole_fan_out_has_to_fit_into_the_queue() {
    let (_database, owner) = start().await;
    owner.endpoint("small", json!({"max_queue_size": 1})).await;
    subscribe_often(&owner, "orders", 3).await;
    owner.configure("max_queue_size", 5).await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 3);
    owner.refuses("SELECT postrider.publish('orders', '{}')", "53400", "the queue is full").await;
    assert_eq!(queued(&owner).await, 3, "not even the part that had room");
    let batch =
        json!([{"event_type": "users.created", "payload": 1}, {"event_type": "orders", "payload": 1}]);
    owner.refuses(&format!("SELECT postrider.publish_batch('{batch}')"), "53400", "the queue is full").await;
    owner.configure("max_queue_size", 100).await;
    owner.run("SELECT postrider.subscribe('orders', 'small'), postrider.subscribe('*', 'small')").await;
    owner.refuses("SELECT postrider.publish('orders', '{}')", "53400", "endpoint \"small\"").await;
    assert_eq!(queued(&owner).await, 3);
}

#[tokio::test]
async fn one_event_becomes_no_more_messages_than_max_fanout() {
    let (_database, owner) = start().await;
    subscribe_often(&owner, "orders", 3).await;
    subscribe(&owner, "users.created").await;
    owner.configure("max_fanout", 2).await;
    let says = "event_type: 3 is more than max_fanout allows, which is 2";
    owner.refuses("SELECT postrider.publish('orders', '{}')", "54000", says).await;
    // Each event by itself, whatever else is in its batch.
    let quiet = json!({"event_type": "users.created", "payload": 1});
    let batch = json!([quiet, {"event_type": "orders", "payload": 1}, quiet]);
    owner.refuses(&format!("SELECT postrider.publish_batch('{batch}')"), "54000", says).await;
    assert_eq!(queued(&owner).await, 0);
    assert_eq!(
        owner.number(&format!("SELECT postrider.publish_batch('{}')", json!([quiet, quiet, quiet]))).await,
        3
    );
    owner.configure("max_fanout", 3).await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 3);
}

/// The limit of a batch is about what is written, not about what it becomes.
#[tokio::test]
async fn a_fan_out_may_be_wider_than_a_batch() {
    let (_database, owner) = start().await;
    owner.configure("max_batch_messages", 2).await;
    subscribe_often(&owner, "orders", 5).await;
    assert_eq!(publish(&owner, "orders", &json!({})).await, 5);
    let three = json!([1, 2, 3].map(|n| json!({"event_type": "orders", "payload": n})));
    owner
        .refuses(
            &format!("SELECT postrider.publish_batch('{three}')"),
            "54000",
            "events: 3 is more than max_batch_messages allows",
        )
        .await;
}
