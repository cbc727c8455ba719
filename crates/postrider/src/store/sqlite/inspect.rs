//! What people ask: a message's story, and the state of the store. Readers have their own connections.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

use super::archive::{self, Month};
use super::keys::{GLOBAL_SCOPE, Place};
use super::row::{at, micros_of};
use super::shown::Shown;
use super::{claim, endpoints, export, known, results, schema, storage_error, stored_events};
use crate::breaker::CircuitState;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::message::{MessageId, NodeId, State};
use crate::store::{
    AttemptOutcome, AttemptRecord, EndpointStatus, REPLAYED_AS_MAX, Result, StoreStatus, Story,
};
use crate::verdict::Class;

/// The columns that [`told`] reads, in its order; `m` is the message, `e` its endpoint.
const STORY_COLUMNS: &str = "m.id, e.name, m.priority, m.payload, m.content_type, m.headers, m.options, \
     m.idempotency_key, m.correlation_id, m.ordering_key, m.event_type, m.created_at, m.scheduled_at, \
     m.expires_at, m.attempts, m.last_error";

pub(super) fn story(conn: &Connection, now: Timestamp, id: MessageId) -> Result<Story> {
    let found = match queued(conn, now, id)? {
        Some(story) => Some(story),
        None => match archive::month_of(conn, id).map_err(storage_error)? {
            Some(month) => Some(archived(conn, month, id).map_err(storage_error)?),
            None => dead(conn, id).map_err(storage_error)?,
        },
    };
    let mut story = found.ok_or_else(|| StoreError::unknown_message(id))?;
    story.attempts = attempts(conn, id).map_err(storage_error)?;
    story.replay_of = replay_of(conn, id).map_err(storage_error)?;
    story.replayed_as = replayed_as(conn, id).map_err(storage_error)?;
    Ok(story)
}

fn replay_of(conn: &Connection, id: MessageId) -> rusqlite::Result<Option<MessageId>> {
    conn.prepare_cached("SELECT original_id FROM _postrider_replayed WHERE id = ?1")?
        .query_row([id.0], |row| row.get(0).map(MessageId))
        .optional()
}

fn replayed_as(conn: &Connection, id: MessageId) -> rusqlite::Result<Vec<MessageId>> {
    let mut ids = conn
        .prepare_cached(
            "SELECT id FROM _postrider_replayed WHERE original_id = ?1 ORDER BY id DESC LIMIT ?2",
        )?
        .query_map([id.0, REPLAYED_AS_MAX as i64], |row| row.get(0).map(MessageId))?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    ids.reverse();
    Ok(ids)
}

fn queued(conn: &Connection, now: Timestamp, id: MessageId) -> Result<Option<Story>> {
    let found = conn
        .prepare_cached(&format!(
            "SELECT {STORY_COLUMNS}, m.place, m.due_at, m.key_scope FROM _postrider_queue m
             JOIN _postrider_endpoints e ON e.id = m.endpoint_id WHERE m.id = ?1"
        ))
        .and_then(|mut statement| {
            statement
                .query_row([id.0], |row| {
                    let (place, due_at) = (Place::from_column(row.get(16)?), Shown(row).time(17));
                    let scope = row.get::<_, Option<i64>>(18).unwrap_or(None);
                    Ok((told(row, State::Pending)?, place, due_at.unwrap_or_default(), scope))
                })
                .optional()
        })
        .map_err(storage_error)?;
    let Some((mut story, place, due_at, scope)) = found else { return Ok(None) };
    if place == Place::Claimed {
        story.state = State::Processing;
    } else {
        let endpoint = endpoints::load_by_name(conn, &story.endpoint)?;
        story.due_at = Some(due_at);
        let in_the_way = in_the_way(conn, now, &endpoint, &story, place, due_at, scope)?;
        story.reason = Some(match live_nodes(conn, now).map_err(storage_error)? {
            0 => format!("no node runs; {in_the_way}"),
            _ => in_the_way,
        });
    }
    Ok(Some(story))
}

/// The first thing in the way, in the order in which a node would meet it.
fn in_the_way(
    conn: &Connection,
    now: Timestamp,
    endpoint: &Endpoint,
    story: &Story,
    place: Place,
    due_at: Timestamp,
    scope: Option<i64>,
) -> Result<String> {
    if let Some(reason) = stopped(conn).map_err(storage_error)? {
        return Ok(format!("everything is paused: {reason}"));
    }
    if endpoint.paused {
        return Ok(format!("endpoint {:?} is paused", endpoint.name));
    }
    if endpoint.disabled.is_some() {
        return Ok(format!("endpoint {:?} is disabled", endpoint.name));
    }
    if place == Place::Blocked {
        let key = story.ordering_key.as_deref().unwrap_or_default();
        return behind_key(conn, scope.unwrap_or(GLOBAL_SCOPE), key);
    }
    if due_at > now && story.attempt_count == 0 {
        return Ok(format!("scheduled: next try at {due_at}"));
    }
    if due_at > now {
        return Ok(format!("waiting after attempt {}: next try at {due_at}", story.attempt_count));
    }
    match endpoint.circuit.state {
        CircuitState::Open { until } => return Ok(format!("circuit open: next try at {until}")),
        CircuitState::HalfOpen { .. } => return Ok("circuit half open: one probe at a time".to_owned()),
        CircuitState::Closed => {}
    }
    if let Some(until) = endpoint.held_until.filter(|until| *until > now) {
        return Ok(format!("the receiver asked to wait: next try at {until}"));
    }
    if place == Place::Suspect {
        return Ok("on probation: its claim was lost with a node, so it is tried with few others".to_owned());
    }
    if let Some(limit) = endpoint.options.rate_limit {
        let grant = limit.grant(claim::rate_position(conn, endpoint)?, now, 1);
        if grant.granted == 0 {
            return Ok(format!("rate limited: next try at {}", grant.next_at));
        }
    }
    Ok("due now".to_owned())
}

/// Why nothing at all is delivered.
fn stopped(conn: &Connection) -> rusqlite::Result<Option<String>> {
    match export::closed(conn)? {
        Some(refusal) => Ok(Some(refusal)),
        None => known::paused(conn),
    }
}

fn behind_key(conn: &Connection, scope: i64, key: &str) -> Result<String> {
    let head: Option<i64> = conn
        .query_row(
            "SELECT message_id FROM _postrider_dlq
             WHERE holds_key = 1 AND key_scope = ?1 AND ordering_key = ?2 LIMIT 1",
            rusqlite::params![scope, key],
            |row| row.get(0),
        )
        .optional()
        .map_err(storage_error)?;
    if let Some(head) = head {
        return Ok(format!(
            "behind key {key:?}: held by dead message {head}; redrive, discard or release it"
        ));
    }
    let current: Option<i64> = conn
        .query_row(
            "SELECT id FROM _postrider_queue WHERE key_scope = ?1 AND ordering_key = ?2 AND place <> 1",
            rusqlite::params![scope, key],
            |row| row.get(0),
        )
        .optional()
        .map_err(storage_error)?;
    Ok(match current {
        Some(current) => format!("behind key {key:?}: message {current} is before it"),
        None => format!("behind key {key:?}"),
    })
}

fn archived(conn: &Connection, month: Month, id: MessageId) -> rusqlite::Result<Story> {
    conn.prepare_cached(&format!(
        "SELECT {STORY_COLUMNS}, m.status, m.finished_at FROM {} m
         JOIN _postrider_endpoints e ON e.id = m.endpoint_id WHERE m.id = ?1",
        month.table()
    ))?
    .query_row([id.0], |row| {
        let mut story = told(row, archive::finished_state(row.get_ref(16)?.as_str()?))?;
        story.finished_at = Some(at(row.get(17)?));
        Ok(story)
    })
}

fn dead(conn: &Connection, id: MessageId) -> rusqlite::Result<Option<Story>> {
    conn.prepare_cached(&format!(
        "SELECT {STORY_COLUMNS}, m.id AS dlq_id, m.died_at, m.reason FROM _postrider_dlq m
         JOIN _postrider_endpoints e ON e.id = m.endpoint_id WHERE m.message_id = ?1 AND m.status <> 'redriven'
         ORDER BY m.id DESC LIMIT 1"
    ))?
    .query_row([id.0], |row| {
        let mut story = told(row, State::Dead)?;
        story.id = id;
        story.dlq_id = Some(row.get(16)?);
        story.finished_at = Some(at(row.get(17)?));
        story.reason = Some(row.get(18)?);
        Ok(story)
    })
    .optional()
}

fn told(row: &Row<'_>, state: State) -> rusqlite::Result<Story> {
    let shown = Shown(row);
    Ok(Story {
        id: MessageId(row.get(0)?),
        endpoint: row.get(1)?,
        state,
        priority: shown.priority(2),
        payload: shown.bytes(3),
        content_type: shown.text(4).unwrap_or_default(),
        headers: shown.headers(5),
        options: shown.object(6),
        idempotency_key: shown.text(7),
        correlation_id: shown.uuid(8),
        ordering_key: shown.text(9),
        event_type: shown.text(10),
        created_at: shown.time(11).unwrap_or_default(),
        scheduled_at: shown.time(12),
        expires_at: shown.time(13),
        attempt_count: shown.count(14),
        last_error: shown.text(15),
        finished_at: None,
        due_at: None,
        reason: None,
        attempts: Vec::new(),
        dlq_id: None,
        replay_of: None,
        replayed_as: Vec::new(),
    })
}

fn attempts(conn: &Connection, id: MessageId) -> rusqlite::Result<Vec<AttemptRecord>> {
    conn.prepare_cached(
        "SELECT number, node_id, started_at, duration, outcome, class, error, status, body
         FROM _postrider_attempts WHERE message_id = ?1 ORDER BY id",
    )?
    .query_map([id.0], |row| {
        let shown = Shown(row);
        Ok(AttemptRecord {
            number: shown.count(0),
            node: NodeId(shown.whole(1)),
            started_at: shown.time(2).unwrap_or_default(),
            duration: std::time::Duration::from_micros(u64::try_from(shown.whole(3)).unwrap_or(0)),
            outcome: match shown.text(4).as_deref() {
                Some("delivered") => AttemptOutcome::Delivered,
                Some("lost") => AttemptOutcome::Lost,
                _ => AttemptOutcome::Failed,
            },
            class: shown.text(5).map(|class| match &*class {
                "permanent" => Class::Permanent,
                "gone" => Class::Gone,
                _ => Class::Retryable,
            }),
            error: shown.text(6),
            status: row.get(7).unwrap_or(None),
            body: shown.bytes(8),
        })
    })?
    .collect()
}

pub(super) fn status(conn: &Connection, store: &str, now: Timestamp) -> Result<StoreStatus> {
    let (queued, dead): (u64, u64) = conn
        .query_row("SELECT queued, dead FROM _postrider_counts WHERE endpoint_id = 0", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .map_err(storage_error)?;
    let endpoints = endpoint_statuses(conn, now)?;
    let processing = endpoints.iter().map(|endpoint| endpoint.processing).sum();
    let (stored_events, oldest_stored_event) = stored_events::waiting(conn).map_err(storage_error)?;
    Ok(StoreStatus {
        store: store.to_owned(),
        schema_version: schema::CURRENT,
        paused: stopped(conn).map_err(storage_error)?,
        live_nodes: live_nodes(conn, now).map_err(storage_error)?,
        pending: queued.saturating_sub(processing),
        processing,
        dead,
        oldest_pending: endpoints.iter().filter_map(|endpoint| endpoint.oldest_pending).min(),
        stored_events,
        oldest_stored_event,
        endpoints,
        limits: None,
    })
}

fn live_nodes(conn: &Connection, now: Timestamp) -> rusqlite::Result<u64> {
    conn.prepare_cached("SELECT count(*) FROM _postrider_nodes WHERE state = 'live' AND lease_until > ?1")?
        .query_row([micros_of(now)], |row| row.get(0))
}

fn endpoint_statuses(conn: &Connection, now: Timestamp) -> Result<Vec<EndpointStatus>> {
    let mut processing: std::collections::HashMap<i64, u64> = conn
        .prepare_cached(
            "SELECT endpoint_id, count(*) FROM _postrider_queue INDEXED BY _postrider_queue_claimed
             WHERE place = 2 GROUP BY endpoint_id",
        )
        .and_then(|mut statement| statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .map_err(storage_error)?;
    let counts: std::collections::HashMap<i64, (u64, u64)> = conn
        .prepare_cached("SELECT endpoint_id, queued, dead FROM _postrider_counts")
        .and_then(|mut statement| {
            statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?.collect()
        })
        .map_err(storage_error)?;
    let mut list = endpoints::load_all(conn)?;
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list.into_iter()
        .map(|endpoint| {
            let (queued, dead) = counts.get(&endpoint.id.0).copied().unwrap_or_default();
            let processing = processing.remove(&endpoint.id.0).unwrap_or(0);
            let pending = queued.saturating_sub(processing);
            Ok(EndpointStatus {
                name: endpoint.name.to_string(),
                protocol: endpoint.protocol.as_str().to_owned(),
                enabled: endpoint.disabled.is_none(),
                paused: endpoint.paused,
                circuit: endpoint.circuit.state.name(),
                pending,
                processing,
                dead,
                oldest_pending: if pending == 0 {
                    None
                } else {
                    waits_longest(conn, endpoint.id, now).map_err(storage_error)?
                },
                health: results::health(conn, endpoint.id).map_err(storage_error)?,
            })
        })
        .collect()
}

/// Since when; behind an ordering key, too. What is due in the future does not wait yet.
fn waits_longest(
    conn: &Connection,
    endpoint: EndpointId,
    now: Timestamp,
) -> rusqlite::Result<Option<Timestamp>> {
    let behind = conn
        .prepare_cached(
            "SELECT due_at FROM _postrider_queue INDEXED BY _postrider_queue_behind
             WHERE place = 1 AND endpoint_id = ?1 ORDER BY due_at LIMIT 1",
        )?
        .query_row([endpoint.0], |row| Ok(Shown(row).time(0)))
        .optional()?
        .flatten();
    let earliest = claim::earliest_due(conn, endpoint)?.into_iter().chain(behind).min();
    Ok(earliest.filter(|due| *due <= now))
}
