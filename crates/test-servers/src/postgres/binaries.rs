//! Which PostgreSQL is run.

use std::path::PathBuf;

use crate::ground::ground;

/// The programs of one version of PostgreSQL.
#[derive(Clone, Debug)]
pub struct Binaries(PathBuf);

impl Binaries {
    /// Debian's: version 15 where there is one, else the newest. Debian keeps them out of the PATH.
    pub fn debian() -> Option<Self> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut versions: Vec<u32> =
            versions.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        versions.sort_by_key(|version| (*version != 15, std::cmp::Reverse(*version)));
        let folders = versions.iter().map(|version| format!("/usr/lib/postgresql/{version}/bin").into());
        folders.map(Self).find(Self::complete)
    }

    /// Another version, where `cargo xtask` could download it. What needs it is skipped otherwise, aloud.
    pub fn downloaded(version: u32) -> Option<Self> {
        let found = Some(Self(Self::download_folder(version).join("bin"))).filter(Self::complete);
        if found.is_none() {
            eprintln!("skipped: PostgreSQL {version} is not downloaded, see `cargo xtask with-servers true`");
        }
        found
    }

    pub fn download_folder(version: u32) -> PathBuf {
        ground().join(format!("binaries/postgres-{version}"))
    }

    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn complete(&self) -> bool {
        ["initdb", "postgres", "pg_ctl", "pg_basebackup", "psql"]
            .iter()
            .all(|name| self.program(name).exists())
    }
}
