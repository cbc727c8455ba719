//! One message as one line of JSON.

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::sink::Delivery;
use crate::sink::json::{embeddable, push_field, push_key};

/// Ends with the newline. A JSON payload stands in it as it is, but for line breaks between its tokens.
pub(super) fn of(delivery: &Delivery, endpoint: &str) -> Vec<u8> {
    let message = &*delivery.message;
    let mut line = Vec::with_capacity(message.payload.len() + 256);
    push_field(&mut line, "id", &delivery.public_id());
    push_field(&mut line, "endpoint", endpoint);
    push_key(&mut line, "attempt");
    line.extend_from_slice(delivery.attempt.to_string().as_bytes());
    push_field(&mut line, "created_at", &message.created_at.to_string());
    if let Some(id) = message.correlation_id {
        push_field(&mut line, "correlation_id", &id.to_string());
    }
    if let Some(key) = &message.ordering_key {
        push_field(&mut line, "ordering_key", key);
    }
    if let Some(event_type) = &message.event_type {
        push_field(&mut line, "event_type", event_type);
    }
    push_field(&mut line, "content_type", &message.content_type);
    if !message.headers.is_empty() {
        push_key(&mut line, "headers");
        serde_json::to_writer(&mut line, &message.headers).expect("strings can always be written to memory");
    }
    match embeddable(&message.content_type, &message.payload) {
        Some(text) => {
            push_key(&mut line, "payload");
            // Valid JSON has raw line breaks only between tokens, where a space means the same.
            line.extend(text.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte }));
        }
        None => push_field(&mut line, "payload_base64", &BASE64_STANDARD.encode(&message.payload)),
    }
    line.extend_from_slice(b"}\n");
    line
}
