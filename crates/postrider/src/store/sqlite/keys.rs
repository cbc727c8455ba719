//! Ordering keys. Of each key at most one message is ready, on probation or claimed. All others wait behind it, and
//! claims never look at them. `key_position` is their order.

use rusqlite::{Row, params};

use super::query::Query;
use super::row::RawText;
use super::shown::ShownRow;
use super::writer::Write;
use crate::endpoint::{Endpoint, EndpointId, KeyScope};
use crate::message::MessageId;
use crate::store::Result;

/// The column `place`. SQL has these numbers: 0 ready, 1 behind its key, 2 claimed, 3 on probation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueuePlace {
    Ready = 0,
    BehindKey = 1,
    Claimed = 2,
    /// Ready, but it lost a claim before.
    OnProbation = 3,
}

impl QueuePlace {
    /// The table has a CHECK. A damaged place must not stop the messages of the same transaction, so it is no error.
    pub(super) fn from_column(value: i64) -> Self {
        match value {
            0 => Self::Ready,
            1 => Self::BehindKey,
            2 => Self::Claimed,
            _ => Self::OnProbation,
        }
    }

    /// The place of a pending message that may be claimed.
    pub(super) fn free(losses: u32) -> Self {
        if losses == 0 { Self::Ready } else { Self::OnProbation }
    }
}

/// One key in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct OrderingKey {
    pub(super) scope: i64,
    pub(super) key: RawText,
}

impl OrderingKey {
    /// From its two columns, which are NULL together.
    pub(super) fn of(scope: Option<i64>, key: Option<RawText>) -> Option<Self> {
        Some(Self { scope: scope?, key: key? })
    }
}

pub(super) const GLOBAL_SCOPE: i64 = 0;

pub(super) fn scope_of(endpoint: &Endpoint) -> i64 {
    match endpoint.options.key_scope {
        KeyScope::Endpoint => endpoint.id.0,
        KeyScope::Global => GLOBAL_SCOPE,
    }
}

/// Unreadable losses count as one, so it stays on probation.
pub(super) fn losses(row: &Row<'_>, column: usize) -> u32 {
    row.get(column).unwrap_or(1)
}

pub(super) struct KeyHead {
    pub(super) id: MessageId,
    pub(super) endpoint: EndpointId,
    pub(super) place: QueuePlace,
    pub(super) position: i64,
    losses: u32,
}

pub(super) fn head(write: &Write<'_>, key: &OrderingKey) -> Result<Option<KeyHead>> {
    write.conn.find(
        "SELECT id, endpoint_id, place, key_position, losses FROM _postrider_queue
         WHERE key_scope = ?1 AND ordering_key = ?2 ORDER BY key_position LIMIT 1",
        params![key.scope, key.key],
        |row| {
            Ok(KeyHead {
                id: MessageId(row.get(0)?),
                endpoint: EndpointId(ShownRow(row).whole(1)),
                place: QueuePlace::from_column(row.get(2)?),
                position: ShownRow(row).whole(3),
                losses: losses(row, 4),
            })
        },
    )
}

/// A dead head keeps its key waiting (`on_dead = hold`).
pub(super) fn is_held(write: &Write<'_>, key: &OrderingKey) -> Result<bool> {
    write.conn.value(
        "SELECT EXISTS (SELECT 1 FROM _postrider_dlq
         WHERE holds_key = 1 AND key_scope = ?1 AND ordering_key = ?2)",
        params![key.scope, key.key],
    )
}

/// After the last ready or claimed message of the key left: its head becomes claimable, unless the key is held.
pub(super) fn advance(write: &mut Write<'_>, key: &OrderingKey) -> Result<Option<EndpointId>> {
    let Some(head) = head(write, key)? else { return Ok(None) };
    if head.place != QueuePlace::BehindKey || is_held(write, key)? {
        return Ok(None);
    }
    set_place(write, head.id, QueuePlace::free(head.losses))?;
    Ok(Some(head.endpoint))
}

/// The same when one of the key may still be claimed: after a hold ended.
pub(super) fn advance_if_idle(write: &mut Write<'_>, key: &OrderingKey) -> Result<Option<EndpointId>> {
    if has_claimed(write, key)? { Ok(None) } else { advance(write, key) }
}

pub(super) fn has_claimed(write: &Write<'_>, key: &OrderingKey) -> Result<bool> {
    write.conn.value(
        "SELECT EXISTS (SELECT 1 FROM _postrider_queue INDEXED BY _postrider_queue_current
         WHERE key_scope = ?1 AND ordering_key = ?2 AND place <> 1 AND place = 2)",
        params![key.scope, key.key],
    )
}

/// A claimed message of the key went back to pending; a redriven one may have been put before it meanwhile.
pub(super) fn put_back(
    write: &mut Write<'_>,
    id: MessageId,
    key: &OrderingKey,
) -> Result<Option<EndpointId>> {
    match head(write, key)? {
        Some(head) if head.id != id => {
            set_place(write, id, QueuePlace::BehindKey)?;
            advance(write, key)
        }
        _ => Ok(None),
    }
}

pub(super) fn set_place(write: &Write<'_>, id: MessageId, place: QueuePlace) -> Result<()> {
    write.conn.run(
        "UPDATE _postrider_queue SET place = ?2, behind_key = (?2 = 1) WHERE id = ?1",
        params![id.0, place as i64],
    )
}
