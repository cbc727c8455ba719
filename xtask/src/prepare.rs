//! What the tests need of the machine besides Rust and a C compiler, installed when it is missing.

use crate::command::{has, run};

/// Programs and the Debian packages they come in.
const NEEDED: [(&str, &str); 1] = [("curl", "curl")];

pub(crate) fn prepare() -> Result<(), String> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(program, _)| !has(program, &["--version"]))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !has("apt-get", &["--version"]) {
        return Err(format!("please install {}", missing.join(", ")));
    }
    // Another process may be installing: wait for it instead of failing.
    let apt = ["-o", "DPkg::Lock::Timeout=900", "-y", "-q"];
    run("apt-get", &[&apt[..], &["update"]].concat())?;
    run("apt-get", &[&apt[..], &["install", "--no-install-recommends"], &missing].concat())
}

/// rustup leaves out what a minimal profile does not have.
pub(crate) fn components() -> Result<(), String> {
    for (subcommand, component) in [("fmt", "rustfmt"), ("clippy", "clippy")] {
        if !has("cargo", &[subcommand, "--version"]) {
            run("rustup", &["component", "add", component])?;
        }
    }
    Ok(())
}
