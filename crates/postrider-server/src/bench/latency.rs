//! From send to arrival at a calm rate, against one durable commit of plain SQLite in the same run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use postrider::NewMessage;
use tokio::task::JoinSet;

use super::bed::{Bed, HEALTHY};
use super::lab::Lab;
use super::plain::Plain;
use super::report::{BenchTarget, ReportRow, median, percentile};
use crate::failure::CommandError;

const PERIOD: Duration = Duration::from_millis(5);
/// Connections are made and caches are warm by then; these are not counted.
pub(super) const WARM_UP: u64 = 100;
const ARRIVE_WITHIN: Duration = Duration::from_secs(10);

pub(super) async fn run(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let (store, plain_store) = (lab.new_store().await?, lab.new_store().await?);
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/latency")).await?;
    bed.store.send(timed(0)).await?;
    let plain = Plain::like(&store, &plain_store)?;
    let engine = bed.start_engine(Duration::from_secs(5)).await?;
    lab.partner.reset().await?;
    bed.store.set_endpoint_paused(HEALTHY, false).await?;
    lab.say("200 messages a second");
    let count = (lab.scale.latency_seconds / PERIOD.as_secs_f64()) as u64 + WARM_UP;
    let commits = pace(&bed, plain, count).await?;
    let latencies = arrivals(lab, count, WARM_UP).await?;
    engine.stop().await;
    drop(bed);
    lab.discard(store).await?;
    lab.discard(plain_store).await?;
    Ok(rows(&latencies, &commits))
}

fn rows(latencies: &[f64], commits: &[f64]) -> Vec<ReportRow> {
    let row = |name, part, above| ReportRow {
        name,
        measured: percentile(latencies, part),
        unit: "ms",
        yardstick: Some(("durable commit, median", median(commits))),
        target: BenchTarget::AboveYardstickBelow(above),
        note: format!("200/s, {} messages", latencies.len()),
    };
    vec![row("send to arrival, median", 0.5, 1.0), row("send to arrival, 99 %", 0.99, 10.0)]
}

fn timed(number: u64) -> NewMessage {
    let sent_us = Timestamp::now().as_microsecond();
    let filler = "0123456789abcdef".repeat(9);
    let payload = format!(r#"{{"number":{number},"sent_us":{sent_us},"filler":"{filler}"}}"#);
    NewMessage::new(HEALTHY, payload)
}

/// Sends on the beat whatever the last send does, and between two beats makes a plain commit.
async fn pace(bed: &Bed, mut plain: Plain, count: u64) -> Result<Vec<f64>, CommandError> {
    let mut sends: JoinSet<Result<(), CommandError>> = JoinSet::new();
    let mut commits = Vec::new();
    let began = Instant::now();
    for number in 1..=count {
        let beat = began + PERIOD * number as u32;
        tokio::time::sleep_until(beat.into()).await;
        let store = Arc::clone(&bed.store);
        sends.spawn(async move {
            store.send(timed(number)).await?;
            Ok(())
        });
        tokio::time::sleep_until((beat + PERIOD / 2).into()).await;
        let (back, took) = tokio::task::spawn_blocking(move || {
            let took = plain.insert(1);
            (plain, took)
        })
        .await
        .expect("the yardstick does not panic");
        plain = back;
        commits.push(took?.as_secs_f64() * 1e3);
    }
    while let Some(sent) = sends.join_next().await {
        sent.expect("a send does not panic")?;
    }
    Ok(commits)
}

/// In milliseconds, by number, without those before `first`.
pub(super) async fn arrivals(lab: &mut Lab, count: u64, first: u64) -> Result<Vec<f64>, CommandError> {
    let under_way = arrived(lab, count).await?;
    Ok(under_way.range(first..).map(|(_, micros)| *micros as f64 / 1e3).collect())
}

/// How many microseconds each was under way, by number, when 0 to `count` have arrived.
pub(super) async fn arrived(lab: &mut Lab, count: u64) -> Result<BTreeMap<u64, i64>, CommandError> {
    let deadline = Instant::now() + ARRIVE_WITHIN;
    loop {
        let micros = lab.partner.latencies().await?;
        if micros.len() as u64 > count {
            return Ok(micros);
        }
        if Instant::now() >= deadline {
            return Err(CommandError::failed(format!("only {} of {count} arrived in time", micros.len())));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
