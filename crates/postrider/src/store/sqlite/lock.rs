//! One node owns a store file: an OS lock on a file beside it, which the kernel drops with the process.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use crate::error::StoreError;
use crate::store::Result;

/// Held as long as it lives.
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// On a separate file: closing any descriptor of the database itself would drop SQLite's locks.
    /// `typed` is the path that the user gave, `store` the file that it resolves to.
    pub(super) fn take(store: &Path, typed: &Path) -> Result<Self> {
        let mut name = store.as_os_str().to_owned();
        name.push(".lock");
        let path = Path::new(&name);
        let unusable =
            |error: std::io::Error| StoreError::Unusable(format!("cannot lock {}: {error}", path.display()));
        let file =
            OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StoreError::Unusable(format!(
                "another node is running on {}; one file has one node, so stop that one first, or use its API",
                typed.display()
            ))),
            Err(TryLockError::Error(error)) => Err(unusable(error)),
        }
    }
}
