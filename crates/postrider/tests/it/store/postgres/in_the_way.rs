//! What somebody else holds for long, or takes too much of: an endpoint's turn to claim, a message that is to be settled,
//! the server's locks. Everybody else goes on.

use std::sync::Arc;
use std::time::Duration;

use postrider::message::LostClaim;
use postrider::store::postgres::PostgresOptions;
use postrider::store::{
    AttemptOutcome, AttemptRecord, ClaimRequest, Effect, End, NextDue, NoDirectClaims, Settlement,
};
use postrider::tokio_postgres::{self, AsyncMessage, NoTls};
use postrider::verdict::Verdict;
use postrider::{NewMessage, Operate, PostgresStore, State, Store};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::isolation::until_waiting;
use super::post::{Post, until};
use super::prompt::{self, Prompt};
use super::proxy::Network;
use super::{Postgres, connect};
use crate::engine::receiver::{Answer, Arrival};
use crate::store::world::{Harness, Ticket, World, due, join, retry_at, short_lived, to};

/// Far less than whoever is in the way would take.
const SOON: Duration = Duration::from_secs(10);

fn delivered(world: &World<Postgres>, ticket: Ticket) -> Settlement {
    let Ticket { id, endpoint, fence, .. } = ticket;
    let end = ticket.attempted(world.now(), Verdict::Complete);
    Settlement { id, endpoint, fence, end, hold_endpoint_until: None }
}

async fn locks(owner: &Prompt) -> i64 {
    owner.number("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'").await
}

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

#[tokio::test]
async fn what_an_open_transaction_holds_is_settled_later_and_everything_else_at_once() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..3 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 3).await;
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {} FOR UPDATE", tickets[1].id);
    person.batch_execute(&hold).await.unwrap();
    let settlements = tickets.iter().map(|ticket| delivered(&world, *ticket)).collect();
    let settled = timeout(SOON, world.store().settle(settlements)).await.expect("a node waits for nobody");
    let effects: Vec<Effect> = settled.unwrap().iter().map(|settled| settled.effect).collect();
    let completed = Effect::Applied(State::Completed);
    assert_eq!(effects, [completed, Effect::Later, completed]);
    assert_eq!(world.state(tickets[1].id).await, State::Processing);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.complete(tickets[1]).await.effect, completed);
    assert_eq!(world.queued().await, 0);
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
    let (_database, owner) = prompt::alone().await;
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

/// What was sent under the key of one that is just being expired is a message of its own.
#[tokio::test]
async fn a_sender_waits_for_who_is_expiring_the_holder_of_its_key() {
    let (world, owner) = prompt::start().await;
    let first = world.send(short_lived(world.now()).idempotency_key("k")).await;
    world.advance(11);
    owner.run("BEGIN; SELECT postrider.mark_expired_messages()").await;
    let second = world.store().send(to("a").idempotency_key("k"));
    let onlooker = connect(&world).await;
    let commit = async {
        until_waiting(&onlooker, 1).await;
        owner.run("COMMIT").await;
    };
    let (second, ()) = tokio::join!(second, commit);
    let second = second.unwrap();
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
    let second = world.store().send(to("a").idempotency_key("k"));
    let onlooker = connect(&world).await;
    let commit = async {
        until_waiting(&onlooker, 1).await;
        owner.run("COMMIT").await;
    };
    let (second, ()) = tokio::join!(second, commit);
    let second = second.unwrap();
    assert!(second.duplicate && second.id == first, "{second:?}");
}

/// What is left of a claim is written down in the same breath as one of its messages goes back.
#[tokio::test]
async fn a_late_delivery_is_noted_though_its_claim_was_shortened_when_it_was_lost() {
    let mut world = World::<Postgres>::start().await;
    let keyed = world.send(to("a").ordering_key("k")).await;
    for _ in 0..7 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 8).await;
    let late = tickets[0];
    assert_eq!(late.id, keyed);
    let mut settlements = vec![Settlement {
        end: late.attempted(world.now(), retry_at(world.now())),
        ..delivered(&world, late)
    }];
    settlements.extend(tickets[1..7].iter().map(|ticket| delivered(&world, *ticket)));
    world.store().settle(settlements).await.unwrap();
    let current = world.claim(world.a, 8).await;
    assert_eq!(current.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [keyed]);
    assert_eq!(world.complete(late).await.effect, Effect::Noted);
    assert_eq!(world.complete(current[0]).await.effect, Effect::Applied(State::Completed));
}

#[tokio::test]
async fn a_lost_claim_that_is_judged_later_leaves_the_others_of_its_node_to_be_judged() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..3 {
        world.send(to("a")).await;
    }
    let gone = world.another_node().await;
    world.claim_as(gone, world.a, 3).await;
    let lost = world.lost().await;
    assert_eq!(lost.len(), 3);
    // Another process, that never had them.
    let judge = world.harness().open().await;
    let judged = async || {
        let verdict = retry_at(world.now());
        let LostClaim { id, endpoint, fence, attempt, .. } = lost[0];
        let ticket = Ticket { id, endpoint, fence, attempt };
        let record = AttemptRecord { outcome: AttemptOutcome::Lost, ..ticket.record(world.now(), &verdict) };
        let end = End::Attempted { verdict, record };
        judge.settle(vec![Settlement { end, ..delivered(&world, ticket) }]).await.unwrap()[0].effect
    };
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {} FOR UPDATE", lost[0].id);
    person.batch_execute(&hold).await.unwrap();
    assert_eq!(judged().await, Effect::Later);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(judged().await, Effect::Applied(State::Pending));
    let left = world.store().lost_claims(10).await.unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
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
