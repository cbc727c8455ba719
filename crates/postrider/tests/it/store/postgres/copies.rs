//! A copy of a database is another store: as long as it has the name of the first, everybody who looks is told.

use postrider::store::postgres::PostgresOptions;
use postrider::{PostgresStore, State};
use test_servers::Database;

use super::post::Post;
use super::prompt::Prompt;

/// What is said of a database that it is a copy; empty where it is none.
async fn copied(database: &Database) -> String {
    let prompt = Prompt::new(database.connect().await);
    let identity =
        "SELECT status, details->>'copied' FROM postrider.health_check() WHERE component = 'identity'";
    match &prompt.rows(identity).await[..] {
        [row] if row[0].as_deref() == Some("ok") => row[1].clone().unwrap_or_default(),
        [row] if row[0].as_deref() == Some("warning") => {
            row[1].clone().expect("a warning says what it is about")
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_copy_says_so_and_works_until_it_has_a_name_of_its_own() {
    // Each is a copy of a database that was migrated once.
    let post = Post::open().await;
    post.file_endpoint("a").await;
    let said = copied(&post.database).await;
    assert!(said.contains("is a copy") && said.contains("postrider migrate --new-store-id"), "{said}");
    PostgresStore::migrate(&post.database.url()).await.unwrap();
    assert!(!copied(&post.database).await.is_empty(), "migrating again makes it no other store");
    let node = post.node("one").await;
    let id = post.send("a", "{}").await;
    post.until_state(id, State::Completed).await;
    node.stop().await;
    post.store.renew_name().await.unwrap();
    assert_eq!(copied(&post.database).await, "");
}

#[tokio::test]
async fn where_the_server_does_not_say_which_it_is_a_copy_is_known_by_its_database() {
    let database = Database::empty().await;
    let superuser = Prompt::new(database.connect_as_superuser().await);
    let revoke = "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC";
    superuser.run(revoke).await;
    PostgresStore::migrate(&database.url()).await.unwrap();
    PostgresStore::open(PostgresOptions::new(database.url())).await.unwrap();
    assert_eq!(copied(&database).await, "");
    superuser.run("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC").await;
    assert_eq!(copied(&database).await, "", "what was not known cannot be another");

    let post = Post::open().await;
    Prompt::new(post.database.connect_as_superuser().await).run(revoke).await;
    assert!(copied(&post.database).await.contains("is a copy"));
}
