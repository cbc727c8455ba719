//! What a failed attempt makes of its message and its endpoint.

use std::time::Duration;

use postrider::endpoint::DisabledBy;
use postrider::{Operate, State};
use serde_json::json;

use super::receiver::Answer;
use super::world::{World, quick};

#[tokio::test]
async fn a_failed_attempt_is_made_again_after_the_delay_of_the_policy() {
    let world = World::new().await;
    let policy = json!({ "max_attempts": 5, "backoff": "fixed", "base_delay_seconds": 0.2 });
    world.endpoint_from(json!({ "name": "a", "retry_policy": policy })).await;
    world.receiver.script(|arrival| Answer::status(if arrival.attempt < 3 { 500 } else { 200 }));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    let story = world.until_state(id, State::Completed).await;
    assert_eq!(story.attempt_count, 3);
    let arrivals = world.receiver.arrivals();
    assert_eq!(arrivals.iter().map(|arrival| arrival.attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(arrivals.iter().all(|arrival| arrival.id == world.public(id)), "every attempt has the same id");
    for pair in arrivals.windows(2) {
        assert!(pair[1].at - pair[0].at >= Duration::from_millis(200), "it was tried too soon");
    }
    engine.stop().await;
}

#[tokio::test]
async fn an_attempt_that_is_not_answered_in_time_is_made_again() {
    let world = World::new().await;
    let config = json!({ "timeout": 0.2 });
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(5), "config": config })).await;
    world.receiver.script(|arrival| if arrival.attempt == 1 { Answer::ok().held() } else { Answer::ok() });
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    let story = world.until_state(id, State::Completed).await;
    assert_eq!(story.attempt_count, 2);
    assert!(story.last_error.as_deref().is_some_and(|error| error.starts_with("[RETRYABLE]")), "{story:?}");
    engine.stop().await;
}

#[tokio::test]
async fn a_message_is_dead_after_its_last_attempt_and_its_letter_quotes_them_all() {
    let world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(3) })).await;
    world.receiver.answer(Answer::status(500));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    world.until_state(id, State::Dead).await;
    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].reason.as_str(), letters[0].attempt_count), ("attempts_exhausted", 3));
    assert_eq!(letters[0].errors.len(), 3);
    assert!(letters[0].errors.iter().all(|error| error.error.starts_with("[RETRYABLE]")));
    assert_eq!(world.receiver.count(), 3);
    engine.stop().await;
}

#[tokio::test]
async fn a_refused_message_is_dead_at_once() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.receiver.answer(Answer::status(400));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    let story = world.until_state(id, State::Dead).await;
    assert!(story.listed.last_error.unwrap().starts_with("[PERMANENT]"));
    assert_eq!(world.dead_letters().await[0].reason, "permanent");
    assert_eq!(world.receiver.count(), 1);
    engine.stop().await;
}

#[tokio::test]
async fn a_gone_receiver_disables_its_endpoint_and_later_messages_are_kept() {
    let world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "config": { "auto_disable_on_gone": true } })).await;
    world.receiver.answer(Answer::status(410));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    let story = world.until_state(id, State::Dead).await;
    assert!(story.listed.last_error.unwrap().starts_with("[DISABLE]"));
    assert_eq!(world.store.endpoint("a").await.unwrap().disabled, Some(DisabledBy::Gone));
    let kept = world.send_many("a", 3).await;
    world.receiver.answer(Answer::ok());
    assert_eq!(world.receiver.count(), 1);
    world.store.set_endpoint_enabled("a", true).await.unwrap();
    world.until_empty().await;
    assert_eq!(world.receiver.count(), 4, "none of the kept ones was tried before");
    assert_eq!(world.story(kept[0]).await.state, State::Completed);
    engine.stop().await;
}

#[tokio::test]
async fn retry_after_holds_back_the_other_messages_of_the_endpoint_but_no_other_endpoint() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.endpoint("b").await;
    world.receiver.script(|arrival| {
        match (arrival.path.as_str(), arrival.payload.as_str(), arrival.attempt) {
            ("a", "asks", 1) => Answer::status(429).retry_after(2),
            _ => Answer::ok(),
        }
    });
    let engine = world.engine().await;
    let asks = world.send("a", "asks").await;
    let story = world.until_state(asks, State::Pending).await;
    assert_eq!(story.attempt_count, 1);
    let others = world.send_many("a", 5).await;
    let elsewhere = world.send("b", 1).await;
    world.until_state(elsewhere, State::Completed).await;
    assert_eq!(world.receiver.at("a").len(), 1);
    world.until_empty().await;
    let arrivals = world.receiver.at("a");
    assert_eq!(arrivals.len(), 2 + others.len());
    for later in &arrivals[1..] {
        assert!(later.at - arrivals[0].at >= Duration::from_secs(2), "the receiver asked for two seconds");
    }
    engine.stop().await;
}

#[tokio::test]
async fn captured_answers_are_kept_with_their_attempts() {
    let world = World::new().await;
    world.endpoint("a").await;
    world.configure("attempt_log", "all").await;
    world.receiver.script(|arrival| {
        if arrival.attempt == 1 { Answer::status(500).body("not now") } else { Answer::ok().body("thanks") }
    });
    for (setting, failed, delivered) in
        [("failures", Some("not now"), None), ("all", Some("not now"), Some("thanks")), ("off", None, None)]
    {
        world.configure("capture_response", setting).await;
        let engine = world.engine().await;
        let id = world.send("a", setting).await;
        let story = world.until_state(id, State::Completed).await;
        let bodies: Vec<Option<&[u8]>> =
            story.attempts.iter().map(|attempt| attempt.response_body.as_deref()).collect();
        assert_eq!(bodies, [failed.map(str::as_bytes), delivered.map(str::as_bytes)], "{setting}");
        engine.stop().await;
    }
}
