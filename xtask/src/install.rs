//! What tests need from a package registry, installed once, below the target folder.

use std::fs;
use std::path::{Path, PathBuf};

/// Why it could not be installed. `install` works in a folder that is removed afterwards, and returns the part of it
/// that is to be kept; `folder` appears only when it is complete.
pub(crate) fn once(
    what: &str,
    folder: &Path,
    install: impl FnOnce(&Path) -> Result<PathBuf, String>,
) -> Option<String> {
    if folder.exists() {
        return None;
    }
    let workshop = folder.with_extension(std::process::id().to_string());
    let installed = fs::create_dir_all(&workshop)
        .map_err(|error| error.to_string())
        .and_then(|()| install(&workshop))
        .and_then(|made| match fs::rename(made, folder) {
            // Another process installed it meanwhile.
            Err(_) if folder.exists() => Ok(()),
            renamed => renamed.map_err(|error| error.to_string()),
        });
    let _ = fs::remove_dir_all(&workshop);
    let error = installed.err()?;
    Some(format!("{what} could not be installed, tests that need it are skipped: {error}"))
}
