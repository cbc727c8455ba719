//! Finished messages sent again.

use std::time::Duration;

use postrider::store::{
    DlqFilter, NewReplay, ReplaySelection, ReplayState, ReplayTurn, Replays, SweepAction, Sweeps,
};
use postrider::{MessageId, NewMessage, Operate, PostgresStore, Store};
use serde_json::json;

use super::Postgres;
use super::prompt::{self, Prompt};
use crate::store::world::{DEAD, Harness, World, short_lived, to};

/// With everything that a replay keeps or clears.
fn rich(world: &World<Postgres>) -> NewMessage {
    NewMessage {
        priority: 3,
        scheduled_at: Some(world.now()),
        expires_at: Some(world.in_seconds(60)),
        correlation_id: Some(uuid::Uuid::from_u128(7)),
        event_type: Some("orders.created".into()),
        headers: [("x-a".to_owned(), "b".to_owned())].into(),
        options: json!({"max_attempts": 2}).as_object().unwrap().clone(),
        ..to("a").idempotency_key("i").ordering_key("k")
    }
}

/// One message that ended each way: completed, expired, cancelled, dead, discarded.
pub(super) async fn one_of_each(world: &mut World<Postgres>) -> [MessageId; 5] {
    let completed = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let dead = world.send_to_death(to("a")).await;
    let discarded = world.send_to_death(to("a")).await;
    world.store().discard(discarded.id).await.unwrap();
    let cancelled = world.send(to("a")).await;
    world.store().cancel(cancelled).await.unwrap();
    let expired = world.send(short_lived(world.now())).await;
    world.live(11).await;
    assert_eq!(Prompt::of(world).await.number("SELECT postrider.mark_expired_messages()").await, 1);
    [completed, expired, cancelled, dead.message, discarded.message]
}

/// The originals of what is queued.
async fn originals(owner: &Prompt) -> Vec<MessageId> {
    let replayed = "SELECT postrider.message(id)->>'replay_of' FROM postrider.queue ORDER BY id";
    owner.column(replayed).await.iter().map(|id| MessageId(id.parse().expect("an id"))).collect()
}

fn range(status: &str) -> String {
    format!(
        "SELECT postrider.replay_range(p_endpoint_id => 1, p_from_ts => '2026-01-01 00:00:00+00',
           p_to_ts => '2026-02-01 00:00:00+00', p_status => {status})"
    )
}

#[tokio::test]
async fn a_replayed_message_is_a_new_one_that_knows_its_original() {
    let (mut world, owner) = prompt::start().await;
    let original = world.send(rich(&world)).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let id = MessageId(owner.number(&format!("SELECT postrider.replay_message({original})")).await);
    assert_ne!(id, original);
    assert_eq!(originals(&owner).await, [original]);
    let (old, new) = (world.story(original).await, world.story(id).await);
    assert_eq!(
        (new.listed.priority, new.payload, new.headers, new.options),
        (3, old.payload, old.headers, old.options)
    );
    assert_eq!(
        (new.listed.correlation_id, new.listed.ordering_key, new.listed.event_type),
        (old.listed.correlation_id, old.listed.ordering_key, old.listed.event_type)
    );
    assert_eq!(
        (new.listed.idempotency_key, new.listed.expires_at, new.listed.scheduled_at),
        (None, None, None)
    );
    assert_eq!(world.claim_ids().await, [id]);
    let logged =
        owner.value("SELECT detail->>'message' FROM postrider.event_log WHERE kind = 'replay'").await;
    assert_eq!(logged, original.to_string());
}

#[tokio::test]
async fn every_finished_message_can_be_replayed_and_no_other() {
    let (mut world, owner) = prompt::start().await;
    let finished = one_of_each(&mut world).await;
    for id in finished {
        owner.run(&format!("SELECT postrider.replay_message({id})")).await;
    }
    assert_eq!(originals(&owner).await, finished);
    let pending = owner.number("SELECT max(id) FROM postrider.queue").await;
    let says = "only a finished one can be replayed";
    owner.refuses(&format!("SELECT postrider.replay_message({pending})"), "55000", says).await;
    world.claim_ids().await;
    owner.refuses(&format!("SELECT postrider.replay_message({pending})"), "55000", says).await;
    owner.refuses("SELECT postrider.replay_message(999999)", "42704", "there is no message \"999999\"").await;
    owner.run(&format!("SELECT postrider.erase_message({})", finished[0])).await;
    let says = "has no payload any more";
    owner.refuses(&format!("SELECT postrider.replay_message({})", finished[0]), "55000", says).await;
    owner.run("SELECT postrider.disable_endpoint('a')").await;
    owner.refuses(&format!("SELECT postrider.replay_message({})", finished[1]), "55000", "is disabled").await;
}

#[tokio::test]
async fn a_range_is_replayed_by_status_in_its_order() {
    let (mut world, owner) = prompt::start().await;
    let [completed, expired, cancelled, dead, _discarded] = one_of_each(&mut world).await;
    let cases: [(&str, &[MessageId]); 5] = [
        ("'completed'", &[completed]),
        ("'expired'", &[expired]),
        ("'cancelled'", &[cancelled]),
        ("'failed'", &[dead]),
        ("NULL", &[completed, cancelled, expired]),
    ];
    for (status, expected) in cases {
        assert_eq!(owner.number(&range(status)).await, expected.len() as i64, "{status}");
        assert_eq!(originals(&owner).await, expected, "{status}");
        // Out of the way, and out of the range.
        owner.run("DELETE FROM postrider.queue").await;
    }
    let counted = "SELECT count(*) FROM postrider.dlq WHERE status = 'failed'";
    assert_eq!(owner.number(counted).await, 1, "a replay leaves the dead letter as it is");
}

#[tokio::test]
async fn a_range_takes_its_beginning_and_not_its_end_and_only_one_endpoint() {
    let (world, owner) = prompt::start().await;
    world.endpoint("b", json!({})).await;
    let mut sent = Vec::new();
    for endpoint in ["a", "b", "a", "a"] {
        let id = world.send(to(endpoint)).await;
        world.store().cancel(id).await.unwrap();
        sent.push(id);
        world.advance(1);
    }
    let range = "SELECT postrider.replay_range(1, '2026-01-15 12:00:00+00', '2026-01-15 12:00:03+00')";
    assert_eq!(owner.number(range).await, 2);
    assert_eq!(originals(&owner).await, [sent[0], sent[2]]);
    let nothing = "SELECT postrider.replay_range(1, '2025-01-01 00:00:00+00', '2025-02-01 00:00:00+00')";
    assert_eq!(owner.number(nothing).await, 0);
}

#[tokio::test]
async fn a_range_that_makes_no_sense_is_refused() {
    let (_world, owner) = prompt::start().await;
    let (from, to) = ("'2026-01-01 00:00:00+00'", "'2026-02-01 00:00:00+00'");
    let refused = [
        (format!("99, {from}, {to}"), "42704", "there is no endpoint \"99\""),
        (format!("1, {to}, {from}"), "22023", "p_to_ts: must be later than p_from_ts"),
        (format!("1, NULL, {to}"), "22023", "p_to_ts: must be later than p_from_ts"),
        (
            format!("1, {from}, {to}, 'dead'"),
            "22023",
            "p_status: must be one of completed, expired, cancelled, failed",
        ),
    ];
    for (arguments, code, says) in refused {
        owner.refuses(&format!("SELECT postrider.replay_range({arguments})"), code, says).await;
    }
}

#[tokio::test]
async fn a_replay_that_does_not_fit_into_the_queue_changes_nothing() {
    let (mut world, owner) = prompt::start().await;
    let finished = one_of_each(&mut world).await;
    world.send(to("a")).await;
    world.configure("max_queue_size", 3).await;
    owner.refuses(&range("NULL"), "53400", "the queue is full").await;
    assert_eq!(world.queued().await, 1);
    world.configure("max_queue_size", 1).await;
    owner.refuses(&range("'failed'"), "53400", "the queue is full").await;
    owner
        .refuses(&format!("SELECT postrider.replay_message({})", finished[0]), "53400", "the queue is full")
        .await;
    world.configure("max_queue_size", 4).await;
    assert_eq!(owner.number(&range("NULL")).await, 3);
}

/// In steps of what a batch may hold.
#[tokio::test]
async fn a_range_may_be_larger_than_a_batch() {
    let (world, owner) = prompt::start().await;
    let send = "postrider.send('a', to_jsonb(n))";
    owner.run(&format!("SELECT postrider.cancel_message({send}) FROM generate_series(1, 7) AS n")).await;
    world.configure("max_batch_messages", 3).await;
    assert_eq!(owner.number(&range("'cancelled'")).await, 7);
    let payloads =
        owner.column("SELECT convert_from(payload, 'UTF8') FROM postrider.queue ORDER BY id").await;
    assert_eq!(payloads, ["1", "2", "3", "4", "5", "6", "7"]);
}

fn of_a() -> NewReplay {
    let selection = ReplaySelection { endpoint: Some("a".into()), ..ReplaySelection::default() };
    NewReplay { selection, ..NewReplay::default() }
}

async fn advance(store: &PostgresStore) {
    while let ReplayTurn::Worked = store.advance_replays(7).await.unwrap() {}
}

/// As on several machines, each with a store of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_advance_one_replay_lose_and_double_nothing() {
    let (world, owner) = prompt::start().await;
    let keyed = "p_ordering_key => CASE WHEN n % 3 = 0 THEN 'k' END";
    let send = format!("postrider.send_with_options('a', to_jsonb(n), {keyed})");
    owner.run(&format!("SELECT postrider.cancel_message({send}) FROM generate_series(1, 500) AS n")).await;
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    let (one, two, three) =
        (world.harness().open().await, world.harness().open().await, world.harness().open().await);
    while world.store().replay(id).await.unwrap().state == ReplayState::Running {
        tokio::join!(advance(&one), advance(&two), advance(&three));
    }
    let payloads =
        owner.column("SELECT convert_from(payload, 'UTF8') FROM postrider.queue ORDER BY id").await;
    assert_eq!(payloads, (1..=500).map(|n| n.to_string()).collect::<Vec<_>>(), "each once, in its order");
    assert_eq!(world.store().replay(id).await.unwrap().done, 500);
}

/// Who sends to one of its keys and does not commit holds up this replay, but neither a person nor another replay.
#[tokio::test]
async fn a_replay_waits_for_a_sender_of_its_key_and_can_be_stopped_meanwhile() {
    let (world, owner) = prompt::start().await;
    let id = world.send(to("a").ordering_key("k")).await;
    world.store().cancel(id).await.unwrap();
    let sender = Prompt::of(&world).await;
    sender.run("BEGIN").await;
    sender.run("SELECT postrider.send_with_options('a', '1', p_ordering_key => 'k')").await;
    let replay = world.store().start_replay(of_a()).await.unwrap().id;
    advance(world.store()).await;
    let waiting = world.store().replay(replay).await.unwrap();
    assert_eq!((waiting.done, waiting.state), (0, ReplayState::Running));
    assert!(waiting.waiting.is_some_and(|says| says.contains("has an open transaction")));
    world.store().stop_replay(replay).await.unwrap();
    world.store().resume_replay(replay).await.unwrap();
    sender.run("COMMIT").await;
    advance(world.store()).await;
    assert_eq!(world.store().replay(replay).await.unwrap().state, ReplayState::Completed);
    assert_eq!(originals_of(&owner).await, [id]);
}

/// An open transaction may lock the row of a replay in the middle of a step.
#[tokio::test]
async fn a_step_does_not_wait_for_a_transaction_that_holds_the_row_of_its_replay() {
    let (world, owner) = prompt::start().await;
    world.send(to("a")).await;
    // So that there is much to look through.
    owner.run("SELECT setval('postrider.message_ids', 100000000)").await;
    world.store().start_replay(of_a()).await.unwrap();
    let other = Prompt::of(&world).await;
    for _ in 0..10 {
        let step = async {
            let step = world.store().advance_replays(7);
            tokio::time::timeout(Duration::from_secs(2), step).await.expect("a step ends").unwrap();
        };
        let hold = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            other.run("BEGIN").await;
            other.run("SELECT FROM postrider.replays FOR UPDATE").await;
        };
        tokio::join!(step, hold);
        other.run("COMMIT").await;
    }
}

/// Nor long for one that has locked the archive: the replay says so, and other replays have their turns.
#[tokio::test]
async fn a_step_does_not_wait_long_for_a_locked_archive() {
    let (world, _) = prompt::start().await;
    let id = world.send(to("a")).await;
    world.store().cancel(id).await.unwrap();
    let replay = world.store().start_replay(of_a()).await.unwrap().id;
    let other = Prompt::of(&world).await;
    other.run("BEGIN").await;
    other.run("LOCK TABLE postrider.archive").await;
    let step = world.store().advance_replays(7);
    tokio::time::timeout(Duration::from_secs(8), step).await.expect("a step ends").unwrap();
    let waiting = world.store().replay(replay).await.unwrap().waiting;
    assert!(waiting.as_ref().is_some_and(|says| says.contains("lock timeout")), "{waiting:?}");
    other.run("COMMIT").await;
}

/// The store finds nothing of a replay until the lock is released; then `after` is done.
async fn delay_finding(owner: &Prompt, after: &str) {
    owner.run("ALTER FUNCTION postrider._replay_window RENAME TO _replay_window_at_once").await;
    let delayed = format!(
        "CREATE FUNCTION postrider._replay_window(r postrider.replays, p_after bigint, p_to bigint, p_limit bigint)
         RETURNS SETOF postrider._original LANGUAGE plpgsql AS $$
         BEGIN
           PERFORM pg_advisory_xact_lock(7);
           {after};
         END $$"
    );
    owner.run(&delayed).await;
}

/// A node is in the middle of a step when another one takes the same step.
async fn step_that_another_node_takes(after: &str) -> (World<Postgres>, Prompt, ReplayTurn) {
    let (world, owner) = prompt::start().await;
    for _ in 0..3 {
        let id = world.send(to("a")).await;
        world.store().cancel(id).await.unwrap();
    }
    world.store().start_replay(of_a()).await.unwrap();
    // Counts.
    assert!(matches!(world.store().advance_replays(7).await.unwrap(), ReplayTurn::Worked));
    delay_finding(&owner, after).await;
    owner.run("SELECT pg_advisory_lock(7)").await;
    let other_node = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted
                     AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        while owner.number(waits).await == 0 {}
        owner.run("UPDATE postrider.replays SET position = position + 1").await;
        owner.run("SELECT pg_advisory_unlock(7)").await;
    };
    let (turn, ()) = tokio::join!(world.store().advance_replays(7), other_node);
    (world, owner, turn.unwrap())
}

#[tokio::test]
async fn a_node_whose_step_another_one_took_waits() {
    let at_once = "RETURN QUERY SELECT * FROM postrider._replay_window_at_once(r, p_after, p_to, p_limit)";
    let (_world, owner, turn) = step_that_another_node_takes(at_once).await;
    assert!(matches!(turn, ReplayTurn::Idle(None)), "{turn:?}");
    assert_eq!(owner.number("SELECT count(*) FROM postrider.queue").await, 0);
}

#[tokio::test]
async fn a_node_that_fails_does_not_postpone_a_replay_that_another_one_advances() {
    let (_world, owner, turn) = step_that_another_node_takes("RAISE 'broken here'").await;
    assert!(matches!(turn, ReplayTurn::Idle(None)), "{turn:?}");
    let is_due = "SELECT next_at <= postrider._now() AND waiting IS NULL FROM postrider.replays";
    assert_eq!(owner.value(is_due).await, "t");
}

#[tokio::test]
async fn a_damaged_replay_says_so_and_leaves_the_others_alone() {
    for damage in
        ["skipped = '[]'", "rate_limit = '{}'", "rate_position = 'infinity'", "created_from = '-infinity'"]
    {
        let (world, owner) = prompt::start().await;
        let id = world.send(to("a")).await;
        world.store().cancel(id).await.unwrap();
        let [damaged, whole] = [
            world.store().start_replay(of_a()).await.unwrap().id,
            world.store().start_replay(of_a()).await.unwrap().id,
        ];
        owner.run(&format!("UPDATE postrider.replays SET {damage} WHERE id = {damaged}")).await;
        // A damaged one has its turn first, after which the node looks again.
        for _ in 0..3 {
            advance(world.store()).await;
        }
        assert_eq!(world.store().replay(whole).await.unwrap().state, ReplayState::Completed, "{damage}");
        if damage.starts_with("skipped") || damage.starts_with("rate_limit") {
            let shown = world.store().replay(damaged).await.unwrap_err().to_string();
            assert!(shown.contains("cannot be read"), "{damage}: {shown}");
            let waiting = format!("SELECT waiting FROM postrider.replays WHERE id = {damaged}");
            assert!(owner.value(&waiting).await.contains("cannot be read"), "{damage}");
        }
    }
}

/// A replay of very many keys beside somebody who sends quite another one.
#[tokio::test]
async fn a_replay_of_many_keys_waits_for_nobody_who_sends_others() {
    let (world, owner) = prompt::start().await;
    world.endpoint("b", json!({})).await;
    let send = "postrider.send_with_options('a', to_jsonb(n), p_ordering_key => 'k' || n)";
    owner.run(&format!("SELECT postrider.cancel_message({send}) FROM generate_series(1, 250) AS n")).await;
    let sender = Prompt::of(&world).await;
    sender.run("BEGIN").await;
    sender.run("SELECT postrider.send_with_options('b', '1', p_ordering_key => 'mine')").await;
    let replay = world.store().start_replay(of_a()).await.unwrap().id;
    while let ReplayTurn::Worked = world.store().advance_replays(250).await.unwrap() {}
    let done = world.store().replay(replay).await.unwrap();
    assert_eq!((done.state, done.done, done.waiting), (ReplayState::Completed, 250, None));
    let payloads =
        owner.column("SELECT convert_from(payload, 'UTF8') FROM postrider.queue ORDER BY id").await;
    assert_eq!(payloads, (1..=250).map(|n| n.to_string()).collect::<Vec<_>>(), "in their order");
}

/// One of them cannot be sent any more, so that each is tried by itself, and of another somebody sends the key.
#[tokio::test]
async fn a_replay_that_cannot_go_on_says_why_and_leaves_the_others_alone() {
    let (world, owner) = prompt::start().await;
    world.endpoint("b", json!({})).await;
    let large = NewMessage::new("a", vec![b'1'; 5000]);
    let small = NewMessage::new("b", "1");
    for message in [large, to("a").ordering_key("k"), small] {
        let id = world.send(message).await;
        world.store().cancel(id).await.unwrap();
    }
    world.configure("max_payload_bytes", 2048).await;
    let sender = Prompt::of(&world).await;
    sender.run("BEGIN").await;
    sender.run("SELECT postrider.send_with_options('a', '1', p_ordering_key => 'k')").await;
    let stuck = world.store().start_replay(of_a()).await.unwrap().id;
    let mut of_b = of_a();
    of_b.selection.endpoint = Some("b".into());
    let other = world.store().start_replay(of_b).await.unwrap().id;
    advance(world.store()).await;
    let waiting = world.store().replay(stuck).await.unwrap();
    let says = waiting.waiting.expect("it says what it waits for");
    assert!(says.contains("a sender of ordering key \"k\" has an open transaction"), "{says}");
    assert_eq!(world.store().replay(other).await.unwrap().state, ReplayState::Completed);

    // Whatever else it is.
    owner.run("ALTER TABLE postrider._replayed ADD CONSTRAINT broken CHECK (false) NOT VALID").await;
    sender.run("COMMIT").await;
    world.advance(3);
    advance(world.store()).await;
    let waiting = world.store().replay(stuck).await.unwrap();
    assert!(waiting.waiting.as_ref().is_some_and(|says| says.contains("broken")), "{waiting:?}");
    owner.run("ALTER TABLE postrider._replayed DROP CONSTRAINT broken").await;
    world.advance(3);
    advance(world.store()).await;
    let done = world.store().replay(stuck).await.unwrap();
    assert_eq!((done.state, done.done, done.waiting), (ReplayState::Completed, 1, None));
    assert_eq!(done.skipped, [("too_large".to_owned(), 1)].into());
}

async fn originals_of(owner: &Prompt) -> Vec<MessageId> {
    let replayed = "SELECT original_id FROM postrider._replayed ORDER BY id";
    owner.column(replayed).await.iter().map(|id| MessageId(id.parse().expect("an id"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn letters_that_two_nodes_redrive_at_once_are_queued_once() {
    let (mut world, owner) = prompt::start().await;
    let message =
        |at: usize| NewMessage { ordering_key: at.is_multiple_of(3).then(|| "k".into()), ..to("a") };
    let sent = world.store().send_batch((0..400).map(message).collect()).await.unwrap();
    let mut left = sent.len();
    while left > 0 {
        let tickets = world.claim(world.a, 1000).await;
        left -= tickets.len();
        for ticket in tickets {
            world.settle(ticket, DEAD).await;
        }
    }
    let (one, two) = (world.harness().open().await, world.harness().open().await);
    let sweep = async |store: &PostgresStore| {
        let (mut next, mut done) = (None, 0);
        loop {
            let sweep = store.sweep(SweepAction::Redrive, DlqFilter::default(), next).await.unwrap();
            done = sweep.done.max(done);
            match sweep.next {
                Some(cursor) => next = Some(cursor),
                None => return done,
            }
        }
    };
    let (first, second) = tokio::join!(sweep(&one), sweep(&two));
    assert_eq!(first + second, 400);
    assert_eq!(owner.number("SELECT count(*) FROM postrider.queue").await, 400);
    let in_order = "SELECT bool_and(ok) FROM (SELECT key_position > lag(key_position, 1, key_position - 1) OVER (ORDER BY id) AS ok
                    FROM postrider.queue WHERE ordering_key = 'k') AS pairs";
    assert_eq!(owner.value(in_order).await, "t");
}

/// What people at a prompt see of it.
#[tokio::test]
async fn a_replay_is_a_row_that_can_be_read() {
    let (world, owner) = prompt::start().await;
    let id = world.send(to("a")).await;
    world.store().cancel(id).await.unwrap();
    let replay = world.store().start_replay(of_a()).await.unwrap().id;
    advance(world.store()).await;
    let row = format!(
        "SELECT concat_ws(' ', state, counted, done, skipped) FROM postrider.replays WHERE id = {replay}"
    );
    assert_eq!(owner.value(&row).await, "completed 1 1 {}");
    let story = owner.value(&format!("SELECT postrider.message({id})->>'replayed_as'")).await;
    assert_eq!(story, format!("[{}]", id.0 + 1));
    owner.refuses("UPDATE postrider.replays SET state = 'running'", "55000", "stays so; start another").await;
}
