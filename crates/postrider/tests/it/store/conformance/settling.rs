use postrider::store::{AttemptOutcome, Effect, End, NextDue, Settlement};
use postrider::verdict::{Class, DeadReason, Verdict};
use postrider::{NewMessage, Operate, State, Store};
use serde_json::json;
use uuid::Uuid;

use crate::store::world::{DEAD, Harness, Ticket, World, short_lived, to};

pub(crate) async fn a_delivered_message_is_completed_and_archived<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a").ordering_key("k")).await;
    let ticket = world.claim_one().await;
    world.advance(2);
    let settled = world.complete(ticket).await;
    assert_eq!((settled.effect, settled.endpoint), (Effect::Applied(State::Completed), world.a));
    let story = world.story(id).await;
    assert_eq!((story.listed.state, story.listed.attempt_count), (State::Completed, 1));
    assert_eq!(story.listed.finished_at, Some(world.now()));
    assert_eq!((story.payload, story.listed.due_at, story.reason), (Some(to("a").payload), None, None));
    assert_eq!((story.listed.ordering_key.as_deref(), story.listed.last_error), (Some("k"), None));
    assert_eq!(world.queued().await, 0);
    assert_eq!(world.claim_ids().await, []);
}

pub(crate) async fn a_retry_is_a_pending_message_that_is_due_later<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    assert_eq!(world.retry(ticket, 10).await.effect, Effect::Applied(State::Pending));
    let story = world.story(id).await;
    let due_at = world.in_seconds(10);
    assert_eq!((story.state, story.due_at, story.attempt_count), (State::Pending, Some(due_at), 1));
    assert_eq!(story.last_error.as_deref(), Some("[RETRYABLE] try 1 failed"));
    assert_eq!(story.attempts.len(), 1);
    let attempt = &story.attempts[0];
    assert_eq!((attempt.number, attempt.node, attempt.outcome), (1, world.node, AttemptOutcome::Failed));
    assert_eq!((attempt.class, attempt.response_status), (Some(Class::Retryable), Some(500)));
    assert_eq!(world.next_due(world.a).await, NextDue::At(due_at));
    world.live(9).await;
    assert_eq!(world.claim_ids().await, []);
    world.live(1).await;
    assert_eq!(world.claim_one().await.attempt, 2);
}

pub(crate) async fn a_dead_message_is_a_dead_letter_with_everything<H: Harness>(mut world: World<H>) {
    let message = NewMessage {
        headers: [("x-tenant".to_owned(), "7".to_owned())].into(),
        content_type: "text/plain".into(),
        event_type: Some("order.paid".into()),
        priority: 7,
        scheduled_at: Some(world.now()),
        expires_at: Some(world.in_seconds(3600)),
        idempotency_key: Some("i".into()),
        correlation_id: Some(Uuid::from_u128(7)),
        options: json!({ "max_attempts": 2 }).as_object().unwrap().clone(),
        ..to("a").ordering_key("k")
    };
    let id = world.send(message.clone()).await;
    let created_at = world.now();
    let first = world.claim_one().await;
    world.retry(first, 5).await;
    world.live(5).await;
    let second = world.claim_one().await;
    assert_eq!(world.die(second).await.effect, Effect::Applied(State::Dead));

    let letter = world.letter_of(id).await;
    assert_eq!((letter.listed.endpoint.as_str(), letter.listed.reason.as_str()), ("a", "attempts_exhausted"));
    assert_eq!(letter.listed.status, postrider::store::DlqStatus::Failed);
    assert_eq!(
        (letter.listed.died_at, letter.listed.created_at, letter.listed.attempt_count),
        (world.now(), created_at, 2)
    );
    assert_eq!((letter.payload, letter.headers), (Some(message.payload), message.headers));
    assert_eq!(
        (letter.listed.content_type, letter.listed.event_type),
        (message.content_type, message.event_type)
    );
    assert_eq!(letter.listed.ordering_key, message.ordering_key);
    assert_eq!((letter.listed.priority, letter.options), (message.priority, message.options));
    assert_eq!(
        (letter.listed.scheduled_at, letter.listed.expires_at),
        (message.scheduled_at, message.expires_at)
    );
    assert_eq!(
        (letter.listed.idempotency_key, letter.listed.correlation_id),
        (message.idempotency_key, message.correlation_id)
    );
    let errors: Vec<_> = letter.errors.iter().map(|error| (error.attempt, error.error.as_str())).collect();
    assert_eq!(errors, [(1, "[RETRYABLE] try 1 failed"), (2, "[RETRYABLE] try 2 failed")]);
    assert_eq!(letter.errors[0].at, created_at);
    assert_eq!(letter.listed.last_error.as_deref(), Some("[RETRYABLE] try 2 failed"));
    let story = world.story(id).await;
    assert_eq!((story.state, story.dlq_id), (State::Dead, Some(letter.listed.id)));
    assert_eq!(world.queued().await, 0);
    assert_eq!(world.store().status().await.unwrap().dead, 1);
}

pub(crate) async fn each_reason_of_death_is_recorded<H: Harness>(mut world: World<H>) {
    for reason in [DeadReason::AttemptsExhausted, DeadReason::Permanent, DeadReason::Gone] {
        let id = world.send(to("a")).await;
        let ticket = world.claim_one().await;
        world.settle(ticket, Verdict::Dead { reason, disable_endpoint: false }).await;
        assert_eq!(world.letter_of(id).await.reason, reason.as_str());
    }
    assert!(world.store().endpoint("a").await.unwrap().disabled.is_none());
}

pub(crate) async fn a_failure_past_the_expiry_is_archived_as_expired<H: Harness>(mut world: World<H>) {
    let id = world.send(short_lived(world.now())).await;
    let ticket = world.claim_one().await;
    world.live(10).await;
    assert_eq!(world.settle(ticket, Verdict::Expire).await.effect, Effect::Applied(State::Expired));
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempt_count, story.dlq_id), (State::Expired, 1, None));
    assert_eq!(story.finished_at, Some(world.now()));
    assert!(world.letters().await.is_empty());
}

pub(crate) async fn what_expired_before_it_started_has_no_attempt<H: Harness>(mut world: World<H>) {
    let id = world.send(short_lived(world.now())).await;
    let ticket = world.claim_one().await;
    world.live(10).await;
    let settled = world.end(ticket, End::ExpiredUnstarted).await;
    assert_eq!(settled.effect, Effect::Applied(State::Expired));
    let story = world.story(id).await;
    assert_eq!((story.state, story.attempt_count, story.attempts.len()), (State::Expired, 0, 0));
}

pub(crate) async fn a_released_claim_consumes_no_attempt<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let first = world.claim_one().await;
    assert_eq!(world.end(first, End::Released).await.effect, Effect::Applied(State::Pending));
    let story = world.story(id).await;
    assert_eq!(
        (story.listed.state, story.listed.attempt_count, story.listed.last_error),
        (State::Pending, 0, None)
    );
    let second = world.claim_one().await;
    assert_eq!(second.attempt, 1);
    assert_ne!(second.fence, first.fence);
    world.retry(second, 0).await;
    let third = world.claim_one().await;
    world.end(third, End::Released).await;
    assert_eq!(world.claim_one().await.attempt, 2);
    assert_eq!(world.end(first, End::Released).await.effect, Effect::Fenced, "attempts do not come back");
}

pub(crate) async fn one_settlement_does_not_touch_its_neighbours<H: Harness>(mut world: World<H>) {
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(world.send(to("a")).await);
    }
    let tickets = world.claim(world.a, 10).await;
    world.end(tickets[1], End::Released).await;
    let now = world.now();
    let settlement = |ticket: Ticket, end| Settlement {
        id: ticket.id,
        endpoint: ticket.endpoint,
        fence: ticket.fence,
        end,
        hold_endpoint_until: None,
    };
    let attempted = |ticket: Ticket, verdict| settlement(ticket, ticket.attempted(now, verdict));
    let settled = world
        .store()
        .settle(vec![
            attempted(tickets[0], Verdict::Complete),
            attempted(tickets[1], DEAD),
            attempted(tickets[2], DEAD),
            settlement(tickets[3], End::Released),
            attempted(tickets[4], Verdict::Complete),
        ])
        .await
        .unwrap();
    let effects: Vec<_> = settled.iter().map(|settled| settled.effect).collect();
    use Effect::{Applied, Fenced};
    let expected = [
        Applied(State::Completed),
        Fenced,
        Applied(State::Dead),
        Applied(State::Pending),
        Applied(State::Completed),
    ];
    assert_eq!(effects, expected);
    assert_eq!(settled.iter().map(|settled| settled.id).collect::<Vec<_>>(), ids);
    assert_eq!(
        world.states(&ids).await,
        [State::Completed, State::Pending, State::Dead, State::Pending, State::Completed]
    );
}

pub(crate) async fn deliveries_of_every_kind_are_settled_together<H: Harness>(mut world: World<H>) {
    world.configure("attempt_log", "all").await;
    world.configure("idempotency_retention", "60").await;
    let plain = world.send(to("a")).await;
    let head = world.send(to("a").ordering_key("k")).await;
    let behind = world.send(to("a").ordering_key("k")).await;
    let unique = world.send(to("a").idempotency_key("i")).await;
    let late = world.send(to("a")).await;
    let tickets = world.claim(world.a, 10).await;
    assert_eq!(tickets.iter().map(|ticket| ticket.id).collect::<Vec<_>>(), [plain, head, unique, late]);
    world.end(tickets[3], End::Released).await;
    let now = world.now();
    let delivered = |ticket: Ticket| Settlement {
        id: ticket.id,
        endpoint: ticket.endpoint,
        fence: ticket.fence,
        end: ticket.attempted(now, Verdict::Complete),
        hold_endpoint_until: None,
    };
    let order = [0, 3, 1, 0, 2];
    let settled = world.store().settle(order.map(|n| delivered(tickets[n])).into()).await.unwrap();
    let completed = Effect::Applied(State::Completed);
    let effects: Vec<_> = settled.iter().map(|settled| settled.effect).collect();
    assert_eq!(effects, [completed, completed, completed, Effect::Fenced, completed]);
    let unblocked: Vec<_> = settled.iter().map(|settled| settled.unblocked).collect();
    assert_eq!(unblocked, [None, None, Some(world.a), None, None]);
    for id in [plain, head, unique, late] {
        let story = world.story(id).await;
        let statuses: Vec<_> = story.attempts.iter().map(|attempt| attempt.response_status).collect();
        assert_eq!(story.state, State::Completed);
        assert_eq!(statuses[0], Some(200), "{id}");
    }
    assert!(world.store().send(to("a").idempotency_key("i")).await.unwrap().duplicate);
    assert_eq!(world.claim_ids().await, [behind]);
}

pub(crate) async fn an_error_of_any_characters_is_recorded<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    let End::Attempted { verdict, mut record } = ticket.attempted(world.now(), DEAD) else { unreachable!() };
    record.error = Some("[PERMANENT] said \u{0}\u{1}\u{fffd}é".into());
    assert_eq!(
        world.end(ticket, End::Attempted { verdict, record }).await.effect,
        Effect::Applied(State::Dead)
    );
    let error = world.letter_of(id).await.errors[0].error.clone();
    assert!(error.starts_with("[PERMANENT] said ") && error.ends_with('é'), "{error:?}");
}
