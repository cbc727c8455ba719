//! Publish: through the store, or inside the caller's own transaction. SQL decides which endpoints get what.

use async_trait::async_trait;
use postgres_types::{ToSql, Type};
use tokio_postgres::GenericClient;

use super::errors::store_error;
use super::event_types::check_name;
use super::row::big_count;
use super::send::Columns;
use super::{PostgresStore, SharedState, event_types, subscriptions};
use crate::event::{EventType, NewEvent, NewEventType, NewSubscription, Subscribed, Subscription, within};
use crate::message::NewMessage;
use crate::store::{PubSub, Result};

#[async_trait]
impl PubSub for PostgresStore {
    async fn create_event_type(&self, new: NewEventType) -> Result<EventType> {
        event_types::create(&self.shared, new).await
    }

    async fn drop_event_type(&self, name: &str) -> Result<()> {
        event_types::drop(&self.shared, name).await
    }

    async fn event_type(&self, name: &str) -> Result<EventType> {
        event_types::by_name(&self.shared, name).await
    }

    async fn event_types(&self, after: Option<&str>, limit: usize) -> Result<Vec<EventType>> {
        event_types::list(&self.shared, after, limit).await
    }

    async fn subscribe(&self, new: NewSubscription) -> Result<Subscribed> {
        subscriptions::create(&self.shared, new).await
    }

    async fn unsubscribe(&self, id: i64) -> Result<()> {
        self.shared.pool.call("SELECT postrider.unsubscribe($1)", &[&id]).await
    }

    async fn subscription(&self, id: i64) -> Result<Subscription> {
        subscriptions::by_id(&self.shared, id).await
    }

    async fn subscriptions(&self, after: Option<i64>, limit: usize) -> Result<Vec<Subscription>> {
        subscriptions::list(&self.shared, after, limit).await
    }

    async fn set_subscription_enabled(&self, id: i64, enabled: bool) -> Result<()> {
        let sql = match enabled {
            true => "SELECT postrider.enable_subscription($1)",
            false => "SELECT postrider.disable_subscription($1)",
        };
        self.shared.pool.call(sql, &[&id]).await
    }

    async fn publish(&self, event: NewEvent) -> Result<u64> {
        let lender = self.shared.lender(has_key(&event));
        self.shared.refusals.noted(lender.with(async |client| publish_in(&**client, &event).await).await)
    }

    async fn publish_batch(&self, events: Vec<NewEvent>) -> Result<u64> {
        let lender = self.shared.lender(events.iter().any(has_key));
        self.shared
            .refusals
            .noted(lender.with(async |client| publish_batch_in(&**client, &events).await).await)
    }

    async fn publish_skipped(&self) -> Result<u64> {
        skipped(&self.shared).await
    }
}

fn has_key(event: &NewEvent) -> bool {
    event.ordering_key.is_some() || event.idempotency_key.is_some()
}

pub(super) const PUBLISH: &str =
    "SELECT postrider._program_publish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

/// Publishes within the caller's own transaction: the messages commit, or roll back, with the caller's data. Returns how many
/// messages that made.
pub async fn publish_in<C: GenericClient>(transaction: &C, event: &NewEvent) -> Result<u64> {
    publish(transaction, &EventBatch::of_one(event)?).await
}

/// Several, all or nothing, within the caller's own transaction.
pub async fn publish_batch_in<C: GenericClient>(transaction: &C, events: &[NewEvent]) -> Result<u64> {
    publish(transaction, &EventBatch::of(events)?).await
}

async fn publish<C: GenericClient>(transaction: &C, publication: &EventBatch) -> Result<u64> {
    let columns = publication.columns()?;
    let made = transaction.query_typed_one(PUBLISH, &columns.typed()).await.map_err(store_error)?;
    Ok(u64::try_from(made.get::<_, i32>(0)).unwrap_or_default())
}

pub(super) async fn skipped(shared: &SharedState) -> Result<u64> {
    let counted = "SELECT coalesce(sum(value), 0)::bigint FROM postrider.metrics()
                   WHERE name = 'postrider_publish_skipped_total'";
    Ok(big_count(&shared.prompt.query_one(counted, &[]).await?, 0))
}

/// Checked events, as messages without a destination.
pub(super) struct EventBatch {
    single: bool,
    messages: Vec<NewMessage>,
}

impl EventBatch {
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

    pub(super) fn columns(&self) -> Result<EventColumns<'_>> {
        Ok(EventColumns { single: &self.single, columns: Columns::of(&self.messages)? })
    }
}

/// The arguments of `postrider._program_publish`.
pub(super) struct EventColumns<'a> {
    single: &'a bool,
    columns: Columns<'a>,
}

impl EventColumns<'_> {
    pub(super) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        let [_, payloads, _, rest @ ..] = self.columns.typed();
        [(self.single as &(dyn ToSql + Sync), Type::BOOL), payloads].into_iter().chain(rest).collect()
    }
}
