//! What a scrape costs those who wait for delivery.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::task::JoinHandle;

use super::bed::{Bed, HEALTHY};
use super::lab::Lab;
use super::load::{self, HttpLoad, Until};
use super::node::BenchNode;
use super::report::{BenchTarget, ReportRow, median};
use crate::failure::CommandError;
use crate::remote::{Remote, RemoteArgs};

const PATIENCE: Duration = Duration::from_secs(600);
/// What one scrape a second costs is less than what one run differs from the next. So there are more runs, and
/// more scrapes, of which each may cost `COST_MAX`.
const MORE_ROUNDS: usize = 3;
const SCRAPES_A_SECOND: u32 = 10;
const COST_MAX: f64 = 0.02;

pub(super) async fn run(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let (mut without, mut scraped) = (Vec::new(), Vec::new());
    for round in 0..lab.scale.rounds * MORE_ROUNDS {
        // In turns: a machine that gets slower or faster does so for both.
        for scrapes in if round % 2 == 0 { [false, true] } else { [true, false] } {
            lab.say(if scrapes { "ten scrapes a second" } else { "no scrapes" });
            let rate = deliver(lab, scrapes.then(|| Duration::from_secs(1) / SCRAPES_A_SECOND)).await?;
            if scrapes { &mut scraped } else { &mut without }.push(rate);
        }
    }
    Ok(vec![ReportRow {
        name: "delivery with ten scrapes a second",
        measured: median(&scraped),
        unit: "/s",
        yardstick: Some(("not scraped", median(&without))),
        target: BenchTarget::RatioAtLeast(1.0 - COST_MAX * f64::from(SCRAPES_A_SECOND)),
        note: format!("{} messages, {} runs of each; 2 % for one a second", lab.scale.backlog, without.len()),
    }])
}

/// Messages a second from resuming the endpoint until all arrived.
async fn deliver(lab: &mut Lab, period: Option<Duration>) -> Result<f64, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.fill(HEALTHY, lab.scale.backlog, 0).await?;
    drop(bed);
    let node = BenchNode::start(&store).await?;
    lab.partner.reset().await?;
    let scraper = period.map(|period| scrape(&node, period)).transpose()?;
    let began = Instant::now();
    resume(&node).await?;
    lab.partner.until_counted(u64::from(lab.scale.backlog), PATIENCE).await?;
    let rate = f64::from(lab.scale.backlog) / began.elapsed().as_secs_f64();
    if let Some(scraper) = scraper {
        scraper.abort();
        if let Ok(Err(failure)) = scraper.await {
            return Err(failure);
        }
    }
    node.stop().await;
    lab.discard(store).await?;
    Ok(rate)
}

async fn resume(node: &BenchNode) -> Result<(), CommandError> {
    let load = HttpLoad {
        authority: node.authority.clone(),
        path: format!("/v1/endpoints/{HEALTHY}/resume"),
        body: String::new(),
        connections: 1,
        until: Until::Requests(1),
    };
    load::run(&load).await?.rate(200).map(|_| ())
}

/// Ends only when it fails, or is told to.
fn scrape(node: &BenchNode, period: Duration) -> Result<JoinHandle<Result<(), CommandError>>, CommandError> {
    let client = Remote::new(RemoteArgs::of_node(&node.authority))?;
    let mut ticks = tokio::time::interval(period);
    Ok(tokio::spawn(async move {
        loop {
            ticks.tick().await;
            let page = client.get("/metrics", &[]).await?.collect().await;
            page.map_err(|error| CommandError::failed(format!("half a page of metrics: {error}")))?;
        }
    }))
}
