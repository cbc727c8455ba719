//! What is logged while a test runs, on the thread that runs it.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tracing::subscriber::DefaultGuard;

#[derive(Clone, Default)]
pub(crate) struct LogLines(Arc<Mutex<Vec<u8>>>);

impl LogLines {
    /// From now on, until the guard is dropped.
    pub(crate) fn gather() -> (Self, DefaultGuard) {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber =
            tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn read(&self) -> Vec<Value> {
        let written = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        written.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl io::Write for LogLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
