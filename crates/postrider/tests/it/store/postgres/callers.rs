//! Whatever a caller, or the database for all of its callers, has set: our functions do what they do.

use postrider::Operate;
use postrider::store::postgres::{PostgresOptions, PostgresStore};
use test_servers::{Binaries, Database};

use super::Postgres;
use super::post::until;
use super::prompt;
use crate::store::world::World;

#[tokio::test]
async fn whatever_stands_in_our_own_settings_keyed_messages_are_sent() {
    let (_database, owner) = prompt::alone().await;
    for name in ["locks", "rung", "notify"] {
        for garbage in ["x", "", "-7", "99999999999999999999", " 3 ", "1e3", "NaN", "\u{e9}"] {
            owner.run(&format!("SET postrider.{name} = '{garbage}'")).await;
            owner.run("SELECT postrider.send_with_options('a', '1', p_ordering_key => 'k')").await;
            owner.run(r#"SELECT postrider.send_batch_with_options('a', '[{"payload": 1, "ordering_key": "k"}]')"#).await;
        }
        owner.run(&format!("RESET postrider.{name}")).await;
    }
    assert_eq!(owner.number("SELECT count(*) FROM postrider.queue WHERE ordering_key = 'k'").await, 48);
}

#[tokio::test]
async fn a_database_with_garbage_in_our_own_settings_has_its_messages_delivered() {
    let mut world = World::<Postgres>::start().await;
    let superuser = world.harness().database.connect_as_superuser().await;
    let name = world.harness().database.name();
    for setting in ["locks", "rung"] {
        let set = format!("ALTER DATABASE {name} SET postrider.{setting} = 'x'");
        superuser.batch_execute(&set).await.unwrap();
    }
    world.crash().await;
    let [first, second] = world.send_keyed("k", 2).await[..] else { panic!("two") };
    for expected in [first, second] {
        let ticket = world.claim_one().await;
        assert_eq!(ticket.id, expected);
        world.complete(ticket).await;
    }
}

/// Backslashes in plain strings mean something else there.
#[tokio::test]
async fn a_session_with_other_strings_sends_and_configures_as_any_other() {
    let (_database, owner) = prompt::alone().await;
    owner.run("SET standard_conforming_strings = off; SET escape_string_warning = on").await;
    owner.run("SELECT postrider.configure('idempotency_retention', '60')").await;
    owner.refuses("SELECT postrider.configure('max_queue_size', 'many')", "22023", "max_queue_size").await;
    let send = "SELECT postrider.send_with_options('a', '{}', p_idempotency_key => 'u001f', p_ordering_key => '007f')";
    let sent = owner.number(send).await;
    assert_eq!(owner.number(send).await, sent);
    let control = "SELECT postrider.send_with_options('a', '{}', p_ordering_key => E'a\\tb')";
    owner.refuses(control, "22023", "control characters").await;
    owner
        .run("SELECT postrider.create_endpoint('b', 'http', '{\"url\": \"https://example.com/a.b\"}')")
        .await;
    owner
        .run("SELECT postrider.create_event_type('orders.created'), postrider.subscribe('orders.*', 'a')")
        .await;
    assert_eq!(owner.number("SELECT postrider.publish('orders.created', '{}')").await, 1);
    let state = format!("SELECT postrider.message({sent})->>'reason' IS NOT NULL");
    assert_eq!(owner.value(&state).await, "t");
}

#[tokio::test]
async fn no_function_has_a_string_that_depends_on_the_callers_settings() {
    let (_database, owner) = prompt::alone().await;
    let sources = "SELECT p.oid::regprocedure, p.prosrc FROM pg_proc p
                   WHERE p.pronamespace = 'postrider'::regnamespace AND p.prosqlbody IS NULL";
    for row in owner.rows(sources).await {
        let (name, source) = (row[0].as_deref().unwrap_or_default(), row[1].as_deref().unwrap_or_default());
        if let Some(string) = plain_strings(source).into_iter().find(|string| string.contains('\\')) {
            panic!("{name}: '{string}' is to be E'…' with two backslashes for one");
        }
    }
}

/// What stands between quotes, but for `E'…'`.
fn plain_strings(source: &str) -> Vec<String> {
    let code = source.lines().map(|line| match line.find("--") {
        Some(at) if line[..at].matches('\'').count() % 2 == 0 => &line[..at],
        _ => line,
    });
    let code = code.collect::<Vec<_>>().join("\n");
    let parts: Vec<&str> = code.split('\'').collect();
    let strings = (1..parts.len()).step_by(2).filter(|n| !parts[n - 1].ends_with('E'));
    strings.map(|n| parts[n].to_owned()).collect()
}

/// Of a whole transaction, however busy it is: a patience for applications, from version 17 on.
#[tokio::test]
async fn a_short_transaction_timeout_of_the_database_is_not_for_us() {
    let Some(binaries) = Binaries::downloaded(18) else { return };
    let server = test_servers::Postgres::of(binaries).expect("a server");
    let database = Database::empty_on(&server.url()).await;
    PostgresStore::migrate(&database.url()).await.unwrap();
    let superuser = database.connect_as_superuser().await;
    let name = database.name();
    superuser
        .batch_execute(&format!("ALTER DATABASE {name} SET transaction_timeout = '100ms'"))
        .await
        .unwrap();
    let store = PostgresStore::open(PostgresOptions::new(database.url())).await.unwrap();
    superuser
        .batch_execute("BEGIN; SET LOCAL transaction_timeout = 0; SELECT FROM postrider._store FOR UPDATE")
        .await
        .unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
                   AND clock_timestamp() - xact_start > interval '300 milliseconds'";
    let url = database.url();
    let (changed, migrated, _) = tokio::join!(
        store.configure(vec![("max_queue_size".into(), "1000".into())]),
        PostgresStore::migrate(&url),
        async {
            let looker = database.connect_as_superuser().await;
            let both =
                async || looker.query_one(waiting, &[]).await.is_ok_and(|row| row.get::<_, i64>(0) == 2);
            looker.batch_execute("SET transaction_timeout = 0").await.unwrap();
            until("two to wait longer than that", both).await;
            superuser.batch_execute("COMMIT").await.unwrap();
        }
    );
    changed.unwrap();
    migrated.unwrap();
}
