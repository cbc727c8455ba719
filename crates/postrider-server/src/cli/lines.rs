//! The lines of a file or of stdin, read while others are sent. What waits is bounded, however much there is.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::failure::CommandError;

/// More than the largest payload there can be, with all that is around it.
const LINE_BYTES_MAX: u64 = 128 << 20;
/// Read ahead of what is sent. A line that is larger waits alone.
const WAITING_BYTES_MAX: u32 = 32 << 20;
const WAITING_LINES_MAX: usize = 4096;

pub(super) struct InputLine {
    /// From 1.
    pub(super) number: u64,
    pub(super) text: Bytes,
    /// How far this line's end is into the file.
    pub(super) end: u64,
    _room: OwnedSemaphorePermit,
}

pub(super) struct InputLines {
    name: String,
    pub(super) total_bytes: Option<u64>,
    coming: mpsc::Receiver<io::Result<InputLine>>,
}

impl InputLines {
    /// `-` is stdin.
    pub(super) fn of(from: &str) -> Result<Self, CommandError> {
        if from == "-" {
            return Ok(Self::reading("stdin", io::stdin(), None));
        }
        let unreadable = |error| unreadable(from, &error);
        let file = File::open(from).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        // A pipe or a device does not say how long it is.
        Ok(Self::reading(from, file, about.is_file().then_some(about.len())))
    }

    fn reading(name: &str, from: impl Read + Send + 'static, total_bytes: Option<u64>) -> Self {
        let (sender, coming) = mpsc::channel(WAITING_LINES_MAX);
        let runtime = tokio::runtime::Handle::current();
        std::thread::spawn(move || {
            let mut reader = LineReader { from: BufReader::with_capacity(1 << 20, from), number: 0, end: 0 };
            let room = Arc::new(Semaphore::new(WAITING_BYTES_MAX as usize));
            while let Some(line) = reader.next(&room, &runtime).transpose() {
                let is_last = line.is_err();
                if sender.blocking_send(line).is_err() || is_last {
                    return;
                }
            }
        });
        Self { name: name.to_owned(), total_bytes, coming }
    }

    /// The lines that have arrived, at most `max`; waits for the first. Empty at the end.
    pub(super) async fn next(&mut self, lines_max: usize) -> (Vec<InputLine>, Option<CommandError>) {
        let mut came = Vec::new();
        self.coming.recv_many(&mut came, lines_max).await;
        let mut lines = Vec::with_capacity(came.len());
        for line in came {
            match line {
                Ok(line) => lines.push(line),
                Err(error) => return (lines, Some(unreadable(&self.name, &error))),
            }
        }
        (lines, None)
    }
}

struct LineReader<R> {
    from: BufReader<R>,
    number: u64,
    end: u64,
}

impl<R: Read> LineReader<R> {
    /// The last line may end without a line break.
    fn next(
        &mut self,
        room: &Arc<Semaphore>,
        runtime: &tokio::runtime::Handle,
    ) -> io::Result<Option<InputLine>> {
        let mut text = Vec::new();
        let length = self.from.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut text)? as u64;
        if length == 0 {
            return Ok(None);
        }
        self.number += 1;
        if length > LINE_BYTES_MAX {
            let rule = format!("line {} is longer than {LINE_BYTES_MAX} bytes", self.number);
            return Err(io::Error::new(io::ErrorKind::InvalidData, rule));
        }
        self.end += length;
        let wanted = (length as u32).min(WAITING_BYTES_MAX);
        let room = runtime.block_on(room.clone().acquire_many_owned(wanted)).expect("it is never closed");
        Ok(Some(InputLine { number: self.number, text: text.into(), end: self.end, _room: room }))
    }
}

fn unreadable(name: &str, error: &io::Error) -> CommandError {
    CommandError::failed(format!("cannot read {name}: {error}"))
}
