use postrider::error::StoreError;
use postrider::store::{Effect, End, Redrive};
use postrider::{NewMessage, Operate, State};
use serde_json::json;

use crate::store::world::{Harness, World, to};

fn is_full(error: &StoreError) -> bool {
    matches!(error, StoreError::QueueFull { .. }) && error.sqlstate() == "53400"
}

/// Fills endpoint `a` up to the limit and lets the counting catch up.
async fn fill<H: Harness>(world: &World<H>, limit: usize) {
    world.configure("max_queue_size", limit).await;
    world.store().send_batch(vec![to("a"); limit * 95 / 100]).await.expect("never refused below 95 %");
    for _ in 0..limit {
        world.live(2).await;
        match world.store().send(to("a")).await {
            Ok(_) => {}
            Err(error) => {
                assert!(is_full(&error), "{error:?}");
                break;
            }
        }
    }
    let queued = world.queued().await;
    assert!(queued <= limit as u64, "{queued} of {limit}");
}

pub(crate) async fn a_full_queue_refuses_a_whole_batch<H: Harness>(world: World<H>) {
    world.configure("max_queue_size", 100).await;
    world.store().send_batch(vec![to("a"); 95]).await.expect("never refused below 95 %");
    world.live(2).await;
    for more in [6, 40] {
        let refused = world.store().send_batch(vec![to("a"); more]).await.unwrap_err();
        assert!(is_full(&refused), "{refused:?}");
        assert_eq!(world.queued().await, 95, "all or nothing");
    }
}

pub(crate) async fn a_refusal_counts_nothing_of_what_it_refuses<H: Harness>(world: World<H>) {
    world.endpoint("small", json!({"max_queue_size": 20})).await;
    world.configure("max_queue_size", 100).await;
    world.store().send_batch([vec![to("a"); 76], vec![to("small"); 19]].concat()).await.unwrap();
    world.live(2).await;
    let keyed = to("a").ordering_key("k");
    for batch in [vec![to("a"); 6], vec![to("a"); 40], vec![keyed; 40]] {
        let refused = world.store().send_batch(batch).await.unwrap_err();
        let StoreError::QueueFull { queued, limit, endpoint } = refused else { panic!("{refused:?}") };
        assert_eq!((queued, limit, endpoint), (95, 100, None));
    }
    let refused = world.store().send_batch(vec![to("small"), to("a"), to("small")]).await.unwrap_err();
    let StoreError::QueueFull { queued, limit, endpoint } = refused else { panic!("{refused:?}") };
    assert_eq!((queued, limit, endpoint.as_deref()), (19, 20, Some("small")));
}

pub(crate) async fn a_drained_queue_accepts_again<H: Harness>(mut world: World<H>) {
    fill(&world, 20).await;
    assert!(is_full(&world.store().send(to("a")).await.unwrap_err()));
    let tickets = world.claim(world.a, 5).await;
    assert!(is_full(&world.store().send(to("a")).await.unwrap_err()), "processing counts too");
    for ticket in tickets {
        world.complete(ticket).await;
    }
    world.live(2).await;
    world.send(to("a")).await;
}

pub(crate) async fn an_endpoint_may_have_a_limit_of_its_own<H: Harness>(world: World<H>) {
    world.endpoint("small", json!({"max_queue_size": 20})).await;
    world.store().send_batch(vec![to("small"); 19]).await.expect("never refused below 95 %");
    world.live(2).await;
    let refused = world.store().send_batch(vec![to("small"), to("a"), to("small")]).await.unwrap_err();
    assert!(is_full(&refused) && refused.to_string().contains("small"), "{refused}");
    assert_eq!(world.queued().await, 19);
    world.store().send_batch(vec![to("a"); 30]).await.expect("others have room");
}

pub(crate) async fn retries_and_releases_are_exempt<H: Harness>(mut world: World<H>) {
    world.send(to("a")).await;
    fill(&world, 20).await;
    let tickets = world.claim(world.a, 3).await;
    world.configure("max_queue_size", 1).await;
    assert_eq!(world.retry(tickets[0], 0).await.effect, Effect::Applied(State::Pending));
    assert_eq!(world.end(tickets[1], End::Released).await.effect, Effect::Applied(State::Pending));
    assert_eq!(world.complete(tickets[2]).await.effect, Effect::Applied(State::Completed));
}

pub(crate) async fn a_redrive_is_not_exempt<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    fill(&world, 20).await;
    for selection in [Redrive::One(letter.id), Redrive::All] {
        let refused = world.store().redrive(selection).await.unwrap_err();
        assert!(is_full(&refused), "{refused:?}");
    }
    assert_eq!(world.state(letter.message).await, State::Dead);
    world.configure("max_queue_size", 0).await;
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), 1);
}

pub(crate) async fn a_duplicate_needs_no_room<H: Harness>(world: World<H>) {
    let id = world.send(to("a").idempotency_key("i")).await;
    fill(&world, 20).await;
    let sent = world.store().send(to("a").idempotency_key("i")).await.unwrap();
    assert_eq!((sent.id, sent.duplicate), (id, true));
}

pub(crate) async fn zero_is_no_limit<H: Harness>(world: World<H>) {
    world.configure("max_queue_size", 0).await;
    world.endpoint("free", json!({"max_queue_size": 0})).await;
    world.store().send_batch(vec![NewMessage { endpoint: "free".into(), ..to("a") }; 300]).await.unwrap();
    assert_eq!(world.queued().await, 300);
}
