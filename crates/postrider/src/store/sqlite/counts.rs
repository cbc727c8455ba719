//! How many messages are queued and dead: exact, at a cost that does not grow with the queue.

use std::collections::HashMap;

use rusqlite::{Connection, params, params_from_iter};

use super::query::Query;
use crate::endpoint::EndpointId;
use crate::store::Result;

const ALL: i64 = 0;
/// Endpoints in one statement; the remainder has a statement each. One event may change thousands of counts.
const CHUNK: usize = 32;

/// What one transaction changes; written once at its end.
#[derive(Default)]
pub(super) struct QueueCounts {
    changes: HashMap<i64, Change>,
    queued_before: HashMap<i64, i64>,
}

#[derive(Clone, Copy, Default)]
struct Change {
    queued: i64,
    dead: i64,
    dlq_bytes: i64,
}

impl QueueCounts {
    pub(super) fn queued(&mut self, endpoint: EndpointId, by: i64) {
        self.change(endpoint, Change { queued: by, ..Change::default() });
    }

    pub(super) fn dead(&mut self, endpoint: EndpointId, by: i64) {
        self.change(endpoint, Change { dead: by, ..Change::default() });
    }

    pub(super) fn dlq_bytes(&mut self, endpoint: EndpointId, by: i64) {
        self.change(endpoint, Change { dlq_bytes: by, ..Change::default() });
    }

    pub(super) fn all_queued(&mut self, conn: &Connection) -> Result<u64> {
        self.now_queued(conn, ALL)
    }

    pub(super) fn endpoint_queued(&mut self, conn: &Connection, endpoint: EndpointId) -> Result<u64> {
        self.now_queued(conn, endpoint.0)
    }

    pub(super) fn write(&mut self, conn: &Connection) -> Result<()> {
        let changes: Vec<(i64, Change)> = self.changes.drain().collect();
        let chunks = changes.chunks_exact(CHUNK);
        let rest = chunks.remainder().chunks(1);
        chunks.chain(rest).try_for_each(|some| add(conn, some))?;
        self.queued_before.clear();
        Ok(())
    }

    fn change(&mut self, endpoint: EndpointId, by: Change) {
        for id in [endpoint.0, ALL] {
            let change = self.changes.entry(id).or_default();
            change.queued += by.queued;
            change.dead += by.dead;
            change.dlq_bytes += by.dlq_bytes;
        }
    }

    fn now_queued(&mut self, conn: &Connection, id: i64) -> Result<u64> {
        let before = match self.queued_before.get(&id) {
            Some(before) => *before,
            None => {
                let before = read(conn, id)?;
                self.queued_before.insert(id, before);
                before
            }
        };
        let change = self.changes.get(&id).map_or(0, |change| change.queued);
        Ok((before + change).max(0) as u64)
    }
}

fn add(conn: &Connection, changes: &[(i64, Change)]) -> Result<()> {
    let rows = vec!["(?, ?, ?, ?)"; changes.len()].join(", ");
    let sql = format!(
        "INSERT INTO _postrider_counts (endpoint_id, queued, dead, dlq_bytes) VALUES {rows}
         ON CONFLICT (endpoint_id) DO UPDATE SET queued = queued + excluded.queued,
           dead = dead + excluded.dead, dlq_bytes = dlq_bytes + excluded.dlq_bytes"
    );
    let values = changes
        .iter()
        .flat_map(|(endpoint, change)| [*endpoint, change.queued, change.dead, change.dlq_bytes]);
    conn.run(&sql, params_from_iter(values))
}

fn read(conn: &Connection, id: i64) -> Result<i64> {
    conn.find("SELECT queued FROM _postrider_counts WHERE endpoint_id = ?1", params![id], |row| row.get(0))
        .map(|queued| queued.unwrap_or(0))
}
