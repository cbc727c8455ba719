//! Ended claims are gathered before they are settled while prefetched claims fill every slot; only briefly if a successor waits.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use postrider::{Engine, NewMessage};
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::PATIENCE;
use super::faulty::Faulty;
use super::receiver::Answer;
use super::world::{World, stand_still, to, until};

const KEYED: Option<&str> = Some("k");
const UNKEYED: Option<&str> = None;

#[tokio::test(start_paused = true)]
async fn a_keyed_end_is_settled_soon_and_the_rest_may_wait_for_more() {
    for (ended, millis) in [
        (vec![UNKEYED], 20),
        (vec![KEYED], 2),
        // The most urgent one decides for all, whichever came first.
        (vec![KEYED, UNKEYED], 2),
        (vec![UNKEYED, KEYED], 2),
    ] {
        assert_eq!(gathered_for(&ended).await, Duration::from_millis(millis), "{ended:?}");
    }
}

/// How long it takes from the end of these attempts until the store is asked to settle them.
async fn gathered_for(ended: &[Option<&str>]) -> Duration {
    let world = World::new().await;
    world.endpoint_with("a", json!({ "max_in_flight": 1 })).await;
    world.receiver.script(|arrival| match arrival.payload.as_str() {
        "quick" => Answer::ok(),
        "ends" => Answer::ok().held(),
        _ => Answer::ok().after(PATIENCE),
    });
    let faulty = Faulty::over(&world.store);
    let time = stand_still();
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    // Claims are prefetched only where attempts are quick.
    world.send("a", "quick").await;
    until(|| faulty.settled.load(SeqCst) == 1).await;

    let mut messages: Vec<NewMessage> = ended
        .iter()
        .map(|key| NewMessage { ordering_key: key.map(str::to_owned), ..to("a", "ends") })
        .chain([to("a", "hangs"), to("a", "is prefetched")])
        .collect();
    world.send_message(messages.remove(0)).await;
    world.receiver.until("the first", |receiver| receiver.running("a") == 1).await;
    let (claimed, ahead) = (faulty.claimed.load(SeqCst), messages.len());
    world.send_all(messages).await;
    until(|| faulty.claimed.load(SeqCst) == claimed + ahead).await;
    world.receiver.release();
    let arrived = ended.len() + 2;
    world.receiver.until("the one that hangs", |receiver| receiver.count() == arrived).await;

    let ended_at = Instant::now();
    while faulty.asked_to_settle.lock().unwrap().len() == 1 {
        assert!(ended_at.elapsed() < PATIENCE, "nothing was settled");
        tokio::time::advance(Duration::from_millis(1)).await;
        for _ in 0..100 {
            yield_now().await;
        }
    }
    let asked_at = faulty.asked_to_settle.lock().unwrap()[1];
    drop(time);
    engine.stop().await;
    asked_at - ended_at
}
