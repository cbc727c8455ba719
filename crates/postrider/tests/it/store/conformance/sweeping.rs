//! Dead letters by filter, in steps.

use std::collections::BTreeMap;

use postrider::error::StoreError;
use postrider::store::{DlqFilter, DlqStatus, Sweep, SweepAction, Sweeps};
use postrider::verdict::{Class, DeadReason, Verdict};
use postrider::{MessageId, NewMessage, Operate, State};
use serde_json::json;

use super::redriving::kill_all;
use crate::store::world::{Harness, World, to};

/// More than any store takes in one step.
const MANY: usize = 700;

impl<H: Harness> World<H> {
    async fn swept(&self, action: SweepAction, filter: DlqFilter) -> Sweep {
        let mut sweep = self.store().sweep(action, filter.clone(), None).await.unwrap();
        while let Some(next) = sweep.next {
            sweep = self.store().sweep(action, filter.clone(), Some(next)).await.unwrap();
        }
        sweep
    }

    /// Of endpoint `a` itself, or of the whole queue.
    async fn limit_queue(&self, own: bool, limit: usize) {
        let (of_a, of_all) = if own { (limit, 0) } else { (0, limit) };
        let options = Some(json!({"max_queue_size": of_a}));
        let change = postrider::endpoint::EndpointChange { options, ..Default::default() };
        self.store().alter_endpoint("a", change).await.unwrap();
        self.configure("max_queue_size", of_all).await;
    }

    async fn fails_with(&mut self, message: NewMessage, class: Class, error: &str) -> i64 {
        let id = self.send(message).await;
        let ticket = self.claim_one().await;
        let verdict = Verdict::Dead { reason: DeadReason::Permanent, disable_endpoint: false };
        let mut end = ticket.attempted(self.now(), verdict);
        if let postrider::store::End::Attempted { record, .. } = &mut end {
            record.class = Some(class);
            record.error = Some(format!("{} {error}", class.tag()));
        }
        self.end(ticket, end).await;
        self.letter_of(id).await.id
    }
}

pub(crate) async fn letters_are_found_by_what_went_wrong_and_when<H: Harness>(mut world: World<H>) {
    let first = world.now();
    let retryable = world.fails_with(to("a"), Class::Retryable, "HTTP 500: Köln is closed").await;
    world.live(10).await;
    let paid = NewMessage { event_type: Some("paid".into()), ..to("a") };
    let permanent = world.fails_with(paid, Class::Permanent, "HTTP 400: 100% wrong").await;
    world.live(10).await;
    let gone = world.fails_with(to("a").ordering_key("k"), Class::Gone, "HTTP 410").await;
    let all = DlqFilter::default();
    let second = first + std::time::Duration::from_secs(10);
    let table = [
        (DlqFilter { class: Some(Class::Retryable), ..all.clone() }, vec![retryable]),
        (DlqFilter { class: Some(Class::Permanent), ..all.clone() }, vec![permanent]),
        (DlqFilter { class: Some(Class::Gone), ..all.clone() }, vec![gone]),
        (DlqFilter { error: Some("HTTP 4".into()), ..all.clone() }, vec![permanent, gone]),
        (DlqFilter { error: Some("Köln".into()), ..all.clone() }, vec![retryable]),
        (DlqFilter { error: Some("%".into()), ..all.clone() }, vec![permanent]),
        (DlqFilter { error: Some("http".into()), ..all.clone() }, vec![]),
        (DlqFilter { event_type: Some("paid".into()), ..all.clone() }, vec![permanent]),
        (DlqFilter { ordering_key: Some("k".into()), ..all.clone() }, vec![gone]),
        (DlqFilter { from: Some(second), ..all.clone() }, vec![permanent, gone]),
        (DlqFilter { until: Some(second), ..all.clone() }, vec![retryable]),
        (
            DlqFilter {
                endpoint: Some("a".into()),
                error: Some("HTTP".into()),
                after: Some(retryable),
                limit: 1,
                ..all
            },
            vec![permanent],
        ),
    ];
    for (filter, expected) in table {
        let kind = format!("{filter:?}");
        let found: Vec<_> = world.store().dlq(filter).await.unwrap().iter().map(|letter| letter.id).collect();
        assert_eq!(found, expected, "{kind}");
    }
}

pub(crate) async fn a_sweep_takes_what_its_filter_selects_and_nothing_else<H: Harness>(mut world: World<H>) {
    let wrong = world.fails_with(to("a"), Class::Permanent, "HTTP 400: a bug that is fixed").await;
    let other = world.fails_with(to("a"), Class::Permanent, "HTTP 400: something else").await;
    let bug = DlqFilter { error: Some("a bug".into()), ..DlqFilter::default() };
    let sweep = world.swept(SweepAction::Redrive, bug.clone()).await;
    assert_eq!((sweep.total, sweep.done), (1, 1));
    let else_ = DlqFilter { error: Some("else".into()), ..DlqFilter::default() };
    assert_eq!(world.swept(SweepAction::Discard, else_).await.done, 1);
    let status = async |id| {
        let filter = DlqFilter { id: Some(id), ..DlqFilter::default() };
        world.store().dlq(filter).await.unwrap()[0].status
    };
    assert_eq!((status(wrong).await, status(other).await), (DlqStatus::Redriven, DlqStatus::Discarded));
    let again = world.swept(SweepAction::Redrive, bug).await;
    assert_eq!((again.total, again.done), (0, 0), "twice is as good as once");
    assert_eq!(world.queued().await, 1);
    let unknown = DlqFilter { endpoint: Some("nowhere".into()), ..DlqFilter::default() };
    let unknown = world.store().sweep(SweepAction::Discard, unknown, None).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "endpoint", .. }), "{unknown:?}");
}

pub(crate) async fn a_sweep_tells_how_far_it_is<H: Harness>(mut world: World<H>) {
    kill_all(&mut world, vec![to("a"); MANY]).await;
    let all = DlqFilter::default();
    let mut sweep = world.store().sweep(SweepAction::Redrive, all.clone(), None).await.unwrap();
    let mut seen = vec![sweep.done];
    assert!(sweep.next.is_some(), "it is not done at once");
    while let Some(next) = sweep.next {
        assert_eq!(sweep.total, MANY as u64);
        assert_eq!(world.queued().await, sweep.done);
        sweep = world.store().sweep(SweepAction::Redrive, all.clone(), Some(next)).await.unwrap();
        seen.push(sweep.done);
    }
    assert!(seen.is_sorted() && seen.len() >= 3, "{seen:?}");
    assert_eq!(sweep.done, MANY as u64);
}

pub(crate) async fn a_sweep_keeps_the_order_of_every_key<H: Harness>(mut world: World<H>) {
    let key = |at: usize| match at % 7 {
        0 | 3 => Some("often".to_owned()),
        5 => None,
        _ => Some(format!("k{}", at % 211)),
    };
    let message = |at: usize| NewMessage { ordering_key: key(at), ..to("a") };
    let dead = kill_all(&mut world, (0..MANY).map(message).collect()).await;
    let later = world.store().send_batch((0..300).map(message).collect()).await.unwrap();
    let mut expected: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
    let all = dead.into_iter().enumerate().chain(later.into_iter().map(|sent| sent.id).enumerate());
    all.for_each(|(at, id)| expected.entry(key(at)).or_default().push(id));
    let keys: BTreeMap<MessageId, Option<String>> =
        expected.iter().flat_map(|(key, ids)| ids.iter().map(|id| (*id, key.clone()))).collect();

    assert_eq!(world.swept(SweepAction::Redrive, DlqFilter::default()).await.done, MANY as u64);
    let mut started: BTreeMap<_, Vec<MessageId>> = BTreeMap::new();
    loop {
        let tickets = world.claim(world.a, 1000).await;
        if tickets.is_empty() {
            break;
        }
        for ticket in tickets {
            started.entry(keys[&ticket.id].clone()).or_default().push(ticket.id);
            world.complete(ticket).await;
        }
    }
    // Plain ones have no order but that of being due, and what was sent later was due before.
    let plain = |of: &mut BTreeMap<Option<String>, Vec<MessageId>>| of.remove(&None).map(|ids| ids.len());
    assert_eq!(plain(&mut started), plain(&mut expected));
    assert_eq!(started, expected);
}

pub(crate) async fn what_dies_during_a_sweep_is_not_swept_again<H: Harness>(mut world: World<H>) {
    let ids = kill_all(&mut world, vec![to("a"); MANY]).await;
    let all = DlqFilter::default();
    let mut sweep = world.store().sweep(SweepAction::Redrive, all.clone(), None).await.unwrap();
    while let Some(next) = sweep.next {
        // All that came back dies again, before the sweep goes on.
        for ticket in world.claim(world.a, 1000).await {
            world.die(ticket).await;
        }
        sweep = world.store().sweep(SweepAction::Redrive, all.clone(), Some(next)).await.unwrap();
    }
    assert_eq!(sweep.done, MANY as u64, "each of them once");
    for ticket in world.claim(world.a, 1000).await {
        world.die(ticket).await;
    }
    let status = world.store().status().await.unwrap();
    assert_eq!((status.pending, status.dead), (0, ids.len() as u64));
}

pub(crate) async fn a_sweep_discards_what_was_erased_and_lets_keys_go_on<H: Harness>(mut world: World<H>) {
    let held = world.endpoint("held", json!({"on_dead": "hold"})).await;
    let head = world.send_to_death(to("held").ordering_key("k")).await;
    let next = world.send(to("held").ordering_key("k")).await;
    world.store().erase(head.message).await.unwrap();
    assert_eq!(world.claim(held, 10).await.len(), 0);
    let of_held = DlqFilter { endpoint: Some("held".into()), ..DlqFilter::default() };
    assert_eq!(world.swept(SweepAction::Redrive, of_held.clone()).await.total, 0, "there is nothing to send");
    let sweep = world.swept(SweepAction::Discard, of_held).await;
    assert_eq!((sweep.total, sweep.done), (1, 1));
    assert_eq!(world.claim(held, 10).await[0].id, next);
    assert_eq!(world.state(head.message).await, State::Dead);
}

pub(crate) async fn racing_sweeps_yield_one_message_each<H: Harness>(mut world: World<H>) {
    let message =
        |at: usize| NewMessage { ordering_key: at.is_multiple_of(3).then(|| "k".into()), ..to("a") };
    let ids = kill_all(&mut world, (0..MANY).map(message).collect()).await;
    let sweep = || world.swept(SweepAction::Redrive, DlqFilter::default());
    let discard = || world.swept(SweepAction::Discard, DlqFilter::default());
    let (one, two, three) = tokio::join!(sweep(), sweep(), discard());
    assert_eq!(one.done + two.done + three.done, ids.len() as u64);
    let status = world.store().status().await.unwrap();
    assert_eq!((status.pending, status.dead), (one.done + two.done, 0));
}

pub(crate) async fn a_sweep_is_logged_once<H: Harness>(mut world: World<H>) {
    kill_all(&mut world, vec![to("a"); MANY]).await;
    let of_a = DlqFilter { endpoint: Some("a".into()), ..DlqFilter::default() };
    world.swept(SweepAction::Discard, of_a.clone()).await;
    world.swept(SweepAction::Discard, of_a).await;
    let events = world.events().await;
    let told: Vec<_> = events.iter().filter(|event| event.kind == "discard").collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].detail, json!({"messages": MANY, "selection": {"matching": {"endpoint": "a"}}}));
}

pub(crate) async fn a_sweep_that_finds_no_room_stops_between_steps<H: Harness>(mut world: World<H>) {
    kill_all(&mut world, vec![to("a"); MANY]).await;
    world.configure("max_queue_size", MANY - 1).await;
    let all = DlqFilter::default();
    let mut sweep = world.store().sweep(SweepAction::Redrive, all.clone(), None).await.unwrap();
    let refused = loop {
        let next = sweep.next.expect("it cannot be done");
        match world.store().sweep(SweepAction::Redrive, all.clone(), Some(next)).await {
            Ok(more) => sweep = more,
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused, StoreError::QueueFull { .. }), "{refused:?}");
    assert_eq!(world.queued().await, sweep.done, "a step is made whole or not at all");
    world.configure("max_queue_size", 0).await;
    let rest = world.store().sweep(SweepAction::Redrive, all, sweep.next).await.unwrap();
    assert!(rest.done > sweep.done);
}

/// However small the limit is beside a step.
pub(crate) async fn a_redriving_sweep_fills_what_room_there_is<H: Harness>(mut world: World<H>) {
    let key = |at: usize| (at % 10 < 2).then(|| format!("k{}", at % 30));
    let message = |at: usize| NewMessage { ordering_key: key(at), ..to("a") };
    kill_all(&mut world, (0..80).map(message).collect()).await;
    let of_a = DlqFilter { endpoint: Some("a".into()), ..DlqFilter::default() };
    for own in [true, false] {
        world.limit_queue(own, 31).await;
        let sweep = world.store().sweep(SweepAction::Redrive, of_a.clone(), None).await.unwrap();
        // All that there is of a key goes back together.
        assert!((28..=31).contains(&sweep.done), "{sweep:?}");
        let mut sweep = sweep;
        let refused = loop {
            let next = sweep.next.expect("it is not done");
            match world.store().sweep(SweepAction::Redrive, of_a.clone(), Some(next)).await {
                Ok(more) => sweep = more,
                Err(refused) => break refused,
            }
        };
        let is_full = |error: &StoreError| {
            matches!(error, StoreError::QueueFull { queued, limit: 31, endpoint }
                if (28..=31).contains(queued) && endpoint.is_some() == own)
        };
        assert!(is_full(&refused), "{refused:?}");
        assert_eq!(world.queued().await, sweep.done);
        let mut done = 0;
        while world.queued().await > 0 {
            for ticket in world.claim(world.a, 100).await {
                world.complete(ticket).await;
                done += 1;
            }
        }
        assert_eq!(done, sweep.done);
        world.live(2).await;
    }
    world.limit_queue(false, 0).await;
    let rest = world.swept(SweepAction::Redrive, of_a).await;
    assert_eq!(rest.done, rest.total, "none was passed over");
}

pub(crate) async fn a_key_with_more_letters_than_the_limit_says_so<H: Harness>(mut world: World<H>) {
    kill_all(&mut world, vec![to("a").ordering_key("k"); 8]).await;
    for own in [true, false] {
        world.limit_queue(own, 7).await;
        let all = DlqFilter::default();
        let refused = world.store().sweep(SweepAction::Redrive, all, None).await.unwrap_err();
        let says = "8 dead letters of one ordering key go back together";
        assert!(matches!(&refused, StoreError::Conflict(why) if why.contains(says)), "{refused:?}");
    }
    world.limit_queue(false, 8).await;
    assert_eq!(world.swept(SweepAction::Redrive, DlqFilter::default()).await.done, 8);
}

pub(crate) async fn a_sweep_has_no_pages<H: Harness>(world: World<H>) {
    for (filter, field) in [
        (DlqFilter { limit: 5, ..DlqFilter::default() }, "limit"),
        (DlqFilter { after: Some(1), ..DlqFilter::default() }, "after"),
    ] {
        let refused = world.store().sweep(SweepAction::Redrive, filter, None).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.field == field), "{refused:?}");
    }
}
