//! Messages and events on their way to a node: payload and options in one document, because a header has no place for
//! blanks at its ends or for names in capitals.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use postrider::message::JSON;
use postrider::store::Result;
use postrider::{NewEvent, NewMessage, Sent, StoreError};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Remote;
use super::asking::{NodeRequest, segment};
use crate::view::{Published, SentBatch};

const ENVELOPE: &str = "application/vnd.postrider+json";
const LINES: &str = "application/x-ndjson";

/// A message in one document, as `POST /v1/endpoints/{name}/messages` and `POST /v1/messages:batch` read it.
#[derive(Serialize)]
struct WrittenMessage<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    options: Value,
}

impl Remote {
    pub(super) async fn send_one(&self, message: NewMessage) -> Result<Sent> {
        let path = format!("/v1/endpoints/{}/messages", segment("endpoint", &message.endpoint)?);
        let document = written(&WrittenMessage::of(None, &message));
        let asked =
            NodeRequest::post(path).body(ENVELOPE, document).repeatable(message.idempotency_key.is_some());
        self.answer(asked).await.map_err(|error| of_payload(error, &message.payload))
    }

    pub(super) async fn send_many(&self, messages: &[NewMessage]) -> Result<Vec<Sent>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut lines = Vec::new();
        for message in messages {
            lines.extend(written(&WrittenMessage::of(Some(&message.endpoint), message)));
            lines.push(b'\n');
        }
        let repeatable = messages.iter().all(|message| message.idempotency_key.is_some());
        let asked = NodeRequest::post("/v1/messages:batch").body(LINES, lines).repeatable(repeatable);
        let sent: SentBatch = self.answer(asked).await?;
        Ok(sent.items)
    }

    pub(super) async fn publish_one(&self, event: NewEvent) -> Result<u64> {
        let path = format!("/v1/events/{}", segment("event type", &event.event_type)?);
        let repeatable = event.idempotency_key.is_some();
        let message = NewMessage {
            headers: event.headers,
            options: event.options,
            priority: event.priority,
            scheduled_at: event.scheduled_at,
            expires_at: event.expires_at,
            idempotency_key: event.idempotency_key,
            correlation_id: event.correlation_id,
            ordering_key: event.ordering_key,
            ..NewMessage::new("", event.payload)
        };
        let document = written(&WrittenMessage::of(None, &message));
        let asked = NodeRequest::post(path).body(ENVELOPE, document).repeatable(repeatable);
        let published: Result<Published> = self.answer(asked).await;
        Ok(published.map_err(|error| of_payload(error, &message.payload))?.messages)
    }
}

impl<'a> WrittenMessage<'a> {
    fn of(endpoint: Option<&'a str>, message: &'a NewMessage) -> Self {
        let payload = as_it_stands(message);
        let payload_base64 = payload.is_none().then(|| STANDARD.encode(&message.payload));
        let mut options = json!({
            "content_type": message.content_type, "priority": message.priority,
            "scheduled_at": message.scheduled_at, "expires_at": message.expires_at,
            "idempotency_key": message.idempotency_key, "correlation_id": message.correlation_id,
            "ordering_key": message.ordering_key, "event_type": message.event_type,
            "headers": message.headers, "options": message.options,
        });
        if let Value::Object(options) = &mut options {
            options.retain(|_, value| !value.is_null());
        }
        Self { endpoint, payload, payload_base64, options }
    }
}

/// JSON that arrives with all its bytes: blanks around it would not, and a line break would end the line of a batch.
fn as_it_stands(message: &NewMessage) -> Option<&RawValue> {
    let json: &RawValue = serde_json::from_slice(&message.payload).ok()?;
    let whole = json.get().len() == message.payload.len() && !message.payload.contains(&b'\n');
    (message.content_type == JSON && whole).then_some(json)
}

fn written(envelope: &WrittenMessage<'_>) -> Vec<u8> {
    serde_json::to_vec(envelope).expect("a message becomes JSON")
}

/// The node says how large the whole document is.
fn of_payload(error: StoreError, payload: &Bytes) -> StoreError {
    match error {
        StoreError::TooLarge { field: field @ "payload", limit, setting, .. } => {
            StoreError::TooLarge { field, bytes: payload.len() as u64, limit, setting }
        }
        error => error,
    }
}
