//! `postrider bench`: what this machine does, against yardsticks measured in the same run.

use clap_complete::ArgValueCandidates;
use console::style;

use lab::Lab;
use postrider::protocol::Protocol;
use report::{BenchReport, ReportRow};
use sink::Measured;

use crate::cli::completions;
use crate::cli::set::{self, SetKey};
use crate::failure::CommandError;
use crate::output::Output;
use crate::store_url::StoreUrl;

#[cfg(feature = "bare-clients")]
mod bare;
mod bed;
mod delivery;
mod footprint;
mod lab;
mod latency;
mod load;
mod looking;
mod neighbours;
mod node;
mod other_process;
mod partner;
mod plain;
mod postgres;
mod publish;
mod receiver;
mod report;
mod scrape;
mod send;
mod sink;

pub(crate) use receiver::run as receiver;

#[derive(clap::Args)]
pub(crate) struct BenchArgs {
    /// Run only these scenarios; may be given several times
    #[arg(long, value_name = "NAME", value_enum)]
    only: Vec<Scenario>,

    /// Measure deliveries to a broker or receiver of yours: --sink redis --set host=127.0.0.1 --set stream_key=bench. It gets
    /// some 100 000 messages a round
    #[arg(long, value_name = "PROTOCOL", value_parser = Protocol::from_name, conflicts_with = "only", requires = "set",
        add = ArgValueCandidates::new(completions::protocols))]
    sink: Option<Protocol>,

    /// A key of that endpoint's configuration; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = SetKey::parse, requires = "sink",
        add = ArgValueCandidates::new(completions::keys))]
    set: Vec<SetKey>,

    /// A tenth of the messages and fewer rounds: for a first look, not for figures
    #[arg(long)]
    quick: bool,

    /// Exit with 1 when a target is missed
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
enum Scenario {
    BatchSend,
    Publish,
    HttpSend,
    #[value(name = "deliver_100k")]
    Deliver100k,
    #[value(name = "deliver_1m")]
    Deliver1m,
    #[value(name = "deliver_1000_keys")]
    Deliver1000Keys,
    SingleKey,
    Latency,
    OtherProcess,
    BadNeighbours,
    IdleEndpoints,
    Idle,
    Memory,
    Looking,
    Scrape,
    SqlSend,
    SqlSendDeep,
    SqlBatch,
    Wal,
    AfterIdle,
    OpenTransaction,
    TwoNodes,
}

const ON_SQLITE: &[Scenario] = &[
    Scenario::BatchSend,
    Scenario::Publish,
    Scenario::HttpSend,
    Scenario::Deliver100k,
    Scenario::Deliver1m,
    Scenario::Deliver1000Keys,
    Scenario::SingleKey,
    Scenario::Latency,
    Scenario::OtherProcess,
    Scenario::BadNeighbours,
    Scenario::IdleEndpoints,
    Scenario::Idle,
    Scenario::Memory,
    Scenario::Looking,
    Scenario::Scrape,
];

const ON_POSTGRES: &[Scenario] = &[
    Scenario::SqlSend,
    Scenario::SqlSendDeep,
    Scenario::SqlBatch,
    Scenario::Publish,
    Scenario::Deliver100k,
    Scenario::Deliver1m,
    Scenario::Deliver1000Keys,
    Scenario::Wal,
    Scenario::Latency,
    Scenario::AfterIdle,
    Scenario::OpenTransaction,
    Scenario::TwoNodes,
    Scenario::Idle,
    Scenario::Looking,
    Scenario::Scrape,
];

impl Scenario {
    fn name(self) -> String {
        clap::ValueEnum::to_possible_value(&self).expect("no scenario is hidden").get_name().to_owned()
    }

    async fn run(self, lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
        match self {
            Self::BatchSend => send::batch(lab).await,
            Self::Publish => publish::hundred_subscribers(lab).await,
            Self::HttpSend => send::over_http(lab).await,
            Self::Deliver100k => delivery::backlog(lab).await,
            Self::Deliver1m => delivery::deep_backlog(lab).await,
            Self::Deliver1000Keys => delivery::thousand_keys(lab).await,
            Self::SingleKey => delivery::single_key(lab).await,
            Self::Latency if lab.is_on_a_server() => postgres::calm(lab).await,
            Self::Latency => latency::run(lab).await,
            Self::OtherProcess => other_process::run(lab).await,
            Self::BadNeighbours => neighbours::bad(lab).await,
            Self::IdleEndpoints => neighbours::idle(lab).await,
            Self::Idle if lab.is_on_a_server() => postgres::idle(lab).await,
            Self::Idle => footprint::idle(lab).await,
            Self::Memory => footprint::under_load(lab).await,
            Self::Looking => looking::run(lab).await,
            Self::Scrape => scrape::run(lab).await,
            Self::SqlSend => postgres::single(lab).await,
            Self::SqlSendDeep => postgres::deep(lab).await,
            Self::SqlBatch => postgres::batch(lab).await,
            Self::Wal => postgres::wal(lab).await,
            Self::AfterIdle => postgres::after_idle(lab).await,
            Self::OpenTransaction => postgres::open_transaction(lab).await,
            Self::TwoNodes => postgres::two_nodes(lab).await,
        }
    }
}

/// `place`: measured is the disk or the server this store is on; the store itself is not touched.
pub(crate) async fn run(
    arguments: BenchArgs,
    place: Option<StoreUrl>,
    output: Output,
) -> Result<(), CommandError> {
    if cfg!(debug_assertions) {
        warn("this is a debug build: its figures say nothing; use `cargo run --release -- bench`");
    }
    if let Some(StoreUrl::Postgres(url)) = &place
        && !postgres::is_durable(url).await?
    {
        warn(
            "fsync is off on this server: where a commit costs nothing, sends look worse beside bare inserts",
        );
    }
    let measured = match arguments.sink {
        Some(protocol) => Some(Measured {
            protocol: protocol.as_str().to_owned(),
            config: set::config(Some(protocol), &arguments.set)?,
        }),
        None => None,
    };
    let scenarios = match arguments.only.as_slice() {
        _ if measured.is_some() => &[],
        [] if matches!(place, Some(StoreUrl::Postgres(_))) => ON_POSTGRES,
        [] => ON_SQLITE,
        only => only,
    };
    let mut lab = Lab::open(place.as_ref(), arguments.quick, scenarios.len().max(1), output).await?;
    let mut report = BenchReport::new(arguments.quick);
    if let Some(measured) = &measured {
        lab.begin(&measured.protocol);
        report.add(&measured.protocol, sink::run(&mut lab, measured).await?);
    }
    for scenario in scenarios {
        lab.begin(&scenario.name());
        report.add(&scenario.name(), scenario.run(&mut lab).await?);
    }
    lab.close();
    output.document(|| report.json().to_string(), || report.text(output))?;
    if arguments.check && !report.misses().is_empty() {
        return Err(CommandError::failed(format!("missed: {}", report.misses().join(", "))));
    }
    Ok(())
}

fn warn(of: &str) {
    eprintln!("{} {of}", style("warning:").yellow().bold().for_stderr());
}
