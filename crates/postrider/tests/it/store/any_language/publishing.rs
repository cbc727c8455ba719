//! `postrider_publish` inside the application's transaction, and what the node makes of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::rusqlite::Connection;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{
    Arrival, DeadLetter, DlqFilter, DlqStatus, Listing, MessageFilter, NoDirectClaims, Redrive,
};
use postrider::{
    NewEvent, NewEventType, NewMessage, NewSubscription, Operate, PubSub, SqliteStore, State, Store,
};
use serde_json::{Value, json};

use super::super::world::{join, new_endpoint};
use super::{Shop, refusal};

pub(super) const MINIMAL: &str =
    r#"INTO postrider_publish (event_type, payload) VALUES ('orders', '{"total": 4200}')"#;

impl Shop {
    /// With an event type `orders`, and somebody who wants it at endpoint `a`.
    pub(super) async fn with_orders() -> Self {
        let shop = Self::open().await;
        shop.store.create_event_type(NewEventType::new("orders")).await.unwrap();
        shop.store.subscribe(NewSubscription::new("orders", "a")).await.unwrap();
        shop
    }

    /// Its event has a schema.
    async fn create_checked(&self, schema: Value) {
        let new = NewEventType { schema: Some(schema.into()), ..NewEventType::new("checked") };
        self.store.create_event_type(new).await.unwrap();
        self.store.subscribe(NewSubscription::new("checked", "a")).await.unwrap();
    }

    pub(super) fn run(&self, sql: &str) {
        self.app.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    pub(super) fn payloads(&self) -> Vec<String> {
        let sql = "SELECT CAST(payload AS TEXT) FROM postrider_queue ORDER BY id";
        let mut statement = self.app.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    pub(super) async fn letters(&self) -> Vec<DeadLetter> {
        self.store.dlq(DlqFilter::default()).await.unwrap()
    }

    /// The process dies, and another one opens the file.
    async fn restart(self) -> Self {
        let path = self.path();
        let Self { folder, store, app } = self;
        drop(store);
        Self { folder, store: SqliteStore::open(SqliteOptions::node(path)).unwrap(), app }
    }
}

#[tokio::test]
async fn an_event_commits_or_rolls_back_with_the_data_it_belongs_to() {
    let shop = Shop::with_orders().await;
    for end in ["COMMIT", "ROLLBACK"] {
        shop.run(&format!(
            "BEGIN IMMEDIATE; INSERT INTO orders (total) VALUES (4200); INSERT {MINIMAL}; {end}"
        ));
    }
    shop.fanned_out().await;
    assert_eq!((shop.number("SELECT count(*) FROM orders"), shop.queued().await), (1, 1));
    assert_eq!(shop.payloads(), [r#"{"total": 4200}"#], "byte for byte");
}

#[tokio::test]
async fn every_option_reaches_every_message() {
    let shop = Shop::with_orders().await;
    shop.run(
        r#"INSERT INTO postrider_publish (event_type, payload, priority, scheduled_at, idempotency_key, correlation_id,
             expires_at, ordering_key, headers, options)
           VALUES ('orders', CAST('[1]' AS BLOB), 4, '2035-06-01T12:00:00Z', 'i', '00000000-0000-0000-0000-00000000000A',
             '2036-06-01T12:00:00.5Z', 'k', '{"x-b": "c", "x-a": "b"}', '{"max_attempts": 2}')"#,
    );
    shop.fanned_out().await;
    let id = shop.number("SELECT id FROM postrider_queue");
    let story = shop.store.story(postrider::MessageId(id)).await.unwrap();
    assert_eq!((story.priority, story.event_type.as_deref()), (4, Some("orders")));
    assert_eq!((story.idempotency_key.as_deref(), story.ordering_key.as_deref()), (Some("i#1"), Some("k")));
    assert_eq!(story.correlation_id, Some(uuid::Uuid::from_u128(10)));
    assert_eq!(story.scheduled_at, "2035-06-01T12:00:00Z".parse().ok());
    assert_eq!(story.expires_at, "2036-06-01T12:00:00.5Z".parse().ok());
    assert_eq!(json!(story.headers), json!({"x-a": "b", "x-b": "c"}));
    assert_eq!((json!(story.options), story.payload.unwrap()), (json!({"max_attempts": 2}), "[1]".into()));
}

#[tokio::test]
async fn a_refusal_names_field_and_rule_and_leaves_the_transaction_as_it_was() {
    let shop = Shop::with_orders().await;
    let refusals = [
        ("event_type", "'nothing'", "42704 event_type: there is no event type of this name"),
        ("event_type", "NULL", "42704 event_type: there is no event type of this name"),
        ("event_type", "7", "42704 event_type: there is no event type of this name"),
        ("payload", "NULL", "22023 payload: is required"),
        ("payload", "42", "22023 payload: must be text or a blob"),
        ("payload", "'{'", "22023 payload: is not JSON"),
        ("payload", "''", "22023 payload: is not JSON"),
        ("payload", "x'ff'", "22023 payload: is not JSON"),
        ("payload", "'{\"a\":\"\\u0000\"}'", "22023 payload: must not contain the character U+0000"),
        ("payload", "zeroblob(1048577)", "54000 payload: is more than max_payload_bytes allows"),
        ("priority", "11", "22023 priority: must be from 0 to 10"),
        ("scheduled_at", "'2026-02-30T00:00:00Z'", "22023 scheduled_at: must be a time like "),
        ("expires_at", "'tomorrow'", "22023 expires_at: must be a time like "),
        ("idempotency_key", "''", "22023 idempotency_key: must not be empty and has no control characters"),
        (
            "idempotency_key",
            "printf('%.237c', 'x')",
            "54000 idempotency_key: is more than max_key_bytes allows",
        ),
        ("ordering_key", "printf('%.257c', 'x')", "54000 ordering_key: is more than max_key_bytes allows"),
        ("correlation_id", "'7'", "22023 correlation_id: must be a UUID"),
        ("headers", "'{\"a\":1}'", "22023 headers: must be an object of strings"),
        ("options", "'{'", "22023 options: must be an object"),
        // SQLite takes these for JSON.
        ("options", "'{\"x\":1e999}'", "22023 options: has a number that is out of range"),
        ("options", "'{\"x\":[-1e999]}'", "22023 options: has a number that is out of range"),
        ("options", "'{\"x\":\"\\ud800\"}'", "22023 options: must be text in UTF-8"),
        ("options", "'{\"\\udfff\":1}'", "22023 options: must be text in UTF-8"),
        ("options", "CAST(x'7b2278223a22ff227d' AS TEXT)", "22023 options: must be text in UTF-8"),
        (
            "options",
            "'{\"x\":' || replace(printf('%.200c', 'x'), 'x', '[') || replace(printf('%.200c', 'x'), 'x', ']') || '}'",
            "22023 options: is more than 128 levels deep",
        ),
    ];
    shop.run(&format!("BEGIN IMMEDIATE; INSERT {MINIMAL}"));
    for insert in ["INSERT", "INSERT OR IGNORE", "REPLACE"] {
        for (field, value, expected) in refusals {
            let columns = [("event_type", "'orders'"), ("payload", "'1'")]
                .into_iter()
                .filter(|(name, _)| *name != field);
            let (names, values): (Vec<_>, Vec<_>) = columns.chain([(field, value)]).unzip();
            let sql = format!(
                "{insert} INTO postrider_publish ({}) VALUES ({})",
                names.join(", "),
                values.join(", ")
            );
            let refused = refusal(&shop.app, &sql);
            assert!(refused.starts_with(expected), "{sql}\n{refused}");
        }
    }
    shop.run("COMMIT");
    shop.fanned_out().await;
    assert_eq!(shop.queued().await, 1);
}

#[tokio::test]
async fn an_invalid_event_becomes_a_dead_letter_and_the_next_one_goes_on() {
    let shop = Shop::with_orders().await;
    shop.create_checked(json!({"required": ["id"]})).await;
    let publish = |options: &str| {
        shop.run(&format!(
            "INSERT INTO postrider_publish (event_type, payload, {options})
             SELECT 'checked', '{{\"total\":1}}', 'k', '{{\"x-a\":\"b\"}}', 3"
        ));
    };
    publish("ordering_key, headers, priority");
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    assert_eq!(shop.payloads(), [r#"{"total": 4200}"#]);
    let letters = shop.letters().await;
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.reason.as_str(), letter.status), ("invalid_event", DlqStatus::Failed));
    assert_eq!(letter.last_error.as_deref(), Some("[PERMANENT] payload.id: is required"));
    assert_eq!(letter.payload.as_deref(), Some(br#"{"total":1}"#.as_slice()));
    assert_eq!((letter.event_type.as_deref(), letter.ordering_key.as_deref()), (Some("checked"), Some("k")));
    assert_eq!((letter.attempt_count, json!(letter.headers)), (0, json!({"x-a": "b"})));
    let story = shop.store.story(letter.message).await.unwrap();
    assert_eq!((story.state, story.priority), (State::Dead, 3));
    let status = shop.store.status().await.unwrap();
    assert_eq!((status.dead, status.pending), (1, 1));
    let shown = shop.number("SELECT count(*) FROM postrider_dlq WHERE reason = 'invalid_event'");
    assert_eq!(shown, 1);
    shop.store.discard(letter.id).await.unwrap();
    assert_eq!(shop.store.status().await.unwrap().dead, 0);
    let next = shop.store.send(NewMessage::new("a", "1")).await.unwrap().id;
    assert!(next > letter.message, "no id is given twice");
}

/// Lists rely on it that ids and times grow together.
#[tokio::test]
async fn a_letter_of_an_event_that_waited_long_is_as_young_as_its_id() {
    let shop = Shop::with_orders().await;
    shop.create_checked(json!({"required": ["id"]})).await;
    shop.run(
        "INSERT INTO postrider_publish (event_type, payload) VALUES ('checked', '{}');
         UPDATE _postrider_events SET created_at = created_at - 10800000000",
    );
    shop.fanned_out().await;
    let created_after = Some(shop.store.now() - Duration::from_secs(3600));
    let dead = MessageFilter { state: Some(State::Dead), created_after, ..MessageFilter::default() };
    assert_eq!(shop.store.messages(dead).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn a_redriven_event_is_published_again() {
    let shop = Shop::with_orders().await;
    shop.create_checked(json!({"required": ["id"]})).await;
    for n in 1..=3 {
        let publish =
            "INSERT INTO postrider_publish (event_type, payload, idempotency_key, expires_at, ordering_key)";
        shop.run(&format!("{publish} VALUES ('checked', '{{\"n\":{n}}}', 'i', 1, 'k')"));
    }
    shop.fanned_out().await;
    let letters = shop.letters().await;
    let still = shop.store.redrive(Redrive::One(letters[0].id)).await.unwrap_err();
    assert_eq!(still.to_string(), "payload.id: is required", "it says what is wrong now");
    assert_eq!(shop.store.redrive(Redrive::All).await.unwrap(), 0);
    assert_eq!(shop.store.status().await.unwrap().dead, 3);
    shop.store.drop_event_type("checked").await.unwrap();
    shop.store.create_event_type(NewEventType::new("checked")).await.unwrap();
    assert_eq!(shop.store.redrive(Redrive::One(letters[1].id)).await.unwrap(), 1);
    assert_eq!(shop.store.redrive(Redrive::All).await.unwrap(), 2);
    assert_eq!(shop.payloads(), [r#"{"n":2}"#, r#"{"n":1}"#, r#"{"n":3}"#], "in their order");
    assert_eq!(
        shop.number(
            "SELECT count(*) FROM postrider_queue WHERE expires_at IS NULL AND idempotency_key IS NULL"
        ),
        3
    );
    assert!(shop.letters().await.iter().all(|letter| letter.status == DlqStatus::Redriven));
    assert_eq!(shop.store.status().await.unwrap().dead, 0);
    assert_eq!(shop.store.redrive(Redrive::One(letters[0].id)).await.unwrap_err().sqlstate(), "55000");
}

#[tokio::test]
async fn whatever_cannot_be_fanned_out_is_named_in_the_dlq() {
    let shop = Shop::with_orders().await;
    shop.run(
        "INSERT INTO postrider_publish (event_type, payload, idempotency_key) VALUES ('orders', '1', 'i')",
    );
    shop.store.create_event_type(NewEventType::new("gone")).await.unwrap();
    // While the node cannot: it drops the type before it sees the event.
    shop.run("BEGIN IMMEDIATE");
    shop.run("INSERT INTO postrider_publish (event_type, payload) VALUES ('gone', '1')");
    shop.run("DELETE FROM _postrider_event_types WHERE name = 'gone'");
    shop.run("COMMIT");
    for (columns, values) in
        [("headers", "'{\"te\":\"x\"}'"), ("options", "'{\"retries\":1}'"), ("idempotency_key", "'i'")]
    {
        shop.run(&format!(
            "INSERT INTO postrider_publish (event_type, payload, {columns}) VALUES ('orders', '2', {values})"
        ));
    }
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    let errors: Vec<String> =
        shop.letters().await.into_iter().map(|letter| letter.listed.last_error.unwrap()).collect();
    let expected = [
        "[PERMANENT] there is no event type \"gone\"",
        "[PERMANENT] headers.te: ",
        "[PERMANENT] options.retries: unknown field",
        "[PERMANENT] idempotency_key: message 1 of this endpoint has the same key",
    ];
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(shop.payloads(), ["1", r#"{"total": 4200}"#]);
}

/// The door of an older version let more in.
#[tokio::test]
async fn what_no_node_can_read_becomes_a_dead_letter_and_the_next_one_goes_on() {
    let shop = Shop::with_orders().await;
    let unreadable = [
        ("options", "'{\"x\":1e999}'"),
        ("options", "'{\"x\":\"\\ud800\"}'"),
        (
            "options",
            "'{\"x\":' || replace(printf('%.200c', 'x'), 'x', '[') || replace(printf('%.200c', 'x'), 'x', ']') || '}'",
        ),
        ("options", "CAST(x'7b2278223a22ff227d' AS TEXT)"),
        ("headers", "'{\"x\":1}'"),
        ("ordering_key", "CAST(x'ff' AS TEXT)"),
        ("scheduled_at", "'soon'"),
        ("correlation_id", "'7'"),
    ];
    for (column, value) in unreadable {
        shop.run(&format!(
            "INSERT INTO _postrider_events (event_type, created_at, priority, payload, {column})
             VALUES ('orders', 1, 0, '1', {value})"
        ));
    }
    shop.run(
        "INSERT INTO _postrider_events (event_type, created_at, priority, payload) VALUES (x'ff', 1, 0, '1')",
    );
    shop.run("INSERT INTO _postrider_events (event_type, created_at, priority, payload) VALUES ('orders', 1, 300, '1')");
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    assert_eq!(shop.payloads(), [r#"{"total": 4200}"#]);
    let letters = shop.letters().await;
    let fields = unreadable.iter().map(|(column, _)| *column).chain(["event_type", "priority"]);
    assert_eq!(letters.len(), unreadable.len() + 2);
    for (letter, field) in letters.iter().zip(fields) {
        let error = letter.last_error.as_deref().unwrap();
        assert!(
            error.starts_with(&format!("[PERMANENT] {field}: cannot be read: "))
                && error.ends_with("; left out here"),
            "{error}"
        );
        assert_eq!(
            (letter.reason.as_str(), letter.payload.as_deref()),
            ("invalid_event", Some(b"1".as_slice()))
        );
    }
    assert_eq!(shop.store.redrive(Redrive::One(letters[0].id)).await.unwrap(), 1);
    assert_eq!(shop.payloads(), [r#"{"total": 4200}"#, "1"], "without what could not be read");
}

/// The holder of the key is expired first, so something was written before the event is refused: that is undone.
#[tokio::test]
async fn a_refusal_half_way_leaves_nothing_but_the_dead_letter() {
    let shop = Shop::with_orders().await;
    shop.store.subscribe(NewSubscription::new("*", "a")).await.unwrap();
    let keyed = |payload: &str, expires_at: &str| {
        shop.run(&format!(
            "INSERT INTO postrider_publish (event_type, payload, idempotency_key, expires_at)
             VALUES ('orders', '{payload}', 'i', {expires_at})"
        ));
    };
    // The first subscription's holder expires at once, the second one's does not.
    keyed("1", "1");
    shop.fanned_out().await;
    shop.run("UPDATE _postrider_subscriptions SET enabled = 0 WHERE id = 1");
    keyed("2", "NULL");
    shop.fanned_out().await;
    shop.run("UPDATE _postrider_subscriptions SET enabled = 1");
    keyed("3", "NULL");
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    let letters = shop.letters().await;
    assert_eq!(letters.len(), 1);
    assert!(letters[0].last_error.as_deref().unwrap().starts_with("[PERMANENT] idempotency_key: "));
    assert_eq!(letters[0].payload.as_deref(), Some(b"3".as_slice()));
    assert_eq!(shop.payloads(), ["1", "2", r#"{"total": 4200}"#, r#"{"total": 4200}"#]);
    let counted = shop.number("SELECT queued FROM _postrider_counts WHERE endpoint_id = 0");
    assert_eq!(counted, 4);
}

/// Parsing takes its time; nobody waits for the file meanwhile.
#[tokio::test]
async fn a_large_event_is_read_before_the_file_is_locked() {
    let shop = Shop::with_orders().await;
    let large = format!("[{}1]", "1,".repeat(500_000));
    let started = Instant::now();
    postrider::Json::parse(large.as_bytes()).unwrap();
    let parsing = started.elapsed();
    shop.app.busy_timeout(Duration::ZERO).unwrap();
    let publish = "INSERT INTO postrider_publish (event_type, payload) VALUES ('orders', ?1)";
    while shop.app.execute(publish, [&large]).is_err() {}
    let (mut free_at, mut longest) = (Instant::now(), Duration::ZERO);
    while shop.stored_events() > 0 {
        if shop.app.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
            free_at = Instant::now();
        }
        longest = longest.max(free_at.elapsed());
    }
    assert!(longest < parsing / 2, "locked for {longest:?}, parsed in {parsing:?}");
}

/// Sixteen times as much takes some sixteen times as long, not 256 times.
#[tokio::test]
async fn checking_headers_takes_no_longer_than_they_are_long() {
    let shop = Shop::with_orders().await;
    let quickest = |characters: usize| {
        let sql = format!(
            "INSERT INTO postrider_publish (event_type, payload, headers, correlation_id)
             VALUES ('orders', '1', '{{\"x\":\"{}\"}}', '7')",
            "é".repeat(characters)
        );
        let timed = || {
            let started = Instant::now();
            assert!(refusal(&shop.app, &sql).starts_with("22023 correlation_id"));
            started.elapsed()
        };
        (0..3).map(|_| timed()).min().unwrap()
    };
    let (short, long) = (quickest(500), quickest(8000));
    assert!(long < short * 64, "{short:?} for 500 characters, {long:?} for 8000");
}

#[tokio::test]
async fn a_crash_before_the_fan_out_loses_and_doubles_nothing() {
    let shop = Shop::with_orders().await;
    let path = shop.path();
    let Shop { folder, store, app } = shop;
    drop(store);
    app.execute_batch(&format!("INSERT {MINIMAL}; INSERT {MINIMAL}")).unwrap();
    let tool = SqliteStore::open(SqliteOptions::tool(&path)).unwrap();
    tool.send(NewMessage::new("a", "1")).await.unwrap();
    drop(tool);
    let mut shop = Shop { folder, store: SqliteStore::open(SqliteOptions::node(&path)).unwrap(), app };
    for _ in 0..2 {
        shop.fanned_out().await;
        assert_eq!(
            shop.payloads(),
            ["1", r#"{"total": 4200}"#, r#"{"total": 4200}"#],
            "tools leave them to the node"
        );
        shop = shop.restart().await;
    }
}

#[tokio::test]
async fn a_running_node_notices_the_commit() {
    let shop = Shop::with_orders().await;
    let (_, mut arrivals) = join(&shop.store, Arc::new(NoDirectClaims)).await;
    let a = shop.store.endpoint("a").await.unwrap().id;
    while arrivals.try_recv().is_ok() {}
    shop.run(&format!("INSERT {MINIMAL}"));
    let told = async {
        while !matches!(arrivals.recv().await, Some(Arrival::Pending(endpoint)) if endpoint == a) {}
    };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("the node is told without being asked");
}

#[tokio::test]
async fn a_closed_store_takes_no_events() {
    let shop = Shop::with_orders().await;
    shop.run(&format!("INSERT {MINIMAL}"));
    assert!(shop.store.close_for_export("a move").await.unwrap());
    assert_eq!((shop.stored_events(), shop.queued().await), (0, 1), "what was stored became messages first");
    let refused = refusal(&shop.app, &format!("INSERT {MINIMAL}"));
    assert!(refused.starts_with("55000 this store was closed by a move"), "{refused}");
    for refused in [
        shop.store.create_event_type(NewEventType::new("more")).await.map(drop).unwrap_err(),
        shop.store.unsubscribe(1).await.unwrap_err(),
        shop.store.publish(NewEvent::new("orders", "1")).await.map(drop).unwrap_err(),
    ] {
        assert_eq!(refused.sqlstate(), "55000", "{refused}");
    }
    shop.store.reopen().await.unwrap();
    shop.run(&format!("INSERT {MINIMAL}"));
    shop.fanned_out().await;
    assert_eq!(shop.queued().await, 2);
}

#[tokio::test]
async fn a_store_is_not_exported_without_its_stored_events() {
    let shop = Shop::with_orders().await;
    shop.store.subscribe(NewSubscription::new("*", "a")).await.unwrap();
    shop.store.send(NewMessage::new("a", "1")).await.unwrap();
    shop.configure("max_queue_size", "2").await;
    shop.run(&format!("INSERT {MINIMAL}"));
    let refused = shop.store.close_for_export("a move").await.unwrap_err();
    assert!(refused.to_string().contains("raise max_queue_size"), "{refused}");
    let refused = shop.store.export(std::io::sink()).await.unwrap_err();
    assert!(refused.to_string().contains("raise max_queue_size"), "{refused}");
    shop.configure("max_queue_size", "3").await;
    assert!(shop.store.close_for_export("a move").await.unwrap());
    shop.store.export(std::io::sink()).await.unwrap();
}

#[tokio::test]
async fn the_views_show_types_and_subscriptions() {
    let shop = Shop::open().await;
    shop.store.create_endpoint(new_endpoint("b", json!({}))).await.unwrap();
    shop.create_checked(json!({"type": "object"})).await;
    let filtered = NewSubscription::new("*", "b").filter(json!({"total": 1})).template(json!("{{/total}}"));
    let filtered = shop.store.subscribe(filtered).await.unwrap().subscription;
    shop.store.set_subscription_enabled(filtered.id, false).await.unwrap();
    let app: &Connection = &shop.app;
    let shown: String = app
        .query_row(
            "SELECT json_array(name, description, json(schema)) FROM postrider_event_types",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(shown, r#"["checked",null,{"type":"object"}]"#);
    let shown: String = app
        .query_row(
            "SELECT json_group_array(json_array(id, pattern, endpoint, json(filter), json(template), enabled))
             FROM postrider_subscriptions",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(shown, r#"[[1,"checked","a",null,null,1],[2,"*","b",{"total":1},"{{/total}}",0]]"#);
}
