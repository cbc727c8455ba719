//! Claims and departures beside a transaction that stays open for long: PostgreSQL forgets nothing meanwhile.

use std::collections::HashSet;

use postrider::message::NodeId;
use postrider::store::Effect;
use postrider::tokio_postgres::{Client, IsolationLevel, Transaction};
use postrider::{MessageId, Operate, State, Store};

use super::{Postgres, connect};
use crate::store::world::{Ticket, World, to};

async fn with_old_snapshot(app: &mut Client) -> Transaction<'_> {
    let report =
        app.build_transaction().isolation_level(IsolationLevel::RepeatableRead).start().await.unwrap();
    report.query("SELECT FROM postrider.queue", &[]).await.unwrap();
    report
}

/// Claims and delivers one message after the other, while a node looks after the store as it does every second.
async fn deliver(world: &mut World<Postgres>, count: usize) {
    world.store().send_batch(vec![to("a"); count]).await.unwrap();
    for n in 1..=count {
        let claims = world.claim(world.a, 1).await;
        assert_eq!(world.complete(claims[0]).await.effect, Effect::Applied(State::Completed));
        if n % 100 == 0 {
            world.store().upkeep(10).await.unwrap();
        }
    }
}

/// How many pages a query touches, in a session like that of claims.
async fn pages(app: &Client, query: &str) -> i64 {
    app.batch_execute("SET enable_seqscan = off; SET enable_bitmapscan = off").await.unwrap();
    plain_pages(app, query).await
}

/// How many pages a query touches.
async fn plain_pages(app: &Client, query: &str) -> i64 {
    // The first time also reads the catalog.
    app.query(query, &[]).await.unwrap();
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}");
    let plan: serde_json::Value = app.query_one(&explain, &[]).await.unwrap().get(0);
    let touched = |kind: &str| plan[0]["Plan"][kind].as_i64().expect("a number of pages");
    touched("Shared Hit Blocks") + touched("Shared Read Blocks")
}

async fn departed(app: &Client) -> i64 {
    let departed = "SELECT sum(departed)::bigint FROM postrider._departures";
    app.query_one(departed, &[]).await.unwrap().get(0)
}

async fn claimed(app: &Client) -> HashSet<MessageId> {
    let claimed: Vec<i64> = app.query_one("SELECT postrider._claimed_ids()", &[]).await.unwrap().get(0);
    claimed.into_iter().map(MessageId).collect()
}

#[tokio::test]
async fn a_claim_reads_as_little_however_many_were_settled_beside_an_old_snapshot() {
    let mut world = World::<Postgres>::start().await;
    let (mut old, app) = (connect(&world).await, connect(&world).await);
    let report = with_old_snapshot(&mut old).await;
    deliver(&mut world, 300).await;
    let claims = "SELECT postrider._claimed_ids()";
    let departures = "SELECT sum(departed) FROM postrider._departures";
    let before = (pages(&app, claims).await, pages(&app, departures).await);
    deliver(&mut world, 1200).await;
    let after = (pages(&app, claims).await, pages(&app, departures).await);
    assert!(after.0 <= before.0 + 2 && after.1 <= before.1 + 2, "{before:?} pages became {after:?}");
    assert_eq!(departed(&app).await, 1500);
    report.commit().await.unwrap();
}

#[tokio::test]
async fn a_node_that_looks_after_its_claims_reads_as_little_beside_an_old_snapshot() {
    let mut world = World::<Postgres>::start().await;
    let (mut old, app) = (connect(&world).await, connect(&world).await);
    let report = with_old_snapshot(&mut old).await;
    let looks = [
        "SELECT FROM postrider._lost_claims(10)",
        "SELECT FROM postrider._current_claims() WHERE node_id = 1",
    ];
    deliver(&mut world, 300).await;
    let before = [plain_pages(&app, looks[0]).await, plain_pages(&app, looks[1]).await];
    deliver(&mut world, 1200).await;
    let after = [plain_pages(&app, looks[0]).await, plain_pages(&app, looks[1]).await];
    assert!(after[0] <= before[0] + 4 && after[1] <= before[1] + 2, "{before:?} pages became {after:?}");
    report.commit().await.unwrap();
}

#[tokio::test]
async fn a_claim_that_lasts_stays_claimed_while_others_come_and_go() {
    let mut world = World::<Postgres>::start().await;
    let app = connect(&world).await;
    let (slow, lost) = (world.send(to("a")).await, world.send(to("a")).await);
    let silent = world.another_node().await;
    let slow_ticket = world.claim(world.a, 1).await[0];
    assert_eq!(world.claim_as(silent, world.a, 1).await[0].id, lost);
    deliver(&mut world, 300).await;
    let bound = "SELECT max(position) FROM postrider._bounds WHERE name = 'claims'";
    assert!(app.query_one(bound, &[]).await.unwrap().get::<_, i64>(0) > 300, "the bound moved");
    assert_eq!(world.claim_ids().await, []);
    assert_eq!(world.states(&[slow, lost]).await, [State::Processing, State::Processing]);
    let told = world.lost().await;
    assert_eq!(told.iter().map(|claim| claim.id).collect::<Vec<_>>(), [lost]);
    assert_eq!(world.lose(&told[0]).await.effect, Effect::Applied(State::Pending));
    assert_eq!(world.complete(slow_ticket).await.effect, Effect::Applied(State::Completed));
    assert_eq!(claimed(&app).await, HashSet::new());
}

/// As a node does it, in a transaction that stays open.
async fn claim_in(transaction: &Transaction<'_>, node: NodeId, world: &World<Postgres>) -> MessageId {
    let claim = "SELECT id FROM postrider._claim($1, 1, false, ARRAY[$2::bigint], ARRAY[1], ARRAY['due'], '[null]',
                   ARRAY[NULL]::smallint[], ARRAY[NULL]::timestamptz[], ARRAY[NULL]::bigint[]) WHERE id IS NOT NULL";
    MessageId(transaction.query_one(claim, &[&node.0, &world.a.0]).await.unwrap().get(0))
}

/// Settles these one by one, and many positions are used for it.
async fn settle_each(world: &World<Postgres>, tickets: Vec<Ticket>) {
    for ticket in tickets {
        world.complete(ticket).await;
    }
    world.store().upkeep(10).await.unwrap();
}

#[tokio::test]
async fn no_bound_moves_over_what_is_not_committed_yet() {
    let mut world = World::<Postgres>::start().await;
    let (mut slow, app) = (connect(&world).await, connect(&world).await);
    world.store().send_batch(vec![to("a"); 402]).await.unwrap();
    let before = world.claim(world.a, 400).await;
    let other = world.another_node().await;
    let open = slow.transaction().await.unwrap();
    let held = claim_in(&open, other, &world).await;
    let cancelled = MessageId(held.0 + 1);
    open.execute("SELECT postrider.cancel_message($1)", &[&cancelled.0]).await.unwrap();
    settle_each(&world, before).await;
    open.commit().await.unwrap();
    assert_eq!(claimed(&app).await, HashSet::from([held]));
    assert_eq!(departed(&app).await, 401);
    // And now it does.
    let bounds = "SELECT count(*) FROM postrider._bounds WHERE position > 400";
    assert_eq!(app.query_one(bounds, &[]).await.unwrap().get::<_, i64>(0), 0);
    world.store().upkeep(10).await.unwrap();
    assert_eq!(app.query_one(bounds, &[]).await.unwrap().get::<_, i64>(0), 2);
    assert_eq!(claimed(&app).await, HashSet::from([held]));
    assert_eq!(departed(&app).await, 401);
}

#[tokio::test]
async fn failures_of_one_claim_change_its_row_once() {
    let mut world = World::<Postgres>::start().await;
    let mut app = connect(&world).await;
    world.store().send_batch(vec![to("a"); 50]).await.unwrap();
    let tickets = world.claim(world.a, 50).await;
    let (fence, failed) =
        (tickets[0].fence, tickets[..40].iter().map(|ticket| ticket.id.0).collect::<Vec<_>>());
    let transaction = app.transaction().await.unwrap();
    // One of them is told twice, which is once too often.
    let settle = "SELECT s.id, s.effect FROM postrider._settle($1, NULL, ARRAY(
                    SELECT ROW(id, $2::bigint, $1, $3::bigint, 'retry', postrider._now(), NULL, false, NULL,
                      ROW(1, $1, postrider._now(), '1 s', 'failed', 'retryable', 'no', NULL, NULL))::postrider._settlement
                    FROM unnest($4::bigint[]) AS id), '{}', NULL, false) AS answer, unnest(answer.settled) AS s";
    let twice: Vec<i64> = failed.iter().copied().chain([failed[0]]).collect();
    let settled =
        transaction.query(settle, &[&fence.node.0, &world.a.0, &fence.batch, &twice]).await.unwrap();
    let effects: Vec<&str> = settled.iter().map(|row| row.get(1)).collect();
    assert_eq!(effects, [vec!["applied"; 40], vec!["fenced"]].concat());
    let changes = "SELECT n_tup_upd FROM pg_stat_xact_user_tables WHERE relname = '_claim_rows'";
    assert_eq!(transaction.query_one(changes, &[]).await.unwrap().get::<_, i64>(0), 1);
    transaction.commit().await.unwrap();
    let left: HashSet<MessageId> = tickets[40..].iter().map(|ticket| ticket.id).collect();
    assert_eq!(claimed(&app).await, left);
}
