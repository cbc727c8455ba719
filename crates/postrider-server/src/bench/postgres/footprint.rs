//! What an idle node takes: processor, memory, and statements a second on the server.

use std::time::{Duration, Instant};

use super::server::{connect_to, failed};
use crate::bench::bed::{Bed, HEALTHY};
use crate::bench::footprint::{SETTLE, row};
use crate::bench::lab::Lab;
use crate::bench::node::BenchNode;
use crate::bench::report::ReportRow;
use crate::failure::CommandError;

/// A backend that has nothing to do tells the server of what it did before within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(15);
/// A query outside a transaction is a transaction by itself.
const TRANSACTIONS: &str =
    "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";

pub(in crate::bench) async fn idle(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = lab.new_store().await?;
    Bed::open(&store).await?.create_endpoint(HEALTHY, lab.partner.url("/count")).await?;
    let node = BenchNode::start(&store).await?;
    lab.say("an idle node");
    tokio::time::sleep(SETTLE.max(TOLD_WITHIN)).await;
    let client = connect_to(&store).await?;
    let count =
        async || Ok::<i64, CommandError>(client.query_one(TRANSACTIONS, &[]).await.map_err(failed)?.get(0));
    let (began, before, queries) = (Instant::now(), node.processor_seconds()?, count().await?);
    tokio::time::sleep(lab.scale.idle_time).await;
    let seconds = began.elapsed().as_secs_f64();
    let percent = (node.processor_seconds()? - before) / seconds * 100.0;
    let queries = (count().await? - queries) as f64 / seconds;
    let megabytes = node.megabytes()?;
    node.stop().await;
    drop(client);
    lab.discard(store).await?;
    let note = format!("over {} s", lab.scale.idle_time.as_secs());
    Ok(vec![
        row("processor of an idle node", percent, "% of a core", 2.0, note.clone()),
        row("transactions of an idle node", queries, "/s", 5.0, note),
        row("memory of an idle node", megabytes, "MB", 60.0, String::new()),
    ])
}
