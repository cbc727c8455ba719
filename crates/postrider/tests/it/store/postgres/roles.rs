//! Who may do what: members of the three roles, and everybody else.

use std::collections::BTreeSet;

use serde_json::json;
use test_servers::Database;

use super::prompt::{self, Prompt};
use super::surface::member;

const APPLICATION: [&str; 11] = [
    "cancel_message",
    "enable_fast_mode",
    "message",
    "publish",
    "publish_batch",
    "send",
    "send_batch",
    "send_batch_with_options",
    "send_batch_with_priority",
    "send_bytes",
    "send_with_options",
];
const MONITOR: [&str; 6] =
    ["dlq_summary", "get_endpoint_health", "get_worker_status", "health_check", "metrics", "show_config"];

/// What the monitor is not shown of each relation: payloads, headers, config, and what may repeat them.
const HIDDEN_FROM_MONITOR: [(&str, &[&str]); 12] = [
    ("archive", &["headers", "options", "payload"]),
    ("attempts", &["response_body"]),
    ("dlq", &["headers", "key_scope", "options", "payload"]),
    ("endpoint_status", &[]),
    ("endpoints", &["config"]),
    ("event_log", &[]),
    ("event_types", &["schema"]),
    ("messages", &["headers", "options", "payload"]),
    ("nodes", &[]),
    ("queue", &["delivered_late", "headers", "key_position", "key_scope", "options", "payload"]),
    ("settings", &[]),
    ("subscriptions", &["filter", "template"]),
];

async fn start() -> (Database, Prompt) {
    let (database, owner) = prompt::alone().await;
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser.run("SELECT postrider._install_roles()").await;
    owner.run("SELECT postrider._bury(postrider.send('a', '1'), 1, 'permanent', 'no'), postrider.send('a', '2')").await;
    (database, owner)
}

/// Every public function, called with nothing where something is asked for.
async fn calls(owner: &Prompt) -> Vec<(String, String)> {
    let rows = owner.rows(
        "SELECT proname, format('SELECT postrider.%I(%s)', proname, (
                  SELECT string_agg('NULL::' || format_type(kind, NULL), ', ' ORDER BY n)
                  FROM unnest(proargtypes::oid[]) WITH ORDINALITY AS a (kind, n)
                  WHERE n <= pronargs - pronargdefaults))
         FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND proname !~ '^_' ORDER BY proname",
    );
    let both = |row: Vec<Option<String>>| match &row[..] {
        [Some(name), Some(call)] => (name.clone(), call.clone()),
        other => panic!("{other:?}"),
    };
    rows.await.into_iter().map(both).collect()
}

/// The functions that this prompt gets as far as running.
async fn callable(prompt: &Prompt, calls: &[(String, String)]) -> BTreeSet<String> {
    let mut callable = BTreeSet::new();
    for (name, call) in calls {
        prompt.run("BEGIN").await;
        if !matches!(prompt.ask(call).await, Err(refusal) if refusal.code == "42501") {
            callable.insert(name.clone());
        }
        prompt.run("ROLLBACK").await;
    }
    callable
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn each_role_calls_its_functions_and_no_others() {
    let (database, owner) = start().await;
    let calls = calls(&owner).await;
    let all: BTreeSet<String> = calls.iter().map(|(name, _)| name.clone()).collect();
    assert_eq!(callable(&member(&database, "postrider_admin").await, &calls).await, all);
    let application = member(&database, "postrider_application").await;
    assert_eq!(callable(&application, &calls).await, set(&APPLICATION));
    let monitor = member(&database, "postrider_monitor").await;
    assert_eq!(callable(&monitor, &calls).await, set(&MONITOR));
    let stranger = stranger(&database).await;
    assert_eq!(callable(&stranger, &calls).await, set(&[]));
}

/// A role that is a member of nothing.
async fn stranger(database: &Database) -> Prompt {
    let login = format!("{}_stranger", database.name());
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser.run(&format!("CREATE ROLE {login} LOGIN")).await;
    Prompt::new(database.connect_as(&login).await)
}

#[tokio::test]
async fn an_application_sends_publishes_cancels_and_asks() {
    let (database, owner) = start().await;
    owner.run("SELECT postrider.create_event_type('e'), postrider.subscribe('*', 'a')").await;
    let application = member(&database, "postrider_application").await;
    for call in [
        "send('a', '{}')",
        "send_with_options('a', '{}', p_ordering_key => 'k', p_idempotency_key => 'i')",
        "send_bytes('a', '\\x00', 'text/plain')",
        "send_batch('a', ARRAY['1']::jsonb[])",
        "send_batch_with_priority('a', ARRAY['1']::jsonb[], 1)",
        "send_batch_with_options('a', '[{\"payload\": 1, \"ordering_key\": \"k\"}]')",
        "publish('e', '{}')",
        "publish_batch('[{\"event_type\": \"e\", \"payload\": 1}]')",
        "cancel_message(2)",
        "message(2)",
    ] {
        application.run(&format!("SELECT postrider.{call}")).await;
    }
}

#[tokio::test]
async fn who_looked_at_the_queue_sends_under_a_key_as_quickly_as_before() {
    let (database, owner) = start().await;
    let fill = "SELECT postrider.send_with_options('a', '1', p_ordering_key => 'k' || n) FROM generate_series(1, 500) AS n";
    owner.run(fill).await;
    let admin = member(&database, "postrider_admin").await;
    admin.run("SELECT FROM postrider.messages").await;
    let read = async || {
        let read =
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'queue'";
        admin.column(read).await[0].parse::<i64>().unwrap()
    };
    // What is read is forgotten between transactions, sooner or later.
    admin.run("BEGIN").await;
    let before = read().await;
    admin.run("SELECT postrider.send_with_options('a', '1', p_ordering_key => 'k7')").await;
    let read = read().await - before;
    assert!(read <= 10, "{read} rows were read");
}

async fn columns(owner: &Prompt, relation: &str) -> Vec<String> {
    owner
        .column(&format!(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'postrider.{relation}'::regclass AND attnum > 0
               AND NOT attisdropped ORDER BY attname"
        ))
        .await
}

async fn hidden(prompt: &Prompt, relation: &str, columns: &[String]) -> Vec<String> {
    let mut hidden = Vec::new();
    for column in columns {
        match prompt.ask(&format!("SELECT {column} FROM postrider.{relation} LIMIT 1")).await {
            Ok(_) => {}
            Err(refusal) if refusal.code == "42501" => hidden.push(column.clone()),
            Err(refusal) => panic!("{relation}.{column}: {refusal:?}"),
        }
    }
    hidden
}

#[tokio::test]
async fn each_role_reads_what_it_is_shown() {
    let (database, owner) = start().await;
    let admin = member(&database, "postrider_admin").await;
    let monitor = member(&database, "postrider_monitor").await;
    let application = member(&database, "postrider_application").await;
    for (relation, from_monitor) in HIDDEN_FROM_MONITOR {
        let columns = columns(&owner, relation).await;
        assert_eq!(hidden(&monitor, relation, &columns).await, from_monitor, "{relation} for the monitor");
        let from_admin: &[&str] = if relation == "endpoints" { &["config"] } else { &[] };
        assert_eq!(hidden(&admin, relation, &columns).await, from_admin, "{relation} for the admin");
        assert_eq!(hidden(&application, relation, &columns).await, columns, "{relation} for applications");
    }
}

#[tokio::test]
async fn nobody_writes_but_through_functions() {
    let (database, owner) = start().await;
    let tables = "SELECT oid::regclass FROM pg_class
                  WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p')";
    let tables = owner.column(tables).await;
    for role in ["postrider_admin", "postrider_application", "postrider_monitor"] {
        let prompt = member(&database, role).await;
        for table in &tables {
            for write in ["INSERT INTO table DEFAULT VALUES", "DELETE FROM table", "TRUNCATE table"] {
                prompt.refuses(&write.replace("table", table), "42501", "permission denied").await;
            }
        }
        prompt.refuses("SELECT nextval('postrider.message_ids')", "42501", "permission denied").await;
        prompt.refuses("CREATE TABLE postrider.mine ()", "42501", "permission denied").await;
    }
}

#[tokio::test]
async fn only_what_captures_and_programs_need_is_granted_besides() {
    let (_database, owner) = start().await;
    let granted = |role: &str| {
        format!(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND proname ~ '^_'
               AND has_function_privilege('{role}', oid, 'EXECUTE') ORDER BY proname COLLATE \"C\""
        )
    };
    let application = [
        "_note_skipped_capture",
        "_now",
        "_program_publish",
        "_program_send",
        "_program_send_batch",
        "_send_captured",
        "_send_captured_row",
    ];
    assert_eq!(owner.column(&granted("postrider_application")).await, application);
    let monitor = ["_as_json", "_endpoint_statuses", "_key", "_turn"];
    assert_eq!(owner.column(&granted("postrider_monitor")).await, monitor);
    let secrets = "SELECT count(*) FROM pg_attribute
                   WHERE attrelid = 'postrider.endpoints'::regclass AND attname = 'config'
                     AND (has_column_privilege('postrider_admin', attrelid, attnum, 'SELECT')
                          OR has_column_privilege('postrider_monitor', attrelid, attnum, 'SELECT'))";
    assert_eq!(owner.number(secrets).await, 0);
}

#[tokio::test]
async fn nothing_is_granted_to_everybody() {
    let (_database, owner) = start().await;
    let granted = owner.column(
        "SELECT o.kind || ' ' || o.name FROM (
           SELECT 'schema' AS kind, nspname::text AS name, coalesce(nspacl, acldefault('n', nspowner)) AS acl
           FROM pg_namespace WHERE nspname = 'postrider'
           UNION ALL
           SELECT 'relation', relname, coalesce(relacl,
             acldefault(CASE relkind WHEN 'S' THEN 's'::\"char\" ELSE 'r' END, relowner))
           FROM pg_class WHERE relnamespace = 'postrider'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')
           UNION ALL
           SELECT 'column', attname, attacl FROM pg_attribute JOIN pg_class c ON c.oid = attrelid
           WHERE relnamespace = 'postrider'::regnamespace
           UNION ALL
           SELECT 'function', proname, coalesce(proacl, acldefault('f', proowner))
           FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace
           UNION ALL
           SELECT 'type', typname, coalesce(typacl, acldefault('T', typowner))
           FROM pg_type JOIN pg_class c ON c.oid = typrelid
           WHERE typnamespace = 'postrider'::regnamespace AND relkind = 'c'
         ) AS o, aclexplode(o.acl) AS a WHERE a.grantee = 0 ORDER BY 1",
    );
    assert_eq!(granted.await, [""; 0]);
}

#[tokio::test]
async fn what_runs_with_its_owners_rights_has_a_path_of_its_own() {
    let (_database, owner) = start().await;
    let loose = "SELECT proname FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND prosecdef
                   AND NOT coalesce('search_path=postrider, pg_temp' = ANY (proconfig), false)";
    assert_eq!(owner.column(loose).await, [""; 0]);
    let callers =
        "SELECT proname FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND NOT prosecdef
                     AND proname !~ '^_' ORDER BY proname";
    assert_eq!(owner.column(callers).await, ["capture_rows", "capture_statements", "uncapture"]);
}

/// Whatever an attacker puts in the way is not used by functions that run with their owner's rights.
#[tokio::test]
async fn objects_of_an_attacker_are_passed_by() {
    let (database, owner) = start().await;
    owner.run("SELECT postrider.create_event_type('e'), postrider.subscribe('*', 'a')").await;
    let attacker = member(&database, "postrider_application").await;
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser
        .run(&format!("CREATE SCHEMA trap AUTHORIZATION {}_postrider_application", database.name()))
        .await;
    let body = "LANGUAGE plpgsql AS $$ BEGIN RAISE 'caught'; END $$";
    for schema in ["trap", "pg_temp"] {
        for table in [
            "queue",
            "endpoints",
            "_limits",
            "_gauge",
            "_store",
            "subscriptions",
            "event_types",
            "archive",
            "dlq",
        ] {
            attacker.run(&format!("CREATE TABLE {schema}.{table} (LIKE pg_class)")).await;
        }
        for function in [
            "_now()",
            "octet_length(bytea)",
            "jsonb_typeof(jsonb)",
            "clock_timestamp()",
            "pg_notify(text, text)",
            "_send(text)",
        ] {
            attacker.run(&format!("CREATE FUNCTION {schema}.{function} RETURNS integer {body}")).await;
        }
        attacker.run(&format!("CREATE FUNCTION {schema}.caught(text, text) RETURNS boolean {body}")).await;
        attacker
            .run(&format!(
                "CREATE OPERATOR {schema}.= (LEFTARG = text, RIGHTARG = text, FUNCTION = {schema}.caught)"
            ))
            .await;
    }
    attacker.run("SET search_path = trap, pg_temp, pg_catalog").await;
    let before = owner.number("SELECT count(*) FROM postrider.queue").await;
    for call in [
        "send('a', '{}')",
        "send_with_options('a', '{}', p_ordering_key => 'k')",
        "send_batch('a', ARRAY['1']::pg_catalog.jsonb[])",
        "publish('e', '{}')",
        "message(2)",
    ] {
        attacker.run(&format!("SELECT postrider.{call}")).await;
    }
    assert_eq!(owner.number("SELECT count(*) FROM postrider.queue").await, before + 4);
    attacker.refuses("SELECT 'a'::pg_catalog.text = 'b'::pg_catalog.text", "P0001", "caught").await;
}

#[tokio::test]
async fn no_role_is_shown_a_secret() {
    let (database, owner) = start().await;
    let config = json!({"url": "https://example.com/", "headers": {"x-token": "hidden-secret"},
        "signing_secrets": ["whsec_aGlkZGVuLXNlY3JldC1oaWRkZW4tc2VjcmV0"]});
    owner.run(&format!("SELECT postrider.create_endpoint('s', 'http', '{config}')")).await;
    for role in ["postrider_admin", "postrider_monitor"] {
        let prompt = member(&database, role).await;
        for sql in [
            "SELECT to_json(s)::text FROM postrider.endpoint_status s",
            "SELECT to_json(l)::text FROM postrider.event_log l",
            "SELECT to_json(h)::text FROM postrider.get_endpoint_health() h",
            "SELECT to_json(m)::text FROM postrider.metrics() m",
        ] {
            let shown = prompt.column(sql).await.join("\n");
            assert!(!shown.contains("hidden") && !shown.contains("whsec_"), "{role}: {sql}: {shown}");
        }
    }
}
