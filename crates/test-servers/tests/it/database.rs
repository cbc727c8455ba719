use std::sync::atomic::{AtomicU32, Ordering};

use test_servers::Database;

#[tokio::test]
async fn a_database_has_an_ordinary_owner() {
    let database = Database::empty().await;
    let owner = database.connect().await;
    owner
        .batch_execute("CREATE SCHEMA postrider; CREATE TABLE postrider.queue ()")
        .await
        .expect("its own things");
    let rights = "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication FROM pg_roles
                  WHERE rolname = current_user";
    assert!(!owner.query_one(rights, &[]).await.expect("an answer").get::<_, bool>(0));
}

#[tokio::test]
async fn two_databases_do_not_see_each_other() {
    let (one, other) = (Database::empty().await, Database::empty().await);
    one.connect().await.batch_execute("CREATE TABLE letters ()").await.expect("a table");
    let there = other.connect().await.query_one("SELECT to_regclass('letters')::text", &[]).await;
    assert_eq!(there.expect("an answer").get::<_, Option<String>>(0), None);
}

#[tokio::test]
async fn a_recipe_is_prepared_once_and_copied() {
    let prepared = AtomicU32::new(0);
    let recipe = format!("CREATE TABLE letters AS SELECT 7 AS n -- {}", std::process::id());
    for _ in 0..2 {
        let copy = Database::copied(&recipe, async |template| {
            prepared.fetch_add(1, Ordering::SeqCst);
            template.connect().await.batch_execute(&recipe).await.expect("a recipe that works");
        });
        let copy = copy.await;
        let row = copy
            .connect()
            .await
            .query_one("DELETE FROM letters RETURNING n", &[])
            .await
            .expect("its own row");
        assert_eq!(row.get::<_, i32>(0), 7);
    }
    assert_eq!(prepared.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn another_recipe_is_another_template() {
    for n in [1, 2] {
        let recipe = format!("CREATE TABLE letters AS SELECT {n} AS n -- {}", std::process::id());
        let copy = Database::copied(&recipe, async |template| {
            template.connect().await.batch_execute(&recipe).await.expect("a recipe that works");
        });
        let row = copy.await.connect().await.query_one("SELECT n FROM letters", &[]).await.expect("a row");
        assert_eq!(row.get::<_, i32>(0), n);
    }
}

#[tokio::test]
async fn a_database_goes_with_its_value() {
    let watcher = Database::empty().await;
    let database = Database::empty().await;
    let name = database.name().to_owned();
    let _open = database.connect().await;
    drop(database);
    let left = "SELECT count(*) FROM pg_database WHERE datname = $1";
    let left = watcher.connect().await.query_one(left, &[&name]).await.expect("an answer");
    assert_eq!(left.get::<_, i64>(0), 0);
}
