//! A message and a dead letter as JSON: the store's record of it, and its payload.

use postrider::sink::SinkConnection;
use postrider::store::{DeadLetter, Story};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::payload;

/// A message's whole story.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = Message)]
pub(crate) struct MessageView {
    #[serde(flatten)]
    record: Story,
    /// The payload as JSON, where it is; null once it was erased, or where the archive keeps metadata only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload's bytes, where JSON does not say them all: it is not JSON, has blanks around it, or is `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl MessageView {
    /// Of a message that waits for its receiver: the reason also says whether the node that answers is connected.
    pub(crate) fn with_connection(mut self, connection: Option<SinkConnection>) -> Self {
        let says = match connection {
            Some(SinkConnection::Down { error }) => format!("not connected: {error}"),
            Some(SinkConnection::Connecting) => "connecting".to_owned(),
            Some(SinkConnection::Up | SinkConnection::Idle | SinkConnection::NotKept) | None => return self,
        };
        self.record.reason = self.record.reason.map(|reason| format!("{says}; {reason}"));
        self
    }
}

impl From<Story> for MessageView {
    fn from(record: Story) -> Self {
        let (payload, payload_base64) = payload::shown(record.payload.as_ref(), &record.content_type);
        Self { record, payload, payload_base64 }
    }
}

impl From<MessageView> for Story {
    fn from(view: MessageView) -> Self {
        Self { payload: payload::read(view.payload, view.payload_base64.as_deref()), ..view.record }
    }
}

/// A dead letter with what it held.
#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = DeadLetter)]
pub(crate) struct DeadLetterView {
    #[serde(flatten)]
    record: DeadLetter,
    /// The payload as JSON, where it is; null once it was erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// The payload's bytes, where JSON does not say them all: it is not JSON, has blanks around it, or is `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl From<DeadLetter> for DeadLetterView {
    fn from(record: DeadLetter) -> Self {
        let (payload, payload_base64) = payload::shown(record.payload.as_ref(), &record.content_type);
        Self { record, payload, payload_base64 }
    }
}

impl From<DeadLetterView> for DeadLetter {
    fn from(view: DeadLetterView) -> Self {
        Self { payload: payload::read(view.payload, view.payload_base64.as_deref()), ..view.record }
    }
}
