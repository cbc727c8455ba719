use postrider::error::StoreError;
use postrider::store::{DlqFilter, DlqStatus, Effect, Redrive, SweepAction, Sweeps};
use postrider::verdict::{DeadReason, Verdict};
use postrider::{NewMessage, Operate, State};
use serde_json::json;
use uuid::Uuid;

use crate::store::world::{Harness, World, to};

pub(crate) async fn a_redriven_message_is_the_same_one_with_a_fresh_budget<H: Harness>(mut world: World<H>) {
    let message = NewMessage {
        expires_at: Some(world.in_seconds(1000)),
        headers: [("x".to_owned(), "y".to_owned())].into(),
        priority: 3,
        ..to("a").ordering_key("k").idempotency_key("i")
    };
    let id = world.send(message.clone()).await;
    let created_at = world.now();
    world.live(1).await;
    for _ in 0..2 {
        let ticket = world.claim_one().await;
        world.retry(ticket, 0).await;
    }
    let letter = world.kill(id).await;
    assert_eq!(world.store().redrive(Redrive::One(letter.id)).await.unwrap(), 1);
    let story = world.story(id).await;
    assert_eq!(
        (story.listed.state, story.listed.attempt_count, story.listed.priority),
        (State::Pending, 3, 3)
    );
    assert_eq!((story.listed.expires_at, story.listed.idempotency_key), (None, None));
    assert_eq!((story.listed.ordering_key.as_deref(), story.listed.created_at), (Some("k"), created_at));
    assert_eq!(story.listed.due_at, Some(world.now()));
    assert_eq!((story.payload, story.headers), (Some(message.payload.clone()), message.headers));
    assert_eq!(story.attempts.len(), 3, "its story goes on");

    let claimed = world.ask(world.node, false, vec![crate::store::world::due(world.a, 5)]).await;
    let claim = &claimed.claims[0];
    assert_eq!((claim.message.id, claim.attempt, claim.attempts_before), (id, 4, 3));
    assert_eq!(claim.budget_used(), 1);
    assert_eq!(claim.message.expires_at, None);
    assert_eq!(claim.message.payload, message.payload);
}

pub(crate) async fn a_redriven_message_that_dies_again_tells_both_lives<H: Harness>(mut world: World<H>) {
    let first = world.send_to_death(to("a")).await;
    world.store().redrive(Redrive::One(first.id)).await.unwrap();
    let ticket = world.claim_one().await;
    world.die(ticket).await;
    let letters = world.letters().await;
    let failed: Vec<_> = letters.iter().filter(|letter| letter.status == DlqStatus::Failed).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].message, failed[0].attempt_count), (first.message, 2));
    assert_eq!(failed[0].errors.iter().map(|error| error.attempt).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(world.story(first.message).await.dlq_id, Some(failed[0].id));
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), 1);
    assert_eq!(world.queued().await, 1);
}

pub(crate) async fn redriving_twice_yields_one_message<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    assert_eq!(world.store().redrive(Redrive::One(letter.id)).await.unwrap(), 1);
    let refused = world.store().redrive(Redrive::One(letter.id)).await;
    assert!(matches!(refused, Ok(0) | Err(StoreError::Conflict(_))), "{refused:?}");
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), 0);
    assert_eq!(world.store().redrive(Redrive::Endpoint("a".into())).await.unwrap(), 0);
    assert_eq!(world.queued().await, 1);
    let kept = world.letter_of(letter.message).await;
    assert_eq!((kept.id, kept.status), (letter.id, DlqStatus::Redriven), "the row stays, marked");
    assert_eq!(world.store().status().await.unwrap().dead, 0);
}

pub(crate) async fn racing_redrives_yield_one_message<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    let again = || world.store().redrive(Redrive::One(letter.id));
    let results = tokio::join!(again(), again(), again());
    let count = [results.0, results.1, results.2].into_iter().filter_map(Result::ok).sum::<u64>();
    assert_eq!((count, world.queued().await), (1, 1));
}

pub(crate) async fn each_selection_redrives_what_it_names<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    let mut letters = Vec::new();
    for name in ["a", "b", "a", "b"] {
        letters.push(world.send_to_death(to(name)).await);
    }
    assert_eq!(world.store().redrive(Redrive::One(letters[2].id)).await.unwrap(), 1);
    assert_eq!(world.store().redrive(Redrive::Endpoint("b".into())).await.unwrap(), 2);
    let ids: Vec<_> = letters.iter().map(|letter| letter.message).collect();
    let expected = [State::Dead, State::Pending, State::Pending, State::Pending];
    assert_eq!(world.states(&ids).await, expected);
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), 1);
    for selection in [Redrive::One(i64::MAX), Redrive::Endpoint("nowhere".into())] {
        let unknown = world.store().redrive(selection).await.unwrap_err();
        assert!(matches!(unknown, StoreError::Unknown { .. }), "{unknown:?}");
    }
}

pub(crate) async fn unkeyed_letters_are_redriven_in_original_order<H: Harness>(mut world: World<H>) {
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(world.send(to("a")).await);
    }
    let tickets = world.claim(world.a, 3).await;
    for at in [2, 0, 1] {
        world.die(tickets[at]).await;
    }
    world.store().redrive(Redrive::All).await.unwrap();
    assert_eq!(world.claim_ids().await, ids);
}

pub(crate) async fn a_discarded_letter_is_dead_for_good<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    world.store().discard(letter.id).await.unwrap();
    assert_eq!(world.letter_of(letter.message).await.status, DlqStatus::Discarded);
    assert_eq!(world.state(letter.message).await, State::Dead);
    let refused = world.store().redrive(Redrive::One(letter.id)).await;
    assert!(matches!(refused, Ok(0) | Err(StoreError::Conflict(_))), "{refused:?}");
    let twice = world.store().discard(letter.id).await;
    assert!(matches!(twice, Err(StoreError::Conflict(_))), "{twice:?}");
    let unknown = world.store().discard(i64::MAX).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { .. }), "{unknown:?}");
    assert_eq!(world.queued().await, 0);
}

pub(crate) async fn a_redriven_letter_cannot_be_discarded<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    assert!(matches!(world.store().discard(letter.id).await, Err(StoreError::Conflict(_))));
    assert_eq!(world.state(letter.message).await, State::Pending);
}

pub(crate) async fn letters_are_found_by_every_filter<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    let correlated = Uuid::from_u128(7);
    let exhausted = world.send_to_death(NewMessage { correlation_id: Some(correlated), ..to("a") }).await;
    let other = world.send_to_death(NewMessage { correlation_id: Some(Uuid::from_u128(8)), ..to("b") }).await;
    let bad = world.send(to("a")).await;
    let ticket = world.claim_one().await;
    world.settle(ticket, Verdict::Dead { reason: DeadReason::Permanent, disable_endpoint: false }).await;
    let bad = world.letter_of(bad).await;
    world.store().redrive(Redrive::One(other.id)).await.unwrap();

    let all = DlqFilter::default();
    let table = [
        (all.clone(), vec![exhausted.id, other.id, bad.id]),
        (DlqFilter { id: Some(other.id), ..all.clone() }, vec![other.id]),
        (DlqFilter { message: Some(bad.message), ..all.clone() }, vec![bad.id]),
        (DlqFilter { endpoint: Some("a".into()), ..all.clone() }, vec![exhausted.id, bad.id]),
        (DlqFilter { status: Some(DlqStatus::Redriven), ..all.clone() }, vec![other.id]),
        (DlqFilter { status: Some(DlqStatus::Failed), ..all.clone() }, vec![exhausted.id, bad.id]),
        (DlqFilter { status: Some(DlqStatus::Discarded), ..all.clone() }, vec![]),
        (DlqFilter { reason: Some("permanent".into()), ..all.clone() }, vec![bad.id]),
        (DlqFilter { correlation_id: Some(correlated), ..all.clone() }, vec![exhausted.id]),
        (DlqFilter { correlation_id: Some(Uuid::nil()), ..all.clone() }, vec![]),
        (DlqFilter { after: Some(exhausted.id), ..all.clone() }, vec![other.id, bad.id]),
        (DlqFilter { limit: 2, ..all.clone() }, vec![exhausted.id, other.id]),
        (DlqFilter { endpoint: Some("a".into()), after: Some(exhausted.id), limit: 1, ..all }, vec![bad.id]),
    ];
    for (filter, expected) in table {
        let kind = format!("{filter:?}");
        let found: Vec<_> = world.store().dlq(filter).await.unwrap().iter().map(|letter| letter.id).collect();
        assert_eq!(found, expected, "{kind}");
    }
}

pub(crate) async fn the_summary_counts_each_endpoint<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    let oldest = world.send_to_death(to("a")).await;
    world.live(5).await;
    world.send_to_death(to("a")).await;
    world.live(5).await;
    world.send(to("a")).await;
    let newest = world.claim_one().await;
    world.settle(newest, Verdict::Dead { reason: DeadReason::Permanent, disable_endpoint: false }).await;
    let newest = world.letter_of(newest.id).await;
    world.live(5).await;
    let redriven = world.send_to_death(to("b")).await;
    world.store().redrive(Redrive::One(redriven.id)).await.unwrap();
    let ticket = world.claim(world.store().endpoint("b").await.unwrap().id, 1).await[0];
    world.complete(ticket).await;
    let discarded = world.send_to_death(to("b")).await;
    world.store().discard(discarded.id).await.unwrap();
    let mut summary = world.store().dlq_summary().await.unwrap();
    summary.sort_by(|left, right| left.endpoint.cmp(&right.endpoint));
    let figures: Vec<_> = summary
        .iter()
        .map(|of| (of.endpoint.as_str(), of.failed, of.redriven, of.discarded, of.oldest_failed))
        .collect();
    assert_eq!(figures, [("a", 3, 0, 0, Some(oldest.died_at)), ("b", 0, 1, 1, None)]);
    assert_eq!([summary[0].newest_failed, summary[1].newest_failed], [Some(newest.died_at), None]);
    let reasons = [("attempts_exhausted".to_owned(), 2), ("permanent".to_owned(), 1)];
    assert_eq!([&summary[0].reasons, &summary[1].reasons], [&reasons.into(), &[].into()]);
    assert_eq!(world.store().status().await.unwrap().dead, 3);
}

pub(crate) async fn a_letter_keeps_its_last_hundred_errors<H: Harness>(mut world: World<H>) {
    let id = world.send(to("a")).await;
    for _ in 0..104 {
        let ticket = world.claim_one().await;
        assert_eq!(world.retry(ticket, 0).await.effect, Effect::Applied(State::Pending));
    }
    let letter = world.kill(id).await;
    let attempts: Vec<u32> = letter.errors.iter().map(|error| error.attempt).collect();
    assert_eq!(attempts, (6..=105).collect::<Vec<_>>());
    assert_eq!(letter.attempt_count, 105);
}

pub(crate) async fn letters_of_a_dropped_endpoint_do_not_keep_others_from_being_redriven<H: Harness>(
    mut world: World<H>,
) {
    let id = world.send(to("a")).await;
    world.kill(id).await;
    let gone = world.endpoint("gone", json!({})).await;
    world.send(to("gone")).await;
    let ticket = world.claim(gone, 1).await[0];
    world.die(ticket).await;
    let letter = world.letter_of(ticket.id).await;
    world.store().drop_endpoint("gone", true).await.unwrap();
    let refused = world.store().redrive(Redrive::One(letter.id)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Conflict(_)), "{refused:?}");
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), 1);
    assert_eq!(world.state(id).await, State::Pending);
}

pub(crate) async fn letters_of_a_dropped_endpoint_are_found_by_its_name<H: Harness>(mut world: World<H>) {
    let filter = DlqFilter { endpoint: Some("gone".into()), ..DlqFilter::default() };
    let unknown = world.store().dlq(filter.clone()).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "endpoint", .. }), "{unknown:?}");
    let mut letters = Vec::new();
    // The second one has the name that the first one left.
    for _ in 0..2 {
        let endpoint = world.endpoint("gone", json!({})).await;
        world.send(to("gone")).await;
        let ticket = world.claim(endpoint, 1).await[0];
        world.die(ticket).await;
        letters.push(world.letter_of(ticket.id).await);
        world.store().drop_endpoint("gone", true).await.unwrap();
        assert_eq!(world.store().dlq(filter.clone()).await.unwrap(), letters);
    }
    let other = world.send_to_death(to("a")).await;
    let swept = world.store().sweep(SweepAction::Discard, filter, None).await.unwrap();
    assert_eq!((swept.total, swept.done), (2, 2));
    assert_eq!(world.letter_of(other.message).await.status, DlqStatus::Failed);
}

pub(crate) async fn a_redriven_message_that_was_delivered_is_not_told_as_dead<H: Harness>(
    mut world: World<H>,
) {
    world.configure("archive", "off").await;
    let id = world.send(to("a")).await;
    let letter = world.kill(id).await;
    world.store().redrive(Redrive::One(letter.id)).await.unwrap();
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    assert!(matches!(world.store().story(id).await, Err(StoreError::Unknown { .. })));
}

pub(crate) async fn a_filter_redrives_what_it_selects_and_nothing_else<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    let mut ids = Vec::new();
    for (name, reason) in
        [("a", DeadReason::Permanent), ("a", DeadReason::AttemptsExhausted), ("b", DeadReason::Permanent)]
    {
        let id = world.send(to(name)).await;
        let endpoint = world.store().endpoint(name).await.unwrap().id;
        let ticket = world.claim(endpoint, 1).await[0];
        world.settle(ticket, Verdict::Dead { reason, disable_endpoint: false }).await;
        ids.push(id);
    }
    let filter = DlqFilter {
        endpoint: Some("a".into()),
        reason: Some(DeadReason::Permanent.as_str().into()),
        ..DlqFilter::default()
    };
    assert_eq!(world.store().redrive(Redrive::Matching(filter.clone())).await.unwrap(), 1);
    assert_eq!(world.states(&ids).await, [State::Pending, State::Dead, State::Dead]);
    assert_eq!(world.store().redrive(Redrive::Matching(filter)).await.unwrap(), 0, "it is done");
    let discarded = DlqFilter { status: Some(DlqStatus::Discarded), ..DlqFilter::default() };
    assert_eq!(world.store().redrive(Redrive::Matching(discarded)).await.unwrap(), 0);
}
