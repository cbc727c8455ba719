//! How far long work has come, on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::output::Output;

const COUNTING: &str = "{spinner} counting {msg}";
const GOING: &str = "{bar:30} {human_pos} of {human_len}, {per_sec}, {eta} left {msg}";

const READING: &str = "{bar:30} {bytes} of {total_bytes}, {eta} left, {msg}";
const LISTENING: &str = "{spinner} {msg}";

/// Counts messages or bytes; hidden when the output is not a terminal, and removed when it is dropped.
pub(super) struct WorkProgress(ProgressBar);

impl WorkProgress {
    pub(super) fn new(output: Output) -> Self {
        if !output.is_live() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::no_length().with_style(style(COUNTING)).with_finish(ProgressFinish::AndClear);
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    /// For what is read from a file of this many bytes, or from a pipe of unknown length.
    pub(super) fn reading(output: Output, total_bytes: Option<u64>) -> Self {
        let progress = Self::new(output);
        progress.0.set_style(style(if total_bytes.is_some() { READING } else { LISTENING }));
        if let Some(total_bytes) = total_bytes {
            progress.0.set_length(total_bytes);
        }
        progress
    }

    pub(super) fn read(&self, bytes: u64, note: String) {
        self.0.set_position(bytes);
        self.0.set_message(note);
    }

    /// `note` is what else there is to say.
    pub(super) fn show(&self, done: u64, total: Option<u64>, note: &str) {
        if let Some(total) = total.filter(|total| self.0.length() != Some(*total)) {
            self.0.set_style(style(GOING));
            self.0.set_length(total);
        }
        self.0.set_position(done);
        self.0.set_message(note.to_owned());
    }
}

impl Drop for WorkProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a valid template")
}

pub(super) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
