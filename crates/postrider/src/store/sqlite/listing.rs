//! Lists of messages from queue, archive and DLQ, and of nodes.

use std::ops::Range;

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use super::SqliteStore;
use super::archive::Month;
use super::query::Query;
use super::row::{at, micros_of, named};
use super::shown::ShownRow;
use crate::error::StoreError;
use crate::message::{MessageId, NodeId, State};
use crate::store::listing::{DISORDER_MAX, Pager, WINDOW_ROWS_MAX, Window};
use crate::store::{ListedMessage, Listing, MessageFilter, MessagePage, NodeRecord, Result};

#[async_trait]
impl Listing for SqliteStore {
    async fn messages(&self, filter: MessageFilter) -> Result<MessagePage> {
        let asked = filter.clone();
        let begin = move |conn: &Connection| {
            check(conn, &asked)?;
            last_id(conn, &asked)
        };
        let mut pager = Pager::new(&filter, self.read(begin).await?);
        while let Some((ids, room)) = pager.next() {
            let (filter, looked_at) = (filter.clone(), ids.clone());
            let look = move |conn: &Connection| window(conn, &filter, ids, room);
            pager.take(&looked_at, self.read(look).await?);
        }
        Ok(pager.page())
    }

    async fn nodes(&self, before: Option<NodeId>, limit: usize) -> Result<Vec<NodeRecord>> {
        self.read(move |conn| nodes(conn, before, limit)).await
    }
}

/// Columns that every source has.
const COLUMNS: &str = "endpoint_id, priority, content_type, idempotency_key, correlation_id, ordering_key, event_type, \
     created_at, scheduled_at, expires_at, last_error";

/// A search by time stops at a range of this many ids.
const CLOSE_ENOUGH: i64 = 500;

/// Above it nothing can match.
pub(super) fn last_id(conn: &Connection, filter: &MessageFilter) -> Result<i64> {
    let mut last = last_sent(conn)?;
    let Some(before) = filter.created_before else { return Ok(last) };
    let Ok(too_new) = before.checked_add(DISORDER_MAX).map(micros_of) else { return Ok(last) };
    let tables: Vec<String> = Month::existing(conn)?.into_iter().map(Month::table).collect();
    let mut first = 0;
    while last - first > CLOSE_ENOUGH {
        let middle = first + (last - first) / 2;
        match nearest(conn, &tables, middle)? {
            Some((id, created_at)) if created_at > too_new => last = id - 1,
            _ => first = middle,
        }
    }
    Ok(last)
}

/// The message with the highest id up to this one, and when it was made.
fn nearest(conn: &Connection, months: &[String], id: i64) -> Result<Option<(i64, i64)>> {
    let mut found = None;
    for table in months.iter().map(String::as_str).chain(["_postrider_queue"]) {
        let sql = format!("SELECT id, created_at FROM {table} WHERE id <= ?1 ORDER BY id DESC LIMIT 1");
        let of_table = conn.find(&sql, [id], |row| Ok((row.get(0)?, ShownRow(row).whole(1))))?;
        found = found.max(of_table);
    }
    Ok(found)
}

fn last_sent(conn: &Connection) -> Result<i64> {
    conn.value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '_postrider_queue'", [])
}

/// An endpoint name that never existed is an error, not an empty list.
pub(super) fn check(conn: &Connection, filter: &MessageFilter) -> Result<()> {
    let Some(name) = &filter.endpoint else { return Ok(()) };
    let found =
        conn.find("SELECT 1 FROM _postrider_endpoints WHERE name = ?1 LIMIT 1", [name], |_| Ok(()))?;
    found.ok_or_else(|| StoreError::unknown_endpoint(name))
}

pub(super) fn window(
    conn: &Connection,
    filter: &MessageFilter,
    ids: Range<i64>,
    room: usize,
) -> Result<Window> {
    let correlation_id = filter.correlation_id.map(|id| id.to_string());
    let parameters = params![
        ids.start,
        ids.end,
        WINDOW_ROWS_MAX as i64,
        filter.state.map(State::as_str),
        filter.endpoint,
        filter.ordering_key,
        filter.event_type,
        correlation_id,
        filter.created_after.map(micros_of),
        filter.created_before.map(micros_of),
        room as i64,
    ];
    let mut window = Window { from: Some(ids.start), rows: 0, newest: None, found: Vec::new() };
    let sources = sources(conn, filter)?;
    if sources.is_empty() {
        return Ok(window);
    }
    let mut statement = conn.prepare_cached(&sql(&sources))?;
    let mut rows = statement.query(parameters)?;
    while let Some(row) = rows.next()? {
        window.rows = row.get(0)?;
        window.newest = ShownRow(row).time(1);
        window.from = window.from.max(row.get(2)?);
        if row.get::<_, Option<i64>>(3)?.is_some() {
            window.found.push(listed(row)?);
        }
    }
    Ok(window)
}

/// Where messages of the wanted state are. Claimed ones are few, so their index is used.
fn sources(conn: &Connection, filter: &MessageFilter) -> Result<Vec<String>> {
    let queue = |restricted: &str| {
        format!(
            "SELECT id, CASE place WHEN 2 THEN 'processing' ELSE 'pending' END,
               CASE WHEN place <> 2 THEN due_at END,
             attempts, NULL, NULL, {COLUMNS} FROM _postrider_queue {restricted} id >= ?1 AND id < ?2"
        )
    };
    let dead = || {
        format!(
            "SELECT message_id, 'dead', NULL, attempts, died_at, id, {COLUMNS} FROM _postrider_dlq
             INDEXED BY _postrider_dlq_message
             WHERE message_id >= ?1 AND message_id < ?2 AND status <> 'redriven'"
        )
    };
    let month = |month: Month| {
        format!(
            "SELECT id, status, NULL, attempts, finished_at, NULL, {COLUMNS} FROM {}
             WHERE id >= ?1 AND id < ?2",
            month.table()
        )
    };
    let archive = || -> Result<Vec<String>> {
        let months = Month::existing(conn)?.into_iter();
        Ok(months.filter(|found| may_hold(*found, filter)).map(month).collect())
    };
    Ok(match filter.state {
        None => [vec![queue("WHERE")], archive()?, vec![dead()]].concat(),
        Some(State::Pending) => vec![queue("WHERE place <> 2 AND")],
        Some(State::Processing) => vec![queue("INDEXED BY _postrider_queue_claimed WHERE place = 2 AND")],
        Some(State::Completed | State::Expired | State::Cancelled) => archive()?,
        Some(State::Dead) => vec![dead()],
    })
}

fn may_hold(month: Month, filter: &MessageFilter) -> bool {
    let is_past = filter.created_after.is_some_and(|after| month < Month::of(micros_of(after)));
    let is_ahead = filter.created_before.is_some_and(|before| month > Month::of(micros_of(before)));
    !is_past && !is_ahead
}

/// The window is counted before it is filtered, because every row that is looked at costs. Where a source has more rows
/// than may be looked at, the window ends above the last of them.
fn sql(sources: &[String]) -> String {
    let first_of = |(number, source): (usize, &String)| {
        format!("SELECT {number}, * FROM ({source} ORDER BY 1 DESC LIMIT ?3)")
    };
    let sources: Vec<String> = sources.iter().enumerate().map(first_of).collect();
    format!(
        "WITH w (source, id, state, due_at, attempts, finished_at, dlq_id, {COLUMNS}) AS MATERIALIZED ({})
         SELECT c.rows, c.newest, f.id, m.*
         FROM (SELECT count(*) AS rows, max(created_at) AS newest FROM w) AS c,
           (SELECT max(id) AS id FROM (SELECT min(id) AS id FROM w GROUP BY source HAVING count(*) >= ?3)) AS f
         LEFT JOIN (
           SELECT w.id, e.name, w.state, w.priority, w.due_at, w.attempts, w.last_error, w.content_type,
             w.idempotency_key, w.correlation_id, w.ordering_key, w.event_type, w.created_at, w.scheduled_at,
             w.expires_at, w.finished_at, w.dlq_id
           FROM w JOIN _postrider_endpoints AS e ON e.id = w.endpoint_id
           WHERE (?4 IS NULL OR w.state = ?4) AND (?5 IS NULL OR e.name = ?5)
             AND (?6 IS NULL OR w.ordering_key = ?6)
             AND (?7 IS NULL OR w.event_type = ?7) AND (?8 IS NULL OR w.correlation_id = ?8)
             AND (?9 IS NULL OR w.created_at >= ?9) AND (?10 IS NULL OR w.created_at < ?10)
           ORDER BY w.id DESC LIMIT ?11) AS m ON f.id IS NULL OR m.id >= f.id
         ORDER BY m.id DESC",
        sources.join(" UNION ALL ")
    )
}

fn listed(row: &Row<'_>) -> rusqlite::Result<ListedMessage> {
    let shown = ShownRow(row);
    Ok(ListedMessage {
        id: MessageId(row.get(3)?),
        endpoint: row.get(4)?,
        state: State::from_name(row.get_ref(5)?.as_str()?).unwrap_or(State::Pending),
        priority: shown.priority(6),
        due_at: shown.time(7),
        attempt_count: shown.count(8),
        last_error: shown.text(9),
        content_type: shown.text(10).unwrap_or_default(),
        idempotency_key: shown.text(11),
        correlation_id: shown.uuid(12),
        ordering_key: shown.text(13),
        event_type: shown.text(14),
        created_at: shown.time(15).unwrap_or_default(),
        scheduled_at: shown.time(16),
        expires_at: shown.time(17),
        finished_at: shown.time(18),
        dlq_id: row.get(19)?,
    })
}

pub(super) fn nodes(conn: &Connection, before: Option<NodeId>, limit: usize) -> Result<Vec<NodeRecord>> {
    conn.rows(
        "SELECT id, name, state, joined_at, heartbeat_at, lease_until FROM _postrider_nodes
         WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
        params![before.map_or(i64::MAX, |node| node.0), limit as i64],
        |row| {
            Ok(NodeRecord {
                id: NodeId(row.get(0)?),
                name: row.get(1)?,
                state: named(row, 2)?,
                joined_at: at(row.get(3)?),
                heartbeat_at: at(row.get(4)?),
                lease_until: at(row.get(5)?),
            })
        },
    )
}
