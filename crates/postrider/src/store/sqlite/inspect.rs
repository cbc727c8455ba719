//! What people ask: a message's story, and the state of the store. Readers have their own connections.

use jiff::Timestamp;
use rusqlite::{Connection, Row};

use super::archive::{self, Month};
use super::keys::{GLOBAL_SCOPE, QueuePlace};
use super::query::Query;
use super::row::{at, micros_of};
use super::shown::ShownRow;
use super::{claim, config_cache, endpoints, export, results, schema, stored_events};
use crate::breaker::CircuitState;
use crate::endpoint::{Endpoint, EndpointId};
use crate::error::StoreError;
use crate::message::{MessageId, NodeId, State};
use crate::store::{
    AttemptOutcome, AttemptRecord, EndpointStatus, ListedMessage, REPLAYED_AS_MAX, Result, StoreStatus, Story,
};
use crate::verdict::Class;

/// The columns that [`told`] reads, in its order; `m` is the message, `e` its endpoint.
const STORY_COLUMNS: &str = "m.id, e.name, m.priority, m.payload, m.content_type, m.headers, m.options, \
     m.idempotency_key, m.correlation_id, m.ordering_key, m.event_type, m.created_at, m.scheduled_at, \
     m.expires_at, m.attempts, m.last_error";

pub(super) fn story(conn: &Connection, now: Timestamp, id: MessageId) -> Result<Story> {
    let found = match queued(conn, now, id)? {
        Some(story) => Some(story),
        None => match archive::month_of(conn, id)? {
            Some(month) => Some(archived(conn, month, id)?),
            None => dead(conn, id)?,
        },
    };
    let mut story = found.ok_or_else(|| StoreError::unknown_message(id))?;
    story.attempts = attempts(conn, id)?;
    story.replay_of = replay_of(conn, id)?;
    story.replayed_as = replayed_as(conn, id)?;
    Ok(story)
}

fn replay_of(conn: &Connection, id: MessageId) -> Result<Option<MessageId>> {
    conn.find("SELECT original_id FROM _postrider_replayed WHERE id = ?1", [id.0], |row| {
        row.get(0).map(MessageId)
    })
}

fn replayed_as(conn: &Connection, id: MessageId) -> Result<Vec<MessageId>> {
    let mut ids = conn.rows(
        "SELECT id FROM _postrider_replayed WHERE original_id = ?1 ORDER BY id DESC LIMIT ?2",
        [id.0, REPLAYED_AS_MAX as i64],
        |row| row.get(0).map(MessageId),
    )?;
    ids.reverse();
    Ok(ids)
}

fn queued(conn: &Connection, now: Timestamp, id: MessageId) -> Result<Option<Story>> {
    let found = conn.find(
        &format!(
            "SELECT {STORY_COLUMNS}, m.place, m.due_at, m.key_scope FROM _postrider_queue m
             JOIN _postrider_endpoints e ON e.id = m.endpoint_id WHERE m.id = ?1"
        ),
        [id.0],
        |row| {
            let (place, due_at) = (QueuePlace::from_column(row.get(16)?), ShownRow(row).time(17));
            let scope = row.get::<_, Option<i64>>(18).unwrap_or(None);
            Ok((told(row, State::Pending)?, place, due_at.unwrap_or_default(), scope))
        },
    )?;
    let Some((mut story, place, due_at, scope)) = found else { return Ok(None) };
    if place == QueuePlace::Claimed {
        story.state = State::Processing;
    } else {
        let endpoint = endpoints::load_by_name(conn, &story.endpoint)?;
        story.due_at = Some(due_at);
        let held_back = held_back(conn, now, &endpoint, &story, place, due_at, scope)?;
        story.waits_for_receiver = held_back.is_none();
        let in_the_way = match held_back {
            Some(reason) => reason,
            None => waiting(conn, now, &endpoint, &story, place, due_at)?,
        };
        story.reason = Some(match live_nodes(conn, now)? {
            0 => format!("no node runs; {in_the_way}"),
            _ => in_the_way,
        });
    }
    Ok(Some(story))
}

/// The first reason that has nothing to do with the receiver, in the order in which a node checks them.
fn held_back(
    conn: &Connection,
    now: Timestamp,
    endpoint: &Endpoint,
    story: &Story,
    place: QueuePlace,
    due_at: Timestamp,
    scope: Option<i64>,
) -> Result<Option<String>> {
    if let Some(reason) = stopped(conn)? {
        return Ok(Some(format!("everything is paused: {reason}")));
    }
    if endpoint.paused {
        return Ok(Some(format!("endpoint {:?} is paused", endpoint.name)));
    }
    if endpoint.disabled.is_some() {
        return Ok(Some(format!("endpoint {:?} is disabled", endpoint.name)));
    }
    if place == QueuePlace::BehindKey {
        let key = story.ordering_key.as_deref().unwrap_or_default();
        return behind_key(conn, scope.unwrap_or(GLOBAL_SCOPE), key).map(Some);
    }
    Ok((due_at > now && story.attempt_count == 0).then(|| format!("scheduled: next try at {due_at}")))
}

/// The reason of a message that nothing else holds back.
fn waiting(
    conn: &Connection,
    now: Timestamp,
    endpoint: &Endpoint,
    story: &Story,
    place: QueuePlace,
    due_at: Timestamp,
) -> Result<String> {
    if due_at > now {
        let (circuit, next) = match endpoint.circuit.state {
            CircuitState::Open { until } => (", circuit open", until.max(due_at)),
            CircuitState::HalfOpen { .. } | CircuitState::Closed => ("", due_at),
        };
        return Ok(format!("waiting after attempt {}{circuit}: next try at {next}", story.attempt_count));
    }
    match endpoint.circuit.state {
        CircuitState::Open { until } => return Ok(format!("circuit open: next try at {until}")),
        CircuitState::HalfOpen { .. } => return Ok("circuit half open: one probe at a time".to_owned()),
        CircuitState::Closed => {}
    }
    if let Some(until) = endpoint.held_until.filter(|until| *until > now) {
        return Ok(format!("the receiver asked to wait: next try at {until}"));
    }
    if place == QueuePlace::OnProbation {
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
fn stopped(conn: &Connection) -> Result<Option<String>> {
    match export::closed(conn)? {
        Some(refusal) => Ok(Some(refusal)),
        None => config_cache::paused(conn),
    }
}

fn behind_key(conn: &Connection, scope: i64, key: &str) -> Result<String> {
    let head: Option<i64> = conn.find(
        "SELECT message_id FROM _postrider_dlq
         WHERE holds_key = 1 AND key_scope = ?1 AND ordering_key = ?2 LIMIT 1",
        rusqlite::params![scope, key],
        |row| row.get(0),
    )?;
    if let Some(head) = head {
        return Ok(format!(
            "behind key {key:?}: held by dead message {head}; redrive, discard or release it"
        ));
    }
    let current: Option<i64> = conn.find(
        "SELECT id FROM _postrider_queue WHERE key_scope = ?1 AND ordering_key = ?2 AND place <> 1",
        rusqlite::params![scope, key],
        |row| row.get(0),
    )?;
    Ok(match current {
        Some(current) => format!("behind key {key:?}: message {current} is before it"),
        None => format!("behind key {key:?}"),
    })
}

fn archived(conn: &Connection, month: Month, id: MessageId) -> Result<Story> {
    conn.row(
        &format!(
            "SELECT {STORY_COLUMNS}, m.status, m.finished_at FROM {} m
             JOIN _postrider_endpoints e ON e.id = m.endpoint_id WHERE m.id = ?1",
            month.table()
        ),
        [id.0],
        |row| {
            let mut story = told(row, archive::finished_state(row.get_ref(16)?.as_str()?))?;
            story.finished_at = Some(at(row.get(17)?));
            Ok(story)
        },
    )
}

fn dead(conn: &Connection, id: MessageId) -> Result<Option<Story>> {
    conn.find(
        &format!(
            "SELECT {STORY_COLUMNS}, m.id AS dlq_id, m.died_at, m.reason FROM _postrider_dlq m
             JOIN _postrider_endpoints e ON e.id = m.endpoint_id
             WHERE m.message_id = ?1 AND m.status <> 'redriven'
             ORDER BY m.id DESC LIMIT 1"
        ),
        [id.0],
        |row| {
            let mut story = told(row, State::Dead)?;
            story.id = id;
            story.dlq_id = Some(row.get(16)?);
            story.finished_at = Some(at(row.get(17)?));
            story.reason = Some(row.get(18)?);
            Ok(story)
        },
    )
}

fn told(row: &Row<'_>, state: State) -> rusqlite::Result<Story> {
    let shown = ShownRow(row);
    Ok(Story {
        listed: ListedMessage {
            id: MessageId(row.get(0)?),
            endpoint: row.get(1)?,
            state,
            priority: shown.priority(2),
            content_type: shown.text(4).unwrap_or_default(),
            idempotency_key: shown.text(7),
            correlation_id: shown.uuid(8),
            ordering_key: shown.text(9),
            event_type: shown.text(10),
            created_at: shown.time(11).unwrap_or_default(),
            scheduled_at: shown.time(12),
            expires_at: shown.time(13),
            finished_at: None,
            due_at: None,
            attempt_count: shown.count(14),
            last_error: shown.text(15),
            dlq_id: None,
        },
        reason: None,
        waits_for_receiver: false,
        attempts: Vec::new(),
        payload: shown.bytes(3),
        headers: shown.headers(5),
        options: shown.object(6),
        replay_of: None,
        replayed_as: Vec::new(),
    })
}

fn attempts(conn: &Connection, id: MessageId) -> Result<Vec<AttemptRecord>> {
    conn.rows(
        "SELECT number, node_id, started_at, duration, outcome, class, error, response_status, response_body
         FROM _postrider_attempts WHERE message_id = ?1 ORDER BY id",
        [id.0],
        |row| {
            let shown = ShownRow(row);
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
                response_status: row.get(7).unwrap_or(None),
                response_body: shown.bytes(8),
            })
        },
    )
}

pub(super) fn status(conn: &Connection, store: &str, now: Timestamp) -> Result<StoreStatus> {
    let (queued, dead): (u64, u64) =
        conn.row("SELECT queued, dead FROM _postrider_counts WHERE endpoint_id = 0", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let endpoints = endpoint_statuses(conn, now)?;
    let processing = endpoints.iter().map(|endpoint| endpoint.processing).sum();
    let (stored_events, oldest_stored_event) = stored_events::waiting(conn)?;
    Ok(StoreStatus {
        store: store.to_owned(),
        schema_version: schema::CURRENT,
        paused: stopped(conn)?,
        live_nodes: live_nodes(conn, now)?,
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

pub(super) fn live_nodes(conn: &Connection, now: Timestamp) -> Result<u64> {
    conn.value(
        "SELECT count(*) FROM _postrider_nodes WHERE state = 'live' AND lease_until > ?1",
        [micros_of(now)],
    )
}

fn endpoint_statuses(conn: &Connection, now: Timestamp) -> Result<Vec<EndpointStatus>> {
    let mut processing: std::collections::HashMap<i64, u64> = conn
        .rows(
            "SELECT endpoint_id, count(*) FROM _postrider_queue INDEXED BY _postrider_queue_claimed
             WHERE place = 2 GROUP BY endpoint_id",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?
        .into_iter()
        .collect();
    let counts: std::collections::HashMap<i64, (u64, u64)> = conn
        .rows("SELECT endpoint_id, queued, dead FROM _postrider_counts", [], |row| {
            Ok((row.get(0)?, (row.get(1)?, row.get(2)?)))
        })?
        .into_iter()
        .collect();
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
                oldest_pending: if pending == 0 { None } else { waits_longest(conn, endpoint.id, now)? },
                health: results::health(conn, endpoint.id)?,
            })
        })
        .collect()
}

/// The earliest due time of a pending message, also behind an ordering key; None when it is in the future.
fn waits_longest(conn: &Connection, endpoint: EndpointId, now: Timestamp) -> Result<Option<Timestamp>> {
    let behind = conn
        .find(
            "SELECT due_at FROM _postrider_queue INDEXED BY _postrider_queue_behind
             WHERE place = 1 AND endpoint_id = ?1 ORDER BY due_at LIMIT 1",
            [endpoint.0],
            |row| Ok(ShownRow(row).time(0)),
        )?
        .flatten();
    let earliest = claim::earliest_due(conn, endpoint)?.into_iter().chain(behind).min();
    Ok(earliest.filter(|due| *due <= now))
}
