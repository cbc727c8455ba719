//! Nodes: registry, leases, and the channels to the nodes of this process.

use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::Row;

use super::row::{Span, count, object, optional_time};
use super::{SharedState, claim};
use crate::endpoint::EndpointId;
use crate::message::{Fence, LostClaim, MessageId, NodeId};
use crate::store::{Arrival, Joined, Result};

/// The nodes of this process.
#[derive(Default)]
pub(super) struct LocalNodes(Mutex<Vec<(NodeId, UnboundedSender<Arrival>)>>);

impl LocalNodes {
    pub(super) fn add(&self, node: NodeId, arrivals: UnboundedSender<Arrival>) {
        self.lock().push((node, arrivals));
    }

    pub(super) fn remove(&self, node: NodeId) {
        self.lock().retain(|(id, _)| *id != node);
    }

    pub(super) fn tell(&self, arrival: impl Fn() -> Arrival) {
        for (_, arrivals) in self.lock().iter() {
            // A closed channel: that node is about to leave.
            let _ = arrivals.send(arrival());
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(NodeId, UnboundedSender<Arrival>)>> {
        self.0.lock().expect("no panic while telling")
    }
}

pub(super) async fn join(shared: &SharedState, name: &str) -> Result<Joined> {
    let joined = shared.own.query_one("SELECT node, lease FROM postrider._join($1)", &[&name]).await?;
    Ok(Joined { node: NodeId(joined.get(0)), lease: joined.get::<_, Span>(1).0 })
}

/// For how long the lease is granted.
pub(super) async fn heartbeat(shared: &SharedState, node: NodeId) -> Result<Duration> {
    let lease: Span = shared.own.query_one("SELECT postrider._heartbeat($1)", &[&node.0]).await?.get(0);
    shared.own.with(async |client| shared.clock.set(client).await).await?;
    claim::give_back_forgotten(shared, node).await?;
    Ok(lease.0)
}

pub(super) async fn leave(shared: &SharedState, node: NodeId) -> Result<()> {
    shared.own.query("SELECT postrider._leave_node($1)", &[&node.0]).await?;
    shared.batches.forget(node);
    shared.cursors.all_returned();
    Ok(())
}

pub(super) async fn lost_claims(shared: &SharedState, limit: usize) -> Result<Vec<LostClaim>> {
    let lost = "SELECT id, endpoint_id, node_id, batch, attempt, attempts_before, losses, alone, started_at,
                  expires_at, options
                FROM postrider._lost_claims($1)";
    let rows = shared.own.query(lost, &[&(limit as i32)]).await?;
    Ok(rows.iter().map(lost_claim).collect())
}

fn lost_claim(row: &Row) -> LostClaim {
    LostClaim {
        id: MessageId(row.get(0)),
        endpoint: EndpointId(row.get(1)),
        fence: Fence { node: NodeId(row.get(2)), batch: row.get(3) },
        attempt: count(row, 4),
        attempts_before: count(row, 5),
        losses: count(row, 6),
        alone: row.get(7),
        started_at: row.get(8),
        expires_at: optional_time(row, 9),
        options: object(row, 10),
    }
}
