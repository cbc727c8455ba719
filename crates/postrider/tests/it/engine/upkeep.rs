//! What a node cleans up, and when.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use postrider::Engine;

use super::faulty::Faulty;
use super::world::{World, stand_still, until};

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
