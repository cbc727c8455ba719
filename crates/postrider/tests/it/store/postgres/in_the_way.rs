//! What somebody else holds for long, or takes too much of: a node's claims, a key, the server's locks. Everybody else goes on.

use std::time::Duration;

use postrider::tokio_postgres::{self, AsyncMessage, NoTls};
use postrider::{NewMessage, Operate, Sent, State, Store};
use serde_json::json;
use test_servers::StandingClock;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::isolation::until_waiting;
use super::post::{Post, until};
use super::prompt::{self, Prompt};
use super::{Postgres, connect};
use crate::engine::receiver::{Answer, Arrival};
use crate::store::world::{World, short_lived, to};

/// Far less than whoever is in the way would take.
pub(super) const SOON: Duration = Duration::from_secs(10);

async fn locks(owner: &Prompt) -> i64 {
    owner.number("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'").await
}

#[tokio::test]
async fn a_lost_claim_that_somebody_holds_hides_no_other() {
    let mut world = World::<Postgres>::start().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.send(to("a")).await);
    }
    let gone = world.another_node().await;
    world.claim_as(gone, world.a, 2).await;
    let other = world.claim_as(gone, world.a, 1).await[0];
    assert_eq!(world.lost().await.len(), 3);
    let person = connect(&world).await;
    let found = async || {
        let lost = world.store().lost_claims(1).await.unwrap();
        lost.iter().map(|lost| lost.id).collect::<Vec<_>>()
    };
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id <> {} FOR UPDATE", ids[1]);
    person.batch_execute(&hold).await.unwrap();
    assert_eq!(found().await, [ids[1]], "the others' messages are held");
    let hold = format!(
        "ROLLBACK; BEGIN; SELECT FROM postrider._claim_rows WHERE batch <> {} FOR UPDATE",
        other.fence.batch
    );
    person.batch_execute(&hold).await.unwrap();
    assert_eq!(found().await, [other.id], "the others' claim is held");
}

#[tokio::test]
async fn a_node_that_leaves_waits_for_nobody_and_gives_back_what_nobody_holds() {
    let mut world = World::<Postgres>::start().await;
    let mut ids = Vec::new();
    for message in [to("a"), to("a").ordering_key("k"), to("a").ordering_key("l"), to("a")] {
        ids.push(world.send(message).await);
    }
    let other = world.another_node().await;
    world.claim(world.a, 3).await;
    let held = world.claim(world.a, 1).await[0];
    let person = connect(&world).await;
    let hold = format!(
        "BEGIN; SELECT FROM postrider._claim_rows WHERE batch = {} FOR UPDATE;
         SELECT FROM postrider.queue WHERE id = {} FOR UPDATE",
        held.fence.batch, ids[1]
    );
    person.batch_execute(&hold).await.unwrap();
    timeout(SOON, world.store().leave(world.node)).await.expect("a stop has an end").unwrap();
    person.batch_execute("ROLLBACK").await.unwrap();
    world.node = other;
    let back = world.claim(world.a, 9).await;
    assert_eq!(
        back.iter().map(|ticket| (ticket.id, ticket.attempt)).collect::<Vec<_>>(),
        [(ids[0], 1), (ids[2], 1)]
    );
    let mut judged: Vec<_> = world.lost().await.iter().map(|lost| lost.id).collect();
    judged.sort();
    assert_eq!(judged, [ids[1], ids[3]]);
}

#[tokio::test]
async fn nodes_go_on_when_nothing_can_be_settled_for_a_while() {
    let post = Post::open().await;
    post.endpoint("a", json!({})).await;
    let person = post.database.connect().await;
    let node = post.node("one").await;
    person.batch_execute("BEGIN; LOCK TABLE postrider.archive IN SHARE MODE").await.unwrap();
    post.send_many("a", 3000).await;
    let claimed = "SELECT coalesce(sum(cardinality(ids)), 0)::bigint FROM postrider._claims";
    until("as many as there may be", async || post.number(claimed).await >= 1024).await;
    // What may wait to be settled, is being settled, or was in flight and prefetched when that was reached.
    let many = post.number(claimed).await;
    assert!(many <= 1024 + 256 + 1024, "{many} claimed and none settled");
    person.batch_execute("COMMIT").await.unwrap();
    post.until_empty().await;
    assert_eq!(post.receiver.count(), 3000, "nothing was delivered twice");
    node.stop().await;
}

#[tokio::test]
async fn an_open_redrive_stops_no_node() {
    let post = Post::open().await;
    post.endpoint("slow", json!({})).await;
    post.endpoint("fast", json!({})).await;
    let person = post.database.connect().await;
    for sql in [
        "SELECT postrider.send_with_options('slow', '0', p_ordering_key => 'k')",
        "SELECT postrider._bury(id, 1, 'exhausted', 'no'), postrider._departed(1) FROM postrider.queue",
    ] {
        person.batch_execute(sql).await.unwrap();
    }
    let answer = |arrival: &Arrival| if arrival.payload == "1" { Answer::ok().held() } else { Answer::ok() };
    post.receiver.script(answer);
    let node = post.node("one").await;
    let held = post.store.send(NewMessage::new("slow", "1").ordering_key("k")).await.unwrap().id;
    post.receiver.until("the one that is held", |receiver| receiver.count() == 1).await;
    person.batch_execute("BEGIN; SELECT postrider.redrive_endpoint('slow')").await.unwrap();
    post.receiver.release();
    for n in 0..20 {
        let other = post.send("fast", &n.to_string()).await;
        timeout(SOON, post.until_state(other, State::Completed)).await.expect("others go on");
    }
    assert_eq!(post.store.story(held).await.unwrap().state, State::Processing);
    person.batch_execute("COMMIT").await.unwrap();
    post.until_empty().await;
    assert_eq!(post.store.story(held).await.unwrap().state, State::Completed);
    node.stop().await;
}

#[tokio::test]
async fn a_transaction_takes_few_of_the_servers_locks_however_much_it_sends() {
    let (database, owner) = prompt::alone().await;
    for n in 0..40 {
        owner.endpoint(&format!("e{n}"), json!({})).await;
    }
    owner.run("BEGIN").await;
    let keyed =
        "postrider.send_with_options('a', '{}', p_ordering_key => 'k' || n, p_idempotency_key => 'i' || n)";
    owner.run(&format!("SELECT {keyed} FROM generate_series(1, 15000) AS n")).await;
    let many = locks(&owner).await;
    assert!(many < 1300, "{many} locks");
    owner.run("ROLLBACK").await;

    let expiring = "postrider.send_with_options('a', '{}', p_ordering_key => 'k' || n,
                      p_expires_at => postrider._now() + interval '1 second')";
    owner.run(&format!("SELECT {expiring} FROM generate_series(1, 5000) AS n")).await;
    StandingClock::of(&database).advance(SOON);
    owner.run("BEGIN; SELECT postrider.mark_expired_messages()").await;
    assert_eq!(owner.number("SELECT count(*) FROM postrider.queue").await, 0);
    let many = locks(&owner).await;
    assert!(many < 1300, "{many} locks");
    owner.run("COMMIT").await;
    // The rest is a node's, which takes it in steps.
    for _ in 0..10 {
        owner.run("SELECT postrider._advance_stalled_keys(400)").await;
    }
    assert_eq!(owner.number("SELECT count(*) FROM postrider._stalled_keys").await, 0);

    owner.run("BEGIN").await;
    let everywhere = "SELECT postrider.send('e' || e, '{}'), pg_sleep(0.0003)
                      FROM generate_series(1, 40) AS n, generate_series(0, 39) AS e";
    owner.run(everywhere).await;
    let bells = locks(&owner).await;
    assert!(bells < 10, "{bells} bells");
    owner.run("COMMIT").await;
}

#[tokio::test]
async fn every_endpoint_hears_of_a_transaction_that_sends_to_many() {
    let (database, owner) = prompt::alone().await;
    for name in ["b", "c"] {
        owner.endpoint(name, json!({})).await;
    }
    let (client, mut connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    let (heard, mut notifications) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                let _ = heard.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute("LISTEN postrider").await.unwrap();
    owner.run("BEGIN").await;
    for name in ["a", "b", "c", "a"] {
        owner.run(&format!("SELECT postrider.send('{name}', '{{}}')")).await;
    }
    owner.run("COMMIT").await;
    let endpoints = "SELECT id FROM postrider.endpoints WHERE name IN ('a', 'b', 'c') ORDER BY id";
    for id in owner.column(endpoints).await {
        assert_eq!(notifications.recv().await.unwrap(), id);
    }
}

/// Sends under key `k`, which waits for the owner's open transaction to commit.
async fn sent_while_waiting_for(owner: &Prompt, world: &World<Postgres>) -> Sent {
    let onlooker = connect(world).await;
    let commit = async {
        until_waiting(&onlooker, 1).await;
        owner.run("COMMIT").await;
    };
    let (sent, ()) = tokio::join!(world.store().send(to("a").idempotency_key("k")), commit);
    sent.unwrap()
}

/// What was sent under the key of one that is just being expired is a message of its own.
#[tokio::test]
async fn a_sender_waits_for_who_is_expiring_the_holder_of_its_key() {
    let (world, owner) = prompt::start().await;
    let first = world.send(short_lived(world.now()).idempotency_key("k")).await;
    world.advance(11);
    owner.run("BEGIN; SELECT postrider.mark_expired_messages()").await;
    let second = sent_while_waiting_for(&owner, &world).await;
    assert!(!second.duplicate && second.id != first, "{second:?}");
    assert_eq!(world.states(&[first, second.id]).await, [State::Expired, State::Pending]);
}

#[tokio::test]
async fn a_sender_who_waited_for_a_delivery_finds_its_key_reserved() {
    let (mut world, owner) = prompt::start().await;
    world.configure("idempotency_retention", 60).await;
    let first = world.send(short_lived(world.now()).idempotency_key("k")).await;
    world.claim_one().await;
    world.advance(11);
    owner.run(&format!("BEGIN; SELECT postrider._leave({first}, 'completed', 1)")).await;
    let second = sent_while_waiting_for(&owner, &world).await;
    assert!(second.duplicate && second.id == first, "{second:?}");
}

/// A claim that began after the bound was drawn may be committed after one that began later still.
#[tokio::test]
async fn a_bound_never_passes_a_claim_that_is_not_committed_yet() {
    let (database, owner) = prompt::alone().await;
    let other = Prompt::new(database.connect().await);
    owner.run("SELECT nextval('postrider._positions') FROM generate_series(1, 200)").await;
    let bound = owner.number("SELECT nextval('postrider._positions')").await;
    let claim = |batch| {
        format!(
            "SELECT postrider._hold_bound('claims');
             INSERT INTO postrider._claim_rows (node_id, batch, started_at, alone, ids)
             VALUES (1, {batch}, now(), false, ARRAY[{batch}::bigint])"
        )
    };
    other.run(&format!("BEGIN; {}", claim(1))).await;
    owner.run(&claim(2)).await;
    owner
        .run(&format!(
            "CREATE OR REPLACE FUNCTION postrider._next_bound(p_name text) RETURNS bigint LANGUAGE sql
             AS $$ SELECT {bound}::bigint $$"
        ))
        .await;
    owner.run("SELECT postrider._take_claims_along()").await;
    other.run("COMMIT").await;
    assert_eq!(owner.column("SELECT batch FROM postrider._claims ORDER BY batch").await, ["1", "2"]);
}

#[tokio::test]
async fn months_begin_where_they_should_however_a_session_writes_times() {
    let (_database, owner) = prompt::alone().await;
    owner.run("SET TimeZone = 'Asia/Kolkata'; SET DateStyle = 'SQL, DMY'").await;
    owner.run("SELECT postrider.maintain_archive_partitions(7)").await;
    owner.run("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'").await;
    let bounds =
        "SELECT pg_get_expr(c.relpartbound, c.oid) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
                  WHERE i.inhparent = 'postrider.archive'::regclass AND c.relname ~ '[0-9]$'";
    for bound in owner.column(bounds).await {
        assert_eq!(bound.matches("-01 00:00:00+00").count(), 2, "{bound}");
    }
}
