//! A batch that was refused: which of its messages it was.

use std::collections::HashMap;

use postrider::{Endpoint, NewMessage, Operate, StoreError};

/// The store refuses a batch as a whole; the sender wants to know which of its messages was refused.
pub(crate) async fn guilty(
    operate: &dyn Operate,
    messages: &[NewMessage],
    error: &StoreError,
) -> Option<usize> {
    match error {
        // All of them together.
        StoreError::TooLarge { field: "messages", .. } => return None,
        StoreError::Invalid(_)
        | StoreError::Unknown { .. }
        | StoreError::Disabled { .. }
        | StoreError::TooLarge { .. } => {}
        StoreError::IdempotencyConflict { at, .. } => return (*at < messages.len()).then_some(*at),
        StoreError::Exists { .. }
        | StoreError::Conflict(_)
        | StoreError::QueueFull { .. }
        | StoreError::Unavailable(_)
        | StoreError::Unusable(_)
        | StoreError::Denied(_)
        | StoreError::Unreachable(_)
        | StoreError::Uncertain(_) => return None,
    }
    let settings = operate.settings().await.ok()?;
    let mut known: HashMap<&str, Option<Endpoint>> = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        if !known.contains_key(message.endpoint.as_str()) {
            let endpoint = match operate.endpoint(&message.endpoint).await {
                Ok(endpoint) => Some(endpoint),
                Err(StoreError::Unknown { .. }) => None,
                // Without an answer from the store no message is named.
                Err(_) => return None,
            };
            known.insert(&message.endpoint, endpoint);
        }
        let endpoint = known[message.endpoint.as_str()].as_ref();
        if endpoint.is_none_or(|endpoint| postrider::send::check(message, endpoint, &settings).is_err()) {
            return Some(at);
        }
    }
    None
}
