//! Locks that some session holds although nodes or senders need them: it is named, wherever somebody looks.

use std::sync::Arc;

use postrider::store::postgres::{PostgresOptions, PostgresStore};
use postrider::{Operate, State, StoreError};

use super::Postgres;
use super::post::{Post, node_with_files, until};
use super::prompt::Prompt;
use crate::store::world::{World, to};

/// A role with no rights but to connect, at its prompt.
struct Stranger {
    prompt: Prompt,
    /// As it is to be named.
    named: String,
}

impl Stranger {
    async fn of(database: &test_servers::Database) -> Self {
        let role = format!("{}_stranger", database.name());
        let superuser = Prompt::new(database.connect_as_superuser().await);
        superuser.run(&format!("CREATE ROLE {role} LOGIN")).await;
        let prompt = Prompt::new(database.connect_as(&role).await);
        let process = prompt.number("SELECT pg_backend_pid()").await;
        Self { prompt, named: format!("role \"{role}\" (process {process}") }
    }
}

async fn locks_say(owner: &Prompt) -> String {
    owner
        .value("SELECT status || ' ' || details FROM postrider.health_check() WHERE component = 'locks'")
        .await
}

/// While the stranger holds this lock nothing of endpoint `a` is delivered, and it is said because of whom.
async fn is_named(lock: impl AsyncFn(&Prompt) -> String) {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let owner = Prompt::new(post.database.connect().await);
    let stranger = Stranger::of(&post.database).await;
    let lock = lock(&owner).await;
    assert!(locks_say(&owner).await.starts_with("ok"));
    stranger.prompt.run(&format!("SELECT pg_advisory_lock({lock})")).await;

    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(PostgresStore::open(PostgresOptions::new(post.database.url())).await.unwrap());
    let node = node_with_files(store.clone(), "one", folder.path().to_owned()).await;
    let id = post.send("a", "{}").await;
    let names =
        |text: &str| text.contains(&stranger.named.replace('"', "\\\"")) || text.contains(&stranger.named);
    until("a reason", async || {
        // It does other things meanwhile, in other transactions.
        stranger.prompt.run("SELECT 1").await;
        post.store.story(id).await.unwrap().reason.is_some_and(|why| names(&why))
    })
    .await;
    let said = locks_say(&owner).await;
    assert!(said.starts_with("critical") && names(&said) && said.contains("since"), "{said}");
    assert!(store.in_the_way().iter().any(|sentence| names(sentence)), "{:?}", store.in_the_way());

    stranger.prompt.run(&format!("SELECT pg_advisory_unlock({lock})")).await;
    post.until_state(id, State::Completed).await;
    until("nobody to be in the way", async || store.in_the_way().is_empty()).await;
    until("the store to say so", async || locks_say(&owner).await.starts_with("ok")).await;
    node.stop().await;
}

#[tokio::test]
async fn who_holds_the_claims_of_an_endpoint_is_named() {
    is_named(async |owner| {
        format!("1886548337, {}", owner.number("SELECT id FROM postrider.endpoints WHERE name = 'a'").await)
    })
    .await;
}

#[tokio::test]
async fn who_holds_all_claims_is_named() {
    is_named(async |_| "1886548338, 4".to_owned()).await;
}

#[tokio::test]
async fn who_lets_no_message_leave_the_queue_is_named_and_upkeep_does_not_wait_for_it() {
    let world = World::<Postgres>::start().await;
    let stranger = Stranger::of(&world.harness().database).await;
    let mut short = to("a");
    short.expires_at = Some(world.in_seconds(1));
    let id = world.send(short).await;
    world.live(2).await;
    stranger.prompt.run("SELECT pg_advisory_lock(1886548338, 5)").await;
    until("it to be named", async || {
        let refused = postrider::Store::upkeep(world.store(), 10).await;
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
        world.store().in_the_way().iter().any(|sentence| sentence.contains(&stranger.named))
    })
    .await;
    stranger.prompt.run("SELECT pg_advisory_unlock(1886548338, 5)").await;
    postrider::Store::upkeep(world.store(), 10).await.unwrap();
    assert_eq!(world.state(id).await, State::Expired);
}

#[tokio::test]
async fn without_a_node_health_names_who_holds_a_lock_now() {
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let (owner, stranger) = (Prompt::new(post.database.connect().await), Stranger::of(&post.database).await);
    assert!(locks_say(&owner).await.starts_with("ok"));
    stranger.prompt.run("SELECT pg_advisory_lock(1886548338, 4)").await;
    let said = locks_say(&owner).await;
    let named = stranger.named.replace('"', "\\\"");
    assert!(said.starts_with("critical") && said.contains(&named), "{said}");
    stranger.prompt.run("SELECT pg_advisory_unlock(1886548338, 4)").await;
    assert!(locks_say(&owner).await.starts_with("ok"));
}

#[tokio::test]
async fn a_sender_that_waits_in_vain_is_told_for_whom() {
    let world = World::<Postgres>::start().await;
    let app = Prompt::of(&world).await;
    app.run("BEGIN; SELECT postrider.send_with_options('a', '{}', p_ordering_key => 'k')").await;
    let process = app.number("SELECT pg_backend_pid()").await;
    let refused = world.store().send(to("a").ordering_key("k")).await.unwrap_err();
    let named = format!("role \"{}\" (process {process}", world.harness().database.owner());
    assert!(matches!(&refused, StoreError::Unavailable(why) if why.contains(&named)), "{refused}");
    app.run("ROLLBACK").await;
    // The same of a transaction that no session has any more.
    let name = world.harness().database.name();
    app.run("BEGIN; SET LOCAL postrider.notify = off").await;
    app.run("SELECT postrider.send_with_options('a', '{}', p_ordering_key => 'k')").await;
    app.run(&format!("PREPARE TRANSACTION '{name}'")).await;
    let refused = world.store().send(to("a").ordering_key("k")).await.unwrap_err();
    app.run(&format!("ROLLBACK PREPARED '{name}'")).await;
    let named = format!("prepared transaction \"{name}\" of role");
    assert!(matches!(&refused, StoreError::Unavailable(why) if why.contains(&named)), "{refused}");
}

#[tokio::test]
async fn a_message_that_waits_for_a_sender_of_its_key_says_for_whose_transaction() {
    let world = World::<Postgres>::start().await;
    let (app, other) = (Prompt::of(&world).await, Prompt::of(&world).await);
    let send = "SELECT postrider.send_with_options('a', '{}', p_ordering_key => 'k')";
    // With an old snapshot it goes behind its key, and a node looks when the key is free.
    app.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await;
    let id = postrider::MessageId(app.number(send).await);
    app.run("COMMIT").await;
    other.run(&format!("BEGIN; {send}")).await;
    let process = other.number("SELECT pg_backend_pid()").await;
    let why = world.reason(id).await;
    assert!(why.starts_with("behind key \"k\"") && why.contains(&format!("(process {process}")), "{why}");
    for _ in 0..2 {
        until("a look at who holds keys", async || {
            let _ = postrider::Store::upkeep(world.store(), 10).await;
            !world.store().in_the_way().is_empty()
        })
        .await;
    }
    assert_eq!(world.store().in_the_way().len(), 1, "{:?}", world.store().in_the_way());
    let why = world.reason(id).await;
    assert!(why.contains(" since "), "{why}");
    let owner = Prompt::of(&world).await;
    let said = locks_say(&owner).await;
    assert!(said.starts_with("warning") && said.contains(&format!("process {process}")), "{said}");
}
