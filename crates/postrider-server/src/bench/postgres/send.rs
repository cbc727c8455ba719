//! Sending from SQL, against bare inserts of the same payload in the same run.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::server::{connect_to, failed};
use crate::bench::bed::{Bed, HEALTHY, payload};
use crate::bench::lab::Lab;
use crate::bench::report::{BenchTarget, ReportRow, Rounds};
use crate::failure::CommandError;
use crate::store_url::StoreUrl;

const CLIENTS: usize = 8;
const BATCH: u32 = 1000;
/// Of a deep queue: on, and not reached by what all rounds together add to it.
const QUEUE_LIMIT: &str = "3000000";
const BARE_TABLE: &str =
    "CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb)";
const BARE: &str = "INSERT INTO bare (payload) VALUES ($1::text::jsonb)";
const SEND: &str = "SELECT postrider.send('healthy', $1::text::jsonb)";
const BARE_BATCH: &str = "INSERT INTO bare (payload) SELECT p::jsonb FROM unnest($1::text[]) AS p";
const SEND_BATCH: &str = "SELECT postrider.send_batch('healthy', $1::text[]::jsonb[])";

pub(in crate::bench) async fn single(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = prepared(lab).await?;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "bare inserts");
        let yardstick = rate(lab, &store, BARE).await?;
        lab.say_round(round, "postrider.send");
        rounds.add(rate(lab, &store, SEND).await?, yardstick);
    }
    lab.discard(store).await?;
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "SELECT postrider.send(…), one a transaction",
        measured,
        unit: "/s",
        yardstick: Some(("bare INSERT", yardstick)),
        target: BenchTarget::RatioAtLeast(0.60),
        note: format!("{CLIENTS} clients, endpoint paused"),
    }])
}

/// What a full queue costs a sender.
pub(in crate::bench) async fn deep(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let (empty, full) = (prepared(lab).await?, prepared(lab).await?);
    let queued = lab.scale.deep_backlog / 10 * 9;
    lab.say("filling the queue");
    let bed = Bed::open(&full).await?;
    bed.fill(HEALTHY, queued, 0).await?;
    bed.store.configure(vec![("max_queue_size".to_owned(), QUEUE_LIMIT.to_owned())]).await?;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "an empty queue");
        let yardstick = rate(lab, &empty, SEND).await?;
        lab.say_round(round, "a deep queue");
        rounds.add(rate(lab, &full, SEND).await?, yardstick);
    }
    drop(bed);
    lab.discard(empty).await?;
    lab.discard(full).await?;
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "SELECT postrider.send(…) into a deep queue",
        measured,
        unit: "/s",
        yardstick: Some(("empty queue", yardstick)),
        target: BenchTarget::RatioAtLeast(0.85),
        note: format!("{queued} messages queued"),
    }])
}

pub(in crate::bench) async fn batch(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = prepared(lab).await?;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "bare inserts");
        let yardstick = batch_rate(lab, &store, BARE_BATCH).await?;
        lab.say_round(round, "postrider.send_batch");
        rounds.add(batch_rate(lab, &store, SEND_BATCH).await?, yardstick);
    }
    lab.discard(store).await?;
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "send_batch of 1000",
        measured,
        unit: "/s",
        yardstick: Some(("bare INSERT of 1000", yardstick)),
        target: BenchTarget::RatioAtLeast(0.40),
        note: "one client, endpoint paused".to_owned(),
    }])
}

async fn prepared(lab: &mut Lab) -> Result<StoreUrl, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    connect_to(&store).await?.batch_execute(BARE_TABLE).await.map_err(failed)?;
    Ok(store)
}

/// Statements a second over all clients, each its own transaction.
async fn rate(lab: &Lab, store: &StoreUrl, statement: &'static str) -> Result<f64, CommandError> {
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let client = connect_to(store).await?;
        let statement = client.prepare(statement).await.map_err(failed)?;
        let (stop, done) = (stop.clone(), done.clone());
        clients.spawn(async move {
            let payload = payload(0);
            while !stop.load(Ordering::Relaxed) {
                client.query(&statement, &[&payload]).await.map_err(failed)?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<(), CommandError>(())
        });
    }
    let began = Instant::now();
    tokio::time::sleep(Duration::from_secs_f64(lab.scale.http_seconds)).await;
    let rate = done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = clients.join_next().await {
        client.expect("a client does not panic")?;
    }
    Ok(rate)
}

async fn batch_rate(lab: &Lab, store: &StoreUrl, statement: &str) -> Result<f64, CommandError> {
    let client = connect_to(store).await?;
    let statement = client.prepare(statement).await.map_err(failed)?;
    let payloads: Vec<String> = (0..BATCH).map(payload).collect();
    let began = Instant::now();
    for _ in 0..lab.scale.batches {
        client.query(&statement, &[&payloads]).await.map_err(failed)?;
    }
    Ok(f64::from(lab.scale.batches * BATCH) / began.elapsed().as_secs_f64())
}
