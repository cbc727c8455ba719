//! Send: through the store, or inside the caller's own transaction.

use futures_util::future::join_all;
use jiff::Timestamp;
use postgres_types::{Json, ToSql, Type};
use tokio_postgres::{GenericClient, Row};

use super::Shared;
use super::errors::store_error;
use crate::clock::truncated;
use crate::error::{Invalid, StoreError};
use crate::message::{MessageId, NewMessage, Sent};
use crate::store::Result;

const SEND: &str =
    "SELECT id, duplicate FROM postrider._send($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
/// Commits without waiting for the disk: `synchronous_commit` is set for this transaction alone.
const SEND_FAST: &str = "SELECT s.id, s.duplicate FROM set_config('synchronous_commit', 'off', true) AS fast,
    postrider._send($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS s";
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
pub(super) enum Commit {
    /// As the server says.
    Durable,
    Fast,
}

pub(super) async fn send(shared: &Shared, commit: Commit, message: &NewMessage) -> Result<Sent> {
    let arguments = Arguments::of(message)?;
    let sql = match commit {
        Commit::Durable => SEND,
        Commit::Fast => SEND_FAST,
    };
    let client = shared.client().await?;
    let statement = client.prepare_typed_cached(sql, &TYPES).await.map_err(store_error)?;
    client.query_one(&statement, &arguments.values()).await.map(|row| sent(&row)).map_err(store_error)
}

/// All or nothing.
pub(super) async fn send_batch(
    shared: &Shared,
    commit: Commit,
    messages: &[NewMessage],
) -> Result<Vec<Sent>> {
    let mut client = shared.client().await?;
    let transaction = client.transaction().await.map_err(store_error)?;
    if commit == Commit::Fast {
        transaction.batch_execute("SET LOCAL synchronous_commit = off").await.map_err(store_error)?;
    }
    let sent = send_batch_in(&*transaction, messages).await?;
    transaction.commit().await.map_err(store_error)?;
    Ok(sent)
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
    let arguments = messages.iter().map(Arguments::of).collect::<Result<Vec<_>>>()?;
    check_count(transaction, messages.len()).await?;
    lock_keys(transaction, messages).await?;
    // All on their way before the first answer is waited for.
    let asked =
        arguments.iter().map(async |message| transaction.query_typed_one(SEND, &message.typed()).await);
    let mut all = Vec::with_capacity(messages.len());
    for answer in join_all(asked).await {
        let row = answer.map_err(|error| without_its_own(store_error(error), messages, &all))?;
        all.push(sent(&row));
    }
    Ok(all)
}

async fn check_count(client: &impl GenericClient, count: usize) -> Result<()> {
    let limit = "SELECT max_batch_messages FROM postrider._limits";
    let limit = client.query_typed_one(limit, &[]).await.map_err(store_error)?.get::<_, i64>(0) as u64;
    if count as u64 > limit {
        let (field, setting) = ("messages", "max_batch_messages");
        return Err(StoreError::TooLarge { field, bytes: count as u64, limit, setting });
    }
    Ok(())
}

/// In one order for everybody: two batches with the same keys wait for each other, never in a circle.
async fn lock_keys(client: &impl GenericClient, messages: &[NewMessage]) -> Result<()> {
    let keyed =
        messages.iter().filter_map(|message| Some((&*message.endpoint, message.ordering_key.as_deref()?)));
    let (endpoints, keys): (Vec<&str>, Vec<&str>) = keyed.unzip();
    if keys.is_empty() {
        return Ok(());
    }
    let lock = "SELECT postrider._lock_keys(scope, keys)
        FROM (SELECT CASE WHEN e.options->>'key_scope' = 'global' THEN 0 ELSE e.id END AS scope,
                     array_agg(k.key) AS keys
              FROM unnest($1, $2) AS k (endpoint, key)
              JOIN postrider.endpoints e ON e.name = k.endpoint AND e.dropped_at IS NULL
              GROUP BY 1 ORDER BY 1) AS scopes";
    let parameters: [(&(dyn ToSql + Sync), Type); 2] =
        [(&endpoints, Type::TEXT_ARRAY), (&keys, Type::TEXT_ARRAY)];
    client.query_typed(lock, &parameters).await.map(drop).map_err(store_error)
}

/// What of the batch was queued before it was refused will not stay, so a full queue does not count it.
fn without_its_own(error: StoreError, messages: &[NewMessage], sent: &[Sent]) -> StoreError {
    let StoreError::QueueFull { queued, limit, endpoint } = error else { return error };
    let counted = |message: &NewMessage| endpoint.as_ref().is_none_or(|name| *name == message.endpoint);
    let own = messages.iter().zip(sent).filter(|(message, sent)| !sent.duplicate && counted(message)).count();
    StoreError::QueueFull { queued: queued.saturating_sub(own as u64), limit, endpoint }
}

fn sent(row: &Row) -> Sent {
    Sent { id: MessageId(row.get(0)), duplicate: row.get(1) }
}

/// A message as the arguments of `postrider._send`.
struct Arguments<'a> {
    message: &'a NewMessage,
    payload: &'a [u8],
    priority: i16,
    scheduled_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
    headers: Option<Json<&'a std::collections::BTreeMap<String, String>>>,
    options: Option<Json<&'a serde_json::Map<String, serde_json::Value>>>,
}

impl<'a> Arguments<'a> {
    fn of(message: &'a NewMessage) -> Result<Self> {
        check_text(message)?;
        Ok(Self {
            message,
            payload: &message.payload,
            priority: i16::from(message.priority),
            scheduled_at: message.scheduled_at.map(truncated),
            expires_at: message.expires_at.map(truncated),
            headers: (!message.headers.is_empty()).then_some(Json(&message.headers)),
            options: (!message.options.is_empty()).then_some(Json(&message.options)),
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

    fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
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
