//! What nodes are told, and how they find the database again.

use std::time::Duration;

use postrider::endpoint::EndpointId;
use postrider::store::Arrival;
use postrider::store::postgres::send_in;
use postrider::{Operate, Store};

use super::{Postgres, connect};
use crate::store::world::{World, to};

async fn told(world: &mut World<Postgres>, wanted: impl Fn(&Arrival) -> bool) {
    let told = async { while !wanted(&world.arrivals.recv().await.expect("the store lives")) {} };
    tokio::time::timeout(Duration::from_secs(5), told).await.expect("the node is told");
}

fn pending(endpoint: EndpointId) -> impl Fn(&Arrival) -> bool {
    move |arrival| matches!(arrival, Arrival::Pending(of) if *of == endpoint)
}

fn forget(world: &mut World<Postgres>) {
    while world.arrivals.try_recv().is_ok() {}
}

/// Of the next ten seconds.
async fn take_every_bell(ringer: &postrider::tokio_postgres::Transaction<'_>, endpoint: EndpointId) {
    let take =
        "SELECT pg_advisory_xact_lock(hashint8extended($1, (extract(epoch FROM now()) * 100)::bigint + n))
                FROM generate_series(0, 1000) AS n";
    ringer.execute(take, &[&endpoint.0]).await.unwrap();
}

#[tokio::test]
async fn a_node_is_told_of_what_applications_commit() {
    let mut world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    let a = world.a;
    for _ in 0..3 {
        forget(&mut world);
        send_in(&app, &to("a")).await.unwrap();
        told(&mut world, pending(a)).await;
    }
}

#[tokio::test]
async fn a_sender_that_commits_late_is_noticed_though_another_rang_for_both() {
    let mut world = World::<Postgres>::start().await;
    let (mut one, mut other) = (connect(&world).await, connect(&world).await);
    let a = world.a;
    let (first, second) = (one.transaction().await.unwrap(), other.transaction().await.unwrap());
    take_every_bell(&first, a).await;
    let sent = send_in(&first, &to("a")).await.unwrap().id;
    let late = send_in(&second, &to("a")).await.unwrap().id;
    forget(&mut world);
    first.commit().await.unwrap();
    told(&mut world, pending(a)).await;
    assert_eq!(world.claim_ids().await, [sent]);
    forget(&mut world);
    second.commit().await.unwrap();
    told(&mut world, pending(a)).await;
    assert_eq!(world.claim_ids().await, [late]);
}

#[tokio::test]
async fn a_sender_is_noticed_though_the_one_who_rang_for_it_rolled_back() {
    let mut world = World::<Postgres>::start().await;
    let (mut one, other) = (connect(&world).await, connect(&world).await);
    let a = world.a;
    // A node that has a little to do is no worse at it.
    world.send(to("a")).await;
    world.claim_ids().await;
    forget(&mut world);
    let first = one.transaction().await.unwrap();
    take_every_bell(&first, a).await;
    send_in(&first, &to("a")).await.unwrap();
    let sent = send_in(&other, &to("a")).await.unwrap().id;
    first.rollback().await.unwrap();
    world.store().upkeep(10).await.unwrap();
    told(&mut world, pending(a)).await;
    assert_eq!(world.claim_ids().await, [sent]);
}

#[tokio::test]
async fn a_store_finds_the_database_again_after_its_connections_were_cut() {
    let mut world = World::<Postgres>::start().await;
    let first = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND application_name = 'postrider'";
    world.harness().database.connect_as_superuser().await.execute(cut, &[]).await.unwrap();
    told(&mut world, |arrival| matches!(arrival, Arrival::Outside)).await;
    // Each connection may have to fail once before its end is known.
    for _ in 0..20 {
        if world.store().heartbeat(world.node).await.is_ok() {
            break;
        }
    }
    let second = world.store().send(to("a")).await.expect("the pool has new connections").id;
    let a = world.a;
    told(&mut world, pending(a)).await;
    assert_eq!(world.claim_ids().await, [second]);
    world.complete(ticket).await;
    assert_eq!(world.state(first).await, postrider::State::Completed);
}

/// Rows of the queue that were read without an index, and with one.
async fn read(app: &postrider::tokio_postgres::Client) -> (i64, i64) {
    let read = "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relid = 'postrider.queue'::regclass";
    let row = app.query_one(read, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn plans_made_for_a_short_queue_do_for_a_long_one() {
    let mut world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    app.batch_execute("ALTER TABLE postrider.queue SET (autovacuum_enabled = off)").await.unwrap();
    let deliver = async |world: &mut World<Postgres>, room| {
        for ticket in world.claim(world.a, room).await {
            world.complete(ticket).await;
        }
    };
    // Kept for good after a few times.
    for round in 0..20 {
        world.send(to("a")).await;
        world.send(to("a").ordering_key(format!("k{}", round % 3))).await;
        if round == 5 {
            app.batch_execute("VACUUM ANALYZE postrider.queue").await.unwrap();
        }
        deliver(&mut world, 1).await;
    }
    let many = "SELECT postrider.send_batch('a', array_agg(to_jsonb(n))) FROM generate_series(1, 10000) AS n";
    app.query(many, &[]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let (unindexed, indexed) = read(&app).await;
    for _ in 0..3 {
        deliver(&mut world, 20).await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    deliver(&mut world, 1).await;
    let now = read(&app).await;
    assert!(now.1 > indexed, "the server has counted");
    assert!(now.1 - indexed < 5000, "{} rows were read by an index", now.1 - indexed);
    assert!(now.0 - unindexed < 1000, "{} rows were read without an index", now.0 - unindexed);
}
