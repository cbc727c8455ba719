//! Nodes, their leases, and what they are told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;
use tokio::sync::mpsc;

use super::row::{Reading, micros_of, object, optional_time, time};
use super::shown::Shown;
use super::writer::Write;
use super::{events, keys, settle, storage_error};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{Fence, LostClaim, MessageId, NodeId};
use crate::store::{Arrival, DirectClaims, Hello, Joined, Result};

/// The nodes of this process that listen for news.
#[derive(Default)]
pub(super) struct Listeners {
    nodes: Mutex<Vec<Listener>>,
}

struct Listener {
    node: NodeId,
    /// None while the node leaves: slots reserved for it before are still to be given back.
    arrivals: Option<mpsc::UnboundedSender<Arrival>>,
    direct: Arc<dyn DirectClaims>,
}

impl Listener {
    fn tell(&self, arrival: Arrival) {
        // A closed channel is a node on its way out: its claims come back when it leaves.
        let _ = self.arrivals.as_ref().map(|arrivals| arrivals.send(arrival));
    }
}

impl Listeners {
    /// A node with room for a message of `endpoint`; the slot is reserved.
    pub(super) fn reserve(&self, endpoint: EndpointId) -> Option<NodeId> {
        let nodes = self.nodes.lock().expect("no listener panics while it holds the lock");
        let mut staying = nodes.iter().filter(|listener| listener.arrivals.is_some());
        staying.find(|listener| listener.direct.try_reserve(endpoint)).map(|listener| listener.node)
    }

    pub(super) fn give_back(&self, node: NodeId, endpoint: EndpointId) {
        let nodes = self.nodes.lock().expect("no listener panics while it holds the lock");
        if let Some(listener) = nodes.iter().find(|listener| listener.node == node) {
            listener.direct.give_back(endpoint);
        }
    }

    pub(super) fn tell(&self, news: Vec<Arrival>) {
        if news.is_empty() {
            return;
        }
        let nodes = self.nodes.lock().expect("no listener panics while it holds the lock");
        for arrival in news {
            match arrival {
                Arrival::Claimed(claim) => {
                    match nodes.iter().find(|listener| listener.node == claim.fence.node) {
                        // Leaving gives its claims back, this one too.
                        Some(leaving) if leaving.arrivals.is_none() => {
                            leaving.direct.give_back(claim.message.endpoint);
                        }
                        Some(listener) => listener.tell(Arrival::Claimed(claim)),
                        None => {}
                    }
                }
                Arrival::Pending(endpoint) => {
                    nodes.iter().for_each(|listener| listener.tell(Arrival::Pending(endpoint)));
                }
                Arrival::Outside => nodes.iter().for_each(|listener| listener.tell(Arrival::Outside)),
                Arrival::Reconfigured => {
                    nodes.iter().for_each(|listener| listener.tell(Arrival::Reconfigured));
                }
            }
        }
    }

    /// The transaction was rolled back: nothing of it was claimed.
    pub(super) fn take_back(&self, news: Vec<Arrival>) {
        for arrival in news {
            if let Arrival::Claimed(claim) = arrival {
                self.give_back(claim.fence.node, claim.message.endpoint);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.lock().expect("no listener panics while it holds the lock").is_empty()
    }

    pub(super) fn add(&self, node: NodeId, hello: &Hello) {
        let mut nodes = self.nodes.lock().expect("no listener panics while it holds the lock");
        nodes.push(Listener { node, arrivals: Some(hello.arrivals.clone()), direct: hello.direct.clone() });
    }

    /// From now on nothing is claimed for it, and it is told nothing.
    pub(super) fn part_with(&self, node: NodeId) {
        let mut nodes = self.nodes.lock().expect("no listener panics while it holds the lock");
        nodes.iter_mut().filter(|listener| listener.node == node).for_each(|leaving| leaving.arrivals = None);
    }

    pub(super) fn remove(&self, node: NodeId) {
        let mut nodes = self.nodes.lock().expect("no listener panics while it holds the lock");
        nodes.retain(|listener| listener.node != node);
    }
}

pub(super) fn join(write: &mut Write<'_>, name: &str) -> Result<Joined> {
    let (now, lease) = (micros_of(write.now), write.known.settings().node_lease);
    write
        .conn
        .prepare_cached(
            "INSERT INTO _postrider_nodes (name, state, joined_at, heartbeat_at, lease_until)
             VALUES (?1, 'live', ?2, ?2, ?3)",
        )
        .and_then(|mut statement| statement.execute(params![name, now, micros_of(write.now + lease)]))
        .map_err(storage_error)?;
    let node = NodeId(write.conn.last_insert_rowid());
    events::log(write, "node.joined", Some(name), &json!({ "node": node }))?;
    Ok(Joined { node, lease })
}

/// Of the latest node, dead or alive.
pub(super) fn last_heartbeat(conn: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    conn.query_row("SELECT heartbeat_at FROM _postrider_nodes ORDER BY id DESC LIMIT 1", [], |row| {
        Ok(Shown(row).time(0))
    })
    .optional()
    .map(Option::flatten)
}

/// For how long the lease is granted.
pub(super) fn heartbeat(write: &mut Write<'_>, node: NodeId) -> Result<Duration> {
    let lease = write.known.settings().node_lease;
    let confirmed = write
        .conn
        .prepare_cached(
            "UPDATE _postrider_nodes SET heartbeat_at = ?2, lease_until = ?3 WHERE id = ?1 AND state = 'live'",
        )
        .and_then(|mut statement| {
            statement.execute(params![node.0, micros_of(write.now), micros_of(write.now + lease)])
        })
        .map_err(storage_error)?;
    if confirmed == 0 {
        return Err(StoreError::Conflict(format!("node {} lost its lease", node.0)));
    }
    Ok(lease)
}

/// What a node claims after it was judged would be lost at once, so it gets nothing.
pub(super) fn check_live(write: &Write<'_>, node: NodeId) -> Result<()> {
    let live: bool = write
        .conn
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM _postrider_nodes WHERE id = ?1 AND state = 'live')")
        .and_then(|mut statement| statement.query_row([node.0], |row| row.get(0)))
        .map_err(storage_error)?;
    if live { Ok(()) } else { Err(StoreError::Conflict(format!("node {} lost its lease", node.0))) }
}

/// A clean stop: what the node still holds goes back, its attempts uncounted.
pub(super) fn leave(write: &mut Write<'_>, node: NodeId) -> Result<()> {
    let Some(name) = end_node(write, node, "left")? else { return Ok(()) };
    let held = write
        .conn
        .prepare_cached("SELECT id FROM _postrider_queue WHERE place = 2 AND node_id = ?1")
        .and_then(|mut statement| {
            statement.query_map([node.0], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()
        })
        .map_err(storage_error)?;
    for id in held {
        settle::release(write, MessageId(id))?;
    }
    events::log(write, "node.left", Some(&name), &json!({ "node": node }))
}

/// This process owns the file, so every other node that still looks alive is dead.
pub(super) fn bury_earlier_nodes(write: &mut Write<'_>) -> Result<()> {
    bury(write, i64::MAX)
}

/// Claims of nodes whose lease ran out, and claims that nobody settled in time.
pub(super) fn lost_claims(
    write: &mut Write<'_>,
    may_judge_leases: bool,
    limit: usize,
) -> Result<Vec<LostClaim>> {
    if may_judge_leases {
        bury(write, micros_of(write.now))?;
    }
    let stale_before = micros_of(write.now - write.known.settings().stale_recovery_timeout);
    write
        .conn
        .prepare_cached(
            "SELECT id, endpoint_id, node_id, batch, attempts, attempts_before, losses, alone, started_at,
                    expires_at, options
             FROM _postrider_queue INDEXED BY _postrider_queue_claimed
             WHERE place = 2
               AND (started_at <= ?1 OR node_id NOT IN (SELECT id FROM _postrider_nodes WHERE state = 'live'))
             LIMIT ?2",
        )
        .and_then(|mut statement| {
            statement
                .query_map(params![stale_before, limit as i64], |row| {
                    // What cannot be read of it, the next claim meets.
                    let mut read = Reading::of(row);
                    Ok(LostClaim {
                        id: MessageId(read.get(0)),
                        endpoint: EndpointId(read.get(1)),
                        fence: Fence { node: NodeId(read.get(2)), batch: read.get(3) },
                        attempt: read.get(4),
                        attempts_before: read.get(5),
                        losses: keys::losses(row, 6),
                        alone: read.get(7),
                        started_at: read.read(8, time),
                        expires_at: read.read(9, optional_time),
                        options: read.read(10, object),
                    })
                })?
                .collect()
        })
        .map_err(storage_error)
}

fn bury(write: &mut Write<'_>, lease_before: i64) -> Result<()> {
    let lost = write
        .conn
        .prepare_cached("SELECT id FROM _postrider_nodes WHERE state = 'live' AND lease_until <= ?1")
        .and_then(|mut statement| {
            statement.query_map([lease_before], |row| row.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()
        })
        .map_err(storage_error)?;
    for node in lost {
        let name = end_node(write, NodeId(node), "lost")?;
        events::log(write, "node.lost", name.as_deref(), &json!({ "node": node }))?;
    }
    Ok(())
}

fn end_node(write: &mut Write<'_>, node: NodeId, state: &str) -> Result<Option<String>> {
    write
        .conn
        .prepare_cached(
            "UPDATE _postrider_nodes SET state = ?2 WHERE id = ?1 AND state = 'live' RETURNING name",
        )
        .and_then(|mut statement| statement.query_row(params![node.0, state], |row| row.get(0)).optional())
        .map_err(storage_error)
}
