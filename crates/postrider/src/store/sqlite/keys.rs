//! Ordering keys. Of each key at most one message is not behind it: ready, on probation or claimed. All
//! others are `blocked` and cost nothing. `key_position` says who is next.

use rusqlite::{OptionalExtension, Row, params};

use super::row::Raw;
use super::shown::Shown;
use super::storage_error;
use super::writer::Write;
use crate::endpoint::{Endpoint, EndpointId, KeyScope};
use crate::message::MessageId;
use crate::store::Result;

/// Where a queued message stands: the column `place`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Ready = 0,
    Blocked = 1,
    Claimed = 2,
    /// Ready, but it lost a claim before.
    Suspect = 3,
}

impl Place {
    pub(super) fn from_column(value: i64) -> Self {
        match value {
            0 => Self::Ready,
            1 => Self::Blocked,
            2 => Self::Claimed,
            _ => Self::Suspect,
        }
    }

    /// Where a message goes that nothing holds back.
    pub(super) fn free(losses: u32) -> Self {
        if losses == 0 { Self::Ready } else { Self::Suspect }
    }
}

/// One key in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) scope: i64,
    pub(super) key: Raw,
}

impl Key {
    /// From its two columns, which are NULL together.
    pub(super) fn of(scope: Option<i64>, key: Option<Raw>) -> Option<Self> {
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

pub(super) struct Head {
    pub(super) id: MessageId,
    pub(super) endpoint: EndpointId,
    pub(super) place: Place,
    pub(super) position: i64,
    losses: u32,
}

pub(super) fn head(write: &Write<'_>, key: &Key) -> Result<Option<Head>> {
    write
        .conn
        .prepare_cached(
            "SELECT id, endpoint_id, place, key_position, losses FROM _postrider_queue
             WHERE key_scope = ?1 AND ordering_key = ?2 ORDER BY key_position LIMIT 1",
        )
        .and_then(|mut statement| {
            statement
                .query_row(params![key.scope, key.key], |row| {
                    Ok(Head {
                        id: MessageId(row.get(0)?),
                        endpoint: EndpointId(Shown(row).whole(1)),
                        place: Place::from_column(row.get(2)?),
                        position: Shown(row).whole(3),
                        losses: losses(row, 4),
                    })
                })
                .optional()
        })
        .map_err(storage_error)
}

/// A dead head keeps its key waiting (`on_dead = hold`).
pub(super) fn is_held(write: &Write<'_>, key: &Key) -> Result<bool> {
    write
        .conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM _postrider_dlq
                            WHERE holds_key = 1 AND key_scope = ?1 AND ordering_key = ?2)",
        )
        .and_then(|mut statement| statement.query_row(params![key.scope, key.key], |row| row.get(0)))
        .map_err(storage_error)
}

/// Nothing of the key is ready or claimed any more: its head may go, unless the key is held.
pub(super) fn advance(write: &mut Write<'_>, key: &Key) -> Result<Option<EndpointId>> {
    let Some(head) = head(write, key)? else { return Ok(None) };
    if head.place != Place::Blocked || is_held(write, key)? {
        return Ok(None);
    }
    set_place(write, head.id, Place::free(head.losses))?;
    Ok(Some(head.endpoint))
}

/// The same when it is not known whether one of the key is claimed: a hold ended by itself.
pub(super) fn advance_if_idle(write: &mut Write<'_>, key: &Key) -> Result<Option<EndpointId>> {
    if has_claimed(write, key)? { Ok(None) } else { advance(write, key) }
}

pub(super) fn has_claimed(write: &Write<'_>, key: &Key) -> Result<bool> {
    write
        .conn
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM _postrider_queue INDEXED BY _postrider_queue_current
                            WHERE key_scope = ?1 AND ordering_key = ?2 AND place <> 1 AND place = 2)",
        )
        .and_then(|mut statement| statement.query_row(params![key.scope, key.key], |row| row.get(0)))
        .map_err(storage_error)
}

/// A claimed message of the key went back to pending; a redriven one may have been put before it meanwhile.
pub(super) fn put_back(write: &mut Write<'_>, id: MessageId, key: &Key) -> Result<Option<EndpointId>> {
    match head(write, key)? {
        Some(head) if head.id != id => {
            set_place(write, id, Place::Blocked)?;
            advance(write, key)
        }
        _ => Ok(None),
    }
}

pub(super) fn set_place(write: &Write<'_>, id: MessageId, place: Place) -> Result<()> {
    write
        .conn
        .prepare_cached("UPDATE _postrider_queue SET place = ?2, behind_key = (?2 = 1) WHERE id = ?1")
        .and_then(|mut statement| statement.execute(params![id.0, place as i64]))
        .map(|_| ())
        .map_err(storage_error)
}
