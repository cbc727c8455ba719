//! What people see of endpoints and messages as JSON: one shape for the API and for `--json`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use postrider::Endpoint;
use postrider::breaker::CircuitState;
use postrider::store::{AttemptRecord, DeadLetter, Story};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

/// Never shows a secret: the config goes through the protocol's redaction.
pub(crate) fn endpoint(endpoint: &Endpoint) -> Value {
    json!({
        "name": endpoint.name,
        "protocol": endpoint.protocol.as_str(),
        "config": endpoint.protocol.redacted(&endpoint.config),
        "retry_policy": endpoint.retry,
        "options": endpoint.options,
        "enabled": endpoint.disabled.is_none(),
        "disabled_by": endpoint.disabled,
        "paused": endpoint.paused,
        "circuit": circuit(&endpoint.circuit.state),
        "mode": "cold",
        "held_until": endpoint.held_until,
        "created_at": endpoint.created_at,
    })
}

fn circuit(state: &CircuitState) -> Value {
    let name = state.name().as_str();
    match state {
        CircuitState::Closed => json!({ "state": name }),
        CircuitState::Open { until } => json!({ "state": name, "until": until }),
        CircuitState::HalfOpen { probe } => {
            json!({ "state": name, "probe_until": probe.map(|probe| probe.lease_until) })
        }
    }
}

/// A message's story. The payload is shown as JSON when it is JSON, byte for byte, else in base64.
pub(crate) fn story(story: &Story) -> String {
    let mut object = Object::default();
    object.put("id", &story.id);
    object.put("endpoint", &story.endpoint);
    object.put("state", &story.state);
    object.put("reason", &story.reason);
    object.put("priority", &story.priority);
    object.put("due_at", &story.due_at);
    object.put("attempt_count", &story.attempt_count);
    object.put("last_error", &story.last_error);
    object.put("attempts", &story.attempts.iter().map(attempt).collect::<Vec<_>>());
    object.put("content_type", &story.content_type);
    object.put_payload(story.payload.as_ref(), &story.content_type);
    object.put("headers", &story.headers);
    object.put("options", &story.options);
    object.put("idempotency_key", &story.idempotency_key);
    object.put("correlation_id", &story.correlation_id);
    object.put("ordering_key", &story.ordering_key);
    object.put("event_type", &story.event_type);
    object.put("created_at", &story.created_at);
    object.put("scheduled_at", &story.scheduled_at);
    object.put("expires_at", &story.expires_at);
    object.put("finished_at", &story.finished_at);
    object.put("dlq_id", &story.dlq_id);
    object.put("replay_of", &story.replay_of);
    object.put("replayed_as", &story.replayed_as);
    object.finish()
}

/// A dead letter in a list.
pub(crate) fn listed_dead_letter(letter: &DeadLetter) -> String {
    listed(letter).finish()
}

/// A dead letter with what it held.
pub(crate) fn dead_letter(letter: &DeadLetter) -> String {
    let mut object = listed(letter);
    object.put_payload(letter.payload.as_ref(), &letter.content_type);
    object.put("headers", &letter.headers);
    object.put("errors", &letter.errors);
    object.finish()
}

fn listed(letter: &DeadLetter) -> Object {
    let mut object = Object::default();
    object.put("id", &letter.id);
    object.put("message_id", &letter.message);
    object.put("endpoint", &letter.endpoint);
    object.put("status", &letter.status);
    object.put("reason", &letter.reason);
    object.put("died_at", &letter.died_at);
    object.put("attempt_count", &letter.attempt_count);
    object.put("last_error", &letter.last_error);
    object.put("content_type", &letter.content_type);
    object.put("ordering_key", &letter.ordering_key);
    object.put("event_type", &letter.event_type);
    object.put("created_at", &letter.created_at);
    object
}

fn attempt(record: &AttemptRecord) -> Value {
    let mut object = Map::new();
    object.insert("number".into(), record.number.into());
    object.insert("node".into(), record.node.0.into());
    object.insert("started_at".into(), json!(record.started_at));
    object.insert("duration_seconds".into(), record.duration.as_secs_f64().into());
    object.insert("outcome".into(), record.outcome.as_str().into());
    object.insert("class".into(), json!(record.class));
    object.insert("error".into(), json!(record.error));
    object.insert("response_status".into(), json!(record.status));
    match record.body.as_deref().map(std::str::from_utf8) {
        None => {}
        Some(Ok(text)) => {
            object.insert("response_body".into(), text.into());
        }
        Some(Err(_)) => {
            let body = record.body.as_deref().unwrap_or_default();
            object.insert("response_body_base64".into(), STANDARD.encode(body).into());
        }
    }
    Value::Object(object)
}

/// A JSON object written member by member, so that a payload can stand in it with its own bytes.
#[derive(Default)]
struct Object(String);

impl Object {
    fn put(&mut self, key: &str, value: &impl serde::Serialize) {
        let value = serde_json::to_string(value).expect("records become JSON");
        self.put_raw(key, &value);
    }

    fn put_raw(&mut self, key: &str, json: &str) {
        self.0.push(if self.0.is_empty() { '{' } else { ',' });
        self.0.push_str(&format!("\"{key}\":{json}"));
    }

    fn put_payload(&mut self, payload: Option<&Bytes>, content_type: &str) {
        let Some(payload) = payload else {
            return self.put_raw("payload", "null");
        };
        match as_json(payload, content_type) {
            Some(json) => self.put_raw("payload", json.get()),
            None => self.put("payload_base64", &STANDARD.encode(payload)),
        }
    }

    fn finish(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

fn as_json<'a>(payload: &'a Bytes, content_type: &str) -> Option<&'a RawValue> {
    if is_json(content_type) { serde_json::from_slice(payload).ok() } else { None }
}

pub(crate) fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media == "application/json" || media.ends_with("+json")
}

/// A payload on one line, as far as it can be read.
pub(crate) fn payload_text(payload: Option<&Bytes>) -> String {
    match payload.map(|payload| std::str::from_utf8(payload)) {
        None => "(not kept)".to_owned(),
        Some(Ok(text)) => text.to_owned(),
        Some(Err(_)) => format!("({} bytes that are not text)", payload.map_or(0, Bytes::len)),
    }
}

/// How long ago, in one short word.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_told_by_its_content_type() {
        for yes in ["application/json", "Application/JSON; charset=utf-8", "application/cloudevents+json"] {
            assert!(is_json(yes), "{yes}");
        }
        for no in ["text/plain", "application/jsonlines", ""] {
            assert!(!is_json(no), "{no}");
        }
    }
}
