//! Endpoints share a node fairly: a bad one slows nobody else.

use std::sync::Arc;
use std::time::Duration;

use postrider::{EngineOptions, NewEndpoint, Operate};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::receiver::{Answer, Receiver};
use super::world::{World, to};

#[tokio::test]
async fn a_hanging_endpoint_does_not_hold_up_a_healthy_one() {
    let world = World::new().await;
    hanging_beside_healthy(&world, 1, EngineOptions { max_in_flight: 64, ..world.options() }).await;
}

#[tokio::test]
async fn twenty_hanging_endpoints_do_not_hold_up_a_healthy_one() {
    let world = World::new().await;
    hanging_beside_healthy(&world, 20, world.options()).await;
}

#[tokio::test]
async fn more_hanging_endpoints_than_the_node_has_room_for_leave_room_for_a_healthy_one() {
    let world = World::new().await;
    // Together they could take four times the room there is.
    hanging_beside_healthy(&world, 20, EngineOptions { max_in_flight: 80, ..world.options() }).await;
}

#[tokio::test]
async fn more_hanging_endpoints_than_slots_do_not_hold_up_one_that_answered_before() {
    const HANGING: usize = 100;
    let world = World::new().await;
    world.receiver.script(|arrival| match arrival.path.as_str() {
        "healthy" => Answer::ok(),
        _ => Answer::ok().held(),
    });
    world.endpoint("healthy").await;
    let engine = world.engine_with(EngineOptions { max_in_flight: 16, ..world.options() }).await;
    world.send_many("healthy", 1).await;
    world.receiver.until("its first answer", |receiver| receiver.at("healthy").len() == 1).await;
    world.until_empty().await;
    for n in 0..HANGING {
        world.endpoint(&format!("hanging{n}")).await;
        world.send(&format!("hanging{n}"), 0).await;
    }
    world.receiver.until("nothing more to start", |receiver| receiver.running_in_all() == 14).await;
    world.send_many("healthy", 200).await;
    world.receiver.until("the healthy ones", |receiver| receiver.at("healthy").len() == 201).await;
    assert_eq!(world.receiver.running_in_all(), 14, "the others still hang");
    world.receiver.release();
    world.until_empty().await;
    engine.stop().await;
}

async fn hanging_beside_healthy(world: &World, hanging: usize, options: EngineOptions) {
    for n in 0..hanging {
        world.endpoint(&format!("hanging{n}")).await;
    }
    world.endpoint("healthy").await;
    world
        .receiver
        .script(|arrival| if arrival.path == "healthy" { Answer::ok() } else { Answer::ok().held() });
    let engine = world.engine_with(options).await;
    for n in 0..hanging {
        world.send_many(&format!("hanging{n}"), 100).await;
    }
    let all_hang = |receiver: &Receiver| (0..hanging).all(|n| receiver.running(&format!("hanging{n}")) > 0);
    world.receiver.until("all to hang", all_hang).await;
    world.send_many("healthy", 200).await;
    for n in 0..20 {
        world.send("healthy", n).await;
    }
    world.receiver.until("the healthy ones", |receiver| receiver.at("healthy").len() == 220).await;
    assert!(all_hang(&world.receiver), "they finished while the others still hang");
    world.receiver.release();
    world.until_empty().await;
    engine.stop().await;
}

#[tokio::test]
async fn a_dead_endpoint_does_not_hold_up_a_healthy_one() {
    let world = World::new().await;
    // Nobody listens there.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = json!({ "url": format!("http://{closed}/") });
    world.endpoint_from(json!({ "name": "dead", "config": config })).await;
    world.endpoint("healthy").await;
    let engine = world.engine().await;
    let messages = (0..200).map(|n| to(if n % 2 == 0 { "dead" } else { "healthy" }, n)).collect();
    world.send_all(messages).await;
    world.receiver.until("the healthy ones", |receiver| receiver.at("healthy").len() == 100).await;
    assert_eq!(
        world.store.status().await.unwrap().endpoints[0].pending,
        100,
        "nothing of the dead one is lost"
    );
    engine.stop().await;
}

#[tokio::test]
async fn two_thousand_endpoints_each_get_their_message() {
    let world = World::new().await;
    for n in 0..2000 {
        let config = json!({ "url": world.receiver.url(&format!("e{n}")) }).as_object().unwrap().clone();
        let endpoint = NewEndpoint {
            name: format!("e{n}"),
            protocol: "http".to_owned(),
            config,
            ..NewEndpoint::default()
        };
        world.store.create_endpoint(endpoint).await.unwrap();
    }
    world.send_all((0..2000).map(|n| to(&format!("e{n}"), n)).collect()).await;
    let engine = world.engine_with(EngineOptions { max_in_flight: 64, ..world.options() }).await;
    world.until_empty().await;
    let mut paths: Vec<String> = world.receiver.arrivals().into_iter().map(|arrival| arrival.path).collect();
    assert_eq!(paths.len(), 2000);
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 2000);
    assert!(world.receiver.most_running_in_all() <= 64);
    engine.stop().await;
}

#[tokio::test]
async fn a_huge_backlog_does_not_starve_another_endpoint() {
    let world = World::new().await;
    world.endpoint("huge").await;
    world.endpoint("small").await;
    world.receiver.answer(Answer::ok().after(Duration::from_millis(5)));
    world.send_many("huge", 5000).await;
    let engine = world.engine_with(EngineOptions { max_in_flight: 16, ..world.options() }).await;
    world.receiver.until("a busy node", |receiver| receiver.count() > 100).await;
    let before = world.receiver.count();
    world.send_many("small", 20).await;
    world.receiver.until("the small ones", |receiver| receiver.at("small").len() == 20).await;
    let meanwhile = world.receiver.count() - before;
    // An even share is 40; what was claimed before, and the next turn of the other, come on top.
    assert!(meanwhile < 400, "{meanwhile} others went first");
    world.store.drop_endpoint("huge", true).await.unwrap();
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_that_skip_the_queue_leave_turns_to_the_backlog_of_others() {
    let world = Arc::new(World::new().await);
    for endpoint in ["direct", "b0", "b1", "b2", "b3"] {
        world.endpoint(endpoint).await;
    }
    let engine = world.engine_with(EngineOptions { max_in_flight: 2, ..world.options() }).await;
    let stop = CancellationToken::new();
    // They take the node's last room between two of the dispatcher's looks at it.
    let senders: Vec<_> = (0..4)
        .map(|_| {
            let (world, stop) = (world.clone(), stop.clone());
            tokio::spawn(async move {
                while !stop.is_cancelled() {
                    world.send("direct", 0).await;
                }
            })
        })
        .collect();
    for endpoint in ["b0", "b1", "b2", "b3"] {
        world.send_many(endpoint, 150).await;
    }
    let backlog = |receiver: &Receiver| receiver.arrivals().iter().filter(|a| a.path != "direct").count();
    world.receiver.until("the backlog", |receiver| backlog(receiver) == 600).await;
    stop.cancel();
    for sender in senders {
        sender.await.unwrap();
    }
    world.until_empty().await;
    engine.stop().await;
}
