//! What tests need from a package registry, installed once, below the target folder.

use std::fs;
use std::path::Path;

/// Why it could not be had. `install` is told where to; the folder appears only when it is whole.
pub(crate) fn missing(
    release: &str,
    folder: &Path,
    install: impl FnOnce(&str) -> Result<(), String>,
) -> Option<String> {
    if folder.exists() {
        return None;
    }
    let workshop = folder.with_extension(std::process::id().to_string());
    let installed = install(&workshop.to_string_lossy()).and_then(|()| match fs::rename(&workshop, folder) {
        // Somebody else was quicker.
        Err(_) if folder.exists() => Ok(()),
        renamed => renamed.map_err(|error| error.to_string()),
    });
    let _ = fs::remove_dir_all(&workshop);
    let error = installed.err()?;
    Some(format!("{release} could not be installed, what needs it is skipped: {error}"))
}
