//! What a scrape costs those who wait for delivery.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::task::JoinHandle;

use super::bed::{Bed, HEALTHY};
use super::lab::Lab;
use super::load::{self, Load, Until};
use super::node::Node;
use super::report::{Row, Target, median};
use crate::failure::Failure;
use crate::remote::{Remote, RemoteArgs};

const PATIENCE: Duration = Duration::from_secs(600);
/// What is compared differs by less than one run from the next, so there are more of them.
const MORE_ROUNDS: usize = 3;

pub(super) async fn run(lab: &mut Lab) -> Result<Vec<Row>, Failure> {
    let (mut without, mut calm, mut eager) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..lab.scale.rounds * MORE_ROUNDS {
        lab.say("nobody scrapes");
        without.push(deliver(lab, None).await?);
        lab.say("a scrape a second");
        calm.push(deliver(lab, Some(Duration::from_secs(1))).await?);
    }
    for _ in 0..lab.scale.rounds {
        lab.say("ten scrapes a second");
        eager.push(deliver(lab, Some(Duration::from_millis(100))).await?);
    }
    let row = |name, rates: &[f64], target| Row {
        name,
        measured: median(rates),
        unit: "/s",
        yardstick: Some(("not scraped", median(&without))),
        target,
        note: format!("{} messages, {} runs against {}", lab.scale.backlog, rates.len(), without.len()),
    };
    Ok(vec![
        row("delivery with a scrape a second", &calm, Target::RatioAtLeast(0.98)),
        row("delivery with ten scrapes a second", &eager, Target::None),
    ])
}

/// Messages a second from resuming the endpoint until all arrived.
async fn deliver(lab: &mut Lab, period: Option<Duration>) -> Result<f64, Failure> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.fill(HEALTHY, lab.scale.backlog, 0).await?;
    drop(bed);
    let node = Node::start(&store).await?;
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

async fn resume(node: &Node) -> Result<(), Failure> {
    let load = Load {
        authority: node.authority.clone(),
        path: format!("/v1/endpoints/{HEALTHY}/resume"),
        body: String::new(),
        connections: 1,
        until: Until::Requests(1),
    };
    load::run(&load).await?.rate(200).map(|_| ())
}

/// Ends only when it fails, or is told to.
fn scrape(node: &Node, period: Duration) -> Result<JoinHandle<Result<(), Failure>>, Failure> {
    let client = Remote::new(RemoteArgs::of_node(&node.authority))?;
    let mut ticks = tokio::time::interval(period);
    Ok(tokio::spawn(async move {
        loop {
            ticks.tick().await;
            let page = client.get("/metrics", &[]).await?.collect().await;
            page.map_err(|error| Failure::failed(format!("half a page of metrics: {error}")))?;
        }
    }))
}
