//! Schemathesis, which holds a server against its OpenAPI description: a program in Python, from PyPI.

use std::path::PathBuf;
use std::process::Command;

use crate::ground::ground;

pub const RELEASE: &str = "schemathesis==4.32.5";

/// `schemathesis …`, where `cargo xtask` could install it. What needs it is skipped otherwise, aloud.
pub fn command() -> Option<Command> {
    if !folder().exists() {
        eprintln!("skipped: {RELEASE} is not installed, see `cargo xtask with-servers true`");
        return None;
    }
    let mut command = Command::new("python3");
    command.args(["-m", "schemathesis.cli"]).env("PYTHONPATH", folder()).env("NO_COLOR", "1");
    Some(command)
}

pub fn folder() -> PathBuf {
    ground().join(format!("binaries/{}", RELEASE.replace("==", "-")))
}
