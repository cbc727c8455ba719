//! All that SQL offers, on every version of PostgreSQL that is promised: made by an ordinary owner, used by a
//! member of `postrider_admin`.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::try_join_all;
use postrider::Store;
use postrider::endpoint::EndpointId;
use postrider::store::postgres::{PostgresOptions, PostgresStore};
use postrider::store::{ClaimRequest, NoDirectClaims, Settlement};
use postrider::verdict::Verdict;
use test_servers::{Binaries, Database, postgres};

use super::prompt::{self, Prompt};
use crate::store::world::{Ticket, due, join};

/// Every public function with its arguments and what it returns: the contract.
const FUNCTIONS: &str = include_str!("surface.txt");

/// Where people read of them.
const PAGE: &str = include_str!("../../../../../../docs/sql.md");

const RELATIONS: [&str; 13] = [
    "archive",
    "attempts",
    "dlq",
    "endpoint_status",
    "endpoints",
    "event_log",
    "event_types",
    "messages",
    "nodes",
    "queue",
    "replays",
    "settings",
    "subscriptions",
];

/// What is called, by the contract's names, and what that answers; what begins with `_` is a node's.
const CALLS: &str = include_str!("surface_calls.txt");

/// What goes, at last.
const ENDS: &str = "
unsubscribe(subscription_id => 1) →
drop_event_type(name => 'orders.created') →
drop_endpoint(name => 'a', p_force => true) →
";

#[test]
fn the_documentation_has_every_function_and_relation() {
    for line in FUNCTIONS.lines() {
        assert!(PAGE.contains(&format!("- `{line}`")), "{line}");
    }
    for relation in RELATIONS {
        assert!(PAGE.contains(&format!("`{relation}`")), "{relation}");
    }
}

#[tokio::test]
async fn the_oldest_version_has_the_whole_surface() {
    on_version(14).await;
}

#[tokio::test]
async fn the_version_of_debian_has_the_whole_surface() {
    has_the_whole_surface(postgres::shared()).await;
}

#[tokio::test]
async fn the_newest_version_has_the_whole_surface() {
    on_version(18).await;
}

async fn on_version(version: u32) {
    let Some(binaries) = Binaries::downloaded(version) else { return };
    let server = test_servers::Postgres::of(binaries).expect("a server");
    has_the_whole_surface(&server.url()).await;
}

async fn has_the_whole_surface(server: &str) {
    let database = Database::empty_on(server).await;
    migrates_without_a_superuser(&database).await;
    let owner = Prompt::new(database.connect().await);
    assert_eq!(functions(&owner).await, FUNCTIONS.lines().map(str::to_owned).collect());
    let admin = member(&database, "postrider_admin").await;
    admin.run("CREATE TEMPORARY TABLE orders (total integer)").await;
    every_function_is_called(&owner, &admin).await;
    for relation in RELATIONS {
        let rows = owner.number(&format!("SELECT count(*) FROM postrider.{relation}")).await;
        assert!(rows > 0, "nothing to read in {relation}");
    }
    delivers(&database).await;
    answer(&owner, &admin, ENDS).await;
}

/// Several at once and once again; what an ordinary role may not do is left to somebody else.
async fn migrates_without_a_superuser(database: &Database) {
    let url = database.url();
    let left = try_join_all((0..2).map(|_| PostgresStore::migrate(&url))).await.expect("a schema");
    assert_eq!(PostgresStore::migrate(&url).await.expect("the same schema").len(), left[1].len());
    let superuser = Prompt::new(database.connect_as_superuser().await);
    for statement in &left[0] {
        assert!(statement.starts_with("CREATE ROLE") || statement.starts_with("GRANT"), "{statement}");
        // Roles are the server's, and other tests make them too.
        if let Err(refusal) = superuser.ask(statement).await {
            assert!(refusal.code == "42710" || refusal.code == "23505", "{statement}: {refusal:?}");
        }
    }
    assert_eq!(PostgresStore::migrate(&url).await.expect("the same schema"), [""; 0]);
}

async fn functions(owner: &Prompt) -> BTreeSet<String> {
    let listed = owner.column(
        "SELECT format('%s(%s) → %s', proname, pg_get_function_arguments(oid), pg_get_function_result(oid))
         FROM pg_proc WHERE pronamespace = 'postrider'::regnamespace AND proname !~ '^_'",
    );
    let shortened = |line: String| {
        let line = line.replace("timestamp with time zone", "timestamptz").replace("'::text", "'");
        let types = ["jsonb", "text", "uuid", "timestamptz", "integer"];
        let line =
            types.iter().fold(line, |line, kind| line.replace(&format!(" DEFAULT NULL::{kind}"), " = null"));
        line.replace(" DEFAULT ", " = ")
    };
    listed.await.into_iter().map(shortened).collect()
}

async fn every_function_is_called(owner: &Prompt, admin: &Prompt) {
    let called: Vec<String> = [CALLS, ENDS].into_iter().flat_map(calls).map(|(call, _)| call).collect();
    for function in FUNCTIONS.lines().map(|line| line.split('(').next().unwrap_or_default()) {
        let call = format!("{function}(");
        assert!(called.iter().any(|called| called.trim_start_matches('(').starts_with(&call)), "{function}");
    }
    answer(owner, admin, CALLS).await;
}

/// Each with its answer behind the arrow.
fn calls(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut calls = Vec::new();
    let mut rest = text.as_str();
    while let Some((call, after)) = rest.split_once('→') {
        let (answer, after) = after.split_once('\n').unwrap_or((after, ""));
        calls.push((call.trim().to_owned(), answer.trim().to_owned()));
        rest = after;
    }
    calls
}

async fn answer(owner: &Prompt, admin: &Prompt, text: &str) {
    for (call, expected) in calls(text) {
        let prompt = if call.starts_with('_') { owner } else { admin };
        let sql = match call.strip_prefix('(') {
            Some(row) => format!("SELECT (postrider.{row} LIMIT 1"),
            None => format!("SELECT postrider.{call}"),
        };
        assert_eq!(prompt.value(&sql).await, expected, "{sql}");
    }
}

#[tokio::test]
async fn fast_mode_lasts_for_one_transaction() {
    let (_world, owner) = prompt::start().await;
    owner.run("BEGIN; SELECT postrider.enable_fast_mode(), postrider.send('a', '{}')").await;
    assert_eq!(owner.value("SHOW synchronous_commit").await, "off");
    owner.run("COMMIT").await;
    assert_eq!(owner.value("SHOW synchronous_commit").await, "on");
}

/// A login of its own for every database.
pub(super) async fn member(database: &Database, role: &str) -> Prompt {
    let login = format!("{}_{role}", database.name());
    let superuser = Prompt::new(database.connect_as_superuser().await);
    superuser.run(&format!("CREATE ROLE {login} LOGIN IN ROLE {role}")).await;
    Prompt::new(database.connect_as(&login).await)
}

/// One message goes all the way, as a node takes it.
async fn delivers(database: &Database) {
    let store = PostgresStore::open(PostgresOptions::new(database.url())).await.expect("a store");
    let (node, _arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
    let request = ClaimRequest { node, batch: 1, wants: vec![due(EndpointId(1), 1)], alone: false };
    let claimed = store.claim(request).await.expect("a claim");
    let ticket = Ticket::of(&claimed.claims[0]);
    let Ticket { id, endpoint, fence, .. } = ticket;
    let end = ticket.attempted(store.now(), Verdict::Complete);
    store
        .settle(vec![Settlement { id, endpoint, fence, end, hold_endpoint_until: None }])
        .await
        .expect("a settlement");
    let owner = Prompt::new(database.connect().await);
    let state = format!("SELECT postrider.message(id => {})->>'state'", id.0);
    assert_eq!(owner.value(&state).await, "completed");
}
