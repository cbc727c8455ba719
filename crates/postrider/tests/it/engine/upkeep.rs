//! What a node cleans up, and when.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use postrider::{Engine, State};
use serde_json::json;

use super::PATIENCE;
use super::faulty::Faulty;
use super::receiver::Answer;
use super::world::{World, quick, stand_still, until};
use crate::log_lines::LogLines;

#[tokio::test(start_paused = true)]
async fn a_running_node_cleans_up_as_often_as_it_is_told_now() {
    let world = World::new().await;
    let faulty = Faulty::over(&world.store);
    let time = stand_still();
    let engine = Engine::start(faulty.clone(), world.options()).await.unwrap();
    let cleaned = || faulty.cleaned_up.lock().unwrap().clone();
    until(|| cleaned().len() == 1).await;
    let turn = async || {
        let turns = faulty.looked_for_expired.load(SeqCst);
        tokio::time::advance(Duration::from_secs(1)).await;
        until(|| faulty.looked_for_expired.load(SeqCst) > turns).await;
    };
    turn().await;
    world.configure("cleanup_interval", "10").await;
    for _ in 0..35 {
        turn().await;
    }
    let apart: Vec<u64> = cleaned().windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
    // A turn that takes until after the next second delays the following ones.
    assert!(apart.len() >= 2 && apart.iter().all(|seconds| (10..=12).contains(seconds)), "{apart:?}");
    drop(time);
    engine.stop().await;
}

#[tokio::test]
async fn what_a_node_evicts_is_in_its_log() {
    let world = World::new().await;
    world.endpoint_from(json!({ "name": "a", "retry_policy": quick(1) })).await;
    world.receiver.answer(Answer::status(500));
    let engine = world.engine().await;
    let id = world.send("a", 1).await;
    world.until_state(id, State::Dead).await;
    engine.stop().await;
    world.configure("dlq_max_bytes", "1").await;
    let (logged, _guard) = LogLines::gather();
    let engine = world.engine().await;
    let is_evicted = async {
        while !world.dead_letters().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, is_evicted).await.expect("the letter goes");
    engine.stop().await;
    let mut lines = logged.read();
    lines.retain(|line| line["message"] == "evicted dead letters");
    let told = ["level", "rule", "count"].map(|field| lines[0][field].clone());
    assert_eq!((told, lines.len()), ([json!("INFO"), json!("dlq_max_bytes"), json!(1)], 1));
}
