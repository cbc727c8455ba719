//! What a node takes from the machine: idle, and while messages pass through.

use std::time::{Duration, Instant};

use super::bed::{Bed, HEALTHY, payload};
use super::lab::Lab;
use super::load::{CONNECTIONS, HttpLoad, Until};
use super::node::BenchNode;
use super::report::{BenchTarget, ReportRow};
use crate::failure::CommandError;

/// What starting up leaves to do is done by then.
pub(super) const SETTLE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(300);

pub(super) async fn idle(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let node = start_node(lab).await?;
    lab.say("an idle node");
    tokio::time::sleep(SETTLE).await;
    let (began, before) = (Instant::now(), node.processor_seconds()?);
    tokio::time::sleep(lab.scale.idle_time).await;
    let percent = (node.processor_seconds()? - before) / began.elapsed().as_secs_f64() * 100.0;
    let megabytes = node.megabytes()?;
    node.stop().await;
    let note = format!("over {} s", lab.scale.idle_time.as_secs());
    Ok(vec![
        row("processor of an idle node", percent, "% of a core", 1.0, note),
        row("memory of an idle node", megabytes, "MB", 60.0, String::new()),
    ])
}

pub(super) async fn under_load(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let node = start_node(lab).await?;
    lab.say("messages pass through");
    lab.partner.reset().await?;
    let count = u64::from(lab.scale.backlog);
    let load = HttpLoad {
        authority: node.authority.clone(),
        path: format!("/v1/endpoints/{HEALTHY}/messages"),
        body: payload(0),
        connections: CONNECTIONS,
        until: Until::Requests(count),
    };
    lab.partner.load(load).await?.rate(202)?;
    lab.partner.until_counted(count, PATIENCE).await?;
    let peak = node.megabytes_peak()?;
    node.stop().await;
    Ok(vec![row("peak memory while messages pass through", peak, "MB", 200.0, format!("{count} messages"))])
}

pub(super) fn row(
    name: &'static str,
    measured: f64,
    unit: &'static str,
    below: f64,
    note: String,
) -> ReportRow {
    ReportRow { name, measured, unit, yardstick: None, target: BenchTarget::Below(below), note }
}

async fn start_node(lab: &mut Lab) -> Result<BenchNode, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_endpoint(HEALTHY, lab.partner.url("/count")).await?;
    drop(bed);
    BenchNode::start(&store).await
}
