//! The old store after its export: closed to everybody, until somebody takes that back.

use std::io;

use postrider::endpoint::EndpointChange;
use postrider::rusqlite::Connection;
use postrider::store::moving::MoveError;
use postrider::store::sqlite::SqliteOptions;
use postrider::store::{Hello, NoDirectClaims, Redrive};
use postrider::{MessageId, Operate, SqliteStore, State, Store, StoreError};
use std::sync::Arc;

use super::super::sqlite::Sqlite;
use super::super::world::{Harness, World, join, to};
use super::export;

struct Closed {
    sqlite: Sqlite,
    store: SqliteStore,
    pending: MessageId,
    letter: i64,
}

async fn closed() -> Closed {
    let mut world = World::<Sqlite>::start().await;
    let letter = world.send_to_death(to("a")).await.id;
    let pending = world.send(to("a")).await;
    let sqlite = world.die_out();
    let store = sqlite.open().await;
    assert!(store.close_for_export("an export to away.jsonl").await.unwrap());
    Closed { sqlite, store, pending, letter }
}

fn refused<T: std::fmt::Debug>(done: Result<T, StoreError>) {
    let error = done.unwrap_err();
    assert!(matches!(error, StoreError::Conflict(_)), "{error:?}");
    assert!(error.to_string().starts_with("this store was closed by an export to away.jsonl; "), "{error}");
}

#[tokio::test]
async fn nothing_is_sent_to_a_closed_store_or_changed_in_it() {
    let Closed { sqlite, store, pending, letter } = closed().await;
    refused(store.send(to("a")).await);
    refused(store.send_batch(vec![to("a"); 3]).await);
    refused(store.cancel(pending).await);
    refused(store.reschedule(pending, store.now()).await);
    refused(store.redrive(Redrive::One(letter)).await);
    refused(store.discard(letter).await);
    refused(store.alter_endpoint("a", EndpointChange::default()).await);
    refused(store.set_endpoint_paused("a", true).await);
    refused(store.drop_endpoint("a", true).await);
    refused(store.configure(vec![("archive".into(), "off".into())]).await);
    let tool = SqliteStore::open(SqliteOptions::tool(sqlite.path())).unwrap();
    refused(tool.send(to("a")).await);
    let mut app = Connection::open(sqlite.path()).unwrap();
    let transaction = app.transaction().unwrap();
    refused(postrider::store::sqlite::send_in(&transaction, &to("a")));
}

#[tokio::test]
async fn no_node_runs_on_a_closed_store() {
    let Closed { sqlite: _sqlite, store, .. } = closed().await;
    let (arrivals, _inbox) = tokio::sync::mpsc::unbounded_channel();
    let hello = Hello { name: "late".into(), arrivals, direct: Arc::new(NoDirectClaims) };
    let error = store.join(hello).await.unwrap_err();
    assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
    assert!(error.to_string().contains("`postrider export --reopen`"), "{error}");
}

#[tokio::test]
async fn a_closed_store_can_be_looked_at_and_says_what_it_is() {
    let Closed { sqlite: _sqlite, store, pending, .. } = closed().await;
    let reason = store.status().await.unwrap().paused.unwrap();
    assert!(reason.starts_with("this store was closed by an export"), "{reason}");
    let story = store.story(pending).await.unwrap();
    assert_eq!(story.state, State::Pending);
    assert!(story.reason.unwrap().contains("closed by an export"));
}

#[tokio::test]
async fn a_reopened_store_goes_on() {
    let Closed { sqlite: _sqlite, store, pending, letter } = closed().await;
    assert!(store.reopen().await.unwrap());
    assert!(!store.reopen().await.unwrap(), "once is enough");
    store.send(to("a")).await.unwrap();
    store.cancel(pending).await.unwrap();
    store.discard(letter).await.unwrap();
    store.set_endpoint_paused("a", true).await.unwrap();
    store.configure(vec![("archive".into(), "off".into())]).await.unwrap();
    join(&store, Arc::new(NoDirectClaims)).await;
    assert_eq!(store.status().await.unwrap().paused, None);
}

#[tokio::test]
async fn a_closed_store_is_exported_again_with_the_same_content() {
    let Closed { sqlite: _sqlite, store, .. } = closed().await;
    let first = export(&store).await;
    assert!(!store.close_for_export("another export").await.unwrap());
    assert_eq!(export(&store).await, first);
}

#[tokio::test]
async fn only_the_owner_of_the_file_exports_it() {
    let world = World::<Sqlite>::start().await;
    let tool = SqliteStore::open(SqliteOptions::tool(world.harness().path())).unwrap();
    let error = tool.export(io::sink()).await.unwrap_err();
    assert!(matches!(error, MoveError::Store(StoreError::Unusable(_))), "{error:?}");
    tool.close_for_export("nobody").await.unwrap_err();
    let second = SqliteStore::open(SqliteOptions::node(world.harness().path()));
    assert!(matches!(second, Err(StoreError::Unusable(_))), "a node runs on it");
}
