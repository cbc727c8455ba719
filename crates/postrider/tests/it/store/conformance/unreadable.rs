//! Another program wrote into the store what no node can read.

use postrider::store::{
    DlqFilter, DlqStatus, Effect, Listing, MessageFilter, Pick, Redrive, UNREADABLE, UNREADABLE_FIELD, Want,
};
use postrider::{MessageId, Operate, State, Store};
use serde_json::json;

use crate::store::world::{Damage, Harness, World, due, retry_at, to};

/// It is a dead letter that says which column is wrong, and no attempt was made.
async fn assert_set_aside<H: Harness>(world: &World<H>, id: MessageId, column: &str) {
    let letter = world.letter_of(id).await;
    assert_eq!(
        (letter.listed.reason.as_str(), letter.listed.status),
        (UNREADABLE, DlqStatus::Failed),
        "{column}"
    );
    let error = letter.listed.last_error.expect("what is wrong with it");
    assert!(error.starts_with(&format!("[PERMANENT] {column}: cannot be read: ")), "{error}");
    let story = world.story(id).await;
    assert_eq!((story.state, story.reason.as_deref()), (State::Dead, Some(UNREADABLE)), "{column}");
    assert_eq!((story.attempt_count, story.attempts.len()), (0, 0), "{column}: no attempt was made");
}

pub(crate) async fn a_message_that_cannot_be_read_is_set_aside_and_the_others_are_claimed<H: Harness>(
    mut world: World<H>,
) {
    for damage in Damage::ALL {
        let before = world.send(to("a")).await;
        let damaged = world.send(to("a")).await;
        let after = world.send(to("a")).await;
        world.harness().damage(damaged, damage).await;
        assert!(!world.store().waiting().await.unwrap().is_empty());
        let claimed = world.ask(world.node, false, vec![due(world.a, 10)]).await;
        let ids: Vec<_> = claimed.claims.iter().map(|claim| claim.message.id).collect();
        let told: Vec<_> = claimed.unreadable.iter().map(|unreadable| unreadable.id).collect();
        assert_eq!((ids, told), (vec![before, after], vec![damaged]), "{damage:?}");
        assert_set_aside(&world, damaged, damage.column()).await;
    }
    let status = world.store().status().await.unwrap();
    assert_eq!((status.processing, status.pending, status.dead), (8, 0, 4));
}

pub(crate) async fn a_key_follows_on_dead_when_its_head_cannot_be_read<H: Harness>(mut world: World<H>) {
    let head = world.send(to("a").ordering_key("k")).await;
    let next = world.send(to("a").ordering_key("k")).await;
    world.harness().damage(head, Damage::Headers).await;
    assert!(world.claim_ids().await.is_empty());
    assert_set_aside(&world, head, "headers").await;
    assert_eq!(world.claim_ids().await, [next], "the key goes on");

    let b = world.endpoint("b", json!({"on_dead": "hold"})).await;
    let head = world.send(to("b").ordering_key("k")).await;
    let next = world.send(to("b").ordering_key("k")).await;
    world.harness().damage(head, Damage::Headers).await;
    for _ in 0..2 {
        assert!(world.claim(b, 5).await.is_empty());
    }
    assert!(world.reason(next).await.contains(&format!("held by dead message {head}")));
    assert_eq!(world.store().release_key("k", Some("b")).await.unwrap(), 1);
    assert_eq!(world.claim(b, 5).await[0].id, next);
}

pub(crate) async fn what_cannot_be_read_is_shown_as_such<H: Harness>(mut world: World<H>) {
    let mut damaged = Vec::new();
    for damage in Damage::ALL {
        let id = world.send(to("a")).await;
        world.harness().damage(id, damage).await;
        damaged.push(id);
    }
    for state in [State::Pending, State::Dead] {
        let page = world.store().messages(MessageFilter::default()).await.unwrap();
        let listed: Vec<_> = page.items.iter().map(|message| (message.id, message.state)).collect();
        assert_eq!(listed, damaged.iter().rev().map(|id| (*id, state)).collect::<Vec<_>>());
        let broken = world.story(damaged[0]).await.headers;
        assert!(broken.contains_key(UNREADABLE_FIELD), "{broken:?}");
        let broken = world.story(damaged[1]).await.options;
        assert!(broken.contains_key(UNREADABLE_FIELD), "{broken:?}");
        for id in &damaged {
            assert_eq!(world.story(*id).await.state, state);
        }
        for _ in 0..2 {
            assert!(world.claim_ids().await.is_empty());
        }
    }
    assert!(world.letters().await[0].headers.contains_key(UNREADABLE_FIELD));
    let filter = DlqFilter { reason: Some(UNREADABLE.to_owned()), ..DlqFilter::default() };
    assert_eq!(world.store().dlq(filter).await.unwrap().len(), Damage::ALL.len());
}

pub(crate) async fn a_suspect_that_cannot_be_read_is_set_aside<H: Harness>(mut world: World<H>) {
    for damage in [Damage::Options, Damage::CreatedAt] {
        let (damaged, whole) = (world.send(to("a")).await, world.send(to("a")).await);
        let silent = world.another_node().await;
        assert_eq!(world.claim_as(silent, world.a, 2).await.len(), 2);
        world.harness().damage(damaged, damage).await;
        for lost in world.lost().await {
            assert_eq!(world.lose(&lost).await.effect, Effect::Applied(State::Pending));
        }
        let ids: Vec<_> =
            world.store().suspects(10).await.unwrap().iter().map(|suspect| suspect.id).collect();
        assert_eq!(ids.len(), 2);
        let wants = vec![Want { endpoint: world.a, room: 2, pick: Pick::Suspects(ids) }];
        let claimed = world.ask(world.node, false, wants).await;
        assert_eq!(claimed.claims.iter().map(|claim| claim.message.id).collect::<Vec<_>>(), [whole]);
        let letter = world.letter_of(damaged).await;
        assert_eq!((letter.reason.as_str(), letter.attempt_count), (UNREADABLE, 1), "the lost one counts");
    }
}

pub(crate) async fn a_probe_is_one_that_can_be_read<H: Harness>(mut world: World<H>) {
    let (damaged, whole) = (world.send(to("a")).await, world.send(to("a")).await);
    world.harness().damage(damaged, Damage::Headers).await;
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let probing = circuit.probing(world.node, world.in_seconds(20));
    assert!(world.store().move_circuit(world.a, circuit.epoch, probing).await.unwrap());
    let mut probed = Vec::new();
    for _ in 0..2 {
        let wants = vec![Want { endpoint: world.a, room: 1, pick: Pick::Probe }];
        let claimed = world.ask(world.node, false, wants).await;
        probed.extend(claimed.claims.iter().map(|claim| claim.message.id));
    }
    assert_eq!(probed, [whole]);
    assert_set_aside(&world, damaged, "headers").await;
}

pub(crate) async fn a_claim_ends_whatever_was_written_into_its_message_meanwhile<H: Harness>(
    mut world: World<H>,
) {
    for damage in Damage::ALL {
        let message = || to("a").ordering_key("k");
        let delivered = world.send(message()).await;
        let ticket = world.claim_one().await;
        world.harness().damage(delivered, damage).await;
        assert_eq!(world.complete(ticket).await.effect, Effect::Applied(State::Completed), "{damage:?}");
        assert_eq!(world.story(delivered).await.state, State::Completed);

        let failed = world.send(message()).await;
        let ticket = world.claim_one().await;
        world.harness().damage(failed, damage).await;
        assert_eq!(world.settle(ticket, retry_at(world.now())).await.effect, Effect::Applied(State::Pending));
        assert!(world.claim_ids().await.is_empty(), "{damage:?}");
        assert_eq!(world.letter_of(failed).await.reason, UNREADABLE, "{damage:?}");
    }
    world.clean_up().await;
}

pub(crate) async fn a_message_that_cannot_be_read_is_cancelled_and_its_endpoint_dropped<H: Harness>(
    world: World<H>,
) {
    for damage in Damage::ALL {
        let id = world.send(to("a").ordering_key("k")).await;
        world.harness().damage(id, damage).await;
        world.store().cancel(id).await.unwrap();
        assert_eq!(world.story(id).await.state, State::Cancelled, "{damage:?}");
    }
    let mut ids = Vec::new();
    for damage in Damage::ALL {
        ids.push(world.send(to("a")).await);
        world.harness().damage(*ids.last().unwrap(), damage).await;
    }
    world.store().drop_endpoint("a", true).await.unwrap();
    for id in ids {
        assert_eq!(world.story(id).await.state, State::Cancelled);
    }
    world.clean_up().await;
}

pub(crate) async fn what_cannot_be_read_comes_back_from_a_redrive_only_to_be_set_aside_again<H: Harness>(
    mut world: World<H>,
) {
    for damage in [Damage::Headers, Damage::Options, Damage::CreatedAt] {
        let id = world.send(to("a").ordering_key("k")).await;
        world.harness().damage(id, damage).await;
    }
    for _ in 0..3 {
        assert!(world.claim_ids().await.is_empty());
    }
    assert_eq!(world.store().redrive(Redrive::All).await.unwrap(), 3);
    for _ in 0..3 {
        assert!(world.claim_ids().await.is_empty());
    }
    let failed = DlqFilter { status: Some(DlqStatus::Failed), ..DlqFilter::default() };
    assert_eq!(world.store().dlq(failed).await.unwrap().len(), 3);
    assert_eq!(world.queued().await, 0);
}
