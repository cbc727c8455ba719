//! From a commit of another process to arrival: how soon a node notices what an application sends by SQL into its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use postrider::rusqlite::{self, Connection, TransactionBehavior};

use super::bed::{Bed, HEALTHY};
use super::footprint::{self, SETTLE};
use super::lab::Lab;
use super::latency::arrived;
use super::node::BenchNode;
use super::report::{ReportRow, percentile};
use crate::failure::CommandError;

/// Far enough apart that the node rests in between, as it does when it has to notice by itself.
const PERIOD: Duration = Duration::from_millis(50);
/// Added in turn, so that no commit keeps step with whatever the node does in intervals.
const JITTER_MS: u64 = 23;
/// Connections are made and caches are warm by then; these are not counted.
const WARM_UP: u64 = 10;
/// What the contract promises (section 8), with the delivery in it.
const NOTICED_WITHIN_MS: f64 = 20.0;

pub(super) async fn run(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = lab.new_store().await?;
    let Some(file) = store.path().map(Path::to_owned) else {
        return Err(CommandError::usage("this scenario commits into a SQLite file; leave out --store"));
    };
    let bed = Bed::open(&store).await?;
    bed.create_endpoint(HEALTHY, lab.partner.url("/latency")).await?;
    drop(bed);
    let node = BenchNode::start(&store).await?;
    lab.partner.reset().await?;
    tokio::time::sleep(SETTLE).await;
    lab.say("an application commits by SQL");
    let count = (lab.scale.latency_seconds / PERIOD.as_secs_f64()) as u64 + WARM_UP;
    let commits = tokio::task::spawn_blocking(move || commit_all(file, count))
        .await
        .expect("the application does not panic")
        .map_err(|error| CommandError::failed(format!("the application that commits: {error}")))?;
    let under_way = arrived(lab, count).await?;
    node.stop().await;
    lab.discard(store).await?;
    Ok(rows(&waits(&commits, &under_way)))
}

/// When a message was made, and when its transaction was committed, in microseconds.
struct MeasuredCommit {
    made_us: i64,
    committed_us: i64,
}

fn commit_all(file: PathBuf, count: u64) -> rusqlite::Result<BTreeMap<u64, MeasuredCommit>> {
    let mut connection = Connection::open(file)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    let mut commits = BTreeMap::new();
    for number in 0..=count {
        thread::sleep(PERIOD + Duration::from_millis(number * 7 % JITTER_MS));
        let made_us = Timestamp::now().as_microsecond();
        let payload = format!(r#"{{"number":{number},"sent_us":{made_us}}}"#);
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let insert = "INSERT INTO postrider_send (endpoint, payload) VALUES (?1, ?2)";
        transaction.execute(insert, [HEALTHY, &payload])?;
        transaction.commit()?;
        commits.insert(number, MeasuredCommit { made_us, committed_us: Timestamp::now().as_microsecond() });
    }
    Ok(commits)
}

/// In milliseconds. What arrives before its commit returned did not wait at all.
fn waits(commits: &BTreeMap<u64, MeasuredCommit>, under_way_us: &BTreeMap<u64, i64>) -> Vec<f64> {
    let counted = commits.range(WARM_UP..).filter_map(|(number, commit)| {
        let arrived_us = commit.made_us + under_way_us.get(number)?;
        Some((arrived_us - commit.committed_us).max(0) as f64 / 1e3)
    });
    counted.collect()
}

fn rows(waits: &[f64]) -> Vec<ReportRow> {
    let row = |name, part| {
        let note = format!("{} commits, each to a node at rest", waits.len());
        footprint::row(name, percentile(waits, part), "ms", NOTICED_WITHIN_MS, note)
    };
    vec![row("commit of another process to arrival, median", 0.5), row("the same, 99 %", 0.99)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_from_the_commit_to_the_arrival() {
        let commit = |made_us, committed_us| MeasuredCommit { made_us, committed_us };
        let commits = BTreeMap::from([
            (0, commit(0, 0)),
            (WARM_UP, commit(1_000, 3_000)),
            (WARM_UP + 1, commit(2_000, 9_000)),
            (WARM_UP + 2, commit(3_000, 4_000)),
        ]);
        let under_way = BTreeMap::from([(0, 5_000), (WARM_UP, 6_000), (WARM_UP + 1, 1_000)]);
        assert_eq!(waits(&commits, &under_way), [4.0, 0.0]);
    }
}
