//! For people: a message's story, the event log, and the state of the store.

use tokio_postgres::Row;

use super::row::{
    Span, big_count, count, headers, named, object, optional_named, optional_text, optional_time, payload,
    text, time,
};
use super::{SharedState, results};
use crate::message::{MessageId, NodeId};
use crate::store::{
    AttemptRecord, EndpointStatus, EventRecord, ListedMessage, REPLAYED_AS_MAX, Result, StoreStatus, Story,
};

pub(super) async fn story(shared: &SharedState, id: MessageId) -> Result<Story> {
    let story = "SELECT id, endpoint, state, priority, payload, content_type, headers, options, idempotency_key,
                   correlation_id, ordering_key, event_type, created_at, scheduled_at, expires_at, finished_at, due_at,
                   attempt_count, last_error, reason, dlq_id,
                   (SELECT original_id FROM postrider._replayed r WHERE r.id = $1), postrider._replayed_as($1, $2),
                   (SELECT postrider._held_back(q, e) IS NULL FROM postrider.queue q
                    JOIN postrider._endpoints e ON e.id = q.endpoint_id WHERE q.id = $1 AND s.state = 'pending')
                 FROM postrider._story($1) s";
    let mut story = told(&shared.prompt.query_one(story, &[&id.0, &(REPLAYED_AS_MAX as i32)]).await?)?;
    let attempts =
        "SELECT number, node_id, started_at, duration, outcome, class, error, response_status, response_body
                    FROM postrider._attempts_of($1)";
    let attempts = shared.prompt.query(attempts, &[&id.0]).await?;
    story.attempts = attempts.iter().map(attempt).collect::<Result<_>>()?;
    Ok(story)
}

fn told(row: &Row) -> Result<Story> {
    Ok(Story {
        listed: ListedMessage {
            id: MessageId(row.get(0)),
            endpoint: row.get(1),
            state: named(row, 2)?,
            priority: row.get::<_, i16>(3) as u8,
            content_type: text(row, 5),
            idempotency_key: optional_text(row, 8),
            correlation_id: row.get(9),
            ordering_key: optional_text(row, 10),
            event_type: optional_text(row, 11),
            created_at: time(row, 12),
            scheduled_at: optional_time(row, 13),
            expires_at: optional_time(row, 14),
            finished_at: optional_time(row, 15),
            due_at: optional_time(row, 16),
            attempt_count: count(row, 17),
            last_error: optional_text(row, 18),
            dlq_id: row.get(20),
        },
        reason: optional_text(row, 19),
        waits_for_receiver: row.get::<_, Option<bool>>(23).unwrap_or(false),
        attempts: Vec::new(),
        payload: payload(row, 4),
        headers: headers(row, 6),
        options: object(row, 7),
        replay_of: row.get::<_, Option<i64>>(21).map(MessageId),
        replayed_as: row.get::<_, Vec<i64>>(22).into_iter().map(MessageId).collect(),
    })
}

fn attempt(row: &Row) -> Result<AttemptRecord> {
    Ok(AttemptRecord {
        number: count(row, 0),
        node: NodeId(row.get(1)),
        started_at: time(row, 2),
        duration: row.get::<_, Span>(3).0,
        outcome: named(row, 4)?,
        class: optional_named(row, 5)?,
        error: optional_text(row, 6),
        response_status: row.get::<_, Option<i32>>(7).and_then(|status| u16::try_from(status).ok()),
        response_body: payload(row, 8),
    })
}

pub(super) async fn status(shared: &SharedState) -> Result<StoreStatus> {
    let status = "SELECT s.name, s.schema_version, s.paused_because, t.pending, t.processing, t.dead,
                         postrider._live_nodes()
                  FROM postrider._store s, postrider._totals() t";
    let row = shared.prompt.query_one(status, &[]).await?;
    let endpoints = endpoint_statuses(shared).await?;
    Ok(StoreStatus {
        store: row.get(0),
        schema_version: i64::from(row.get::<_, i32>(1)),
        paused: row.get(2),
        live_nodes: big_count(&row, 6),
        pending: big_count(&row, 3),
        processing: big_count(&row, 4),
        dead: big_count(&row, 5),
        oldest_pending: endpoints.iter().filter_map(|endpoint| endpoint.oldest_pending).min(),
        stored_events: 0,
        oldest_stored_event: None,
        endpoints,
        limits: None,
    })
}

async fn endpoint_statuses(shared: &SharedState) -> Result<Vec<EndpointStatus>> {
    let statuses =
        "SELECT name, protocol, enabled, paused, circuit, pending, processing, dead, oldest_pending, delivered, failed,
                      consecutive_failures, last_success_at, last_failure_at, last_error
                    FROM postrider._endpoint_statuses()";
    let rows = shared.prompt.query(statuses, &[]).await?;
    let status = |row: &Row| {
        Ok(EndpointStatus {
            name: row.get(0),
            protocol: row.get(1),
            enabled: row.get(2),
            paused: row.get(3),
            circuit: named(row, 4)?,
            pending: big_count(row, 5),
            processing: big_count(row, 6),
            dead: big_count(row, 7),
            oldest_pending: optional_time(row, 8),
            health: results::told(row, 9),
        })
    };
    rows.iter().map(status).collect()
}

pub(super) async fn events(
    shared: &SharedState,
    before: Option<i64>,
    limit: usize,
) -> Result<Vec<EventRecord>> {
    let list = "SELECT id, at, kind, subject, detail FROM postrider.event_log
                WHERE id < $1 ORDER BY id DESC LIMIT $2";
    let rows = shared.prompt.query(list, &[&before.unwrap_or(i64::MAX), &(limit as i64)]).await?;
    let event = |row: &Row| EventRecord {
        id: row.get(0),
        at: row.get(1),
        kind: row.get(2),
        subject: row.get(3),
        detail: row.get(4),
    };
    Ok(rows.iter().map(event).collect())
}
