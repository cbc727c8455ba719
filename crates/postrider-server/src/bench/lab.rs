//! What every scenario works with: a folder on the measured disk, the other process, how much to do.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use super::partner::Partner;
use crate::failure::Failure;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) struct Lab {
    pub(super) partner: Partner,
    pub(super) scale: Scale,
    folder: TempDir,
    files: u32,
    bar: ProgressBar,
    scenario: String,
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    pub(super) rounds: usize,
    pub(super) backlog: u32,
    pub(super) deep_backlog: u32,
    pub(super) single_key: u32,
    pub(super) neighbour_backlog: u32,
    pub(super) idle_endpoints: u32,
    pub(super) batches: u32,
    pub(super) http_seconds: f64,
    pub(super) latency_seconds: f64,
    pub(super) idle_time: Duration,
}

const FULL: Scale = Scale {
    rounds: 3,
    backlog: 100_000,
    deep_backlog: 1_000_000,
    single_key: 20_000,
    neighbour_backlog: 50_000,
    idle_endpoints: 5_000,
    batches: 50,
    http_seconds: 4.0,
    latency_seconds: 10.0,
    idle_time: Duration::from_secs(10),
};

const QUICK: Scale = Scale {
    rounds: 1,
    backlog: 10_000,
    deep_backlog: 100_000,
    single_key: 2_000,
    neighbour_backlog: 10_000,
    idle_endpoints: 500,
    batches: 10,
    http_seconds: 1.0,
    latency_seconds: 2.0,
    idle_time: Duration::from_secs(3),
};

impl Lab {
    pub(super) async fn open(
        place: Option<&StoreUrl>,
        quick: bool,
        scenarios: usize,
        output: Output,
    ) -> Result<Self, Failure> {
        // Not the system's temporary folder: that may be memory, where durability costs nothing.
        let beside =
            place.and_then(|url| url.path().parent()).filter(|parent| !parent.as_os_str().is_empty());
        let folder = tempfile::Builder::new()
            .prefix("postrider-bench-")
            .tempdir_in(beside.unwrap_or(std::path::Path::new(".")))
            .map_err(|error| Failure::failed(format!("cannot make a folder to measure in: {error}")))?;
        let bar = if output.is_live() { ProgressBar::new(scenarios as u64) } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template("{spinner} {pos}/{len} {bar:24.green/dim} {elapsed} {msg}")
                .expect("the template is right"),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        let scale = if quick { QUICK } else { FULL };
        let partner = Partner::start().await?;
        Ok(Self { partner, scale, folder, files: 0, bar, scenario: String::new() })
    }

    /// A store file that did not exist before.
    pub(super) fn new_file(&mut self) -> PathBuf {
        self.files += 1;
        self.folder.path().join(format!("{}.db", self.files))
    }

    pub(super) fn begin(&mut self, scenario: &str) {
        if !self.scenario.is_empty() {
            self.bar.inc(1);
        }
        scenario.clone_into(&mut self.scenario);
        self.say("");
    }

    pub(super) fn say(&self, what: &str) {
        self.bar.set_message(format!("{}  {what}", self.scenario));
    }

    pub(super) fn say_round(&self, round: usize, what: &str) {
        self.say(&format!("round {} of {}: {what}", round + 1, self.scale.rounds));
    }

    pub(super) fn close(self) {
        self.bar.finish_and_clear();
    }
}

/// Removes a store's files so that a long run does not fill the disk.
pub(super) fn discard(file: &std::path::Path) {
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        let _ = std::fs::remove_file(name);
    }
}
