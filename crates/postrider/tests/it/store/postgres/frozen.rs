//! Nodes that stand still while they have an endpoint's turn to claim: others go on, and the server hangs up on them.

use std::sync::Arc;

use postrider::store::postgres::PostgresOptions;
use postrider::store::{ClaimRequest, NextDue, NoDirectClaims};
use postrider::{NewMessage, Operate, PostgresStore, Store};
use serde_json::json;
use test_servers::Database;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::in_the_way::SOON;
use super::post::{Post, until};
use super::proxy::Network;
use super::{Postgres, connect};
use crate::store::world::{Ticket, World, due, join, to};

#[tokio::test]
async fn who_takes_long_to_claim_holds_up_that_endpoint_and_no_other() {
    let mut world = World::<Postgres>::start().await;
    let b = world.endpoint("b", json!({})).await;
    world.send(to("a")).await;
    let other = world.send(to("b")).await;
    // As a node does that is frozen while the server writes its answer.
    let frozen = connect(&world).await;
    let claiming = format!("BEGIN; SELECT pg_advisory_xact_lock(1886548337, {})", world.a.0);
    frozen.batch_execute(&claiming).await.unwrap();
    let (node, wants) = (world.node, vec![due(world.a, 9), due(b, 9)]);
    let claimed = timeout(SOON, world.ask(node, false, wants)).await.expect("nobody waits that long");
    assert_eq!(claimed.claims.iter().map(|claim| claim.message.id).collect::<Vec<_>>(), [other]);
    assert_eq!(claimed.next[0], (world.a, NextDue::At(world.in_seconds(1))));
    world.complete(Ticket::of(&claimed.claims[0])).await;
    frozen.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.claim_ids().await.len(), 1);
}

#[tokio::test]
async fn the_server_hangs_up_on_a_node_that_takes_no_answer() {
    let post = Post::open().await;
    post.endpoint("big", json!({})).await;
    let big = NewMessage::new("big", format!("\"{}\"", "x".repeat(900_000)));
    post.store.send_batch(vec![big; 40]).await.unwrap();
    let network = Network::before(post.database.port()).await;
    let (owner, name) = (post.database.owner(), post.database.name());
    let url = format!("postgres://{owner}@127.0.0.1:{}/{name}?tcp_user_timeout=2", network.port());
    let store = PostgresStore::open(PostgresOptions::new(&url)).await.unwrap();
    let (node, _arrivals) = join(&store, Arc::new(NoDirectClaims)).await;
    let endpoint = store.endpoint("big").await.unwrap().id;
    // Opens the connections for claims.
    let request = |batch, room| ClaimRequest { node, batch, wants: vec![due(endpoint, room)], alone: false };
    assert_eq!(store.claim(request(1, 1)).await.unwrap().claims.len(), 1);
    network.freeze_answers();
    let claiming = tokio::spawn({
        let request = request(2, 39);
        async move { store.claim(request).await }
    });
    let stuck = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND wait_event = 'ClientWrite'";
    until("a claim whose answer nobody takes", async || post.number(stuck).await == 1).await;
    let turns = "SELECT count(*) FROM pg_locks
                 WHERE locktype = 'advisory' AND classid = 1886548337 AND granted
                   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    until("its end", async || post.number(turns).await == 0).await;
    claiming.abort();
}

/// There the server does not notice it by itself.
#[tokio::test]
async fn a_node_that_takes_no_answer_over_a_unix_socket_is_hung_up_on() {
    let mut world = World::<Postgres>::start().await;
    let big = NewMessage::new("a", format!("\"{}\"", "x".repeat(900_000)));
    world.store().send_batch(vec![big; 4]).await.unwrap();
    let frozen = world.another_node().await;
    let claim = format!(
        "SELECT postrider._claim({}, 1, false, ARRAY[{}], ARRAY[4], ARRAY['due'], '[[]]', ARRAY[null]::smallint[],
           ARRAY[null]::timestamptz[], ARRAY[null]::bigint[])",
        frozen.0, world.a.0
    );
    let _never_read = ask_and_leave(&world.harness().database, &claim).await;
    let (node, wants) = (world.node, vec![due(world.a, 9)]);
    assert!(world.ask(node, false, wants).await.claims.is_empty(), "somebody else claims");
    let mut claimed = 0;
    for _ in 0..60 {
        claimed = world.claim(world.a, 9).await.len();
        if claimed > 0 {
            break;
        }
    }
    assert_eq!(claimed, 4);
}

/// Asks over the server's Unix socket, and takes no answer; once the server is busy with writing it.
async fn ask_and_leave(database: &Database, sql: &str) -> UnixStream {
    let onlooker = database.connect_as_superuser().await;
    let place = "SELECT current_setting('data_directory') || '/.s.PGSQL.' || current_setting('port')";
    let place: String = onlooker.query_one(place, &[]).await.unwrap().get(0);
    let mut stream = UnixStream::connect(place).await.unwrap();
    let (owner, name) = (database.owner(), database.name());
    let hello = format!("\0\u{3}\0\0user\0{owner}\0database\0{name}\0\0");
    stream.write_all(&(hello.len() as u32 + 4).to_be_bytes()).await.unwrap();
    stream.write_all(hello.as_bytes()).await.unwrap();
    let mut welcome = Vec::new();
    // ReadyForQuery, idle.
    while !welcome.ends_with(b"Z\0\0\0\x05I") {
        assert_ne!(stream.read_buf(&mut welcome).await.unwrap(), 0, "the server lets us in");
    }
    stream
        .write_all(&[b"Q", (sql.len() as u32 + 5).to_be_bytes().as_slice(), sql.as_bytes(), b"\0"].concat())
        .await
        .unwrap();
    let stuck = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = $1 AND client_addr IS NULL AND wait_event = 'ClientWrite'";
    until("an answer that nobody takes", async || {
        onlooker.query_one(stuck, &[&name]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    stream
}
