//! Lists of messages, wherever they are, and of nodes.

use std::ops::Range;

use async_trait::async_trait;
use tokio_postgres::Row;

use super::row::{count, named, optional_text, optional_time, text, time};
use super::{PostgresStore, SharedState};
use crate::message::{MessageId, NodeId, State};
use crate::store::listing::{DISORDER_MAX, Pager, WINDOW_ROWS_MAX, Window};
use crate::store::{ListedMessage, Listing, MessageFilter, MessagePage, NodeRecord, Result};

#[async_trait]
impl Listing for PostgresStore {
    async fn messages(&self, filter: MessageFilter) -> Result<MessagePage> {
        messages(&self.shared, &filter).await
    }

    async fn nodes(&self, before: Option<NodeId>, limit: usize) -> Result<Vec<NodeRecord>> {
        nodes(&self.shared, before, limit).await
    }
}

pub(super) async fn messages(shared: &SharedState, filter: &MessageFilter) -> Result<MessagePage> {
    let begin = "SELECT postrider._begin_list($1, $2, $3, $4)";
    let too_new = filter.created_before.and_then(|before| before.checked_add(DISORDER_MAX).ok());
    let state = filter.state.map(State::as_str);
    let last_id = shared
        .prompt
        .query_one(begin, &[&filter.endpoint, &state, &filter.created_before, &too_new])
        .await?
        .get(0);
    let mut pager = Pager::new(filter, last_id);
    while let Some((ids, room)) = pager.next() {
        pager.take(&ids, window(shared, filter, ids.clone(), room).await?);
    }
    Ok(pager.page())
}

async fn window(
    shared: &SharedState,
    filter: &MessageFilter,
    ids: Range<i64>,
    room: usize,
) -> Result<Window> {
    let look = "SELECT rows, newest, from_id, id, endpoint, state, priority, due_at, attempts, last_error, content_type,
                  idempotency_key, correlation_id, ordering_key, event_type, created_at, scheduled_at, expires_at,
                  finished_at, dlq_id
                FROM postrider._list_window($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
    let rows = shared
        .prompt
        .query(
            look,
            &[
                &ids.start,
                &ids.end,
                &(WINDOW_ROWS_MAX as i64),
                &filter.state.map(State::as_str),
                &filter.endpoint,
                &filter.ordering_key,
                &filter.event_type,
                &filter.correlation_id,
                &filter.created_after,
                &filter.created_before,
                &(room as i64),
            ],
        )
        .await?;
    let found = rows.iter().filter(|row| row.get::<_, Option<i64>>(3).is_some()).map(listed);
    let first = rows.first();
    Ok(Window {
        from: first.and_then(|row| row.get(2)),
        rows: first.map_or(0, |row| row.get::<_, i64>(0) as usize),
        newest: first.and_then(|row| optional_time(row, 1)),
        found: found.collect::<Result<_>>()?,
    })
}

fn listed(row: &Row) -> Result<ListedMessage> {
    Ok(ListedMessage {
        id: MessageId(row.get(3)),
        endpoint: row.get(4),
        state: named(row, 5)?,
        priority: row.get::<_, i16>(6) as u8,
        due_at: optional_time(row, 7),
        attempt_count: count(row, 8),
        last_error: optional_text(row, 9),
        content_type: text(row, 10),
        idempotency_key: optional_text(row, 11),
        correlation_id: row.get(12),
        ordering_key: optional_text(row, 13),
        event_type: optional_text(row, 14),
        created_at: time(row, 15),
        scheduled_at: optional_time(row, 16),
        expires_at: optional_time(row, 17),
        finished_at: optional_time(row, 18),
        dlq_id: row.get(19),
    })
}

pub(super) async fn nodes(
    shared: &SharedState,
    before: Option<NodeId>,
    limit: usize,
) -> Result<Vec<NodeRecord>> {
    let list = "SELECT id, name, state, joined_at, heartbeat_at, lease_until FROM postrider.nodes
                WHERE id < $1 ORDER BY id DESC LIMIT $2";
    let before = before.map_or(i64::MAX, |node| node.0);
    let rows = shared.prompt.query(list, &[&before, &(limit as i64)]).await?;
    let node = |row: &Row| {
        Ok(NodeRecord {
            id: NodeId(row.get(0)),
            name: row.get(1),
            state: named(row, 2)?,
            joined_at: row.get(3),
            heartbeat_at: row.get(4),
            lease_until: row.get(5),
        })
    };
    rows.iter().map(node).collect()
}
