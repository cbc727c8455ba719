//! A file that is open for appending: whole lines, fsync, rotation.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::place::{cannot, failed, sync_parent};
use super::writer::JsonLine;
use crate::sink::Undelivered;
use crate::verdict::Failure;

pub(super) struct OpenFile {
    file: File,
    path: PathBuf,
    size: u64,
}

impl OpenFile {
    pub(super) fn open(path: PathBuf) -> Result<Self, Undelivered> {
        open(&path).map_err(|error| cannot("open", &path, &error)).map(|(file, size)| Self {
            file,
            path,
            size,
        })
    }

    /// False when another process moved or removed the file: lines written to it would not be found.
    pub(super) fn is_still_at(&self, path: &Path) -> bool {
        self.path == path
            && matches!((self.file.metadata(), fs::metadata(path)), (Ok(open), Ok(found)) if same_file(&open, &found))
    }

    /// Returns when all lines are on the disk.
    pub(super) fn append(&mut self, lines: &[JsonLine]) -> Result<(), Undelivered> {
        let mut bytes = Vec::with_capacity(lines.iter().map(|line| line.bytes.len()).sum());
        for (n, line) in lines.iter().enumerate() {
            let size = self.size + bytes.len() as u64;
            if size > 0 && line.rotate_size.is_some_and(|max| size + line.bytes.len() as u64 > max) {
                self.write(&bytes)?;
                bytes.clear();
                // Lines of this batch are in the full file already.
                self.rotate().map_err(|error| if n > 0 { error.after_a_beginning() } else { error })?;
            }
            bytes.extend_from_slice(&line.bytes);
        }
        Ok(self.write(&bytes)?)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.file.write_all(bytes).and_then(|()| self.file.sync_data());
        written.map_err(|error| failed("write", &self.path, &error))?;
        self.size += bytes.len() as u64;
        Ok(())
    }

    /// The full file gets the time as part of its name; a new one takes its place.
    fn rotate(&mut self) -> Result<(), Undelivered> {
        let rotate = || {
            fs::rename(&self.path, free_name(&self.path))?;
            open(&self.path)
        };
        let (file, size) = rotate().map_err(|error| cannot("rotate", &self.path, &error))?;
        self.file = file;
        self.size = size;
        Ok(())
    }
}

/// Ends a line that a crash cut off, so that the next one starts on a new line.
fn open(path: &Path) -> io::Result<(File, u64)> {
    let existed = path.exists();
    let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
    let mut size = file.metadata()?.len();
    if !existed {
        sync_parent(path)?;
    }
    if size > 0 {
        let mut last = [0];
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
            size += 1;
        }
    }
    Ok((file, size))
}

fn free_name(path: &Path) -> PathBuf {
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%S%.6fZ").to_string();
    let named = |number: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(if number == 0 { format!(".{time}") } else { format!(".{time}-{number}") });
        PathBuf::from(name)
    };
    (0..).map(named).find(|name| !name.exists()).expect("some number is free")
}

#[cfg(unix)]
fn same_file(one: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn same_file(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}
