//! How many files and connections this process may have open, and how they are shared out.

use postrider::store::NodeLimits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the store (a node has up to 19 connections to PostgreSQL, or some dozen files of SQLite), the log, lookups of
/// names, secrets and certificates; but never more than a quarter of a small limit.
const RESERVE: u64 = 128;
/// Far above what one machine's senders open.
const CLIENTS_MAX: u64 = 4096;
/// Far above what one node's attempts can leave behind within the 30 seconds that a connection is kept.
const IDLE_MAX: u64 = 10_000;

/// Raises the limit of open files as far as this process may. None: there is no limit.
pub(crate) fn raised() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(error) => {
            tracing::debug!(%error, "The limit of open files cannot be raised");
            current
        }
    }
}

/// Shares `open_files` out. Attempts in flight have a connection each, and idle connections half as many at least; a
/// quarter is for clients.
pub(crate) fn shared(open_files: Option<u64>, wanted_in_flight: u32) -> NodeLimits {
    let all = open_files.unwrap_or(u64::MAX);
    let rest = all - RESERVE.min(all / 4);
    let clients = (rest / 4).clamp(1, CLIENTS_MAX);
    let outgoing = rest.saturating_sub(clients);
    let in_flight = (outgoing / 3).saturating_mul(2).clamp(1, u64::from(wanted_in_flight.max(1)));
    NodeLimits {
        open_files,
        max_in_flight: in_flight as u32,
        idle_connections_max: outgoing.saturating_sub(in_flight).min(IDLE_MAX),
        client_connections_max: clients,
    }
}

/// Once, when the node starts.
pub(crate) fn tell(limits: &NodeLimits, wanted_in_flight: u32) {
    let NodeLimits { open_files, max_in_flight, idle_connections_max, client_connections_max } = *limits;
    tracing::info!(
        open_files,
        max_in_flight,
        idle_connections_max,
        client_connections_max,
        "The limits of this node"
    );
    if max_in_flight < wanted_in_flight {
        tracing::warn!(
            open_files,
            max_in_flight,
            wanted_in_flight,
            "The limit of open files allows fewer attempts at once than --max-in-flight; raise it (ulimit -n, LimitNOFILE)"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_shared_out() {
        // Open files, wanted in flight; in flight, idle, clients.
        let cases = [
            (None, 1024, 1024, 10_000, 4096),
            (Some(1 << 20), 1024, 1024, 10_000, 4096),
            (Some(1 << 20), 10_000, 10_000, 10_000, 4096),
            (Some(20_000), 1024, 1024, 10_000, 4096),
            (Some(4096), 1024, 1024, 1952, 992),
            (Some(1024), 1024, 448, 224, 224),
            (Some(1024), 64, 64, 608, 224),
            (Some(256), 1024, 96, 48, 48),
            (Some(64), 1024, 24, 12, 12),
            (Some(8), 1024, 2, 3, 1),
            (Some(1), 1, 1, 0, 1),
            (Some(0), 1, 1, 0, 1),
        ];
        for (open_files, wanted, in_flight, idle, clients) in cases {
            let limits = shared(open_files, wanted);
            let found = (limits.max_in_flight, limits.idle_connections_max, limits.client_connections_max);
            assert_eq!(found, (in_flight, idle, clients), "{open_files:?}, {wanted}");
            assert_eq!(limits.open_files, open_files);
        }
    }

    #[test]
    fn together_they_leave_a_reserve() {
        for open_files in 16..5000 {
            for wanted in [1, 64, 1024, 10_000] {
                let limits = shared(Some(open_files), wanted);
                let shared = u64::from(limits.max_in_flight)
                    + limits.idle_connections_max
                    + limits.client_connections_max;
                assert!(shared + RESERVE.min(open_files / 4) <= open_files, "{limits:?}");
                assert!(limits.max_in_flight <= wanted);
            }
        }
    }
}
