use postrider::error::StoreError;
use postrider::settings::Settings;
use postrider::{Operate, Store};

use crate::store::world::{Harness, World, to};

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

pub(crate) async fn a_new_store_has_the_defaults<H: Harness>(world: World<H>) {
    assert_eq!(world.store().settings().await.unwrap(), Settings::default());
}

pub(crate) async fn settings_change_all_or_none<H: Harness>(mut world: World<H>) {
    let bad = vec![pair("node_lease", "20"), pair("dlq_retention_days", "0"), pair("archive", "off")];
    let refused = world.store().configure(bad).await.unwrap_err();
    assert!(
        matches!(&refused, StoreError::Invalid(invalid) if invalid.field == "dlq_retention_days"),
        "{refused:?}"
    );
    assert_eq!(world.store().settings().await.unwrap(), Settings::default());
    let unknown =
        world.store().configure(vec![pair("node_lease", "20"), pair("speed", "1")]).await.unwrap_err();
    assert!(matches!(&unknown, StoreError::Invalid(invalid) if invalid.field == "speed"), "{unknown:?}");
    assert_eq!(world.store().settings().await.unwrap(), Settings::default());

    let mut expected = Settings::default();
    for (name, value) in [("node_lease", "20"), ("archive", "off")] {
        expected.apply(name, value).unwrap();
    }
    world.store().configure(vec![pair("node_lease", "20"), pair("archive", "off")]).await.unwrap();
    assert_eq!(world.store().settings().await.unwrap(), expected);
    world.crash().await;
    assert_eq!(world.store().settings().await.unwrap(), expected, "they survive");
}

pub(crate) async fn changes_of_settings_are_logged<H: Harness>(world: World<H>) {
    world.configure("node_lease", 20).await;
    let events = world.events().await;
    let changed = events.iter().find(|event| event.kind == "settings.changed").expect("an event");
    assert!(format!("{changed:?}").contains("node_lease"), "{changed:?}");
}

pub(crate) async fn events_are_read_from_the_newest_back<H: Harness>(world: World<H>) {
    for lease in 20..25 {
        world.configure("node_lease", lease).await;
        world.advance(1);
    }
    let all = world.events().await;
    assert!(all.len() >= 5 && all.is_sorted_by(|left, right| left.id > right.id && left.at >= right.at));
    let newest = world.store().events(None, 2).await.unwrap();
    assert_eq!(newest, all[..2]);
    let older = world.store().events(Some(newest[1].id), 2).await.unwrap();
    assert_eq!(older, all[2..4]);
}

pub(crate) async fn nodes_that_come_and_go_are_logged<H: Harness>(mut world: World<H>) {
    let silent = world.another_node().await;
    let leaving = world.another_node().await;
    world.send(to("a")).await;
    world.claim_as(silent, world.a, 1).await;
    world.store().leave(leaving).await.unwrap();
    world.lost().await;
    let events = world.events().await;
    let count = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
    assert_eq!([count("node.joined"), count("node.left"), count("node.lost")], [3, 1, 1]);
    assert_eq!(world.store().lost_claims(10).await.unwrap().len(), 1);
    assert_eq!(world.events().await.len(), events.len(), "a node is lost once");
}

pub(crate) async fn a_redrive_is_logged<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    world.store().redrive(postrider::store::Redrive::One(letter.id)).await.unwrap();
    let events = world.events().await;
    assert!(events.iter().any(|event| event.kind.contains("redriv")), "{events:?}");
}

pub(crate) async fn a_pause_of_everything_is_remembered_and_logged<H: Harness>(mut world: World<H>) {
    world.store().pause("upgrade").await.unwrap();
    assert_eq!(world.store().status().await.unwrap().paused.as_deref(), Some("upgrade"));
    world.crash().await;
    assert_eq!(world.store().status().await.unwrap().paused.as_deref(), Some("upgrade"));
    world.store().resume().await.unwrap();
    assert_eq!(world.store().status().await.unwrap().paused, None);
    let events = world.events().await;
    let has = |word: &str| events.iter().any(|event| event.kind.ends_with(word));
    assert!(has("paused") && has("resumed"), "{events:?}");
}
