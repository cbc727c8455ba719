//! Send inside the caller's own sqlx transaction: the same statements, values and errors as through the store's own
//! driver, in sqlx's words.

use ::sqlx::encode::{Encode, IsNull};
use ::sqlx::error::BoxDynError;
use ::sqlx::postgres::types::Oid;
use ::sqlx::postgres::{PgArgumentBuffer, PgArguments, PgConnection, PgDatabaseError, PgRow, PgTypeInfo};
use ::sqlx::{Arguments as _, Postgres, Row};
use bytes::BytesMut;
use postgres_types::{ToSql, Type};

use super::errors::ServerError;
use super::publish::{EventBatch, PUBLISH};
use super::send::{Arguments, Columns, SEND, SEND_BATCH};
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::message::{MessageId, NewMessage, Sent};
use crate::store::Result;

/// Sends within the caller's own transaction, as [`send_in`](super::send_in) does.
pub async fn send_in(transaction: &mut PgConnection, message: &NewMessage) -> Result<Sent> {
    let rows = ask(transaction, SEND, &Arguments::of(message)?.typed()).await?;
    rows.first().map(sent).unwrap_or_else(|| Err(StoreError::Unavailable("no answer".to_owned())))
}

/// All or nothing, within the caller's own transaction.
pub async fn send_batch_in(transaction: &mut PgConnection, messages: &[NewMessage]) -> Result<Vec<Sent>> {
    let rows = ask(transaction, SEND_BATCH, &Columns::of_messages(messages)?.typed()).await?;
    rows.iter().map(sent).collect()
}

/// Publishes within the caller's own transaction, as [`publish_in`](super::publish_in) does.
pub async fn publish_in(transaction: &mut PgConnection, event: &NewEvent) -> Result<u64> {
    publish(transaction, &EventBatch::of_one(event)?).await
}

/// Several, all or nothing, within the caller's own transaction.
pub async fn publish_batch_in(transaction: &mut PgConnection, events: &[NewEvent]) -> Result<u64> {
    publish(transaction, &EventBatch::of(events)?).await
}

async fn publish(transaction: &mut PgConnection, publication: &EventBatch) -> Result<u64> {
    let rows = ask(transaction, PUBLISH, &publication.columns()?.typed()).await?;
    let made: i32 = rows.first().map_or(Ok(0), |row| row.try_get(0)).map_err(store_error)?;
    Ok(u64::try_from(made).unwrap_or_default())
}

/// Unnamed statements only: behind PgBouncer the next transaction may be on another connection.
async fn ask(
    transaction: &mut PgConnection,
    statement: &'static str,
    values: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<PgRow>> {
    let mut arguments = PgArguments::default();
    for (value, kind) in values {
        arguments
            .add(SqlxValue(*value, kind))
            .map_err(|error| StoreError::Unavailable(format!("a value cannot be sent: {error}")))?;
    }
    let query = ::sqlx::query_with(statement, arguments).persistent(false);
    query.fetch_all(transaction).await.map_err(store_error)
}

fn sent(row: &PgRow) -> Result<Sent> {
    let id = MessageId(row.try_get(0).map_err(store_error)?);
    Ok(Sent { id, duplicate: row.try_get(1).map_err(store_error)? })
}

fn store_error(error: ::sqlx::Error) -> StoreError {
    let said = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    match said {
        Some(said) => ServerError {
            code: said.code(),
            message: said.message(),
            detail: said.detail(),
            column: said.column(),
            constraint: said.constraint(),
        }
        .refusal(),
        None => StoreError::Unavailable(error.to_string()),
    }
}

/// A value of the other driver; both write the server's binary format.
struct SqlxValue<'a>(&'a (dyn ToSql + Sync), &'a Type);

impl Encode<'_, Postgres> for SqlxValue<'_> {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> std::result::Result<IsNull, BoxDynError> {
        let mut written = BytesMut::new();
        match self.0.to_sql_checked(self.1, &mut written)? {
            postgres_types::IsNull::Yes => Ok(IsNull::Yes),
            postgres_types::IsNull::No => {
                buffer.extend_from_slice(&written);
                Ok(IsNull::No)
            }
        }
    }

    fn produces(&self) -> Option<PgTypeInfo> {
        Some(PgTypeInfo::with_oid(Oid(self.1.oid())))
    }
}

/// `produces` tells the real type.
impl ::sqlx::Type<Postgres> for SqlxValue<'_> {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(Type::UNKNOWN.oid()))
    }
}
