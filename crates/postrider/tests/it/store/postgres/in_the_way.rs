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
use postrider::{NewMessage, Operate, PostgresStore, Sent, State, Store};
use serde_json::json;
use test_servers::{Database, StandingClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::isolation::until_waiting;
use super::post::{Post, until};
use super::prompt::{self, Prompt};
use super::proxy::Network;
use super::{Postgres, connect};
use crate::engine::receiver::{Answer, Arrival};
use crate::store::world::{DEAD, Harness, Ticket, World, due, join, retry_at, short_lived, to};

/// Far less than whoever is in the way would take.
const SOON: Duration = Duration::from_secs(10);

fn delivered(world: &World<Postgres>, ticket: Ticket) -> Settlement {
    let Ticket { id, endpoint, fence, .. } = ticket;
    let end = ticket.attempted(world.now(), Verdict::Complete);
    Settlement { id, endpoint, fence, end, hold_endpoint_until: None }
}

const COMPLETED: Effect = Effect::Applied(State::Completed);

async fn effects(world: &World<Postgres>, settlements: Vec<Settlement>) -> Vec<Effect> {
    let settled = timeout(SOON, world.store().settle(settlements)).await.expect("a node waits for nobody");
    settled.unwrap().iter().map(|settled| settled.effect).collect()
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
    assert_eq!(effects(&world, settlements).await, [COMPLETED, Effect::Later, COMPLETED]);
    assert_eq!(world.state(tickets[1].id).await, State::Processing);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(world.complete(tickets[1]).await.effect, COMPLETED);
    assert_eq!(world.queued().await, 0);
}

#[tokio::test]
async fn however_many_of_a_claim_somebody_holds_the_others_are_settled() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..8 {
        world.send(to("a")).await;
    }
    let (together, alone) = (world.claim(world.a, 7).await, world.claim(world.a, 1).await);
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id <= {} FOR UPDATE", together[4].id);
    person.batch_execute(&hold).await.unwrap();
    let all = || together.iter().chain(&alone).map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, all()).await, [[Effect::Later; 5].as_slice(), &[COMPLETED; 3]].concat());
    let claims = "SELECT count(*) FROM postrider._claims";
    let claims: i64 = connect(&world).await.query_one(claims, &[]).await.unwrap().get(0);
    assert_eq!(claims, 1, "the other one is over");
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(effects(&world, all()).await, [[COMPLETED; 5].as_slice(), &[Effect::Fenced; 3]].concat());
}

#[tokio::test]
async fn beside_what_somebody_holds_the_next_of_a_key_is_claimed_in_the_same_breath() {
    let mut world = World::<Postgres>::start().await;
    let held = world.send(to("a")).await;
    let keyed = world.send_keyed("k", 2).await;
    let tickets = world.claim(world.a, 9).await;
    assert_eq!(tickets.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [held, keyed[0]]);
    let person = connect(&world).await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {held} FOR UPDATE");
    person.batch_execute(&hold).await.unwrap();
    // From now on it is known that somebody is in the way.
    assert_eq!(effects(&world, vec![delivered(&world, tickets[0])]).await, [Effect::Later]);
    let both = tickets.iter().map(|ticket| delivered(&world, *ticket)).collect();
    let request = ClaimRequest { node: world.node, batch: 99, wants: vec![due(world.a, 9)], alone: false };
    let (settled, claimed) = tokio::join!(effects(&world, both), world.store().claim(request));
    assert_eq!(settled, [Effect::Later, COMPLETED]);
    let claimed: Vec<_> = claimed.unwrap().claims.iter().map(|claim| claim.message.id).collect();
    assert_eq!(claimed, keyed[1..]);
}

#[tokio::test]
async fn what_was_claimed_with_something_that_somebody_takes_back_is_settled_later() {
    let mut world = World::<Postgres>::start().await;
    let b = world.endpoint("b", json!({})).await;
    for name in ["a", "b", "b"] {
        world.send(to(name)).await;
    }
    let node = world.node;
    let mixed = world.ask(node, false, vec![due(world.a, 1), due(b, 1)]).await.claims;
    let apart = world.claim(b, 1).await[0];
    let person = connect(&world).await;
    person.batch_execute("BEGIN; SELECT postrider.drop_endpoint('a', true)").await.unwrap();
    let tickets = [Ticket::of(&mixed[0]), Ticket::of(&mixed[1]), apart];
    let all = || tickets.iter().map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, all()).await, [Effect::Later, Effect::Later, COMPLETED]);
    person.batch_execute("COMMIT").await.unwrap();
    assert_eq!(effects(&world, all()).await, [Effect::Fenced, COMPLETED, Effect::Fenced]);
    assert_eq!(world.queued().await, 0);
}

/// As `CREATE INDEX` on the dead letters does.
#[tokio::test]
async fn what_needs_a_table_that_somebody_has_locked_does_not_hold_up_deliveries() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..3 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 3).await;
    let person = connect(&world).await;
    person.batch_execute("BEGIN; LOCK TABLE postrider.dlq IN SHARE MODE").await.unwrap();
    let all = || {
        let dead =
            Settlement { end: tickets[0].attempted(world.now(), DEAD), ..delivered(&world, tickets[0]) };
        vec![dead, delivered(&world, tickets[1]), delivered(&world, tickets[2])]
    };
    assert_eq!(effects(&world, all()).await, [Effect::Later, COMPLETED, COMPLETED]);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(effects(&world, all()).await[0], Effect::Applied(State::Dead));
}

/// A claim that was cut meanwhile, and of which only others are left.
#[tokio::test]
async fn a_late_delivery_of_a_claim_that_somebody_holds_keeps_nothing_else_from_being_settled() {
    let mut world = World::<Postgres>::start().await;
    let c = world.endpoint("c", json!({})).await;
    for name in ["a", "a", "a", "a", "c", "a"] {
        world.send(to(name)).await;
    }
    let node = world.node;
    let claimed = world.ask(node, false, vec![due(world.a, 4), due(c, 1)]).await.claims;
    let tickets: Vec<Ticket> = claimed.iter().map(Ticket::of).collect();
    let free = world.claim(world.a, 1).await[0];
    let other = world.harness().open().await;
    let lost = Settlement {
        end: tickets[0].attempted(world.now(), retry_at(world.in_seconds(60))),
        ..delivered(&world, tickets[0])
    };
    other.settle(vec![lost]).await.unwrap();
    let person = connect(&world).await;
    person.batch_execute("BEGIN; SELECT postrider.drop_endpoint('c', true)").await.unwrap();
    let held =
        vec![delivered(&world, tickets[1]), delivered(&world, tickets[2]), delivered(&world, tickets[3])];
    assert_eq!(effects(&world, held).await, [Effect::Later; 3]);
    // Nothing but what was cut out of that claim, whose row has nothing of it any more.
    let late = vec![delivered(&world, tickets[0]), delivered(&world, free)];
    assert_eq!(effects(&world, late).await, [Effect::Later, COMPLETED]);
}

#[tokio::test]
async fn what_the_server_cannot_take_keeps_nothing_else_from_being_settled() {
    let mut world = World::<Postgres>::start().await;
    for _ in 0..40 {
        world.send(to("a")).await;
    }
    let tickets = world.claim(world.a, 40).await;
    let unfit = [tickets[0], tickets[1], tickets[2], tickets[20], tickets[39]].map(|ticket| ticket.id);
    let owner = connect(&world).await;
    let refuse = format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON postrider.archive FOR EACH ROW
         WHEN (NEW.id IN ({})) EXECUTE FUNCTION refuse()",
        unfit.map(|id| id.0.to_string()).join(", ")
    );
    owner.batch_execute(&refuse).await.unwrap();
    let mut left = tickets.clone();
    // A slow machine needs more than one turn, as a node takes them.
    for _ in 0..20 {
        let settlements = left.iter().map(|ticket| delivered(&world, *ticket)).collect();
        let mut effects = effects(&world, settlements).await.into_iter();
        left.retain(|_| effects.next() == Some(Effect::Later));
        if left.len() == unfit.len() {
            break;
        }
    }
    assert_eq!(left.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), unfit);
    owner.batch_execute("DROP TRIGGER refuse ON postrider.archive").await.unwrap();
    let settlements = left.iter().map(|ticket| delivered(&world, *ticket)).collect();
    assert_eq!(effects(&world, settlements).await, [COMPLETED; 5]);
    let claims = owner.query_one("SELECT count(*) FROM postrider._claims", &[]).await.unwrap();
    assert_eq!(claims.get::<_, i64>(0), 0);
}

/// Whatever patience the database has with its applications.
#[tokio::test]
async fn a_node_has_its_own_patience() {
    let mut world = World::<Postgres>::start().await;
    let database = &world.harness().database;
    let owner = database.connect().await;
    for setting in ["statement_timeout = '100ms'", "lock_timeout = '1ms'"] {
        let set = format!("ALTER DATABASE {} SET {setting}", database.name());
        owner.batch_execute(&set).await.unwrap();
    }
    world.crash().await;
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    let hold = format!("BEGIN; SELECT FROM postrider.queue WHERE id = {id} FOR UPDATE");
    owner.batch_execute(&hold).await.unwrap();
    assert_eq!(effects(&world, vec![delivered(&world, ticket)]).await, [Effect::Later]);
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
    // What may wait to be settled, is being settled, or was in flight and in stock when that was reached.
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
