use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::endpoint::DisabledBy;
use postrider::error::StoreError;
use postrider::settings::{SettingKind, TABLE};
use postrider::store::{Effect, Redrive};
use postrider::verdict::{DeadReason, Verdict};
use postrider::{MessageId, NewMessage, Operate, State};
use serde_json::json;
use uuid::Uuid;

use crate::store::world::{DEAD, Harness, World, due, to};

pub(crate) async fn a_message_is_kept_with_everything_it_was_given<H: Harness>(mut world: World<H>) {
    let message = NewMessage {
        payload: b"\x00\xff {not json".as_slice().into(),
        content_type: "application/octet-stream".into(),
        headers: BTreeMap::from([("x-tenant".into(), "7".into()), ("x-empty".into(), String::new())]),
        options: json!({"max_attempts": 3}).as_object().unwrap().clone(),
        priority: 4,
        scheduled_at: Some(world.in_seconds(5)),
        expires_at: Some(world.in_seconds(500)),
        idempotency_key: Some("once".into()),
        correlation_id: Some(Uuid::from_u128(7)),
        ordering_key: Some("customer 7".into()),
        event_type: Some("order.paid".into()),
        ..to("a")
    };
    let id = world.send(message.clone()).await;
    let story = world.story(id).await;
    assert_eq!((story.listed.endpoint.as_str(), story.listed.state), ("a", State::Pending));
    assert_eq!(story.payload.as_ref(), Some(&message.payload));
    assert_eq!(story.listed.content_type, message.content_type);
    assert_eq!((&story.headers, &story.options), (&message.headers, &message.options));
    assert_eq!(story.listed.priority, 4);
    assert_eq!(
        (story.listed.scheduled_at, story.listed.expires_at),
        (message.scheduled_at, message.expires_at)
    );
    assert_eq!(
        (story.listed.idempotency_key, story.listed.ordering_key.clone()),
        (message.idempotency_key, message.ordering_key)
    );
    assert_eq!(
        (story.listed.correlation_id, story.listed.event_type.clone()),
        (message.correlation_id, message.event_type)
    );
    assert_eq!((story.listed.created_at, story.listed.due_at), (world.now(), message.scheduled_at));
    assert_eq!((story.listed.attempt_count, story.listed.finished_at, story.listed.dlq_id), (0, None, None));

    world.live(5).await;
    let claimed = world.ask(world.node, false, vec![due(world.a, 1)]).await;
    let claim = &claimed.claims[0];
    assert_eq!((claim.attempt, claim.attempts_before, claim.losses), (1, 0, 0));
    let held = &claim.message;
    assert_eq!((held.id, held.endpoint, held.priority), (id, world.a, 4));
    assert_eq!((&held.payload, &held.content_type), (&message.payload, &message.content_type));
    assert_eq!((&held.headers, &held.options), (&message.headers, &message.options));
    assert_eq!((held.expires_at, held.correlation_id), (message.expires_at, message.correlation_id));
    assert_eq!(
        (&held.ordering_key, &held.event_type),
        (&story.listed.ordering_key, &story.listed.event_type)
    );
    assert_eq!(held.created_at, story.listed.created_at);
}

pub(crate) async fn an_unknown_endpoint_is_named<H: Harness>(world: World<H>) {
    let refused = world.store().send(to("nowhere")).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Unknown { what: "endpoint", name } if name == "nowhere"),
        "{refused:?}"
    );
    assert_eq!(refused.sqlstate(), "42704");
}

pub(crate) async fn a_bad_priority_is_named_and_changes_nothing<H: Harness>(world: World<H>) {
    for priority in [11, 255] {
        let refused = world.store().send(NewMessage { priority, ..to("a") }).await.unwrap_err();
        assert!(
            matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "priority"),
            "{refused:?}"
        );
        assert_eq!(refused.sqlstate(), "22023");
    }
    world.send(NewMessage { priority: 10, ..to("a") }).await;
    assert_eq!(world.queued().await, 1);
}

/// Whatever they can be set to, keys are found again wherever a message may be.
pub(crate) async fn the_longest_keys_work_everywhere<H: Harness>(mut world: World<H>) {
    let kind = &TABLE.iter().find(|setting| setting.name == "max_key_bytes").unwrap().kind;
    let SettingKind::Whole { max: longest, .. } = *kind else { panic!("{kind:?}") };
    world.configure("max_key_bytes", longest).await;
    world.configure("idempotency_retention", 60).await;
    // Nothing that could be stored shorter.
    let key: String = (0..longest).map(|_| rand::random_range('!'..='~')).collect();
    let message = || to("a").ordering_key(&*key).idempotency_key(&*key);
    let letter = world.send_to_death(message()).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    let ticket = world.claim_one().await;
    assert_eq!(world.complete(ticket).await.effect, Effect::Applied(State::Completed));
    let again = world.send(message()).await;
    let ticket = world.claim_one().await;
    assert_eq!(ticket.id, again);
    world.complete(ticket).await;
    assert!(world.store().send(message()).await.unwrap().duplicate, "its key is reserved");
}

pub(crate) async fn each_limit_is_kept_to_the_byte_and_named_when_exceeded<H: Harness>(world: World<H>) {
    for (name, value) in [("max_payload_bytes", 1024), ("max_headers_bytes", 10), ("max_key_bytes", 8)] {
        world.configure(name, value).await;
    }
    let payload = |bytes: usize| NewMessage { payload: vec![b'1'; bytes].into(), ..to("a") };
    let headers = |bytes: usize| NewMessage {
        headers: BTreeMap::from([("x".repeat(4), "y".repeat(bytes - 4))]),
        ..to("a")
    };
    let ordering = |bytes: usize| to("a").ordering_key("k".repeat(bytes));
    // Two bytes in UTF-8: bytes are counted, not characters.
    let idempotency = |bytes: usize| to("a").idempotency_key("ä".repeat(bytes / 2) + &"i".repeat(bytes % 2));
    let table = [
        (payload(1024), payload(1025), "payload", "max_payload_bytes"),
        (headers(10), headers(11), "headers", "max_headers_bytes"),
        (ordering(8), ordering(9), "ordering_key", "max_key_bytes"),
        (idempotency(8), idempotency(9), "idempotency_key", "max_key_bytes"),
    ];
    for (fits, exceeds, expected_field, expected_setting) in table {
        world.send(fits).await;
        let before = world.queued().await;
        let refused = world.store().send(exceeds).await.unwrap_err();
        let StoreError::TooLarge { field, setting, bytes, limit } = &refused else { panic!("{refused:?}") };
        assert_eq!((*field, *setting), (expected_field, expected_setting));
        assert_eq!(*bytes, limit + 1);
        assert_eq!(refused.sqlstate(), "54000");
        assert_eq!(world.queued().await, before, "a refused message changes nothing");
    }
}

pub(crate) async fn a_batch_may_be_full_but_not_fuller<H: Harness>(world: World<H>) {
    world.configure("max_batch_messages", 3).await;
    assert_eq!(world.store().send_batch(vec![to("a"); 3]).await.unwrap().len(), 3);
    let refused = world.store().send_batch(vec![to("a"); 4]).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::TooLarge { setting: "max_batch_messages", limit: 3, .. }),
        "{refused:?}"
    );
    assert_eq!(world.queued().await, 3);
    assert_eq!(world.store().send_batch(Vec::new()).await.unwrap(), []);
}

pub(crate) async fn a_batch_is_taken_in_its_order<H: Harness>(mut world: World<H>) {
    let b = world.endpoint("b", json!({})).await;
    let sent = world.store().send_batch(vec![to("a"), to("b"), to("a")]).await.unwrap();
    let ids: Vec<MessageId> = sent.iter().map(|sent| sent.id).collect();
    assert!(ids.is_sorted() && sent.iter().all(|sent| !sent.duplicate), "{sent:?}");
    assert_eq!(world.claim_ids().await, [ids[0], ids[2]]);
    assert_eq!(world.claim(b, 10).await[0].id, ids[1]);
}

pub(crate) async fn one_bad_message_refuses_its_whole_batch<H: Harness>(world: World<H>) {
    world.endpoint("off", json!({})).await;
    world.store().set_endpoint_enabled("off", false).await.unwrap();
    let bad = [
        NewMessage { priority: 11, ..to("a") },
        to("nowhere"),
        to("off"),
        to("a").ordering_key("k".repeat(257)),
        NewMessage { payload: vec![b'1'; 1_048_577].into(), ..to("a") },
    ];
    for message in bad {
        let kind = format!("{:?}", (&message.endpoint, message.priority));
        let batch = vec![to("a").ordering_key("k").idempotency_key("i"), to("a"), message];
        world.store().send_batch(batch).await.expect_err(&kind);
        assert_eq!(world.queued().await, 0, "{kind}");
    }
    let sent = world.store().send(to("a").idempotency_key("i")).await.unwrap();
    assert!(!sent.duplicate, "no refused batch left its idempotency key behind");
}

pub(crate) async fn a_bad_message_option_is_named<H: Harness>(world: World<H>) {
    for (options, expected) in
        [(json!({"max_attempts": "many"}), "options.max_attempts"), (json!({"speed": 1}), "options.speed")]
    {
        let message = NewMessage { options: options.as_object().unwrap().clone(), ..to("a") };
        let refused = world.store().send(message).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.field == expected), "{refused:?}");
    }
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn a_time_may_be_as_late_as_the_calendar_of_nodes_goes<H: Harness>(mut world: World<H>) {
    let last: Timestamp = "9999-12-29T23:59:59.999999Z".parse().unwrap();
    let id = world.send(NewMessage { scheduled_at: Some(last), ..to("a") }).await;
    let story = world.store().story(id).await.unwrap();
    assert_eq!((story.scheduled_at, story.due_at), (Some(last), Some(last)));
    assert_eq!(world.claim_ids().await, []);
    let late: Timestamp = "9999-12-30T00:00:00Z".parse().unwrap();
    let messages = [
        ("scheduled_at", NewMessage { scheduled_at: Some(late), ..to("a") }),
        ("expires_at", NewMessage { expires_at: Some(late), ..to("a") }),
    ];
    for (field, message) in messages {
        let refused = world.store().send(message).await.unwrap_err();
        let rule = format!("{field}: must be a time before 9999-12-30");
        assert!(matches!(&refused, StoreError::Invalid(bad) if bad.to_string() == rule), "{refused:?}");
    }
    let refused = world.store().reschedule(id, late).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Invalid(_)), "{refused:?}");
    assert_eq!(world.queued().await, 1);
}

pub(crate) async fn a_disabled_endpoint_refuses_and_a_paused_one_accepts<H: Harness>(world: World<H>) {
    let kept = world.send(to("a")).await;
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    let refused = world.store().send(to("a")).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Disabled { endpoint } if endpoint == "a"), "{refused:?}");
    assert_eq!(refused.sqlstate(), "55000");
    assert_eq!(world.state(kept).await, State::Pending, "what is pending stays");
    world.store().set_endpoint_enabled("a", true).await.unwrap();
    world.store().set_endpoint_paused("a", true).await.unwrap();
    world.send(to("a")).await;
    world.store().pause("maintenance").await.unwrap();
    world.send(to("a")).await;
    assert_eq!(world.queued().await, 3);
}

const GONE: Verdict = Verdict::Dead { reason: DeadReason::Gone, disable_endpoint: true };

pub(crate) async fn what_an_operator_disabled_stays_so_when_it_is_gone<H: Harness>(mut world: World<H>) {
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    world.settle(ticket, GONE).await;
    let endpoint = world.store().endpoint("a").await.unwrap();
    assert_eq!(endpoint.disabled, Some(DisabledBy::Operator));
    let refused = world.store().send(to("a")).await.unwrap_err();
    assert!(matches!(refused, StoreError::Disabled { .. }), "{refused}");
}

pub(crate) async fn an_endpoint_that_is_gone_accepts_and_keeps<H: Harness>(mut world: World<H>) {
    world.send(to("a")).await;
    let ticket = world.claim_one().await;
    assert_ne!(GONE, DEAD);
    world.settle(ticket, GONE).await;
    let endpoint = world.store().endpoint("a").await.unwrap();
    assert_eq!(endpoint.disabled, Some(DisabledBy::Gone));
    let kept = world.send(to("a")).await;
    assert_eq!(world.claim_ids().await, [], "nothing goes to who is gone");
    world.store().set_endpoint_enabled("a", true).await.unwrap();
    assert_eq!(world.claim_ids().await, [kept]);
}

pub(crate) async fn an_attempt_may_not_outlast_what_counts_as_stuck<H: Harness>(world: World<H>) {
    let options = |timeout: u64| json!({ "timeout": timeout }).as_object().unwrap().clone();
    let refused = world.store().send(NewMessage { options: options(300), ..to("a") }).await.unwrap_err();
    let StoreError::Invalid(invalid) = refused else { panic!("{refused}") };
    assert_eq!(invalid.field, "options.timeout");
    assert!(invalid.rule.contains("stale_recovery_timeout"), "{invalid}");
    world.store().send(NewMessage { options: options(299), ..to("a") }).await.unwrap();
}

pub(crate) async fn a_long_batch_keeps_every_message_whole_and_in_order<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    let messages: Vec<NewMessage> = (0..100)
        .map(|n| NewMessage {
            payload: format!("payload {n}").into(),
            content_type: format!("text/{n}"),
            headers: BTreeMap::from([("x-n".into(), n.to_string())]),
            options: json!({ "max_attempts": n + 1 }).as_object().unwrap().clone(),
            expires_at: Some(world.in_seconds(1000 + n)),
            correlation_id: Some(Uuid::from_u128(u128::from(n))),
            event_type: Some(format!("event.{n}")),
            // Now and then one that is not like its neighbours.
            ordering_key: (n % 37 == 20).then(|| "k".to_owned()),
            ..to(if n % 41 == 40 { "b" } else { "a" })
        })
        .collect();
    let sent = world.store().send_batch(messages.clone()).await.unwrap();
    assert!(sent.is_sorted_by(|left, right| left.id < right.id) && sent.iter().all(|sent| !sent.duplicate));
    for (message, sent) in messages.iter().zip(&sent) {
        let story = world.story(sent.id).await;
        assert_eq!(story.payload.as_ref(), Some(&message.payload));
        assert_eq!((&story.content_type, &story.headers), (&message.content_type, &message.headers));
        assert_eq!((&story.options, story.expires_at), (&message.options, message.expires_at));
        assert_eq!((story.correlation_id, &story.event_type), (message.correlation_id, &message.event_type));
        assert_eq!((&story.endpoint, &story.ordering_key), (&message.endpoint, &message.ordering_key));
    }
    assert_eq!(world.queued().await, 100);
    let claimed: Vec<MessageId> = world.claim(world.a, 100).await.iter().map(|ticket| ticket.id).collect();
    assert!(claimed.is_sorted() && claimed.len() > 90, "{claimed:?}");
}

pub(crate) async fn one_bad_message_late_in_a_long_batch_undoes_all_of_it<H: Harness>(world: World<H>) {
    let mut messages = vec![to("a"); 60];
    messages[50].priority = 11;
    assert!(matches!(world.store().send_batch(messages).await, Err(StoreError::Invalid(_))));
    assert_eq!(world.queued().await, 0);
    world.configure("max_queue_size", 40).await;
    assert!(matches!(world.store().send_batch(vec![to("a"); 41]).await, Err(StoreError::QueueFull { .. })));
    assert_eq!(world.queued().await, 0);
    world.store().send_batch(vec![to("a"); 40]).await.unwrap();
    assert_eq!(world.queued().await, 40);
}
