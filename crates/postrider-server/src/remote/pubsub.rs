//! Events and who wants them, asked of a node.

use async_trait::async_trait;
use http::StatusCode;
use postrider::store::{Figures, Result};
use postrider::{
    EventType, Invalid, Json, NewEvent, NewEventType, NewSubscription, PubSub, StoreError, Subscribed,
    Subscription,
};

use super::Remote;
use super::asking::{NodeRequest, segment};
use crate::cursor;

#[async_trait]
impl PubSub for Remote {
    async fn create_event_type(&self, new: NewEventType) -> Result<EventType> {
        check_given("schema", new.schema.as_ref())?;
        self.answer(NodeRequest::post("/v1/event-types").json(&new)).await
    }

    async fn drop_event_type(&self, name: &str) -> Result<()> {
        self.done(NodeRequest::delete(type_path(name)?)).await
    }

    async fn event_type(&self, name: &str) -> Result<EventType> {
        self.answer(NodeRequest::get(type_path(name)?)).await
    }

    async fn event_types(&self, after: Option<&str>, limit: usize) -> Result<Vec<EventType>> {
        self.list(|| NodeRequest::get("/v1/event-types"), after.map(cursor::written), limit).await
    }

    async fn subscribe(&self, new: NewSubscription) -> Result<Subscribed> {
        check_given("filter", new.filter.as_ref())?;
        check_given("template", new.template.as_ref())?;
        let asked = NodeRequest::post("/v1/subscriptions").json(&new).repeatable(true);
        let (subscription, status) = self.answer_and_status(asked).await?;
        Ok(Subscribed { subscription, existed: status == StatusCode::OK })
    }

    async fn unsubscribe(&self, id: i64) -> Result<()> {
        self.done(NodeRequest::delete(format!("/v1/subscriptions/{id}"))).await
    }

    async fn subscription(&self, id: i64) -> Result<Subscription> {
        self.answer(NodeRequest::get(format!("/v1/subscriptions/{id}"))).await
    }

    async fn subscriptions(&self, after: Option<i64>, limit: usize) -> Result<Vec<Subscription>> {
        self.list(|| NodeRequest::get("/v1/subscriptions"), after.map(cursor::written), limit).await
    }

    async fn set_subscription_enabled(&self, id: i64, enabled: bool) -> Result<()> {
        let to = if enabled { "enable" } else { "disable" };
        self.answer::<Subscription>(NodeRequest::post(format!("/v1/subscriptions/{id}/{to}"))).await.map(drop)
    }

    async fn publish(&self, event: NewEvent) -> Result<u64> {
        self.publish_one(event).await
    }

    /// The API publishes one at a time, which would not be all or nothing.
    async fn publish_batch(&self, events: Vec<NewEvent>) -> Result<u64> {
        match <[NewEvent; 1]>::try_from(events) {
            Ok([event]) => self.publish_one(event).await,
            Err(events) if events.is_empty() => Ok(0),
            Err(_) => Err(StoreError::Conflict(
                "a node publishes one event at a time; several at once go into the store itself".to_owned(),
            )),
        }
    }

    async fn publish_skipped(&self) -> Result<u64> {
        let figures = self.figures().await?;
        let skipped = figures.iter().filter(|figure| figure.name == "postrider_publish_skipped_total");
        Ok(skipped.map(|figure| figure.value as u64).sum())
    }
}

fn type_path(name: &str) -> Result<String> {
    Ok(format!("/v1/event-types/{}", segment("event type", name)?))
}

/// For the API null is as good as nothing, so it cannot be meant.
fn check_given(field: &str, json: Option<&Json>) -> Result<()> {
    match json {
        Some(Json::Null) => Err(Invalid::new(field, "cannot be null when a node is asked").into()),
        _ => Ok(()),
    }
}
