//! What another program wrote into the file does not keep the rest from moving.

use postrider::store::{DlqFilter, Listing, MessageFilter, UNREADABLE, UNREADABLE_FIELD};
use postrider::{Operate, State};

use super::super::world::{Damage, Harness, World, to};
use super::{Sqlite, destination, import, taken};

#[tokio::test]
async fn a_message_that_cannot_be_read_moves_as_a_dead_letter() {
    let mut world = World::<Sqlite>::start().await;
    let mut damaged = Vec::new();
    for damage in Damage::ALL {
        let id = world.send(to("a")).await;
        world.harness().damage(id, damage).await;
        damaged.push(id);
    }
    // Two are dead letters already, two are queued when the export begins.
    assert_eq!(world.claim(world.a, 2).await.len(), 0);
    let cancelled = world.send(to("a")).await;
    world.harness().damage(cancelled, Damage::Headers).await;
    world.store().cancel(cancelled).await.unwrap();
    let whole = world.send(to("a")).await;

    let postgres = destination(&world).await;
    let stream = taken(&world.die_out()).await;
    import(&postgres, stream).await.unwrap();
    let store = postgres.open().await;
    let letters = store.dlq(DlqFilter::default()).await.unwrap();
    assert!(letters.iter().all(|letter| letter.reason == UNREADABLE));
    let mut dead: Vec<_> = letters.iter().map(|letter| letter.message).collect();
    dead.sort_unstable();
    assert_eq!(dead, damaged);
    assert!(store.story(damaged[0]).await.unwrap().headers.contains_key(UNREADABLE_FIELD));
    let story = store.story(cancelled).await.unwrap();
    assert_eq!(story.state, State::Cancelled);
    assert!(story.headers.contains_key(UNREADABLE_FIELD));
    assert_eq!(store.story(whole).await.unwrap().state, State::Pending);
    assert_eq!(store.messages(MessageFilter::default()).await.unwrap().items.len(), 6);
}
