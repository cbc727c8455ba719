//! Finished messages sent again: which, and as what.

use std::collections::BTreeMap;

use jiff::Timestamp;
use postrider::error::StoreError;
use postrider::rate::{Interval, RateLimit};
use postrider::store::{
    DlqStatus, NewReplay, Redrive, Replay, ReplaySelection, ReplayState, ReplayStatus, ReplayTurn, Replays,
};
use postrider::{MessageId, NewEndpoint, NewMessage, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Harness, World, short_lived, to};

/// More than any store replays in one step.
const MANY: usize = 700;

/// With everything that a replay keeps or clears.
fn rich(now: Timestamp) -> NewMessage {
    NewMessage {
        priority: 3,
        scheduled_at: Some(now),
        expires_at: Some(now + std::time::Duration::from_secs(60)),
        correlation_id: Some(uuid::Uuid::from_u128(7)),
        event_type: Some("orders.created".into()),
        content_type: "text/plain".into(),
        headers: [("x-a".to_owned(), "b".to_owned())].into(),
        options: json!({"max_attempts": 2}).as_object().unwrap().clone(),
        ..to("a").idempotency_key("i").ordering_key("k")
    }
}

pub(super) fn of_a() -> NewReplay {
    selecting(|selection| selection.endpoint = Some("a".into()))
}

pub(super) fn selecting(change: impl Fn(&mut ReplaySelection)) -> NewReplay {
    let mut replay = NewReplay::default();
    change(&mut replay.selection);
    replay
}

impl<H: Harness> World<H> {
    pub(super) async fn cancelled(&self, message: NewMessage) -> MessageId {
        let id = self.send(message).await;
        self.store().cancel(id).await.unwrap();
        id
    }

    pub(super) async fn completed(&mut self, message: NewMessage) -> MessageId {
        let id = self.send(message).await;
        let ticket = self.claim_one().await;
        assert_eq!(ticket.id, id);
        self.complete(ticket).await;
        id
    }

    /// One message that ended each way: completed, expired, cancelled, dead, discarded.
    pub(super) async fn one_of_each(&mut self) -> [MessageId; 5] {
        let completed = self.completed(to("a")).await;
        let dead = self.send_to_death(to("a")).await;
        let discarded = self.send_to_death(to("a")).await;
        self.store().discard(discarded.id).await.unwrap();
        let cancelled = self.cancelled(to("a")).await;
        let expired = self.send(short_lived(self.now())).await;
        self.live(11).await;
        assert_eq!(self.store().upkeep(10).await.unwrap().len(), 1);
        [completed, expired, cancelled, dead.message, discarded.message]
    }

    /// As a node does it, until there is nothing to do now.
    pub(super) async fn advance_replays(&self, limit: usize) {
        for _ in 0..10_000 {
            if let ReplayTurn::Idle(_) = self.store().advance_replays(limit).await.unwrap() {
                return;
            }
        }
        panic!("a replay never ends");
    }

    /// Started and taken as far as it goes.
    pub(crate) async fn replayed(&self, replay: NewReplay) -> Replay {
        let started = self.store().start_replay(replay).await.unwrap();
        self.advance_replays(100).await;
        self.store().replay(started.id).await.unwrap()
    }

    /// The originals of what is queued at all endpoints, in its order.
    pub(super) async fn originals(&self) -> Vec<MessageId> {
        let mut originals = Vec::new();
        for id in 1..=self.last_id().await {
            let Ok(story) = self.store().story(MessageId(id)).await else { continue };
            if story.state == State::Pending {
                originals.extend(story.replay_of);
            }
        }
        originals
    }

    pub(super) async fn last_id(&self) -> i64 {
        let probe = self.send(to("a")).await;
        self.store().cancel(probe).await.unwrap();
        probe.0
    }

    pub(super) async fn cancel_all(&self) {
        for id in 1..=self.last_id().await {
            let _ = self.store().cancel(MessageId(id)).await;
        }
    }

    pub(super) async fn kinds(&self) -> Vec<String> {
        let kinds = self.events().await.into_iter().map(|event| event.kind);
        let mut kinds: Vec<String> = kinds.filter(|kind| kind.starts_with("replay")).collect();
        kinds.reverse();
        kinds
    }
}

pub(crate) async fn a_replayed_message_is_a_new_one_that_knows_its_original<H: Harness>(mut world: World<H>) {
    let original = world.send(rich(world.now())).await;
    let ticket = world.claim_one().await;
    world.complete(ticket).await;
    world.live(1).await;
    let id = world.store().replay_message(original, None).await.unwrap();
    assert_ne!(id, original);
    let (old, new) = (world.story(original).await, world.story(id).await);
    assert_eq!((new.replay_of, old.replayed_as.clone()), (Some(original), vec![id]));
    assert_eq!((old.replay_of, new.replayed_as), (None, vec![]));
    assert_eq!(
        (new.listed.priority, new.payload, new.listed.content_type, new.headers, new.options),
        (3, old.payload, old.listed.content_type, old.headers, old.options)
    );
    assert_eq!(
        (new.listed.correlation_id, new.listed.ordering_key, new.listed.event_type),
        (old.listed.correlation_id, old.listed.ordering_key, old.listed.event_type)
    );
    assert_eq!(
        (new.listed.idempotency_key, new.listed.expires_at, new.listed.scheduled_at),
        (None, None, None)
    );
    assert_eq!((new.listed.created_at, new.listed.attempt_count), (world.now(), 0));
    assert_eq!(world.claim_ids().await, [id]);
    let event = &world.events().await[0];
    assert_eq!((event.kind.as_str(), event.subject.as_deref()), ("replay", Some("a")));
    assert_eq!((&event.detail["message"], &event.detail["replayed_as"]), (&json!(original), &json!(id)));
}

pub(crate) async fn every_finished_message_can_be_replayed_and_no_other<H: Harness>(mut world: World<H>) {
    let finished = world.one_of_each().await;
    let mut replayed = Vec::new();
    for id in finished {
        replayed.push(world.store().replay_message(id, None).await.unwrap());
    }
    assert_eq!(world.originals().await, finished);
    let conflict = async |id: MessageId, says: &str| {
        let refused = world.store().replay_message(id, None).await.unwrap_err();
        assert!(matches!(&refused, StoreError::Conflict(why) if why.contains(says)), "{refused:?}");
    };
    conflict(replayed[0], "is pending; only a finished one can be replayed").await;
    world.store().erase(finished[0]).await.unwrap();
    conflict(finished[0], "has no payload any more").await;
    let unknown = world.store().replay_message(MessageId(i64::MAX), None).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "message", .. }), "{unknown:?}");
    world.store().set_endpoint_enabled("a", false).await.unwrap();
    let refused = world.store().replay_message(finished[1], None).await.unwrap_err();
    assert!(matches!(refused, StoreError::Disabled { .. }), "{refused:?}");
}

pub(crate) async fn a_message_is_replayed_to_another_endpoint_when_asked<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({})).await;
    let original = world.cancelled(to("a")).await;
    let id = world.store().replay_message(original, Some("b")).await.unwrap();
    assert_eq!(world.story(id).await.endpoint, "b");
    let unknown = world.store().replay_message(original, Some("nowhere")).await.unwrap_err();
    assert!(matches!(unknown, StoreError::Unknown { what: "endpoint", .. }), "{unknown:?}");
    world.store().drop_endpoint("a", true).await.unwrap();
    let refused = world.store().replay_message(original, None).await.unwrap_err();
    assert!(matches!(&refused, StoreError::Conflict(why) if why.contains("was dropped")), "{refused:?}");
    // Another one of the same name is another one.
    world.endpoint("a", json!({})).await;
    assert!(matches!(world.store().replay_message(original, None).await, Err(StoreError::Conflict(_))));
    world.store().replay_message(original, Some("a")).await.unwrap();
}

pub(crate) async fn a_replay_takes_what_its_selection_says<H: Harness>(mut world: World<H>) {
    world.endpoint("b", json!({})).await;
    let [completed, expired, cancelled, dead, _discarded] = world.one_of_each().await;
    let before = world.now();
    world.live(60).await;
    let typed = world.cancelled(NewMessage { event_type: Some("paid".into()), ..to("a") }).await;
    let keyed = world.cancelled(to("a").ordering_key("k")).await;
    let at_b = world.cancelled(to("b")).await;
    world.live(60).await;
    let late = world.cancelled(to("a")).await;
    let status = |status| selecting(move |selection| selection.status = Some(status));
    let table: [(NewReplay, Vec<MessageId>); 10] = [
        (of_a(), vec![completed, cancelled, expired, typed, keyed, late]),
        (status(ReplayStatus::Completed), vec![completed]),
        (status(ReplayStatus::Expired), vec![expired]),
        (status(ReplayStatus::Cancelled), vec![cancelled, typed, keyed, at_b, late]),
        (status(ReplayStatus::Failed), vec![dead]),
        (selecting(|selection| selection.event_type = Some("paid".into())), vec![typed]),
        (selecting(|selection| selection.ordering_key = Some("k".into())), vec![keyed]),
        (
            selecting(|selection| selection.from = Some(before + jiff::SignedDuration::from_secs(60))),
            vec![typed, keyed, at_b, late],
        ),
        (
            selecting(|selection| {
                selection.from = Some(before + jiff::SignedDuration::from_secs(60));
                selection.until = Some(before + jiff::SignedDuration::from_secs(120));
            }),
            vec![typed, keyed, at_b],
        ),
        (selecting(|selection| selection.endpoint = Some("b".into())), vec![at_b]),
    ];
    // What earlier rows of this table made is not meant.
    let end = world.in_seconds(1);
    world.live(1).await;
    for (mut replay, expected) in table {
        replay.selection.until = replay.selection.until.or(Some(end));
        let preview = world.store().preview_replay(replay.clone()).await.unwrap();
        let sample: Vec<_> = preview.sample.iter().map(|message| message.id).collect();
        assert_eq!((preview.count, &sample), (expected.len() as u64, &expected), "{replay:?}");
        let done = world.replayed(replay.clone()).await;
        assert_eq!(world.originals().await, expected, "{replay:?}");
        assert_eq!(
            (done.state, done.total, done.done, done.skipped_count()),
            (ReplayState::Completed, Some(expected.len() as u64), expected.len() as u64, 0)
        );
        assert_eq!(done.selection, replay.selection, "it is kept as it was asked for");
        world.cancel_all().await;
    }
    assert_eq!(world.letter_of(dead).await.status, DlqStatus::Failed, "a replay leaves the letter as it is");
}

pub(crate) async fn a_replay_may_go_to_another_endpoint<H: Harness>(world: World<H>) {
    world.endpoint("b", json!({})).await;
    let ids = [world.cancelled(to("a")).await, world.cancelled(to("a")).await];
    let done = world.replayed(NewReplay { to: Some("b".into()), ..of_a() }).await;
    assert_eq!((done.done, done.to.as_deref()), (2, Some("b")));
    for id in ids {
        let made = world.story(id).await.replayed_as;
        assert_eq!(made.len(), 1);
        assert_eq!(world.story(made[0]).await.endpoint, "b");
    }
}

pub(crate) async fn what_finishes_after_the_start_is_not_replayed<H: Harness>(mut world: World<H>) {
    let before = world.cancelled(to("a")).await;
    let pending = world.send(to("a")).await;
    let id = world.store().start_replay(of_a()).await.unwrap().id;
    world.live(1).await;
    world.store().cancel(pending).await.unwrap();
    let late = world.cancelled(to("a")).await;
    while world.store().replay(id).await.unwrap().state == ReplayState::Running {
        world.store().advance_replays(1).await.unwrap();
        // What it makes is finished before it looks again, and is not taken for an old one.
        let tickets = world.claim(world.a, 10).await;
        for ticket in tickets {
            world.complete(ticket).await;
        }
    }
    assert_eq!(world.store().replay(id).await.unwrap().done, 1);
    let made: Vec<usize> = [world.story(before).await, world.story(pending).await, world.story(late).await]
        .iter()
        .map(|story| story.replayed_as.len())
        .collect();
    assert_eq!(made, [1, 0, 0]);
}

pub(crate) async fn a_long_replay_keeps_the_order_of_what_was_sent<H: Harness>(mut world: World<H>) {
    let key = |at: usize| at.is_multiple_of(3).then(|| format!("k{}", at % 6));
    let message = |at: usize| NewMessage { ordering_key: key(at), ..to("a") };
    let sent = world.store().send_batch((0..MANY).map(message).collect()).await.unwrap();
    for sent in &sent {
        world.store().cancel(sent.id).await.unwrap();
    }
    let done = world.replayed(of_a()).await;
    assert_eq!((done.total, done.done), (Some(MANY as u64), MANY as u64));
    let mut started: BTreeMap<Option<String>, Vec<MessageId>> = BTreeMap::new();
    loop {
        let tickets = world.claim(world.a, 1000).await;
        if tickets.is_empty() {
            break;
        }
        for ticket in tickets {
            let story = world.story(ticket.id).await;
            started.entry(story.listed.ordering_key).or_default().push(story.replay_of.unwrap());
            world.complete(ticket).await;
        }
    }
    let mut expected: BTreeMap<Option<String>, Vec<MessageId>> = BTreeMap::new();
    sent.iter().enumerate().for_each(|(at, sent)| expected.entry(key(at)).or_default().push(sent.id));
    assert_eq!(started, expected);
}

pub(crate) async fn what_cannot_be_replayed_is_skipped_and_says_why<H: Harness>(world: World<H>) {
    world.endpoint("gone", json!({})).await;
    let config = json!({"path": "out.jsonl"}).as_object().unwrap().clone();
    let file = NewEndpoint { name: "file".into(), protocol: "file".into(), config, ..NewEndpoint::default() };
    world.store().create_endpoint(file).await.unwrap();
    let erased = world.cancelled(to("a")).await;
    world.store().erase(erased).await.unwrap();
    world.configure("archive", "metadata").await;
    world.cancelled(to("a")).await;
    world.configure("archive", "on").await;
    world.cancelled(to("gone")).await;
    world.store().drop_endpoint("gone", true).await.unwrap();
    let options = json!({"url_suffix": "/x"}).as_object().unwrap().clone();
    let special = world.cancelled(NewMessage { options, ..to("a") }).await;
    let large = world.cancelled(NewMessage::new("a", vec![b'1'; 2000])).await;
    let plain = world.cancelled(to("a")).await;
    world.configure("max_payload_bytes", 1024).await;

    let all = selecting(|selection| selection.status = Some(ReplayStatus::Cancelled));
    let preview = world.store().preview_replay(all.clone()).await.unwrap();
    let foreseen = BTreeMap::from([("endpoint_dropped".to_owned(), 1), ("no_payload".to_owned(), 2)]);
    assert_eq!((preview.count, preview.skipped), (3, foreseen.clone()));
    assert_eq!(preview.sample.iter().map(|m| m.id).collect::<Vec<_>>(), [special, large, plain]);

    let done = world.replayed(all.clone()).await;
    let mut skipped = foreseen;
    skipped.insert("too_large".to_owned(), 1);
    assert_eq!((done.total, done.done, done.skipped), (Some(6), 2, skipped));
    assert_eq!(world.originals().await, [special, plain]);
    world.cancel_all().await;

    let until = Some(world.now() + jiff::SignedDuration::from_micros(1));
    let mut to_file = NewReplay { to: Some("file".into()), ..all };
    to_file.selection.until = until;
    let done = world.replayed(to_file).await;
    assert_eq!(done.skipped["invalid"], 2, "the special one, and its replay: {done:?}");
    assert_eq!(done.total, Some(done.done + done.skipped_count()));
}

pub(crate) async fn a_preview_shows_ten_and_changes_nothing<H: Harness>(mut world: World<H>) {
    let first = world.cancelled(NewMessage { event_type: Some("paid".into()), ..to("a") }).await;
    for _ in 0..14 {
        world.completed(to("a")).await;
    }
    let preview = world.store().preview_replay(of_a()).await.unwrap();
    assert_eq!((preview.count, preview.sample.len(), preview.skipped.len()), (15, 10, 0));
    let shown = &preview.sample[0];
    assert_eq!((shown.id, shown.endpoint.as_str(), shown.status), (first, "a", ReplayStatus::Cancelled));
    assert_eq!((shown.event_type.as_deref(), shown.created_at), (Some("paid"), world.now()));
    assert_eq!(world.queued().await, 0);
    assert_eq!(world.store().replays(None, 10).await.unwrap(), []);
}

pub(crate) async fn a_replay_that_makes_no_sense_is_refused<H: Harness>(world: World<H>) {
    let now = world.now();
    let limit = |limit, burst| Some(RateLimit { limit, interval: Interval::Second, burst });
    let refused = [
        (NewReplay::default(), "selection"),
        (NewReplay { to: Some("a".into()), ..NewReplay::default() }, "selection"),
        (
            selecting(|selection| {
                selection.from = Some(now);
                selection.until = Some(now);
            }),
            "until",
        ),
        (selecting(|selection| selection.ordering_key = Some(String::new())), "ordering_key"),
        (selecting(|selection| selection.event_type = Some("a\0".into())), "event_type"),
        (NewReplay { rate_limit: limit(0, None), ..of_a() }, "rate_limit.limit"),
        (NewReplay { rate_limit: limit(1, Some(0)), ..of_a() }, "rate_limit.burst"),
    ];
    for (replay, field) in refused {
        for error in [
            world.store().start_replay(replay.clone()).await.unwrap_err(),
            world.store().preview_replay(replay.clone()).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, StoreError::Invalid(invalid) if invalid.field == field),
                "{field}: {error:?}"
            );
        }
    }
    for unknown in [
        selecting(|selection| selection.endpoint = Some("nowhere".into())),
        NewReplay { to: Some("nowhere".into()), ..of_a() },
    ] {
        for error in [
            world.store().start_replay(unknown.clone()).await.unwrap_err(),
            world.store().preview_replay(unknown.clone()).await.unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Unknown { what: "endpoint", .. }), "{error:?}");
        }
    }
    assert_eq!(world.store().replays(None, 10).await.unwrap(), []);
}

pub(crate) async fn replays_are_listed_from_the_newest_back<H: Harness>(world: World<H>) {
    for _ in 0..3 {
        world.store().start_replay(of_a()).await.unwrap();
    }
    let ids = async |before, limit| {
        let list = world.store().replays(before, limit).await.unwrap();
        list.into_iter().map(|replay| replay.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, 2).await, [3, 2]);
    assert_eq!(ids(Some(2), 2).await, [1]);
}

pub(crate) async fn a_letter_that_was_redriven_meanwhile_is_not_replayed<H: Harness>(mut world: World<H>) {
    let letters = [world.send_to_death(to("a")).await, world.send_to_death(to("a")).await];
    let failed = selecting(|selection| selection.status = Some(ReplayStatus::Failed));
    let id = world.store().start_replay(failed).await.unwrap().id;
    world.store().advance_replays(100).await.unwrap();
    world.store().redrive(Redrive::One(letters[0].id)).await.unwrap();
    world.advance_replays(100).await;
    let done = world.store().replay(id).await.unwrap();
    assert_eq!((done.state, done.total, done.done), (ReplayState::Completed, Some(1), 1));
    assert_eq!(world.originals().await, [letters[1].message]);
}
