//! `cargo xtask …`: whatever a person would otherwise type by hand.

use std::process::ExitCode;

mod command;
mod prepare;
mod test;

const HELP: &str = "\
cargo xtask test     everything that has to hold: format, lints, examples, tests
cargo xtask bench    measure a release build on this machine (arguments go to `postrider bench`)";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next();
    let rest: Vec<String> = arguments.collect();
    let done = match (task.as_deref(), rest.is_empty()) {
        (Some("test"), true) => test::run(),
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

fn bench(arguments: &[String]) -> Result<(), String> {
    let mut all = vec!["run", "--release", "--package", "postrider-server", "--", "bench"];
    all.extend(arguments.iter().map(String::as_str));
    command::cargo(&all)
}
