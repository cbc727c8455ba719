//! The command line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::{LogFormat, RawConfig};
use crate::failure::{CommandError, Exit};
use crate::output::Output;
use crate::remote::RemoteArgs;
use crate::store_url::StoreUrl;
use crate::{bench, demo, logging, output, panics, serve};
use whereto::Whereto;

mod batch;
pub(crate) mod completions;
mod config;
mod dlq;
mod endpoint;
mod event;
mod event_stream;
mod export;
mod filter;
mod import;
mod lines;
mod listing;
mod look;
mod message;
mod migrate;
mod moving;
mod picture;
mod progress;
mod replay;
mod publish;
mod screen;
mod send;
pub(crate) mod set;
mod signature;
mod status;
mod tail;
mod token;
mod top;
mod whereto;

pub(crate) const EVERYWHERE: &str = "For every command";

const AFTER_HELP: &str = "\
Try `postrider demo` first: it needs nothing and cleans up after itself. Then, with a receiver of your own:
  postrider serve --allow-internal                                  run a node; delivers to this machine too
  postrider endpoint create shop http --url http://127.0.0.1:9000   where messages go
  postrider send shop '{\"order\": 1}'                                send one
  postrider message show 1                                          what became of it; `dlq list` if it died

Exit codes: 0 done, 1 failed, 2 usage error, 3 the store or node cannot be reached or used,
4 refused (unknown, conflict, bad value, full). With --json, errors are JSON on stderr.";

const BENCH_HELP: &str = "\
Its own stores are made in a folder beside --store, by default the current folder, and removed
afterwards: what is measured is that disk. The store itself is not touched.";

/// Reliable delivery out of your database: commit a message with your data, Postrider gets it delivered.
#[derive(Parser)]
#[command(name = "postrider", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Cli {
    /// Where the messages are [default: sqlite:postrider.db]
    #[arg(long, global = true, env = "POSTRIDER_STORE", hide_env_values = true, value_name = "URL", help_heading = EVERYWHERE)]
    store: Option<String>,

    #[command(flatten)]
    remote: RemoteArgs,

    /// TOML file with the settings of `serve`; flags and environment win over it
    #[arg(long, global = true, env = "POSTRIDER_CONFIG", hide_env_values = true, value_name = "FILE", help_heading = EVERYWHERE)]
    config: Option<PathBuf>,

    /// Answer in JSON
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    json: bool,

    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    /// Run a node: the engine that delivers, and the HTTP API
    Serve(ServeArgs),
    /// Create the store, or bring an older one up to date
    Migrate {
        /// Give the store a new id, after a restore or a clone: ids of two stores must never be equal
        #[arg(long)]
        new_store_id: bool,
    },
    /// See it work: a temporary store, a receiver that misbehaves, and an account at the end
    Demo(demo::DemoArgs),
    /// Measure it on this machine, against yardsticks measured in the same run
    #[command(after_help = BENCH_HELP)]
    Bench(bench::BenchArgs),
    /// Send one message, or many from a file
    #[command(after_help = send::HELP)]
    Send(send::SendArgs),
    /// Publish an event: one message for every endpoint that wants it
    Publish(publish::PublishArgs),
    /// Create, look at and change endpoints
    #[command(subcommand)]
    Endpoint(endpoint::EndpointCommand),
    /// Event types, and who subscribes to them
    #[command(subcommand)]
    Event(event::EventCommand),
    /// List messages; look at one, cancel, reschedule or erase it
    #[command(subcommand, after_help = message::HELP)]
    Message(message::MessageCommand),
    /// Look at dead letters, put them back or discard them
    #[command(subcommand, after_help = dlq::HELP)]
    Dlq(dlq::DlqCommand),
    /// Send finished messages again
    #[command(subcommand, after_help = replay::HELP)]
    Replay(replay::ReplayCommand),
    /// Show what is queued and how the endpoints are
    Status,
    /// Tell what happens on a running node, as it happens
    #[command(after_help = tail::HELP)]
    Tail(tail::TailArgs),
    /// Watch what flows through a running node, on a full screen
    #[command(after_help = top::HELP)]
    Top,
    /// Look at and change the settings of the store
    #[command(subcommand, after_help = config::HELP)]
    Config(config::ConfigCommand),
    /// Make, list and revoke the tokens that open the API
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Sign and verify webhooks, to find out why a receiver refuses
    #[command(subcommand, after_help = signature::HELP)]
    Signature(signature::SignatureCommand),
    /// Write a whole SQLite store to a file, to move it to PostgreSQL
    #[command(after_help = export::HELP)]
    Export(export::ExportArgs),
    /// Read a whole store from such a file into an empty PostgreSQL store, with the same ids
    #[command(after_help = import::HELP)]
    Import(import::ImportArgs),
    /// Print what a shell needs to complete commands, flags, protocols and keys
    #[command(after_help = completions::HELP)]
    Completions { shell: clap_complete::Shell },
    /// The other process of `bench`: counts what arrives, and generates load
    #[command(hide = true)]
    BenchReceiver,
}

#[derive(clap::Args)]
struct ServeArgs {
    #[command(flatten)]
    config: RawConfig,

    #[arg(long, hide = true)]
    bench_route: bool,
}

pub(crate) fn main() -> ExitCode {
    match completions::answer() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => return refuse_arguments(&error),
    }
    let (cli, matches) = match parse() {
        Ok(parsed) => parsed,
        Err(error) => return refuse_arguments(&error),
    };
    let json = cli.json;
    ended(run(cli, &matches), json)
}

fn ended(result: Result<(), CommandError>, json: bool) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(json);
            failure.exit.into()
        }
    }
}

fn parse() -> Result<(Cli, ArgMatches), clap::Error> {
    let matches = command().try_get_matches()?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))?;
    Ok((cli, matches))
}

fn command() -> clap::Command {
    whereto::with_node_flags(Cli::command())
}

fn id(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "must be a number")
}

/// Help and version are answers; anything else is a mistake, told in JSON if that was asked for.
fn refuse_arguments(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|argument| argument == "--json");
    if !error.use_stderr() {
        let written = error.print().and_then(|()| std::io::stdout().flush());
        return ended(output::written(written).map(|_| ()), json);
    }
    if json {
        CommandError::usage(error.to_string().trim().trim_start_matches("error: ")).print(true);
    } else {
        let _ = error.print();
    }
    Exit::Usage.into()
}

fn run(cli: Cli, matches: &ArgMatches) -> Result<(), CommandError> {
    let whereto = Whereto::of(matches);
    whereto.refuse_node(matches)?;
    let file = match &cli.config {
        Some(path) => RawConfig::from_file(path)?,
        None => RawConfig::default(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::failed(format!("cannot start the runtime: {error}")))?;
    let result = runtime.block_on(dispatch(cli, whereto, file));
    // What is still running (a stalled receiver of the demo) must not hold the process.
    runtime.shutdown_background();
    result
}

async fn dispatch(cli: Cli, whereto: Whereto, file: RawConfig) -> Result<(), CommandError> {
    let output = Output::new(cli.json);
    let store = || StoreUrl::or_default(cli.store.as_deref().or(file.store.as_deref()));
    let place = || whereto.place(store);
    match cli.command {
        CliCommand::Serve(arguments) => {
            let mut given = arguments.config;
            given.store = cli.store;
            let config = given.over(file).check()?;
            logging::start(config.log_format, "info")?;
            panics::to_log();
            serve::run(config, serve::Extras { bench_route: arguments.bench_route }).await
        }
        CliCommand::BenchReceiver => bench::receiver().await,
        command => {
            logging::start(LogFormat::Text, "error")?;
            match command {
                CliCommand::Migrate { new_store_id } => migrate::run(new_store_id, &store()?, output).await,
                CliCommand::Demo(arguments) => demo::run(arguments, output).await,
                CliCommand::Bench(arguments) => {
                    let place =
                        cli.store.as_deref().map(|url| StoreUrl::or_default(Some(url))).transpose()?;
                    bench::run(arguments, place, output).await
                }
                CliCommand::Send(arguments) => send::run(arguments, &place()?, output).await,
                CliCommand::Publish(arguments) => publish::run(arguments, &place()?, output).await,
                CliCommand::Event(command) => event::run(command, &place()?, output).await,
                CliCommand::Endpoint(endpoint::EndpointCommand::Test(arguments)) => {
                    endpoint::test(arguments, &whereto.node()?, output).await
                }
                CliCommand::Endpoint(command) => endpoint::run(command, &place()?, output).await,
                CliCommand::Message(command) => message::run(command, &place()?, output).await,
                CliCommand::Dlq(command) => dlq::run(command, &place()?, output).await,
                CliCommand::Replay(command) => replay::run(command, &place()?, output).await,
                CliCommand::Export(arguments) => export::run(arguments, &store()?, output).await,
                CliCommand::Import(arguments) => import::run(arguments, &store()?, output).await,
                CliCommand::Status => status::run(&place()?, output).await,
                CliCommand::Tail(arguments) => tail::run(arguments, whereto.node()?, output).await,
                CliCommand::Top => top::run(whereto.node()?, output).await,
                CliCommand::Config(command) => config::run(command, &place()?, output).await,
                CliCommand::Signature(command) => signature::run(command, output),
                CliCommand::Completions { shell } => completions::run(shell, output),
                CliCommand::Token(command) => token::run(command, &place()?, output).await,
                CliCommand::Serve(_) | CliCommand::BenchReceiver => unreachable!("handled above"),
            }
        }
    }
}
