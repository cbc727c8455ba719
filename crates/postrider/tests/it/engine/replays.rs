//! Replays as a node runs them: by itself, and on after a restart.

use std::time::{Duration, Instant};

use postrider::MessageId;
use postrider::rate::{Interval, RateLimit};
use postrider::store::{NewReplay, Replay, ReplaySelection, ReplayState, Replays};

use super::PATIENCE;
use super::world::World;

impl World {
    async fn until_replayed(&self, id: i64, enough: impl Fn(&Replay) -> bool) -> Replay {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let replay = self.store.replay(id).await.unwrap();
            if enough(&replay) {
                return replay;
            }
            assert!(Instant::now() < deadline, "it did not come so far: {replay:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn from_a_to_b(rate_limit: Option<RateLimit>) -> NewReplay {
    let selection = ReplaySelection { endpoint: Some("a".into()), ..ReplaySelection::default() };
    NewReplay { selection, to: Some("b".into()), rate_limit }
}

#[tokio::test]
async fn a_node_replays_what_somebody_else_asks_for() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    let engine = world.engine().await;
    let ids = world.send_many("a", 30).await;
    world.until_empty().await;
    // As a command beside the node does it.
    let id = world.tool().start_replay(from_a_to_b(None)).await.unwrap().id;
    let done = world.until_replayed(id, |replay| replay.state == ReplayState::Completed).await;
    assert_eq!((done.total, done.done), (Some(30), 30));
    world.until_empty().await;
    assert_eq!(world.receiver.at("b").len(), 30);
    let mut made: Vec<MessageId> = Vec::new();
    for id in ids {
        made.extend(world.story(id).await.replayed_as);
    }
    assert_eq!(made.len(), 30);
    engine.stop().await;
}

#[tokio::test]
async fn a_replay_goes_on_with_the_next_node() {
    let mut world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    let engine = world.engine().await;
    let ids = world.send_many("a", 12).await;
    world.until_empty().await;
    let limit = RateLimit { limit: 10, interval: Interval::Second, burst: Some(1) };
    let id = world.store.start_replay(from_a_to_b(Some(limit))).await.unwrap().id;
    let before = world.until_replayed(id, |replay| replay.done >= 2).await.done;
    engine.stop().await;
    world.reopen().await;
    let engine = world.engine().await;
    let done = world.until_replayed(id, |replay| replay.state == ReplayState::Completed).await;
    assert!(before < 12, "there was something left to do: {before}");
    assert_eq!(done.done, 12);
    world.until_empty().await;
    for id in ids {
        assert_eq!(world.story(id).await.replayed_as.len(), 1, "{id}");
    }
    assert_eq!(world.receiver.at("b").len(), 12);
    engine.stop().await;
}
