//! On whose search path names are looked up: never on one that a stranger can put functions on.

use std::time::Duration;

use postrider::store::postgres::{PostgresOptions, send_batch_in, send_in};
use postrider::store::{DlqFilter, Figures, Listing, MessageFilter, Redrive};
use postrider::{NewMessage, Operate, PostgresStore};
use serde_json::json;
use test_servers::{Binaries, Database, postgres};

use super::post::{create_endpoint, node_with_files, until, until_empty};
use super::prompt::Prompt;
use super::surface::member;
use crate::engine::receiver::{Answer, Receiver};

/// Open: another role than the owner can call it, or it runs in another session without being called by name (as a
/// trigger, in a view, an index, a default or a constraint, or from a function whose body is already parsed), and the names in it
/// are looked up on the search path of that session. A function with a fixed path is not open, nor is one whose body was parsed
/// when it was made.
const OPEN: &str = "
    SELECT p.oid::regprocedure FROM pg_proc p
    WHERE p.pronamespace = 'postrider'::regnamespace
      AND (p.prosecdef OR p.prorettype IN ('trigger'::regtype, 'event_trigger'::regtype)
           OR EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee <> p.proowner)
           OR EXISTS (SELECT FROM pg_depend d WHERE d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid))
      AND p.prosqlbody IS NULL
      AND NOT coalesce(p.proconfig, '{}') && ARRAY['search_path=postrider, pg_temp', 'search_path=pg_catalog, pg_temp']
    ORDER BY 1";

#[tokio::test]
async fn no_function_that_others_reach_looks_names_up_on_their_path() {
    let database = Database::empty().await;
    PostgresStore::migrate(&database.url()).await.unwrap();
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser.run("SELECT postrider._install_roles()").await;
    assert_eq!(superuser.column(OPEN).await, [""; 0]);
    let writable = "SELECT 1 FROM pg_namespace, aclexplode(nspacl) a
                    WHERE nspname = 'postrider' AND a.privilege_type = 'CREATE' AND a.grantee <> nspowner";
    assert_eq!(superuser.column(writable).await, [""; 0], "nobody else adds to the schema");
}

/// Functions that fit better than the server's own, each with what that one would have said.
const SHADOWS: [(&str, &str, &str); 22] = [
    ("cardinality(bigint[])", "integer", "cardinality($1)"),
    ("cardinality(integer[])", "integer", "cardinality($1)"),
    ("cardinality(text[])", "integer", "cardinality($1)"),
    ("cardinality(bytea[])", "integer", "cardinality($1)"),
    ("cardinality(tid[])", "integer", "cardinality($1)"),
    ("cardinality(jsonb[])", "integer", "cardinality($1)"),
    ("format(text, text)", "text", "format($1, $2)"),
    ("format(text, bigint)", "text", "format($1, $2)"),
    ("format(text, name, name)", "text", "format($1, $2, $3)"),
    ("format(text, text, text)", "text", "format($1, $2, $3)"),
    ("format(text, regprocedure)", "text", "format($1, $2)"),
    ("format(text, regtype)", "text", "format($1, $2)"),
    ("to_jsonb(record)", "jsonb", "to_jsonb($1)"),
    ("to_jsonb(bigint[])", "jsonb", "to_jsonb($1)"),
    ("to_jsonb(public.orders)", "jsonb", "to_jsonb($1)"),
    ("array_to_string(text[], text)", "text", "array_to_string($1, $2)"),
    ("array_position(bigint[], bigint)", "integer", "array_position($1, $2)"),
    ("array_fill(bigint, integer[])", "bigint[]", "array_fill($1, $2)"),
    ("unnest(bigint[])", "SETOF bigint", "unnest($1)"),
    ("unnest(text[])", "SETOF text", "unnest($1)"),
    ("unnest(postrider._destination[])", "SETOF postrider._destination", "unnest($1)"),
    ("concat_ws(text, text, text, text)", "text", "concat_ws($1, $2, $3, $4)"),
];
/// Operators, by their two sides and what they make of them.
const SHADOW_OPERATORS: [(&str, &str, &str, &str); 4] = [
    ("||", "bigint[]", "bigint[]", "bigint[]"),
    ("||", "bigint[]", "bigint", "bigint[]"),
    ("<@", "text[]", "text[]", "boolean"),
    ("||", "text", "bigint", "text"),
];

/// A role that may connect and make functions in `public`, and has used that. Everything that calls one of them moves a
/// sequence, which no rollback takes back.
async fn shadowed(database: &Database) -> Prompt {
    let stranger = format!("{}_stranger", database.name());
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser
        .run(&format!("CREATE ROLE {stranger} LOGIN; GRANT CREATE ON SCHEMA public TO {stranger}"))
        .await;
    // So that it can name a type of ours.
    superuser.run(&format!("GRANT USAGE ON SCHEMA postrider TO {stranger}")).await;
    superuser.run(&format!("GRANT USAGE ON TYPE postrider._destination TO {stranger}")).await;
    let stranger = Prompt::new(database.connect_as(&stranger).await);
    let operators = SHADOW_OPERATORS.iter().enumerate().map(|(n, (name, left, right, result))| {
        let answer = format!("$1 OPERATOR(pg_catalog.{name}) $2");
        (format!("operator_{n}({left}, {right})"), (*result).to_owned(), answer)
    });
    let functions = SHADOWS.iter().map(|(signature, result, answer)| {
        ((*signature).to_owned(), (*result).to_owned(), format!("pg_catalog.{answer}"))
    });
    for (n, (signature, result, answer)) in functions.chain(operators).enumerate() {
        let answer = match result.strip_prefix("SETOF ") {
            Some(_) => format!("RETURN QUERY SELECT {answer}"),
            None => format!("RETURN {answer}"),
        };
        let make = format!(
            "CREATE SEQUENCE public.met_{n}; GRANT USAGE ON SEQUENCE public.met_{n} TO PUBLIC;
             COMMENT ON SEQUENCE public.met_{n} IS '{signature}';
             CREATE FUNCTION public.{signature} RETURNS {result} LANGUAGE plpgsql AS
               $$ BEGIN PERFORM pg_catalog.nextval('public.met_{n}'); {answer}; END $$"
        );
        stranger.run(&make).await;
    }
    for (n, (name, left, right, _)) in SHADOW_OPERATORS.iter().enumerate() {
        let operator = format!(
            "CREATE OPERATOR public.{name} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.operator_{n})"
        );
        stranger.run(&operator).await;
    }
    stranger
}

/// The stranger's functions that ran, as whomever.
async fn met(superuser: &Prompt) -> Vec<String> {
    superuser
        .column(
            "SELECT obj_description(pg_catalog.format('public.%I', sequencename)::regclass) FROM pg_sequences
             WHERE schemaname = 'public' AND sequencename ~ '^met_' AND last_value IS NOT NULL",
        )
        .await
}

#[tokio::test]
async fn a_strangers_functions_are_never_called_on_the_version_of_debian() {
    are_never_called(postgres::shared()).await;
}

#[tokio::test]
async fn a_strangers_functions_are_never_called_on_the_oldest_version() {
    let Some(binaries) = Binaries::downloaded(14) else { return };
    let server = test_servers::Postgres::of(binaries).expect("a server");
    are_never_called(&server.url()).await;
}

async fn are_never_called(server: &str) {
    let database = Database::empty_on(server).await;
    let url = database.url();
    PostgresStore::migrate(&url).await.unwrap();
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser.run("SELECT postrider._install_roles()").await;
    superuser
        .run("CREATE TABLE public.orders (id bigint, total integer); CREATE TABLE public.parcels (id bigint)")
        .await;
    superuser.run("GRANT ALL ON public.orders, public.parcels TO PUBLIC").await;
    let _stranger = shadowed(&database).await;
    superuser.run("SELECT to_jsonb(o) FROM (SELECT ROW(1, 2)) AS o (o), cardinality('{1}'::bigint[])").await;
    assert!(!met(&superuser).await.is_empty(), "who does not look out calls them");
    superuser.run("SELECT setval(pg_catalog.format('public.%I', sequencename)::regclass, 1, false) FROM pg_sequences WHERE schemaname = 'public'").await;

    assert_eq!(PostgresStore::migrate(&url).await.unwrap(), [""; 0]);
    assert_eq!(met(&superuser).await, [""; 0], "migrate");
    a_node_works(&database).await;
    assert_eq!(met(&superuser).await, [""; 0], "a node, and whoever asks the store");
    for role in ["postrider_admin", "postrider_application", "postrider_monitor"] {
        people_work(&member(&database, role).await).await;
        assert_eq!(met(&superuser).await, [""; 0], "{role}");
    }
    people_work(&superuser).await;
    people_work(&Prompt::new(database.connect().await)).await;
    assert_eq!(met(&superuser).await, [""; 0], "a superuser and the owner at their prompts");
}

/// All that a node does by itself, and what commands and the API ask.
async fn a_node_works(database: &Database) {
    let open = async || PostgresStore::open(PostgresOptions::new(database.url())).await.unwrap();
    let (store, receiver) = (open().await, Receiver::start().await);
    for endpoint in ["a", "limited", "other"] {
        let rate = json!({ "rate_limit": { "limit": 100, "interval": "second" }, "max_queue_size": 50 });
        let options = if endpoint == "limited" { rate } else { json!({}) };
        create_endpoint(&store, &receiver, endpoint, options).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let node = node_with_files(open().await.into(), "one", folder.path().to_owned()).await;
    let keyed = |n: usize| NewMessage::new("a", "{}").ordering_key(format!("k{}", n % 3));
    let mut app = database.connect().await;
    for n in 0..6 {
        store.send(keyed(n).idempotency_key(format!("i{n}"))).await.unwrap();
        send_in(&app, &keyed(n)).await.unwrap();
    }
    let transaction = app.transaction().await.unwrap();
    send_batch_in(
        &transaction,
        &(0..80).map(|n| NewMessage::new("a", "{}").ordering_key(format!("many{n}"))).collect::<Vec<_>>(),
    )
    .await
    .unwrap();
    transaction.commit().await.unwrap();
    store
        .send_batch(
            (0..6).map(|n| NewMessage::new("limited", "{}").idempotency_key(format!("{n}"))).collect(),
        )
        .await
        .unwrap();
    let mut brief = NewMessage::new("other", "{}");
    brief.expires_at = Some(jiff::Timestamp::now() + Duration::from_millis(300));
    store.set_endpoint_paused("other", true).await.unwrap();
    let brief = store.send(brief).await.unwrap().id;
    receiver.answer(Answer::status(422));
    let dead = store.send(NewMessage::new("a", "{}").ordering_key("dead")).await.unwrap().id;
    until("a dead letter", async || !store.dlq(DlqFilter::default()).await.unwrap().is_empty()).await;
    receiver.answer(Answer::ok());
    until("upkeep", async || store.story(brief).await.unwrap().finished_at.is_some()).await;
    store.redrive(Redrive::All).await.unwrap();
    until_empty(&store).await;
    store.messages(MessageFilter::default()).await.unwrap();
    store.story(dead).await.unwrap();
    store.dlq_summary().await.unwrap();
    store.figures().await.unwrap();
    store.events(None, 10).await.unwrap();
    store.endpoints(None, 10).await.unwrap();
    store.configure(vec![("max_queue_size".into(), "1000".into())]).await.unwrap();
    let refused = NewMessage::new("a", "{}").ordering_key("x".repeat(1000));
    store.send(refused).await.unwrap_err();
    node.stop().await;
}

/// Whatever a role may do, and whatever it is refused.
async fn people_work(prompt: &Prompt) {
    for sql in [
        "SELECT postrider.send('a', '1')",
        "SELECT postrider.send_with_options('a', '1', p_ordering_key => 'k', p_idempotency_key => 'i')",
        "SELECT postrider.send_with_options('nobody', '1', p_priority => 77::smallint)",
        "SELECT postrider.send_batch('a', ARRAY['1', '2']::jsonb[])",
        r#"SELECT postrider.send_batch_with_options('a', '[{"payload": 1, "ordering_key": "k", "idempotency_key": "j"}]')"#,
        "SELECT postrider.create_event_type('e', p_description => 'e'), postrider.subscribe('e', 'a')",
        "SELECT postrider.publish('e', '{}', p_ordering_key => 'k')",
        "SELECT postrider.capture_rows('public.orders', 'a', ARRAY['insert', 'update'], '{\"ordering_key\": \"id\"}')",
        "SELECT postrider.capture_statements('public.parcels', 'a')",
        "INSERT INTO public.orders VALUES (1, 2)",
        "UPDATE public.orders SET total = 3",
        "INSERT INTO public.parcels VALUES (1), (2)",
        "SELECT postrider.uncapture('public.parcels')",
        "SELECT count(*), count(payload) FROM postrider.messages",
        "SELECT id, state FROM postrider.messages",
        "SELECT * FROM postrider.endpoint_status",
        "SELECT id FROM postrider.queue WHERE ordering_key = 'k'",
        "SELECT postrider.message(1)",
        "SELECT postrider.health_check(), postrider.metrics()",
        "SELECT postrider.dlq_summary()",
        "SELECT postrider.configure('max_queue_size', 'many')",
        "SELECT postrider.configure('max_queue_size', '2000')",
        "INSERT INTO postrider.settings VALUES ('archive', 'maybe')",
        "UPDATE postrider.endpoints SET options = '{\"max_in_flight\": 3}' WHERE name = 'a'",
        "UPDATE postrider.endpoints SET name = 'b' WHERE name = 'a'",
        "UPDATE postrider.queue SET place = 7",
        "UPDATE postrider.dlq SET status = 'redriven'",
        "TRUNCATE postrider.queue",
        "SELECT postrider.redrive_all(), postrider.cleanup_dlq(), postrider.mark_expired_messages()",
        "SELECT postrider.drop_endpoint('a', p_force => true)",
        "SELECT postrider.uncapture('public.orders')",
    ] {
        let _ = prompt.ask(sql).await;
    }
}
