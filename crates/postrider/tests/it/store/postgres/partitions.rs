//! Months of the archive and of attempts, and what is kept for how long.

use std::time::Duration;

use postrider::{MessageId, Operate};
use serde_json::json;
use tokio::time::Instant;

use super::Postgres;
use super::prompt::{self, Prompt};
use crate::store::world::{World, short_lived, to};

const DAY: u64 = 86_400;

async fn months(owner: &Prompt, table: &str) -> Vec<String> {
    owner.column(&format!("SELECT to_char(month, 'YYYY-MM') FROM postrider._months('{table}')")).await
}

/// What a migration by the real clock made is not of this world's time.
async fn start() -> (World<Postgres>, Prompt) {
    let (world, owner) = prompt::start().await;
    for table in ["archive", "attempts"] {
        for month in owner.column(&format!("SELECT name FROM postrider._months('{table}')")).await {
            owner.run(&format!("DROP TABLE postrider.{month}")).await;
        }
    }
    (world, owner)
}

/// Tried twice, and archived.
async fn deliver(world: &mut World<Postgres>) -> MessageId {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    id
}

/// Time passes, and a new node comes.
async fn pass(world: &mut World<Postgres>, days: u64) {
    world.advance(days * DAY);
    world.node = world.another_node().await;
}

async fn partitions_of(owner: &Prompt, table: &str) -> Vec<String> {
    owner.column(&format!("SELECT DISTINCT tableoid::regclass FROM postrider.{table} ORDER BY 1")).await
}

#[tokio::test]
async fn three_months_are_made_ahead() {
    let (mut world, owner) = start().await;
    assert_eq!(owner.number("SELECT postrider.maintain_archive_partitions()").await, 8);
    let expected = ["2026-01", "2026-02", "2026-03", "2026-04"];
    assert_eq!(
        (months(&owner, "archive").await, months(&owner, "attempts").await),
        (expected.map(Into::into).to_vec(), expected.map(Into::into).to_vec())
    );
    assert_eq!(owner.number("SELECT postrider.maintain_archive_partitions()").await, 0);
    pass(&mut world, 31).await;
    world.clean_up().await;
    assert_eq!(months(&owner, "archive").await.last().unwrap(), "2026-05", "nodes make them too");
    assert_eq!(owner.number("SELECT postrider.maintain_archive_partitions(5)").await, 4);
}

/// Whatever the time zone of the session.
#[tokio::test]
async fn a_month_begins_at_midnight_utc() {
    let (_world, owner) = start().await;
    owner.run("SET TimeZone = 'Pacific/Auckland'; SELECT postrider.maintain_archive_partitions(0)").await;
    owner.run("SET TimeZone = 'UTC'").await;
    let bound = "SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'archive_2026_01'";
    assert_eq!(
        owner.value(bound).await,
        "FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-02-01 00:00:00+00')"
    );
}

#[tokio::test]
async fn every_month_has_its_brin_and_its_rules() {
    let (_world, owner) = start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    let indexes = "SELECT c.relname, i.relname, array_to_string(i.reloptions, ',')
                   FROM pg_inherits h
                     JOIN pg_class c ON c.oid = h.inhrelid
                     JOIN pg_index x ON x.indrelid = c.oid
                     JOIN pg_class i ON i.oid = x.indexrelid
                     JOIN pg_am a ON a.oid = i.relam AND a.amname = 'brin'
                   WHERE h.inhparent = 'postrider.archive'::regclass ORDER BY c.relname";
    let found = owner.rows(indexes).await;
    assert_eq!(found.len(), 5, "four months and the default: {found:?}");
    for index in found {
        assert_eq!(index[2].as_deref(), Some("pages_per_range=64,autosummarize=on"), "{index:?}");
    }
    let triggers = "SELECT count(*) FROM pg_trigger t JOIN pg_inherits h ON h.inhrelid = t.tgrelid
                    WHERE h.inhparent = 'postrider.archive'::regclass AND t.tgname = 'archive_immutable'";
    assert_eq!(owner.number(triggers).await, 5);
}

#[tokio::test]
async fn rows_leave_the_default_partition_for_their_month() {
    let (mut world, owner) = start().await;
    let id = deliver(&mut world).await;
    assert_eq!(partitions_of(&owner, "archive").await, ["postrider.archive_default"]);
    assert_eq!(partitions_of(&owner, "attempts").await, ["postrider.attempts_default"]);
    pass(&mut world, 70).await;
    let made = owner.number("SELECT postrider.maintain_archive_partitions(0)").await;
    assert_eq!(made, 4, "this month, and that of the strays");
    assert_eq!(partitions_of(&owner, "archive").await, ["postrider.archive_2026_01"]);
    assert_eq!(partitions_of(&owner, "attempts").await, ["postrider.attempts_2026_01"]);
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempts.len()), (postrider::State::Completed, 1));
}

#[tokio::test]
async fn whole_months_go_when_their_newest_message_is_old_enough() {
    let (mut world, owner) = start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    let early = deliver(&mut world).await;
    // Created in January as well, finished in March.
    let late = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 60 * DAY).await;
    pass(&mut world, 60).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let cleanup = "SELECT postrider.cleanup_old_archive_partitions(2)";
    pass(&mut world, 55).await;
    assert_eq!(owner.number(cleanup).await, 1, "February had nothing");
    assert_eq!(world.states(&[early, late]).await, [postrider::State::Completed; 2]);
    pass(&mut world, 10).await;
    assert_eq!(owner.number(cleanup).await, 1);
    assert_eq!(months(&owner, "archive").await, ["2026-03", "2026-04"]);
    assert_eq!(months(&owner, "attempts").await, ["2026-03", "2026-04"]);
    owner.refuses(&format!("SELECT postrider.message({late})"), "42704", "there is no message").await;
    let logged = owner
        .column("SELECT subject FROM postrider.event_log WHERE kind = 'archive.dropped' ORDER BY id")
        .await;
    assert_eq!(logged, ["archive_2026_02", "archive_2026_01"]);
}

#[tokio::test]
async fn attempts_of_a_message_that_still_waits_outlive_their_month() {
    let (mut world, owner) = start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    deliver(&mut world).await;
    let waiting = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 400 * DAY).await;
    pass(&mut world, 300).await;
    owner.run("SELECT postrider.cleanup_old_archive_partitions(6)").await;
    assert_eq!(
        owner.column("SELECT DISTINCT message_id FROM postrider.attempts").await,
        [waiting.to_string()]
    );
}

/// Whoever archives waits until its transaction has ended.
#[tokio::test]
async fn a_step_of_cleanup_that_drops_a_month_does_nothing_else() {
    let (mut world, owner) = start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    deliver(&mut world).await;
    pass(&mut world, 400).await;
    let old = "SELECT count(*) FROM (SELECT month FROM postrider._months('archive')
               UNION ALL SELECT month FROM postrider._months('attempts')) AS m WHERE month < '2026-05-01'";
    let events = "SELECT count(*) FROM postrider.event_log WHERE kind = 'endpoint.created'";
    let mut more = true;
    while more {
        let before = (owner.number(old).await, owner.number(events).await);
        more = owner.value("SELECT more FROM postrider._clean_up(100)").await == "t";
        let (dropped, forgotten) =
            (before.0 - owner.number(old).await, before.1 - owner.number(events).await);
        assert!(dropped == 0 || (dropped, forgotten, more) == (1, 0, true), "{dropped} {forgotten} {more}");
    }
    assert_eq!((owner.number(old).await, owner.number(events).await), (0, 0));
}

/// A message that is archived into an old month while that month is looked at.
#[tokio::test]
async fn a_month_that_gets_a_message_in_the_last_moment_stays() {
    let (mut world, owner) = start().await;
    owner.run("SELECT postrider.maintain_archive_partitions()").await;
    let id = world.send(to("a")).await;
    pass(&mut world, 300).await;
    let node = Prompt::of(&world).await;
    node.run(&format!("BEGIN; SELECT postrider._leave({id}, 'cancelled', 0)")).await;
    let cleaning = tokio::spawn({
        let cleaner = Prompt::of(&world).await;
        async move { cleaner.number("SELECT postrider.cleanup_old_archive_partitions(6)").await }
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let deadline = Instant::now() + Duration::from_secs(5);
    while owner.number(waiting).await == 0 && !cleaning.is_finished() {
        assert!(Instant::now() < deadline, "nobody waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node.run("COMMIT").await;
    assert_eq!(cleaning.await.unwrap(), 3, "of four months");
    assert_eq!(world.state(id).await, postrider::State::Cancelled);
}

#[tokio::test]
async fn a_dlq_that_is_too_large_loses_its_oldest_down_to_nine_tenths() {
    let (mut world, owner) = start().await;
    world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let head = world.send_to_death(to("hold").ordering_key("k")).await;
    for _ in 0..10 {
        world.send_to_death(to("a")).await;
        world.live(1).await;
    }
    let each = owner.number("SELECT max(bytes) FROM postrider.dlq").await;
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 0, "0 is no limit");
    world.configure("dlq_max_bytes", each * 10).await;
    // Eleven of them are too many, nine are nine tenths.
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 2);
    let left = owner.column("SELECT id FROM postrider.dlq ORDER BY id").await;
    assert_eq!(
        left,
        [1, 4, 5, 6, 7, 8, 9, 10, 11].map(|id| id.to_string()),
        "the head of {} stays",
        head.message
    );
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 0);
    assert_eq!(owner.counted("evictions").await, 2);
    let logged = owner.json("SELECT detail FROM postrider.event_log WHERE kind = 'dlq.evicted'").await;
    assert_eq!(logged, json!({"rule": "dlq_max_bytes", "count": 2, "bytes": 2 * each}));
}

/// A limit that is taken away in the middle of an eviction is forgotten with what was left to do.
#[tokio::test]
async fn a_new_limit_of_the_dlq_looks_at_what_is_there_now() {
    let (mut world, owner) = start().await;
    for _ in 0..6 {
        world.send_to_death(to("a")).await;
    }
    world.configure("dlq_max_bytes", 1).await;
    assert_eq!(
        owner.number("SELECT postrider._evicted_count(postrider._evict_dlq(1))").await,
        1,
        "a bounded step, with more to do"
    );
    world.configure("dlq_max_bytes", 0).await;
    assert_eq!(owner.number("SELECT postrider._evicted_count(postrider._evict_dlq(1))").await, 0);
    world.store().discard(2).await.unwrap();
    let total = owner.number("SELECT sum(bytes) FROM postrider.dlq").await;
    owner.run("DELETE FROM postrider.dlq WHERE id < 5").await;
    world.configure("dlq_max_bytes", total - 1).await;
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 0, "what is left fits");
}

#[tokio::test]
async fn dead_letters_go_after_their_days_but_not_a_head_that_holds_its_key() {
    let (mut world, owner) = start().await;
    world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let head = world.send_to_death(to("hold").ordering_key("k")).await;
    world.send_to_death(to("a")).await;
    world.advance(30 * DAY - 1);
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 0);
    world.advance(1);
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 1);
    assert_eq!(owner.number("SELECT id FROM postrider.dlq").await, head.id);
    let logged = "SELECT detail->>'rule' FROM postrider.event_log WHERE kind = 'dlq.evicted'";
    assert_eq!(owner.value(logged).await, "dlq_retention_days");
    owner.run("SELECT postrider.release_key('k')").await;
    assert_eq!(owner.number("SELECT postrider.cleanup_dlq()").await, 1, "released, it has no privilege");
}

#[tokio::test]
async fn the_event_log_is_kept_for_its_days() {
    let (world, owner) = start().await;
    world.configure("event_log_retention_days", 2).await;
    let events = owner.number("SELECT count(*) FROM postrider.event_log").await;
    assert!(events > 0);
    world.advance(2 * DAY - 1);
    owner.run("SELECT postrider.pause_endpoint('a')").await;
    assert_eq!(owner.number("SELECT postrider.cleanup_event_log()").await, 0);
    world.advance(1);
    assert_eq!(owner.number("SELECT postrider.cleanup_event_log()").await, events);
    assert_eq!(owner.column("SELECT kind FROM postrider.event_log").await, ["endpoint.paused"]);
}

#[tokio::test]
async fn what_is_past_its_expiry_is_marked_unless_a_node_has_it() {
    let (mut world, owner) = start().await;
    let claimed = world.send(short_lived(world.now())).await;
    world.claim_one().await;
    let expired = world.send(short_lived(world.now())).await;
    let lasting = world.send(to("a")).await;
    assert_eq!(owner.number("SELECT postrider.mark_expired_messages()").await, 0);
    world.live(10).await;
    assert_eq!(owner.number("SELECT postrider.mark_expired_messages()").await, 1);
    use postrider::State::{Expired, Pending, Processing};
    assert_eq!(world.states(&[claimed, expired, lasting]).await, [Processing, Expired, Pending]);
    assert_eq!(
        owner.number("SELECT postrider.archive_completed_messages(0, 100)").await,
        0,
        "settling archives"
    );
}
