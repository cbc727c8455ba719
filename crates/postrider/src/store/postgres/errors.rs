//! What PostgreSQL says, as a store error. The functions of `sql/errors.sql` put field and name into the
//! error's own fields, so nothing is read out of sentences.

use deadpool::managed::PoolError;
use serde::Deserialize;
use tokio_postgres::error::DbError;

use crate::error::{Invalid, StoreError};
use crate::message::MessageId;

/// What there can be none of.
const THINGS: [&str; 5] = ["endpoint", "message", "dead letter", "event type", "subscription"];
/// What can be too large, and the settings that say so.
const FIELDS: [&str; 6] = ["payload", "headers", "ordering_key", "idempotency_key", "event_type", "messages"];
const LIMITS: [&str; 4] = ["max_payload_bytes", "max_headers_bytes", "max_key_bytes", "max_batch_messages"];

pub(super) fn store_error(error: tokio_postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(said) => refusal(said),
        None => StoreError::Unavailable(sentence(&error)),
    }
}

pub(super) fn pool_error(error: PoolError<StoreError>) -> StoreError {
    match error {
        PoolError::Backend(error) => error,
        other => StoreError::Unavailable(other.to_string()),
    }
}

/// The library's own errors say little without their cause.
fn sentence(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn refusal(said: &DbError) -> StoreError {
    let (column, constraint) = (said.column(), said.constraint());
    let named = |what| StoreError::Unknown { what, name: constraint.unwrap_or_default().to_owned() };
    match said.code().code() {
        "22023" if column.is_some() => invalid(said).into(),
        "42704" if column.is_some() => named(known(&THINGS, column)),
        "42710" if column.is_some() => StoreError::Exists {
            what: known(&THINGS, column),
            name: constraint.unwrap_or_default().to_owned(),
        },
        "22021" | "22P05" => {
            Invalid::new("text", "must not contain U+0000, which PostgreSQL cannot keep").into()
        }
        "54000" if column.is_some() => too_large(said),
        "55000" if column == Some("endpoint") => {
            StoreError::Disabled { endpoint: constraint.unwrap_or_default().to_owned() }
        }
        "55000" => StoreError::Conflict(said.message().to_owned()),
        "23505" if column == Some("idempotency_key") => {
            let holder = constraint.and_then(|id| id.parse().ok()).unwrap_or_default();
            StoreError::IdempotencyConflict { holder: MessageId(holder) }
        }
        "53400" if said.detail().is_some() => queue_full(said),
        code => unexpected(code, said),
    }
}

/// Not ours: the server's own errors.
fn unexpected(code: &str, said: &DbError) -> StoreError {
    let message = format!("{} ({code})", said.message());
    match (&code[..2], code) {
        (_, "42P01" | "42883" | "3F000") => StoreError::Unusable(format!(
            "{message}; if this database has no postrider schema yet, run `postrider migrate`"
        )),
        // Who may connect, to what, and what is allowed there.
        ("28", _) | (_, "3D000" | "42501") => StoreError::Unusable(message),
        _ => StoreError::Unavailable(message),
    }
}

/// The message begins with the field.
fn invalid(said: &DbError) -> Invalid {
    let field = said.column().unwrap_or_default();
    let rule = said.message().strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
    Invalid::new(field, rule.unwrap_or(said.message()))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Figures {
    size: u64,
    queued: u64,
    limit: u64,
}

fn figures(said: &DbError) -> Figures {
    said.detail().and_then(|detail| serde_json::from_str(detail).ok()).unwrap_or_default()
}

fn too_large(said: &DbError) -> StoreError {
    let Figures { size, limit, .. } = figures(said);
    let (field, setting) = (known(&FIELDS, said.column()), known(&LIMITS, said.constraint()));
    StoreError::TooLarge { field, bytes: size, limit, setting }
}

fn queue_full(said: &DbError) -> StoreError {
    let Figures { queued, limit, .. } = figures(said);
    let endpoint = said.constraint().filter(|name| !name.is_empty()).map(str::to_owned);
    StoreError::QueueFull { queued, limit, endpoint }
}

/// The program's own word for it; a newer schema may have others.
fn known(words: &[&'static str], word: Option<&str>) -> &'static str {
    words.iter().copied().find(|known| Some(*known) == word).unwrap_or("thing")
}
