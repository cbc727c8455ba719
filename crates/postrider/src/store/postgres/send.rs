//! Send: through the store, or inside the caller's own transaction.

use std::collections::BTreeMap;

use deadpool_postgres::ClientWrapper;
use jiff::Timestamp;
use postgres_types::{Json, ToSql, Type};
use serde_json::{Map, Value};
use tokio_postgres::{GenericClient, Row};
use uuid::Uuid;

use super::SharedState;
use super::errors::store_error;
use crate::clock::truncated;
use crate::error::{Invalid, StoreError};
use crate::message::{JSON, MessageId, NewMessage, Sent};
use crate::send::check_payload;
use crate::store::Result;

pub(super) const SEND: &str =
    "SELECT id, duplicate FROM postrider._program_send($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
/// Commits without waiting for the disk: `synchronous_commit` is set for this transaction alone.
const SEND_FAST: &str = "SELECT s.id, s.duplicate FROM set_config('synchronous_commit', 'off', true) AS fast,
    postrider._program_send($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS s";
pub(super) const SEND_BATCH: &str = "SELECT id, duplicate
  FROM postrider._program_send_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const TYPES: [Type; 12] = [
    Type::TEXT,
    Type::BYTEA,
    Type::TEXT,
    Type::INT2,
    Type::TIMESTAMPTZ,
    Type::TEXT,
    Type::UUID,
    Type::TIMESTAMPTZ,
    Type::TEXT,
    Type::JSONB,
    Type::JSONB,
    Type::TEXT,
];

/// How a send commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendCommit {
    /// As `synchronous_commit` says.
    Durable,
    Fast,
}

pub(super) async fn send(shared: &SharedState, commit: SendCommit, message: &NewMessage) -> Result<Sent> {
    let arguments = Arguments::of(message)?;
    let sql = match commit {
        SendCommit::Durable => SEND,
        SendCommit::Fast => SEND_FAST,
    };
    let ask = async |client: &mut ClientWrapper| {
        let statement = client.prepare_typed_cached(sql, &TYPES).await.map_err(store_error)?;
        client.query_one(&statement, &arguments.values()).await.map(|row| sent(&row)).map_err(store_error)
    };
    shared.lender(has_key(message)).with(ask).await
}

/// All or nothing.
pub(super) async fn send_batch(
    shared: &SharedState,
    commit: SendCommit,
    messages: &[NewMessage],
) -> Result<Vec<Sent>> {
    let ask = async |client: &mut ClientWrapper| {
        let transaction = client.transaction().await.map_err(store_error)?;
        if commit == SendCommit::Fast {
            transaction.batch_execute("SET LOCAL synchronous_commit = off").await.map_err(store_error)?;
        }
        let sent = send_batch_in(&*transaction, messages).await?;
        transaction.commit().await.map_err(store_error)?;
        Ok(sent)
    };
    shared.lender(messages.iter().any(has_key)).with(ask).await
}

fn has_key(message: &NewMessage) -> bool {
    message.ordering_key.is_some() || message.idempotency_key.is_some()
}

/// Sends within the caller's own transaction: the message commits, or rolls back, with the caller's data.
/// Nodes notice the commit by themselves. Works behind PgBouncer in transaction mode.
///
/// As after every error in PostgreSQL, the transaction can only be rolled back after one of these; a savepoint
/// before the call keeps it.
pub async fn send_in<C: GenericClient>(transaction: &C, message: &NewMessage) -> Result<Sent> {
    let arguments = Arguments::of(message)?;
    transaction.query_typed_one(SEND, &arguments.typed()).await.map(|row| sent(&row)).map_err(store_error)
}

/// All or nothing, within the caller's own transaction.
pub async fn send_batch_in<C: GenericClient>(transaction: &C, messages: &[NewMessage]) -> Result<Vec<Sent>> {
    let columns = Columns::of_messages(messages)?;
    let rows = transaction.query_typed(SEND_BATCH, &columns.typed()).await.map_err(store_error)?;
    Ok(rows.iter().map(sent).collect())
}

/// Messages as the arguments of `postrider._program_send_batch`: one array per column, none where no message has a value.
pub(super) struct Columns<'a> {
    endpoints: Vec<&'a str>,
    payloads: Vec<&'a [u8]>,
    content_types: Column<&'a str>,
    priorities: Column<i16>,
    scheduled_at: Column<Option<Timestamp>>,
    idempotency_keys: Column<Option<&'a str>>,
    correlation_ids: Column<Option<Uuid>>,
    expires_at: Column<Option<Timestamp>>,
    ordering_keys: Column<Option<&'a str>>,
    headers: Column<Option<Json<&'a BTreeMap<String, String>>>>,
    options: Column<Option<Json<&'a Map<String, Value>>>>,
    event_types: Column<Option<&'a str>>,
}

type Column<T> = Option<Vec<T>>;

impl<'a> Columns<'a> {
    pub(super) fn of_messages(messages: &'a [NewMessage]) -> Result<Self> {
        messages.iter().try_for_each(check_payload)?;
        Self::of(messages)
    }

    /// For payloads that were checked before.
    pub(super) fn of(messages: &'a [NewMessage]) -> Result<Self> {
        messages.iter().try_for_each(check_text)?;
        Ok(Self {
            endpoints: messages.iter().map(|message| &*message.endpoint).collect(),
            payloads: messages.iter().map(|message| &*message.payload).collect(),
            content_types: column(messages, |message| &*message.content_type, |kind| *kind != JSON),
            priorities: column(messages, |message| i16::from(message.priority), |priority| *priority != 0),
            scheduled_at: column(messages, |message| message.scheduled_at.map(truncated), Option::is_some),
            idempotency_keys: column(messages, |message| message.idempotency_key.as_deref(), Option::is_some),
            correlation_ids: column(messages, |message| message.correlation_id, Option::is_some),
            expires_at: column(messages, |message| message.expires_at.map(truncated), Option::is_some),
            ordering_keys: column(messages, |message| message.ordering_key.as_deref(), Option::is_some),
            headers: column(messages, headers, Option::is_some),
            options: column(messages, options, Option::is_some),
            event_types: column(messages, |message| message.event_type.as_deref(), Option::is_some),
        })
    }

    pub(super) fn typed(&self) -> [(&(dyn ToSql + Sync), Type); 12] {
        [
            (&self.endpoints, Type::TEXT_ARRAY),
            (&self.payloads, Type::BYTEA_ARRAY),
            (&self.content_types, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.scheduled_at, Type::TIMESTAMPTZ_ARRAY),
            (&self.idempotency_keys, Type::TEXT_ARRAY),
            (&self.correlation_ids, Type::UUID_ARRAY),
            (&self.expires_at, Type::TIMESTAMPTZ_ARRAY),
            (&self.ordering_keys, Type::TEXT_ARRAY),
            (&self.headers, Type::JSONB_ARRAY),
            (&self.options, Type::JSONB_ARRAY),
            (&self.event_types, Type::TEXT_ARRAY),
        ]
    }
}

fn column<'a, T>(
    messages: &'a [NewMessage],
    value: impl Fn(&'a NewMessage) -> T,
    is_said: impl Fn(&T) -> bool,
) -> Column<T> {
    let values: Vec<T> = messages.iter().map(value).collect();
    values.iter().any(is_said).then_some(values)
}

fn headers(message: &NewMessage) -> Option<Json<&BTreeMap<String, String>>> {
    (!message.headers.is_empty()).then_some(Json(&message.headers))
}

fn options(message: &NewMessage) -> Option<Json<&Map<String, Value>>> {
    (!message.options.is_empty()).then_some(Json(&message.options))
}

fn sent(row: &Row) -> Sent {
    Sent { id: MessageId(row.get(0)), duplicate: row.get(1) }
}

/// A message as the arguments of `postrider._program_send`.
pub(super) struct Arguments<'a> {
    message: &'a NewMessage,
    payload: &'a [u8],
    priority: i16,
    scheduled_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    headers: Option<Json<&'a BTreeMap<String, String>>>,
    options: Option<Json<&'a Map<String, Value>>>,
}

impl<'a> Arguments<'a> {
    pub(super) fn of(message: &'a NewMessage) -> Result<Self> {
        check_payload(message)?;
        check_text(message)?;
        Ok(Self {
            message,
            payload: &message.payload,
            priority: i16::from(message.priority),
            scheduled_at: message.scheduled_at.map(truncated),
            expires_at: message.expires_at.map(truncated),
            headers: headers(message),
            options: options(message),
        })
    }

    fn values(&self) -> [&(dyn ToSql + Sync); 12] {
        let message = self.message;
        [
            &message.endpoint,
            &self.payload,
            &message.content_type,
            &self.priority,
            &self.scheduled_at,
            &message.idempotency_key,
            &message.correlation_id,
            &self.expires_at,
            &message.ordering_key,
            &self.headers,
            &self.options,
            &message.event_type,
        ]
    }

    pub(super) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.values().into_iter().zip(TYPES).collect()
    }
}

/// PostgreSQL has no text with U+0000 in it.
fn check_text(message: &NewMessage) -> Result<()> {
    let zero = |text: &&str| text.contains('\0');
    let keys = [
        ("ordering_key", message.ordering_key.as_deref()),
        ("idempotency_key", message.idempotency_key.as_deref()),
        ("event_type", message.event_type.as_deref()),
    ];
    if let Some((field, _)) = keys.into_iter().find(|(_, key)| key.filter(zero).is_some()) {
        return Err(Invalid::new(field, "must not be empty and has no control characters").into());
    }
    if message.endpoint.contains('\0') {
        return Err(StoreError::unknown_endpoint(&message.endpoint));
    }
    if message.content_type.contains('\0') {
        return Err(Invalid::new("content_type", "must be 1 to 256 printable ASCII characters").into());
    }
    Ok(())
}
