use postrider::error::StoreError;
use postrider::store::{AttemptOutcome, Evicted, Redrive};
use postrider::{MessageId, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, short_lived, to};

const DAY: u64 = 86_400;

async fn completed<H: Harness>(world: &mut World<H>, message: NewMessage) -> MessageId {
    let id = world.send(message).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    id
}

async fn is_forgotten<H: Harness>(world: &World<H>, id: MessageId) -> bool {
    match world.store().story(id).await {
        Ok(_) => false,
        Err(StoreError::Unknown { .. }) => true,
        Err(other) => panic!("{other:?}"),
    }
}

pub(crate) async fn letters_go_after_their_days_and_not_before<H: Harness>(mut world: World<H>) {
    world.configure("dlq_retention_days", 2).await;
    let failed = world.send_to_death(to("a")).await;
    let redriven = world.send_to_death(to("a")).await;
    world.store().redrive(Redrive::One(redriven.id)).await.unwrap();
    let discarded = world.send_to_death_of_next().await;
    world.store().discard(discarded).await.unwrap();
    world.advance(2 * DAY - 60);
    world.clean_up().await;
    assert_eq!(world.letters().await.len(), 3);
    world.advance(120);
    world.clean_up().await;
    assert_eq!(world.letters().await.len(), 0);
    assert!(is_forgotten(&world, failed.message).await);
    assert_eq!(world.store().status().await.unwrap().dead, 0);
}

impl<H: Harness> World<H> {
    /// The redriven message dies once more.
    async fn send_to_death_of_next(&mut self) -> i64 {
        let ticket = self.claim_one().await;
        self.die(ticket).await;
        self.story(ticket.id).await.dlq_id.expect("it is dead")
    }
}

pub(crate) async fn an_evicted_letter_is_counted_and_logged<H: Harness>(mut world: World<H>) {
    world.configure("event_log_retention_days", 365).await;
    world.send_to_death(to("a")).await;
    world.advance(31 * DAY);
    let by_age = world.clean_up().await;
    for _ in 0..2 {
        world.send_to_death(to("a")).await;
    }
    world.configure("dlq_max_bytes", 1).await;
    let by_size = world.clean_up().await;
    let told = |evicted: &[Evicted]| -> Vec<(String, u64)> {
        evicted.iter().map(|evicted| (evicted.rule.clone(), evicted.count)).collect()
    };
    assert_eq!(told(&by_age), [("dlq_retention_days".to_owned(), 1)], "for the node's own log");
    assert_eq!(told(&by_size), [("dlq_max_bytes".to_owned(), 2)]);
    assert_eq!(world.clean_up().await, []);
    let logged = world.events().await.into_iter().filter(|event| event.kind == "dlq.evicted");
    let logged: Vec<Evicted> = logged.map(|event| serde_json::from_value(event.detail).unwrap()).collect();
    assert_eq!(logged, [by_size, by_age].concat());
}

pub(crate) async fn a_head_that_holds_its_key_outlives_retention<H: Harness>(mut world: World<H>) {
    let hold = world.endpoint("hold", json!({"on_dead": "hold"})).await;
    let head = world.send_to_death(to("hold").ordering_key("k")).await;
    let released = world.send_to_death(to("hold").ordering_key("released")).await;
    let unkeyed = world.send_to_death(to("hold")).await;
    let next = world.send(to("hold").ordering_key("k")).await;
    world.store().release_key("released", Some("hold")).await.unwrap();
    world.configure("dlq_max_bytes", 1).await;
    world.advance(31 * DAY);
    world.clean_up().await;
    let left: Vec<_> = world.letters().await.iter().map(|letter| letter.id).collect();
    assert_eq!(left, [head.id], "{} and {} hold nothing", released.id, unkeyed.id);
    let node = world.another_node().await;
    assert!(world.claim_as(node, hold, 10).await.is_empty());
    world.store().redrive(Redrive::One(head.id)).await.unwrap();
    let ticket = world.claim_as(node, hold, 10).await[0];
    assert_eq!(ticket.id, head.message);
    world.complete(ticket).await;
    assert_eq!(world.claim_as(node, hold, 10).await[0].id, next);
}

pub(crate) async fn a_full_dlq_evicts_its_oldest_down_to_ninety_percent<H: Harness>(mut world: World<H>) {
    let mut letters = Vec::new();
    for _ in 0..10 {
        let message = NewMessage { payload: vec![b'1'; 10_000].into(), ..to("a") };
        letters.push(world.send_to_death(message).await.id);
    }
    world.clean_up().await;
    assert_eq!(world.letters().await.len(), 10, "0 is no limit");
    world.configure("dlq_max_bytes", 60_000).await;
    world.clean_up().await;
    let left: Vec<i64> = world.letters().await.iter().map(|letter| letter.id).collect();
    assert_eq!(left, letters[10 - left.len()..], "the oldest went");
    assert!((4..=5).contains(&left.len()), "54 000 bytes hold {} of them", left.len());
    let events = world.events().await;
    assert!(events.iter().any(|event| event.kind.contains("evict")), "{events:?}");
    world.clean_up().await;
    assert_eq!(world.letters().await.len(), left.len(), "and no more than needed");
}

pub(crate) async fn finished_messages_go_after_their_months_and_not_before<H: Harness>(mut world: World<H>) {
    world.configure("archive_retention_months", 2).await;
    let done = completed(&mut world, to("a")).await;
    let cancelled = world.send(to("a")).await;
    world.store().cancel(cancelled).await.unwrap();
    world.advance(58 * DAY);
    world.clean_up().await;
    assert_eq!(world.states(&[done, cancelled]).await, [State::Completed, State::Cancelled]);
    world.advance(60 * DAY);
    world.clean_up().await;
    assert!(is_forgotten(&world, done).await && is_forgotten(&world, cancelled).await);
}

pub(crate) async fn what_is_not_finished_is_never_cleaned_up<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a").ordering_key("k")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 400 * DAY).await;
    world.advance(399 * DAY);
    world.clean_up().await;
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempts.len()), (State::Pending, 1));
}

pub(crate) async fn the_event_log_goes_after_its_days<H: Harness>(world: World<H>) {
    world.configure("event_log_retention_days", 3).await;
    let before = world.events().await;
    assert!(!before.is_empty());
    world.advance(2 * DAY);
    world.clean_up().await;
    assert_eq!(world.events().await, before);
    world.advance(2 * DAY);
    world.clean_up().await;
    let left = world.events().await;
    assert!(left.iter().all(|event| !before.contains(event)), "{left:?}");
}

pub(crate) async fn cleaning_up_is_done_in_bounded_steps<H: Harness>(mut world: World<H>) {
    for _ in 0..10 {
        world.send_to_death(to("a")).await;
    }
    world.advance(31 * DAY);
    let (mut left, mut steps) = (10, 0);
    while world.store().clean_up(3).await.unwrap().more {
        let now_left = world.letters().await.len();
        assert!(left - now_left <= 3, "{left} became {now_left}");
        (left, steps) = (now_left, steps + 1);
        assert!(steps < 100, "it never ends");
    }
    assert_eq!(world.letters().await.len(), 0, "false means that nothing is left to do");
    assert!(steps >= 3);
}

pub(crate) async fn the_archive_keeps_as_much_as_it_is_told<H: Harness>(mut world: World<H>) {
    let message = NewMessage { headers: [("x".to_owned(), "y".to_owned())].into(), ..to("a") };
    let whole = completed(&mut world, message.clone()).await;
    world.configure("archive", "metadata").await;
    let bare = completed(&mut world, message.clone()).await;
    world.configure("archive", "off").await;
    let gone = completed(&mut world, message.clone()).await;

    let story = world.story(whole).await;
    assert_eq!((story.payload, story.headers), (Some(message.payload.clone()), message.headers.clone()));
    let story = world.story(bare).await;
    assert_eq!((story.state, story.payload, story.headers.len()), (State::Completed, None, 0));
    assert!(is_forgotten(&world, gone).await);
    let letter = world.send_to_death(message.clone()).await;
    assert_eq!(letter.payload, Some(message.payload), "the DLQ is not the archive");
}

pub(crate) async fn the_attempt_log_keeps_as_much_as_it_is_told<H: Harness>(mut world: World<H>) {
    let table = [
        ("all", vec![(1, AttemptOutcome::Failed), (2, AttemptOutcome::Delivered)]),
        ("failures", vec![(1, AttemptOutcome::Failed)]),
        ("off", vec![]),
    ];
    for (mode, expected) in table {
        world.configure("attempt_log", mode).await;
        let id = world.send(to("a")).await;
        let ticket = world.claim_one().await;
        world.retry(ticket, 0).await;
        let ticket = world.claim_one().await;
        world.complete(ticket).await;
        let story = world.story(id).await;
        let kept: Vec<_> = story.attempts.iter().map(|attempt| (attempt.number, attempt.outcome)).collect();
        assert_eq!(kept, expected, "{mode}");
        assert_eq!(story.attempt_count, 2, "{mode}");
    }
}

pub(crate) async fn no_attempt_is_kept_where_none_is_wanted<H: Harness>(mut world: World<H>) {
    world.configure("attempt_log", "off").await;
    let cancelled = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.retry(ticket, 0).await;
    world.store().cancel(cancelled).await.unwrap();
    let expired = world.send(short_lived(world.now())).await;
    let ticket = world.claim_one().await;
    world.live(10).await;
    world.settle(ticket, postrider::verdict::Verdict::Expire).await;
    for id in [cancelled, expired] {
        let story = world.story(id).await;
        assert_eq!((story.attempt_count, story.attempts.len()), (1, 0), "{}", story.state);
    }
}

pub(crate) async fn a_letter_tells_its_errors_whatever_the_attempt_log<H: Harness>(mut world: World<H>) {
    world.configure("attempt_log", "off").await;
    let letter = world.send_to_death(to("a")).await;
    assert_eq!(letter.errors.len(), 1);
    assert_eq!(letter.last_error.as_deref(), Some("[RETRYABLE] try 1 failed"));
}
