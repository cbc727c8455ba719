//! How a replay goes on: in steps, at its own pace, past crashes, beside others.

use std::time::Duration;

use postrider::error::StoreError;
use postrider::rate::{Interval, RateLimit};
use postrider::store::{NewReplay, ReplayState, ReplayStatus, ReplayTurn, Replays, UNFINISHED_MAX};
use postrider::{NewMessage, Operate, Store};
use serde_json::json;

use super::replaying::{of_a, selecting};
use crate::store::world::{Harness, World, to};

const DAY: u64 = 86_400;

pub(crate) async fn a_replay_says_how_far_it_is<H: Harness>(world: World<H>) {
    for _ in 0..5 {
        world.cancelled(to("a")).await;
    }
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    let look = async || world.store().replay(id).await.unwrap();
    let started = look().await;
    assert_eq!((started.state, started.total, started.done), (ReplayState::Running, None, 0));
    assert_eq!((started.started_at, started.ended_at), (world.now(), None));
    let mut seen = Vec::new();
    while look().await.state == ReplayState::Running {
        assert_eq!(world.store().advance_replays(2).await.unwrap(), ReplayTurn::Worked);
        let now = look().await;
        seen.push((now.total, now.done));
    }
    seen.dedup();
    assert_eq!(seen, [(Some(5), 0), (Some(5), 2), (Some(5), 4), (Some(5), 5)]);
    assert_eq!(look().await.ended_at, Some(world.now()));
    assert_eq!(world.store().advance_replays(2).await.unwrap(), ReplayTurn::Idle(None));
    assert_eq!(world.kinds().await, ["replay.started", "replay.completed"]);
}

pub(crate) async fn a_replay_goes_on_after_a_crash_without_losing_or_doubling_any<H: Harness>(
    mut world: World<H>,
) {
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(world.cancelled(to("a")).await);
    }
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    for turn in 0.. {
        world.store().advance_replays(3).await.unwrap();
        if world.store().replay(id).await.unwrap().state == ReplayState::Completed {
            break;
        }
        assert!(turn < 100, "it never ends");
        world.crash().await;
    }
    assert_eq!(world.originals().await, ids);
    assert_eq!(world.store().replay(id).await.unwrap().done, 30);
}

pub(crate) async fn a_stopped_replay_goes_on_when_resumed<H: Harness>(mut world: World<H>) {
    let mut ids = Vec::new();
    for _ in 0..6 {
        ids.push(world.cancelled(to("a")).await);
    }
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    while world.store().replay(id).await.unwrap().done < 2 {
        world.store().advance_replays(2).await.unwrap();
    }
    let stopped = world.store().stop_replay(id).await.unwrap();
    assert_eq!((stopped.state, stopped.ended_at), (ReplayState::Stopped, Some(world.now())));
    assert_eq!(world.store().stop_replay(id).await.unwrap(), stopped, "twice is as good as once");
    world.advance_replays(100).await;
    assert_eq!(world.store().replay(id).await.unwrap().done, 2);
    world.crash().await;
    assert_eq!(world.store().replay(id).await.unwrap(), stopped, "it stays so");
    let resumed = world.store().resume_replay(id).await.unwrap();
    assert_eq!((resumed.state, resumed.ended_at), (ReplayState::Running, None));
    world.advance_replays(100).await;
    assert_eq!(world.originals().await, ids);
    for refused in [world.store().stop_replay(id).await, world.store().resume_replay(id).await] {
        assert!(
            matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("completed")),
            "{refused:?}"
        );
    }
    for unknown in [
        world.store().replay(99).await,
        world.store().stop_replay(99).await,
        world.store().resume_replay(99).await,
    ] {
        assert!(matches!(unknown, Err(StoreError::Unknown { what: "replay", .. })), "{unknown:?}");
    }
    assert_eq!(
        world.kinds().await,
        ["replay.started", "replay.stopped", "replay.resumed", "replay.completed"]
    );
}

pub(crate) async fn a_replay_keeps_its_rate_in_every_second<H: Harness>(world: World<H>) {
    for _ in 0..50 {
        world.cancelled(to("a")).await;
    }
    let limit = RateLimit { limit: 10, interval: Interval::Second, burst: None };
    let id = world.store().start_replay(NewReplay { rate_limit: Some(limit), ..of_a() }).await.unwrap().id;
    // How many were sent, from a tenth of a second to the next.
    let mut sent = vec![0];
    loop {
        world.advance_replays(100).await;
        let replay = world.store().replay(id).await.unwrap();
        sent.push(replay.done);
        if replay.state == ReplayState::Completed {
            break;
        }
        assert!(sent.len() < 200, "it never ends: {replay:?}");
        match world.store().advance_replays(100).await.unwrap() {
            ReplayTurn::Idle(Some(next_at)) => {
                assert!(next_at > world.now() && next_at <= world.in_seconds(1), "{next_at}");
            }
            turn => panic!("it says when it goes on, not {turn:?}"),
        }
        if [15, 30].contains(&sent.len()) {
            world.store().stop_replay(id).await.unwrap();
            if sent.len() == 30 {
                world.advance(5);
                sent.extend([replay.done; 50]);
            }
            world.store().resume_replay(id).await.unwrap();
        }
        world.harness().advance(Duration::from_millis(100));
    }
    for second in sent.windows(11) {
        assert!(second[10] - second[0] <= 10 + 1, "{second:?} of {sent:?}");
    }
    assert!(sent.len() <= 2 + 50 + 50, "it uses what it may: {sent:?}");
}

pub(crate) async fn a_replay_waits_for_room_and_says_so<H: Harness>(mut world: World<H>) {
    for _ in 0..30 {
        world.cancelled(to("a")).await;
    }
    world.configure("max_queue_size", 20).await;
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    world.advance_replays(100).await;
    let waiting = world.store().replay(id).await.unwrap();
    assert_eq!(
        (waiting.state, waiting.done),
        (ReplayState::Running, 18),
        "a tenth is left to those who send"
    );
    let says = waiting.waiting.expect("it says what it waits for");
    assert!(says.contains("the queue is full") && says.contains("max_queue_size"), "{says}");
    world.send(to("a")).await;
    world.advance(3);
    world.advance_replays(100).await;
    assert_eq!(world.store().replay(id).await.unwrap().done, 18);

    let tickets = world.claim(world.a, 19).await;
    for ticket in tickets {
        world.complete(ticket).await;
    }
    world.advance(3);
    world.advance_replays(100).await;
    let done = world.store().replay(id).await.unwrap();
    assert_eq!((done.state, done.done, done.waiting), (ReplayState::Completed, 30, None));
}

pub(crate) async fn a_replay_leaves_room_at_an_endpoint_with_a_limit_of_its_own<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({"max_queue_size": 10})).await;
    for at in 0..24 {
        world.cancelled(to(if at % 2 == 0 { "a" } else { "b" })).await;
    }
    let done = world.replayed(selecting(|selection| selection.status = Some(ReplayStatus::Cancelled))).await;
    let says = done.waiting.expect("it says what it waits for");
    assert!(says.contains("endpoint \"b\""), "{says}");
    // In its order: what is behind the one that has to wait waits too.
    assert_eq!((done.state, done.done), (ReplayState::Running, 19));
}

pub(crate) async fn a_replay_waits_for_a_disabled_endpoint<H: Harness>(world: World<H>) {
    world.cancelled(to("a")).await;
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    let waiting = world.replayed(of_a()).await;
    let says = waiting.waiting.expect("it says what it waits for");
    assert!(says.contains("is disabled"), "{says}");
    assert_eq!((waiting.state, waiting.done), (ReplayState::Running, 0));
    world.store().set_endpoint_enabled("a", true).await.unwrap();
    world.advance(3);
    world.advance_replays(100).await;
    assert_eq!(world.store().replay(waiting.id).await.unwrap().state, ReplayState::Completed);
}

pub(crate) async fn large_messages_are_replayed_a_few_at_a_time<H: Harness>(world: World<H>) {
    world.configure("max_payload_bytes", 4_000_000).await;
    for _ in 0..4 {
        world.cancelled(NewMessage::new("a", vec![b'1'; 3_000_000])).await;
    }
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    let mut seen = vec![0];
    while world.store().replay(id).await.unwrap().state == ReplayState::Running {
        world.store().advance_replays(100).await.unwrap();
        seen.push(world.store().replay(id).await.unwrap().done);
    }
    seen.dedup();
    assert_eq!(seen, [0, 1, 2, 3, 4]);
}

pub(crate) async fn only_so_many_replays_are_unfinished<H: Harness>(world: World<H>) {
    for _ in 0..UNFINISHED_MAX {
        world.store().start_replay(of_a()).await.unwrap();
    }
    let refused = world.store().start_replay(of_a()).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Conflict(why) if why.contains("100 replays")), "{refused:?}");
    world.advance_replays(100).await;
    world.store().start_replay(of_a()).await.unwrap();
}

pub(crate) async fn replays_take_turns<H: Harness>(world: World<H>) {
    for _ in 0..6 {
        world.cancelled(to("a")).await;
    }
    let ids = [
        world.store().start_replay(of_a()).await.unwrap().id,
        world.store().start_replay(of_a()).await.unwrap().id,
    ];
    let done = async |id| world.store().replay(id).await.unwrap().done;
    while done(ids[0]).await + done(ids[1]).await < 6 {
        world.advance(1);
        world.store().advance_replays(1).await.unwrap();
    }
    assert_eq!((done(ids[0]).await, done(ids[1]).await), (3, 3));
}

pub(crate) async fn replays_that_ended_go_after_their_days<H: Harness>(mut world: World<H>) {
    world.configure("event_log_retention_days", 2).await;
    let original = world.cancelled(to("a")).await;
    let completed = world.replayed(of_a()).await.id;
    let made = world.story(original).await.replayed_as[0];
    let stopped = world.store().start_replay(of_a()).await.unwrap().id;
    world.store().stop_replay(stopped).await.unwrap();
    let running = world.store().start_replay(of_a()).await.unwrap().id;
    let left = async |world: &World<H>| {
        let list = world.store().replays(None, 10).await.unwrap();
        list.into_iter().map(|replay| replay.id).collect::<Vec<_>>()
    };
    world.advance(2 * DAY - 60);
    world.clean_up().await;
    assert_eq!(left(&world).await, [running, stopped, completed]);
    world.advance(120);
    world.clean_up().await;
    assert_eq!(left(&world).await, [running]);
    assert_eq!(world.story(made).await.replay_of, Some(original), "as long as the archive is kept");
    world.advance(8 * 31 * DAY);
    world.crash().await;
    world.clean_up().await;
    assert_eq!(world.story(made).await.replay_of, None);
}

pub(crate) async fn racing_nodes_replay_each_message_once<H: Harness>(world: World<H>) {
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(world.cancelled(to("a")).await);
    }
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    while world.store().replay(id).await.unwrap().state == ReplayState::Running {
        let turn = || world.store().advance_replays(3);
        let (one, two, three) = tokio::join!(turn(), turn(), turn());
        one.and(two).and(three).unwrap();
    }
    assert_eq!(world.originals().await, ids);
    assert_eq!(world.store().replay(id).await.unwrap().done, 40);
}
