//! What some node does every second, whichever comes first.

use std::sync::atomic::Ordering::Relaxed;

use postgres_types::Json;

use super::{Shared, holders};
use crate::endpoint::EndpointId;
use crate::message::MessageId;
use crate::store::{Arrival, Cleaned, Evicted, Expired, Result};

/// Keys that are let go in one step: with what expires in it, fewer than a transaction may lock.
const STALLED_KEYS_MAX: i32 = 400;
/// Sends without a notification that are taken note of at a time: more than senders make in a second.
const UNHEARD_MAX: i32 = 50_000;
/// Messages a second, from which on looking everywhere has to pass by too many that just left.
const BUSY_FROM: usize = 1000;

/// Which messages were expired. The same statement counts the queue and finds what nobody told of: keys whose
/// senders were in the middle of their transaction when the message before them was settled, messages whose endpoint was
/// dropped before they were committed, messages that were sent without a notification, and, while this process has little to
/// do, messages whose sender counted on another one that rolled back. At last it disables endpoints that were found gone while
/// somebody was changing them. None of this waits for a lock: should it meet one, it is tried again.
pub(super) async fn expire(shared: &Shared, limit: usize) -> Result<Vec<Expired>> {
    if let Err(error) = holders::look(shared).await {
        tracing::warn!(%error, "could not look for sessions that hold our locks; retrying");
    }
    let expire = "SELECT set_config('lock_timeout', '1s', true), postrider._expire($1), postrider._cancel_orphans(postrider._now() - interval '1 day', $1),
                    ARRAY(SELECT postrider._advance_stalled_keys($2)), postrider._take_unheard($4),
                    ARRAY(SELECT endpoint_id FROM postrider._waiting() WHERE $3 AND due_at <= postrider._now()),
                    postrider._recount_queue() IS NULL, postrider._disable_gone_endpoints() IS NULL";
    let idle = shared.claimed_lately.swap(0, Relaxed) < BUSY_FROM;
    let row =
        shared.own.query_one(expire, &[&(limit as i32), &STALLED_KEYS_MAX, &idle, &UNHEARD_MAX]).await?;
    let found: [Vec<i64>; 3] = [row.get(3), row.get(4), row.get(5)];
    for endpoint in found.iter().flatten() {
        shared.cursors.returned(EndpointId(*endpoint));
        shared.listeners.tell(|| Arrival::Pending(EndpointId(*endpoint)));
    }
    let expired = |of: &[i64]| Expired {
        id: MessageId(of[0]),
        endpoint: EndpointId(of[1]),
        attempts: u32::try_from(of[2]).unwrap_or_default(),
    };
    Ok(row.get::<_, Vec<i64>>(1).chunks_exact(3).map(expired).collect())
}

/// One bounded step.
pub(super) async fn clean_up(shared: &Shared, limit: usize) -> Result<Cleaned> {
    let clean_up = "SELECT more, evicted FROM postrider._clean_up($1)";
    let row = shared.own.query_one(clean_up, &[&(limit as i32)]).await?;
    let evicted: Vec<Json<Evicted>> = row.get(1);
    Ok(Cleaned { more: row.get(0), evicted: evicted.into_iter().map(|Json(evicted)| evicted).collect() })
}
