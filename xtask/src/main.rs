//! `cargo xtask …`: what a person would otherwise type by hand.

use std::process::ExitCode;

mod brokers;
mod command;
mod download;
mod install;
mod node_sqlite;
mod old_sqlite;
mod prepare;
mod schemathesis;
mod servers;
mod test;
mod type_names;

use servers::Servers;

const HELP: &str = "\
cargo xtask test            everything that has to hold: format, lints, examples, tests
cargo xtask with-servers …  run a command beside the servers that tests share
cargo xtask bench           measure a release build on this machine (arguments go to `postrider bench`)";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let done = match (task.as_deref(), rest.is_empty()) {
        (Some("test"), true) => test::run(),
        (Some("with-servers"), false) => with_servers(&rest),
        (Some("bench"), _) => bench(&rest),
        (Some("help" | "--help" | "-h"), true) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        _ => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn with_servers(command: &[String]) -> Result<(), String> {
    let servers = Servers::start()?;
    let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    command::run(&command[0], &arguments, &servers.environment())
}

fn bench(arguments: &[String]) -> Result<(), String> {
    let mut all = vec![
        "run",
        "--release",
        "--package",
        "postrider-server",
        "--features",
        "bare-clients",
        "--",
        "bench",
    ];
    all.extend(arguments.iter().map(String::as_str));
    command::cargo(&all, &[])
}
