//! The schema: made by an ordinary role, once, whoever comes first.

use futures_util::future::join_all;
use postrider::error::StoreError;
use postrider::store::Operate;
use postrider::store::postgres::{PostgresOptions, PostgresStore};
use test_servers::{Address, Database};

fn migrating(database: &Database) -> PostgresOptions {
    PostgresOptions { migrate: true, ..PostgresOptions::new(database.url()) }
}

async fn refused(options: PostgresOptions) -> String {
    match PostgresStore::open(options).await {
        Err(StoreError::Unusable(why)) => why,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was opened"),
    }
}

#[tokio::test]
async fn migrating_twice_and_at_once_makes_one_store() {
    let database = Database::empty().await;
    let race = join_all((0..4).map(|_| PostgresStore::open(migrating(&database)))).await;
    let first = race[0].as_ref().unwrap().status().await.unwrap();
    for store in &race {
        assert_eq!(store.as_ref().unwrap().status().await.unwrap(), first);
    }
    let again = PostgresStore::open(migrating(&database)).await.unwrap();
    assert_eq!(again.status().await.unwrap(), first, "it keeps its name");
}

#[tokio::test]
async fn a_database_without_the_schema_is_refused_with_what_to_do() {
    let database = Database::empty().await;
    let why = refused(PostgresOptions::new(database.url())).await;
    assert!(why.contains("no schema `postrider`") && why.contains("postrider migrate"), "{why}");
}

#[tokio::test]
async fn a_node_runs_on_its_own_version_and_the_next_and_no_other() {
    let database = Database::empty().await;
    let store = PostgresStore::open(migrating(&database)).await.unwrap();
    let version = store.status().await.unwrap().schema_version as i32;
    let owner = database.connect().await;
    let set = "UPDATE postrider._store SET schema_version = $1";
    owner.execute(set, &[&(version - 1)]).await.unwrap();
    let why = refused(PostgresOptions::new(database.url())).await;
    assert!(why.contains("run `postrider migrate`, or start with --migrate"), "{why}");
    owner.execute(set, &[&(version + 1)]).await.unwrap();
    PostgresStore::open(PostgresOptions::new(database.url())).await.expect("the next one");
    PostgresStore::open(migrating(&database)).await.expect("which is never marked as an older one");
    owner.execute(set, &[&(version + 2)]).await.unwrap();
    let why = refused(PostgresOptions::new(database.url())).await;
    assert!(why.contains("newer postrider"), "{why}");
}

#[tokio::test]
async fn a_server_that_is_not_there_and_an_address_that_is_none_are_told_apart() {
    let nobody = PostgresStore::open(PostgresOptions::new("postgres://127.0.0.1:1/x")).await;
    assert!(matches!(nobody, Err(StoreError::Unavailable(_))));
    let why = refused(PostgresOptions::new("postgres://127.0.0.1/x?sslmode=perhaps")).await;
    assert!(why.contains("sslmode"), "{why}");
}

/// Of another encoding than every text of ours has.
async fn of_encoding(beside: &Address, encoding: &str) -> (String, String) {
    let name = format!("{}_{}", beside.name(), encoding.to_lowercase());
    let create = format!(
        "CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C' OWNER {}",
        beside.owner()
    );
    beside.connect_as_superuser().await.batch_execute(&create).await.unwrap();
    let url = format!("postgres://{}@127.0.0.1:{}/{name}", beside.owner(), beside.port());
    (name, url)
}

#[tokio::test]
async fn a_database_of_another_encoding_is_refused_with_how_to_make_one() {
    let database = Database::empty().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let (name, url) = of_encoding(&database, encoding).await;
        let migrating = PostgresOptions { migrate: true, ..PostgresOptions::new(&url) };
        let by_command = PostgresStore::migrate(&url).await.unwrap_err().to_string();
        for why in [refused(migrating).await, by_command] {
            let says = [encoding, "UTF8", "CREATE DATABASE", "ENCODING 'UTF8' TEMPLATE template0"];
            assert!(says.iter().all(|word| why.contains(word)), "{why}");
        }
        assert!(!PostgresStore::is_installed(&url).await.unwrap(), "nothing was made");
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        database.connect_as_superuser().await.batch_execute(&drop).await.unwrap();
    }
}
