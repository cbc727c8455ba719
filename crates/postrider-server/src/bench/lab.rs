//! What every scenario works with: where stores are made, the other process, how much to do.

use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use super::partner::Partner;
use super::postgres::Server;
use crate::failure::CommandError;
use crate::output::Output;
use crate::store_url::StoreUrl;

pub(super) struct Lab {
    pub(super) partner: Partner,
    pub(super) scale: Scale,
    ground: Ground,
    stores: u32,
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
    rounds: 5,
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
    ) -> Result<Self, CommandError> {
        let ground = Ground::at(place)?;
        let bar = if output.is_live() { ProgressBar::new(scenarios as u64) } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template("{spinner} {pos}/{len} {bar:24.green/dim} {elapsed} {msg}")
                .expect("the template is right"),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        let scale = if quick { QUICK } else { FULL };
        let partner = Partner::start().await?;
        Ok(Self { partner, scale, ground, stores: 0, bar, scenario: String::new() })
    }

    /// Not on a file in this process.
    pub(super) fn is_on_a_server(&self) -> bool {
        matches!(self.ground, Ground::Server(_))
    }

    /// A store that did not exist before.
    pub(super) async fn new_store(&mut self) -> Result<StoreUrl, CommandError> {
        self.stores += 1;
        match &self.ground {
            Ground::Folder(folder) => Ok(StoreUrl::Sqlite(folder.path().join(format!("{}.db", self.stores)))),
            Ground::Server(server) => server.new_database(self.stores).await,
        }
    }

    /// Removes it, so that a long run does not fill the disk.
    pub(super) async fn discard(&self, store: StoreUrl) -> Result<(), CommandError> {
        match (&self.ground, store) {
            (Ground::Server(server), StoreUrl::Postgres(url)) => server.drop_database(&url).await,
            (_, StoreUrl::Sqlite(file)) => {
                remove_files(&file);
                Ok(())
            }
            (Ground::Folder(_), StoreUrl::Postgres(_)) => Ok(()),
        }
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

/// Where stores are made.
enum Ground {
    /// On the measured disk.
    Folder(TempDir),
    Server(Server),
}

impl Ground {
    fn at(place: Option<&StoreUrl>) -> Result<Self, CommandError> {
        let beside = match place {
            Some(StoreUrl::Postgres(url)) => return Ok(Self::Server(Server::at(url.clone()))),
            Some(StoreUrl::Sqlite(file)) => file.parent().filter(|parent| !parent.as_os_str().is_empty()),
            None => None,
        };
        // Not the system's temporary folder: that may be memory, where durability costs nothing.
        let folder = tempfile::Builder::new()
            .prefix("postrider-bench-")
            .tempdir_in(beside.unwrap_or(Path::new(".")))
            .map_err(|error| CommandError::failed(format!("cannot make a folder to measure in: {error}")))?;
        Ok(Self::Folder(folder))
    }
}

fn remove_files(file: &Path) {
    for suffix in ["", "-wal", "-shm", ".lock"] {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        let _ = std::fs::remove_file(name);
    }
}
