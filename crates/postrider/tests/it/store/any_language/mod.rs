//! Sending and looking by SQL alone, over connections that know nothing of this library.

mod migrating;
mod parity;
mod publishing;
mod sending;
mod views;
mod waiting_events;

use std::sync::Arc;

use postrider::rusqlite::{self, Connection, params};
use postrider::store::{ClaimRequest, NoDirectClaims, Settlement};
use postrider::verdict::Verdict;
use postrider::{NewMessage, Operate, Sent, Store};
use serde_json::{Value, json};

use super::shop::Shop;
use super::world::{Ticket, due, join};

impl Shop {
    async fn configure(&self, name: &str, value: &str) {
        self.store.configure(vec![(name.into(), value.into())]).await.unwrap();
    }

    /// What is due at the endpoint, if anything is, ends like this.
    async fn finish_one(&self, endpoint: &str, verdict: Verdict) {
        let (node, _arrivals) = join(&self.store, Arc::new(NoDirectClaims)).await;
        let endpoint = self.store.endpoint(endpoint).await.unwrap().id;
        let request = ClaimRequest { node, batch: 1, wants: vec![due(endpoint, 1)], alone: false };
        if let Some(claim) = self.store.claim(request).await.unwrap().claims.first() {
            let ticket = Ticket::of(claim);
            let end = ticket.attempted(self.store.now(), verdict);
            let Ticket { id, endpoint, fence, .. } = ticket;
            let settlement = Settlement { id, endpoint, fence, end, hold_endpoint_until: None };
            self.store.settle(vec![settlement]).await.unwrap();
        }
    }

    fn send(&self, message: &NewMessage) -> Result<Sent, String> {
        send(&self.app, "INSERT", message)
    }

    fn number(&self, sql: &str) -> i64 {
        self.app.query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

/// The message as SQL sends it, and what the statement says if it is refused.
pub(super) fn send(conn: &Connection, insert: &str, message: &NewMessage) -> Result<Sent, String> {
    let NewMessage { endpoint, payload, content_type, headers, options, priority, .. } = message;
    let object = |value: Value| (value != json!({})).then(|| value.to_string());
    conn.execute(
        &format!(
            "{insert} INTO postrider_send (endpoint, payload, content_type, headers, options, priority, scheduled_at,
               expires_at, idempotency_key, correlation_id, ordering_key, event_type)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
        ),
        params![
            endpoint,
            &payload[..],
            content_type,
            object(json!(headers)),
            object(json!(options)),
            priority,
            message.scheduled_at.map(|at| at.to_string()),
            message.expires_at.map(|at| at.to_string()),
            message.idempotency_key,
            message.correlation_id.map(|id| id.to_string()),
            message.ordering_key,
            message.event_type,
        ],
    )
    .and_then(|_| last_send(conn))
    .map_err(|error| said(&error))
}

fn last_send(conn: &Connection) -> rusqlite::Result<Sent> {
    conn.query_row("SELECT id, duplicate FROM postrider_last_send", [], |row| {
        Ok(Sent { id: postrider::MessageId(row.get(0)?), duplicate: row.get(1)? })
    })
}

pub(super) fn said(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => panic!("{other:?}"),
    }
}

fn refusal(conn: &Connection, sql: &str) -> String {
    said(&conn.execute(sql, []).expect_err(sql))
}
