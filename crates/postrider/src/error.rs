//! Errors, by what the caller can do about them.

use crate::message::MessageId;

/// Bad input: which field broke which rule. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {rule}")]
pub struct Invalid {
    pub field: String,
    pub rule: String,
}

impl Invalid {
    pub fn new(field: impl Into<String>, rule: impl Into<String>) -> Self {
        Self { field: field.into(), rule: rule.into() }
    }

    pub fn unknown_key(within: &str, key: &str, known: &[&str]) -> Self {
        let field = if within.is_empty() { key.to_owned() } else { format!("{within}.{key}") };
        Self::new(field, format!("unknown field; expected one of: {}", known.join(", ")))
    }
}

/// Why a store did not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    Invalid(#[from] Invalid),
    #[error("there is no {what} {name:?}")]
    Unknown { what: &'static str, name: String },
    #[error("endpoint {endpoint:?} is disabled; enable it to send to it")]
    Disabled { endpoint: String },
    /// `at` is the position of the refused message in its batch. `holder` is None if the key belongs to a message of the
    /// same batch, which is not inserted.
    #[error(
        "idempotency_key: {} has the same key and another payload or content type, or was erased",
        holder.map_or("a message before it in the batch".to_owned(), |id| format!("message {id} of this endpoint"))
    )]
    IdempotencyConflict { holder: Option<MessageId>, at: usize },
    #[error("{what} {name:?} exists already")]
    Exists { what: &'static str, name: String },
    #[error("{0}")]
    Conflict(String),
    /// `queued` excludes the refused messages. The limit is that of the endpoint, or else of the whole queue.
    #[error(
        "the queue is full: {queued} messages of {limit} ({}); try again later or raise max_queue_size",
        endpoint.as_ref().map_or("the whole queue".to_owned(), |name| format!("endpoint {name:?}"))
    )]
    QueueFull { queued: u64, limit: u64, endpoint: Option<String> },
    /// For a batch with too many messages, `bytes` is their number.
    #[error("{field}: {bytes} is more than {setting} allows, which is {limit}")]
    TooLarge { field: &'static str, bytes: u64, limit: u64, setting: &'static str },
    /// Temporary: nothing was changed, retry later.
    #[error("the store is not available now: {0}")]
    Unavailable(String),
    /// A person has to act: another version, another owner, a broken file.
    #[error("{0}")]
    Unusable(String),
    /// From a store behind a node: the token does not allow it.
    #[error("{0}")]
    Denied(String),
    /// From a store behind a node: the node could not be reached, so nothing was changed.
    #[error("{0}")]
    Unreachable(String),
    /// From a store behind a node: the request was sent and not answered. It may have been carried out.
    #[error("{0}")]
    Uncertain(String),
}

/// The values of `what` in [`StoreError::Unknown`] and [`StoreError::Exists`].
pub const THINGS: [&str; 7] =
    ["endpoint", "message", "dead letter", "event type", "subscription", "replay", "token"];
/// The values of `field` and `setting` in [`StoreError::TooLarge`].
pub const FIELDS: [&str; 8] =
    ["payload", "headers", "options", "ordering_key", "idempotency_key", "event_type", "messages", "events"];
pub const LIMITS: [&str; 5] =
    ["max_payload_bytes", "max_headers_bytes", "max_key_bytes", "max_batch_messages", "max_fanout"];

/// The static word equal to `word`. Another version of the server may send words that this one lacks.
pub fn known_word(words: &[&'static str], word: Option<&str>) -> &'static str {
    words.iter().copied().find(|known| Some(*known) == word).unwrap_or("thing")
}

impl StoreError {
    pub fn unknown_endpoint(name: impl Into<String>) -> Self {
        Self::Unknown { what: "endpoint", name: name.into() }
    }

    pub fn unknown_message(id: MessageId) -> Self {
        Self::Unknown { what: "message", name: id.to_string() }
    }

    /// The SQLSTATE that names this kind of error in every interface.
    pub fn sqlstate(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "22023",
            Self::Unknown { .. } => "42704",
            Self::Disabled { .. } | Self::Conflict(_) | Self::Unusable(_) => "55000",
            Self::IdempotencyConflict { .. } => "23505",
            Self::Exists { .. } => "42710",
            Self::QueueFull { .. } => "53400",
            Self::TooLarge { .. } => "54000",
            Self::Unavailable(_) => "57P03",
            Self::Denied(_) => "42501",
            Self::Unreachable(_) => "08001",
            Self::Uncertain(_) => "08007",
        }
    }
}
