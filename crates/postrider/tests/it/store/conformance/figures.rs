use std::collections::BTreeMap;
use std::time::Duration;

use postrider::store::figures::{ENDPOINTS_MAX, OTHERS};
use postrider::store::{DlqFilter, Figures, Redrive, Replays, SweepAction, Sweeps};
use postrider::{NewMessage, Operate, Store};
use serde_json::json;

use crate::store::world::{Harness, World, new_endpoint, to};

const DAY: u64 = 86_400;

/// Every figure by its name and labels, as one would ask for it.
async fn figures<H: Harness>(world: &World<H>) -> BTreeMap<String, f64> {
    let figures = world.store().figures().await.expect("figures");
    let key = |name: &str, labels: &BTreeMap<String, String>| {
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{name}{{{}}}", labels.join(","))
    };
    let count = figures.len();
    let by_name: BTreeMap<String, f64> =
        figures.into_iter().map(|figure| (key(&figure.name, &figure.labels), figure.value)).collect();
    assert_eq!(by_name.len(), count, "each is told once");
    by_name
}

pub(crate) async fn the_figures_are_those_of_the_store<H: Harness>(mut world: World<H>) {
    world.endpoint("resting", json!({})).await;
    world.endpoint("off", json!({})).await;
    world.store().set_endpoint_paused("resting", true).await.unwrap();
    world.store().set_endpoint_enabled("off", false).await.unwrap();
    world.send_to_death(to("a")).await;
    world.send(to("a")).await;
    assert_eq!(world.claim(world.a, 1).await.len(), 1);
    world.send(to("a")).await;
    world.send(NewMessage { endpoint: "resting".into(), ..to("a") }).await;
    world.live(7).await;
    world.store().pause("upgrade").await.unwrap();
    let mut figures = figures(&world).await;
    // Only PostgreSQL captures, and only SQLite stores events.
    for only in ["capture_skipped_total", "stored_events", "oldest_stored_event_age_seconds"] {
        assert!(figures.remove(&format!("postrider_{only}{{}}")).is_none_or(|value| value == 0.0), "{only}");
    }
    let mut expected = vec![
        ("postrider_messages{state=pending}".to_owned(), 2.0),
        ("postrider_messages{state=processing}".to_owned(), 1.0),
        ("postrider_messages{state=dead}".to_owned(), 1.0),
        ("postrider_oldest_pending_age_seconds{}".to_owned(), 7.0),
        ("postrider_paused{}".to_owned(), 1.0),
        ("postrider_endpoints{state=enabled}".to_owned(), 1.0),
        ("postrider_endpoints{state=paused}".to_owned(), 1.0),
        ("postrider_endpoints{state=disabled}".to_owned(), 1.0),
        ("postrider_retention_lag_seconds{of=dlq}".to_owned(), 0.0),
        ("postrider_retention_lag_seconds{of=event_log}".to_owned(), 0.0),
        ("postrider_retention_lag_seconds{of=archive}".to_owned(), 0.0),
        ("postrider_nodes{state=live}".to_owned(), 1.0),
        ("postrider_evictions_total{}".to_owned(), 0.0),
        ("postrider_publish_skipped_total{}".to_owned(), 0.0),
        ("postrider_backpressure_rejections_total{}".to_owned(), 0.0),
    ];
    for (name, pending, processing, dead, oldest) in
        [("a", 1.0, 1.0, 1.0, 7.0), ("resting", 1.0, 0.0, 0.0, 7.0), ("off", 0.0, 0.0, 0.0, 0.0)]
    {
        let of = |name_of_figure: &str, value: f64| (format!("postrider_endpoint_{name_of_figure}"), value);
        expected.extend([
            of(&format!("messages{{endpoint={name},state=pending}}"), pending),
            of(&format!("messages{{endpoint={name},state=processing}}"), processing),
            of(&format!("messages{{endpoint={name},state=dead}}"), dead),
            of(&format!("oldest_pending_age_seconds{{endpoint={name}}}"), oldest),
            of(&format!("circuit_state{{endpoint={name}}}"), 0.0),
            of(&format!("mode{{endpoint={name}}}"), 0.0),
        ]);
    }
    assert_eq!(figures, expected.into_iter().collect());
}

pub(crate) async fn the_state_of_a_circuit_is_a_figure<H: Harness>(world: World<H>) {
    let circuit = world.store().endpoint("a").await.unwrap().circuit;
    let open = circuit.opened(world.now(), Duration::from_secs(30));
    assert!(world.store().move_circuit(world.a, circuit.epoch, open).await.unwrap());
    assert_eq!(figures(&world).await["postrider_endpoint_circuit_state{endpoint=a}"], 2.0);
    let probing = open.probing(world.node, world.now());
    assert!(world.store().move_circuit(world.a, open.epoch, probing).await.unwrap());
    assert_eq!(figures(&world).await["postrider_endpoint_circuit_state{endpoint=a}"], 1.0);
}

pub(crate) async fn endpoints_beyond_the_first_hundred_are_summed<H: Harness>(mut world: World<H>) {
    for number in 1..ENDPOINTS_MAX + 3 {
        // Their names say nothing about their age.
        world.store().create_endpoint(new_endpoint(&format!("e{}", 1000 - number), json!({}))).await.unwrap();
    }
    let late = |number: usize| NewMessage { endpoint: format!("e{}", 1000 - number), ..to("a") };
    world.send_to_death(late(ENDPOINTS_MAX)).await;
    world.send(late(ENDPOINTS_MAX)).await;
    world.live(5).await;
    world.send(late(ENDPOINTS_MAX + 1)).await;
    world.send(late(ENDPOINTS_MAX - 1)).await;
    let figures = figures(&world).await;
    let of = |name: &str, state: &str| {
        figures.get(&format!("postrider_endpoint_messages{{endpoint={name},state={state}}}")).copied()
    };
    assert_eq!(of(&late(ENDPOINTS_MAX - 1).endpoint, "pending"), Some(1.0), "the hundredth has its own");
    assert_eq!(of(&late(ENDPOINTS_MAX).endpoint, "pending"), None);
    assert_eq!((of(OTHERS, "pending"), of(OTHERS, "dead")), (Some(2.0), Some(1.0)));
    let age = format!("postrider_endpoint_oldest_pending_age_seconds{{endpoint={OTHERS}}}");
    assert_eq!(figures[&age], 5.0, "the longest of them");
    let named = |name: &&String| name.starts_with("postrider_endpoint_circuit_state");
    assert_eq!(figures.keys().filter(named).count(), ENDPOINTS_MAX + 1);
    assert_eq!(figures["postrider_endpoints{state=enabled}"], (ENDPOINTS_MAX + 3) as f64);
}

pub(crate) async fn refusals_of_a_full_queue_are_counted<H: Harness>(mut world: World<H>) {
    let letter = world.send_to_death(to("a")).await;
    world.configure("max_queue_size", 20).await;
    world.store().send_batch(vec![to("a"); 19]).await.expect("never refused below 95 %");
    world.live(2).await;
    for _ in 0..2 {
        world.store().send_batch(vec![to("a"); 5]).await.unwrap_err();
    }
    while world.store().send(to("a")).await.is_ok() {}
    world.store().redrive(Redrive::All).await.unwrap_err();
    world.store().sweep(SweepAction::Redrive, DlqFilter::default(), None).await.unwrap_err();
    world.store().replay_message(letter.message, None).await.unwrap_err();
    assert_eq!(figures(&world).await["postrider_backpressure_rejections_total{}"], 6.0);
}

pub(crate) async fn evictions_are_counted_and_survive_a_crash<H: Harness>(mut world: World<H>) {
    for _ in 0..3 {
        world.send_to_death(to("a")).await;
    }
    world.advance(31 * DAY);
    let lag = figures(&world).await["postrider_retention_lag_seconds{of=dlq}"];
    assert_eq!(lag, DAY as f64, "they should have gone a day ago");
    world.clean_up().await;
    world.crash().await;
    let figures = figures(&world).await;
    assert_eq!(figures["postrider_evictions_total{}"], 3.0);
    assert_eq!(figures["postrider_retention_lag_seconds{of=dlq}"], 0.0);
}

pub(crate) async fn a_month_that_nobody_cleaned_up_is_a_lag<H: Harness>(world: World<H>) {
    world.configure("archive_retention_months", 1).await;
    // This month begins.
    world.clean_up().await;
    // From the middle of January: in the middle of March, what was kept until the end of January is late.
    world.advance((31 + 28) * DAY);
    let lag = figures(&world).await["postrider_retention_lag_seconds{of=archive}"];
    assert_eq!(lag, (14 * 24 + 12) as f64 * 3600.0);
    world.clean_up().await;
    assert_eq!(figures(&world).await["postrider_retention_lag_seconds{of=archive}"], 0.0);
}
