//! What nodes do besides delivering: every second, and every `cleanup_interval`.

use std::sync::atomic::Ordering::Relaxed;

use postgres_types::{FromSql, Json};

use super::row::value;
use super::{SharedState, holders};
use crate::endpoint::EndpointId;
use crate::message::MessageId;
use crate::store::{Arrival, Cleaned, Evicted, Expired, Result};

/// Claimed messages a second from which a node counts as busy.
const BUSY_FROM: usize = 1000;

/// Names sessions that block nodes, then runs `postrider._upkeep`, which lists its steps. Returns what expired.
pub(super) async fn upkeep(shared: &SharedState, limit: usize) -> Result<Vec<Expired>> {
    if let Err(error) = holders::look(shared).await {
        tracing::warn!(%error, "could not look for sessions that hold our locks; retrying");
    }
    let is_idle = shared.claimed_lately.swap(0, Relaxed) < BUSY_FROM;
    let upkeep = "SELECT expired, endpoints FROM postrider._upkeep($1, $2)";
    let row = shared.own.query_one(upkeep, &[&(limit as i32), &is_idle]).await?;
    for endpoint in value::<Vec<i64>>(&row, 1)?.into_iter().map(EndpointId) {
        shared.cursors.returned(endpoint);
        shared.listeners.tell(|| Arrival::Pending(endpoint));
    }
    let expired = |of: SqlExpired| Expired {
        id: MessageId(of.id),
        endpoint: EndpointId(of.endpoint_id),
        attempts: u32::try_from(of.attempts).unwrap_or_default(),
    };
    Ok(value::<Vec<SqlExpired>>(&row, 0)?.into_iter().map(expired).collect())
}

/// `postrider._expired`. The driver refuses a type with other fields, so it may change only with the schema version.
#[derive(Debug, FromSql)]
#[postgres(name = "_expired")]
struct SqlExpired {
    id: i64,
    endpoint_id: i64,
    attempts: i32,
}

/// One bounded step.
pub(super) async fn clean_up(shared: &SharedState, limit: usize) -> Result<Cleaned> {
    let clean_up = "SELECT more, evicted FROM postrider._clean_up($1)";
    let row = shared.own.query_one(clean_up, &[&(limit as i32)]).await?;
    let evicted: Vec<Json<Evicted>> = row.get(1);
    Ok(Cleaned { more: row.get(0), evicted: evicted.into_iter().map(|Json(evicted)| evicted).collect() })
}
