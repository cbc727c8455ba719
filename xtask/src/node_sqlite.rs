//! SQLite for Node, from npm. Installed once, below the target folder.

use std::fs;

use test_servers::node_sqlite::{RELEASE, folder};

use crate::command::run;

/// Why it could not be had.
pub(crate) fn missing() -> Option<String> {
    let folder = folder();
    if folder.exists() {
        return None;
    }
    let workshop = folder.with_extension(std::process::id().to_string());
    let place = workshop.to_string_lossy();
    let mut npm = vec!["install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel", "error"];
    npm.extend(["--prefix", &place, RELEASE]);
    let installed = run("npm", &npm, &[]).and_then(|()| match fs::rename(&workshop, &folder) {
        // Somebody else was quicker.
        Err(_) if folder.exists() => Ok(()),
        renamed => renamed.map_err(|error| error.to_string()),
    });
    let _ = fs::remove_dir_all(&workshop);
    let error = installed.err()?;
    Some(format!("{RELEASE} could not be installed, what needs it is skipped: {error}"))
}
