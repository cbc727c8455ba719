//! What only a server can be asked about delivery: its log, its old transactions, its second node.

use std::time::Duration;

use super::server::{connect_to, failed};
use crate::bench::bed::{Bed, HEALTHY};
use crate::bench::delivery::deliver;
use crate::bench::lab::Lab;
use crate::bench::report::{BenchTarget, ReportRow, Rounds};
use crate::failure::CommandError;

const DRAIN: Duration = Duration::from_secs(5);
const WAL_POSITION: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8";

/// From send to delivery.
pub(in crate::bench) async fn wal(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.store.configure(vec![("archive".to_owned(), "off".to_owned())]).await?;
    bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
    let client = connect_to(&store).await?;
    // Whole pages that are written once after every checkpoint say more about checkpoints than about us.
    client.batch_execute("CHECKPOINT").await.map_err(failed)?;
    let before: f64 = client.query_one(WAL_POSITION, &[]).await.map_err(failed)?.get(0);
    lab.say("a backlog without the archive");
    bed.fill(HEALTHY, lab.scale.backlog, 0).await?;
    let engine = bed.start_engine(DRAIN).await?;
    bed.deliver(&mut lab.partner, lab.scale.backlog).await?;
    engine.stop().await;
    let after: f64 = client.query_one(WAL_POSITION, &[]).await.map_err(failed)?.get(0);
    drop((bed, client));
    lab.discard(store).await?;
    Ok(vec![ReportRow {
        name: "WAL of one message from send to delivery",
        measured: (after - before) / f64::from(lab.scale.backlog),
        unit: "bytes",
        yardstick: None,
        target: BenchTarget::Below(800.0),
        note: "archive off, sent in batches of 1000".to_owned(),
    }])
}

/// While a transaction elsewhere is open, PostgreSQL cannot forget what was delivered.
pub(in crate::bench) async fn open_transaction(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let count = lab.scale.backlog * 2;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "without one");
        let yardstick = deliver(lab, count, 0).await?;
        lab.say_round(round, "beside an open transaction");
        let store = lab.new_store().await?;
        let bed = Bed::open(&store).await?;
        bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
        bed.fill(HEALTHY, count, 0).await?;
        let client = connect_to(&store).await?;
        let open = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT txid_current()";
        client.batch_execute(open).await.map_err(failed)?;
        let engine = bed.start_engine(DRAIN).await?;
        rounds.add(bed.deliver(&mut lab.partner, count).await?, yardstick);
        engine.stop().await;
        client.batch_execute("COMMIT").await.map_err(failed)?;
        drop((bed, client));
        lab.discard(store).await?;
    }
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "delivery beside an open transaction",
        measured,
        unit: "/s",
        yardstick: Some(("without it", yardstick)),
        target: BenchTarget::RatioAtLeast(0.80),
        note: format!("{count} messages"),
    }])
}

/// Both in this process, each with its own connections.
pub(in crate::bench) async fn two_nodes(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let count = lab.scale.backlog * 2;
    let mut rounds = Rounds::default();
    for round in 0..lab.scale.rounds {
        lab.say_round(round, "one node");
        let yardstick = deliver(lab, count, 0).await?;
        lab.say_round(round, "two nodes");
        let store = lab.new_store().await?;
        let (bed, other) = (Bed::open(&store).await?, Bed::open(&store).await?);
        bed.create_paused(HEALTHY, lab.partner.url("/count")).await?;
        bed.fill(HEALTHY, count, 0).await?;
        let engines = [bed.start_engine(DRAIN).await?, other.start_engine(DRAIN).await?];
        rounds.add(bed.deliver(&mut lab.partner, count).await?, yardstick);
        for engine in engines {
            engine.stop().await;
        }
        drop((bed, other));
        lab.discard(store).await?;
    }
    let (measured, yardstick) = rounds.middle();
    Ok(vec![ReportRow {
        name: "two nodes on this machine",
        measured,
        unit: "/s",
        yardstick: Some(("one node", yardstick)),
        target: BenchTarget::RatioAtLeast(0.90),
        note: format!("{count} messages"),
    }])
}
