//! Sending: batches through the library, and single messages over HTTP.

use std::time::Instant;

use postrider::NewMessage;

use super::bed::{Bed, HEALTHY, payload};
use super::lab::Lab;
use super::load::{CONNECTIONS, HttpLoad, Until};
use super::node::BenchNode;
use super::plain::Plain;
use super::report::{BenchTarget, ReportRow, Rounds};
use crate::failure::CommandError;

const BATCH: u32 = 1000;

pub(super) async fn batch(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let (store, plain_store) = (lab.new_store().await?, lab.new_store().await?);
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    bed.fill(HEALTHY, 1, 0).await?;
    let mut plain = Plain::like(&store, &plain_store)?;
    let batches = lab.scale.batches;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "plain SQLite");
        let began = Instant::now();
        plain = tokio::task::spawn_blocking(move || {
            for _ in 0..batches {
                plain.insert(BATCH)?;
            }
            Ok::<_, CommandError>(plain)
        })
        .await
        .expect("the yardstick does not panic")?;
        let yardstick = f64::from(batches * BATCH) / began.elapsed().as_secs_f64();
        lab.say_round(round, "send_batch");
        let began = Instant::now();
        for _ in 0..batches {
            bed.store.send_batch(messages()).await?;
        }
        rounds.add(f64::from(batches * BATCH) / began.elapsed().as_secs_f64(), yardstick);
    }
    drop(bed);
    lab.discard(store).await?;
    lab.discard(plain_store).await?;
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "library send in batches of 1000",
        measured,
        unit: "/s",
        yardstick: Some(("plain SQLite", yardstick)),
        target: BenchTarget::RatioAtLeast(0.50),
        note: "fully durable, endpoint paused".to_owned(),
    }])
}

fn messages() -> Vec<NewMessage> {
    (0..BATCH).map(|number| NewMessage::new(HEALTHY, payload(number))).collect()
}

pub(super) async fn over_http(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    drop(bed);
    let node = BenchNode::start(&store).await?;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "an empty 202");
        let yardstick = post(lab, &node, "/bench/empty").await?;
        lab.say_round(round, "POST …/messages");
        rounds.add(post(lab, &node, &format!("/v1/endpoints/{HEALTHY}/messages")).await?, yardstick);
    }
    node.stop().await;
    lab.discard(store).await?;
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "POST …/messages",
        measured,
        unit: "/s",
        yardstick: Some(("empty 202", yardstick)),
        target: BenchTarget::RatioAtLeast(0.40),
        note: format!("{CONNECTIONS} connections, one message a request, endpoint paused"),
    }])
}

async fn post(lab: &mut Lab, node: &BenchNode, path: &str) -> Result<f64, CommandError> {
    let load = HttpLoad {
        authority: node.authority.clone(),
        path: path.to_owned(),
        body: payload(0),
        connections: CONNECTIONS,
        until: Until::Seconds(lab.scale.http_seconds),
    };
    lab.partner.load(load).await?.rate(202)
}
