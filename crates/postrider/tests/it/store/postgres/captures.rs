//! Triggers that send what changes in an application's own tables.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use test_servers::Database;

use super::prompt::{self, Prompt};
use super::surface::member;

/// With a table of orders in the schema of a shop.
async fn start() -> (Database, Prompt) {
    let (database, owner) = prompt::alone().await;
    owner.run("CREATE SCHEMA shop; CREATE TABLE shop.orders (id integer, total integer)").await;
    (database, owner)
}

async fn payloads(owner: &Prompt) -> Vec<Value> {
    let queued = "SELECT convert_from(payload, 'UTF8') FROM postrider.queue ORDER BY id";
    owner.column(queued).await.iter().map(|payload| serde_json::from_str(payload).expect("JSON")).collect()
}

/// Without what is different every time.
async fn changes(owner: &Prompt) -> Vec<Value> {
    let short = |payload: Value| json!([payload["op"], payload["table"], payload["old"], payload["new"]]);
    payloads(owner).await.into_iter().map(short).collect()
}

const WRITES: &str = "INSERT INTO shop.orders VALUES (1, 10), (2, 20);
    UPDATE shop.orders SET total = total + 1; DELETE FROM shop.orders WHERE id = 1";

#[tokio::test]
async fn every_changed_row_is_one_message_with_what_it_was_and_what_it_is() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.capture_rows('shop.orders', 'a')").await;
    owner.run(WRITES).await;
    let table = "shop.orders";
    assert_eq!(
        changes(&owner).await,
        [
            json!(["insert", table, null, {"id": 1, "total": 10}]),
            json!(["insert", table, null, {"id": 2, "total": 20}]),
            json!(["update", table, {"id": 1, "total": 10}, {"id": 1, "total": 11}]),
            json!(["update", table, {"id": 2, "total": 20}, {"id": 2, "total": 21}]),
            json!(["delete", table, {"id": 1, "total": 11}, null]),
        ]
    );
}

#[tokio::test]
async fn every_statement_is_one_message_with_all_its_rows_and_none_without_rows() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.capture_statements('shop.orders', 'a')").await;
    owner.run(WRITES).await;
    owner.run("UPDATE shop.orders SET total = 0 WHERE id = 99; DELETE FROM shop.orders WHERE id = 99").await;
    owner.run("INSERT INTO shop.orders SELECT * FROM shop.orders WHERE id = 99").await;
    let table = "shop.orders";
    let [first, second] = [json!({"id": 1, "total": 10}), json!({"id": 2, "total": 20})];
    let [first_then, second_then] = [json!({"id": 1, "total": 11}), json!({"id": 2, "total": 21})];
    assert_eq!(
        changes(&owner).await,
        [
            json!(["insert", table, null, [first, second]]),
            json!(["update", table, [first, second], [first_then, second_then]]),
            json!(["delete", table, [first_then], null]),
        ]
    );
}

#[tokio::test]
async fn a_capture_says_when_and_in_which_transaction() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.capture_rows('shop.orders', 'a')").await;
    owner.run("BEGIN; INSERT INTO shop.orders VALUES (1, 10)").await;
    let transaction = owner.number("SELECT pg_current_xact_id()").await;
    owner.run("COMMIT").await;
    let [payload] = &payloads(&owner).await[..] else { panic!("one message") };
    assert_eq!(payload["txid"], transaction);
    let at = owner
        .value(&format!("SELECT {}::timestamptz = postrider._now()", payload["at"]).replace('"', "'"))
        .await;
    assert_eq!(at, "t");
    let fields: BTreeSet<&str> = payload.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(fields, ["op", "table", "at", "txid", "old", "new"].into());
}

#[tokio::test]
async fn only_what_was_asked_for_is_captured_and_truncate_never() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.capture_rows('shop.orders', 'a', ARRAY['delete', 'UPDATE'])").await;
    owner.run(WRITES).await;
    owner.run("TRUNCATE shop.orders").await;
    let operations: Vec<Value> = payloads(&owner).await.iter().map(|payload| payload["op"].clone()).collect();
    assert_eq!(operations, ["update", "update", "delete"]);
}

#[tokio::test]
async fn a_rolled_back_change_sends_nothing() {
    let (_database, owner) = start().await;
    owner.run("SELECT postrider.capture_rows('shop.orders', 'a')").await;
    owner.run("SELECT postrider.capture_statements('shop.orders', 'a')").await;
    owner.run("BEGIN").await;
    owner.run(WRITES).await;
    owner.run("ROLLBACK").await;
    assert_eq!(payloads(&owner).await, [json!(null); 0]);
}

#[tokio::test]
async fn what_is_refused_fails_the_statement_unless_it_may_be_skipped() {
    for capture in ["capture_rows", "capture_statements"] {
        let (_database, owner) = start().await;
        owner.run(&format!("SELECT postrider.{capture}('shop.orders', 'a')")).await;
        owner.run("SELECT postrider.disable_endpoint('a')").await;
        owner.refuses("INSERT INTO shop.orders VALUES (1, 10)", "55000", "endpoint \"a\" is disabled").await;
        assert_eq!(owner.number("SELECT count(*) FROM shop.orders").await, 0, "{capture}");
        let skipping = r#"{"on_refused": "skip"}"#;
        owner
            .run(&format!("SELECT postrider.{capture}('shop.orders', 'a', p_options => '{skipping}')"))
            .await;
        owner.run("INSERT INTO shop.orders VALUES (1, 10)").await;
        owner.run("SELECT postrider.enable_endpoint('a')").await;
        owner.run("INSERT INTO shop.orders VALUES (2, 20)").await;
        assert_eq!(owner.number("SELECT count(*) FROM shop.orders").await, 2, "{capture}");
        assert_eq!(
            (owner.counted("capture_skipped").await, payloads(&owner).await.len()),
            (1, 1),
            "{capture}"
        );
    }
}

#[tokio::test]
async fn every_kind_of_refusal_can_be_skipped() {
    let refusals = [
        // As when it is captured while somebody else drops it.
        (
            "42704",
            "SELECT postrider._allow_switch(true); UPDATE postrider.endpoints SET dropped_at = postrider._now()",
        ),
        ("55000", "SELECT postrider.disable_endpoint('a')"),
        ("53400", "SELECT postrider.configure('max_queue_size', '1'), postrider.send('a', '{}')"),
        ("54000", "SELECT postrider.configure('max_payload_bytes', '1024')"),
        ("22023", "UPDATE shop.notes SET note = ''"),
    ];
    let (_database, owner) = start().await;
    owner.run("CREATE TABLE shop.notes AS SELECT 'k' AS note, repeat('x', 2000) AS body").await;
    for (table, on_refused) in [("strict", "fail"), ("lenient", "skip")] {
        owner.run(&format!("CREATE TABLE shop.{table} (note text, body text)")).await;
        let options = json!({"on_refused": on_refused, "ordering_key": "note"});
        owner
            .run(&format!("SELECT postrider.capture_rows('shop.{table}', 'a', p_options => '{options}')"))
            .await;
    }
    for (code, refuse) in refusals {
        owner.run("BEGIN").await;
        owner.run(refuse).await;
        owner.run("SAVEPOINT before").await;
        let refusal = owner.refusal("INSERT INTO shop.strict SELECT * FROM shop.notes").await;
        assert_eq!(refusal.code, code, "{refusal:?}");
        owner.run("ROLLBACK TO before; INSERT INTO shop.lenient SELECT * FROM shop.notes").await;
        assert_eq!(owner.counted("capture_skipped").await, 1, "{code}");
        owner.run("ROLLBACK").await;
    }
}

#[tokio::test]
async fn an_endpoint_stays_as_long_as_a_table_sends_to_it() {
    for capture in ["capture_rows", "capture_statements"] {
        let (_database, owner) = start().await;
        owner.endpoint("ab", json!({})).await;
        owner.run(&format!("SELECT postrider.{capture}('shop.orders', 'ab')")).await;
        owner.run("SELECT postrider.drop_endpoint('a')").await;
        for forced in [false, true] {
            let drop = format!("SELECT postrider.drop_endpoint('ab', {forced})");
            owner.refuses(&drop, "55000", "gets the changes of shop.orders").await;
        }
        owner.run("INSERT INTO shop.orders VALUES (1, 10)").await;
        owner.run("SELECT postrider.uncapture('shop.orders')").await;
        owner.run("SELECT postrider.drop_endpoint('ab', true)").await;
        owner.run("INSERT INTO shop.orders VALUES (2, 20)").await;
    }
}

/// A json column keeps what jsonb cannot hold.
#[tokio::test]
async fn a_row_that_makes_no_payload_can_be_skipped() {
    let bad = [(r#"{"a":"\u0000"}"#, "22P05"), (r#"{"a":"\ud800"}"#, "22P02")];
    for capture in ["capture_rows", "capture_statements"] {
        let (_database, owner) = start().await;
        for (table, on_refused) in [("strict", "fail"), ("lenient", "skip")] {
            owner.run(&format!("CREATE TABLE shop.{table} (document json)")).await;
            let options = json!({"on_refused": on_refused});
            owner
                .run(&format!("SELECT postrider.{capture}('shop.{table}', 'a', p_options => '{options}')"))
                .await;
        }
        for (document, code) in bad {
            let refusal = owner.refusal(&format!("INSERT INTO shop.strict VALUES ('{document}')")).await;
            assert_eq!(refusal.code, code, "{capture}: {refusal:?}");
            owner.run(&format!("INSERT INTO shop.lenient VALUES ('{document}')")).await;
        }
        owner.run("DELETE FROM shop.lenient; INSERT INTO shop.lenient VALUES ('{}')").await;
        let skipped = if capture == "capture_rows" { 4 } else { 3 };
        assert_eq!(
            (owner.counted("capture_skipped").await, payloads(&owner).await.len()),
            (skipped, 1),
            "{capture}"
        );
    }
}

#[tokio::test]
async fn a_row_without_the_column_of_its_ordering_key_is_refused() {
    let (_database, owner) = start().await;
    owner.run("CREATE TABLE shop.letters (\"k ey\" text)").await;
    let capture = |options: Value| {
        format!("SELECT postrider.capture_rows('shop.letters', 'a', p_options => '{options}')")
    };
    owner.run(&capture(json!({"ordering_key": "k ey"}))).await;
    owner.run("INSERT INTO shop.letters VALUES ('k'), (NULL)").await;
    owner.run(&capture(json!({"ordering_key": "k ey", "on_refused": "skip"}))).await;
    owner.run("ALTER TABLE shop.letters RENAME COLUMN \"k ey\" TO key").await;
    owner.run("INSERT INTO shop.letters VALUES ('skipped')").await;
    assert_eq!(owner.counted("capture_skipped").await, 1);
    owner.run("ALTER TABLE shop.letters RENAME COLUMN key TO \"k ey\"").await;
    owner.run(&capture(json!({"ordering_key": "k ey"}))).await;
    owner.run("ALTER TABLE shop.letters RENAME COLUMN \"k ey\" TO key").await;
    let says = "ordering_key: shop.letters has no column \"k ey\" any more";
    owner.refuses("INSERT INTO shop.letters VALUES ('refused')", "22023", says).await;
    owner.refuses("DELETE FROM shop.letters", "22023", says).await;
    owner.run(&capture(json!({"ordering_key": "key"}))).await;
    owner.run("INSERT INTO shop.letters VALUES ('again')").await;
    let keys = owner.column("SELECT coalesce(ordering_key, '-') FROM postrider.queue ORDER BY id").await;
    assert_eq!(keys, ["k", "-", "again"]);
}

/// For PostgreSQL that is a delete and an insert.
#[tokio::test]
async fn an_update_that_moves_a_row_to_another_partition_is_no_update() {
    let (_database, owner) = start().await;
    owner.run("CREATE TABLE shop.parts (id integer) PARTITION BY LIST (id)").await;
    for part in [1, 2] {
        owner
            .run(&format!("CREATE TABLE shop.part_{part} PARTITION OF shop.parts FOR VALUES IN ({part})"))
            .await;
    }
    owner.run("INSERT INTO shop.parts VALUES (1)").await;
    owner.run("SELECT postrider.capture_rows('shop.parts', 'a')").await;
    owner.run("UPDATE shop.parts SET id = 2").await;
    let operations: Vec<Value> = payloads(&owner).await.iter().map(|payload| payload["op"].clone()).collect();
    assert_eq!(operations, ["delete", "insert"]);
}

/// Whatever the columns are called.
#[tokio::test]
async fn a_row_is_captured_whole() {
    let (_database, owner) = start().await;
    owner.run("CREATE TABLE shop.letters (o integer, n integer, old_rows integer, new_rows integer)").await;
    for capture in ["capture_rows", "capture_statements"] {
        owner.run(&format!("SELECT postrider.{capture}('shop.letters', 'a')")).await;
    }
    owner.run("INSERT INTO shop.letters VALUES (1, 2, 3, 4); DELETE FROM shop.letters").await;
    let row = json!({"o": 1, "n": 2, "old_rows": 3, "new_rows": 4});
    let table = "shop.letters";
    let expected = [
        json!(["insert", table, null, [row]]),
        json!(["delete", table, [row], null]),
        json!(["insert", table, null, row]),
        json!(["delete", table, row, null]),
    ];
    let seen = changes(&owner).await;
    assert!(seen.len() == 4 && expected.iter().all(|change| seen.contains(change)), "{seen:?}");
}

#[tokio::test]
async fn a_name_that_needs_quotes_is_captured_as_it_is_written() {
    let (_database, owner) = prompt::alone().await;
    let table = r#""My Shop"."Order's ""all""""#;
    owner.run(&format!(r#"CREATE SCHEMA "My Shop"; CREATE TABLE {table} ("Id" integer)"#)).await;
    let options = json!({"ordering_key": "Id"});
    let capture = format!("SELECT postrider.capture_rows($${table}$$, 'a', p_options => '{options}')");
    owner.run(&capture).await;
    owner.run(&format!("INSERT INTO {table} VALUES (7)")).await;
    assert_eq!(changes(&owner).await, [json!(["insert", table, null, {"Id": 7}])]);
    assert_eq!(owner.value("SELECT ordering_key FROM postrider.queue").await, "7");
}

#[tokio::test]
async fn a_partitioned_table_is_captured_under_its_own_name() {
    let (_database, owner) = start().await;
    owner.run("CREATE TABLE shop.parts (id integer) PARTITION BY LIST (id)").await;
    owner.run("CREATE TABLE shop.part_1 PARTITION OF shop.parts FOR VALUES IN (1)").await;
    for capture in ["capture_rows", "capture_statements"] {
        owner.run(&format!("SELECT postrider.{capture}('shop.parts', 'a')")).await;
    }
    owner.run("CREATE TABLE shop.part_2 PARTITION OF shop.parts FOR VALUES IN (2)").await;
    owner.run("INSERT INTO shop.parts VALUES (1), (2)").await;
    let tables: Vec<Value> = payloads(&owner).await.iter().map(|payload| payload["table"].clone()).collect();
    assert_eq!(tables, ["shop.parts"; 3]);
    assert_eq!(owner.number("SELECT postrider.uncapture('shop.parts')").await, 4);
}

#[tokio::test]
async fn uncapture_takes_off_all_captures_of_one_table_and_nothing_else() {
    let (_database, owner) = start().await;
    owner.run("CREATE TABLE shop.others (LIKE shop.orders)").await;
    owner
        .run("CREATE FUNCTION shop.own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
        .await;
    owner.run("CREATE TRIGGER own AFTER INSERT ON shop.orders EXECUTE FUNCTION shop.own()").await;
    owner.run("SELECT postrider.capture_rows('shop.orders', 'a')").await;
    owner.run("SELECT postrider.capture_statements('shop.orders', 'a')").await;
    owner.run("SELECT postrider.capture_rows('shop.others', 'a')").await;
    assert_eq!(owner.number("SELECT postrider.uncapture('shop.orders')").await, 4);
    owner.run(WRITES).await;
    assert_eq!(payloads(&owner).await.len(), 0);
    let left = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'shop.orders'::regclass";
    assert_eq!(owner.column(left).await, ["own"]);
    owner.run("INSERT INTO shop.others VALUES (1, 1)").await;
    assert_eq!(payloads(&owner).await.len(), 1);
    assert_eq!(owner.number("SELECT postrider.uncapture('shop.orders')").await, 0);
}

#[tokio::test]
async fn endpoints_whose_long_names_begin_alike_all_get_what_is_captured() {
    let (_database, owner) = start().await;
    let names = ["one", "two"].map(|end| format!("{}{end}", "x".repeat(100)));
    for name in &names {
        owner.endpoint(name, json!({})).await;
        owner.run(&format!("SELECT postrider.capture_rows('shop.orders', '{name}')")).await;
        owner.run(&format!("SELECT postrider.capture_statements('shop.orders', '{name}')")).await;
    }
    owner.run("INSERT INTO shop.orders VALUES (1, 10)").await;
    let got = owner
        .column("SELECT endpoint FROM postrider.messages GROUP BY 1 HAVING count(*) = 2 ORDER BY 1")
        .await;
    assert_eq!(got, names);
}

#[tokio::test]
async fn capturing_again_replaces_what_was_captured_before() {
    for (capture, expected) in [("capture_rows", 2), ("capture_statements", 1)] {
        let (_database, owner) = start().await;
        owner.run(&format!("SELECT postrider.{capture}('shop.orders', 'a')")).await;
        owner.run(&format!("SELECT postrider.{capture}('shop.orders', 'a', ARRAY['insert'])")).await;
        owner.run(WRITES).await;
        let operations: Vec<Value> =
            payloads(&owner).await.iter().map(|payload| payload["op"].clone()).collect();
        assert_eq!(operations, vec!["insert"; expected], "{capture}");
    }
}

#[tokio::test]
async fn options_give_priority_headers_and_the_ordering_key() {
    let (_database, owner) = start().await;
    let options = json!({"priority": 7, "headers": {"x-shop": "1"}, "ordering_key": "id"});
    owner.run(&format!("SELECT postrider.capture_rows('shop.orders', 'a', p_options => '{options}')")).await;
    owner.run("INSERT INTO shop.orders VALUES (42, 10); DELETE FROM shop.orders").await;
    let seen = owner.rows("SELECT DISTINCT priority, headers, ordering_key FROM postrider.queue").await;
    assert_eq!(seen, [[Some("7".into()), Some(r#"{"x-shop": "1"}"#.into()), Some("42".into())]]);
}

#[tokio::test]
async fn a_capture_runs_with_the_rights_of_whoever_writes() {
    let (database, owner) = start().await;
    let database = &database;
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser.run("SELECT postrider._install_roles()").await;
    owner.run("GRANT USAGE ON SCHEMA shop TO PUBLIC; GRANT INSERT ON shop.orders TO PUBLIC").await;
    owner.run("SELECT postrider.capture_rows('shop.orders', 'a')").await;
    let monitor = member(database, "postrider_monitor").await;
    monitor.refuses("INSERT INTO shop.orders VALUES (1, 10)", "42501", "permission denied").await;
    let application = member(database, "postrider_application").await;
    application.run("INSERT INTO shop.orders VALUES (1, 10)").await;
    assert_eq!(payloads(&owner).await.len(), 1);
    let admin = member(database, "postrider_admin").await;
    for capture in [
        "capture_rows('shop.orders', 'a')",
        "capture_statements('shop.orders', 'a')",
        "uncapture('shop.orders')",
    ] {
        admin.refuses(&format!("SELECT postrider.{capture}"), "42501", "orders").await;
    }
}

#[tokio::test]
async fn a_capture_that_cannot_work_is_refused_when_it_is_made() {
    let (_database, owner) = start().await;
    let refusals = [
        ("NULL, 'a'", "22023", "p_table: is required"),
        ("'postrider.queue', 'a'", "22023", "p_table: must not be one of Postrider's own"),
        ("'shop.nothing', 'a'", "42P01", "shop.nothing"),
        ("'shop.orders', 'nobody'", "42704", "there is no endpoint \"nobody\""),
        ("'shop.orders', NULL", "22023", "p_endpoint: is required"),
        ("'shop.orders', 'a', '{}'", "22023", "p_operations: must be a list of insert, update and delete"),
        ("'shop.orders', 'a', NULL", "22023", "p_operations: "),
        ("'shop.orders', 'a', ARRAY['truncate']", "22023", "p_operations: "),
        ("'shop.orders', 'a', ARRAY['insert', NULL]", "22023", "p_operations: "),
        ("'shop.orders', 'a', p_options => '[]'", "22023", "p_options: must be an object"),
        (
            "'shop.orders', 'a', p_options => '{\"retry\": 1}'",
            "22023",
            "p_options.retry: unknown field; expected one of: on_refused",
        ),
        (
            "'shop.orders', 'a', p_options => '{\"on_refused\": \"wait\"}'",
            "22023",
            "p_options.on_refused: must be \"fail\" or \"skip\"",
        ),
        (
            "'shop.orders', 'a', p_options => '{\"priority\": 11}'",
            "22023",
            "p_options.priority: must be a whole number from 0 to 10",
        ),
        (
            "'shop.orders', 'a', p_options => '{\"headers\": 1}'",
            "22023",
            "p_options.headers: must be an object of strings",
        ),
        (
            "'shop.orders', 'a', p_options => '{\"headers\": {\"n\": 1}}'",
            "22023",
            "p_options.headers: must be an object of strings",
        ),
        (
            "'shop.orders', 'a', p_options => '{\"headers\": {\"bad header\": \"x\"}}'",
            "22023",
            "p_options.headers.bad header: is not a valid header name",
        ),
        (
            "'shop.orders', 'a', p_options => '{\"headers\": {\"webhook-id\": \"x\"}}'",
            "22023",
            "p_options.headers.webhook-id: cannot be set",
        ),
        (
            "'shop.orders', 'a', p_options => json_build_object('headers', json_build_object('x', repeat('x', 16384)))::jsonb",
            "54000",
            "p_options.headers: 16385 is more than max_headers_bytes allows, which is 16384",
        ),
        ("999999::regclass, 'a'", "42704", "there is no table \"999999\""),
    ];
    for capture in ["capture_rows", "capture_statements"] {
        for (arguments, code, says) in refusals {
            owner.refuses(&format!("SELECT postrider.{capture}({arguments})"), code, says).await;
        }
    }
    let no_column =
        r#"SELECT postrider.capture_rows('shop.orders', 'a', p_options => '{"ordering_key": "no"}')"#;
    owner.refuses(no_column, "22023", "p_options.ordering_key: must be the name of a column").await;
    assert_eq!(
        owner.number("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'shop.orders'::regclass").await,
        0
    );
}
