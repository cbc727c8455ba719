//! From an application's commit to arrival: at a calm rate, and the first one after a rest.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::server::{connect_to, failed};
use crate::bench::bed::{Bed, HEALTHY};
use crate::bench::lab::Lab;
use crate::bench::latency::{WARM_UP, arrivals};
use crate::bench::report::{BenchTarget, ReportRow, percentile};
use crate::failure::CommandError;

const PERIOD: Duration = Duration::from_millis(5);
const REST: Duration = Duration::from_secs(4);
const SEND: &str = "SELECT postrider.send('healthy', $1::text::jsonb)";

pub(in crate::bench) async fn calm(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    lab.say("200 messages a second");
    let count = (lab.scale.latency_seconds / PERIOD.as_secs_f64()) as u64 + WARM_UP;
    let latencies = measure(lab, count, PERIOD).await?;
    let kept: Vec<f64> = latencies.into_iter().skip(WARM_UP as usize).collect();
    let row = |name, part, below| ReportRow {
        name,
        measured: percentile(&kept, part),
        unit: "ms",
        yardstick: None,
        target: BenchTarget::Below(below),
        note: format!("200/s, {} messages", kept.len()),
    };
    Ok(vec![row("commit to arrival, median", 0.5, 2.0), row("commit to arrival, 99 %", 0.99, 15.0)])
}

pub(in crate::bench) async fn after_idle(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    lab.say("one message after each rest");
    let count = lab.scale.rounds as u64 + 2;
    let latencies = measure(lab, count, REST).await?;
    Ok(vec![ReportRow {
        name: "the first message after a rest",
        measured: latencies[1..].iter().copied().fold(0.0, f64::max),
        unit: "ms",
        yardstick: None,
        target: BenchTarget::Below(20.0),
        note: format!("the slowest of {}, after {} s each", count - 1, REST.as_secs()),
    }])
}

/// In milliseconds from the commit as the application saw it, in the order of sending.
async fn measure(lab: &mut Lab, count: u64, period: Duration) -> Result<Vec<f64>, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_endpoint(HEALTHY, lab.partner.url("/latency")).await?;
    let engine = bed.start_engine(Duration::from_secs(5)).await?;
    lab.partner.reset().await?;
    let client = connect_to(&store).await?;
    let statement = client.prepare(SEND).await.map_err(failed)?;
    let mut commits = Vec::new();
    let began = Instant::now();
    for number in 0..=count {
        tokio::time::sleep_until((began + period * number as u32).into()).await;
        let sent = Timestamp::now().as_microsecond();
        let filler = "0123456789abcdef".repeat(9);
        let payload = format!(r#"{{"number":{number},"sent_us":{sent},"filler":"{filler}"}}"#);
        client.query(&statement, &[&payload]).await.map_err(failed)?;
        commits.push((Timestamp::now().as_microsecond() - sent) as f64 / 1e3);
    }
    let arrived = arrivals(lab, count, 0).await?;
    engine.stop().await;
    drop((bed, client));
    lab.discard(store).await?;
    // It may arrive before the application hears of its own commit.
    Ok(arrived.iter().zip(&commits).map(|(arrived, commit)| (arrived - commit).max(0.0)).collect())
}
