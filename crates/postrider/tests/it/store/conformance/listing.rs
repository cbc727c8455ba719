use std::time::Duration;

use postrider::error::StoreError;
use postrider::message::NodeId;
use postrider::store::{Listing, MessageFilter, MessagePage, NodeState};
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;
use uuid::Uuid;

use crate::store::world::{Harness, World, short_lived, to};

/// A message in each state, in the order of [`State::ALL`].
async fn one_of_each<H: Harness>(world: &mut World<H>) -> Vec<(State, MessageId)> {
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    let expired = world.send(short_lived(world.now())).await;
    world.live(11).await;
    world.store().upkeep(10).await.unwrap();
    let cancelled = world.send(to("a")).await;
    world.store().cancel(cancelled).await.unwrap();
    let dead = world.send_to_death(to("a")).await.message;
    let processing = world.send(to("a")).await;
    world.claim_one().await;
    let pending = world.send(to("a")).await;
    let ids = [pending, processing, ticket.id, expired, cancelled, dead];
    State::ALL.into_iter().zip(ids).collect()
}

async fn found<H: Harness>(world: &World<H>, filter: MessageFilter) -> Vec<MessageId> {
    all_pages(world, filter).await.into_iter().flat_map(|page| page.items).map(|item| item.id).collect()
}

async fn all_pages<H: Harness>(world: &World<H>, mut filter: MessageFilter) -> Vec<MessagePage> {
    let mut pages = Vec::new();
    loop {
        let page = world.store().messages(filter.clone()).await.unwrap();
        filter.before = page.next;
        pages.push(page);
        assert!(pages.len() < 1000, "the pages never end");
        if filter.before.is_none() {
            return pages;
        }
    }
}

fn any() -> MessageFilter {
    MessageFilter::default()
}

pub(crate) async fn every_message_is_listed_once_newest_first<H: Harness>(mut world: World<H>) {
    let mut ids: Vec<MessageId> = one_of_each(&mut world).await.into_iter().map(|(_, id)| id).collect();
    ids.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(found(&world, any()).await, ids);
    for limit in [1, 2, 4] {
        let pages = all_pages(&world, MessageFilter { limit, ..any() }).await;
        assert!(pages.iter().all(|page| page.items.len() <= limit));
        let listed: Vec<MessageId> =
            pages.into_iter().flat_map(|page| page.items).map(|item| item.id).collect();
        assert_eq!(listed, ids, "{limit} at a time");
    }
}

pub(crate) async fn a_listed_message_says_what_its_story_says<H: Harness>(mut world: World<H>) {
    let message = NewMessage {
        priority: 3,
        correlation_id: Some(Uuid::from_u128(7)),
        event_type: Some("order.paid".to_owned()),
        expires_at: Some(world.in_seconds(1000)),
        ..to("a").ordering_key("k").idempotency_key("i")
    };
    one_of_each(&mut world).await;
    world.send(message).await;
    for item in world.store().messages(any()).await.unwrap().items {
        let story = world.story(item.id).await;
        assert_eq!(
            (&item.endpoint, item.state, item.priority),
            (&story.endpoint, story.state, story.priority)
        );
        assert_eq!((item.due_at, item.finished_at), (story.due_at, story.finished_at), "{item:?}");
        assert_eq!(
            (item.attempt_count, &item.last_error),
            (story.attempt_count, &story.last_error),
            "{item:?}"
        );
        assert_eq!((&item.content_type, item.dlq_id), (&story.content_type, story.dlq_id));
        let keys = (&item.idempotency_key, &item.ordering_key, &item.event_type, item.correlation_id);
        assert_eq!(
            keys,
            (&story.idempotency_key, &story.ordering_key, &story.event_type, story.correlation_id)
        );
        let times = (item.created_at, item.scheduled_at, item.expires_at);
        assert_eq!(times, (story.created_at, story.scheduled_at, story.expires_at));
    }
}

pub(crate) async fn a_list_has_what_every_filter_selects<H: Harness>(mut world: World<H>) {
    for (state, id) in one_of_each(&mut world).await {
        assert_eq!(found(&world, MessageFilter { state: Some(state), ..any() }).await, [id], "{state}");
    }
    world.endpoint("b", json!({})).await;
    let before = world.now();
    world.live(5).await;
    let correlation_id = Some(Uuid::from_u128(9));
    let event_type = Some("order.paid".to_owned());
    let plain = world.send(to("b")).await;
    let keyed = world.send(NewMessage { event_type: event_type.clone(), ..to("b").ordering_key("k") }).await;
    world.live(5).await;
    let related = world.send(NewMessage { correlation_id, ..to("b").ordering_key("k") }).await;
    let endpoint = Some("b".to_owned());
    let ordering_key = Some("k".to_owned());
    let b = MessageFilter { endpoint, ..any() };
    assert_eq!(found(&world, b.clone()).await, [related, keyed, plain]);
    assert_eq!(
        found(&world, MessageFilter { ordering_key: ordering_key.clone(), ..any() }).await,
        [related, keyed]
    );
    assert_eq!(found(&world, MessageFilter { event_type: event_type.clone(), ..any() }).await, [keyed]);
    assert_eq!(found(&world, MessageFilter { correlation_id, ..any() }).await, [related]);
    let since = MessageFilter { created_after: Some(before + Duration::from_secs(1)), ..any() };
    assert_eq!(found(&world, since.clone()).await, [related, keyed, plain]);
    let until = MessageFilter { created_before: Some(world.now()), ..since };
    assert_eq!(found(&world, until).await, [keyed, plain], "the end is not part of it");
    let never = MessageFilter { created_after: Some("8773-09-18T00:00:00Z".parse().unwrap()), ..any() };
    for state in State::ALL.map(Some).into_iter().chain([None]) {
        assert_eq!(found(&world, MessageFilter { state, ..never.clone() }).await, [], "{state:?}");
    }
    let all = MessageFilter { event_type, ordering_key, state: Some(State::Pending), ..b.clone() };
    assert_eq!(found(&world, all.clone()).await, [keyed]);
    assert_eq!(found(&world, MessageFilter { state: Some(State::Dead), ..all }).await, []);
}

pub(crate) async fn a_dropped_endpoint_is_listed_and_an_unknown_one_is_named<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({})).await;
    let id = world.send(to("b")).await;
    world.store().drop_endpoint("b", true).await.unwrap();
    let of = |name: &str| MessageFilter { endpoint: Some(name.to_owned()), ..any() };
    assert_eq!(found(&world, of("b")).await, [id]);
    let unknown = world.store().messages(of("never")).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "endpoint", .. }), "{unknown:?}");
}

pub(crate) async fn a_redriven_message_is_listed_where_it_is<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    world.store().redrive(postrider::store::Redrive::One(letter.id)).await.unwrap();
    let page = world.store().messages(any()).await.unwrap();
    let states: Vec<State> = page.items.iter().map(|item| item.state).collect();
    assert_eq!(states, [State::Pending]);
}

pub(crate) async fn a_rare_message_is_found_in_bounded_pages<H: Harness>(world: World<H>) {
    world.endpoint("rare", json!({})).await;
    let first = world.send(to("rare")).await;
    for _ in 0..5 {
        world.store().send_batch(vec![to("a"); 6000]).await.unwrap();
    }
    let last = world.send(to("rare")).await;
    let rare = MessageFilter { endpoint: Some("rare".to_owned()), ..any() };
    let pages = all_pages(&world, rare.clone()).await;
    assert!(pages.len() > 1, "one page does not look at everything");
    assert_eq!(pages[0].items.first().map(|item| item.id), Some(last));
    assert_eq!(found(&world, rare).await, [last, first]);
}

pub(crate) async fn what_was_made_long_ago_is_found_on_the_first_page<H: Harness>(world: World<H>) {
    let old = world.store().send_batch(vec![to("a"); 700]).await.unwrap();
    let then = world.now() + Duration::from_secs(1);
    world.advance(2 * 24 * 3600);
    for _ in 0..4 {
        world.store().send_batch(vec![to("a"); 6000]).await.unwrap();
    }
    let filter = MessageFilter { created_before: Some(then), ..any() };
    let page = world.store().messages(filter).await.unwrap();
    assert_eq!(page.items.first().map(|item| item.id), old.last().map(|sent| sent.id));
    assert_eq!(page.items.len(), 100);
}

pub(crate) async fn every_state_is_found_at_once_behind_a_long_queue<H: Harness>(mut world: World<H>) {
    let old = one_of_each(&mut world).await;
    let then = world.now() + Duration::from_secs(1);
    world.advance(2 * 24 * 3600);
    for _ in 0..2 {
        world.store().send_batch(vec![to("a"); 6000]).await.unwrap();
    }
    for (state, id) in old {
        let created_before = Some(then);
        let made_then = MessageFilter { state: Some(state), created_before, ..any() };
        let page = world.store().messages(made_then).await.unwrap();
        assert_eq!(page.items.iter().map(|item| item.id).collect::<Vec<_>>(), [id], "{state}, made then");
        if state != State::Pending {
            let filter = MessageFilter { state: Some(state), ..any() };
            let page = world.store().messages(filter).await.unwrap();
            assert_eq!(page.items.iter().map(|item| item.id).collect::<Vec<_>>(), [id], "{state}");
        }
    }
}

pub(crate) async fn nodes_are_listed_newest_first_with_their_state<H: Harness>(world: World<H>) {
    let second = world.another_node().await;
    world.store().leave(second).await.unwrap();
    let nodes = world.store().nodes(None, 10).await.unwrap();
    let states: Vec<(NodeId, NodeState)> = nodes.iter().map(|node| (node.id, node.state)).collect();
    assert_eq!(states, [(second, NodeState::Left), (world.node, NodeState::Live)]);
    assert_eq!((nodes[1].name.as_str(), nodes[1].joined_at), ("test", world.now()));
    assert!(nodes[1].lease_until > world.now());
    let older = world.store().nodes(Some(second), 10).await.unwrap();
    assert_eq!(older.iter().map(|node| node.id).collect::<Vec<_>>(), [world.node]);
    assert_eq!(world.store().nodes(None, 1).await.unwrap().len(), 1);
}
