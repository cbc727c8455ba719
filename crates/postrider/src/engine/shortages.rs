//! What becomes of a shortage on this node: it is counted, told at most every ten seconds, and what sinks keep open is
//! closed.

use std::time::Duration;

use tokio::time::Instant;

use super::tally::Tally;
use crate::sink::{Kept, Resource, Shortage};

const TELL_INTERVAL: Duration = Duration::from_secs(10);
/// Walking over all sinks for every message that could not start would cost more than it frees.
const LET_GO_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Shortages {
    /// By resource: when it was told last, and how many came since.
    told: [(Option<Instant>, u64); Resource::ALL.len()],
    let_go_at: Option<Instant>,
}

impl Shortages {
    pub(super) fn note(&mut self, shortage: &Shortage, endpoint: &str, tally: &Tally, kept: &Kept) {
        tally.short_of(shortage.of);
        let now = Instant::now();
        if shortage.of == Resource::OpenFiles && is_due(self.let_go_at, LET_GO_INTERVAL, now) {
            self.let_go_at = Some(now);
            kept.let_go();
        }
        let (told_at, attempts) = &mut self.told[shortage.of as usize];
        *attempts += 1;
        if is_due(*told_at, TELL_INTERVAL, now) {
            *told_at = Some(now);
            let attempts = std::mem::take(attempts);
            let (short_of, error) = (shortage.of.as_str(), &shortage.error);
            tracing::warn!(short_of, attempts, endpoint, error, advice = advice(shortage.of), "{TOLD}");
        }
    }
}

const TOLD: &str = "attempts not started: this node is short of a resource; retrying, not counted";

fn is_due(last: Option<Instant>, interval: Duration, now: Instant) -> bool {
    last.is_none_or(|last| last + interval <= now)
}

fn advice(resource: Resource) -> &'static str {
    match resource {
        Resource::OpenFiles => {
            "raise the limit of open files (ulimit -n, LimitNOFILE), or lower --max-in-flight"
        }
        Resource::LocalPorts => "widen net.ipv4.ip_local_port_range, or lower --max-in-flight",
        Resource::Memory => "give this machine more memory, or lower --max-in-flight",
        Resource::Threads => "raise the limit of processes and threads (ulimit -u, TasksMax)",
    }
}
