//! The oldest SQLite that a store works with, from the source that an old crate bundles. Built once, below the
//! target folder.

use std::fs;
use std::path::{Path, PathBuf};

use test_servers::old_sqlite::{LIBRARY, RELEASE, VERSION, folder};

use crate::command::{cargo, run};
use crate::install;

/// Why it could not be built.
pub(crate) fn missing() -> Option<String> {
    install::once(&format!("SQLite {VERSION}"), &folder(), build)
}

fn build(workshop: &Path) -> Result<PathBuf, String> {
    let (name, release) = RELEASE;
    let manifest = format!(
        "[package]\nname = \"old-sqlite\"\nedition = \"2021\"\n[lib]\npath = \"lib.rs\"\n[workspace]\n[dependencies]\n{name} = \"={release}\"\n"
    );
    let built = workshop.join("built");
    fs::create_dir_all(&built)
        .and_then(|()| fs::write(workshop.join("Cargo.toml"), manifest))
        .and_then(|()| fs::write(workshop.join("lib.rs"), ""))
        .map_err(|error| error.to_string())?;
    let path = |name: &str| workshop.join(name).to_string_lossy().into_owned();
    let (manifest, vendor) = (path("Cargo.toml"), path("vendor"));
    cargo(&["vendor", "-q", "--manifest-path", &manifest, &vendor], &[])?;
    let (source, library) =
        (path(&format!("vendor/{name}/sqlite3/sqlite3.c")), path(&format!("built/{LIBRARY}")));
    // Python asks for the names of columns' origins and for extensions.
    let wanted = ["-DSQLITE_ENABLE_COLUMN_METADATA", "-DSQLITE_ENABLE_DESERIALIZE", "-DSQLITE_THREADSAFE=1"];
    let shared = ["-O1", "-shared", "-fPIC", "-o", &library, &source, "-lm", "-lpthread", "-ldl"];
    run("cc", &[&wanted[..], &shared].concat(), &[])?;
    Ok(built)
}
