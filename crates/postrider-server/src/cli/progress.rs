//! How far long work has come, on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

use crate::output::Output;

/// Counts messages; hidden where nobody watches. Gone when it is dropped.
pub(super) fn bar(output: Output) -> ProgressBar {
    if !output.is_live() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:30} {human_pos} of {human_len}, {per_sec}, {eta} left {msg}");
    let bar = ProgressBar::new(0)
        .with_style(style.expect("a valid template"))
        .with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

pub(super) fn plural(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
