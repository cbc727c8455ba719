//! What others cost a healthy endpoint: one that is dead, one that takes five seconds, thousands idle.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::net::TcpListener;

use super::bed::{Bed, HEALTHY};
use super::lab::Lab;
use super::report::{BenchTarget, ReportRow, Rounds};
use crate::failure::CommandError;
use crate::store_url::StoreUrl;

/// Attempts to the slow endpoint are still running at the end; the bench does not wait for them.
const DRAIN: Duration = Duration::from_millis(100);
const CREATED_AT_ONCE: usize = 500;

pub(super) async fn bad(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "the healthy one alone");
        let yardstick = deliver_alone(lab).await?;
        lab.say_round(round, "beside a dead and a slow one");
        rounds.add(deliver_beside_bad(lab).await?, yardstick);
    }
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "healthy beside a dead and a 5-second endpoint",
        measured,
        unit: "/s",
        yardstick: Some(("alone", yardstick)),
        target: BenchTarget::RatioAtLeast(0.85),
        note: format!("{} messages to each", lab.scale.neighbour_backlog),
    }])
}

pub(super) async fn idle(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let crowd = lab.new_store().await?;
    lab.say("creating idle endpoints");
    create_crowd(lab, &crowd).await?;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "the healthy one alone");
        let yardstick = deliver_alone(lab).await?;
        lab.say_round(round, "beside idle ones");
        let bed = Bed::open(&crowd).await?;
        rounds.add(deliver(lab, &bed).await?, yardstick);
    }
    lab.discard(crowd).await?;
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "healthy beside idle endpoints",
        measured,
        unit: "/s",
        yardstick: Some(("alone", yardstick)),
        target: BenchTarget::RatioAtLeast(0.85),
        note: format!("{} idle endpoints", lab.scale.idle_endpoints),
    }])
}

async fn deliver_alone(lab: &mut Lab) -> Result<f64, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    let rate = deliver(lab, &bed).await?;
    drop(bed);
    lab.discard(store).await?;
    Ok(rate)
}

async fn deliver_beside_bad(lab: &mut Lab) -> Result<f64, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.create_endpoint("dead", format!("http://{}/", refusing_address().await?)).await?;
    bed.create_endpoint("slow", lab.partner.url("/slow")).await?;
    bed.fill("dead", lab.scale.neighbour_backlog, 0).await?;
    bed.fill("slow", lab.scale.neighbour_backlog, 0).await?;
    let rate = deliver(lab, &bed).await?;
    drop(bed);
    lab.discard(store).await?;
    Ok(rate)
}

async fn deliver(lab: &mut Lab, bed: &Bed) -> Result<f64, CommandError> {
    bed.store.set_endpoint_paused(HEALTHY, true).await?;
    bed.fill(HEALTHY, lab.scale.neighbour_backlog, 0).await?;
    let engine = bed.start_engine(DRAIN).await?;
    let rate = bed.deliver(&mut lab.partner, lab.scale.neighbour_backlog).await;
    engine.stop().await;
    rate
}

async fn create_crowd(lab: &Lab, store: &StoreUrl) -> Result<(), CommandError> {
    let bed = Bed::open(store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    let names: Vec<String> = (0..lab.scale.idle_endpoints).map(|number| format!("idle-{number}")).collect();
    for some in names.chunks(CREATED_AT_ONCE) {
        let url = lab.partner.url("/count");
        try_join_all(some.iter().map(|name| bed.create_endpoint(name, url.clone()))).await?;
    }
    Ok(())
}

/// A port without a listener: it was free a moment ago.
async fn refusing_address() -> Result<std::net::SocketAddr, CommandError> {
    let failed = |error| CommandError::failed(format!("cannot find a free port: {error}"));
    TcpListener::bind("127.0.0.1:0").await.and_then(|listener| listener.local_addr()).map_err(failed)
}
