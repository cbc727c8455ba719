//! What `export` and `import` share.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use postrider::store::moving::Rows;

use crate::output::Output;

/// Stands for stdin or stdout.
pub(super) const STANDARD: &str = "-";

/// How far it has come, in bytes; on a terminal only. Gone when it is dropped.
pub(super) fn bar(bytes: Option<u64>, output: Output) -> ProgressBar {
    if output.json {
        return ProgressBar::hidden();
    }
    let (bar, template) = match bytes {
        Some(bytes) => {
            (ProgressBar::new(bytes), "{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {bytes_per_sec}"),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.with_style(ProgressStyle::with_template(template).expect("a valid template"))
        .with_finish(indicatif::ProgressFinish::AndClear)
}

pub(super) fn counts(rows: &Rows) -> String {
    [
        (rows.messages, "queued message"),
        (rows.dead_letters, "dead letter"),
        (rows.archived, "archived message"),
        (rows.endpoints, "endpoint"),
    ]
    .map(|(count, what)| format!("{count} {what}{}", if count == 1 { "" } else { "s" }))
    .join(", ")
}
