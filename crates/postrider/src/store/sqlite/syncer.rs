//! Durability beside the writer. With `synchronous = NORMAL` a commit is in the WAL file but not yet on
//! disk; syncing that file afterwards is exactly what `FULL` would have done within the commit. A
//! separate thread does it, so the writer continues and its next commits share the next sync.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use super::job::{WriteJob, WriterCommand};
use super::nodes::ListeningNodes;
use crate::error::StoreError;
use crate::store::{Arrival, Result};

/// Syncs a file to disk.
pub(super) type SyncFile = Arc<dyn Fn(&File) -> io::Result<()> + Send + Sync>;

/// Committed jobs whose callers wait for the sync.
pub(super) struct Unsynced {
    pub(super) jobs: Vec<Box<dyn WriteJob>>,
    pub(super) news: Vec<Arrival>,
}

/// Hands groups to the thread; dropping it waits until all are answered.
pub(super) struct Syncer {
    groups: Option<Sender<Unsynced>>,
    thread: Option<JoinHandle<()>>,
    /// Groups that are not answered yet.
    unanswered: Arc<AtomicUsize>,
    /// Why nothing can be made durable any more.
    broken: Arc<OnceLock<StoreError>>,
}

impl Syncer {
    /// The WAL file exists by now and stays the same file for as long as the writer's connection is open.
    /// SQLite keeps its locks on the other two files, so opening and closing this one drops none of them.
    pub(super) fn spawn(
        store: &Path,
        sync: SyncFile,
        listeners: Arc<ListeningNodes>,
        writer: Sender<WriterCommand>,
    ) -> Result<Self> {
        let mut path = store.as_os_str().to_owned();
        path.push("-wal");
        let unusable = |error: io::Error| {
            StoreError::Unusable(format!("cannot open {}: {error}", Path::new(&path).display()))
        };
        let wal = OpenOptions::new().read(true).write(true).open(&path).map_err(unusable)?;
        let (groups, waiting) = channel();
        let unanswered = Arc::new(AtomicUsize::new(0));
        let broken = Arc::new(OnceLock::new());
        let (left, failure) = (unanswered.clone(), broken.clone());
        let thread = std::thread::Builder::new()
            .name("postrider-syncer".to_owned())
            .spawn(move || run(|| sync(&wal), &waiting, &listeners, &left, &failure, &writer))
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Self { groups: Some(groups), thread: Some(thread), unanswered, broken })
    }

    pub(super) fn is_busy(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) > 0
    }

    pub(super) fn broken(&self) -> Option<&StoreError> {
        self.broken.get()
    }

    pub(super) fn sync(&self, group: Unsynced) {
        self.unanswered.fetch_add(1, Ordering::AcqRel);
        let groups = self.groups.as_ref().expect("there until it is dropped");
        groups.send(group).expect("the thread ends only when this end is dropped");
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.groups = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn run(
    sync: impl Fn() -> io::Result<()>,
    waiting: &Receiver<Unsynced>,
    listeners: &ListeningNodes,
    unanswered: &AtomicUsize,
    broken: &OnceLock<StoreError>,
    writer: &Sender<WriterCommand>,
) {
    while let Ok(first) = waiting.recv() {
        let groups: Vec<Unsynced> = std::iter::once(first).chain(waiting.try_iter()).collect();
        // After a failed sync the kernel may have dropped the pages: a later success would prove nothing.
        if broken.get().is_none()
            && let Err(error) = sync()
        {
            tracing::error!(%error, "the disk refused to sync; sends are refused until a restart");
            let _ = broken.set(StoreError::Unusable(format!(
                "the disk refused to sync the store ({error}); restart the node once the disk is in order"
            )));
        }
        unanswered.fetch_sub(groups.len(), Ordering::AcqRel);
        // It may have ended already; then nothing waits there.
        let _ = writer.send(WriterCommand::Synced);
        let outcome = broken.get().cloned().map_or(Ok(()), Err);
        for group in groups {
            // Before the callers are answered: after a refusal the slot must be free, and a node that left is told nothing.
            match outcome {
                Ok(()) => listeners.tell(group.news),
                Err(_) => listeners.take_back(group.news),
            }
            group.jobs.into_iter().for_each(|job| job.finish(outcome.clone()));
        }
    }
}
