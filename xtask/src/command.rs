//! Commands, shown before they run.

use std::path::Path;
use std::process::{Command, Stdio};

/// What cargo sets for a program that it runs.
const OWN: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// Variables that a command gets besides ours.
pub(crate) type Environment = [(&'static str, String)];

pub(crate) fn cargo(arguments: &[&str], environment: &Environment) -> Result<(), String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    run(&cargo, arguments, environment)
}

pub(crate) fn run(program: &str, arguments: &[&str], environment: &Environment) -> Result<(), String> {
    let name = Path::new(program).file_name().map_or(program.into(), |name| name.to_string_lossy());
    eprintln!("\n$ {name} {}", arguments.join(" "));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is inside the workspace");
    let mut command = Command::new(program);
    // What cargo tells this program about itself would make it build much of a workspace anew.
    let ours = std::env::vars_os().map(|(name, _)| name);
    ours.filter(|name| OWN.iter().any(|own| name.to_string_lossy().starts_with(own))).for_each(|name| {
        command.env_remove(name);
    });
    let status = command
        .args(arguments)
        .envs(environment.iter().cloned())
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot run {name}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} {} failed: {status}", arguments.join(" "))) }
}

/// Does `program --version` work here?
pub(crate) fn has(program: &str, arguments: &[&str]) -> bool {
    Command::new(program)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
