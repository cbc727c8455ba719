//! Imports a whole store from a stream, in one transaction.

use std::io::Read;

use postgres_types::{Json, ToSql};
use tokio_postgres::{Client, Transaction};

use super::copy::{self, Copy};
use super::errors::store_error;
use super::migrate;
use crate::store::Result;
use crate::store::moving::{Feed, MoveError, Moved, Next, StreamHeader};

pub(super) async fn import(
    client: &mut Client,
    from: impl Read + Send + 'static,
) -> Result<Moved, MoveError> {
    migrate::check_current(client).await?;
    let (mut feed, header) = Feed::begin(from).await?;
    let transaction = client.transaction().await.map_err(store_error)?;
    begin(&transaction, &header).await?;
    let moved = match copy_all(&transaction, &mut feed).await {
        Ok(moved) => moved,
        // A refused value may be the symptom of a damaged stream.
        Err(error) => return Err(feed.damage().await.unwrap_or(error)),
    };
    end(&transaction, &header, &moved).await?;
    transaction.commit().await.map_err(store_error)?;
    Ok(moved)
}

async fn begin(transaction: &Transaction<'_>, header: &StreamHeader) -> Result<()> {
    let begin = "SELECT postrider._begin_import($1, $2)";
    let months: [&(dyn ToSql + Sync); 2] = [&header.archive_months, &header.attempt_months];
    transaction.execute(begin, &months).await.map(drop).map_err(store_error)
}

async fn copy_all(transaction: &Transaction<'_>, feed: &mut Feed) -> Result<Moved, MoveError> {
    let mut copy: Option<Copy> = None;
    loop {
        match feed.next().await? {
            Next::Rows(batch) => {
                let mut open = match copy.take() {
                    Some(open) if open.is_of(batch.section) => open,
                    earlier => {
                        finish(earlier).await?;
                        Copy::begin(transaction, batch.section).await?
                    }
                };
                open.write(batch.rows).await?;
                copy = Some(open);
            }
            Next::End(moved) => return finish(copy).await.map(|()| moved),
        }
    }
}

async fn finish(copy: Option<Copy>) -> Result<(), MoveError> {
    match copy {
        Some(copy) => Ok(copy.finish().await?),
        None => Ok(()),
    }
}

async fn end(transaction: &Transaction<'_>, header: &StreamHeader, moved: &Moved) -> Result<()> {
    let end = "SELECT postrider._end_import($1, $2, $3, $4)";
    let paused = header.paused.as_deref().map(copy::readable);
    let (last_ids, rows) = (Json(header.last_ids), Json(moved.rows));
    transaction.execute(end, &[&header.store, &paused, &last_ids, &rows]).await.map_err(store_error)?;
    // Nodes start right after this, and the planner needs statistics.
    let analyze = "ANALYZE postrider.queue, postrider.dlq, postrider.archive, postrider.attempts";
    transaction.batch_execute(analyze).await.map_err(store_error)
}
