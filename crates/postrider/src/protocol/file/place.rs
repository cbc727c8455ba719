//! Where a file sink writes: a path that cannot leave its root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::net::{judge, short};
use crate::sink::Undelivered;
use crate::verdict::Failure;

/// One file below a root. The root's links are resolved, so that equal places are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FilePlace {
    root: PathBuf,
    relative: PathBuf,
}

impl FilePlace {
    pub(super) fn new(root: &Path, relative: PathBuf) -> Result<Self, Undelivered> {
        fs::create_dir_all(root).map_err(|error| cannot("create", root, &error))?;
        let root = root.canonicalize().map_err(|error| cannot("open", root, &error))?;
        Ok(Self { root, relative })
    }

    /// The file's path, its directories made. Refused when a link leads out of the root.
    pub(super) fn prepare(&self) -> Result<PathBuf, Undelivered> {
        let mut directory = self.root.clone();
        for part in self.relative.parent().into_iter().flat_map(Path::components) {
            directory.push(part);
            make(&directory).map_err(|error| cannot("create", &directory, &error))?;
            directory = self.inside(&directory)?;
        }
        let name =
            self.relative.file_name().ok_or_else(|| Failure::permanent("config.path: names no file"))?;
        let path = directory.join(name);
        match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => self.inside(&path),
            Ok(_) | Err(_) => Ok(path),
        }
    }

    fn inside(&self, path: &Path) -> Result<PathBuf, Undelivered> {
        let real = path.canonicalize().map_err(|error| cannot("open", path, &error))?;
        match real.starts_with(&self.root) {
            true => Ok(real),
            false => Err(Failure::permanent(format!(
                "config.path: {} leads out of --file-root",
                self.relative.display()
            ))
            .into()),
        }
    }
}

fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Ok(()) => sync_parent(directory),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// A new name is safe only once the directory that holds it is.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) => fs::File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

/// The file could not be opened, perhaps because this node has no descriptor left.
pub(super) fn cannot(doing: &str, path: &Path, error: &io::Error) -> Undelivered {
    judge(error, failed(doing, path, error))
}

/// A full disk or a missing permission can be put right while the message waits; a path that cannot be
/// a file cannot.
pub(super) fn failed(doing: &str, path: &Path, error: &io::Error) -> Failure {
    let text = format!("cannot {doing} {}: {}", path.display(), short(error));
    match error.kind() {
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
            Failure::permanent(text)
        }
        _ => Failure::retryable(text),
    }
}
