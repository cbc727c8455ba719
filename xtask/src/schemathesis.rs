//! Schemathesis with all that it needs, from PyPI. Installed once, below the target folder.

use std::fs;

use test_servers::schemathesis::{RELEASE, folder};

use crate::command::run;

/// Why it could not be had.
pub(crate) fn missing() -> Option<String> {
    let folder = folder();
    if folder.exists() {
        return None;
    }
    let workshop = folder.with_extension(std::process::id().to_string());
    let place = workshop.to_string_lossy();
    let mut pip = vec!["-m", "pip", "install", "-q", "--retries", "1", "--root-user-action", "ignore"];
    pip.extend(["--only-binary=:all:", "--target", &place, RELEASE]);
    let installed = run("python3", &pip, &[]).and_then(|()| match fs::rename(&workshop, &folder) {
        // Somebody else was quicker.
        Err(_) if folder.exists() => Ok(()),
        renamed => renamed.map_err(|error| error.to_string()),
    });
    let _ = fs::remove_dir_all(&workshop);
    let error = installed.err()?;
    Some(format!("{RELEASE} could not be installed, what needs it is skipped: {error}"))
}
