//! `cargo xtask test`: what has to hold before a change goes in. The tests come last, so that their
//! summary ends the output.

use crate::command::{cargo, has};
use crate::prepare;
use crate::servers::Servers;
use crate::type_names;

pub(crate) fn run() -> Result<(), String> {
    prepare::components()?;
    type_names::check()?;
    cargo(&["fmt", "--all", "--check"], &[])?;
    let features = "postrider-server/bare-clients";
    cargo(&["clippy", "--workspace", "--all-targets", "--features", features, "--", "-D", "warnings"], &[])?;
    cargo(&["test", "--workspace", "--doc"], &[])?;
    let servers = Servers::start()?;
    let found = servers.environment();
    if has("cargo", &["nextest", "--version"]) {
        return cargo(&["nextest", "run", "--workspace"], &found);
    }
    cargo(&["test", "--workspace", "--lib", "--bins", "--tests"], &found)
}
