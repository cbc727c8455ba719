//! Event types and subscriptions as JSON.

use jiff::Timestamp;
use postrider::{EventType, Json, Subscription};
use serde::Serialize;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
#[schema(as = EventType)]
pub(crate) struct EventTypeView {
    name: String,
    #[schema(required)]
    description: Option<String>,
    #[schema(required, value_type = Option<Map<String, Value>>)]
    schema: Option<Json>,
    created_at: Timestamp,
}

impl From<EventType> for EventTypeView {
    fn from(event_type: EventType) -> Self {
        let EventType { name, description, schema, created_at } = event_type;
        Self { name, description, schema, created_at }
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = Subscription)]
pub(crate) struct SubscriptionView {
    id: i64,
    pattern: String,
    endpoint: String,
    #[schema(required, value_type = Option<Value>)]
    filter: Option<Json>,
    #[schema(required, value_type = Option<Value>)]
    template: Option<Json>,
    enabled: bool,
    created_at: Timestamp,
}

impl From<Subscription> for SubscriptionView {
    fn from(subscription: Subscription) -> Self {
        let Subscription { id, pattern, endpoint, filter, template, enabled, created_at } = subscription;
        Self { id, pattern, endpoint, filter, template, enabled, created_at }
    }
}
