//! Events and subscriptions: a part of `Operate`.

use async_trait::async_trait;

use super::Result;
use crate::event::{EventType, NewEvent, NewEventType, NewSubscription, Subscribed, Subscription};

#[async_trait]
pub trait PubSub: Send + Sync + 'static {
    async fn create_event_type(&self, new: NewEventType) -> Result<EventType>;
    /// Its subscriptions stay: a pattern may fit other types, and the type may come back.
    async fn drop_event_type(&self, name: &str) -> Result<()>;
    async fn event_type(&self, name: &str) -> Result<EventType>;
    /// By name, after `after`.
    async fn event_types(&self, after: Option<&str>, limit: usize) -> Result<Vec<EventType>>;

    /// The same again finds the subscription that exists, and leaves it as it is: a disabled one stays disabled.
    async fn subscribe(&self, new: NewSubscription) -> Result<Subscribed>;
    async fn unsubscribe(&self, id: i64) -> Result<()>;
    async fn subscription(&self, id: i64) -> Result<Subscription>;
    /// By id, after `after`.
    async fn subscriptions(&self, after: Option<i64>, limit: usize) -> Result<Vec<Subscription>>;
    async fn set_subscription_enabled(&self, id: i64, enabled: bool) -> Result<()>;

    /// Sends one event to every matching subscription; how many messages that made. None is no error.
    async fn publish(&self, event: NewEvent) -> Result<u64>;
    /// Several, all or nothing.
    async fn publish_batch(&self, events: Vec<NewEvent>) -> Result<u64>;
    /// How many messages were not made since the store exists, because an operator had disabled their endpoint.
    async fn publish_skipped(&self) -> Result<u64>;
}
