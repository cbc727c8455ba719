//! SQLite for Node: a package from npm that brings its binary along, so that nothing is compiled.

use std::path::PathBuf;

use crate::ground::ground;

/// It has the interface of better-sqlite3, which has to be compiled where it cannot be downloaded.
pub const RELEASE: &str = "libsql@0.5.29";

/// What `NODE_PATH` has to be, where `cargo xtask` could install it. What needs it is skipped otherwise, aloud.
pub fn modules() -> Option<PathBuf> {
    let found = Some(folder().join("node_modules")).filter(|folder| folder.exists());
    if found.is_none() {
        eprintln!("skipped: {RELEASE} is not installed, see `cargo xtask with-servers true`");
    }
    found
}

pub fn folder() -> PathBuf {
    ground().join(format!("binaries/{}", RELEASE.replace('@', "-")))
}
