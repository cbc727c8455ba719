//! Where servers keep their files: a folder each, gone when its owner is.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::process::{self, USER};

/// Locked while folders are made and swept.
const ALONE: &str = "alone";

/// The folder below which everything is.
pub(crate) fn ground() -> &'static Path {
    static GROUND: LazyLock<PathBuf> = LazyLock::new(|| {
        let below_target = target().map(|target| target.join("test-servers")).filter(|folder| usable(folder));
        below_target.unwrap_or_else(|| {
            let name = format!("postrider-test-servers-{}", process::own_user());
            let elsewhere = std::env::temp_dir().join(name);
            assert!(
                usable(&elsewhere),
                "servers need a folder that their user can reach: {}",
                elsewhere.display()
            );
            elsewhere
        })
    });
    &GROUND
}

/// One server's folder. As long as its owner lives, its lock is held; the next process removes what
/// is left of owners that were killed.
pub(crate) struct Folder {
    path: PathBuf,
    lock: PathBuf,
    _held: File,
}

impl Folder {
    pub(crate) fn new(kind: &str) -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = ground().join(format!("{kind}-{}-{number}", std::process::id()));
        let lock = path.with_extension("lock");
        Self::make(path, lock).map_err(|error| format!("no folder for {kind}: {error}"))
    }

    fn make(path: PathBuf, lock: PathBuf) -> std::io::Result<Self> {
        let alone = File::create(ground().join(ALONE))?;
        alone.lock()?;
        sweep()?;
        let held = File::create(&lock)?;
        held.lock()?;
        fs::create_dir(&path)?;
        if let Some(user) = &*USER {
            chown(&path, Some(user.id), Some(user.group))?;
        }
        Ok(Self { path, lock, _held: held })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
        let _ = fs::remove_file(&self.lock);
    }
}

/// Ends the servers of owners that are gone, and removes their folders.
fn sweep() -> std::io::Result<()> {
    for entry in fs::read_dir(ground())? {
        let lock = entry?.path();
        if lock.extension().is_none_or(|extension| extension != "lock") {
            continue;
        }
        let Ok(file) = File::open(&lock) else { continue };
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            continue;
        }
        let folder = lock.with_extension("");
        process::end_all_in(&folder);
        let _ = fs::remove_dir_all(&folder);
        let _ = fs::remove_file(&lock);
    }
    Ok(())
}

/// Cargo marks its target folder as a cache.
fn target() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists()).map(Path::to_owned)
}

/// A checkout below a closed home is out of reach for the user that servers run as.
fn usable(folder: &Path) -> bool {
    let made = fs::create_dir_all(folder).and_then(|()| File::create(folder.join(ALONE)));
    let reached = || process::command("test").arg("-x").arg(folder).status();
    made.is_ok() && reached().is_ok_and(|status| status.success())
}
