//! What some node does every second, whichever comes first.

use super::Shared;
use crate::endpoint::EndpointId;
use crate::store::{Arrival, Result};

/// Keys looked at in one step.
const STALLED_KEYS_MAX: i32 = 100;

/// How many messages were expired. The same statement counts the queue and looks at keys whose senders were in
/// the middle of their transaction when the message before them was settled: nobody tells when such a sender
/// rolls back.
pub(super) async fn expire(shared: &Shared, limit: usize) -> Result<usize> {
    let expire = "SELECT postrider._expire($1), ARRAY(SELECT postrider._advance_stalled_keys($2)),
                    postrider._recount_queue() IS NULL";
    let row = shared.query_one(expire, &[&(limit as i32), &STALLED_KEYS_MAX]).await?;
    for endpoint in row.get::<_, Vec<i64>>(1) {
        shared.cursors.returned(EndpointId(endpoint));
        shared.listeners.tell(|| Arrival::Pending(EndpointId(endpoint)));
    }
    Ok(row.get::<_, i32>(0) as usize)
}

/// One bounded step; true when there is more to do.
pub(super) async fn clean_up(shared: &Shared, limit: usize) -> Result<bool> {
    Ok(shared.query_one("SELECT postrider._clean_up($1)", &[&(limit as i32)]).await?.get(0))
}
