//! The one writer of a file. Whatever waits while it writes becomes its next batch and shares an fsync.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use tokio::sync::oneshot;

use super::open::OpenFile;
use super::place::FilePlace;
use crate::net::begin_blocking;
use crate::sink::kept::{self, Holder, Kept};
use crate::sink::{Shortage, Undelivered, hand_over};
use crate::verdict::Failure;

pub(super) struct FileWriter {
    place: FilePlace,
    queue: Mutex<Queue>,
    kept: Arc<Kept>,
}

struct Queue {
    waiting: Vec<JsonLine>,
    /// Handed to the thread that writes; there is none to take while one does.
    file: Turn,
}

enum Turn {
    Free(Option<IdleFile>),
    Taken,
}

/// A file that stays open for the next line.
struct IdleFile {
    file: OpenFile,
    _place: kept::KeptPlace,
}

pub(super) struct JsonLine {
    pub(super) bytes: Vec<u8>,
    pub(super) rotate_size: Option<u64>,
    done: oneshot::Sender<Result<(), Undelivered>>,
}

impl FileWriter {
    /// Endpoints with the same file share its writer, so that their lines do not mix.
    pub(super) fn of(place: FilePlace, kept: &Arc<Kept>) -> Arc<Self> {
        static WRITERS: OnceLock<Mutex<HashMap<FilePlace, Weak<FileWriter>>>> = OnceLock::new();
        let mut writers = lock(WRITERS.get_or_init(Mutex::default));
        if let Some(writer) = writers.get(&place).and_then(Weak::upgrade) {
            return writer;
        }
        writers.retain(|_, writer| writer.strong_count() > 0);
        let queue = Mutex::new(Queue { waiting: Vec::new(), file: Turn::Free(None) });
        let writer = Arc::new(Self { place: place.clone(), queue, kept: Arc::clone(kept) });
        kept.add(Arc::downgrade(&writer) as Weak<dyn Holder>);
        writers.insert(place, Arc::downgrade(&writer));
        writer
    }

    /// Ends when the line is on the disk.
    pub(super) async fn write(
        self: &Arc<Self>,
        bytes: Vec<u8>,
        rotate_size: Option<u64>,
    ) -> Result<(), Undelivered> {
        let (done, written) = oneshot::channel();
        hand_over();
        let turn = {
            let mut queue = lock(&self.queue);
            queue.waiting.push(JsonLine { bytes, rotate_size, done });
            std::mem::replace(&mut queue.file, Turn::Taken)
        };
        if let Turn::Free(idle) = turn {
            let file = idle.map(|idle| idle.file);
            let writer = Arc::clone(self);
            if let Err(shortage) = begin_blocking(move || writer.run(file)) {
                self.give_up(&shortage);
            }
        }
        written.await.unwrap_or_else(|_| {
            Err(Failure::retryable("the node stopped before the file was written").into())
        })
    }

    /// No thread writes; the next line tries again.
    fn give_up(&self, shortage: &Shortage) {
        let waiting = {
            let mut queue = lock(&self.queue);
            queue.file = Turn::Free(None);
            std::mem::take(&mut queue.waiting)
        };
        for line in waiting {
            let _ = line.done.send(Err(shortage.clone().into()));
        }
    }

    /// Writes batch after batch until nothing waits.
    fn run(&self, mut file: Option<OpenFile>) {
        loop {
            let mut batch = {
                let mut queue = lock(&self.queue);
                if queue.waiting.is_empty() {
                    let idle =
                        file.and_then(|file| self.kept.place().map(|_place| IdleFile { file, _place }));
                    queue.file = Turn::Free(idle);
                    return;
                }
                std::mem::take(&mut queue.waiting)
            };
            // Whoever gave up waiting is going to send the message again.
            batch.retain(|line| !line.done.is_closed());
            let result = self.write_batch(&mut file, &batch);
            for line in batch {
                let _ = line.done.send(result.clone());
            }
        }
    }

    fn write_batch(&self, file: &mut Option<OpenFile>, batch: &[JsonLine]) -> Result<(), Undelivered> {
        if batch.is_empty() {
            return Ok(());
        }
        let path: PathBuf = self.place.prepare()?;
        let mut current = match file.take() {
            Some(open) if open.is_still_at(&path) => open,
            Some(_) | None => OpenFile::open(path)?,
        };
        // After an error it is unknown what reached the disk, so the next write opens the file anew.
        current.append(batch)?;
        *file = Some(current);
        Ok(())
    }
}

impl Holder for FileWriter {
    fn let_go(&self) {
        if let Turn::Free(idle) = &mut lock(&self.queue).file {
            idle.take();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
