//! Delivery of a backlog, against the bare loop and against a plain backlog.

use std::time::Duration;

use super::bed::{Bed, HEALTHY, payload};
use super::lab::Lab;
use super::load::{self, CONNECTIONS, HttpLoad, Until};
use super::report::{BenchTarget, ReportRow, Rounds, median};
use crate::failure::CommandError;

const DRAIN: Duration = Duration::from_secs(5);

pub(super) async fn backlog(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "the bare loop");
        let yardstick = bare_loop(lab).await?;
        lab.say_round(round, "a backlog");
        rounds.add(deliver(lab, lab.scale.backlog, 0).await?, yardstick);
    }
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "delivery of a backlog",
        measured,
        unit: "/s",
        yardstick: Some(("bare loop", yardstick)),
        target: BenchTarget::RatioAtLeast(if lab.is_on_a_server() { 0.35 } else { 0.45 }),
        note: format!("{} messages, {CONNECTIONS} in flight", lab.scale.backlog),
    }])
}

pub(super) async fn deep_backlog(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    lab.say("a plain backlog, before");
    let mut plain = vec![deliver(lab, lab.scale.backlog, 0).await?];
    lab.say("the deep backlog");
    let deep = deliver(lab, lab.scale.deep_backlog, 0).await?;
    lab.say("a plain backlog, after");
    plain.push(deliver(lab, lab.scale.backlog, 0).await?);
    Ok(vec![ReportRow {
        name: "delivery of a deep backlog",
        measured: deep,
        unit: "/s",
        yardstick: Some(("plain backlog", plain.iter().sum::<f64>() / plain.len() as f64)),
        target: BenchTarget::RatioAtLeast(0.80),
        note: format!("{} messages against {}", lab.scale.deep_backlog, lab.scale.backlog),
    }])
}

pub(super) async fn thousand_keys(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "without keys");
        let yardstick = deliver(lab, lab.scale.backlog, 0).await?;
        lab.say_round(round, "with 1000 keys");
        rounds.add(deliver(lab, lab.scale.backlog, 1000).await?, yardstick);
    }
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "delivery with 1000 ordering keys",
        measured,
        unit: "/s",
        yardstick: Some(("without keys", yardstick)),
        target: BenchTarget::RatioAtLeast(0.60),
        note: format!("{} messages", lab.scale.backlog),
    }])
}

pub(super) async fn single_key(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let mut rates = Vec::new();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "one key");
        rates.push(deliver(lab, lab.scale.single_key, 1).await?);
    }
    Ok(vec![ReportRow {
        name: "delivery of one ordering key",
        measured: median(&rates),
        unit: "/s",
        yardstick: None,
        // Through a server each one takes two round trips and as many transactions.
        target: if lab.is_on_a_server() { BenchTarget::None } else { BenchTarget::AtLeast(2000.0) },
        note: format!("{} messages, one after the other", lab.scale.single_key),
    }])
}

/// As many requests as the backlog has messages, with the same payload, from this process.
async fn bare_loop(lab: &mut Lab) -> Result<f64, CommandError> {
    let load = HttpLoad {
        authority: lab.partner.authority(),
        path: "/count".to_owned(),
        body: payload(0),
        connections: CONNECTIONS,
        until: Until::Requests(u64::from(lab.scale.backlog)),
    };
    load::run(&load).await?.rate(200)
}

pub(super) async fn deliver(lab: &mut Lab, count: u32, keys: u32) -> Result<f64, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.fill(HEALTHY, count, keys).await?;
    let engine = bed.start_engine(DRAIN).await?;
    let rate = bed.deliver(&mut lab.partner, count).await?;
    engine.stop().await;
    drop(bed);
    lab.discard(store).await?;
    Ok(rate)
}
