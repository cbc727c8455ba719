//! Publish: through the store, or inside the caller's own transaction. Who gets what is decided in SQL.

use postgres_types::{ToSql, Type};
use tokio_postgres::GenericClient;

use super::Shared;
use super::errors::store_error;
use super::event_types::check_name;
use super::row::big_count;
use super::send::Columns;
use crate::event::{NewEvent, within};
use crate::message::NewMessage;
use crate::store::Result;

pub(super) const PUBLISH: &str =
    "SELECT postrider._program_publish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

/// Publishes within the caller's own transaction: the messages commit, or roll back, with the caller's data. How many
/// there are.
pub async fn publish_in<C: GenericClient>(transaction: &C, event: &NewEvent) -> Result<u64> {
    publish(transaction, &Publication::of_one(event)?).await
}

/// Several, all or nothing, within the caller's own transaction.
pub async fn publish_batch_in<C: GenericClient>(transaction: &C, events: &[NewEvent]) -> Result<u64> {
    publish(transaction, &Publication::of(events)?).await
}

async fn publish<C: GenericClient>(transaction: &C, publication: &Publication) -> Result<u64> {
    let columns = publication.columns()?;
    let made = transaction.query_typed_one(PUBLISH, &columns.typed()).await.map_err(store_error)?;
    Ok(u64::try_from(made.get::<_, i32>(0)).unwrap_or_default())
}

pub(super) async fn skipped(shared: &Shared) -> Result<u64> {
    let counted = "SELECT coalesce(sum(value), 0)::bigint FROM postrider.metrics()
                   WHERE name = 'postrider_publish_skipped_total'";
    Ok(big_count(&shared.pool.query_one(counted, &[]).await?, 0))
}

/// Events that are JSON, as messages without a destination.
pub(super) struct Publication {
    single: bool,
    messages: Vec<NewMessage>,
}

impl Publication {
    pub(super) fn of_one(event: &NewEvent) -> Result<Self> {
        Self::check(true, std::slice::from_ref(event))
    }

    pub(super) fn of(events: &[NewEvent]) -> Result<Self> {
        Self::check(false, events)
    }

    fn check(single: bool, events: &[NewEvent]) -> Result<Self> {
        for (at, event) in events.iter().enumerate() {
            event.read(&within(single, at))?;
            check_name(&event.event_type)?;
        }
        Ok(Self { single, messages: events.iter().map(|event| event.message_to("")).collect() })
    }

    pub(super) fn columns(&self) -> Result<PublicationColumns<'_>> {
        Ok(PublicationColumns { single: &self.single, columns: Columns::of(&self.messages)? })
    }
}

/// The arguments of `postrider._program_publish`.
pub(super) struct PublicationColumns<'a> {
    single: &'a bool,
    columns: Columns<'a>,
}

impl PublicationColumns<'_> {
    pub(super) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let [_, payloads, _, rest @ ..] = self.columns.typed();
        [(self.single as &(dyn ToSql + Sync), Type::BOOL), payloads].into_iter().chain(rest).collect()
    }
}
