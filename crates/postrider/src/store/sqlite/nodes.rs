//! Nodes and their leases, and the channels to the nodes of this process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use rusqlite::{Connection, params};
use serde_json::json;
use tokio::sync::mpsc;

use super::query::Query;
use super::row::{CheckedRow, micros_of, object, optional_time, time};
use super::shown::ShownRow;
use super::writer::Write;
use super::{events, keys, settle};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::message::{Fence, LostClaim, MessageId, NodeId};
use crate::store::{Arrival, DirectClaims, Hello, Joined, Result};

/// The nodes of this process.
#[derive(Default)]
pub(super) struct ListeningNodes {
    nodes: Mutex<Vec<Listener>>,
}

struct Listener {
    node: NodeId,
    /// None while the node leaves: reserved slots still have to be given back.
    arrivals: Option<mpsc::UnboundedSender<Arrival>>,
    direct: Arc<dyn DirectClaims>,
}

impl Listener {
    fn tell(&self, arrival: Arrival) {
        // A closed channel means that the node is stopping; `leave` releases its claims.
        let _ = self.arrivals.as_ref().map(|arrivals| arrivals.send(arrival));
    }
}

impl ListeningNodes {
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
                        // `leave` releases its claims, this one too.
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
                Arrival::CircuitMoved => {
                    nodes.iter().for_each(|listener| listener.tell(Arrival::CircuitMoved));
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

    /// From now on the store claims nothing for it and tells it nothing.
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
    let (now, lease) = (micros_of(write.now), write.config.settings().node_lease);
    write.conn.run(
        "INSERT INTO _postrider_nodes (name, state, joined_at, heartbeat_at, lease_until)
         VALUES (?1, 'live', ?2, ?2, ?3)",
        params![name, now, micros_of(write.now + lease)],
    )?;
    let node = NodeId(write.conn.last_insert_rowid());
    events::log(write, "node.joined", Some(name), &json!({ "node": node }))?;
    Ok(Joined { node, lease })
}

/// Of the node that joined last, whatever its state.
pub(super) fn last_heartbeat(conn: &Connection) -> Result<Option<Timestamp>> {
    conn.find("SELECT heartbeat_at FROM _postrider_nodes ORDER BY id DESC LIMIT 1", [], |row| {
        Ok(ShownRow(row).time(0))
    })
    .map(Option::flatten)
}

/// For how long the lease is granted.
pub(super) fn heartbeat(write: &mut Write<'_>, node: NodeId) -> Result<Duration> {
    let lease = write.config.settings().node_lease;
    let confirmed = write.conn.run_counted(
        "UPDATE _postrider_nodes SET heartbeat_at = ?2, lease_until = ?3 WHERE id = ?1 AND state = 'live'",
        params![node.0, micros_of(write.now), micros_of(write.now + lease)],
    )?;
    if confirmed == 0 {
        return Err(StoreError::Conflict(format!("node {} lost its lease", node.0)));
    }
    Ok(lease)
}

/// A node whose lease was declared lost would lose its claims at once, so it gets none.
pub(super) fn check_live(write: &Write<'_>, node: NodeId) -> Result<()> {
    let live: bool = write
        .conn
        .value("SELECT EXISTS (SELECT 1 FROM _postrider_nodes WHERE id = ?1 AND state = 'live')", [node.0])?;
    if live { Ok(()) } else { Err(StoreError::Conflict(format!("node {} lost its lease", node.0))) }
}

/// A clean stop: what the node still holds goes back, its attempts uncounted.
pub(super) fn leave(write: &mut Write<'_>, node: NodeId) -> Result<()> {
    let Some(name) = end_node(write, node, "left")? else { return Ok(()) };
    let held: Vec<i64> =
        write.conn.column("SELECT id FROM _postrider_queue WHERE place = 2 AND node_id = ?1", [node.0])?;
    for id in held {
        settle::release(write, MessageId(id))?;
    }
    events::log(write, "node.left", Some(&name), &json!({ "node": node }))
}

/// This process owns the file, so every other node marked `live` is dead.
pub(super) fn bury_earlier_nodes(write: &mut Write<'_>) -> Result<()> {
    bury(write, i64::MAX)
}

/// Claims of nodes whose lease ran out, and claims that were not settled in time.
pub(super) fn lost_claims(
    write: &mut Write<'_>,
    may_judge_leases: bool,
    limit: usize,
) -> Result<Vec<LostClaim>> {
    if may_judge_leases {
        bury(write, micros_of(write.now))?;
    }
    let stale_before = micros_of(write.now - write.config.settings().stale_recovery_timeout);
    write.conn.rows(
        "SELECT id, endpoint_id, node_id, batch, attempts, attempts_before, losses, alone, started_at,
                expires_at, options
         FROM _postrider_queue INDEXED BY _postrider_queue_claimed
         WHERE place = 2
           AND (started_at <= ?1 OR node_id NOT IN (SELECT id FROM _postrider_nodes WHERE state = 'live'))
         LIMIT ?2",
        params![stale_before, limit as i64],
        |row| {
            // Unreadable columns: the next claim sets the message aside.
            let mut read = CheckedRow::of(row);
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
        },
    )
}

fn bury(write: &mut Write<'_>, lease_before: i64) -> Result<()> {
    let late = "SELECT id FROM _postrider_nodes WHERE state = 'live' AND lease_until <= ?1";
    let lost: Vec<i64> = write.conn.column(late, [lease_before])?;
    for node in lost {
        let name = end_node(write, NodeId(node), "lost")?;
        events::log(write, "node.lost", name.as_deref(), &json!({ "node": node }))?;
    }
    Ok(())
}

fn end_node(write: &mut Write<'_>, node: NodeId, state: &str) -> Result<Option<String>> {
    write.conn.find(
        "UPDATE _postrider_nodes SET state = ?2 WHERE id = ?1 AND state = 'live' RETURNING name",
        params![node.0, state],
        |row| row.get(0),
    )
}
