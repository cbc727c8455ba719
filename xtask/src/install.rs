//! What tests need from a package registry, installed once, below the target folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::run;

/// A package of PyPI with all that it needs, as for `PYTHONPATH`. Why it could not be installed.
pub(crate) fn from_pypi(release: &str, folder: &Path) -> Option<String> {
    once(release, folder, |workshop| {
        let mut pip = vec!["-m", "pip", "install", "-q", "--retries", "1", "--root-user-action", "ignore"];
        let target = workshop.to_string_lossy();
        pip.extend(["--only-binary=:all:", "--target", &target, release]);
        run("python3", &pip, &[]).map(|()| workshop.to_owned())
    })
}

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
