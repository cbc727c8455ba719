//! Whatever another program writes into a row of `postrider.queue`, it never keeps the others from being delivered.

use postrider::store::postgres::{PostgresOptions, PostgresStore};
use postrider::store::{
    ClaimRequest, DlqFilter, Figures, Listing, MessageFilter, NoDirectClaims, UNREADABLE,
};
use postrider::{Operate, State, Store};
use serde_json::json;
use std::sync::Arc;
use test_servers::Database;

use super::super::world::{World, due, join, new_endpoint, to};
use super::{Postgres, migrated, overwrite};

#[tokio::test]
async fn a_due_time_without_end_or_beginning_stops_nobody() {
    let mut world = World::<Postgres>::start().await;
    for (time, expected) in
        [("'-infinity'", true), ("'4713-01-01 BC'", true), ("'infinity'", false), ("'294000-01-01'", false)]
    {
        let (strange, whole) = (world.send(to("a").ordering_key("k")).await, world.send(to("a")).await);
        overwrite(&world.harness().database, strange, "due_at", time).await;
        world.store().waiting().await.unwrap();
        world.store().status().await.unwrap();
        world.store().figures().await.unwrap();
        world.story(strange).await;
        let claims = world.claim(world.a, 10).await;
        assert!(claims.iter().any(|claim| claim.id == whole), "{time}");
        assert_eq!(claims.iter().any(|claim| claim.id == strange), expected, "{time}");
        for claim in claims {
            world.retry(claim, 0).await;
        }
        let claims = world.claim(world.a, 10).await;
        for claim in claims {
            world.complete(claim).await;
        }
        if !expected {
            world.store().cancel(strange).await.unwrap();
        }
    }
}

#[tokio::test]
async fn text_that_is_no_utf8_is_set_aside_and_shown() {
    let database = Database::empty().await;
    migrated(&database).await;
    let superuser = database.connect_as_superuser().await;
    // While it is called SQL_ASCII, the server takes any bytes as text.
    let name_encoding = async |encoding: &str| {
        let rename =
            "UPDATE pg_database SET encoding = pg_char_to_encoding($1) WHERE datname = current_database()";
        superuser.execute(rename, &[&encoding]).await.unwrap();
    };
    let store = PostgresStore::open(PostgresOptions::new(database.url())).await.unwrap();
    let endpoint = store.create_endpoint(new_endpoint("a", json!({}))).await.unwrap().id;
    let (node, _arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
    let mut damaged = Vec::new();
    for column in ["content_type", "event_type", "ordering_key", "last_error"] {
        let id = store.send(to("a").ordering_key(column)).await.unwrap().id;
        name_encoding("SQL_ASCII").await;
        overwrite(&database, id, column, r"E'a\xffb'").await;
        name_encoding("UTF8").await;
        damaged.push(id);
    }
    let whole = store.send(to("a")).await.unwrap().id;
    let wants = vec![due(endpoint, 10)];
    let claimed = store.claim(ClaimRequest { node, batch: 1, wants, alone: false }).await.unwrap();
    let ids: Vec<_> = claimed.claims.iter().map(|claim| claim.message.id).collect();
    assert_eq!(ids, [damaged[3], whole], "what a receiver said of it is not read");
    assert_eq!(store.story(damaged[3]).await.unwrap().last_error.as_deref(), Some("a\u{fffd}b"));
    for id in &damaged[..3] {
        assert_eq!(store.story(*id).await.unwrap().state, State::Dead);
    }
    let letters = store.dlq(DlqFilter::default()).await.unwrap();
    assert!(letters.iter().all(|letter| letter.reason == UNREADABLE));
    assert_eq!(letters[0].content_type, "a\u{fffd}b");
    assert_eq!(store.messages(MessageFilter::default()).await.unwrap().items.len(), 5);
}
