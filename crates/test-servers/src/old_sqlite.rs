//! The oldest SQLite that a store works with, for programs that are linked with the system's.

use std::path::PathBuf;

use crate::ground::ground;

/// The crate whose release bundles it, and the version that it says it is.
pub const RELEASE: (&str, &str) = ("libsqlite3-sys", "0.24.0");
pub const VERSION: &str = "3.38.0";

/// As the system's linker looks for it.
pub const LIBRARY: &str = "libsqlite3.so.0";

/// The folder with the library, where `cargo xtask` could build it. What needs it is skipped otherwise, aloud.
pub fn built() -> Option<PathBuf> {
    let found = Some(folder()).filter(|folder| folder.join(LIBRARY).exists());
    if found.is_none() {
        eprintln!("skipped: SQLite {VERSION} is not built, see `cargo xtask with-servers true`");
    }
    found
}

pub fn folder() -> PathBuf {
    ground().join(format!("binaries/sqlite-{VERSION}"))
}
